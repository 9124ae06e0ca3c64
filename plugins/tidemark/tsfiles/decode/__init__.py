"""Decode the pages of a series to points: decompress, decode, check against the statistics.

Enter by `pages.ChunkReader`.

    codecs       LZ4, Snappy and ZSTD from pyarrow or cramjam
    compression  decompress pages to exactly the announced size; which types, encodings and compressions are read
    integers     bit-packed integers, TS_2DIFF and ZIGZAG, RLE and DICTIONARY
    xor          GORILLA, CHIMP, GORILLA_V1
    rare         RLBE and SPRINTZ, value by value
    pages        the decoder of each (type, encoding); decode the chunks of a series, one page at a time or many at once

Imports `tsfiles.layout` and `tsfiles.points`. Every decoder is exact or absent: none guesses.
`compression.can_decode` needs no numpy. Not decoded: DIFF, BITMAP, REGULAR, FREQ, CAMEL.
"""
