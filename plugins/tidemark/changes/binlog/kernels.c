/* Find and load the values of row events, for speed alone. C11 of gcc and clang; includes only headers of the C library.
 *
 * `tm_walk` finds where each value of each row begins and how long it is. The others load the values that it found, as they
 * are or as text. None reads beyond `data + size`. The same functions in numpy and Python are in batches.py and scalars.py;
 * batches.py builds this file.
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
