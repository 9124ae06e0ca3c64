"""The ledger's connection to SQLite (WAL) or PostgreSQL.

Every write happens inside `Ledger.write()`, one transaction, begun IMMEDIATE on SQLite so that two processes never deadlock
on an upgrade. Reads use `Ledger.read()`. Errors of the driver become Tidemark's: a database that is away or busy is
`RetryableError`, a full one `DiskFullError`, a damaged one `CorruptionError`. Source: DESIGN §4.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from tidemark.errors import (
    CorruptionError,
    DiskFullError,
    PermanentError,
    PermissionDeniedError,
    RetryableError,
    TidemarkError,
)

BUSY_TIMEOUT_MS = 30_000
OWNER_ALONE = 0o600
LEAST_ROOM = 65_536  # bytes; SQLite's shared memory grows by 32 KB


class Ledger:
    """An open metadata database. `url` is SQLAlchemy's; a relative SQLite path is below `root`."""

    def __init__(self, url: str, root: Path | None = None) -> None:
        self.url = _absolute_url(url, root)
        self.engine = _create_engine(self.url)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def write(self, *, lasting: bool = True) -> Iterator[Connection]:
        """Open one transaction: committed when the block ends, rolled back when it raises.

        `lasting`: False for what has no meaning once this machine has lost power. SQLite does not wait for the disk then,
        and the next transaction that waits makes this one last, too. PostgreSQL always waits.
        """
        options = {"tidemark_write": True, "tidemark_lasting": lasting}
        with _translate_errors(self.url), self.engine.execution_options(**options).begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection for queries; writes in it are not kept."""
        with _translate_errors(self.url), self.engine.connect() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def database_time(connection: Connection) -> float:
    """Return seconds since 1970 by the database's clock."""
    sql = "SELECT (julianday('now') - 2440587.5) * 86400.0"
    if connection.dialect.name != "sqlite":
        sql = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"
    return float(connection.execute(sa.text(sql)).scalar_one())


def is_unmade(url: str, root: Path) -> bool:
    """Tell whether a ledger is an SQLite file that is not there. Relative paths are below `root`. Makes nothing."""
    address = sa.make_url(url)
    return address.drivername.startswith("sqlite") and not (root / (address.database or "")).exists()


def _absolute_url(url: str, root: Path | None) -> str:
    parsed = sa.make_url(url)
    if parsed.drivername.startswith("sqlite") and parsed.database and parsed.database != ":memory:":
        path = Path(parsed.database)
        path = path if path.is_absolute() else (root or Path.cwd()) / path
        try:
            make_folder(path.parent)
        except OSError as refused:
            raise PermissionDeniedError(
                f"the ledger's folder {path.parent} cannot be made: {refused.strerror}",
                hint="give [ledger] url a folder that may be written",
                subject=str(path),
            ) from refused
        parsed = parsed.set(database=str(path))
    return parsed.render_as_string(hide_password=False)


def _create_engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True, pool_size=4)
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})

    @event.listens_for(engine, "do_connect")
    def _close_to_others(*_asked: object) -> None:
        if engine.url.database and engine.url.database != ":memory:":
            close_to_others(Path(engine.url.database))

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # SQLAlchemy's `begin` event below starts transactions
        _keep_wal(connection)
        for pragma in ("synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_MS}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        writes = options.get("tidemark_write", False)
        if not options.get("tidemark_lasting", True):
            connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    @event.listens_for(engine, "checkin")
    def _wait_for_disk(connection: sqlite3.Connection | None, _record: object) -> None:
        if connection is not None:
            connection.execute("PRAGMA synchronous=FULL")

    return engine


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that only the owner may write to, with any umask: others could replace the ledger
    there. An existing folder stays as it is."""
    for one in reversed((folder, *folder.parents)):
        if not one.exists():
            one.mkdir(mode=0o755, exist_ok=True)


def close_to_others(path: Path) -> None:
    """Make a database file, if there is none, and let only its owner read and write it and SQLite's `-wal` and `-shm`, which
    get the file's mode. If the mode cannot be set, SQLite reports what it cannot do."""
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, OWNER_ALONE))
    for end in ("", "-wal", "-shm"):
        with suppress(OSError):
            place = Path(f"{path}{end}")
            if place.stat().st_mode & 0o077 and place.is_file():
                place.chmod(OWNER_ALONE)


def _keep_wal(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log. If several processes start on a new file at once, SQLite reports the change as busy
    without waiting: the lock would have to be raised."""
    give_up = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as busy:
            if busy.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as broken:  # raised by the driver for an SQLite message on a schema with a flipped bit
        raise damaged_error(url, f"text that is no UTF-8: {broken}") from broken
    except (DBAPIError, sqlite3.Error) as broken:  # sqlite3's own, from rows that are fetched without SQLAlchemy
        ours = _as_ours(broken, url)
        if ours is None:
            raise  # a mistake in our SQL, not the database's trouble
        raise ours from broken


def _other_than_a_file(url: str) -> str:
    """Return the path of an SQLite database that is no regular file; "" otherwise."""
    parsed = sa.make_url(url)
    place = Path(parsed.database or "") if parsed.drivername.startswith("sqlite") else Path()
    return str(place) if place.is_absolute() and place.exists() and not place.is_file() else ""


def _as_ours(broken: DBAPIError | sqlite3.Error, url: str) -> TidemarkError | None:
    safe = sa.make_url(url).render_as_string(hide_password=True)
    text = " ".join(str(getattr(broken, "orig", broken)).split())
    trouble = _classify_trouble(broken)
    if trouble == "away" and _no_room(url):  # SQLite says "disk I/O error" if its shared memory has no room
        trouble = "full"
    match trouble:
        case "full":
            return DiskFullError(f"the ledger's disk is full: {safe}: {text}", hint="free space, then run the command again")
        case "denied":
            return PermissionDeniedError(f"the ledger cannot be written: {safe}: {text}", hint="./tidemark doctor")
        case "damaged":
            return damaged_error(url, text)
        case "away" if place := _other_than_a_file(url):
            return PermanentError(
                f"the ledger {place} is no regular file: no database can be there",
                hint="move it away; then put the ledger back, or ./tidemark ledger rebuild (docs/runbooks/ledger-lost.md)",
                subject=place,
            )
        case "away":
            return RetryableError(f"the ledger does not answer: {safe}: {text}", hint="./tidemark doctor")
    return None


def damaged_error(url: str, text: str) -> CorruptionError:
    """Make the error of a damaged ledger; `text` says what is damaged."""
    safe = sa.make_url(url).render_as_string(hide_password=True)
    hint = "move it away and run ./tidemark ledger rebuild, or put a backup in its place (docs/runbooks/ledger-lost.md)"
    return CorruptionError(f"the ledger is damaged: {safe}: {text}", hint=hint, subject=safe)


def _no_room(url: str) -> bool:
    parsed = sa.make_url(url)
    if not parsed.drivername.startswith("sqlite") or not parsed.database or parsed.database == ":memory:":
        return False
    try:
        return shutil.disk_usage(Path(parsed.database).parent).free < LEAST_ROOM
    except OSError:
        return False


# https://sqlite.org/rescode.html: the primary code is the low byte
_SQLITE_TROUBLE = {
    sqlite3.SQLITE_BUSY: "away",
    sqlite3.SQLITE_LOCKED: "away",
    sqlite3.SQLITE_IOERR: "away",
    sqlite3.SQLITE_CANTOPEN: "away",
    sqlite3.SQLITE_PROTOCOL: "away",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "denied",
    sqlite3.SQLITE_PERM: "denied",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}


def _classify_trouble(broken: DBAPIError | sqlite3.Error) -> str:
    """Return the kind of the driver's trouble; '' for a mistake of ours."""
    if isinstance(broken, sqlite3.Error) or isinstance(broken.orig, sqlite3.Error):
        origin = getattr(broken, "orig", broken)
        code = getattr(origin, "sqlite_errorcode", 0)
        if str(origin).startswith("Could not decode to UTF-8"):  # the driver's own, without a code
            return "damaged"
        return _SQLITE_TROUBLE.get(code & 0xFF, "")
    state = str(getattr(broken.orig, "sqlstate", None) or "")  # psycopg: PostgreSQL's five-character code
    if state == "53100":
        return "full"
    if state == "25006":  # a standby, or a transaction made read-only
        return "denied"
    if broken.connection_invalidated or isinstance(broken, OperationalError) or state[:2] in ("08", "40", "53", "57"):
        return "away"
    return ""
