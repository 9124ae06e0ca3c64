"""A table's rows into the store, chunk by chunk, each between the changes where its snapshot stands in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tidemark.changes.bootstrap.tables import ReadTable, quote_name, read_table
from tidemark.changes.capture.run import Captured, Job, capture_into
from tidemark.changes.connection.login import Server
from tidemark.changes.points import parse_point
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Mark, Op, Record, Row, Rows, Transaction
from tidemark.changes.store.write import Writer
from tidemark.errors import PermanentError
from tidemark.progress import Progress, ignore_progress

BEGIN, END = "bootstrap_begin", "bootstrap_end"
CHUNK_ROWS = 4096
PROGRESS = "bootstrap.json"


@dataclass(frozen=True)
class Chunk:
    """Rows of a table as they were at `place` (`FILE:POS`). `last`: the highest key; None: there are no more rows."""

    place: str
    rows: tuple[Row, ...]
    last: int | None


@dataclass
class Table:
    """How far a table is. A dict of these is what `bootstrap.json` of a store says."""

    state: str = "reading"
    chunks: int = 0
    rows: int = 0
    last: int | None = None


def read_tables(disk: Disk) -> dict[str, Table]:
    """How far each table is; empty for a store without a bootstrap."""
    try:
        return {name: Table(**found) for name, found in json.loads(disk.read(PROGRESS)).items()}
    except FileNotFoundError:
        return {}


def bootstrap_table(job: Job, server: Server, name: tuple[str, str], progress: Progress = ignore_progress) -> Captured:
    """Append a table's rows, and the changes up to each chunk. Goes on behind the last chunk that the store holds."""
    if not server.is_maria:
        raise PermanentError(f"{server.name} is no MariaDB: a bootstrap reads from MariaDB alone", subject=server.name)
    label = ".".join(name)
    with Writer(job.disk, job.fence, job.limits) as writer:
        first = writer.state
        tables = read_tables(job.disk)
        table = tables.get(label, Table())
        done = Captured(first, first)
        while table.state != "done":
            chunk, shape = read_chunk(server, name, table.last)
            part = capture_into(replace(job, until=parse_point(chunk.place)), writer, progress)
            if not writer.state.seq:
                raise PermanentError(f"the logs of {server.name} hold no transaction yet", subject=server.name)
            table = Table(
                "done" if chunk.last is None else "reading",
                table.chunks + 1,
                table.rows + len(chunk.rows),
                chunk.last,
            )
            records = list(_make_records(shape, chunk, label, table))
            writer.append(Transaction(writer.state.info, "", writer.state.gtid_offset, tuple(records)), writer.gtids)
            writer.sync()
            # CRASH WINDOW: the chunk is durable, and its progress is not: the chunk is read and appended once more, with
            # the rows as they are then, at the place where they are so.
            tables[label] = table
            job.disk.publish(PROGRESS, json.dumps({one: vars(found) for one, found in tables.items()}).encode())
            done.rows += part.rows + len(chunk.rows)
            done.bytes += part.bytes
        done.last = writer.durable
        return done


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
def _snapshot(server: Server) -> Iterator[str]:
    """A consistent snapshot, and where it stands in the log, as `FILE:POS`."""
    server.ask("SET SESSION time_zone = '+00:00'")
    server.ask("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    server.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        pairs = (map(str, row.values()) for row in server.ask("SHOW STATUS LIKE 'binlog_snapshot_%'"))
        lowered = {name.lower(): value for name, value in pairs}
        if not lowered.get("binlog_snapshot_file"):
            raise PermanentError(f"{server.name} does not say where a snapshot stands in its log", subject=server.name)
        yield f"{lowered['binlog_snapshot_file']}:{lowered['binlog_snapshot_position']}"
    finally:
        server.ask("ROLLBACK")


def _make_records(read: ReadTable, chunk: Chunk, label: str, table: Table) -> Iterator[Record]:
    if table.chunks == 1:
        yield Mark(BEGIN, label)
    if chunk.rows:
        yield Rows.of(read.shape, chunk.rows)
    if chunk.last is None:
        yield Mark(END, label)
