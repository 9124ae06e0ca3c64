/* Find and load the values of row events, for speed alone. C11 of gcc and clang; includes only headers of the C library.
 *
 * `tm_split` finds events in what a server sent or a log holds, `tm_scan` transactions in events. `tm_walk` finds where each
 * value of each row begins and how long it is, `tm_walk_answer` the same in the answer of a server. The others load the values
 * that it found, as they are or as text. None reads beyond the data that it is given. The same functions in numpy and Python
 * are in batches.py, scalars.py and in connection/results.py; batches.py builds this file.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* The rows in stretches of data, `most` of them at most, from byte place[1] of stretch place[0] on. Stretch e is data[begins[e]]
 * to data[ends[e]], inside of the data, and holds whole rows. A row has one or two images; image i has columns[i] columns.
 * Column c (over both images) has a length of prefix[c] bytes before it, or none and fixed[c] bytes. Writes for row r and
 * column c: starts[c * most + r], and lengths[c * most + r], which is -1 for NULL; and the stretch of each row to owners[r].
 * Leaves in `place` where the next row would be: stretch `count` if there is none. Returns the number of rows, or -1 if one
 * is cut short.
 */
EXPORT int64_t tm_walk(const uint8_t *data, const int64_t *begins, const int64_t *ends, uint64_t count, uint64_t *place,
                       const uint32_t *columns, uint32_t images, const uint8_t *prefix, const uint8_t *fixed, uint64_t most,
                       int64_t *starts, int64_t *lengths, int64_t *owners) {
    uint64_t event = place[0], p = place[1], row = 0;
    for (; event < count; event++, p = event < count ? (uint64_t)begins[event] : 0) {
        const uint64_t size = (uint64_t)ends[event];
        for (; row < most && p < size; row++) {
            uint64_t column = 0;
            for (uint32_t image = 0; image < images; image++) {
                const uint64_t width = columns[image], nulls = (width + 7) / 8;
                if (nulls > size - p) return -1;
                const uint8_t *bits = data + p;
                p += nulls;
                for (uint64_t i = 0; i < width; i++, column++) {
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
            owners[row] = (int64_t)event;
        }
        if (p < size) break;
    }
    place[0] = event;
    place[1] = p;
    return (int64_t)row;
}

/* The rows of an answer in the text protocol, from byte 0 on, `most` of them at most: packets of 3 bytes of size, a number and
 * `width` values, each behind its length. Ends before a packet that is not there wholly or is no row in one packet. Writes
 * as tm_walk does, and the bytes of those rows to `used`. Returns the number of rows, or -1 at one that is none.
 */
EXPORT int64_t tm_walk_answer(const uint8_t *data, uint64_t size, uint32_t width, uint64_t most, int64_t *starts,
                              int64_t *lengths, uint64_t *used) {
    uint64_t p = 0, row = 0;
    for (; row < most && size - p > 4; row++) {
        const uint64_t body = data[p] | (uint64_t)data[p + 1] << 8 | (uint64_t)data[p + 2] << 16;
        if (body == 0 || body == 0xffffff || body > size - p - 4) break;
        const uint8_t first = data[p + 4];
        if (first == 0xff || (first == 0xfe && body < 9)) break;
        uint64_t at = p + 4, end = at + body;
        for (uint64_t column = 0; column < width; column++) {
            int64_t *start = starts + column * most + row, *length = lengths + column * most + row;
            if (at == end) return -1;
            uint64_t bytes = data[at++];
            if (bytes == 0xfb) {
                *start = (int64_t)at;
                *length = -1;
                continue;
            }
            if (bytes > 0xfb) {
                const unsigned prefix = bytes == 0xfc ? 2 : bytes == 0xfd ? 3 : bytes == 0xfe ? 8 : 0;
                if (prefix == 0 || prefix > end - at) return -1;
                bytes = 0;
                for (unsigned k = 0; k < prefix; k++) bytes |= (uint64_t)data[at + k] << (8 * k);
                at += prefix;
            }
            if (bytes > end - at) return -1;
            *start = (int64_t)at;
            *length = (int64_t)bytes;
            at += bytes;
        }
        if (at != end) return -1;
        p = end;
    }
    *used = p;
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

/* A number with zeros before it, `width` characters at least; the sign is one of them. Returns the place behind it. */
static char *put_number(char *out, int64_t number, unsigned width) {
    char digits[20];
    unsigned count = 0;
    if (number < 0) {
        *out++ = '-';
        number = -number;
        width -= width > 0;
    }
    do digits[count++] = (char)('0' + number % 10); while (number /= 10);
    for (; width > count; width--) *out++ = '0';
    while (count) *out++ = digits[--count];
    return out;
}

static char *put_date(char *out, int64_t year, int64_t month, int64_t day) {
    out = put_number(out, year, 4);
    *out++ = '-';
    out = put_number(out, month, 2);
    *out++ = '-';
    return put_number(out, day, 2);
}

static char *put_time(char *out, uint64_t value) {
    out = put_number(out, (int64_t)(value >> 12 & 0x3FF), 2);
    *out++ = ':';
    out = put_number(out, (int64_t)(value >> 6 & 63), 2);
    *out++ = ':';
    return put_number(out, (int64_t)(value & 63), 2);
}

/* The first `digits` (0 to 6) of a fraction that is stored in (digits + 1) / 2 bytes of hundredths. */
static char *put_fraction(char *out, uint64_t value, uint32_t digits) {
    char text[24];
    if (!digits) return out;
    put_number(text, (int64_t)value, (digits + 1) / 2 * 2);
    *out++ = '.';
    memcpy(out, text, digits);
    return out + digits;
}

/* The date of a day since 1970-01-01 ("days from civil" by Howard Hinnant, turned round; days are not negative here). */
static char *put_day(char *out, uint32_t days) {
    const uint32_t shifted = days + 719468, era = shifted / 146097, doe = shifted % 146097;
    const uint32_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    const uint32_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), month = (5 * doy + 2) / 153;
    return put_date(out, yoe + era * 400 + (month >= 10), month < 10 ? month + 3 : month - 9, doy - (153 * month + 2) / 5 + 1);
}

enum { DATE, TIMESTAMP2, DATETIME2, TIME2 };

static uint64_t read_little64(const uint8_t *p, uint32_t bytes) {
    uint64_t value = 0;
    for (uint32_t k = 0; k < bytes; k++) value |= (uint64_t)p[k] << (8 * k);
    return value;
}

static uint32_t read_little(const uint8_t *p, uint32_t bytes) { return (uint32_t)read_little64(p, bytes); }

static uint64_t read_big(const uint8_t *p, uint32_t bytes) {
    uint64_t value = 0;
    for (uint32_t k = 0; k < bytes; k++) value = value << 8 | p[k];
    return value;
}

/* Dates and times as text, one behind the other; offsets[r] is where row r begins, NULL has none. `out` has 32 bytes a row. */
EXPORT void tm_print_times(const uint8_t *data, const int64_t *starts, const int64_t *lengths, uint64_t rows, uint32_t kind,
                           uint32_t digits, char *out, int32_t *offsets) {
    const char *begin = out;
    const uint32_t fraction = (digits + 1) / 2;
    for (uint64_t row = 0; row < rows; row++) {
        offsets[row] = (int32_t)(out - begin);
        if (lengths[row] < 0) continue;
        const uint8_t *p = data + starts[row];
        if (kind == DATE) {
            const uint32_t value = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
            out = put_date(out, value >> 9, value >> 5 & 15, value & 31);
        } else if (kind == TIMESTAMP2) {
            const uint32_t seconds = (uint32_t)read_big(p, 4), second = seconds % 86400;
            const uint64_t rest = read_big(p + 4, fraction);
            out = seconds || rest ? put_day(out, seconds / 86400) : put_date(out, 0, 0, 0);
            *out++ = ' ';
            out = put_time(out, second / 3600 << 12 | second / 60 % 60 << 6 | second % 60);
            out = put_fraction(out, rest, digits);
        } else if (kind == DATETIME2) {
            const int64_t value = (int64_t)read_big(p, 5) - ((int64_t)1 << 39);
            const uint64_t low = (uint64_t)value & 0x3FFFFF;
            int64_t months = (value - (int64_t)low) / (1 << 22), month = months % 13;
            if (month < 0) month += 13;
            out = put_date(out, (months - month) / 13, month, (int64_t)(low >> 17));
            *out++ = ' ';
            out = put_time(out, low & 0x1FFFF);
            out = put_fraction(out, read_big(p + 5, fraction), digits);
        } else {
            int64_t value = (int64_t)read_big(p, 3 + fraction) - ((int64_t)0x800000 << 8 * fraction);
            if (value < 0) {
                *out++ = '-';
                value = -value;
            }
            out = put_time(out, (uint64_t)value >> 8 * fraction);
            out = put_fraction(out, (uint64_t)value & (((uint64_t)1 << 8 * fraction) - 1), digits);
        }
    }
    offsets[rows] = (int32_t)(out - begin);
}

/* DECIMALs as text, as `tm_decimals` and `tm_print_times` have them; the last `scale` of their digits stand behind the point.
 * `out` has 70 bytes a row. Returns -1 if a group has more digits than it may.
 */
EXPORT int64_t tm_print_decimals(const uint8_t *data, const int64_t *starts, const int64_t *lengths, uint64_t rows,
                                 const uint8_t *digits, uint32_t groups, uint32_t scale, char *out, int32_t *offsets) {
    static const uint8_t sizes[10] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4};
    static const uint32_t powers[10] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000};
    const char *begin = out;
    for (uint64_t row = 0; row < rows; row++) {
        offsets[row] = (int32_t)(out - begin);
        if (lengths[row] < 0) continue;
        const uint8_t *p = data + starts[row];
        const uint8_t mask = p[0] < 0x80 ? 0xFF : 0;
        uint8_t first = 0x80;
        char text[80], *end = text;
        uint32_t any = 0;
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t group = 0;
            for (unsigned k = 0; k < sizes[digits[g]]; k++, first = 0) group = group << 8 | (uint8_t)(*p++ ^ mask ^ first);
            if (group >= powers[digits[g]]) return -1;
            end = put_number(end, group, digits[g]);
            any |= group;
        }
        const char *point = end - scale, *from = text;
        if (mask && any) *out++ = '-';
        while (from < point && *from == '0') from++;
        if (from == point) *out++ = '0';
        memcpy(out, from, (size_t)(point - from));
        out += point - from;
        if (scale) {
            *out++ = '.';
            memcpy(out, point, scale);
            out += scale;
        }
    }
    offsets[rows] = (int32_t)(out - begin);
    return 0;
}

/* CRC-32 as zlib has it, eight bytes at a time. */
static uint32_t crc_tables[8][256];

static void make_crc_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
        crc_tables[0][byte] = value;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++)
            crc_tables[k][byte] = crc_tables[k - 1][byte] >> 8 ^ crc_tables[0][crc_tables[k - 1][byte] & 255];
}

static uint32_t crc_of(const uint8_t *p, uint64_t size) {
    uint32_t value = ~0u;
    for (; size >= 8; size -= 8, p += 8) {
        value ^= read_little(p, 4);
        value = crc_tables[7][value & 255] ^ crc_tables[6][value >> 8 & 255] ^ crc_tables[5][value >> 16 & 255] ^
                crc_tables[4][value >> 24] ^ crc_tables[3][p[4]] ^ crc_tables[2][p[5]] ^ crc_tables[1][p[6]] ^
                crc_tables[0][p[7]];
    }
    while (size--) value = value >> 8 ^ crc_tables[0][(value ^ *p++) & 255];
    return ~value;
}

enum { HEADER = 19, QUERY = 2, ROTATE = 4, FORMAT = 15, XID = 16, TABLE_MAP = 19, WRITE_1 = 23, UPDATE_1, DELETE_1, HEARTBEAT = 27,
       ROWS_QUERY = 29, WRITE_2, UPDATE_2, DELETE_2, GTID, ANONYMOUS_GTID, HEARTBEAT_2 = 41, ANNOTATE = 160, MARIA_GTID = 162,
       MARIA_ENCRYPTION = 164, MADE_UP = 32, LARGEST = 1 << 30 };

/* The events at the beginning of data, `most` of them at most. frame 0: one behind the other, as a log has them. frame 5: each in
 * a packet, as a server sends them, numbered from `number` on; then it ends before a packet that is no event of a log, or as large
 * as one that goes on in the next, and before an event that does not stand at byte `at` of its log, where the last one ended.
 * Event e is data[begins[e]] to data[ends[e]], whole, with a header at least. Returns their number.
 */
EXPORT int64_t tm_split(const uint8_t *data, uint64_t size, uint32_t frame, uint32_t number, uint64_t at, uint64_t most,
                        int64_t *begins, int64_t *ends) {
    uint64_t p = 0, count = 0;
    for (; count < most && size - p >= frame + HEADER; count++) {
        const uint8_t *event = data + p + frame;
        const uint32_t bytes = read_little(event + 9, 4), ends_at = read_little(event + 13, 4), flags = read_little(event + 17, 2);
        if (bytes < HEADER || bytes > LARGEST || bytes > size - p - frame) break;
        if (frame) {
            const uint8_t kind = event[4];
            if (bytes >= 0xfffffe || read_little(data + p, 3) != bytes + 1 || data[p + 3] != (number & 255) || data[p + 4]) break;
            if (flags & MADE_UP || kind == ROTATE || kind == FORMAT || kind == HEARTBEAT) break;
            if (kind == HEARTBEAT_2 || kind == MARIA_ENCRYPTION) break;
            at += bytes;
            if (ends_at != (uint32_t)at) break;
            number++;
        }
        begins[count] = (int64_t)(p + frame);
        ends[count] = (int64_t)(p + frame + bytes);
        p += frame + bytes;
    }
    return (int64_t)count;
}

enum { MOST_TABLES = 8, MOST_KNOWN = 64, MOST_KEYS = 128, HEAD_NUMBERS = 9 };

typedef struct {
    const uint8_t *data;
    const int64_t *begins, *ends;
    uint64_t events, checksum;
    int64_t *tables, *keys; /* those found: see tm_scan */
    int64_t known, kinds;
} Log;

/* Where an event ends without its checksum; 0 if that is wrong, or the event too short for `least` bytes behind its header. */
static int64_t end_of(const Log *log, uint64_t event, int64_t least) {
    const int64_t begin = log->begins[event], size = log->ends[event] - begin, own = size - (int64_t)log->checksum;
    if (own < HEADER + least) return 0;
    if (log->checksum && crc_of(log->data + begin, (uint64_t)own) != read_little(log->data + begin + own, 4)) return 0;
    return begin + own;
}

/* Whether the charset of a statement, by its status variables, is one in which BEGIN is spelt as in ASCII. */
static int is_plain_text(const uint8_t *p, const uint8_t *end) {
    static const uint8_t sizes[10] = {4, 8, 0, 4, 0, 0, 0, 2, 2, 8};
    while (p < end) {
        const uint8_t code = *p++;
        int64_t size;
        if (code == 4) {
            if (end - p < 2) return 0;
            const uint32_t charset = read_little(p, 2);
            return charset == 8 || charset == 33 || charset == 45 || charset == 46 || charset == 83 ||
                   (charset >= 192 && charset <= 247) || (charset >= 255 && charset <= 309);
        }
        if (code == 2 || code == 5 || code == 6) {
            if (p == end) return 0;
            size = *p++ + (code == 2);
        } else if (code < 10) {
            size = sizes[code];
        } else {
            return 1;
        }
        if (size > end - p) return 0;
        p += size;
    }
    return 1;
}

/* Whether an event is the statement BEGIN. */
static int is_begin(const Log *log, uint64_t event) {
    const int64_t end = end_of(log, event, 13), begin = log->begins[event];
    if (!end || log->data[begin + 4] != QUERY) return 0;
    const uint8_t *post = log->data + begin + HEADER;
    const int64_t variables = read_little(post + 11, 2), sql = begin + HEADER + 13 + variables + post[8] + 1;
    return sql + 5 == end && !memcmp(log->data + sql, "BEGIN", 5) && is_plain_text(post + 13, post + 13 + variables);
}

/* What a transaction's first event says: head[4] to head[8] of tm_scan. Returns 0 if that is not plain. */
static int read_gtid(const Log *log, uint64_t event, int64_t *head) {
    const uint8_t *begin = log->data + log->begins[event], *body = begin + HEADER, kind = begin[4];
    const int64_t end = end_of(log, event, kind == MARIA_GTID ? 13 : 25), left = end - log->begins[event] - HEADER;
    if (!end) return 0;
    head[3] = (int64_t)read_little64(begin, 4) * 1000000;
    head[4] = (int64_t)read_little64(begin + 5, 4);
    head[5] = kind;
    if (kind == MARIA_GTID) {
        head[6] = (int64_t)read_little64(body, 8);
        head[7] = (int64_t)read_little64(body + 8, 4);
        return !(body[12] & 0xC1) && (!(body[12] & 2) || left >= 21) && head[6] >= 0;
    }
    head[6] = kind == GTID ? (int64_t)read_little64(body + 17, 8) : 0;
    head[7] = log->begins[event] + HEADER + 1;
    if (left >= 42 && body[25] == 2 && left >= 49) {
        const uint64_t time = read_little64(body + 42, 7), original = (uint64_t)1 << 55;
        const int64_t length = time & original ? 56 : 49;
        head[3] = (int64_t)(time & ~original);
        if (left < length) return 0;
        if (left > length) { /* a packed integer */
            const uint8_t first = body[length];
            const int64_t more = first < 251 ? 0 : first == 252 ? 2 : first == 253 ? 3 : first == 254 ? 8 : -1;
            if (more < 0 || left - length - 1 < more) return 0;
        }
    }
    return head[6] >= 0;
}

/* The number of a table among those found, by what its event says of it behind its id; -1 where there are too many. */
static int64_t find_table(Log *log, int64_t begin, int64_t end) {
    for (int64_t k = log->known; k-- > 0;) {
        const int64_t *table = log->tables + 2 * k;
        if (table[1] - table[0] == end - begin && !memcmp(log->data + table[0], log->data + begin, (size_t)(end - begin))) return k;
    }
    if (log->known == MOST_KNOWN) return -1;
    log->tables[2 * log->known] = begin;
    log->tables[2 * log->known + 1] = end;
    return log->known++;
}

/* The number of a key among those found; -1 where there are too many. */
static int64_t find_key(Log *log, const int64_t *wanted) {
    const size_t bytes = (size_t)(wanted[4] - wanted[3]);
    for (int64_t k = log->kinds; k-- > 0;) {
        const int64_t *key = log->keys + 5 * k;
        if (key[0] == wanted[0] && key[1] == wanted[1] && key[2] == wanted[2] && key[4] - key[3] == wanted[4] - wanted[3] &&
            !memcmp(log->data + key[3], log->data + wanted[3], bytes))
            return k;
    }
    if (log->kinds == MOST_KEYS) return -1;
    memcpy(log->keys + 5 * log->kinds, wanted, 5 * sizeof *wanted);
    return log->kinds++;
}

/* A row event of a table: its key, where its rows begin and end, its flags. Returns 0 if it is not as expected. */
static int read_rows(Log *log, uint64_t event, int64_t table, int64_t *row) {
    const int64_t end = end_of(log, event, 8);
    if (!end) return 0;
    const uint8_t kind = log->data[log->begins[event] + 4];
    int64_t p = log->begins[event] + HEADER + 8;
    row[3] = read_little(log->data + p - 2, 2);
    if (kind >= WRITE_2) {
        if (end - p < 2) return 0;
        const int64_t extra = read_little(log->data + p, 2);
        if (extra < 2 || extra > end - p) return 0;
        p += extra;
    }
    if (end - p < 3 || log->data[p] == 251 || log->data[p] > 252) return 0;
    const int is_long = log->data[p] == 252;
    const int64_t width = is_long ? read_little(log->data + p + 1, 2) : log->data[p];
    p += is_long ? 3 : 1;
    const int64_t bitmaps = (width + 7) / 8 * (kind == UPDATE_1 || kind == UPDATE_2 ? 2 : 1);
    if (bitmaps > end - p) return 0;
    const int64_t key[5] = {table, kind, width, p, p + bitmaps};
    if ((row[0] = find_key(log, key)) < 0) return 0;
    row[1] = p + bitmaps;
    row[2] = end;
    return 1;
}

/* The transaction that begins with an event, if it is plain. Returns the event behind it, or 0. */
static uint64_t scan_one(Log *log, uint64_t event, int64_t most, int64_t *head, int64_t *rows) {
    const uint8_t first = log->data[log->begins[event] + 4];
    if ((first != MARIA_GTID && first != GTID && first != ANONYMOUS_GTID) || !read_gtid(log, event, head)) return 0;
    if (first != MARIA_GTID && (++event >= log->events || !is_begin(log, event))) return 0;
    int64_t tables[MOST_TABLES], ids[MOST_TABLES], known = 0;
    while (++event < log->events) {
        const uint8_t *begin = log->data + log->begins[event], kind = begin[4];
        if (kind == XID) return !known && end_of(log, event, 8) ? event + 1 : 0;
        if (kind == TABLE_MAP) {
            const int64_t end = end_of(log, event, 8), place = log->begins[event] + HEADER + 6;
            if (known == MOST_TABLES || !end || (tables[known] = find_table(log, place, end)) < 0) return 0;
            ids[known++] = (int64_t)read_little64(begin + HEADER, 6);
        } else if ((kind >= WRITE_1 && kind <= DELETE_1) || (kind >= WRITE_2 && kind <= DELETE_2)) {
            int64_t *row = rows + 4 * head[2], at = known;
            if (log->ends[event] - log->begins[event] < HEADER + 8) return 0;
            const int64_t id = (int64_t)read_little64(begin + HEADER, 6);
            while (at > 0 && ids[at - 1] != id) at--;
            if (!at || id == 0xFFFFFF) return 0;
            if (!read_rows(log, event, tables[at - 1], row) || (most -= row[2] - row[1]) <= 0) return 0;
            head[2]++;
            if (row[3] & 1) known = 0;
        } else if (kind != ANNOTATE && kind != ROWS_QUERY) {
            return 0;
        } else if (!end_of(log, event, kind == ROWS_QUERY)) {
            return 0;
        }
    }
    return 0;
}

/* The transactions at the beginning of events, as long as they are plain: a GTID (and BEGIN), tables, rows of less than `most`
 * bytes, XID, all checksums right. Event e is data[begins[e]] to data[ends[e]], with a header at least; `checksum` is the size
 * of its checksum, 0 or 4. Writes
 *
 *     nine numbers a transaction    its first event, the event behind it, the row events so far, commit time in microseconds,
 *                                   server id, type of its GTID, number, domain or (MySQL) where the UUID is, bytes before it
 *     four a row event              number of its key, where its rows begin and end, its flags
 *     two a table                   where it is described, from behind its id to the end
 *     five a key                    what row events have in common: number of the table, type, width, where bitmaps begin and end
 *
 * The first two have room for each event, the others for 64 and 128. counts[0], [1]: the tables and keys found, also those of
 * what is not plain. Returns the number of transactions.
 */
EXPORT int64_t tm_scan(const uint8_t *data, const int64_t *begins, const int64_t *ends, uint64_t events, uint32_t checksum,
                       int64_t most, int64_t *transactions, int64_t *rows, int64_t *tables, int64_t *keys, int64_t *counts) {
    Log log = {data, begins, ends, events, checksum, tables, keys, 0, 0};
    uint64_t event = 0, next;
    int64_t found = 0, count = 0, bytes = 0;
    if (!crc_tables[0][1]) make_crc_tables();
    for (; event < events; event = next, found++) {
        int64_t *head = transactions + HEAD_NUMBERS * found;
        head[2] = count;
        if (!(next = scan_one(&log, event, most, head, rows))) break;
        count = head[2];
        head[0] = (int64_t)event;
        head[1] = (int64_t)next;
        head[8] = bytes;
        for (; event < next; event++) bytes += ends[event] - begins[event];
    }
    counts[0] = log.known;
    counts[1] = log.kinds;
    return found;
}
