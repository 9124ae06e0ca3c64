"""Write the Spark format `tsfile`: each task stages whole files, and the driver commits all or none.

A folder of TsFiles changes atomically:

    <folder>/_staging-<job>/…      files that tasks write; not read by anybody
    <folder>/<created>-<version>-0-0.tsfile
    <folder>/_tidemark.json        the manifest of the existing files (`dataset`), replaced by rename

Files get their names at the commit, with increasing versions. So later appends win at equal times, here and after a
LOAD into IoTDB. A lock serializes the commits of a folder. An aborted job leaves nothing that readers see. Replaced
files are deleted after a grace period.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tidemark.errors import CorruptionError, UsageError
from tidemark.tsfiles.names import SUFFIX
from tidemark.tsfiles.spark.arrow import devices_of
from tidemark.tsfiles.spark.dataset import DATASET_MANIFEST, DatasetManifest, read_dataset_manifest
from tidemark.tsfiles.spark.options import WriteOptions
from tidemark.tsfiles.statistics import describe_file
from tidemark.tsfiles.write.writer import TsFileWriter


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """The files that a task wrote."""

    files: list[StagedFile]


class TsFileSink(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes rows in any order. A task holds at most about `options.rows` rows in memory, then writes them to a file."""

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
                files += self._stage_file(waiting, f"{task}-{len(files)}")
                waiting, rows = [], 0
        if rows:
            files += self._stage_file(waiting, f"{task}-{len(files)}")
        return Staged(files)

    def commit(self, messages: Sequence[Staged | None]) -> None:
        staged = [file for message in messages if message is not None for file in message.files]
        options = self._options
        commit_staged(options.folder, self._job, staged, options.overwrite, options.grace)

    def abort(self, messages: Sequence[Staged | None]) -> None:
        discard_staged(self._options.folder, self._job)

    def _stage_file(self, batches: Sequence[pa.RecordBatch], number: str) -> list[StagedFile]:
        """Write one file of these rows and check it against its own statistics. Empty if no row has a value."""
        options = self._options
        place = staging_folder(options.folder, self._job) / f"{number}.tsfile"
        place.parent.mkdir(parents=True, exist_ok=True)
        points = 0
        writer = TsFileWriter(place, {options.table: options.tags} if options.table else {}, options.compression)
        try:
            for segments, columns in devices_of(pa.Table.from_batches(batches), options):
                writer.write_device(segments, columns, options.aligned)
                points += sum(len(column) for column in columns.values())
            if not points:
                writer.abandon()
                return []
            writer.close()
        except BaseException:
            writer.abandon()
            raise
        return [_describe_staged(place, writer, points)]


def _describe_staged(place: Path, writer: TsFileWriter, points: int) -> StagedFile:
    facts = describe_file(place)
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


LOCK = "_lock"
_STAGING = "_staging-"
_FORGOTTEN = 7 * 86_400  # seconds after which the staging folder of a driver that died is removed


@dataclass(frozen=True)
class StagedFile:
    """A whole, durable file in the staging folder. Its `facts` go into the manifest."""

    name: str
    size: int
    facts: Mapping[str, Any]


def staging_folder(folder: Path, job: str) -> Path:
    """The folder into which the tasks of a job write."""
    return folder / f"{_STAGING}{job}"


def check_target(folder: Path) -> None:
    """Raise UsageError if the folder has TsFiles but no manifest: a first commit would hide them from readers."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder", subject=str(folder))
    if (
        folder.is_dir()
        and not (folder / DATASET_MANIFEST).exists()
        and next(folder.rglob(f"[!_.]*{SUFFIX}"), None) is not None
    ):
        unlisted = [path for path in folder.rglob(f"[!_.]*{SUFFIX}") if _STAGING not in str(path.relative_to(folder))]
        if unlisted:
            message = f"{folder} holds TsFiles that Tidemark did not write, such as {unlisted[0].name}"
            raise UsageError(message, hint="write into a folder of its own", subject=str(folder))


def commit_staged(folder: Path, job: str, staged: Sequence[StagedFile], overwrite: bool, grace: float) -> DatasetManifest:
    """Add the staged files to the folder, or replace its files by them (`overwrite`). Returns the new manifest.

    Nothing changes for readers before the manifest is replaced. Replaced files are deleted after `grace` seconds, for
    readers that have planned with them. Raises CorruptionError if a staged file has not the size that its task wrote.
    """
    for file in staged:
        place = staging_folder(folder, job) / file.name
        if not place.is_file() or place.stat().st_size != file.size:
            raise CorruptionError(f"{place} is not the {file.size} bytes that its task wrote", subject=str(place))
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder):
        before = read_dataset_manifest(folder)
        _remove_leftovers(folder, before)
        after, renames = _number_files(before, staged, overwrite, time.time())
        # CRASH WINDOW: files with final names that no manifest names. Readers ignore them, the next commit removes them.
        for old, new in renames:
            (staging_folder(folder, job) / old).rename(folder / new)
        _sync_folder(folder)
        _replace_manifest(folder, after)
        after = _delete_expired(folder, after, grace)
    shutil.rmtree(staging_folder(folder, job), ignore_errors=True)
    return after


def discard_staged(folder: Path, job: str) -> None:
    """Remove the staged files of a job."""
    shutil.rmtree(staging_folder(folder, job), ignore_errors=True)


def _number_files(
    before: DatasetManifest, staged: Sequence[StagedFile], overwrite: bool, now: float
) -> tuple[DatasetManifest, list[tuple[str, str]]]:
    created = max(before.created + 1, int(now * 1000))
    files: dict[str, Mapping[str, Any]] = {} if overwrite else dict(before.files)
    retired = {**before.retired, **(dict.fromkeys(before.files, now) if overwrite else {})}
    renames = []
    version = before.version
    for file in staged:
        version += 1
        name = f"{created}-{version}-0-0{SUFFIX}"
        files[name] = {"size": file.size, **file.facts}
        renames.append((file.name, name))
    return DatasetManifest(files, retired, version, created), renames


def _remove_leftovers(folder: Path, record: DatasetManifest) -> None:
    """Remove the leftovers of interrupted commits. Only under the lock: a running commit has unlisted files too."""
    for path in folder.glob(f"[!_.]*{SUFFIX}"):
        if path.name not in record.files and path.name not in record.retired:
            path.unlink()
    for path in folder.glob(f"{_STAGING}*"):
        if path.stat().st_mtime < time.time() - _FORGOTTEN:
            shutil.rmtree(path, ignore_errors=True)


def _delete_expired(folder: Path, record: DatasetManifest, grace: float) -> DatasetManifest:
    """Delete files that were replaced longer than `grace` seconds ago, and drop them from the manifest."""
    limit = time.time() - grace
    expired = [name for name, since in record.retired.items() if since <= limit]
    if not expired:
        return record
    for name in expired:
        (folder / name).unlink(missing_ok=True)
    kept = {name: since for name, since in record.retired.items() if since > limit}
    after = DatasetManifest(record.files, kept, record.version, record.created)
    _replace_manifest(folder, after)
    return after


def _replace_manifest(folder: Path, record: DatasetManifest) -> None:
    temporary = folder / f"{DATASET_MANIFEST}.tmp"
    with temporary.open("wb") as file:
        file.write(record.encode())
        file.flush()
        os.fsync(file.fileno())
    # CRASH WINDOW: the old manifest is in force. The commit did not happen, and the next one removes its files.
    temporary.replace(folder / DATASET_MANIFEST)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    with (folder / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
