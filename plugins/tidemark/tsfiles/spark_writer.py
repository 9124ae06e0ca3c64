"""The writing half of the format `tsfile`: each task stages whole files, the driver commits them all or none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tidemark.tsfiles.arrow_points import devices_of
from tidemark.tsfiles.dataset_commit import StagedFile, abort, check_target, commit, staging
from tidemark.tsfiles.statistics import describe
from tidemark.tsfiles.write_options import WriteOptions
from tidemark.tsfiles.writer import TsFileWriter


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What a task wrote."""

    files: list[StagedFile]


class TsFileSink(DataSourceArrowWriter):  # type: ignore[misc]
    """Rows in any order. Memory of a task: `options.rows` rows, which become one file each time they are gathered."""

    def __init__(self, options: WriteOptions) -> None:
        check_target(options.folder)
        self._options = options
        self._job = uuid.uuid4().hex[:16]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        task = f"{context.partitionId() if context else 0:06d}-{uuid.uuid4().hex[:12]}"  # no two attempts share a name
        files: list[StagedFile] = []
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in iterator:
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= self._options.rows:
                files += self._stage(waiting, f"{task}-{len(files)}")
                waiting, rows = [], 0
        if rows:
            files += self._stage(waiting, f"{task}-{len(files)}")
        return Staged(files)

    def commit(self, messages: Sequence[Staged | None]) -> None:
        staged = [file for message in messages if message is not None for file in message.files]
        options = self._options
        commit(options.folder, self._job, staged, options.overwrite, options.grace)

    def abort(self, messages: Sequence[Staged | None]) -> None:
        abort(self._options.folder, self._job)

    def _stage(self, batches: Sequence[pa.RecordBatch], number: str) -> list[StagedFile]:
        """One file of these rows, checked against its own statistics; none where no row has a value."""
        options = self._options
        place = staging(options.folder, self._job) / f"{number}.tsfile"
        place.parent.mkdir(parents=True, exist_ok=True)
        points = 0
        writer = TsFileWriter(place, {options.table: options.tags} if options.table else {}, options.compression)
        try:
            for segments, columns in devices_of(pa.Table.from_batches(batches), options):
                writer.write(segments, columns, options.aligned)
                points += sum(len(column) for column in columns.values())
            if not points:
                writer.abandon()
                return []
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        return [_staged(place, writer, points)]


def _staged(place: Path, writer: TsFileWriter, points: int) -> StagedFile:
    facts = describe(place)
    if facts.points != points:
        raise RuntimeError(f"{place} says it holds {facts.points} points, {points} were written")
    told = {
        "sha256": writer.sha256,
        "points": points,
        "devices": len(facts.devices),
        "start": min(device.start for device in facts.devices),
        "end": max(device.end for device in facts.devices),
    }
    return StagedFile(place.name, writer.size, told)
