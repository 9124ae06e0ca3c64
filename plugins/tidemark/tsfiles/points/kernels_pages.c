/* Decode all small pages of a chunk of a plain series at once: devices that flush often write pages of a few points, and a call
 * for each costs more than decoding. Compiled together with kernels.c and kernels_index.c, after both. No function reads
 * beyond the given sizes. Unexpected forms are left to pages.py, which reports errors.
 */

/* A row of a page, of ROW numbers as those of tm_series. */
enum { DATA = NAME, DATA_BYTES = NAME_BYTES, PAGE_BYTES = OFFSET };

/* The pages of a chunk of several: of each a row of where its data begins, the bytes of that, those it has decompressed, and its
 * points and both ends by the statistics. Returns how many rows; 0 for what it does not read, pages without points too. */
EXPORT uint64_t tm_pages(const uint8_t *data, uint64_t size, uint32_t of_type, int64_t *rows, uint64_t most) {
    uint64_t at = 0, n = 0;
    if (of_type >= TYPES || STATISTICS[of_type] == NO_SUCH) return 0;
    while (at < size) {
        if (n == most) return 0;
        int64_t *row = rows + ROW * n++;
        uint32_t bytes, length;
        memset(row, 0, ROW * sizeof *row);
        row[OF_TYPE] = of_type;
        if (!uvarint(data, size, &at, &bytes) || !bytes || !uvarint(data, size, &at, &length)) return 0;
        if (!statistics(data, size, &at, row) || !row[POINTS] || length > size - at) return 0;
        row[DATA] = (int64_t)at;
        row[DATA_BYTES] = length;
        row[PAGE_BYTES] = bytes;
        at += length;
    }
    return n;
}

/* Decode the times of a page as pages.py does: TS_2DIFF, unless they have the length of PLAIN and PLAIN gives both ends. */
static int times_of_page(const uint8_t *data, uint64_t size, const int64_t *row, int64_t *times) {
    const uint64_t count = (uint64_t)row[POINTS];
    if (size == 8 * count && (int64_t)big_endian_64(data) == row[FIRST] && (int64_t)big_endian_64(data + size - 8) == row[LAST]) {
        for (uint64_t i = 0; i < count; i++) times[i] = (int64_t)big_endian_64(data + 8 * i);
    } else if (tm_deltas_64(data, size, count, (uint64_t *)times) != SOUND) {
        return 0;
    }
    return times[0] == row[FIRST] && times[count - 1] == row[LAST] && tm_ascend(times, count) == SOUND;
}

enum { DELTAS_32, DELTAS_64, GORILLA_32, GORILLA_64, GORILLA_FLOAT, GORILLA_DOUBLE, RUNS_32, RUNS_64, VARINTS, PLAIN_8, PLAIN_32, PLAIN_64,
       CODINGS };

/* Values of a page by one of the codings above. `out` has room for `count`: of 8 bytes for RLE, else of as many as the type has. */
static int values_of_page(uint32_t coding, const uint8_t *data, uint64_t size, uint64_t count, void *out) {
    uint8_t *bytes = out;
    uint32_t end_32 = 0, *halves = out;
    uint64_t end_64 = 0, *words = out;
    switch (coding) {
    case DELTAS_32: return tm_deltas_32(data, size, count, out) == SOUND;
    case DELTAS_64: return tm_deltas_64(data, size, count, out) == SOUND;
    case GORILLA_32: return tm_gorilla_32(data, size, count, out, &end_32) == SOUND && end_32 == UINT32_C(1) << 31;
    case GORILLA_64: return tm_gorilla_64(data, size, count, out, &end_64) == SOUND && end_64 == UINT64_C(1) << 63;
    case GORILLA_FLOAT: return tm_gorilla_32(data, size, count, out, &end_32) == SOUND && (end_32 & 0x7FFFFFFF) > 0x7F800000;
    case GORILLA_DOUBLE: return tm_gorilla_64(data, size, count, out, &end_64) == SOUND && end_64 << 1 > UINT64_C(0x7FF) << 53;
    case RUNS_32: return tm_runs(data, size, count, out, 4) == SOUND;
    case RUNS_64: return tm_runs(data, size, count, out, 8) == SOUND;
    case VARINTS: return tm_varints_32(data, size, count, out) == SOUND;
    case PLAIN_8:
        if (size != count) return 0;
        for (uint64_t i = 0; i < count; i++) bytes[i] = data[i] != 0;
        return 1;
    case PLAIN_32:
        if (size != 4 * count) return 0;
        for (uint64_t i = 0; i < count; i++) halves[i] = (uint32_t)bits_at(data, size, 32 * i, 32);
        return 1;
    case PLAIN_64:
        if (size != 8 * count) return 0;
        for (uint64_t i = 0; i < count; i++) words[i] = big_endian_64(data + 8 * i);
        return 1;
    default: return 0;
    }
}

/* The points of pages by their rows (n of tm_pages): their decompressed data stand in `data`, of each DATA_BYTES from DATA on.
 * `width`: bytes of a value in `values`. Returns 1, or 0 where a page is not as its statistics say, or
 * does not begin after the one before. */
EXPORT int tm_points(const uint8_t *data, uint64_t size, const int64_t *rows, uint64_t n, uint32_t coding, uint32_t width,
                     int64_t *times, uint8_t *values) {
    uint64_t have = 0;
    for (uint64_t i = 0; i < n; i++) {
        const int64_t *row = rows + ROW * i;
        const uint64_t count = (uint64_t)row[POINTS], bytes = (uint64_t)row[DATA_BYTES];
        uint64_t at = 0;
        uint32_t length;
        if ((uint64_t)row[DATA] > size || bytes > size - (uint64_t)row[DATA]) return 0;
        const uint8_t *page = data + row[DATA];
        if (!uvarint(page, bytes, &at, &length) || length > bytes - at) return 0;
        if (!times_of_page(page + at, length, row, times + have)) return 0;
        if (have && times[have] <= times[have - 1]) return 0;
        at += length;
        if (!values_of_page(coding, page + at, bytes - at, count, values + have * width)) return 0;
        have += count;
    }
    return 1;
}
