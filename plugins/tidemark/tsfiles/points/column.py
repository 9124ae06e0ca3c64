"""A run of points of one series, as arrays: what readers give and writers take; and the canonical text of values.

`overlay_columns` lays runs over each other, the newest last. `format_values` is the canonical text of a value: what
`read --tall` shows and what answers are compared by (CONTRACT §1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.overlay import overlay_times

_FIRST_TIME, _LAST_TIME = -(1 << 63), (1 << 63) - 1

VALUE_DTYPES: dict[DataType, np.dtype[Any]] = {
    DataType.BOOLEAN: np.dtype(np.bool_),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT64: np.dtype(np.int64),
    DataType.FLOAT: np.dtype(np.float32),
    DataType.DOUBLE: np.dtype(np.float64),
    DataType.TEXT: np.dtype(object),
    DataType.TIMESTAMP: np.dtype(np.int64),
    DataType.DATE: np.dtype(np.int32),
    DataType.BLOB: np.dtype(object),
    DataType.STRING: np.dtype(object),
}
"""The numpy dtype of `Column.values` for each type."""


@dataclass(frozen=True, eq=False)
class Column:
    """The points of one series: `times[i]` (int64, the file's unit, strictly ascending) has `values[i]`.

    `values` has the dtype of `VALUE_DTYPES[type]`: TEXT, STRING and BLOB are object arrays of `bytes` (TEXT is UTF-8 by
    convention only, so bytes are kept), DATE is the stored int32 `yyyymmdd`, TIMESTAMP int64 in the file's unit. There
    are no nulls: a point that is null does not exist.
    """

    type: DataType
    times: NDArray[np.int64]
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.times)

    @staticmethod
    def empty(data_type: DataType) -> Column:
        """A column of no points."""
        return Column(data_type, np.empty(0, np.int64), np.empty(0, VALUE_DTYPES[data_type]))

    def select_where(self, keep: NDArray[np.bool_]) -> Column:
        """The points where `keep` (bool[n]) is true."""
        return self if bool(keep.all()) else Column(self.type, self.times[keep], self.values[keep])

    def slice_between(self, start: int | None, end: int | None) -> Column:
        """The points with start <= time < end; None is no bound."""
        low = 0 if start is None else self._count_before(start)
        high = len(self) if end is None else self._count_before(end)
        return self if low == 0 and high == len(self) else Column(self.type, self.times[low:high], self.values[low:high])

    def _count_before(self, time: int) -> int:
        """How many points come before a time, also one that no point can have: numpy would compare it as a float."""
        if not _FIRST_TIME <= time <= _LAST_TIME:
            return 0 if time < _FIRST_TIME else len(self)
        return int(self.times.searchsorted(time))


def overlay_columns(columns: Sequence[Column]) -> Column:
    """One column of all points of `columns`, which come lowest rank first: where a time occurs twice the later column wins.

    All columns must have one type (ValueError otherwise: a type clash is for the caller to name). Source: DESIGN §3
    "Who wins".
    """
    if len({column.type for column in columns}) != 1:
        raise ValueError(f"overlay of {len(columns)} columns of types {sorted({c.type.name for c in columns})}")
    filled = [column for column in columns if len(column)]
    if len(filled) <= 1:
        return filled[0] if filled else columns[0]
    woven = overlay_times([column.times for column in filled])
    return Column(columns[0].type, woven.times, woven.choose_values([column.values for column in filled]))


def format_values(data_type: DataType, values: NDArray[Any]) -> list[str]:
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
