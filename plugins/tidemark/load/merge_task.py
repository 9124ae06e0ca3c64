"""One merge task: the points of some devices from all their sources, newest wins, as new TsFiles in staging.

Runs wherever an engine puts it, in a process of its own; reads the sources, writes below its staging folder and nothing
else, so it may be run twice. Memory holds one piece of a device (`merge_pieces`). What may not be merged without changing a
value or a type is refused by name, and nothing is written. Source: DESIGN §3 "Who wins", §7; research/spark-tsfile.md §3.4.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tidemark.errors import CorruptionError, NotFoundError, RetryableError, UnsupportedError
from tidemark.load.check import mods_form, sha256_of
from tidemark.load.merge_device import DeviceMerge, Holder, Part
from tidemark.load.overlay import NOTHING, Counts
from tidemark.tsfiles.codes import DataType
from tidemark.tsfiles.column import Column
from tidemark.tsfiles.devices import split_nodes, table_segments
from tidemark.tsfiles.mods import Deletion, parse_mods
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.tally import tally
from tidemark.tsfiles.writer import TsFileWriter, device_order, tree_segments
from tidemark.tsfiles.writer_pages import aligned_chunks, mark_chunk, row_times, series_chunks


@dataclass(frozen=True)
class TaskSource:
    """A source file with its deletions ('' without); locations are relative to the receiver's root."""

    location: str
    mods_location: str


@dataclass(frozen=True)
class MergeTask:
    """Devices of one group. `sources` lowest rank first; `interval` of catalog partitions, in the site's unit.

    `prove`: (location, SHA-256) of files that must still be what was loaded: between them the tasks of a group prove all its
    sources, for what rotted on this disk would get a sound digest by being merged.
    """

    group: int
    number: int
    root: str
    staging: str
    database: str
    interval: int
    sources: tuple[TaskSource, ...]
    devices: tuple[str, ...]
    prove: tuple[tuple[str, str], ...] = ()

    @property
    def subject(self) -> str:
        """What errors call the task."""
        return f"merge of {len(self.sources)} files of {self.database}, {self.devices[0]} … {self.devices[-1]}"


@dataclass(frozen=True)
class Staged:
    """An output, whole and synced at `location` (relative to the root). `devices`: (device, start, end, points)."""

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
    """What a task made. `unplaced`: points of series of which nothing was left to write; `refused`: (subject, reason)."""

    group: int
    number: int
    staged: tuple[Staged, ...] = ()
    unplaced: Counts = NOTHING
    refused: tuple[str, str] | None = None


@dataclass(frozen=True)
class _Source:
    """A source while it is open, and what it holds of the task's devices."""

    file: TsFile
    deletions: tuple[Deletion, ...]
    devices: Mapping[str, Holder]


@dataclass
class _Output:
    """A file of one partition while it is written; `device`: the one whose chunks it takes."""

    location: str
    writer: TsFileWriter
    counts: Counts = NOTHING
    device: str = ""


class _RefusedError(Exception):
    """The group cannot be merged as it is: subject and reason."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason)
        self.subject = subject
        self.reason = reason


def run_merge_task(task: MergeTask) -> MergeOutcome:
    """Merge the task's devices; one output a catalog partition that has points.

    Raises CorruptionError (a source that cannot be read, an output that does not hold what was written) and RetryableError
    (a source that is gone: the catalog moved on).
    """
    try:
        with _proving(task) as proof, ExitStack() as opened:
            sources = [_open(task, source, opened) for source in task.sources]
            return _merge(task, sources, _tables_of(task, sources), proof)
    except (NotFoundError, FileNotFoundError) as gone:
        raise RetryableError(
            f"a source of the {task.subject} is gone: {gone}",
            hint="./tidemark merge again; if it stays: ./tidemark verify",
            subject=task.subject,
        ) from gone
    except _RefusedError as refused:
        return MergeOutcome(task.group, task.number, refused=(refused.subject, refused.reason))
    except UnsupportedError as unsure:  # a page in an encoding that loses values: its file stays as it came
        return MergeOutcome(task.group, task.number, refused=(unsure.subject, unsure.message))


@contextmanager
def _proving(task: MergeTask) -> Iterator[Future[None]]:
    """The sources are digested beside the merge, on another core where there is one. That a source is not what was loaded
    is told instead of whatever the merge stumbled over in it."""
    with ThreadPoolExecutor(1) as beside:
        proof = beside.submit(_prove, task)
        try:
            yield proof
        except Exception:
            proof.result()
            raise


def _prove(task: MergeTask) -> None:
    for location, sha256 in task.prove:
        found = sha256_of(Path(task.root, location))
        if found != sha256:
            raise CorruptionError(
                f"{location} is not what was loaded: its SHA-256 is {found}, not {sha256}",
                hint="./tidemark verify --repair fetches it again",
                subject=location,
            )


def _open(task: MergeTask, source: TaskSource, opened: ExitStack) -> _Source:
    file = opened.enter_context(TsFile(Path(task.root, source.location), task.database))
    deletions: tuple[Deletion, ...] = ()
    if source.mods_location:
        data = Path(task.root, source.mods_location).read_bytes()
        deletions = parse_mods(data, mods_form(source.mods_location), source.mods_location)
    there = set(file.devices())
    held = {device: Holder(file, deletions, *file.series_of(device)) for device in task.devices if device in there}
    return _Source(file, deletions, held)


def _tables_of(task: MergeTask, sources: Sequence[_Source]) -> dict[str, tuple[str, ...]]:
    tables = _tag_columns(sources)
    _check_types(task, sources)
    return tables


def _tag_columns(sources: Sequence[_Source]) -> dict[str, tuple[str, ...]]:
    """Table → names of its tag columns, the longest list of all sources: a table gains tags at the end only."""
    tables: dict[str, tuple[str, ...]] = {}
    for source in sources:
        for table, tags in source.file.tag_columns.items():
            known = tables.get(table, ())
            longer, shorter = (tags, known) if len(tags) > len(known) else (known, tags)
            if longer[: len(shorter)] != shorter:
                raise _RefusedError(table, f"its tag columns are {known} in one file and {tags} in {source.file.path}")
            tables[table] = longer
    return tables


def _check_types(task: MergeTask, sources: Sequence[_Source]) -> None:
    """One type a series, and in the table model one type a column: a TsFile holds no more."""
    types: dict[tuple[str, str], tuple[DataType, str]] = {}
    for source in sources:
        for device, holder in source.devices.items():
            owner = f"{task.database}.{table_segments(device)[0]}" if _of_table(device) else device
            for measurement, series in holder.series.items():
                if not series.statistics.count:
                    continue
                known, where = types.setdefault((owner, measurement), (series.type, source.file.path))
                if known != series.type:
                    reason = f"{known.name} in {Path(where).name}, {series.type.name} in {Path(source.file.path).name}"
                    raise _RefusedError(f"{device}.{measurement}", reason)


def _merge(
    task: MergeTask, sources: Sequence[_Source], tables: Mapping[str, tuple[str, ...]], proof: Future[None]
) -> MergeOutcome:
    """Nothing of it is whole before `proof` is at its end."""
    outputs: dict[int, _Output] = {}
    held = unplaced = NOTHING
    try:
        for device in sorted(task.devices, key=lambda name: device_order(_segments(name))):
            holders = [source.devices[device] for source in sources if device in source.devices]
            held += Counts(sum(series.statistics.count for holder in holders for series in holder.series.values()))
            merge = DeviceMerge(device, holders, task.interval)
            for part in merge.parts():
                if part.partition is None:
                    unplaced += part.counts
                    continue
                if part.partition not in outputs:
                    outputs[part.partition] = _output(task, part.partition, tables)
                _put(outputs[part.partition], merge, part)
            for output in outputs.values():
                if output.device == device:
                    output.writer.end()
        counted = sum((output.counts for output in outputs.values()), unplaced)
        if not counted.balanced or counted.points_in != held.points_in:
            raise CorruptionError(
                f"{task.subject}: the outputs do not account for {held.points_in} points", subject=task.subject
            )
        proof.result()
        staged = tuple(_finish(task, partition, outputs[partition]) for partition in sorted(outputs))
    except BaseException:
        for output in outputs.values():
            output.writer.abandon()
        raise
    return MergeOutcome(task.group, task.number, staged, unplaced)


def _put(output: _Output, merge: DeviceMerge, part: Part) -> None:
    """Write the part; in an aligned device each chunk group has a chunk of every column, if only its mark."""
    writer = output.writer
    if output.device != merge.device:
        writer.begin(_segments(merge.device))
        output.device = merge.device
    output.counts += part.counts
    kind = writer.compression
    if not merge.aligned:
        for name, column in part.columns.items():
            writer.put(series_chunks(name, column, kind), same_group=True)
        if part.copied:
            writer.put(part.copied, same_group=True)
    elif part.copied:
        known = {chunk.name for chunk in part.copied}
        marks = [mark_chunk(name, of_type, kind) for name, of_type in merge.types.items() if name not in known]
        writer.put([*part.copied, *marks])
    elif part.columns:
        columns = {name: part.columns.get(name, Column.empty(of_type)) for name, of_type in merge.types.items()}
        for group in aligned_chunks(row_times(part.columns), columns, kind):
            writer.put(group)


def _output(task: MergeTask, partition: int, tables: Mapping[str, tuple[str, ...]]) -> _Output:
    # Of this try alone: a worker that was given up may still write when another has the task.
    location = f"{task.staging}/{task.group}-{task.number}-{partition}-{uuid.uuid4().hex[:12]}.tsfile"
    place = Path(task.root, location)
    place.parent.mkdir(parents=True, exist_ok=True)
    return _Output(location, TsFileWriter(place, tables))


def _finish(task: MergeTask, partition: int, output: _Output) -> Staged:
    """Close the output and compare what its own statistics say with what was meant."""
    output.writer.close()
    facts = tally(Path(task.root, output.location), task.database)
    counts = output.counts
    if facts.points != counts.points_out or facts.points != output.writer.points or not counts.balanced:
        raise CorruptionError(
            f"{output.location} holds {facts.points} points where the merge counts {counts}",
            hint="./tidemark verify --deep",
            subject=task.subject,
        )
    writer, devices = output.writer, facts.devices
    return Staged(output.location, partition, writer.sha256, writer.size, facts.model, facts.points, devices, counts)


def _of_table(device: str) -> bool:
    return split_nodes(device)[0] != "root"


@lru_cache(maxsize=4096)
def _segments(device: str) -> tuple[str | None, ...]:
    return table_segments(device) if _of_table(device) else tree_segments(device)
