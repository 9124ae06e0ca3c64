"""Tables as TsFiles of a site: a data folder as an IoTDB has one, which a link sends like any other site's.

A batch makes at most one TsFile for each database and time partition. Its version is the batch's first transaction, so what
came later ranks above it: an update overwrites. What went is a deletion in the `.mods2` of older files that have it: rows
that were deleted, and fields that became null. Files are never changed and never removed: the site has all that it ever
had, and owner, merge, proof and rebuild hold at the receiver.

`catalog.json` at the target's root says which transactions the files have, and the types of fields. It is written behind
the files of a batch. Until then the batch is written again, to the same names: a file of the batch is replaced, and a
deletion that stands there is not added again. Transactions before its end are never written again, whatever the ledger
says: deletions of later batches would hit what an earlier one writes anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tidemark.changes.sinks.batches import (
    Ask,
    Content,
    Fold,
    TableChanges,
    Window,
    finish_tables,
    follow_renames,
    judge_table,
)
from tidemark.changes.sinks.fold import Folded, MisfitError, key_of, spell_alike
from tidemark.changes.sinks.points import (
    FROM_KEY,
    TYPES,
    Gone,
    Layout,
    Points,
    Times,
    choose_layout,
    cut_partition,
    make_points,
    unite_rows,
)
from tidemark.changes.store.model import Shape
from tidemark.errors import CorruptionError, PermanentError, UsageError, limits_named
from tidemark.ledger.delivery import STOPPED, SinkBatch, SinkTable
from tidemark.settings.model import SiteSettings
from tidemark.settings.values import TableColumns
from tidemark.stores.agent import durable
from tidemark.tsfiles.companions.mods import FIRST_TIME, NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.companions.resource import read_extent
from tidemark.tsfiles.devices import table_device, table_segments
from tidemark.tsfiles.layout.index import Segments
from tidemark.tsfiles.names import parse_name
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.sealed import COMPANION_BYTES
from tidemark.tsfiles.write.companions import encode_resource, encode_table_deletion
from tidemark.tsfiles.write.writer import TsFileWriter, device_order
from tidemark.untrusted_files import UntrustedFile

Effect = Callable[[str], None]
STATE = "catalog.json"
DATA = ("data/sequence", "data/unsequence")
"""Folders of the site: all files are in the second, where they may overlap. A link wants to find both."""
REGION = "0"
_EVER = (FIRST_TIME, (1 << 63) - 1)
_STATE_BYTES = 64 << 20
_UNITS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass
class _State:
    """What `catalog.json` says. `end`: the first transaction that the files do not have. By table, `points`: its tags, then
    its column of time; `fields`: the names of Arrow types by column."""

    end: int = 1
    points: dict[str, list[str]] = field(default_factory=dict)
    fields: dict[str, dict[str, str]] = field(default_factory=dict)

    def columns_of(self, name: str) -> list[str]:
        return [*self.points.get(name, ()), *self.fields.get(name, ())]


@dataclass
class _Work:
    """What a batch does to a table. `clear`: all rows go that files of versions below it have. `anew`: and their types."""

    state: SinkTable
    points: Points = field(default_factory=Points)
    layout: Layout | None = None
    clear: int = 0
    anew: bool = False


_Step = Generator[Ask, Folded, _Work]


class CatalogFiles:
    """The files of a sink. `columns`: time and tags of tables, where the key does not tell them."""

    def __init__(self, root: Path, site: SiteSettings, columns: Mapping[str, TableColumns]) -> None:
        self.root = root
        self._columns = columns
        self.unit = site.time_unit
        self._length = site.partition_interval_ms * _UNITS[site.time_unit]
        self._begun = {"time_unit": site.time_unit, "partition_interval_ms": site.partition_interval_ms}
        self._extents: dict[Path, dict[str, tuple[int, int]]] = {}
        self._listed: dict[Path, list[Path]] = {}
        self._is_clean = False

    def find_end(self) -> int:
        """The first transaction that the files do not have."""
        return self._read_state().end

    def columns_of(self, name: str) -> TableColumns:
        """What the settings say of the columns of a table."""
        return self._columns.get(name, FROM_KEY)

    def spell(self, name: str, shape: Shape) -> Shape:
        """The shape of a table with its columns as the files name them."""
        return spell_alike([shape], self._read_state().columns_of(name))[0]

    def list_files(self, database: str) -> list[Path]:
        """The TsFiles of a database, lowest rank first."""
        return _sort_files((self.root / DATA[1] / database).rglob("*.tsfile"))

    def write(
        self, batch: SinkBatch, content: Content, known: Mapping[str, SinkTable], effect: Effect, fold: Fold
    ) -> list[SinkTable]:
        """Write a batch, and tell how its tables are. One whose rows do not fit is stopped, and the others go on."""
        state = self._read_state()
        self._listed.clear()
        self._remove_torn()
        if content.renames:
            works = _judge_renamed(batch, content, known)
        else:
            tables = sorted(content.tables.items())
            works = finish_tables([self._judge(batch, one, known.get(name), state) for name, one in tables], fold)
        with limits_named(self.root):
            for folder in DATA:
                durable.make_folder(os.fsencode(self.root / folder))
            self._write_files(batch, works, effect)
            # CRASH WINDOW: new rows are there, and what they replace or what went is, too: the batch is written again.
            for work in works:
                self._delete(batch, work, effect)
            # CRASH WINDOW: files have all of the batch, and nothing says so: it is written again, with the same bytes.
            for work in works:
                if work.anew:
                    state.fields.pop(work.state.name, None)
                if work.layout is not None:
                    state.points[work.state.name] = [*work.layout.point]
                    state.fields[work.state.name] = {name: str(one) for name, one in work.layout.fields.items()}
            effect(f"before {STATE}")
            told = {"format": 1, **self._begun, "end": batch.end, "points": state.points, "fields": state.fields}
            durable.publish(os.fsencode(self.root / STATE), [json.dumps(told, ensure_ascii=False).encode()])
            # CRASH WINDOW: the files have the batch and no point says so: it is written again, with the same bytes.
            effect(f"after {STATE}")
        return [work.state for work in works]

    def _read_state(self) -> _State:
        try:
            data = UntrustedFile(str(self.root), STATE).read(_STATE_BYTES)
        except FileNotFoundError:
            return _State()
        try:
            told = json.loads(data)
            if told["format"] != 1:
                raise ValueError(f"format {told['format']}")
            begun = {name: told[name] for name in self._begun}
            points = {name: [*one] for name, one in told["points"].items()}
            found = _State(int(told["end"]), points, {name: dict(one) for name, one in told["fields"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise CorruptionError(
                f"{self.root / STATE}: {wrong}",
                hint="begin a sink of another name, with a site and a folder of its own",
                subject=str(self.root),
            ) from wrong
        if begun != self._begun:
            raise UsageError(
                f"{self.root} was begun with {_tell(begun)}, and its site says {_tell(self._begun)}",
                hint="give the site its former values, or begin a sink of another name, with a site and a folder of its own",
                subject=str(self.root),
            )
        return found

    # what a batch does to a table

    def _judge(self, batch: SinkBatch, changes: TableChanges, known: SinkTable | None, state: _State) -> _Step:
        judged = judge_table(known, changes, batch)
        try:
            return (yield from self._make_work(batch, changes, judged, state))
        except MisfitError as misfit:
            stopped = replace(judged[0], state=STOPPED, seq=batch.first, why=f"{changes.name}: {misfit}", begun=0)
        again = judge_table(stopped, changes, batch)  # a reading that begins behind what does not fit makes it anew
        if again[0].state == STOPPED:
            return _Work(stopped)
        try:
            return (yield from self._make_work(batch, changes, again, state))
        except MisfitError as misfit:
            return _Work(replace(stopped, why=f"{changes.name}: {misfit}"))

    def _make_work(self, batch: SinkBatch, changes: TableChanges, judged: tuple[SinkTable, Window], state: _State) -> _Step:
        table, window = judged
        clear = batch.first if window.anew else min(window.clear, batch.first)
        runs = window.choose_runs(changes.runs)
        if not runs:
            return _Work(table, clear=clear, anew=window.anew)
        shapes = spell_alike([run.shape for run in runs], () if window.anew else state.columns_of(changes.name))
        key = key_of(shapes[-1])
        other = next((found for shape in shapes if (found := key_of(shape)) != key), table.key or key)
        if other != key:
            raise MisfitError(f"its key was {', '.join(other)} and is {', '.join(key)} now")
        there = {} if window.anew else {name: TYPES[one] for name, one in state.fields.get(changes.name, {}).items()}
        for shape in shapes:
            layout = choose_layout(shape, there, self.columns_of(changes.name))
            there = dict(layout.fields)
            *tags, time = state.points.get(changes.name, layout.point)
            if not window.anew and time != layout.time:
                raise MisfitError(f"its column of time was {time} and is {layout.time} now")
            if not window.anew and tuple(tags) != layout.tags:
                raise MisfitError(f"its tags were {', '.join(tags)} and are {', '.join(layout.tags)} now")
        types = layout.types_of(shapes[-1])
        rows = (yield Ask(runs, window, layout.point, types)).rows
        if rest := layout.find_rest(key):
            by_key = (yield Ask(runs, window, key, types)).rows
            bounds = max(clear, table.begun), batch.first

            def read_held(device: Segments, times: Times) -> Mapping[int, tuple[Any, ...]]:
                return self._read_held(layout.database, device, times, rest, bounds)

            rows = unite_rows(rows, by_key, (layout, key, self.unit), read_held)
        return _Work(replace(table, key=key), make_points(rows, layout, self.unit), layout, clear, window.anew)

    # files

    def _remove_torn(self) -> None:
        """Remove what a run that was killed left under temporary names; once in a run."""
        for path in () if self._is_clean else (*(self.root / DATA[1]).rglob("*.tmp"), *self.root.glob(f"{STATE}.*.tmp")):
            if "/." not in str(path.relative_to(self.root)):  # a link keeps hard links below a hidden folder
                durable.remove_quietly(os.fsencode(path))
        self._is_clean = True

    def _write_files(self, batch: SinkBatch, works: list[_Work], effect: Effect) -> None:
        """Write the TsFiles of a batch, each with its `.resource`: devices of all tables of a database, by partition."""
        parts: dict[Path, list[tuple[Segments, dict[str, Column]]]] = {}
        tags: dict[str, dict[str, tuple[str, ...]]] = {}
        for work in works:
            if work.layout is None:
                continue
            tags.setdefault(work.layout.database, {})[work.layout.table] = work.layout.tags
            for one in work.points.written:
                for partition, columns in self._divide(one.fields):
                    parts.setdefault(self._folder_of(work.layout.database, partition), []).append((one.device, columns))
        for folder, devices in sorted(parts.items()):
            place = folder / f"{batch.first}-{batch.first}-0-0.tsfile"
            effect(f"before {place.relative_to(self.root)}")
            durable.make_folder(os.fsencode(folder))
            extent = {}
            with TsFileWriter(place, tags[folder.parent.parent.name]) as writer:
                for device, columns in sorted(devices, key=lambda one: device_order(one[0])):
                    writer.write_device(device, columns, aligned=True)
                    filled = [column.times for column in columns.values() if len(column)]
                    extent[device] = (int(min(t[0] for t in filled)), int(max(t[-1] for t in filled)))
            # CRASH WINDOW: a TsFile has no `.resource`: a link takes it for one that is being written. It is made anew.
            effect(f"resource of {place.relative_to(self.root)}")
            durable.publish(os.fsencode(f"{place}.resource"), [encode_resource(extent)])
            effect(f"after {place.relative_to(self.root)}")

    def _divide(self, fields: Mapping[str, Column]) -> Iterator[tuple[int, dict[str, Column]]]:
        """The columns of a device by time partition; those without a point are left out."""
        found: dict[int, dict[str, Column]] = {}
        for name, column in fields.items():
            for partition, span in cut_partition(column.times, self._length):
                found.setdefault(partition, {})[name] = Column(column.type, column.times[span], column.values[span])
        yield from sorted(found.items())

    def _folder_of(self, database: str, partition: int) -> Path:
        return self.root / DATA[1] / database / REGION / str(partition)

    def _read_held(
        self, database: str, device: Segments, times: Times, names: Sequence[str], bounds: tuple[int, int]
    ) -> dict[int, tuple[Any, ...]]:
        """What files of batches that begin within bounds have of some columns, at ascending times of a device."""
        found: dict[int, tuple[Any, ...]] = {}
        for partition, span in cut_partition(times, self._length):
            for place in self._list_overlapping(database, partition, device, times[span], bounds):  # lowest rank first
                with TsFile(UntrustedFile(str(place.parent), place.name), database) as file:
                    deletions = read_deletions(place)
                    named = table_device(database, device)
                    columns = [file.read_column(named, name, deletions=deletions) for name in names]
                hit = np.isin(columns[0].times, times[span])
                values = [column.values[hit].tolist() for column in columns]
                found.update(zip(columns[0].times[hit].tolist(), zip(*values, strict=True), strict=True))
        return found

    def _list_overlapping(
        self, database: str, partition: int, device: Segments, times: Times, bounds: tuple[int, int]
    ) -> Iterator[Path]:
        """The files of a partition that may have a device's points at these times, of batches that begin within bounds."""
        low, high = bounds
        for place in self._list_files(self._folder_of(database, partition), high):
            first, last = self._extent_of(place, database).get(table_device(database, device), (1, 0))
            if first <= times[-1] and times[0] <= last and version_of(place) >= low:
                yield place

    # deletions

    def _delete(self, batch: SinkBatch, work: _Work, effect: Effect) -> None:
        """Add to files of former batches what they have of a table no more."""
        database, _, table = work.state.name.partition(".")
        found: dict[Path, list[bytes]] = {}
        if work.clear:
            for place in self._list_files(self.root / DATA[1] / database, work.clear):
                if any(table_segments(device)[0] == table for device in self._extent_of(place, database)):
                    found[place] = [encode_table_deletion(_EVER, table)]
        concerned: dict[Path, list[Gone]] = {}
        for gone in work.points.gone:
            for partition, span in cut_partition(gone.times, self._length):
                times = gone.times[span]
                for place in self._list_overlapping(database, partition, gone.device, times, (0, batch.first)):
                    concerned.setdefault(place, []).append(replace(gone, times=times))
        for place, several in concerned.items():
            with TsFile(UntrustedFile(str(place.parent), place.name), database) as file:
                for gone in several:
                    found.setdefault(place, []).extend(_find_entries(file, table_device(database, gone.device), gone))
        for place, entries in sorted(found.items()):
            self._add_entries(place, entries, effect)

    def _list_files(self, folder: Path, below: int) -> list[Path]:
        """The TsFiles in and below a folder of batches that began before a transaction, lowest rank first."""
        if folder not in self._listed:
            self._listed[folder] = _sort_files(folder.rglob("*.tsfile"))
        return [path for path in self._listed[folder] if version_of(path) < below]

    def _extent_of(self, place: Path, database: str) -> dict[str, tuple[int, int]]:
        """The devices of a file of a former batch, with their first and last time."""
        if place not in self._extents:
            data = UntrustedFile(str(place.parent), f"{place.name}.resource").read(COMPANION_BYTES)
            self._extents[place] = {device: (first, last) for device, first, last in read_extent(data, database, str(place))}
        return self._extents[place]

    def _add_entries(self, place: Path, entries: list[bytes], effect: Effect) -> None:
        mods = place.with_name(f"{place.name}.mods2")
        try:
            before = UntrustedFile(str(mods.parent), mods.name).read(COMPANION_BYTES)
        except FileNotFoundError:
            before = b""
        there = set(parse_mods(before, "mods2", str(mods)))
        added = [one for one in dict.fromkeys(entries) if parse_mods(one, "mods2")[0] not in there]
        if len(before) + sum(map(len, added)) > COMPANION_BYTES:
            raise PermanentError(
                f"{mods}: more than {COMPANION_BYTES:,} bytes of deletions, and no reader takes these",
                hint="rows of one time partition were changed one by one: begin a sink of another name, target and site",
                subject=str(mods),
            )
        if added:
            effect(f"before {mods.relative_to(self.root)}")
            durable.publish(os.fsencode(mods), [before, *added])
            # CRASH WINDOW: some files have their deletions: they are found there, and the others get theirs.
            effect(f"after {mods.relative_to(self.root)}")


def version_of(place: Path) -> int:
    """The first transaction of the batch that wrote a TsFile; -1: none has that name."""
    name = parse_name(place.name)
    return -1 if name is None else name.version


def _sort_files(paths: Iterable[Path]) -> list[Path]:
    return sorted((path for path in paths if version_of(path) >= 0), key=lambda path: (version_of(path), path))


def read_deletions(place: Path) -> Deletions:
    """What the `.mods2` of a TsFile says."""
    try:
        data = UntrustedFile(str(place.parent), f"{place.name}.mods2").read(COMPANION_BYTES)
    except FileNotFoundError:
        return NO_DELETIONS
    return parse_mods(data, "mods2", str(place))


def _tell(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _judge_renamed(batch: SinkBatch, content: Content, known: Mapping[str, SinkTable]) -> list[_Work]:
    """Tables that were renamed: rows of TsFiles have their table's name, so none takes them along. A former name has no rows
    then; a new one stops until it is read anew."""
    works = []
    for state, former in follow_renames(batch, content, known):
        if former:
            why = f"{state.name}: it was {former} before: a catalog keeps rows by their table's name"
            works.append(_Work(SinkTable(state.name, STOPPED, seq=batch.first, why=why), clear=batch.first, anew=True))
        else:
            works.append(_Work(state, clear=batch.first, anew=True))
    return works


def _find_entries(file: TsFile, device: str, gone: Gone) -> list[bytes]:
    """Deletions of what a file has of these points. Neighbours in the file are one entry."""
    there = [one for one in file.list_measurements(device) if not gone.measurements or one in gone.measurements]
    if not there:
        return []
    held = np.unique(np.concatenate([file.read_column(device, one).times for one in there]))
    hit = np.isin(held, gone.times)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], hit, [False]]).astype(np.int8)))
    return [
        encode_table_deletion((int(held[begin]), int(held[end - 1])), gone.device[0] or "", gone.device, gone.measurements)
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
    ]
