"""`spark.read` and `spark.readStream` of `format("tidemark_changes")`: changes as a Spark data source (docs/changes.md).

It registers itself if `plugins/` is on the PYTHONPATH of the driver (`pyspark_tidemark_changes`), else call
`register(spark)`. Source: research/cdc.md §6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.spark.columns import TypedRows, Types, check_schema, choose_columns, make_schema, merge_shapes
from tidemark.changes.spark.lines import LineRows, line_schema
from tidemark.changes.spark.options import Asked, parse_asked
from tidemark.changes.spark.places import Part
from tidemark.changes.spark.plan import make_parts, read_part, rows_of_a_part
from tidemark.changes.store.model import Shape
from tidemark.errors import BinlogGapError, NotFoundError, RetryableError, UsageError, hints_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.changes.delivery.spans import Span
    from tidemark.changes.spark.offsets import Offset
    from tidemark.changes.spark.places import TaskPoint
    from tidemark.ledger.delivery import StoragePoint


def register(spark: SparkSession) -> None:
    """Make the format known to a session. Executors must be able to import `tidemark` (docs/changes.md)."""
    spark.dataSource.register(ChangesSource)


def sort_by_shard(frame: DataFrame, shards: int) -> DataFrame:
    """A frame of more than 8 shards as one partition a shard, each in the order of the store. It shuffles the rows."""
    return frame.repartitionById(shards, "shard").sortWithinPartitions("seq", "i")


@dataclass(frozen=True)
class Found:
    """What the driver found when a frame was made: transactions from `start` to before `end`, and the columns of its table.

    `start`: None where the store begins behind that. A stream may have passed it long ago.
    """

    asked: Asked
    start: Offset | None
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
        from tidemark.changes.spark.offsets import make_offset

        asked = parse_asked(self.options)
        place, start = asked.place, None
        try:
            span = place.find_span(asked.start, asked.end, table=asked.table)
            start = make_offset(asked.source, span.start)
        except NotFoundError:
            span = place.find_span("earliest", asked.end, table=asked.table)
        return Found(asked, start, span.end.seq, merge_shapes(span.shapes))


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

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        asked = self.asked
        rows = (
            TypedRows(self.schema, part.origin, chosen=self.chosen)
            if asked.table
            else LineRows(self.schema, part.origin, controls=asked.controls)
        )
        sharding, wants = Sharding(asked.shards or 1), choose_tables(asked.tables)

        def choose(shape: Shape) -> Collection[int] | None:
            if not wants(shape.database, shape.table):
                return ()
            return choose_columns(self.schema, sharding, shape) if asked.table else None

        for blocks in read_part(asked.place, part, sharding, wants, chosen=choose):
            yield from rows.convert(blocks)


class ChangesReader(DataSourceReader):  # type: ignore[misc]
    """A stretch of a store. Plans on the driver and reads in the workers."""

    def __init__(self, found: Found, scan: Scan) -> None:
        self._found = found
        self._scan = scan

    @hints_told()
    def partitions(self) -> list[Partition]:
        from tidemark.changes.spark.offsets import read_offset

        found, asked = self._found, self._found.asked
        start = asked.start if found.start is None else read_offset(asked.source, found.start)
        what, rows = f"the frame of source {asked.source}", rows_of_a_part(asked)
        try:
            span = asked.place.find_span(start, f"seq:{found.end}", part_rows=rows, what=what)
        except (BinlogGapError, NotFoundError) as gone:
            hint = '.option("from", "earliest") begins with what there is; raise retain_bytes of the source'
            raise type(gone)(gone.message, hint=hint, subject=gone.subject) from gone
        if not span.is_exact:
            raise RetryableError(
                f"{asked.place.name} is another one than when the frame was made", hint="load it again", subject=asked.source
            )
        return [Partition(part) for part in make_parts(span, asked)] or [Partition(None)]

    def read(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        with hints_told():
            if partition.part is not None:
                yield from self._scan.read(partition.part)


class ChangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A store from a place on, as it grows. One object in the driver plans all batches; copies of it read in the workers."""

    def __init__(self, asked: Asked, scan: Scan) -> None:
        self._asked = asked
        self._scan = scan
        self._target: int | None = None
        self._task: TaskPoint | None = None

    @hints_told()
    def initialOffset(self) -> Offset:
        return self._make_offset(self._asked.place.find_span(self._asked.start).start)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._asked.batch_rows) if self._asked.batch_rows else ReadAllAvailable()

    @hints_told()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        end = "" if self._target is None else f"seq:{self._target}"
        span = self._find(start, end, most_rows=limit.max_rows if isinstance(limit, ReadMaxRows) else 0)
        return self._make_offset(span.end) if len(span.cuts) > 1 else start

    @hints_told()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._asked.place.find_span("now").end.seq

    @hints_told()
    def reportLatestOffset(self) -> Offset:
        return self._make_offset(self._asked.place.find_span("now").end)

    @hints_told()
    def partitions(self, start: Offset, end: Offset) -> list[Partition]:
        span = self._find(start, end, part_rows=rows_of_a_part(self._asked))
        if self._asked.place.task and self._task is None:
            self._task = self._asked.place.open_task(span.start)
        return [Partition(part) for part in make_parts(span, self._asked)]

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

    def _find(self, start: Offset, end: str | Offset, **limits: int) -> Span:
        """A span of the store, which is held against the points of the checkpoint that it begins with, and ends with."""
        from tidemark.changes.spark.offsets import check_span, checkpoint_hinted, name_checkpoint, read_offset

        place, source = self._asked.place, self._asked.source
        first, last = read_offset(source, start), None if isinstance(end, str) else read_offset(source, end)
        with checkpoint_hinted(source):
            stop = end if isinstance(end, str) else f"seq:{end['seq']}"
            span = place.find_span(first, stop, what=name_checkpoint(source), **limits)
        check_span(source, place.name, span, first, last)
        return span

    def _make_offset(self, point: StoragePoint) -> Offset:
        from tidemark.changes.spark.offsets import make_offset

        return make_offset(self._asked.source, point)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_task": None}
