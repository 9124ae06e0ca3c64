"""The canonical text of values: what `read --tall` shows and what answers are compared by (CONTRACT §1)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tidemark.tsfiles.codes import DataType


def text(data_type: DataType, values: NDArray[Any]) -> list[str]:
    """One string a value; `values` as in a `Column`.

    Integers and TIMESTAMP in decimal, booleans `true` and `false`, DOUBLE as Python's repr, FLOAT as numpy's str of the
    float32, TEXT and STRING as they are (bytes that are no UTF-8 as `\\xNN`), BLOB in lower-case hex, DATE `YYYY-MM-DD`.
    """
    match data_type:
        case DataType.BOOLEAN:
            return ["true" if value else "false" for value in values.tolist()]
        case DataType.FLOAT:
            return [str(value) for value in values]
        case DataType.DOUBLE:
            return [repr(value) for value in values.tolist()]
        case DataType.TEXT | DataType.STRING:
            return [value.decode("utf-8", "backslashreplace") for value in values]
        case DataType.BLOB:
            return [value.hex() for value in values]
        case DataType.DATE:
            return [f"{value // 10000:04d}-{value // 100 % 100:02d}-{value % 100:02d}" for value in values.tolist()]
        case _:
            return [str(value) for value in values.tolist()]
