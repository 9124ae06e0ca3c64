"""Decide what a scan reads and split it into tasks: pure, from a survey.

A task has whole devices with about `rows` rows at most, or fewer if there are very many columns. A longer device is
split by time, at chunk boundaries. No two tasks hold the same row, so each task merges its files itself without a shuffle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark.errors import NotFoundError, UsageError
from tidemark.tsfiles.devices import pattern_matches
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.spark.dataset import DataFile
from tidemark.tsfiles.spark.survey import Holding, Survey

TALL = ("device", "measurement", "time", "type", "value")
ROWS_OF_A_TASK = 2_000_000
_FEWEST_TASKS = 8  # so that small scans use several cores too
_SMALLEST_TASK = 100_000
_CELLS_OF_A_TASK = 1 << 26  # its rows are in memory with all their columns

_WIDER = {
    frozenset({DataType.TEXT, DataType.STRING}): DataType.STRING,
    frozenset({DataType.INT32, DataType.INT64}): DataType.INT64,
    frozenset({DataType.INT32, DataType.FLOAT}): DataType.DOUBLE,
    frozenset({DataType.INT32, DataType.DOUBLE}): DataType.DOUBLE,
    frozenset({DataType.FLOAT, DataType.DOUBLE}): DataType.DOUBLE,
    frozenset({DataType.INT32, DataType.FLOAT, DataType.DOUBLE}): DataType.DOUBLE,
}
"""Types that hold every value of several others exactly."""


@dataclass(frozen=True)
class Cut:
    """The wanted rows and columns: all `columns` if empty, devices that match a pattern, start <= time < end."""

    columns: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    tall: bool = False
    rows: int = ROWS_OF_A_TASK


@dataclass(frozen=True)
class Shape:
    """The columns of a result, in order. `tags`: tag column → its position in the device's name (1 is the first tag).

    `fields`: column → (measurement, type). A type None means canonical text, since no type holds the values of all files
    exactly. Other columns are `time`, `device` or those of `TALL`.
    """

    columns: tuple[str, ...]
    tags: Mapping[str, int] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, DataType | None]] = field(default_factory=dict)
    table: str = ""
    tall: bool = False

    @property
    def measurements(self) -> frozenset[str] | None:
        """The measurements that must be read; None: all of them, since the columns name no field."""
        named = frozenset(self.fields[name][0] for name in self.columns if name in self.fields)
        return named or None


@dataclass(frozen=True)
class ScanTask:
    """The input of one task. `devices`: canonical name → indexes of its files in `files`, lowest rank first. `shown`:
    device → its name in a tall result, where that is another one."""

    files: tuple[DataFile, ...]
    devices: Mapping[str, tuple[int, ...]]
    start: int | None
    end: int | None
    rows: int
    shown: Mapping[str, str] = field(default_factory=dict)


def shape_of(survey: Survey, cut: Cut) -> Shape:
    """The columns: `time`, `device` or tags, then fields by name. Raises UsageError for unknown columns, NotFoundError."""
    if cut.tall:
        return Shape(TALL, table=survey.table, tall=True)
    tags = {name: place for place, name in enumerate(survey.tags, 1)} if survey.table else {}
    first = ["time", *tags] if survey.table else ["time", "device"]
    types = survey.column_types()
    taken = {name.lower() for name in first}
    fields = {_unique_name(name, taken): (name, common_type(types[name])) for name in sorted(types)}
    everything = (*first, *fields)
    unknown = [name for name in cut.columns if name not in everything]
    if unknown:
        message = f"no column {', '.join(unknown)}; there are {', '.join(everything[:40])}"
        raise UsageError(message, hint="names are canonical, as ./tidemark read shows them", subject=unknown[0])
    if not types and not survey.devices:
        raise NotFoundError("the files hold no points of what is asked for", subject=survey.table or "tree")
    chosen = cut.columns or everything
    return Shape(chosen, tags, fields, survey.table)


def common_type(types: set[DataType]) -> DataType | None:
    """The type that holds the values of all `types` exactly, None if there is none."""
    if len(types) == 1:
        return next(iter(types))
    return _WIDER.get(frozenset(types))


def tasks_of(survey: Survey, cut: Cut, shape: Shape) -> list[ScanTask]:
    """The tasks of a scan, devices by name. Empty if nothing matches. Files without the wanted columns are left out."""
    measurements = shape.measurements
    everything = sum(held.rows for holdings in survey.devices.values() for held in holdings)
    fits = max(1, _CELLS_OF_A_TASK // len(shape.columns))
    cut = replace(cut, rows=min(cut.rows, fits, max(_SMALLEST_TASK, everything // _FEWEST_TASKS)))
    tasks: list[ScanTask] = []
    waiting: dict[str, list[Holding]] = {}
    rows = 0
    for device in sorted(survey.devices):
        if cut.devices and not any(pattern_matches(pattern, device) for pattern in cut.devices):
            continue
        holdings = [
            held
            for held in survey.devices[device]
            if _overlaps_range(held, cut.start, cut.end)
            and (measurements is None or any(name in measurements for name, _ in held.columns))
        ]
        if not holdings:
            continue
        mine = sum(held.rows for held in holdings)
        if mine > 2 * cut.rows:
            tasks += [_make_task(survey, {device: part}, *span) for part, span in _split_by_time(holdings, cut)]
            continue
        if rows and rows + mine > cut.rows:
            tasks.append(_make_task(survey, waiting, cut.start, cut.end))
            waiting, rows = {}, 0
        waiting[device] = holdings
        rows += mine
    if waiting:
        tasks.append(_make_task(survey, waiting, cut.start, cut.end))
    return tasks


def _unique_name(name: str, taken: Collection[str]) -> str:
    return f"measurement.{name}" if name.lower() in taken else name  # Spark ignores the case of names


def _overlaps_range(held: Holding, start: int | None, end: int | None) -> bool:
    return (end is None or held.start < end) and (start is None or held.end >= start)


def _make_task(survey: Survey, holdings: Mapping[str, Sequence[Holding]], start: int | None, end: int | None) -> ScanTask:
    numbers = sorted({held.file for of_device in holdings.values() for held in of_device})
    places = {number: place for place, number in enumerate(numbers)}
    return ScanTask(
        tuple(survey.files[number] for number in numbers),
        {device: tuple(dict.fromkeys(places[held.file] for held in of_device)) for device, of_device in holdings.items()},
        start,
        end,
        sum(held.rows for of_device in holdings.values() for held in of_device),
        {device: survey.shown[device] for device in holdings if device in survey.shown},
    )


def _split_by_time(holdings: Sequence[Holding], cut: Cut) -> Iterator[tuple[list[Holding], tuple[int | None, int | None]]]:
    """Split a long device at chunk boundaries: yields (its holdings in a range of time, the range)."""
    begins = sorted(chunk for held in holdings for chunk in (held.chunks or ((held.start, held.rows),)))
    bounds: list[int] = []
    gathered = 0
    for start, rows in begins:
        inside = (cut.start is None or start > cut.start) and (cut.end is None or start < cut.end)
        if inside and gathered >= cut.rows and (not bounds or start > bounds[-1]):
            bounds.append(start)
            gathered = 0
        gathered += rows
    for low, high in zip([cut.start, *bounds], [*bounds, cut.end], strict=True):
        touched = [held for held in holdings if _overlaps_range(held, low, high)]
        if touched:
            yield touched, (low, high)
