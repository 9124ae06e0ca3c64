/* Value by value functions for merging and writing. Compiled together with kernels.c, after it. The arrays come from numpy:
 * contiguous, aligned, of the given lengths. No function reads or writes beyond them. The same functions in numpy are in
 * points/overlay.py, write/pages.py and write/statistics.py.
 */

/* Merge two strictly ascending runs of times: `b` is the newer, and wins if both have a time. `times` has room for n + m.
 * take[k] is the place of the value of times[k]: i in `a` or n + j in `b`. Returns the number of times. */
EXPORT uint64_t tm_weave(const int64_t *a, uint64_t n, const int64_t *b, uint64_t m, int64_t *times, uint32_t *take) {
    uint64_t i = 0, j = 0, k = 0;
    while (i < n && j < m) {
        const int64_t x = a[i], y = b[j];
        const int newer = y <= x, older = x <= y;
        times[k] = newer ? y : x;
        take[k++] = (uint32_t)(newer ? n + j : i);
        i += (uint64_t)older;
        j += (uint64_t)newer;
    }
    for (; i < n; i++) {
        times[k] = a[i];
        take[k++] = (uint32_t)i;
    }
    for (; j < m; j++) {
        times[k] = b[j];
        take[k++] = (uint32_t)(n + j);
    }
    return k;
}

/* The values that tm_weave chose. */
#define GATHER(NAME, TYPE)                                                                                              \
    EXPORT int NAME(const TYPE *a, uint64_t n, const TYPE *b, const uint32_t *take, uint64_t count, TYPE *out) {         \
        for (uint64_t k = 0; k < count; k++) {                                                                          \
            const TYPE *from = take[k] < n ? a + take[k] : b + (take[k] - n);                                           \
            out[k] = *from;                                                                                             \
        }                                                                                                               \
        return SOUND;                                                                                                   \
    }

GATHER(tm_gather_8, uint8_t)
GATHER(tm_gather_32, uint32_t)
GATHER(tm_gather_64, uint64_t)

/* Mark by 1 which of `rows` (n, ascending) are among `times` (m, ascending, all of them rows), else 0. */
EXPORT uint64_t tm_present(const int64_t *rows, uint64_t n, const int64_t *times, uint64_t m, uint8_t *present) {
    uint64_t j = 0;
    for (uint64_t i = 0; i < n; i++) {
        const int hit = j < m && times[j] == rows[i];
        present[i] = (uint8_t)hit;
        j += (uint64_t)hit;
    }
    return j;
}

/* Smallest and largest value, NaN only if all are, and the sum. Several values at a time, so that the compiler can vectorize.
 * `count` is 1 or more; LOW and HIGH are beyond any number. */
#define LANES 8
#define SUMMARY(NAME, TYPE, SUM, LOW, HIGH)                                                                             \
    EXPORT int NAME(const TYPE *values, uint64_t count, TYPE *ends, SUM *sum) {                                          \
        TYPE low[LANES], high[LANES];                                                                                   \
        SUM sums[LANES];                                                                                                \
        for (int lane = 0; lane < LANES; lane++) {                                                                      \
            low[lane] = HIGH;                                                                                           \
            high[lane] = LOW;                                                                                           \
            sums[lane] = 0;                                                                                             \
        }                                                                                                               \
        uint64_t at = 0;                                                                                                \
        for (; at + LANES <= count; at += LANES) {                                                                      \
            for (int lane = 0; lane < LANES; lane++) {                                                                  \
                const TYPE value = values[at + (uint64_t)lane];                                                         \
                low[lane] = value < low[lane] ? value : low[lane];                                                      \
                high[lane] = value > high[lane] ? value : high[lane];                                                   \
                sums[lane] += (SUM)value;                                                                               \
            }                                                                                                           \
        }                                                                                                               \
        for (int lane = 0; at < count; at++, lane++) {                                                                  \
            const TYPE value = values[at];                                                                              \
            low[lane] = value < low[lane] ? value : low[lane];                                                          \
            high[lane] = value > high[lane] ? value : high[lane];                                                       \
            sums[lane] += (SUM)value;                                                                                   \
        }                                                                                                               \
        ends[0] = low[0];                                                                                               \
        ends[1] = high[0];                                                                                              \
        *sum = sums[0];                                                                                                 \
        for (int lane = 1; lane < LANES; lane++) {                                                                      \
            if (low[lane] < ends[0]) ends[0] = low[lane];                                                               \
            if (high[lane] > ends[1]) ends[1] = high[lane];                                                             \
            *sum += sums[lane];                                                                                         \
        }                                                                                                               \
        if (ends[0] > ends[1]) ends[0] = ends[1] = values[0]; /* nothing but NaN */                                     \
        return SOUND;                                                                                                   \
    }

SUMMARY(tm_summary_int32, int32_t, int64_t, INT32_MIN, INT32_MAX)
SUMMARY(tm_summary_int64, int64_t, double, INT64_MIN, INT64_MAX)
SUMMARY(tm_summary_float32, float, double, -__builtin_inff(), __builtin_inff())
SUMMARY(tm_summary_float64, double, double, -__builtin_inf(), __builtin_inf())
