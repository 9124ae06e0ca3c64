"""Values as IoTDB's command line prints them, beside our canonical text."""

from __future__ import annotations

import numpy as np

from tidemark.tsfiles.points.codes import DataType


def same(kind: DataType, ours: str, printed: str) -> bool:
    """Whether both are one value: to the last bit for numbers."""
    match kind:
        case DataType.FLOAT:
            return np.float32(ours).tobytes() == np.float32(printed).tobytes()
        case DataType.DOUBLE:
            return np.float64(ours).tobytes() == np.float64(printed).tobytes()
        case DataType.BLOB:
            return ours == printed.removeprefix("0x")
        case DataType.TIMESTAMP if "T" in printed:
            return ours == str(np.datetime64(printed.removesuffix("Z"), "ms").astype(int))
    return ours == printed
