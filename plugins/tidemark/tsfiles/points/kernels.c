/* Decode TsFile pages value by value, for encodings that numpy cannot decode as arrays. C11 of gcc and clang; includes only
 * headers of the C library.
 *
 * Every decoder takes the bytes of one page (`data`, `size`) and the number of values it must hold (`count`), writes
 * `count` values to `out` and returns 0, or one of the codes below. It never reads beyond `data + size` nor writes beyond
 * `out + count`, and ends after at most 8 * size + count steps. The same decoders in numpy and Python are in
 * decode/integers.py and decode/xor.py, which name the sources of the formats. `kernels.py` builds and loads this file.
 */
#include <stdint.h>
#include <string.h>

enum { SOUND = 0, CUT_SHORT = 1, WRONG_COUNT = 2, IMPOSSIBLE = 3, NO_END = 4 };

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    const uint8_t *data;
    uint64_t size;
    uint64_t at; /* in bits */
} Bits;

static inline uint64_t big_endian_64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* The `width` bits (1 to 64) from bit `at` on, which must lie inside the data; most significant first. */
static inline uint64_t bits_at(const uint8_t *data, uint64_t size, uint64_t at, unsigned width) {
    const uint64_t byte = at >> 3;
    const unsigned offset = (unsigned)(at & 7);
    uint8_t tail[16];
    const uint8_t *p = data + byte;
    if (byte + 9 > size) {
        memset(tail, 0, sizeof tail);
        memcpy(tail, p, (size_t)(size - byte));
        p = tail;
    }
    uint64_t word = big_endian_64(p) << offset;
    if (offset + width > 64) word |= (uint64_t)(p[8] >> (8 - offset));
    return word >> (64 - width);
}

static inline int take(Bits *bits, unsigned width, uint64_t *value) {
    if (bits->at + width > bits->size * 8) return 0;
    *value = width ? bits_at(bits->data, bits->size, bits->at, width) : 0;
    bits->at += width;
    return 1;
}

static inline int uvarint(const uint8_t *data, uint64_t size, uint64_t *at, uint32_t *value) {
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 35 && *at < size; shift += 7) {
        const uint8_t byte = data[(*at)++];
        result |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (uint32_t)result;
            return 1;
        }
    }
    return 0;
}

/* TS_2DIFF: packs of int32 number, int32 width, smallest difference, first value, differences less the smallest. */
#define DELTAS(NAME, UNSIGNED, WIDTH)                                                                                   \
    EXPORT int NAME(const uint8_t *data, uint64_t size, uint64_t count, UNSIGNED *out) {                                \
        uint64_t at = 0, have = 0;                                                                                      \
        while (at < size) {                                                                                             \
            if (size - at < 8 + 2 * sizeof(UNSIGNED)) return CUT_SHORT;                                                 \
            const uint32_t number = (uint32_t)(bits_at(data, size, at * 8, 32));                                        \
            const uint32_t width = (uint32_t)(bits_at(data, size, at * 8 + 32, 32));                                    \
            const UNSIGNED smallest = (UNSIGNED)bits_at(data, size, at * 8 + 64, WIDTH);                                \
            UNSIGNED value = (UNSIGNED)bits_at(data, size, at * 8 + 64 + WIDTH, WIDTH);                                 \
            at += 8 + 2 * sizeof(UNSIGNED);                                                                             \
            if (number > INT32_MAX || (uint64_t)number + 1 > count - have) return WRONG_COUNT;                          \
            if (width > WIDTH) return IMPOSSIBLE;                                                                       \
            const uint64_t bytes = ((uint64_t)number * width + 7) / 8;                                                  \
            if (bytes > size - at) return CUT_SHORT;                                                                    \
            out[have++] = value;                                                                                        \
            uint64_t bit = at * 8;                                                                                      \
            for (uint32_t i = 0; i < number; i++, bit += width) {                                                       \
                value += smallest + (width ? (UNSIGNED)bits_at(data, size, bit, width) : 0);                            \
                out[have++] = value;                                                                                    \
            }                                                                                                           \
            at += bytes;                                                                                                \
        }                                                                                                               \
        return have == count ? SOUND : WRONG_COUNT;                                                                     \
    }

DELTAS(tm_deltas_32, uint32_t, 32)
DELTAS(tm_deltas_64, uint64_t, 64)

/* Encode TS_2DIFF: blocks of one value and up to `block` differences. `out` has room for
 * (8 + 2 * size of a value) bytes a block and the size of a value for each difference. Returns the bytes written. */
#define ENCODE_DELTAS(NAME, UNSIGNED, SIGNED, WIDTH)                                                                    \
    EXPORT uint64_t NAME(const UNSIGNED *values, uint64_t count, uint32_t block, uint8_t *out) {                        \
        uint64_t at = 0, done = 0;                                                                                      \
        while (done < count) {                                                                                          \
            const uint64_t left = count - done - 1;                                                                     \
            const uint32_t number = left < block ? (uint32_t)left : block;                                              \
            const UNSIGNED *first = values + done;                                                                      \
            SIGNED smallest = number ? (SIGNED)(first[1] - first[0]) : 0;                                               \
            for (uint32_t i = 1; i < number; i++) {                                                                     \
                const SIGNED difference = (SIGNED)(first[i + 1] - first[i]);                                            \
                if (difference < smallest) smallest = difference;                                                       \
            }                                                                                                           \
            UNSIGNED any = 0;                                                                                           \
            for (uint32_t i = 0; i < number; i++) any |= first[i + 1] - first[i] - (UNSIGNED)smallest;                  \
            const unsigned width = any ? 64 - (unsigned)__builtin_clzll((uint64_t)any) : 0;                             \
            const uint64_t head[4] = {number, width, (UNSIGNED)smallest, *first};                                       \
            const unsigned sizes[4] = {4, 4, sizeof(UNSIGNED), sizeof(UNSIGNED)};                                       \
            for (int part = 0; part < 4; part++) {                                                                      \
                for (int i = (int)sizes[part] - 1; i >= 0; i--) out[at++] = (uint8_t)(head[part] >> (8 * i));           \
            }                                                                                                           \
            unsigned __int128 waiting = 0;                                                                              \
            unsigned bits = 0;                                                                                          \
            for (uint32_t i = 0; width && i < number; i++) {                                                            \
                waiting = (waiting << width) | (UNSIGNED)(first[i + 1] - first[i] - (UNSIGNED)smallest);                \
                for (bits += width; bits >= 8; bits -= 8) out[at++] = (uint8_t)(waiting >> (bits - 8));                 \
            }                                                                                                           \
            if (bits) out[at++] = (uint8_t)(waiting << (8 - bits));                                                     \
            done += number + 1;                                                                                         \
        }                                                                                                               \
        return at;                                                                                                      \
    }

ENCODE_DELTAS(tm_encode_deltas_32, uint32_t, int32_t, 32)
ENCODE_DELTAS(tm_encode_deltas_64, uint64_t, int64_t, 64)

/* GORILLA; the value after the last is the end mark, which goes to `end`. */
#define GORILLA(NAME, UNSIGNED, WIDTH, LENGTH_BITS)                                                                     \
    EXPORT int NAME(const uint8_t *data, uint64_t size, uint64_t count, UNSIGNED *out, UNSIGNED *end) {                 \
        Bits bits = {data, size, 0};                                                                                    \
        uint64_t part, value;                                                                                           \
        int leading = 0, trailing = 0, fresh = 1;                                                                       \
        if (!take(&bits, WIDTH, &value)) return CUT_SHORT;                                                              \
        for (uint64_t i = 0; i < count; i++) {                                                                          \
            out[i] = (UNSIGNED)value;                                                                                   \
            if (!take(&bits, 1, &part)) return CUT_SHORT;                                                               \
            if (!part) continue;                                                                                        \
            if (!take(&bits, 1, &part)) return CUT_SHORT;                                                               \
            if (part) {                                                                                                 \
                if (!take(&bits, 2 * LENGTH_BITS, &part)) return CUT_SHORT;                                             \
                leading = (int)(part >> LENGTH_BITS);                                                                   \
                trailing = WIDTH - ((int)(part & ((1 << LENGTH_BITS) - 1)) + 1) - leading;                              \
                fresh = 0;                                                                                              \
            }                                                                                                           \
            if (fresh || trailing < 0) return IMPOSSIBLE;                                                               \
            if (!take(&bits, (unsigned)(WIDTH - leading - trailing), &part)) return CUT_SHORT;                          \
            value ^= part << trailing;                                                                                  \
        }                                                                                                               \
        *end = (UNSIGNED)value;                                                                                         \
        return SOUND;                                                                                                   \
    }

GORILLA(tm_gorilla_32, uint32_t, 32, 5)
GORILLA(tm_gorilla_64, uint64_t, 64, 6)

static const int CHIMP_LEADING[8] = {0, 8, 12, 16, 18, 20, 22, 24};

/* CHIMP; `out` also serves as the ring buffer of earlier values. */
#define CHIMP(NAME, UNSIGNED, WIDTH, INDEX_BITS, LENGTH_BITS)                                                           \
    EXPORT int NAME(const uint8_t *data, uint64_t size, uint64_t count, UNSIGNED *out, UNSIGNED *end) {                 \
        Bits bits = {data, size, 0};                                                                                    \
        uint64_t control, part, value;                                                                                  \
        int leading = -1;                                                                                               \
        if (!take(&bits, WIDTH, &value)) return CUT_SHORT;                                                              \
        for (uint64_t i = 0; i < count; i++) {                                                                          \
            out[i] = (UNSIGNED)value;                                                                                   \
            if (!take(&bits, 2, &control)) return CUT_SHORT;                                                            \
            if (control >= 2) {                                                                                         \
                if (control == 3) {                                                                                     \
                    if (!take(&bits, 3, &part)) return CUT_SHORT;                                                       \
                    leading = CHIMP_LEADING[part];                                                                      \
                }                                                                                                       \
                if (leading < 0) return IMPOSSIBLE;                                                                     \
                if (!take(&bits, (unsigned)(WIDTH - leading), &part)) return CUT_SHORT;                                 \
                value ^= part;                                                                                          \
                continue;                                                                                               \
            }                                                                                                           \
            if (!take(&bits, INDEX_BITS, &part)) return CUT_SHORT;                                                      \
            const uint64_t back = (i - part) & ((1 << INDEX_BITS) - 1);                                                 \
            value = back <= i ? out[i - back] : 0;                                                                      \
            if (control == 1) {                                                                                         \
                if (!take(&bits, 3, &part)) return CUT_SHORT;                                                           \
                leading = CHIMP_LEADING[part];                                                                          \
                if (!take(&bits, LENGTH_BITS, &part)) return CUT_SHORT;                                                 \
                const int significant = part ? (int)part : WIDTH;                                                       \
                const int trailing = WIDTH - significant - leading;                                                     \
                if (trailing < 0) return IMPOSSIBLE;                                                                    \
                if (!take(&bits, (unsigned)significant, &part)) return CUT_SHORT;                                       \
                value ^= part << trailing;                                                                              \
            }                                                                                                           \
        }                                                                                                               \
        *end = (UNSIGNED)value;                                                                                         \
        return SOUND;                                                                                                   \
    }

CHIMP(tm_chimp_32, uint32_t, 32, 6, 5)
CHIMP(tm_chimp_64, uint64_t, 64, 7, 6)

/* RLE: blocks of runs and of groups of eight packed values, as patterns of 64 bits; `bytes_of_type` is 4 or 8. */
EXPORT int tm_runs(const uint8_t *data, uint64_t size, uint64_t count, uint64_t *out, uint32_t bytes_of_type) {
    uint64_t at = 0, have = 0;
    while (at < size) {
        uint32_t length, header;
        if (!uvarint(data, size, &at, &length)) return CUT_SHORT;
        if (length > size - at || length == 0) return CUT_SHORT;
        const uint64_t end = at + length;
        const unsigned width = data[at++];
        if (width > 64) return IMPOSSIBLE;
        while (at < end) {
            if (!uvarint(data, end, &at, &header)) return CUT_SHORT;
            if (!(header & 1)) {
                const uint64_t number = header >> 1;
                const unsigned bytes = (width + 7) / 8;
                uint64_t value = 0;
                if (number > count - have) return WRONG_COUNT;
                if (bytes > end - at) return CUT_SHORT;
                for (unsigned i = 0; i < bytes; i++) {
                    value |= (uint64_t)data[at + i] << (8 * (bytes_of_type == 8 ? bytes - 1 - i : i));
                }
                at += bytes;
                for (uint64_t i = 0; i < number; i++) out[have++] = value;
                continue;
            }
            const uint64_t groups = header >> 1;
            if (at >= end) return CUT_SHORT;
            const uint64_t last = data[at++];
            if (groups == 0 || last < 1 || last > 8) return IMPOSSIBLE;
            const uint64_t number = (groups - 1) * 8 + last;
            if (number > count - have) return WRONG_COUNT;
            const uint64_t left = end - at, bytes = groups * width < left ? groups * width : left;
            if (number * width > bytes * 8) return CUT_SHORT;
            for (uint64_t i = 0; i < number; i++) {
                out[have++] = width ? bits_at(data, size, at * 8 + i * width, width) : 0;
            }
            at += bytes;
        }
    }
    return have == count ? SOUND : WRONG_COUNT;
}

/* PLAIN of INT32 and DATE: zigzag varints, one after another. */
EXPORT int tm_varints_32(const uint8_t *data, uint64_t size, uint64_t count, uint32_t *out) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t value;
        if (!uvarint(data, size, &at, &value)) return CUT_SHORT;
        out[i] = (value >> 1) ^ (0 - (value & 1));
    }
    return at == size ? SOUND : WRONG_COUNT;
}

/* ZIGZAG: blocks of length, number, zigzag varints. Bits beyond the type's width are dropped. */
EXPORT int tm_zigzag(const uint8_t *data, uint64_t size, uint64_t count, uint64_t *out, uint32_t width) {
    const uint64_t mask = width == 64 ? ~(uint64_t)0 : 0xFFFFFFFFu;
    uint64_t at = 0, have = 0;
    while (at < size) {
        uint32_t length, number;
        if (!uvarint(data, size, &at, &length) || !uvarint(data, size, &at, &number)) return CUT_SHORT;
        if (length > size - at) return CUT_SHORT;
        if (number > count - have) return WRONG_COUNT;
        const uint64_t end = at + length;
        for (uint32_t i = 0; i < number; i++) {
            uint64_t value = 0;
            for (unsigned shift = 0;; shift += 7) {
                if (at >= end) return CUT_SHORT;
                const uint8_t byte = data[at++];
                if (shift < 64) value |= (uint64_t)(byte & 0x7F) << shift;
                if (byte < 0x80) break;
            }
            value &= mask;
            out[have++] = ((value >> 1) ^ (0 - (value & 1))) & mask;
        }
        at = end;
    }
    return have == count ? SOUND : WRONG_COUNT;
}

/* Whether times ascend strictly. */
EXPORT int tm_ascend(const int64_t *times, uint64_t count) {
    int wrong = 0;
    for (uint64_t i = 1; i < count; i++) wrong |= times[i] <= times[i - 1];
    return wrong ? IMPOSSIBLE : SOUND;
}

/* The rest of an LZ4 length whose four bits in the token are all set: bytes up to the first that is not 255. */
static inline int lz4_more(const uint8_t *data, uint64_t size, uint64_t *at, uint64_t *length) {
    for (uint8_t byte = 255; byte == 255; *length += byte) {
        if (*at >= size) return 0;
        byte = data[(*at)++];
    }
    return 1;
}

/* Whether an LZ4 block decompresses to `count` bytes: sequences of literals and a copy, the last without a copy. */
EXPORT int tm_lz4_holds(const uint8_t *data, uint64_t size, uint64_t count) {
    uint64_t at = 0, have = 0;
    while (at < size) {
        const uint8_t token = data[at++];
        uint64_t literals = token >> 4, copied = token & 15;
        if (literals == 15 && !lz4_more(data, size, &at, &literals)) return CUT_SHORT;
        if (literals > size - at) return CUT_SHORT;
        at += literals;
        have += literals;
        if (at == size) break;
        if (size - at < 2) return CUT_SHORT;
        at += 2;
        if (copied == 15 && !lz4_more(data, size, &at, &copied)) return CUT_SHORT;
        have += copied + 4;
    }
    return have == count ? SOUND : WRONG_COUNT;
}
