"""A table's rows into the store, chunk by chunk, each between the changes where its snapshot stands in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tidemark.changes.bootstrap.state import (
    BEGIN,
    DONE,
    END,
    GONE,
    READING,
    REFUSED,
    WAITING,
    Intended,
    State,
    Table,
    read_state,
    settle,
    write_state,
)
from tidemark.changes.bootstrap.tables import ReadTable, list_tables, quote_name, read_table
from tidemark.changes.capture.identity import number_of, origin_of, write_origin
from tidemark.changes.capture.run import Captured, Job, capture_into
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.points import parse_point
from tidemark.changes.store.model import BinlogInfo, Mark, Op, Record, Row, Rows, Transaction
from tidemark.changes.store.write import Writer
from tidemark.errors import PermanentError
from tidemark.progress import Progress, Tick, ignore_progress

CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Chunk:
    """Rows of a table as they were at `place` of the log. `last`: the highest key; None: there are no more rows."""

    place: FilePosition
    rows: tuple[Row, ...]
    last: int | None


@dataclass
class Bootstrapped:
    """What a bootstrap did: `captured` with it, tables that are `done`, and the first that is `refused`, with its error."""

    captured: Captured
    done: list[str]
    refused: PermanentError | None = None


def bootstrap_tables(
    job: Job, writer: Writer, open_server: Callable[[], Server], progress: Progress = ignore_progress
) -> Bootstrapped:
    """Append the rows of the tables that `bootstrap.json` has as not read yet, and the changes up to each chunk of them.

    `job` has an end: it does not follow. A table goes on behind the last chunk that the store holds. One that cannot be
    read is told as refused, and the others are read. Raises what the capture raises, and UnreachableError.
    """
    made = Bootstrapped(Captured(writer.state, writer.state), [])
    state = settle(job.disk, found := read_state(job.disk))
    if not state.list_open():
        if state != found:
            write_state(job.disk, state)
    else:
        with open_server() as server:
            _Bootstrap(job, writer, server, progress).read_all(state, made)
    made.captured.last = writer.durable
    return made


class _Bootstrap:
    def __init__(self, job: Job, writer: Writer, server: Server, progress: Progress) -> None:
        self.job, self.writer, self.server, self.progress = job, writer, server, progress

    def read_all(self, state: State, made: Bootstrapped) -> None:
        there = list_readable(self.server)
        for name in state.list_open():
            table = state.tables[name]
            if name not in there:
                state = state.with_table(name, replace(table, state=GONE))
                continue
            if table.state == REFUSED:
                table = replace(table, state=READING if table.chunks else WAITING, why="")
            while table.state != DONE:
                try:
                    chunk, shape = read_chunk(self.server, there[name], table.last)
                except PermanentError as refused:
                    made.refused = made.refused or refused
                    state = state.with_table(name, replace(table, state=REFUSED, why=refused.message))
                    break
                self._capture_up_to(chunk.place, made)
                table = Table(
                    DONE if chunk.last is None else READING, table.chunks + 1, table.rows + len(chunk.rows), chunk.last
                )
                state = self._append(state, name, table, chunk, shape)
                made.captured.rows += len(chunk.rows)
                self.progress(Tick(f"bootstrap of {name}", done=table.rows))
            else:
                made.done.append(name)
        write_state(self.job.disk, state)

    def _capture_up_to(self, place: FilePosition, made: Bootstrapped) -> None:
        until = parse_point(f"{place.file}:{place.position}")
        part = capture_into(replace(self.job, until=until, start=None), self.writer, self.progress)
        made.captured.rows += part.rows
        made.captured.bytes += part.bytes

    def _append(self, state: State, name: str, table: Table, chunk: Chunk, shape: ReadTable) -> State:
        writer, disk = self.writer, self.job.disk
        head = _make_head(self.job, self.server, writer, chunk)
        write_state(disk, replace(state, intended=Intended(name, writer.state.seq + 1, table)))
        # CRASH WINDOW: a chunk that is intended and does not stand: it is read anew, and intended with another number.
        writer.append(replace(head, records=tuple(_make_records(shape, chunk, name, table))), writer.gtids)
        writer.sync()
        # CRASH WINDOW: the chunk stands, and is still told as intended: the store says that it stands.
        return state.with_table(name, table)


def can_bootstrap(server: Server) -> bool:
    """Whether a server tells where a snapshot stands in its log."""
    return server.is_maria


def list_readable(server: Server) -> dict[str, tuple[str, str]]:
    """`database.table` → (database, table) of what can be read. PermanentError: nothing of this server."""
    if not can_bootstrap(server):
        raise PermanentError(f"{server.name} is no MariaDB: a bootstrap reads from MariaDB alone", subject=server.name)
    return list_tables(server)


def _make_head(job: Job, server: Server, writer: Writer, chunk: Chunk) -> Transaction:
    """A chunk's transaction without its rows: at the place of the one before it.

    Where the logs have none yet it stands at the head of its log, before all that will come there.
    """
    if writer.state.seq:
        return Transaction(writer.state.info, "", writer.state.gtid_offset)
    # CRASH WINDOW: the origin of a store without a transaction; the next capture writes its own.
    write_origin(job.disk, origin_of(chunk.place.file))
    facts = server.ask("SELECT @@server_id AS id, UNIX_TIMESTAMP() AS clock")[0]
    head = FilePosition(chunk.place.file)
    clock = int(facts["clock"]) * 1_000_000
    info = BinlogInfo(job.rules.change_id, int(facts["id"]), number_of(head.file), head.position, timestamp=clock)
    return Transaction(info)


def read_chunk(server: Server, name: tuple[str, str], after: int | None) -> tuple[Chunk, ReadTable]:
    """The next rows of a table behind a key, in a snapshot. A table without a key of one integer is one chunk."""
    quoted = ".".join(map(quote_name, name))
    with _snapshot(server) as place:
        server.ask(f"SELECT 1 FROM {quoted} LIMIT 0")  # from here on no definition of it changes
        table = read_table(server, *name)
        key = table.key
        wanted = ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(table.select))
        question = f"SELECT {wanted} FROM {quoted}"
        if key is not None:
            question += f" WHERE {quote_name(key)} > {after}" if after is not None else ""
            question += f" ORDER BY {quote_name(key)} LIMIT {CHUNK_ROWS}"
        found = [tuple(row.values()) for row in server.ask(question)]
    rows = tuple(
        Row(Op.READ, None, tuple(convert(value) for convert, value in zip(table.convert, values, strict=True)))
        for values in found
    )
    last = None
    if key is not None and len(rows) == CHUNK_ROWS:
        position = next(number for number, column in enumerate(table.shape.columns) if column.key)
        last = int(found[-1][position])
    return Chunk(place, rows, last), table


@contextmanager
def _snapshot(server: Server) -> Iterator[FilePosition]:
    """A consistent snapshot, and where it stands in the log."""
    server.ask("SET SESSION time_zone = '+00:00'")
    server.ask("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    server.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        pairs = (map(str, row.values()) for row in server.ask("SHOW STATUS LIKE 'binlog_snapshot_%'"))
        lowered = {name.lower(): value for name, value in pairs}
        if not lowered.get("binlog_snapshot_file"):
            raise PermanentError(f"{server.name} does not say where a snapshot stands in its log", subject=server.name)
        yield FilePosition(lowered["binlog_snapshot_file"], int(lowered["binlog_snapshot_position"]))
    finally:
        server.ask("ROLLBACK")


def _make_records(read: ReadTable, chunk: Chunk, label: str, table: Table) -> Iterator[Record]:
    if table.chunks == 1:
        yield Mark(BEGIN, label)
    if chunk.rows:
        yield Rows.of(read.shape, chunk.rows)
    if chunk.last is None:
        yield Mark(END, label)
