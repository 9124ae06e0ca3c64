"""A table's rows into the store, chunk by chunk, each between the changes where its snapshot stands in the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tidemark.changes.bootstrap.state import BEGIN, DONE, END, READING, Intended, Table, read_state, settle, write_state
from tidemark.changes.bootstrap.tables import ReadTable, quote_name, read_table
from tidemark.changes.capture.identity import number_of, origin_of, write_origin
from tidemark.changes.capture.run import Captured, Job, capture_into
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.points import parse_point
from tidemark.changes.store.model import BinlogInfo, Mark, Op, Record, Row, Rows, Transaction
from tidemark.changes.store.write import Writer
from tidemark.errors import PermanentError
from tidemark.progress import Progress, ignore_progress

CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Chunk:
    """Rows of a table as they were at `place` of the log. `last`: the highest key; None: there are no more rows."""

    place: FilePosition
    rows: tuple[Row, ...]
    last: int | None


def bootstrap_table(job: Job, server: Server, name: tuple[str, str], progress: Progress = ignore_progress) -> Captured:
    """Append a table's rows, and the changes up to each chunk. Goes on behind the last chunk that the store holds."""
    if not server.is_maria:
        raise PermanentError(f"{server.name} is no MariaDB: a bootstrap reads from MariaDB alone", subject=server.name)
    label = ".".join(name)
    with Writer(job.disk, job.fence, job.limits) as writer:
        done = Captured(writer.state, writer.state)
        state = settle(job.disk, read_state(job.disk))
        table = state.tables.get(label, Table())
        while table.state != DONE:
            chunk, shape = read_chunk(server, name, table.last)
            part = capture_into(
                replace(job, until=parse_point(f"{chunk.place.file}:{chunk.place.position}")), writer, progress
            )
            table = Table(
                DONE if chunk.last is None else READING, table.chunks + 1, table.rows + len(chunk.rows), chunk.last
            )
            head = _make_head(job, server, writer, chunk)
            write_state(job.disk, replace(state, intended=Intended(label, writer.state.seq + 1, table)))
            # CRASH WINDOW: a chunk that is intended and does not stand: it is read anew, and intended with another number.
            writer.append(replace(head, records=tuple(_make_records(shape, chunk, label, table))), writer.gtids)
            writer.sync()
            # CRASH WINDOW: the chunk stands, and is still told as intended: the store says that it stands.
            state = state.with_table(label, table)
            done.rows += part.rows + len(chunk.rows)
            done.bytes += part.bytes
        write_state(job.disk, state)
        done.last = writer.durable
        return done


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
