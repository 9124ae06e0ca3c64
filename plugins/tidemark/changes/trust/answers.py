"""What a server and its tables say, read once, as one value. Nothing is changed at the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemark.changes.binlog.events import Gtid, MariaGtid
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.binlog.reader import EventDecoder
from tidemark.changes.capture.identity import Head
from tidemark.changes.connection.dump import open_dump, read_first_event
from tidemark.changes.connection.facts import ServerFacts, read_facts
from tidemark.changes.connection.login import Server, open_server
from tidemark.changes.connection.model import FilePosition, SourceSettings
from tidemark.changes.trust.patterns import ask_names
from tidemark.errors import PermissionDeniedError

Gtids = MysqlGtidSet | MariaGtidPosition


@dataclass(frozen=True)
class Cascade:
    """A foreign key whose actions change rows of `table` on their own. `rule`: such as ON DELETE CASCADE."""

    table: str
    name: str
    rule: str


@dataclass(frozen=True)
class LogStart:
    """Where a binary log begins. `time`: seconds since 1970, 0 where it is not told. `gtids`: of what is before it."""

    file: str
    time: float
    gtids: Gtids | None


@dataclass(frozen=True)
class StoreEnd:
    """Where a store ends: the log of its last transaction, and the GTID set with it. `head`: of that log, if known."""

    position: FilePosition
    gtids: Gtids | None
    head: Head | None = None


@dataclass(frozen=True)
class Answers:
    """Everything that is judged. Tables are the wanted ones, as `database.table`; None: they may not be asked for."""

    address: str
    facts: ServerFacts
    time: float
    """Our own clock when the server was asked for its."""
    tables: tuple[str, ...]
    without_key: tuple[str, ...]
    without_snapshot: tuple[str, ...]
    """Tables of an engine without consistent snapshots: a bootstrap locks one of them while it reads a chunk of it."""
    cascades: tuple[Cascade, ...]
    oldest: LogStart | None
    """The first of the logs that `find_rest` gives."""
    following: LogStart | None
    """The log behind the one in which the store ends: it began when that one was closed."""
    sequences: tuple[str, ...] = ()
    """Sequences of MariaDB: a log has what they hold as rows of a table without a key."""
    names: tuple[str, ...] = ()
    """All tables and sequences there, also those that are not wanted."""
    is_other_log: bool = False
    """The log that has the name of the one in which the store ends was begun at another time, or by another server."""


_SYSTEM = "('mysql', 'information_schema', 'performance_schema', 'sys')"
_TABLES = (
    "SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.TABLES"
    f" WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN {_SYSTEM}"
)
_SEQUENCES = _TABLES.replace("'BASE TABLE'", "'SEQUENCE'")
LOCKED_ENGINES = "'Aria', 'MyISAM', 'MEMORY', 'ARCHIVE'"
"""Engines without consistent snapshots, as SQL: their tables are locked to be read."""
_WITHOUT_SNAPSHOT = f"{_TABLES} AND ENGINE IN ({LOCKED_ENGINES})"
_KEYS = (
    "SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab, INDEX_NAME AS idx FROM information_schema.STATISTICS"
    f" WHERE NON_UNIQUE = 0 AND TABLE_SCHEMA NOT IN {_SYSTEM}"
    " GROUP BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME HAVING MAX(NULLABLE = 'YES') = 0"
)
_ACTIONS = "('CASCADE', 'SET NULL', 'SET DEFAULT')"
_CASCADES = (
    "SELECT CONSTRAINT_SCHEMA AS db, TABLE_NAME AS tab, CONSTRAINT_NAME AS name, DELETE_RULE AS del, UPDATE_RULE AS upd"
    f" FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE DELETE_RULE IN {_ACTIONS} OR UPDATE_RULE IN {_ACTIONS}"
)


def ask_server(
    login: SourceSettings, wants: Callable[[str, str], bool], end: StoreEnd | None, clock: Callable[[], float] = time.time
) -> Answers:
    """Ask a source's server, and read the heads of two of its logs. Raises as `open_server` and `Server.ask`."""
    with open_server(login) as server:
        before = clock()
        facts = read_facts(server)
        now = (before + clock()) / 2
        tables = set(_ask_tables(server, _TABLES, wants))
        keyed = set(_ask_tables(server, _KEYS, wants))
        locked = _ask_tables(server, _WITHOUT_SNAPSHOT, wants)
        cascades = _ask_cascades(server, wants)
        sequences = _ask_tables(server, _SEQUENCES, wants)
        names_there = ask_names(server)
        address, login = server.name, server.pin_login()
    names = [name for name, _ in facts.logs]
    behind = names[names.index(end.position.file) + 1 :] if end is not None and end.position.file in names else []
    return Answers(
        address=address,
        facts=facts,
        time=now,
        tables=tuple(sorted(tables)),
        without_key=tuple(sorted(tables - keyed)),
        without_snapshot=tuple(sorted(locked)),
        cascades=tuple(cascades),
        oldest=read_log_start(login, find_rest(names, end.position.file if end else "")[0]) if names else None,
        following=read_log_start(login, behind[0]) if behind else None,
        sequences=tuple(sorted(sequences)),
        names=names_there,
        is_other_log=end is not None and end.position.file in names and _is_other(login, end),
    )


def _is_other(login: SourceSettings, end: StoreEnd) -> bool:
    if end.head is None:
        return False
    try:
        return Head.of(read_first_event(login, end.position.file)) != end.head
    except PermissionDeniedError:
        return False


def find_rest(names: Sequence[str], file: str) -> Sequence[str]:
    """All logs, where none is missing behind `file`, or there is no `file`; else those behind the first hole. Pure."""
    begin = names.index(file) if file in names else len(names)
    for before, after in pairwise(range(begin, len(names))):
        if _number(names[after]) != _number(names[before]) + 1:
            return names[after:]
    return names


def find_stretches(names: Sequence[str]) -> list[Sequence[str]]:
    """Logs in stretches in which none is missing. Pure."""
    found = []
    while names:
        rest = find_rest(names, names[0])
        found.append(names[: len(names) - len(rest)] if rest is not names else names)
        names = () if rest is names else rest
    return found


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])


def _ask_tables(server: Server, question: str, wants: Callable[[str, str], bool]) -> list[str]:
    rows = ((str(row["db"]), str(row["tab"])) for row in server.ask(question))
    return [f"{database}.{table}" for database, table in rows if wants(database, table)]


def _ask_cascades(server: Server, wants: Callable[[str, str], bool]) -> list[Cascade]:
    found = []
    for row in server.ask(_CASCADES):
        if wants(str(row["db"]), str(row["tab"])):
            rules = [f"ON {word} {row[key]}" for word, key in (("DELETE", "del"), ("UPDATE", "upd")) if _acts(row[key])]
            found.append(Cascade(f"{row['db']}.{row['tab']}", str(row["name"]), " ".join(rules)))
    return found


def _acts(rule: object) -> bool:
    return str(rule) in ("CASCADE", "SET NULL", "SET DEFAULT")


def read_log_start(login: SourceSettings, file: str) -> LogStart | None:
    """The head of a log of the server; None where the login may not read it."""
    try:
        dump = open_dump(login, FilePosition(file))
    except PermissionDeniedError:
        return None
    decoder, begun, gtids = EventDecoder(), 0.0, None
    try:
        for raw in dump.events():
            begun = begun or raw.header.timestamp
            for event in decoder.decode(raw.data, raw.position, raw.end):
                if isinstance(event.body, MysqlGtidSet | MariaGtidPosition):
                    gtids = event.body
            if gtids is not None or raw.file != file or isinstance(event.body, Gtid | MariaGtid):
                break
    except PermissionDeniedError:
        return None
    finally:
        dump.close()
    return LogStart(file, begun, gtids)
