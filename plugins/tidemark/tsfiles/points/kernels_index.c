/* Parse index entries of series and headers of chunks, for copying. Compiled together with kernels.c, after it. No function
 * reads beyond the given sizes. Unexpected forms are left to the parsers in series.py and chunks.py, which know more forms
 * and report errors.
 */

enum { OF_TYPE, FLAGS, NAME, NAME_BYTES, POINTS, FIRST, LAST, OFFSET, OFFSET_AT, ROW };
enum { VECTOR = 6, TYPES = 12, NO_SUCH = -1 };

/* Bytes of value statistics by type; for text types the number of texts minus 10. */
static const int8_t STATISTICS[TYPES] = {10, 24, 40, 24, 40, -8, 0, NO_SUCH, 40, 24, 0, -6};

/* Put points, first and last time into `row`, and skip the rest. */
static int statistics(const uint8_t *data, uint64_t size, uint64_t *at, int64_t *row) {
    uint32_t count;
    if (!uvarint(data, size, at, &count) || size - *at < 16) return 0;
    row[POINTS] = count;
    row[FIRST] = (int64_t)big_endian_64(data + *at);
    row[LAST] = (int64_t)big_endian_64(data + *at + 8);
    *at += 16;
    const int more = STATISTICS[row[OF_TYPE]];
    if (more >= 0) {
        if (size - *at < (uint64_t)more) return 0;
        *at += (uint64_t)more;
        return 1;
    }
    for (int text = -10; text < more; text++) {
        if (size - *at < 4) return 0;
        const uint64_t length = bits_at(data, size, *at * 8, 32);
        if (length > size - *at - 4) return 0;
        *at += 4 + length;
    }
    return 1;
}

/* The entries of the series of one device, one behind another: a row of ROW numbers for each, and where it has several chunks one
 * more for each of those. OF_TYPE; FLAGS, the first byte of the entry, of rows of chunks -1; where the name begins (its length
 * before it), and the bytes of both; points and both ends by the statistics; where the chunk begins in the file, and where the
 * index says so (both 0 in the row above several chunks). Returns how many rows; 0 for what it does not read. */
EXPORT uint64_t tm_series(const uint8_t *data, uint64_t size, int64_t *rows, uint64_t most) {
    uint64_t at = 0, n = 0;
    while (at < size) {
        if (n == most || size - at < 2) return 0;
        int64_t *row = rows + ROW * n++;
        uint32_t twice, length;
        row[FLAGS] = data[at++];
        row[NAME] = (int64_t)at;
        if (!uvarint(data, size, &at, &twice) || twice & 1 || twice >> 1 > size - at) return 0;
        at += twice >> 1;
        row[NAME_BYTES] = (int64_t)at - row[NAME];
        if (at >= size || data[at] >= TYPES || STATISTICS[data[at]] == NO_SUCH) return 0;
        row[OF_TYPE] = data[at++];
        if (!uvarint(data, size, &at, &length) || !statistics(data, size, &at, row) || length > size - at) return 0;
        const uint64_t end = at + length;
        const int several = row[FLAGS] & 0x3F;
        row[OFFSET] = row[OFFSET_AT] = 0;
        if (!several && length != 8) return 0;
        while (at < end) {
            int64_t *chunk = row;
            if (end - at < 8) return 0;
            if (several) {
                if (n == most) return 0;
                chunk = rows + ROW * n++;
                memcpy(chunk, row, ROW * sizeof *row);
                chunk[FLAGS] = -1;
            }
            chunk[OFFSET] = (int64_t)big_endian_64(data + at);
            chunk[OFFSET_AT] = (int64_t)at;
            at += 8;
            if (several && !statistics(data, end, &at, chunk)) return 0;
        }
    }
    return n;
}

/* Whether the chunks of `rows` (n of tm_series, in order of their offsets, of entries at `index`) stand in `data`, the bytes of the
 * file from byte `base` on, the last ending with them: as their entries say, and in a form of which `sound` [type][compression]
 * [encoding], 16 each, is 1. `ends`: where each one ends in `data`. Returns 1, or 0 where one is not so. */
EXPORT int tm_chunks(const uint8_t *data, uint64_t size, uint64_t base, const uint8_t *index, const int64_t *rows, uint64_t n,
                     uint32_t aligned, const uint8_t *sound, uint64_t *ends) {
    uint64_t end = 0;
    for (uint64_t i = 0; i < n; i++) {
        const int64_t *row = rows + ROW * i;
        const uint64_t name = (uint64_t)row[NAME_BYTES];
        const int times = row[OF_TYPE] == VECTOR;
        if (row[OFFSET] < 0 || (uint64_t)row[OFFSET] < base || (uint64_t)row[OFFSET] - base >= size) return 0;
        uint64_t at = (uint64_t)row[OFFSET] - base;
        uint32_t length;
        if (at < end || size - at < 1 + name) return 0;
        const uint8_t mark = data[at++];
        if ((mark & 0x3F) != 1 && (mark & 0x3F) != 5) return 0;
        if ((mark & 0xC0) != (times ? 0x80 : aligned ? 0x40 : 0)) return 0;
        if (memcmp(data + at, index + row[NAME], name) != 0) return 0;
        at += name;
        if (!uvarint(data, size, &at, &length) || size - at < 3) return 0;
        const uint8_t of_type = data[at], compression = data[at + 1], encoding = data[at + 2];
        if (!times && of_type != row[OF_TYPE]) return 0;
        if (compression > 15 || encoding > 15 || !sound[(row[OF_TYPE] * 16 + compression) * 16 + encoding]) return 0;
        at += 3;
        if (length > size - at) return 0;
        ends[i] = end = at + length;
    }
    return end == size;
}
