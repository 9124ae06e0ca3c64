"""One merge task: write the points of some devices from all their sources as new TsFiles in staging; the newest wins.

A device that only one source has, without deletions, may be copied whole (`WholeDevice`), without an object per series.
Runs in a child process of any engine. It writes only below its staging folder, so it may run twice. Memory holds one piece
of a device (`receiver.windows`). What cannot be merged without changing a value or a type is refused with the reason, and
nothing is written. Source: DESIGN §3 "Who wins", §7; research/spark-tsfile.md §3.4.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tidemark.errors import CorruptionError, NotFoundError, RetryableError, UnsupportedError, limits_named
from tidemark.receiver import windows
from tidemark.receiver.load.check import read_deletions, sha256_of
from tidemark.receiver.merge.device import NOTHING, Counts, DeviceMerge, Holder, Part
from tidemark.tsfiles.companions.mods import Deletions
from tidemark.tsfiles.devices import is_table, table_segments
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import tally_file
from tidemark.tsfiles.write.copy_devices import Terms, WholeDevice
from tidemark.tsfiles.write.pages import aligned_chunks, mark_chunk, row_times, series_chunks
from tidemark.tsfiles.write.writer import TsFileWriter, device_order, tree_segments
from tidemark.untrusted_files import UntrustedFile


@dataclass(frozen=True)
class Source:
    """An open source."""

    file: TsFile
    deletions: Deletions

    def make_holder(self, device: str) -> Holder:
        return Holder(self.file, self.deletions, *self.file.series_of(device))


@dataclass(frozen=True)
class Alone:
    """A device that only one source has and that has no deletions: it can be copied whole."""

    source: Source
    whole: WholeDevice


Held = Mapping[str, Alone | Sequence[Holder]]
"""Device of the task → its holders, lowest rank first."""


class RefusedError(Exception):
    """The group cannot be merged: subject and reason."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason


def held_by(sources: Sequence[Source], devices: Iterable[str], interval: int) -> Held:
    """Return which sources hold each of these devices. `interval` of catalog partitions. Raises as `TsFile` does."""
    having: dict[str, list[Source]] = {device: [] for device in devices}
    for source in sources:
        for device in having.keys() & source.file.device_names():
            having[device].append(source)
    terms = Terms(windows.COPY_ROWS, interval)
    held: dict[str, Alone | Sequence[Holder]] = {}
    for device, those in having.items():
        one = those[0] if len(those) == 1 and not those[0].deletions else None
        whole = one.file.find_whole_device(device, terms) if one else None
        held[device] = Alone(one, whole) if one and whole else [source.make_holder(device) for source in those]
    return held


def tag_columns(sources: Sequence[Source]) -> dict[str, tuple[str, ...]]:
    """Return table → names of its tag columns, the longest list of all sources: a table gains tags at the end only."""
    tables: dict[str, tuple[str, ...]] = {}
    for source in sources:
        for table, tags in source.file.tag_columns.items():
            known = tables.get(table, ())
            longer, shorter = (tags, known) if len(tags) > len(known) else (known, tags)
            if longer[: len(shorter)] != shorter:
                raise RefusedError(table, f"its tag columns are {known} in one file and {tags} in {source.file.path}")
            tables[table] = longer
    return tables


def check_types(held: Held, database: str) -> None:
    """Require one type per series, and per column in the table model: a TsFile cannot hold more. Raises RefusedError."""
    types: dict[tuple[str, str], tuple[DataType, str]] = {}
    for device, here in held.items():
        of_table = is_table((device,))
        if isinstance(here, Alone) and not of_table:
            continue  # no other source has its series
        owner = f"{database}.{table_segments(device)[0]}" if of_table else device
        for measurement, of_type, path in _types_with_points(here):
            known, where = types.setdefault((owner, measurement), (of_type, path))
            if known != of_type:
                reason = f"{known.name} in {Path(where).name}, {of_type.name} in {Path(path).name}"
                raise RefusedError(f"{device}.{measurement}", reason)


def _types_with_points(here: Alone | Sequence[Holder]) -> Iterator[tuple[str, DataType, str]]:
    """Yield (measurement, type, file) of the series that have points."""
    if isinstance(here, Alone):
        yield from ((name, of_type, here.source.file.path) for name, of_type in here.whole.types)
        return
    for holder in here:
        for measurement, series in holder.series.items():
            if series.statistics.count:
                yield measurement, series.type, holder.file.path


@dataclass(frozen=True)
class TaskSource:
    """A source file with its deletions ('': none). Locations are relative to the receiver's root. `prefix`: what its names
    lack; outputs have the catalog's names."""

    location: str
    mods_location: str
    prefix: str = ""


@dataclass(frozen=True)
class MergeTask:
    """Devices of one group. `sources` lowest rank first; `interval` of catalog partitions, in the site's unit.

    `prove`: (location, SHA-256, bytes at most) of files that must still be what was loaded. The tasks of a group together
    prove all its sources: merging a rotten file would give it a sound digest.
    """

    group: int
    number: int
    root: str
    staging: str
    database: str
    interval: int
    sources: tuple[TaskSource, ...]
    devices: tuple[str, ...]
    prove: tuple[tuple[str, str, int], ...] = ()

    @property
    def subject(self) -> str:
        """The name of the task in errors."""
        return f"merge of {len(self.sources)} files of {self.database}, {self.devices[0]} … {self.devices[-1]}"


@dataclass(frozen=True)
class Staged:
    """An output, complete and synced at `location` (relative to the root). `devices`: (device, start, end, points)."""

    location: str
    partition: int
    sha256: str
    size: int
    model: str
    points: int
    devices: tuple[tuple[str, int, int, int], ...]
    counts: Counts


@dataclass(frozen=True)
class MergeOutcome:
    """What a task made. `unplaced`: points of series with nothing left to write. `refused`: (subject, reason)."""

    group: int
    number: int
    staged: tuple[Staged, ...] = ()
    unplaced: Counts = NOTHING
    refused: tuple[str, str] | None = None


@dataclass
class _Output:
    """An output file being written, for one partition. `device`: the one whose chunks it receives now."""

    location: str
    writer: TsFileWriter
    counts: Counts = NOTHING
    device: str = ""


class _Outputs(dict[int, _Output]):
    """The outputs of a task by partition, each created on first use. `unplaced`: counts that belong to no output."""

    def __init__(self, task: MergeTask, tables: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__()
        self._task = task
        self._tables = tables
        self.unplaced = NOTHING

    def __missing__(self, partition: int) -> _Output:
        task = self._task
        # Unique per attempt: an abandoned worker may still write while another has the task.
        location = f"{task.staging}/{task.group}-{task.number}-{partition}-{uuid.uuid4().hex[:12]}.tsfile"
        place = Path(task.root, location)
        place.parent.mkdir(parents=True, exist_ok=True)
        output = self[partition] = _Output(location, TsFileWriter(place, self._tables))
        return output


def run_merge_task(task: MergeTask) -> MergeOutcome:
    """Merge the task's devices into one output per catalog partition that has points.

    Raises CorruptionError (an unreadable source, an output that does not hold what was written) and RetryableError (a
    missing source: the catalog has changed).
    """
    try:
        with limits_named(f"{task.root}/{task.staging}"), _prove_in_background(task) as proof, ExitStack() as opened:
            sources = [_open_source(task, source, opened) for source in task.sources]
            tables, held = tag_columns(sources), held_by(sources, task.devices, task.interval)
            check_types(held, task.database)
            return _merge_devices(task, held, tables, proof)
    except (NotFoundError, FileNotFoundError) as gone:
        raise RetryableError(
            f"a source of the {task.subject} is gone: {gone}",
            hint="./tidemark merge again; if it stays: ./tidemark verify",
            subject=task.subject,
        ) from gone
    except RefusedError as refused:
        return MergeOutcome(task.group, task.number, refused=(refused.subject, refused.reason))
    except UnsupportedError as unsure:  # a page in an encoding that loses values: its file stays unmerged
        return MergeOutcome(task.group, task.number, refused=(unsure.subject, unsure.message))


@contextmanager
def _prove_in_background(task: MergeTask) -> Iterator[Future[None]]:
    """Digest the sources during the merge, on another core if there is one. If the merge fails, a source that is not what
    was loaded is reported instead of the merge's error."""
    with ThreadPoolExecutor(1) as beside:
        proof = beside.submit(_prove_sources, task)
        try:
            yield proof
        except Exception:
            proof.result()
            raise


def _prove_sources(task: MergeTask) -> None:
    for location, sha256, most in task.prove:
        found = sha256_of(UntrustedFile(task.root, location), most)
        if found != sha256:
            raise CorruptionError(
                f"{location} is not what was loaded: its SHA-256 is {found}, not {sha256}",
                hint="./tidemark verify --repair fetches it again",
                subject=location,
            )


def _open_source(task: MergeTask, source: TaskSource, opened: ExitStack) -> Source:
    file = opened.enter_context(TsFile(UntrustedFile(task.root, source.location), task.database, source.prefix))
    return Source(file, read_deletions(task.root, source.mods_location, source.prefix))


def _merge_devices(task: MergeTask, held: Held, tables: Mapping[str, tuple[str, ...]], proof: Future[None]) -> MergeOutcome:
    """Merge all devices. No output is completed before `proof` has ended."""
    outputs = _Outputs(task, tables)
    total = NOTHING
    try:
        for device in sorted(task.devices, key=lambda name: device_order(_device_segments(name))):
            here = held[device]
            if isinstance(here, Alone):
                total += Counts(here.whole.points)
                if _copy_device(outputs, device, here):
                    continue
                here = [here.source.make_holder(device)]
            else:
                total += Counts(sum(series.statistics.count for holder in here for series in holder.series.values()))
            _write_device(outputs, DeviceMerge(device, here, task.interval))
        counted = sum((output.counts for output in outputs.values()), outputs.unplaced)
        if not counted.is_balanced or counted.points_in != total.points_in:
            raise CorruptionError(
                f"{task.subject}: the outputs do not account for {total.points_in} points", subject=task.subject
            )
        proof.result()
        staged = tuple(_finish_output(task, partition, outputs[partition]) for partition in sorted(outputs))
    except BaseException:
        for output in outputs.values():
            output.writer.abandon()
        raise
    return MergeOutcome(task.group, task.number, staged, outputs.unplaced)


def _copy_device(outputs: _Outputs, device: str, alone: Alone) -> bool:
    """Copy the device whole. False where its chunks differ from the index: then the general reader must decode it."""
    copied = alone.source.file.read_whole_device(alone.whole)
    if copied is None:
        return False
    output = outputs[alone.whole.partition]
    output.writer.copy_device(_device_segments(device), copied)
    output.counts += Counts(alone.whole.points, alone.whole.points)
    return True


def _write_device(outputs: _Outputs, merge: DeviceMerge) -> None:
    """Write the device's parts into the outputs of their partitions."""
    for part in merge.iterate_parts():
        if part.partition is None:
            outputs.unplaced += part.counts
        else:
            _write_part(outputs[part.partition], merge, part)
    for output in outputs.values():
        if output.device == merge.device:
            output.writer.end_device()


def _write_part(output: _Output, merge: DeviceMerge, part: Part) -> None:
    """Write the part. In an aligned device each chunk group has a chunk for every column, which may be only a mark."""
    writer = output.writer
    if output.device != merge.device:
        writer.begin_device(_device_segments(merge.device))
        output.device = merge.device
    output.counts += part.counts
    kind = writer.compression
    if not merge.is_aligned:
        for name, column in part.columns.items():
            writer.put_chunks(series_chunks(name, column, kind), same_group=True)
        if part.copied:
            writer.put_chunks(part.copied, same_group=True)
    elif part.copied:
        known = {chunk.name for chunk in part.copied}
        marks = [mark_chunk(name, of_type, kind) for name, of_type in merge.types.items() if name not in known]
        writer.put_chunks([*part.copied, *marks])
    elif part.columns:
        columns = {name: part.columns.get(name, Column.empty(of_type)) for name, of_type in merge.types.items()}
        for group in aligned_chunks(row_times(part.columns), columns, kind):
            writer.put_chunks(group)


def _finish_output(task: MergeTask, partition: int, output: _Output) -> Staged:
    """Close the output and compare its own statistics with the merge's counts."""
    output.writer.close()
    facts = tally_file(UntrustedFile(task.root, output.location), task.database)
    counts = output.counts
    if facts.points != counts.points_out or facts.points != output.writer.points or not counts.is_balanced:
        raise CorruptionError(
            f"{output.location} holds {facts.points} points where the merge counts {counts}",
            hint="./tidemark verify --deep",
            subject=task.subject,
        )
    writer, devices = output.writer, facts.devices
    return Staged(output.location, partition, writer.sha256, writer.size, facts.model, facts.points, devices, counts)


@lru_cache(maxsize=4096)
def _device_segments(device: str) -> tuple[str | None, ...]:
    return table_segments(device) if is_table((device,)) else tree_segments(device)
