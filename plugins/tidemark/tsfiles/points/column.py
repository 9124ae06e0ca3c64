"""A run of points of one series as arrays, which readers return and writers accept, and the canonical text of values.

`overlay_columns` merges runs; at equal times the last wins. `format_values` gives the canonical text of values, which
`read --tall` shows and by which answers are compared (CONTRACT §1).
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

    `values` has the dtype of `VALUE_DTYPES[type]`. TEXT, STRING and BLOB are object arrays of `bytes` (TEXT is UTF-8 by
    convention only). DATE is the stored int32 `yyyymmdd`, TIMESTAMP int64 in the file's unit. There are no nulls: a null
    is no point.
    """

    type: DataType
    times: NDArray[np.int64]
    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.times)

    @staticmethod
    def empty(data_type: DataType) -> Column:
        """A column without points."""
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
        """The number of points before a time. A time beyond int64 is treated here, as numpy would compare it as a float."""
        if not _FIRST_TIME <= time <= _LAST_TIME:
            return 0 if time < _FIRST_TIME else len(self)
        return int(self.times.searchsorted(time))


def overlay_columns(columns: Sequence[Column]) -> Column:
    """Merge columns, which come lowest rank first, to one. If a time occurs twice, the later column wins.

    Raises ValueError if the columns have several types. Source: DESIGN §3 "Who wins".
    """
    if len({column.type for column in columns}) != 1:
        raise ValueError(f"overlay of {len(columns)} columns of types {sorted({c.type.name for c in columns})}")
    filled = [column for column in columns if len(column)]
    if len(filled) <= 1:
        return filled[0] if filled else columns[0]
    woven = overlay_times([column.times for column in filled])
    return Column(columns[0].type, woven.times, woven.choose_values([column.values for column in filled]))


def format_values(data_type: DataType, values: NDArray[Any]) -> list[str]:
    """Format each value as its canonical text. `values` is as in a `Column`.

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
