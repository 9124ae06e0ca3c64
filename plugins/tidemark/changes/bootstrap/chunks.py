"""A chunk of a table: rows as a consistent snapshot has them, and where that stands in the server's log.

MariaDB tells the place of a snapshot (`binlog_snapshot_file`, `binlog_snapshot_position`): the changes before it are in the
snapshot, those behind it are not. A position that is asked for beside a SELECT proves nothing, for a transaction is in the
log before a SELECT sees it. Engines without snapshots write to the log before they unlock a table; so where the log ends
while a table is locked is the place of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.changes.bootstrap.state import Table
from tidemark.changes.bootstrap.tables import Name, ReadTable, list_tables, read_charsets, read_table
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.store.model import Rows
from tidemark.errors import PermanentError

if TYPE_CHECKING:
    from tidemark.changes.connection.results import Values

UNKNOWN = -1
"""Rows of a chunk that are counted when they are read."""
CHUNK_ROWS, CHUNK_BYTES = 1 << 15, 8 << 20
_SESSION = (
    *("time_zone = '+00:00'", "sql_mode = ''", "TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
    "character_set_results = NULL",  # as they are stored
    *("net_write_timeout = 3600", "wait_timeout = 86400"),  # a capture goes on in between
)
_DEFINITION_CHANGED = "(1412)"
_TRIES = 5


@dataclass(frozen=True)
class Chunk:
    """Rows of a table as they were at `place` of the log; `rows` of them, or UNKNOWN. `records` are read once.

    `is_first`: nothing of the table counts that was read before. `last`: the highest key; none: there are no more rows.
    """

    place: FilePosition
    table: ReadTable
    records: Iterable[Rows]
    rows: int
    is_first: bool
    last: tuple[bytes, ...] = ()


class Tables:
    """The tables of a server, to be read. The server is the caller's; nothing else asks it meanwhile."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.there = list_readable(server)
        for setting in _SESSION:
            server.ask(f"SET SESSION {setting}")
        self._charsets = read_charsets(server)

    @contextmanager
    def open_chunk(self, name: str, known: Table, most_rows: int = CHUNK_ROWS) -> Iterator[Chunk]:
        """The next chunk of a table. The rows of one without a key come while this is open, and all of them.

        PermanentError: the table cannot be read.
        """
        for left in reversed(range(_TRIES)):
            opened = _open_snapshot(self.server) if self.there[name].has_snapshot else _lock(self.server, self.there[name])
            with opened as place:
                try:
                    table = self._look_at(name)
                except PermanentError as changed:  # behind the snapshot
                    if left and _DEFINITION_CHANGED in changed.message:
                        continue
                    raise
                if not table.key:
                    yield Chunk(place, table, self._stream(table), UNKNOWN, is_first=True)
                    return
                chunk = self._read(place, table, known, most_rows)
            yield chunk  # the table is free for changes of its definition
            return

    def _look_at(self, name: str) -> ReadTable:
        self.server.ask(f"SELECT 1 FROM {self.there[name].quoted} LIMIT 1")  # now its definition stays
        return read_table(self.server, self.there[name], self._charsets)

    def _read(self, place: FilePosition, table: ReadTable, known: Table, most_rows: int) -> Chunk:
        from tidemark.changes.connection.results import ask_values

        goes_on = known.chunks > 0 and known.key == table.describe_key()
        limit = max(1, min(most_rows, CHUNK_BYTES // max(1, table.row_bytes)))
        after = tuple(map(bytes.fromhex, known.last)) if goes_on else ()
        found = list(ask_values(self.server, table.select(after, limit)))
        rows = sum(values.rows for values in found)
        last = _find_key(found[-1], table) if rows == limit else ()
        return Chunk(place, table, _convert(table, found), rows, not goes_on, last)

    def _stream(self, table: ReadTable) -> Iterator[Rows]:
        from tidemark.changes.connection.results import ask_values

        yield from _convert(table, ask_values(self.server, table.select()))


def can_bootstrap(server: Server) -> bool:
    """Whether a server tells where a snapshot stands in its log."""
    return server.is_maria


def list_readable(server: Server) -> dict[str, Name]:
    """What can be read, by `database.table`. PermanentError: nothing of this server."""
    if not can_bootstrap(server):
        raise PermanentError(f"{server.name} is no MariaDB: a bootstrap reads from MariaDB alone", subject=server.name)
    return list_tables(server)


def _convert(table: ReadTable, found: Iterable[Values]) -> Iterator[Rows]:
    from tidemark.changes.bootstrap.rows import make_rows  # it imports Arrow

    for values in found:
        yield from make_rows(table, values)


def _find_key(values: Values, table: ReadTable) -> tuple[bytes, ...]:
    """The key of the last row."""
    return tuple(values.value(number, values.rows - 1) or b"" for number in table.key)


@contextmanager
def _lock(server: Server, name: Name) -> Iterator[FilePosition]:
    """Nobody writes to a table, and where its rows stand in the log. Others read it meanwhile."""
    server.ask(f"LOCK TABLES {name.quoted} READ")
    try:
        end = server.ask("SHOW MASTER STATUS")[0]
        yield FilePosition(str(end["File"]), int(end["Position"]))
    finally:
        server.ask("UNLOCK TABLES")


@contextmanager
def _open_snapshot(server: Server) -> Iterator[FilePosition]:
    """A consistent snapshot, and where it stands in the log."""
    server.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    pairs = (map(str, row.values()) for row in server.ask("SHOW STATUS LIKE 'binlog_snapshot_%'"))
    lowered = {name.lower(): value for name, value in pairs}
    if not lowered.get("binlog_snapshot_file"):
        raise PermanentError(f"{server.name} does not say where a snapshot stands in its log", subject=server.name)
    yield FilePosition(lowered["binlog_snapshot_file"], int(lowered["binlog_snapshot_position"]))
    server.ask("ROLLBACK")
