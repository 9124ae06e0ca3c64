/* Random pages through every function of kernels.c, entries and chunks through those of kernels_index.c, chunks of small pages through
 * those of kernels_pages.c, compiled with sanitizers: no byte beyond a page, no undefined step. What encodes is decoded again. Included
 * by path: cc -DKERNELS='"…/kernels.c"' -DINDEX='"…/kernels_index.c"' -DPAGES='"…/kernels_pages.c"'. */
#include KERNELS
#include INDEX
#include PAGES

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 88172645463325252u;

static uint64_t next(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static void decode_garbage(void) {
    const uint64_t size = next(80), count = next(70);
    uint8_t *data = malloc(size + !size);
    uint64_t *wide = malloc(count * 8 + 1), wide_end;
    uint32_t *narrow = malloc(count * 4 + 1), narrow_end;
    for (uint64_t i = 0; i < size; i++) data[i] = (uint8_t)(next(3) ? next(256) : next(4));
    if (size > 8 && next(2)) { /* heads that are nearly sound */
        memset(data, 0, 8);
        data[3] = (uint8_t)next(20);
        data[7] = (uint8_t)next(66);
    }
    tm_deltas_32(data, size, count, narrow);
    tm_deltas_64(data, size, count, wide);
    tm_gorilla_32(data, size, count, narrow, &narrow_end);
    tm_gorilla_64(data, size, count, wide, &wide_end);
    tm_chimp_32(data, size, count, narrow, &narrow_end);
    tm_chimp_64(data, size, count, wide, &wide_end);
    tm_runs(data, size, count, wide, next(2) ? 4 : 8);
    tm_varints_32(data, size, count, narrow);
    tm_zigzag(data, size, count, wide, next(2) ? 32 : 64);
    tm_lz4_holds(data, size, count);
    tm_ascend((int64_t *)wide, 0);
    free(data);
    free(wide);
    free(narrow);
}

#define THERE_AND_BACK(NAME, UNSIGNED, ENCODE, DECODE)                                                         \
    static int NAME(void) {                                                                                    \
        const uint32_t block = 1 + (uint32_t)next(130);                                                        \
        const uint64_t count = next(400), room = (count / (block + 1) + 1) * (8 + 2 * sizeof(UNSIGNED));       \
        UNSIGNED *values = malloc((count + 1) * sizeof(UNSIGNED)), *back = malloc((count + 1) * sizeof(UNSIGNED)); \
        uint8_t *out = malloc(room + count * sizeof(UNSIGNED));                                                \
        for (uint64_t i = 0; i < count; i++) values[i] = (UNSIGNED)(next(5) ? next(50) : next(UINT64_MAX));    \
        const uint64_t written = ENCODE(values, count, block, out);                                            \
        const int same = DECODE(out, written, count, back) == SOUND && !memcmp(values, back, count * sizeof(UNSIGNED)); \
        free(values);                                                                                          \
        free(back);                                                                                            \
        free(out);                                                                                             \
        return same;                                                                                           \
    }

THERE_AND_BACK(longs, uint64_t, tm_encode_deltas_64, tm_deltas_64)
THERE_AND_BACK(ints, uint32_t, tm_encode_deltas_32, tm_deltas_32)

/* Entries of one or more series that are sound, a byte or two of them changed, and the chunks that they tell of. */
static void index_garbage(void) {
    uint8_t entries[1200], *exact, *data;
    uint64_t size = 0, n = 1 + next(4), bytes = 40 + next(200), ends[64];
    uint8_t sound[TYPES * 256];
    memset(sound, 1, sizeof sound);
    for (uint64_t series = 0; series < n; series++) {
        const uint8_t of_type = (uint8_t)next(TYPES);
        const int more = STATISTICS[of_type], length = more < 0 ? 4 * (more + 10) : more, chunks = (int)next(4);
        uint8_t *at = entries + size;
        memset(at, 0, 200);
        at[0] = chunks > 1;
        at[1] = 2;
        at[2] = 's';
        at[3] = of_type;
        at[4] = (uint8_t)(chunks > 1 ? chunks * (25 + length) : 8);
        at[5] = (uint8_t)next(128);
        size += 22 + (uint64_t)length;
        if (at[4] >= 0x80) { /* two bytes: left to chance */
            at[4] = 8;
            at[0] = 0;
        }
        entries[size + 7] = (uint8_t)next(bytes);
        size += at[4];
    }
    for (uint64_t flips = next(3); flips; flips--) entries[next(size)] ^= (uint8_t)(1 << next(8));
    size = next(4) ? size : next(size);
    exact = malloc(size + !size);
    memcpy(exact, entries, size);
    int64_t *rows = malloc((size / 21 + 1) * ROW * sizeof *rows);
    const uint64_t found = tm_series(exact, size, rows, size / 21 + 1);
    data = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i++) data[i] = (uint8_t)(next(3) ? next(4) : next(256));
    if (found && (uint64_t)rows[OFFSET] + 12 < bytes) { /* a header that is nearly sound */
        uint8_t *at = data + rows[OFFSET];
        at[0] = 5;
        at[1] = 2;
        at[2] = 's';
        at[3] = (uint8_t)next(bytes);
        at[4] = (uint8_t)rows[OF_TYPE];
    }
    if (found && found <= 64) tm_chunks(data, bytes, 0, exact, rows, found, (uint32_t)next(2), sound, ends);
    free(data);
    free(rows);
    free(exact);
}

/* Pages of one or two points, nearly sound, through every coding. */
static void pages_garbage(void) {
    static const uint32_t WIDTHS[CODINGS] = {4, 8, 4, 8, 4, 8, 8, 8, 4, 1, 4, 8};
    static const uint8_t OF_TYPES[] = {0, 1, 2, 3, 4, 9};
    uint8_t body[1200];
    uint64_t size = 0, points = 0;
    const uint8_t of_type = OF_TYPES[next(sizeof OF_TYPES)];
    const uint64_t pages = 1 + next(6);
    for (uint8_t time = 0; time < 2 * pages; time += 2) {
        const uint8_t told = (uint8_t)(1 + next(2)), of_values = (uint8_t)(next(4) ? told << (2 + next(2)) : next(20));
        const uint8_t all = (uint8_t)(25 + of_values);
        uint8_t *at = body + size;
        memset(at, 0, 160);
        at[0] = at[1] = all;
        at[2] = told;
        at[10] = time;
        at[18] = (uint8_t)(next(9) ? time + told - 1 : next(9));
        uint8_t *data = at + 19 + STATISTICS[of_type];
        data[0] = 24;
        data[4] = told == 2;
        data[16] = 1;
        data[24] = time;
        for (uint8_t i = 0; i < of_values; i++) data[25 + i] = (uint8_t)(next(3) ? next(4) : next(256));
        size += 19 + (uint64_t)STATISTICS[of_type] + all;
    }
    for (uint64_t flips = next(3); flips; flips--) body[next(size)] ^= (uint8_t)(1 << next(8));
    size = next(4) ? size : next(size);
    uint8_t *exact = malloc(size + !size);
    memcpy(exact, body, size);
    int64_t *rows = malloc((size / 19 + 1) * ROW * sizeof *rows);
    const uint64_t found = tm_pages(exact, size, of_type, rows, size / 19 + 1);
    for (uint64_t i = 0; i < found; i++) points += (uint64_t)rows[ROW * i + POINTS];
    for (uint32_t coding = 0; found && points < 100000 && coding < CODINGS; coding++) {
        int64_t *times = malloc(points * sizeof *times);
        uint8_t *values = malloc(points * WIDTHS[coding]);
        tm_points(exact, size, rows, found, coding, WIDTHS[coding], times, values);
        free(times);
        free(values);
    }
    free(rows);
    free(exact);
}

int main(int count, char **words) {
    const long rounds = count > 1 ? atol(words[1]) : 1000;
    for (long i = 0; i < rounds; i++) {
        decode_garbage();
        index_garbage();
        pages_garbage();
        if (!longs() || !ints()) return 1;
    }
    printf("%ld rounds\n", rounds);
    return 0;
}
