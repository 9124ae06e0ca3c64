"""Is each table of a `delta` or `catalog` sink as at the source? Both at one place: a snapshot of the server, and the sink
up to it.

First the capture and the sink are brought to the end, so that little is left. Then a consistent snapshot is opened at the
server, the store and the sink are brought to exactly its place in the log, and the rows are compared. The tables of a
`delta` sink are read in the versions that they have then, so others may deliver meanwhile. Files of a `catalog` sink have
no versions: where somebody delivered meanwhile, it begins anew. So it does where the sink is beyond that place already.
Nothing is written at the source.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from glob import escape
from typing import Any

import pyarrow as pa

from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.bootstrap.between import find_changed, find_doubted
from tidemark.changes.bootstrap.chunks import Seen, Tables, Unsettled, require_end
from tidemark.changes.bootstrap.requests import Request as Reading
from tidemark.changes.bootstrap.requests import list_requests
from tidemark.changes.bootstrap.state import read_state
from tidemark.changes.bootstrap.tables import ReadTable
from tidemark.changes.capture.identity import Head, number_of, read_origin
from tidemark.changes.capture.run import parse_gtids
from tidemark.changes.connection.dump import read_first_event
from tidemark.changes.connection.model import FilePosition, SourceSettings
from tidemark.changes.delivery import points
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.sinks.deliver import CATALOG, DELTA, HISTORY, Request, Sink, deliver_sink
from tidemark.changes.sinks.fold import MisfitError, cast_columns, cast_rows, key_of, spell_alike, unite_types
from tidemark.changes.sinks.points import choose_layout
from tidemark.changes.sinks.verify.compare import Compared, Key, compare_rows
from tidemark.changes.sinks.verify.held import count_held, keep_with_points, read_held, types_held
from tidemark.changes.sources.source import Request as Capture
from tidemark.changes.sources.source import ask_bootstrap, capture_source, find_end, open_resumed, resume_source, wants_of
from tidemark.changes.store.model import Rows, Shape
from tidemark.changes.store.read import Reader, open_whole
from tidemark.changes.trust.rules import list_missing
from tidemark.errors import LeaseHeldError, NotFoundError, PermanentError, RetryableError
from tidemark.ledger.delivery import STOPPED, SinkTable, read_batch, read_points, read_sink_tables
from tidemark.progress import Progress, Tick, ignore_progress

TRIES = 5
WAIT_SECONDS = 60.0
"""How long another's capture may take to come to the place of a snapshot."""
_ASK_SECONDS = 0.2


@dataclass
class TableVerified:
    """A table that was compared. `why`: it could not be, and so counts as different. `is_left`: nothing is known of it,
    and `hint` says what helps. `is_keyless`: the source has no key for it, so that no reading mends it."""

    name: str
    found: Compared = field(default_factory=Compared)
    why: str = ""
    is_left: bool = False
    hint: str = ""
    is_keyless: bool = False

    @property
    def differs(self) -> bool:
        return bool(self.found.counts) or (bool(self.why) and not self.is_left)


@dataclass
class SinkVerified:
    """`end`: the first transaction that was not in what was compared. `place`: of the snapshot. `repaired`: tables that were
    read anew, and compared again."""

    end: int
    place: FilePosition
    tables: list[TableVerified]
    repaired: Sequence[str] = ()

    @property
    def rows(self) -> int:
        return sum(one.found.rows for one in self.tables)


@dataclass(frozen=True)
class _Pinned:
    """What a sink had before transaction `end`: how its tables were, and version and column types of those that have a
    folder."""

    end: int
    tables: Mapping[str, SinkTable]
    versions: Mapping[str, tuple[int, Mapping[str, Any]]]


def verify_sink(
    sink: Sink, tables: Sequence[str] = ("**",), *, repair: bool = False, progress: Progress = ignore_progress
) -> SinkVerified:
    """Compare tables of a sink with those of its source. `repair`: those that differ are read anew, and compared again; not
    those without a key.

    PermanentError: the sink is a `history`, or the server has no snapshot whose place is known. RetryableError: the sink
    went on each time, or the capture that is at work does not come. NotFoundError: no table has such a name. Else what
    capturing and delivering raise.
    """
    if sink.settings.kind == HISTORY:
        raise PermanentError(
            f"sink {sink.name} is a history: only tables of a delta or catalog sink are compared with the source's",
            hint=f"./tidemark changes verify {sink.source.name} --deep compares its store with the server's logs",
            subject=sink.name,
        )
    made = _verify(sink, tables, progress)
    wrong = [one.name for one in made.tables if one.differs and not one.is_keyless]
    if not (repair and wrong):
        return made
    ask_bootstrap(sink.source, Reading([escape(name) for name in wrong], again=True), progress=progress)
    again = _verify(sink, [escape(name) for name in wrong], progress)
    kept = [one for one in made.tables if one.name not in wrong]
    return replace(again, tables=sorted([*kept, *again.tables], key=lambda one: one.name), repaired=wrong)


def _verify(sink: Sink, patterns: Sequence[str], progress: Progress) -> SinkVerified:
    _catch_up(sink)
    deliver_sink(sink, Request(progress=progress))
    for left in reversed(range(TRIES)):
        with open_resumed(resume_source(sink.source)) as server:
            tables = Tables(server)
            with tables.open_snapshot() as (place, seen):
                end = _bring_store_to(sink, place, tables)
                if left and isinstance(seen, Unsettled) and find_doubted(sink.source.disk, seen):
                    time.sleep(_ASK_SECONDS)
                    continue
                deliver_sink(sink, Request(end=end, progress=progress))
                pinned = _pin(sink, end)
                if pinned is not None:
                    names = _choose(sink, patterns, [*tables.there, *pinned.tables])
                    look = _Look(sink, tables, pinned, seen)
                    found = []
                    for name in names:
                        progress(Tick(f"compares {name}"))
                        found.append(look.compare(name))
                    if sink.settings.kind == CATALOG and _pin(sink, end) is None:
                        continue
                    return SinkVerified(end, place, found)
    raise RetryableError(
        f"sink {sink.name} went beyond the snapshot at each of {TRIES} tries: another process delivers",
        hint="run it again, or pause the DAG of the sink",
        subject=sink.name,
    )


def _choose(sink: Sink, patterns: Sequence[str], there: Collection[str]) -> list[str]:
    """The tables to compare: those of the source and of the sink that both want, and the patterns mean."""
    wants = (wants_of(sink.source.settings), sink.wants, choose_tables(patterns))
    names = [name for name in sorted({*there}) if all(one(*name.split(".", 1)) for one in wants)]
    if not names:
        raise NotFoundError(
            f"sink {sink.name} and its source have no table {' '.join(patterns)}",
            hint=f"./tidemark changes deliver {sink.name} names the sink's tables",
            subject=sink.name,
        )
    return names


# the place


def _catch_up(sink: Sink) -> None:
    """Capture what there is now, and no more: a source may change faster than it is captured. A new store, and one that has
    to read tables yet, takes all."""
    disk = sink.source.disk
    is_read = Reader(disk).view.end.seq and not read_state(disk).list_open() and not list_requests(disk)
    with open_resumed(resume_source(sink.source)) as server:
        end, login = require_end(server), server.pin_login()
    if is_read:
        _capture(sink, end, login)
    else:
        _capture(sink)


def _capture(sink: Sink, until: FilePosition | None = None, login: SourceSettings | None = None) -> bool:
    """Capture what there is, up to a place of a server. Returns whether it was done here: else another process is at it."""
    try:
        point = f"{until.file}:{until.position}" if until else ""
        capture_source(sink.source, Capture(until=point, leaves_refused=True, login=login))
    except LeaseHeldError:
        return False
    return True


def _bring_store_to(sink: Sink, place: FilePosition, tables: Tables) -> int:
    """Have the store hold all changes before a place of the server, by the logs of that server. Returns the number of the
    first transaction that is not before it. RetryableError: the store goes on with logs of another server."""
    point, login = f"{place.file}:{place.position}", tables.server.pin_login()
    gtids = tables.server.read_gtids()
    begun = time.monotonic()
    while not _has(sink, place, gtids) and not _capture(sink, place, login):
        if time.monotonic() - begun > WAIT_SECONDS:
            raise RetryableError(
                f"the capture of {sink.source.name} that is at work has not come to {point} in {WAIT_SECONDS:g} s",
                hint=f"./tidemark changes show {sink.source.name} says how far it is",
                subject=sink.source.name,
            )
        time.sleep(_ASK_SECONDS)
    reader = open_whole(sink.source.disk)
    if _is_from(reader, place, login):
        return points.number_of_point(reader, point)
    if tables.server.is_maria:  # the set at the place, not that of now
        found = tables.server.ask("SELECT BINLOG_GTID_POS(%s, %s) AS gtids", place.file, place.position)
        gtids = str(found[0]["gtids"] or "")
    stored, there = parse_gtids(reader.view.gtids), parse_gtids(gtids)
    if stored and there and list_missing(stored, there) == list_missing(there, stored) == "":
        return reader.view.end.seq + 1
    raise RetryableError(
        f"the snapshot is of {tables.server.name}, and the store of {sink.source.name} goes on with the logs of another"
        " server: where it stands in the store is not known",
        hint="run it again; where another process captures, when both servers have the same transactions",
        subject=tables.server.name,
    )


def _is_from(reader: Reader, place: FilePosition, login: SourceSettings) -> bool:
    """Whether a server's place is in the logs that a store is from now: another server has logs of the same names."""
    origin = read_origin(reader.disk)
    logs = origin.changes.get(reader.view.end.info.change_id) if origin else None
    if logs is None:
        return False
    return logs.may_be(place.file, Head.of(read_first_event(login, place.file)))


def _has(sink: Sink, place: FilePosition, gtids: str) -> bool:
    """Whether a store has all before a place: all GTIDs of the server, or, where it has none, it ends behind it."""
    end = find_end(sink.source.disk)
    if end is None:
        return False
    wanted = parse_gtids(gtids)
    if isinstance(wanted, MysqlGtidSet) and isinstance(end.gtids, MysqlGtidSet):
        return end.gtids >= wanted
    if isinstance(wanted, MariaGtidPosition) and isinstance(end.gtids, MariaGtidPosition):
        return end.gtids >= wanted
    return (number_of(end.position.file), end.position.position) >= (number_of(place.file), place.position)


def _pin(sink: Sink, end: int) -> _Pinned | None:
    """The tables of a sink that is exactly before transaction `end`; None: it is not."""
    with sink.app.ledger.read() as connection:
        names = [*read_sink_tables(connection, sink.name)]
    describe = sink.target.describe if sink.settings.kind == DELTA else lambda _name: None
    versions = {name: found for name in names if (found := describe(name)) is not None}
    with sink.app.ledger.read() as connection:  # behind the versions: whoever writes says so before
        batch, places = read_batch(connection, sink.name), read_points(connection, sink.name)
        tables = read_sink_tables(connection, sink.name)
    is_calm = batch is None or batch.is_written
    return _Pinned(end, tables, versions) if is_calm and {point.seq for point in places.values()} == {end} else None


# the rows


@dataclass(frozen=True)
class _Look:
    """Compares the tables of a sink with those of an open snapshot. `seen`: what this has of the transactions before its
    place."""

    sink: Sink
    server: Tables
    pinned: _Pinned
    seen: Seen

    def compare(self, name: str) -> TableVerified:
        state = self.pinned.tables.get(name)
        there = self.server.there.get(name)
        is_versioned = there is not None and there.is_versioned  # no reading mends it
        if state is not None and state.state == STOPPED and not is_versioned:
            return TableVerified(name, why=f"stopped: {state.why}", is_keyless=self._is_keyless(name))
        if name not in self.server.there and self.sink.settings.kind == CATALOG:
            left = count_held(self.sink.target, name)
            return TableVerified(
                name, why=f"the source has it no more, and the files have {left:,} points of it" if left else ""
            )
        if name not in self.server.there:
            types = dict(self.pinned.versions.get(name, (0, {}))[1])
            key = state.key if state is not None else ()
            return TableVerified(name, compare_rows((), self._read_sink(name, key, types), key) if types else Compared())
        with ExitStack() as opened:
            try:
                table = opened.enter_context(self.server.open_table(name))
            except PermanentError as refused:
                return TableVerified(name, why=refused.message, is_left=True, hint=refused.hint)
            try:
                is_catalog = self.sink.settings.kind == CATALOG
                return TableVerified(name, self._compare_files(name, table) if is_catalog else self._compare(name, table))
            except MisfitError as misfit:
                is_keyless = not any(column.key for column in table.shape.columns)
                return TableVerified(name, why=str(misfit), is_keyless=is_keyless)

    def _is_keyless(self, name: str) -> bool:
        """Whether the source has a table now that has no key."""
        if name not in self.server.there:
            return False
        try:
            with self.server.open_table(name) as table:
                return not any(column.key for column in table.shape.columns)
        except PermanentError:
            return False

    def _compare(self, name: str, table: ReadTable) -> Compared:
        there = self.pinned.versions.get(name, (0, {}))[1]
        [shape] = spell_alike([table.shape], there)
        key, united = key_of(shape), unite_types(there, shape)
        if there and (absent := [one for one in key if one not in there]):
            raise MisfitError(f"its key is {', '.join(key)} now, and the sink has no column {', '.join(absent)}")
        types = {column.name: united[column.name] for column in shape.columns}
        numbers = {one for one in key if not (pa.types.is_string(types[one]) or pa.types.is_binary(types[one]))}
        skip = self._find_uncertain(table.shape, [types[name] for name in key])
        read = self._read_source(table, numbers)
        source = (cast_rows(shape, rows.batch, types) for rows in read)
        try:
            return compare_rows(source, self._read_sink(name, key, types), key, skip=skip)
        except MisfitError:
            deque(read, maxlen=0)  # the server's answer ends before it is asked for another table
            raise

    def _compare_files(self, name: str, table: ReadTable) -> Compared:
        files = self.sink.target
        shape = files.spell(name, table.shape)
        key = key_of(shape)
        layout = choose_layout(shape, {}, files.columns_of(name))
        types = types_held(layout, shape)
        held = read_held(files, layout, shape)
        numbers = {one for one in key if not pa.types.is_string(types[one])}
        skip = self._find_uncertain(table.shape, [types[name] for name in key])
        read = self._read_source(table, numbers)
        source = (keep_with_points(cast_rows(shape, rows.batch, types), layout) for rows in read)
        try:
            return compare_rows(source, held.to_batches(), key, skip=skip)
        except MisfitError:
            deque(read, maxlen=0)  # as above
            raise

    def _read_source(self, table: ReadTable, numbers: Collection[str]) -> Iterator[Rows]:
        """The rows of a table in the order of its key. `numbers`: columns that sort by value, as the sink writes them."""
        asked, lower = key_of(table.shape), {name.lower() for name in numbers}
        return self.server.read_sorted(table, asked, {name for name in asked if name.lower() in lower})

    def _read_sink(self, name: str, key: tuple[str, ...], types: Mapping[str, Any]) -> Iterator[Any]:
        """The rows of a table as the sink has them, in the types in which they are compared."""
        if name not in self.pinned.versions:
            return
        version = self.pinned.versions[name][0]
        for batch in self.sink.target.read(name, key, tuple(types), version=version):
            given = {column: batch.column(column) for column in batch.schema.names}
            yield pa.record_batch(cast_columns(given, types, batch.num_rows), names=[*types])

    def _find_uncertain(self, shape: Shape, types: Sequence[Any]) -> frozenset[Key]:
        """Keys that changed while the snapshot was opened: it may have their rows as before, or as behind it. `types`: of
        the key's columns."""
        if self.seen is None:
            return frozenset()
        places = [place for place, column in enumerate(shape.columns) if column.key]
        found = find_changed(open_whole(self.sink.source.disk), shape, places, self.seen, end=self.pinned.end)
        if found is None:
            raise RetryableError(
                f"what changed in {shape.database}.{shape.table} while the snapshot was opened is not known",
                hint="run it again",
                subject=f"{shape.database}.{shape.table}",
            )
        stored = shape.arrow_schema()
        columns = {
            f"a{place}": pa.array([one[number] for one in found], stored.field(f"a{place}").type)
            for number, place in enumerate(places)
        }
        cast = cast_columns(columns, dict(zip(columns, types, strict=True)), len(found))
        return frozenset(zip(*(column.to_pylist() for column in cast), strict=True))
