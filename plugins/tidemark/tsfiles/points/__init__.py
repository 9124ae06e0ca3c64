"""Points as arrays, and the merge of points of several files by rank.

Enter by `column.Column`, which readers return and writers accept.

    codes     the numbers that files write for types, encodings and compressions
    kernels   the compiled decoders, built if there is a C compiler; everything works without them
    column    a run of points of one series; runs of times merged by rank; the canonical text of values

Imports of this project only `native`. The C sources next to `kernels` are for speed alone: `TIDEMARK_PURE=1` selects
numpy and Python.
"""
