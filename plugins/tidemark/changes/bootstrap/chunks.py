"""A chunk of a table: rows as a consistent snapshot has them, and where that stands in the server's log.

MariaDB tells the place of a snapshot (`binlog_snapshot_file`, `binlog_snapshot_position`): the changes before it are in
the snapshot, those behind it are not. But XA COMMIT is in its log before the engine commits, outside of that order, so
the snapshot may lack XA transactions of before its place (`Unsettled`). A position that is asked for beside a SELECT
proves nothing, for a transaction is in the log before a SELECT sees it: at MySQL the changes that lie in between are told
apart by GTID. What may be in a snapshot or not, the store tells (`between`). Engines without snapshots write to the log
before they unlock a table; so where the log ends while a table is locked is the place of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.changes.binlog.events import XaId
from tidemark.changes.binlog.gtid_sets import MysqlGtidSet
from tidemark.changes.bootstrap.state import Table
from tidemark.changes.bootstrap.tables import Name, ReadTable, list_tables, read_charsets, read_table
from tidemark.changes.capture.statements import name_xa
from tidemark.changes.connection.facts import status_question
from tidemark.changes.connection.login import Server
from tidemark.changes.connection.model import FilePosition
from tidemark.changes.store.model import Rows
from tidemark.errors import PermanentError, RetryableError

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
_SORTED_BYTES = 16_384
"""More than a key has in UTF-8; servers order by the first 1024 bytes unless told otherwise."""


@dataclass(frozen=True)
class Unsettled:
    """XA transactions of MariaDB that a snapshot may lack, though they were committed before its place: those committed
    from `since` on, and those of `prepared`, which the server listed as prepared behind `since`.

    MariaDB 10.11 and 11.8 write XA COMMIT to the log, then commit in the engine, then take the transaction off that list.
    """

    since: FilePosition
    prepared: frozenset[str] = frozenset()

    def behind(self, former: Unsettled) -> Unsettled:
        """The same for a snapshot that was opened later: one that was not listed then began behind `former.since`."""
        return Unsettled(former.since, former.prepared & self.prepared)


Seen = MysqlGtidSet | Unsettled | None
"""What a snapshot has of the transactions before its place: those of a set for certain; all but some of XA; None: all."""
_Opened = tuple[FilePosition | None, Seen]
"""Where a snapshot stands in the log, if the server tells it."""


@dataclass(frozen=True)
class Chunk:
    """Rows of a table as they were at `place` of the log; `rows` of them, or UNKNOWN. `records` are read once.

    `is_first`: nothing of the table counts that was read before. `last`: the highest key; none: there are no more rows.
    `looked`: where the log ended when the table was found; None: not behind `place`.
    """

    place: FilePosition
    table: ReadTable
    records: Iterable[Rows]
    rows: int
    is_first: bool
    last: tuple[bytes, ...] = ()
    seen: Seen = None
    looked: FilePosition | None = None


class Tables:
    """The tables of a server, to be read. The server is the caller's; nothing else asks it meanwhile."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.there = list_tables(server)
        self._open_snapshot = _open_snapshot if server.is_maria else _open_between
        self._has_snapshots = server.is_maria or server.read_variables("gtid_mode").get("gtid_mode") == "ON"
        for setting in _SESSION:
            server.ask(f"SET SESSION {setting}")
        self._charsets = read_charsets(server)

    def list_again(self) -> None:
        """See which tables are there now."""
        self.there = list_tables(self.server)

    @contextmanager
    def open_chunk(self, name: str, known: Table, most_rows: int = CHUNK_ROWS) -> Iterator[Chunk]:
        """The next chunk of a table. The rows of one without a key come while this is open, and all of them.

        PermanentError: the table cannot be read.
        """
        for left in reversed(range(_TRIES)):
            is_locked = not (self._has_snapshots and self.there[name].has_snapshot)
            with _lock(self.server, self.there[name]) if is_locked else self._open_snapshot(self.server) as opened:
                try:
                    table = self.look_at(name)
                except PermanentError as changed:  # behind the snapshot
                    if left and _DEFINITION_CHANGED in changed.message:
                        continue
                    raise
                told, seen = opened
                end = require_end(self.server)
                place = told or end
                looked = end if told else None
                if not table.key:
                    yield Chunk(place, table, self._stream(table), UNKNOWN, is_first=True, seen=seen, looked=looked)
                    return
                chunk = replace(self._read(place, table, known, most_rows), seen=seen, looked=looked)
            yield chunk  # the table is free for changes of its definition
            return

    @contextmanager
    def open_snapshot(self) -> Iterator[tuple[FilePosition, Seen]]:
        """A consistent snapshot of all tables, the place of the log behind it, and what it has of what is before that.
        PermanentError: the server has none whose place is known."""
        if not self._has_snapshots:
            raise PermanentError(
                f"{self.server.name} has no GTIDs: where a snapshot stands in its log is not known", subject=self.server.name
            )
        self.server.ask(f"SET SESSION max_sort_length = {_SORTED_BYTES}")
        with self._open_snapshot(self.server) as (place, seen):
            yield place or require_end(self.server), seen

    @contextmanager
    def open_table(self, name: str) -> Iterator[ReadTable]:
        """A table as an open snapshot has it. Behind this, its definition may change again.

        RetryableError: it changed behind the snapshot. PermanentError: the table cannot be read.
        """
        if not self.there[name].has_snapshot:
            hint = f"ALTER TABLE {self.there[name].quoted} ENGINE = InnoDB there, or leave it out of tables of the sink"
            raise PermanentError(f"{name} is not read: its engine has no snapshots", hint=hint, subject=name)
        self.server.ask("SAVEPOINT table_begins")
        try:
            table = self.look_at(name)
        except PermanentError as refused:
            if _DEFINITION_CHANGED in refused.message:
                raise RetryableError(f"{name} was defined anew behind the snapshot", hint="run it again") from refused
            raise
        yield table
        self.server.ask("ROLLBACK TO SAVEPOINT table_begins")  # which lets its definition go

    def read_sorted(self, table: ReadTable, key: Sequence[str], numbers: Collection[str]) -> Iterator[Rows]:
        """All rows of a table, as `ReadTable.select_sorted` orders them."""
        from tidemark.changes.connection.results import ask_values

        return _convert(table, ask_values(self.server, table.select_sorted(key, numbers)))

    def look_at(self, name: str) -> ReadTable:
        """A table of the catalog. Its definition stays until the transaction ends."""
        self.server.ask(f"SELECT 1 FROM {self.there[name].quoted} LIMIT 1")  # now its definition stays
        self.server.ask(f"SELECT * FROM {self.there[name].quoted} LIMIT 0")  # the catalog hides what the login may not read
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


def _convert(table: ReadTable, found: Iterable[Values]) -> Iterator[Rows]:
    from tidemark.changes.bootstrap.rows import make_rows  # it imports Arrow

    for values in found:
        yield from make_rows(table, values)


def _find_key(values: Values, table: ReadTable) -> tuple[bytes, ...]:
    """The key of the last row."""
    return tuple(values.value(number, values.rows - 1) or b"" for number in table.key)


@contextmanager
def _lock(server: Server, name: Name) -> Iterator[_Opened]:
    """Nobody writes to a table, and where its rows stand in the log. Others read it meanwhile."""
    server.ask(f"LOCK TABLES {name.quoted} READ")
    try:
        yield require_end(server), None
    finally:
        server.ask("UNLOCK TABLES")


def ask_end(server: Server) -> FilePosition | None:
    """Where the newest log ends; None where the server writes none."""
    found = server.ask(status_question(server))
    return FilePosition(str(found[0]["File"]), int(found[0]["Position"])) if found else None


def require_end(server: Server) -> FilePosition:
    """Where the newest log ends. PermanentError: the server writes none."""
    end = ask_end(server)
    if end is None:
        raise PermanentError(f"{server.name} writes no binary log", hint="set log_bin at the server", subject=server.name)
    return end


@contextmanager
def _open_between(server: Server) -> Iterator[_Opened]:
    """A consistent snapshot of MySQL, and transactions that it has for certain."""
    seen = MysqlGtidSet.parse(str(server.ask("SELECT @@GLOBAL.gtid_executed AS seen")[0]["seen"]))
    server.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    yield None, seen
    server.ask("ROLLBACK")


@contextmanager
def _open_snapshot(server: Server) -> Iterator[_Opened]:
    """A consistent snapshot of MariaDB, where it stands in the log, and what of XA it may lack."""
    since = _ask_place(server, "SHOW GLOBAL STATUS")  # which needs no right, as SHOW MASTER STATUS would
    prepared = list_prepared(server)
    server.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    place = _ask_place(server, "SHOW STATUS")
    yield place, Unsettled(since, prepared) if prepared or place != since else None
    server.ask("ROLLBACK")


def _ask_place(server: Server, question: str) -> FilePosition:
    """Where the open snapshot stands in the log of a MariaDB, or, while none is open, where its log ends."""
    pairs = (map(str, row.values()) for row in server.ask(f"{question} LIKE 'binlog_snapshot_%'"))
    lowered = {name.lower(): value for name, value in pairs}
    if not lowered.get("binlog_snapshot_file"):
        raise PermanentError(f"{server.name} does not say where a snapshot stands in its log", subject=server.name)
    return FilePosition(lowered["binlog_snapshot_file"], int(lowered["binlog_snapshot_position"]))


def list_prepared(server: Server) -> frozenset[str]:
    """The names of the XA transactions that a MariaDB has prepared, or is about to commit."""
    found = set()
    for row in server.ask("XA RECOVER"):
        data, size = row["data"], int(row["gtrid_length"])
        data = data.encode() if isinstance(data, str) else bytes(data)
        found.add(name_xa(XaId(int(row["formatID"]), data[:size], data[size:])))
    return frozenset(found)
