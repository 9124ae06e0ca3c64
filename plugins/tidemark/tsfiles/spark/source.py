"""`spark.read.format("tsfile")` and `df.write.format("tsfile")`: TsFiles as a Spark data source (docs/spark.md).

It registers itself if `plugins/` is on the PYTHONPATH of the driver (`pyspark_tsfile`), else call `register(spark)`.
Planning reads statistics alone. Each task reads its own devices, so nothing is shuffled.

There is no filter push-down on purpose: in Spark 4.3.0 the filters of one query stay with the data frame and cut the
rows of the next (research/spark-tsfile.md, finding 1). Options restrict what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tidemark.errors import UsageError, hints_told
from tidemark.tsfiles.spark.dataset import find_files
from tidemark.tsfiles.spark.options import ScanOptions, scan_options
from tidemark.tsfiles.spark.scan_plan import ScanTask, Shape, shape_of, tasks_of
from tidemark.tsfiles.spark.scan_read import TaskReader
from tidemark.tsfiles.spark.survey import Survey, survey_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.tsfiles.spark.sink import TsFileSink


def register(spark: SparkSession) -> None:
    """Make the format `tsfile` known to a session. Executors must be able to import `tidemark` (docs/spark.md)."""
    spark.dataSource.register(TsFileSource)


@dataclass
class Partition(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """The input of one Spark task. None: it reads nothing."""

    task: ScanTask | None


class TsFileSource(DataSource):  # type: ignore[misc]
    """The format `tsfile`. Spark uses one object for all planning steps, so it keeps the plan from one to the next."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._planned: tuple[ScanOptions, Survey] | None = None

    @classmethod
    def name(cls) -> str:
        return "tsfile"

    @hints_told()
    def schema(self) -> StructType:
        asked, found = self._plan_once()
        return from_arrow_schema(TaskReader(shape_of(found, asked.cut), asked.unit).schema)

    @hints_told()
    def reader(self, schema: StructType) -> DataSourceReader:
        (asked, found), self._planned = self._plan_once(), None  # else it would be pickled for every task
        return TsFileReader(asked, found, schema)

    @hints_told()
    def writer(self, schema: StructType, overwrite: bool) -> TsFileSink:
        from tidemark.tsfiles.spark.options import write_options
        from tidemark.tsfiles.spark.sink import TsFileSink

        return TsFileSink(write_options(self.options, to_arrow_schema(schema, timezone="UTC"), overwrite))

    def plan(self) -> tuple[ScanOptions, Survey]:
        """Parse the options and summarize the files. A source that finds its files by other means has its own."""
        asked = scan_options(self.options)
        return asked, survey_files(find_files(asked.paths), asked.wanted)

    def _plan_once(self) -> tuple[ScanOptions, Survey]:
        if self._planned is None:
            self._planned = self.plan()
        return self._planned


class TsFileReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver and reads in the workers. It is pickled for the workers without the list of tasks."""

    def __init__(self, asked: ScanOptions, found: Survey, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        shape = shape_of(found, asked.cut)
        self._tasks: list[ScanTask] | None = tasks_of(found, asked.cut, _narrow_shape(shape, self._schema, asked.unit))
        self._reader = TaskReader(_narrow_shape(shape, self._schema, asked.unit), asked.unit, asked.lenient, asked.limit)

    def partitions(self) -> list[Partition]:
        tasks, self._tasks = self._tasks or [], None
        return [Partition(task) for task in tasks] or [Partition(None)]

    def read(self, partition: Partition) -> Iterator[pa.RecordBatch]:
        if partition.task is not None:
            for batch in self._reader.read_task(partition.task):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tasks": None}


def _narrow_shape(shape: Shape, schema: pa.Schema, unit: str) -> Shape:
    """Restrict the shape to the columns of the user's schema. Raises UsageError for columns that the files do not have."""
    ours = TaskReader(shape, unit).schema
    for field in schema:
        place = ours.get_field_index(field.name)
        if place < 0:
            message = f"no column {field.name!r}; there are {', '.join(ours.names[:40])}"
            raise UsageError(message, hint="leave .schema(…) out to see what there is", subject=field.name)
        if ours.field(place).type != field.type:
            message = f"column {field.name!r} is {ours.field(place).type}, not {field.type}"
            raise UsageError(message, hint="read it as it is and cast", subject=field.name)
    return Shape(tuple(schema.names), shape.tags, shape.fields, shape.table, shape.tall)
