"""Servers that a dump is read from: loopback sources with recorded logs, and a real MariaDB. The same tests run on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest

from tests.binlog_maker import read_log, recorded
from tests.services import mariadb, mysql, newest_mariadb
from tests.services.binlog_source import BinlogSource
from tests.services.mariadb import MariaDb
from tests.services.processes import PartMissing, soon
from tidemark.changes.binlog.events import Gtid, MariaGtid, Query, XaPrepare, Xid
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.binlog.layout import IN_USE, MAGIC, EventType
from tidemark.changes.binlog.reader import EventDecoder
from tidemark.changes.connection.model import Dump, FilePosition, RawEvent, SourceSettings

MYSQL = {"binlog.000007": "real/binlog-invisible-columns.000001", "binlog.000008": "real/mysql-enum-string-set.000001"}
MARIA = {f"mysql-bin.{number:06}": f"workload/mysql-bin.{number:06}" for number in range(6, 11)}

MARIADB = pytest.param("mariadb", marks=pytest.mark.real("mariadb"))
NEWEST_MARIADB = pytest.param("newest_mariadb", marks=pytest.mark.real("newest_mariadb"))
MYSQL_SERVER = pytest.param("mysql", marks=pytest.mark.real("mysql"))
REAL_SERVERS = [MARIADB, MYSQL_SERVER]


_STARTS: dict[str, Callable[[dict[str, str] | None], MariaDb]] = {
    "mariadb": mariadb.start,
    "newest_mariadb": newest_mariadb.start,
    "mysql": mysql.start,
}


def start_server(kind: str, options: dict[str, str] | None = None) -> MariaDb:
    """A real server of a kind of `REAL_SERVERS`. Skips the test where this machine has none."""
    try:
        return _STARTS[kind](options)
    except PartMissing as missing:
        pytest.skip(str(missing))


@contextmanager
def start_pair(kind: str) -> Iterator[tuple[MariaDb, MariaDb]]:
    """Two servers of a kind, with ids of their own, until the block ends."""
    with closing(start_server(kind)) as first, closing(start_server(kind, {"server_id": "2"})) as second:
        yield first, second


@dataclass
class World:
    """A server. `read_logs` gives its logs as they lie on its disk, `commit` makes one more transaction, `end` ends it."""

    settings: SourceSettings
    read_logs: Callable[[], dict[str, bytes]]
    commit: Callable[[], Any]
    end: Callable[[], Any]


def settings_for(address: tuple[str, int], **changes: Any) -> SourceSettings:
    return replace(SourceSettings((address,), "tide", tls="off", heartbeat_seconds=0.2), **changes)


@contextmanager
def recorded_world(names: dict[str, str], version: str) -> Iterator[World]:
    logs = {name: recorded(file) for name, file in names.items()}
    with BinlogSource(logs, version=version) as source:
        last = list(logs)[-1]
        again = logs[last][_transactions(logs[last])[-1] : _end_of_transactions(logs[last])]
        number = count(1)

        def commit() -> None:
            next(number)
            source.logs[last] += _moved(again, len(source.logs[last]))

        def end() -> None:
            source.__exit__()

        yield World(settings_for(source.address), lambda: source.logs, commit, end)


@contextmanager
def real_world(kind: str = "mariadb", options: dict[str, str] | None = None) -> Iterator[World]:
    """A server with three logs and some transactions in each."""
    server = start_server(kind, options)
    try:
        server.run("CREATE DATABASE d", "CREATE TABLE d.t (a INT PRIMARY KEY AUTO_INCREMENT, b LONGTEXT) ENGINE=InnoDB")
        for _ in range(2):
            server.run("INSERT INTO d.t (b) VALUES ('x'), (NULL)", "UPDATE d.t SET b = 'y' WHERE b IS NULL")
            server.run("FLUSH BINARY LOGS", "DELETE FROM d.t LIMIT 1")
        name = server.logs[-1].name
        told = f"SHOW BINLOG EVENTS IN '{name}'"  # MariaDB notes there, a moment later, that it needs no older log
        is_noted = lambda: any(row[2] == "Binlog_checkpoint" and row[5] == name for row in server.run(told))  # noqa: E731
        assert kind != "mariadb" or soon(is_noted)
        settings = settings_for(("127.0.0.1", server.port), user=mariadb.USER, password=mariadb.PASSWORD)
        yield World(
            settings,
            lambda: {path.name: path.read_bytes() for path in server.logs},
            lambda: server.run("INSERT INTO d.t (b) VALUES ('more')"),
            server.stop,
        )
    finally:
        server.close()


def _transactions(log: bytes) -> list[int]:
    return [event.position for event in read_log(log) if isinstance(event.body, Gtid | MariaGtid)]


def _end_of_transactions(log: bytes) -> int:
    return max(event.end for event in read_log(log) if isinstance(event.body, Xid | Query | XaPrepare))


def _moved(events: bytes, position: int) -> bytes:
    """Events with the places that they have when they stand at a position. Without it a client refuses them."""
    import zlib

    moved, at = b"", 0
    while at < len(events):
        size = int.from_bytes(events[at + 9 : at + 13], "little")
        made = events[at : at + 13] + (position + at + size).to_bytes(4, "little") + events[at + 17 : at + size - 4]
        moved += made + zlib.crc32(made).to_bytes(4, "little")
        at += size
    return moved


def transaction_starts(logs: dict[str, bytes]) -> list[FilePosition]:
    return [FilePosition(name, position) for name, log in logs.items() for position in _transactions(log)]


def rebuild_logs(events: list[RawEvent]) -> dict[str, bytes]:
    """The logs that events were read from, if all of them were. That one is in use is not told."""
    logs: dict[str, bytes] = {}
    for event in events:
        log = logs.setdefault(event.file, MAGIC)
        assert event.position == len(log)
        logs[event.file] = log + event.data
    return logs


def closed(log: bytes) -> bytes:
    """A log without the mark that its server still writes it."""
    flags = int.from_bytes(log[21:23], "little") & ~IN_USE
    return log[:21] + flags.to_bytes(2, "little") + log[23:]


def gtids_of(dump: Dump) -> list[str]:
    """The transactions of a dump, as a decoder sees them."""
    decoder = EventDecoder()
    found = []
    for raw in dump.events():
        for event in decoder.decode(raw.data, raw.position, raw.end):
            if isinstance(event.body, Gtid | MariaGtid):
                found.append(event.body.text)
    return found


def known_until(gtids: list[str]) -> MysqlGtidSet | MariaGtidPosition:
    """What somebody has who has these transactions, the last of each domain last."""
    if ":" in gtids[0]:
        return MysqlGtidSet.parse(",".join(gtids))
    last = {gtid.partition("-")[0]: gtid for gtid in gtids}
    return MariaGtidPosition.parse(",".join(last.values()))


def is_description(event: RawEvent) -> bool:
    return event.header.type == EventType.FORMAT_DESCRIPTION
