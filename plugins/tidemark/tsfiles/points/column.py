"""A run of points of one series as arrays, which readers return and writers accept, and the canonical text of values.

`overlay_columns` merges runs; at equal times the last wins. In an aligned device most columns of a file share one array of
times, so `overlay_times` merges the times once for the whole device. `format_values` gives the canonical text of values,
which `read --tall` shows and by which answers are compared (CONTRACT §1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.kernels import kernels

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


Times = NDArray[np.int64]

_GATHERED = (1, 4, 8)  # bytes of the values that compiled code moves


@dataclass(frozen=True, eq=False)
class TimeOverlay:
    """The merge of `runs` (each strictly ascending, lowest rank first): `times` has each time once, ascending.

    `take`: the index of each time's value in the joined values of all runs; None if the runs just follow each other.
    """

    runs: tuple[Times, ...]
    times: Times
    take: NDArray[Any] | None

    def fits_runs(self, runs: Sequence[Times]) -> bool:
        """Whether the merge of these runs is the same."""
        return len(runs) == len(self.runs) and all(map(same_times, runs, self.runs))

    def choose_values(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The values at `times`. `values` has one array a run, all of one dtype."""
        if len(values) == 1:
            return values[0]
        if self.take is None:
            return np.concatenate(values)
        kind = values[0].dtype
        if len(values) == 2 and kind.kind != "O" and kind.itemsize in _GATHERED and (compiled := kernels()) is not None:
            return compiled.gather_values(values[0], values[1], self.take)
        return np.asarray(np.concatenate(values)[self.take])


def overlay_times(runs: Sequence[Times]) -> TimeOverlay:
    """Merge runs of times (none empty), lowest rank first. If a time occurs twice, the later run wins."""
    if len(runs) == 1:
        return TimeOverlay(tuple(runs), runs[0], None)
    if all(int(a[-1]) < int(b[0]) for a, b in itertools.pairwise(runs)):
        return TimeOverlay(tuple(runs), np.concatenate(runs), None)
    compiled = kernels()
    if len(runs) == 2 and compiled is not None and len(runs[0]) + len(runs[1]) < 1 << 32:
        return TimeOverlay(tuple(runs), *compiled.overlay_times(runs[0], runs[1]))
    times = np.concatenate(runs)
    order = np.argsort(times, kind="stable")  # equal times stay ordered by rank, so the last of them wins
    times = times[order]
    last = np.append(times[1:] != times[:-1], True)
    return TimeOverlay(tuple(runs), times[last], order[last])


def same_times(left: Times, right: Times) -> bool:
    """Whether two arrays are equal. Tries identity, lengths and ends before it compares all elements."""
    if left is right:
        return True
    if len(left) != len(right) or (len(left) and (left[0] != right[0] or left[-1] != right[-1])):
        return False
    return bool(np.array_equal(left, right))
