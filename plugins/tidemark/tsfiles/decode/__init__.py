"""From the pages of one series to its points: decompress, decode, check against the statistics.

Enter by `pages.ChunkReader`.

    compression  pages to just the bytes that they announce; which types, encodings and compressions are read
    integers     bit-packed integers, TS_2DIFF and ZIGZAG, RLE and DICTIONARY
    xor          GORILLA, CHIMP, GORILLA_V1
    rare         RLBE and SPRINTZ, value by value
    decoders     which (type, encoding) is decoded, and how
    pages        the chunks of a series, one page at a time or many small pages at once

Imports `tsfiles.layout` and `tsfiles.points`. Every decoder is exact or absent: none guesses.
`compression.can_decode` needs no numpy. Not decoded: DIFF, BITMAP, REGULAR, FREQ, CAMEL.
"""
