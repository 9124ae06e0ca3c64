"""Points as arrays, and how points of several files lie over each other.

Enter by `column.Column`, which readers give and writers take.

    codes     the numbers that files write for types, encodings and compressions
    kernels   the compiled decoders, built where a compiler is; everything works without them
    overlay   what wins where, worked out once for all columns that have the same times
    column    a run of points of one series; the canonical text of values

Imports `native` and nothing else of ours. `TIDEMARK_PURE=1` asks for numpy and Python alone. The C sources stand
beside `kernels` and buy speed alone.
"""
