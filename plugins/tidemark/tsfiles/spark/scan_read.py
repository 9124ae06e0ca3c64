"""Read the rows of one scan task as Arrow batches: files merged, deletions applied, the newest value wins.

A row of the wide shape is a device and a time at which a wanted column has a value. Memory holds one device (or one range
of time of it) and a batch.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.errors import NotFoundError, RetryableError, UnsupportedError
from tidemark.tsfiles.companions.mods import Deletions
from tidemark.tsfiles.devices import pad_null_tags, table_segments
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.spark.arrow import (
    MOST_BYTES,
    Part,
    arrow_array,
    arrow_times,
    arrow_type,
    as_type,
    concatenate_parts,
    rows_at_once,
)
from tidemark.tsfiles.spark.dataset import DataFile
from tidemark.tsfiles.spark.options import TimeLimit
from tidemark.tsfiles.spark.scan_plan import ScanTask, Shape

BATCH_ROWS = 131_072
_FEWEST = 4  # a batch has at least this fraction (a quarter) of its maximum of rows
_DEVICES_AT_ONCE = 256
_OPEN_FILES = 128


class TaskReader:
    """Reads tasks of one shape. `unit` (ms, us, ns): times become instants. `lenient`: undecodable values are null.

    `limit` applies to some devices at a time, or to one with many rows."""

    def __init__(self, shape: Shape, unit: str = "", lenient: bool = False, limit: TimeLimit | None = None) -> None:
        self.shape = shape
        self.unit = unit
        self.lenient = lenient
        self.limit = limit or TimeLimit()
        self.schema = _tall_schema(unit) if shape.tall else _wide_schema(shape, unit)
        self._fields = {measurement: (name, kind) for name, (measurement, kind) in shape.fields.items()}
        self._shown = frozenset(shape.columns)
        self._others = [name for name in shape.columns if name not in shape.fields]
        self._most = rows_at_once(len(self.schema), BATCH_ROWS)

    def read_task(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows by device and time. Raises CorruptionError, and UnsupportedError for undecodable values."""
        with _OpenFiles(task.files) as files:
            yield from _rebatch_rows(self._read_batches(task, files), self._most, self.schema)

    def _read_batches(self, task: ScanTask, files: _OpenFiles) -> Iterator[pa.RecordBatch]:
        """Yield the rows device by device. Some devices are read under one limit, which is off while the consumer works."""
        waiting = iter(task.devices.items())
        while True:
            ready: list[Part] = []
            rows = devices = 0
            with self.limit:
                for device, places in itertools.islice(waiting, _DEVICES_AT_ONCE):
                    devices += 1
                    for part in self._read_device(task, device, files.open_layers(places)):
                        ready.append(part)
                        rows += part.rows
                    if rows >= self._most // _FEWEST:
                        break
            yield from self._assemble_batches(ready)
            if not devices:
                return

    def _assemble_batches(self, parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
        """Join small parts to batches. Large parts are not copied."""
        few: list[Part] = []
        size = 0
        for part in parts:
            large = part.rows >= self._most // _FEWEST
            if few and (large or size + part.nbytes > MOST_BYTES):
                yield concatenate_parts(few, self.schema)
                few, size = [], 0
            if large:
                yield concatenate_parts([part], self.schema)
            else:
                few.append(part)
                size += part.nbytes
        if few:
            yield concatenate_parts(few, self.schema)

    def _read_device(self, task: ScanTask, device: str, layers: Sequence[tuple[TsFile, Deletions]]) -> Iterator[Part]:
        wanted = self.shape.measurements
        measurements = {name for file, _ in layers for name in file.list_measurements(device)}
        names = sorted(measurements if wanted is None else measurements & wanted)
        series = {name: columns for name in names if (columns := self._read_columns(task, device, name, layers))}
        if not series:
            return
        if self.shape.tall:
            tags = max(len(file.tag_columns.get(self.shape.table, ())) for file, _ in layers)
            shown = pad_null_tags(task.shown.get(device, device), tags)
            for name, columns in series.items():
                yield self._make_tall_part(shown, name, columns)
        else:
            yield self._make_wide_part(device, series)

    def _read_columns(
        self, task: ScanTask, device: str, name: str, layers: Sequence[tuple[TsFile, Deletions]]
    ) -> list[Column]:
        """The points of a series from each file that has some, lowest rank first."""
        found = []
        for file, deletions in layers:
            if name not in file.series_of(device)[1]:  # a dict: `list_measurements` would sort thousands of names
                continue
            try:
                column = file.read_column(device, name, task.start, task.end, deletions)
            except UnsupportedError:
                if not self.lenient:
                    raise
                continue
            if len(column):
                found.append(column)
        return found

    def _make_wide_part(self, device: str, series: Mapping[str, Sequence[Column]]) -> Part:
        laid = {}
        for measurement, columns in series.items():
            name, kind = self._fields[measurement]
            laid[name] = overlay_columns([as_type(column, kind) for column in columns])
        rows = _merge_times([column.times for column in laid.values()])
        found = {name: arrow_array(column, rows, self.unit) for name, column in laid.items() if name in self._shown}
        segments = table_segments(device) if self.shape.table else ()
        for name in self._others:
            if name in self.shape.tags:
                place = self.shape.tags[name]
                tag = segments[place] if place < len(segments) else None
                found[name] = pa.repeat(pa.scalar(tag, pa.string()), len(rows))
            else:
                found[name] = arrow_times(rows, self.unit) if name == "time" else pa.repeat(device, len(rows))
        return Part(len(rows), found)

    def _make_tall_part(self, device: str, name: str, columns: Sequence[Column]) -> Part:
        laid = overlay_columns([as_type(column, None) for column in columns])
        types = _type_names(columns, laid.times)
        count = len(laid)
        texts = pa.array([value.decode("utf-8", "surrogatepass") for value in laid.values], pa.string())
        arrays = [pa.repeat(device, count), pa.repeat(name, count), arrow_times(laid.times, self.unit), types, texts]
        return Part(count, dict(zip(self.schema.names, arrays, strict=True)))


class _OpenFiles:
    """The files of a task. The last used ones stay open."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files
        self._open: OrderedDict[int, tuple[TsFile, Deletions]] = OrderedDict()

    def open_layers(self, places: Sequence[int]) -> list[tuple[TsFile, Deletions]]:
        """Open the files at `places`, with their deletions. All stay open until the next call, even if there are many."""
        most, wanted = max(_OPEN_FILES, len(places)), set(places)
        idle = [place for place in self._open if place not in wanted]  # least recently used first
        for place in idle[: max(0, len(idle) + len(wanted) - most)]:
            self._open.pop(place)[0].close()
        for place in places:
            if place not in self._open:
                file = self._files[place]
                self._open[place] = _open_file(file)
            self._open.move_to_end(place)
        return [self._open[place] for place in places]

    def __enter__(self) -> _OpenFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()


def _open_file(file: DataFile) -> tuple[TsFile, Deletions]:
    try:
        deletions = file.read_deletions()
        return TsFile(file.path, file.database, file.prefix), deletions
    except (NotFoundError, FileNotFoundError) as gone:
        message = f"{file.path} is gone since the data frame was made: load() again"
        raise RetryableError(
            message, hint="a data frame reads the files that load() found", subject=str(file.path)
        ) from gone


def _wide_schema(shape: Shape, unit: str) -> pa.Schema:
    fields = []
    for name in shape.columns:
        if name in shape.fields:
            fields.append((name, arrow_type(shape.fields[name][1], unit)))
        else:
            fields.append((name, arrow_type(DataType.TIMESTAMP, unit) if name == "time" else pa.string()))
    return pa.schema(fields)


def _tall_schema(unit: str) -> pa.Schema:
    time = arrow_type(DataType.TIMESTAMP, unit)
    texts = pa.string()
    return pa.schema([("device", texts), ("measurement", texts), ("time", time), ("type", texts), ("value", texts)])


def _merge_times(times: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The union of the times of all columns, ascending. Nearly always all columns have the same."""
    first = times[0]
    if all(other is first or np.array_equal(other, first) for other in times[1:]):
        return first
    together: NDArray[np.int64] = np.unique(np.concatenate(times))
    return together


def _type_names(columns: Sequence[Column], times: NDArray[np.int64]) -> pa.Array:
    """The name of each point's type in its own file."""
    kinds = [column.type for column in columns]
    if len(set(kinds)) == 1:
        return pa.repeat(kinds[0].name, len(times))
    codes = overlay_columns([Column(DataType.INT32, c.times, np.full(len(c), c.type, np.int32)) for c in columns])
    return pa.array([DataType(code).name for code in codes.values.tolist()], pa.string())


def _rebatch_rows(batches: Iterator[pa.RecordBatch], most: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Regroup rows into batches of at most `most` and at least a quarter of it, but for the last. Copies only small ones."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, most):
            part = batch.slice(start, most)
            waiting.append(part)
            rows += part.num_rows
            if rows >= most // _FEWEST:
                yield from _combine_batches(waiting, schema)
                waiting, rows = [], 0
    yield from _combine_batches(waiting, schema)


def _combine_batches(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
