"""`spark.read` and `spark.readStream` of `format("tidemark_changes")`: changes as a Spark data source (docs/changes.md).

It registers itself if `plugins/` is on the PYTHONPATH of the driver (`pyspark_tidemark_changes`), else call
`register(spark)`. Source: research/cdc.md §6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidemark.changes.capture.identity import read_origin
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.delivery.points import number_of_point
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.spark.columns import TypedRows, Types, check_schema, choose_columns, find_columns, make_schema
from tidemark.changes.spark.lines import LineRows, line_schema
from tidemark.changes.spark.options import Asked, parse_asked
from tidemark.changes.spark.plan import Part, find_batch_end, read_part, split_span
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Shape
from tidemark.changes.store.read import Reader, open_whole
from tidemark.errors import NotFoundError, UsageError, hints_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.changes.spark.offsets import Offset
    from tidemark.changes.spark.task_point import TaskPoint


def register(spark: SparkSession) -> None:
    """Make the format known to a session. Executors must be able to import `tidemark` (docs/changes.md)."""
    spark.dataSource.register(ChangesSource)


def sort_by_shard(frame: DataFrame, shards: int) -> DataFrame:
    """A frame of more than 8 shards as one partition a shard, each in the order of the store. It shuffles the rows."""
    return frame.repartitionById(shards, "shard").sortWithinPartitions("seq", "i")


@dataclass(frozen=True)
class Found:
    """What the driver found when a frame was made: transactions `first` to before `end`, and the columns of its table.

    `first`: None where the store begins behind that. A stream may have passed it long ago.
    """

    asked: Asked
    first: int | None
    end: int
    types: Types

    @property
    def schema(self) -> pa.Schema:
        is_sharded = bool(self.asked.shards)
        return make_schema(self.types, sharded=is_sharded) if self.asked.table else line_schema(sharded=is_sharded)


@dataclass
class Partition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """The input of one Spark task. None: it reads nothing."""

    part: Part | None


class ChangesSource(DataSource):  # type: ignore[misc]
    """The format `tidemark_changes`. Spark uses one object for all planning steps, so it keeps what was found."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._found: Found | None = None

    @classmethod
    def name(cls) -> str:
        return "tidemark_changes"

    @hints_told()
    def schema(self) -> StructType:
        found = self._found = self._look()
        if found.asked.table and not found.types:
            raise NotFoundError(
                f"source {found.asked.source} has no rows of {found.asked.table} yet, so its columns are not known",
                hint='.schema(…) with before and after; or .option("layout", "json")',
                subject=found.asked.table,
            )
        return from_arrow_schema(found.schema)

    @hints_told()
    def reader(self, schema: StructType) -> DataSourceReader:
        found = self._found or self._look()
        return ChangesReader(found, Scan.of(found, schema, chosen=self._found is None))

    @hints_told()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        found = self._found or self._look()
        if found.asked.end:
            raise UsageError("a stream has no end: option to", hint=".trigger(availableNow=True)", subject="to")
        return ChangesStreamReader(found.asked, Scan.of(found, schema, chosen=self._found is None))

    @hints_told()
    def writer(self, schema: object, overwrite: bool) -> NoReturn:
        raise UsageError("the format tidemark_changes only reads", subject="tidemark_changes")

    def _look(self) -> Found:
        asked = parse_asked(self.options)
        reader = open_whole(Disk(Path(asked.store)))
        try:
            first = number_of_point(reader, asked.start)
        except NotFoundError:
            first = None
        end = number_of_point(reader, asked.end) if asked.end else reader.view.end.seq + 1
        return Found(asked, first, end, find_columns(reader, asked.table) if asked.table else {})


@dataclass(frozen=True)
class Scan:
    """How tasks read their parts. It is pickled for them."""

    asked: Asked
    schema: pa.Schema
    chosen: bool

    @classmethod
    def of(cls, found: Found, schema: StructType, *, chosen: bool) -> Scan:
        wanted = to_arrow_schema(schema, timezone="UTC")
        check_schema(wanted, found.schema)
        return cls(found.asked, wanted, chosen)

    @property
    def disk(self) -> Disk:
        return Disk(Path(self.asked.store))

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        asked, disk = self.asked, self.disk
        origin = read_origin(disk)
        rows = (
            TypedRows(self.schema, origin, chosen=self.chosen)
            if asked.table
            else LineRows(self.schema, origin, controls=asked.controls)
        )
        sharding, wants = Sharding(asked.shards or 1), choose_tables(asked.tables)

        def choose(shape: Shape) -> Collection[int] | None:
            if not wants(shape.database, shape.table):
                return ()
            return choose_columns(self.schema, sharding, shape) if asked.table else None

        for blocks in read_part(disk, part, sharding, wants, choose):
            yield from rows.convert(blocks)


class ChangesReader(DataSourceReader):  # type: ignore[misc]
    """A stretch of a store. Plans on the driver and reads in the workers."""

    def __init__(self, found: Found, scan: Scan) -> None:
        self._found = found
        self._scan = scan

    @hints_told()
    def partitions(self) -> list[Partition]:
        reader, found = open_whole(self._scan.disk), self._found
        first = number_of_point(reader, found.asked.start) if found.first is None else found.first  # None: it says why
        parts = split_span(reader, first, found.end, found.asked)
        return [Partition(part) for part in parts] or [Partition(None)]

    def read(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        with hints_told():
            if partition.part is not None:
                yield from self._scan.read(partition.part)


class ChangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A store from a place on, as it grows. One object in the driver plans all batches; copies of it read in the workers."""

    def __init__(self, asked: Asked, scan: Scan) -> None:
        self._asked = asked
        self._scan = scan
        self._known: list[Offset] = []  # held against the store, or made from it
        self._target: int | None = None
        self._task: TaskPoint | None = None

    @hints_told()
    def initialOffset(self) -> Offset:
        reader = open_whole(self._scan.disk)
        return self._make_offset(reader, number_of_point(reader, self._asked.start))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._asked.batch_rows) if self._asked.batch_rows else ReadAllAvailable()

    @hints_told()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        first = self._check(start)
        reader = open_whole(self._scan.disk)
        end = reader.view.end.seq + 1 if self._target is None else self._target
        if isinstance(limit, ReadMaxRows) and first < end:
            end = find_batch_end(reader, first, end, limit.max_rows)
        return self._make_offset(reader, end) if first < end else start

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = open_whole(self._scan.disk).view.end.seq + 1

    @hints_told()
    def reportLatestOffset(self) -> Offset:
        reader = open_whole(self._scan.disk)
        return self._make_offset(reader, reader.view.end.seq + 1)

    @hints_told()
    def partitions(self, start: Offset, end: Offset) -> list[Partition]:
        first, last = self._check(start), self._check(end)
        if self._asked.task and self._task is None:
            from tidemark.changes.spark.task_point import TaskPoint

            self._task = TaskPoint(self._asked.settings, self._asked.source, self._asked.task, first)
        return [Partition(part) for part in split_span(open_whole(self._scan.disk), first, last, self._asked)]

    def read(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        with hints_told():
            if partition.part is not None:
                yield from self._scan.read(partition.part)

    @hints_told()
    def commit(self, end: Offset) -> None:
        """Spark is done with what is before `end`. Its checkpoint says so by itself; here it frees what retention holds."""
        if self._task is not None:
            from tidemark.changes.spark.offsets import read_offset

            self._task.move(read_offset(self._asked.source, end))

    def stop(self) -> None:
        if self._task is not None:
            self._task.close()

    def _make_offset(self, reader: Reader, seq: int) -> Offset:
        from tidemark.changes.spark.offsets import make_offset

        offset = make_offset(self._asked.source, reader, seq)
        self._known = [*self._known[-3:], offset]
        return offset

    def _check(self, offset: Offset) -> int:
        from tidemark.changes.spark.offsets import check_offset

        if offset not in self._known:
            check_offset(self._asked.source, self._scan.disk, offset)
            self._known = [*self._known[-3:], offset]
        return int(offset["seq"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": [], "_task": None}
