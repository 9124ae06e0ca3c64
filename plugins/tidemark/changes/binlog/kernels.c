/* Find and load the values of row events, for speed alone. C11 of gcc and clang; includes only headers of the C library.
 *
 * `tm_walk` finds where each value of each row begins and how long it is. The others load the values that it found. None
 * reads beyond `data + size`. The same functions in numpy and Python are in batches.py, which also builds this file.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* The rows from byte `at` on, `most` of them at most. A row has one or two images; image i has columns[i] columns. Column
 * c (over both images) has a length of prefix[c] bytes before it, or none and fixed[c] bytes. Writes for row r and column
 * c: starts[c * most + r], and lengths[c * most + r], which is -1 for NULL; and the end of each row to ends[r]. Returns
 * the number of rows, or -1 if a row is cut short.
 */
EXPORT int64_t tm_walk(const uint8_t *data, uint64_t size, uint64_t at, const uint32_t *columns, uint32_t images,
                       const uint8_t *prefix, const uint8_t *fixed, uint64_t most, int64_t *starts, int64_t *lengths,
                       int64_t *ends) {
    uint64_t p = at, row = 0;
    for (; row < most && p < size; row++) {
        uint64_t column = 0;
        for (uint32_t image = 0; image < images; image++) {
            const uint64_t count = columns[image], nulls = (count + 7) / 8;
            if (nulls > size - p) return -1;
            const uint8_t *bits = data + p;
            p += nulls;
            for (uint64_t i = 0; i < count; i++, column++) {
                int64_t *start = starts + column * most + row, *length = lengths + column * most + row;
                if (bits[i >> 3] >> (i & 7) & 1) {
                    *start = 0;
                    *length = -1;
                    continue;
                }
                uint64_t bytes = fixed[column];
                if (prefix[column]) {
                    if (prefix[column] > size - p) return -1;
                    bytes = 0;
                    for (unsigned k = 0; k < prefix[column]; k++) bytes |= (uint64_t)data[p + k] << (8 * k);
                    p += prefix[column];
                }
                if (bytes > size - p) return -1;
                *start = (int64_t)p;
                *length = (int64_t)bytes;
                p += bytes;
            }
        }
        ends[row] = (int64_t)p;
    }
    return (int64_t)row;
}

/* Unsigned integers of `bytes` bytes (1 to 8), 0 for NULL. */
EXPORT void tm_load(const uint8_t *data, const int64_t *starts, const int64_t *lengths, uint64_t rows, uint32_t bytes,
                    uint32_t is_big, uint64_t *out) {
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t value = 0;
        if (lengths[row] >= 0) {
            const uint8_t *p = data + starts[row];
            if (is_big)
                for (uint32_t k = 0; k < bytes; k++) value = value << 8 | p[k];
            else
                for (uint32_t k = 0; k < bytes; k++) value |= (uint64_t)p[k] << (8 * k);
        }
        out[row] = value;
    }
}

/* The bytes of the values, one behind the other. */
EXPORT void tm_gather(const uint8_t *data, const int64_t *starts, const int64_t *lengths, uint64_t rows, uint8_t *out) {
    for (uint64_t row = 0; row < rows; row++)
        if (lengths[row] > 0) {
            memcpy(out, data + starts[row], (size_t)lengths[row]);
            out += lengths[row];
        }
}

/* Multiply by 10^digits and add. */
static void append_digits(uint64_t *limbs, unsigned count, uint32_t power, uint32_t group) {
    unsigned __int128 carry = group;
    for (unsigned k = 0; k < count; k++) {
        carry += (unsigned __int128)limbs[k] * power;
        limbs[k] = (uint64_t)carry;
        carry >>= 64;
    }
}

/* DECIMALs as two's complement integers of `limbs` words, least significant first; 0 for NULL. Each has `groups` groups
 * of digits[g] decimal digits (1 to 9), high first. Returns -1 if a group has more digits than that.
 */
EXPORT int64_t tm_decimals(const uint8_t *data, const int64_t *starts, const int64_t *lengths, uint64_t rows,
                           const uint8_t *digits, uint32_t groups, uint32_t limbs, uint64_t *out) {
    static const uint8_t sizes[10] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4};
    static const uint32_t powers[10] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000};
    for (uint64_t row = 0; row < rows; row++, out += limbs) {
        memset(out, 0, limbs * sizeof *out);
        if (lengths[row] < 0) continue;
        const uint8_t *p = data + starts[row];
        const int negative = p[0] < 0x80;
        const uint8_t mask = negative ? 0xFF : 0;
        uint8_t first = 0x80;
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t group = 0;
            for (unsigned k = 0; k < sizes[digits[g]]; k++, first = 0) group = group << 8 | (uint8_t)(*p++ ^ mask ^ first);
            if (group >= powers[digits[g]]) return -1;
            append_digits(out, limbs, powers[digits[g]], group);
        }
        if (negative) {
            uint64_t carry = 1;
            for (uint32_t k = 0; k < limbs; k++) {
                out[k] = ~out[k] + carry;
                carry = carry && !out[k];
            }
        }
    }
    return 0;
}
