"""A table's rows into the store, chunk by chunk, each between the changes where its snapshot stands in the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tidemark.changes.bootstrap.between import Between
from tidemark.changes.bootstrap.chunks import CHUNK_ROWS, UNKNOWN, Chunk, Tables
from tidemark.changes.bootstrap.requests import list_requests, take_requests
from tidemark.changes.bootstrap.state import (
    BEGIN,
    DONE,
    END,
    GONE,
    READING,
    REFUSED,
    Intended,
    State,
    Table,
    read_state,
    settle,
    write_state,
)
from tidemark.changes.capture.definitions import Catalog
from tidemark.changes.capture.identity import Head, Logs, Origin, number_of, write_origin
from tidemark.changes.capture.run import Captured, Job, capture_into
from tidemark.changes.connection.dump import read_first_event
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.delivery.points import parse_point
from tidemark.changes.store.model import BinlogInfo, Mark, Record, Rows, Transaction
from tidemark.changes.store.write import Writer
from tidemark.changes.trust.answers import read_log_start
from tidemark.errors import PermanentError, RetryableError
from tidemark.progress import Progress, Tick, ignore_progress

_TRIES = 50
"""How often a chunk is read whose rows change while it is opened."""
_PAUSE_SECONDS = 0.1
"""How long it rests before it is read again."""


@dataclass
class Bootstrapped:
    """What a bootstrap did: `captured` with it, tables that are `done`, and the first that is `refused`, with its error."""

    captured: Captured
    done: list[str]
    refused: PermanentError | None = None


@dataclass(frozen=True)
class Pace:
    """How fast tables are read. `rows_a_second` at most; 0: no limit. `chunk_rows`: of a chunk, at most."""

    rows_a_second: int = 0
    chunk_rows: int = CHUNK_ROWS

    @property
    def most_rows(self) -> int:
        return min(self.chunk_rows, self.rows_a_second or self.chunk_rows)

    def wait(self, rows: int, begun: float) -> None:
        """Wait until this many rows may have been read since `begun` (of `time.monotonic`)."""
        if self.rows_a_second:
            time.sleep(max(0.0, begun + rows / self.rows_a_second - time.monotonic()))


def bootstrap_tables(
    job: Job,
    writer: Writer,
    open_server: Callable[[], Server],
    pace: Pace | None = None,
    *,
    pin: Callable[[Job, Server], Job] = lambda job, _: job,
    progress: Progress = ignore_progress,
) -> Bootstrapped:
    """Append the rows of the tables that are asked for and not read yet, and the changes up to each chunk of them.

    What others ask meanwhile is done between two chunks. `job` has an end: it does not follow. A table goes on behind the
    last chunk that the store holds. `pin`: the job, with events of that very server: a chunk's place means nothing in the
    logs of another one of the cluster. One that cannot be read is told as refused, and the others are read. Raises what the
    capture raises, UnreachableError, and RetryableError where events of the server are missing.
    """
    made = Bootstrapped(Captured(writer.state, writer.state), [])
    state = settle(job.disk, found := read_state(job.disk))
    parked = job.rules.catalog.parked if job.rules.catalog else {}
    if not state.list_open() and not list_requests(job.disk) and not parked:
        if state != found:
            write_state(job.disk, state)
    else:
        with open_server() as server:
            _Bootstrap(pin(job, server), writer, Tables(server), pace or Pace(), progress).read_all(state, made)
    made.captured.last = writer.durable
    return made


class _Bootstrap:
    def __init__(self, job: Job, writer: Writer, tables: Tables, pace: Pace, progress: Progress) -> None:
        self.job, self.writer, self.tables, self.pace, self.progress = job, writer, tables, pace, progress
        self.catalog = job.rules.catalog
        self.between = Between(job.disk)
        self.bytes = 0  # of the last chunk

    def read_all(self, state: State, made: Bootstrapped) -> None:
        """Read a chunk after the other. A table that is refused is not tried twice."""
        tried: set[str] = set()
        while True:
            if self.catalog is not None:
                state = self._forget_gone(state, self.catalog).with_parked(self.catalog.parked)
            if list_requests(self.job.disk):
                self.tables.list_again()
                state = take_requests(self.job.disk, state, self.tables.there, self.job.rules.wants)
            left = [name for name in state.list_open() if name not in tried]
            if not left:
                break
            name = next((one for one in left if state.tables[one].state == READING), left[0])
            table = self._read_chunk(state, name, made)
            if table is None:
                continue
            if table.state == DONE:
                made.done.append(name)
            elif table.state != READING:
                tried.add(name)
            state = state.with_table(name, table)
        write_state(self.job.disk, state)

    def _forget_gone(self, state: State, catalog: Catalog) -> State:
        """A parked table that is not there any more cannot be read anew: what it lost is lost."""
        for name in sorted(catalog.parked.keys() - self.tables.there.keys()):
            state = state.with_table(name, Table(GONE))
            write_state(self.job.disk, state)
            # CRASH WINDOW: it is told as gone, and still parked: the next round finds it so again.
            catalog.note_read(name)
        return state

    def _read_chunk(self, state: State, name: str, made: Bootstrapped) -> Table | None:
        """Append the next chunk of a table, and the changes up to it. Returns how far the table is then. None: something is
        asked, which the changes up to it may do where they rename tables."""
        table = state.tables[name]
        if name not in self.tables.there:
            return replace(table, state=GONE)
        for _ in range(_TRIES):
            with ExitStack() as opened:
                begun = time.monotonic()
                try:
                    chunk = opened.enter_context(self.tables.open_chunk(name, table.as_open(), self.pace.most_rows))
                except PermanentError as refused:
                    return _refuse(table, refused, made)
                self._capture_up_to(chunk.place, name, made)
                if list_requests(self.job.disk):
                    return None
                certain = self.between.settle(chunk)
                if certain is not None:
                    after = self._append(state, name, table, certain, begun)
                    made.captured.rows += after.rows - (0 if chunk.is_first else table.rows)
                    made.captured.bytes += self.bytes
                    self.progress(Tick(f"bootstrap of {name}", done=after.rows, things="rows"))
                    return after
            time.sleep(_PAUSE_SECONDS)
        changed = f"{name} was changed, or its definition, at each of {_TRIES} tries to read it"
        return _refuse(
            table, PermanentError(changed, hint="give it a primary key, or try when it rests", subject=name), made
        )

    def _capture_up_to(self, place: FilePosition, name: str, made: Bootstrapped) -> None:
        """Capture the changes before a place. RetryableError where the server's events end before it."""
        until = parse_point(f"{place.file}:{place.position}")
        part = capture_into(replace(self.job, until=until, start=None), self.writer, self.progress)
        made.captured.rows += part.rows
        made.captured.bytes += part.bytes
        end = part.read_to
        if end is not None and (number_of(end.file), end.position) < (number_of(place.file), place.position):
            raise RetryableError(
                f"the server's events ended at {end.file}:{end.position}, before {place.file}:{place.position}, where the"
                f" rows of {name} stand",
                hint="run it again",
                subject=name,
            )

    def _append(self, state: State, name: str, table: Table, chunk: Chunk, begun: float) -> Table:
        """Append a chunk. Returns how far the table is with it."""
        writer = self.writer
        rows = UNKNOWN if chunk.rows == UNKNOWN else (0 if chunk.is_first else table.rows) + chunk.rows
        after = Table(
            READING if chunk.last else DONE,
            1 if chunk.is_first else table.chunks + 1,
            rows,
            chunk.table.describe_key(),
            tuple(value.hex() for value in chunk.last),
            looked=_name_place(writer, chunk.looked),
        )
        head, gtids = _make_head(self.job, self.tables.server, writer, chunk)
        write_state(self.job.disk, replace(state, intended=Intended(name, writer.state.seq + 1, after)))
        if self.catalog and chunk.is_first:
            self.catalog.note_read(name)
        # CRASH WINDOW: a chunk that is intended and does not stand: it is read anew, and intended with another number.
        counted = _Counted(chunk.records, self.pace, begun)
        writer.append_large(head, _make_records(counted, chunk, name), gtids)
        writer.sync()
        # CRASH WINDOW: the chunk stands, and is still told as intended: the store says that it stands.
        self.bytes = counted.bytes
        return replace(after, rows=counted.rows) if rows == UNKNOWN else after


def _name_place(writer: Writer, found: FilePosition | None) -> tuple[int, ...]:
    return (max(1, writer.state.info.change_id), number_of(found.file), found.position) if found else ()


def _refuse(table: Table, refused: PermanentError, made: Bootstrapped) -> Table:
    made.refused = made.refused or refused
    return replace(table, state=REFUSED, why=refused.message)


class _Counted:
    """Records on their way, and the rows and bytes that they had."""

    def __init__(self, records: Iterable[Rows], pace: Pace, begun: float) -> None:
        self.records, self.pace, self.begun = records, pace, begun
        self.rows = self.bytes = 0

    def __iter__(self) -> Iterator[Rows]:
        for record in self.records:
            self.rows += record.count
            self.bytes += record.batch.nbytes
            yield record
            self.pace.wait(self.rows, self.begun)


def _make_head(job: Job, server: Server, writer: Writer, chunk: Chunk) -> tuple[Transaction, str]:
    """A chunk's transaction without its rows, and the GTID set with it: at the place of the one before it.

    Where the logs have none yet it stands at the head of its log, before all that will come there, with the set of what is
    before that log: another server of the cluster can go on from there.
    """
    if writer.state.seq:
        return Transaction(writer.state.info, "", writer.state.gtid_offset), writer.gtids
    number, login = number_of(chunk.place.file), server.pin_login()
    # Nothing else tells this log from another server's of the same name: there is no transaction.
    first, start = read_first_event(login, chunk.place.file), read_log_start(login, chunk.place.file)
    logs = Logs.of(chunk.place.file).with_head(number, Head.of(first))
    # CRASH WINDOW: the origin of a store without a transaction; the next capture writes its own.
    write_origin(job.disk, Origin({job.rules.change_id: logs}))
    facts = server.ask("SELECT @@server_id AS id, UNIX_TIMESTAMP() AS clock")[0]
    head = FilePosition(chunk.place.file)
    clock = int(facts["clock"]) * 1_000_000
    info = BinlogInfo(job.rules.change_id, int(facts["id"]), number, head.position, timestamp=clock)
    gtids = start.gtids if start is not None else None
    return Transaction(info, "", gtids.count() if gtids is not None else 0), "" if gtids is None else str(gtids)


def _make_records(counted: Iterable[Rows], chunk: Chunk, name: str) -> Iterator[Record]:
    if chunk.is_first:
        yield Mark(BEGIN, name)
    yield from counted
    if not chunk.last:
        yield Mark(END, name)
