"""Named report queries (`sql/queries/<name>.sql`) and what proof writes down.

The queries are plain files so that an auditor can read them and run them by hand; each begins with what it answers and
the parameters it takes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.many_rows import write_rows
from tidemark.ledger.migrations import FOLDER

Row = Mapping[str, Any]


def report(connection: Connection, name: str, **parameters: object) -> Sequence[Row]:
    """The rows of a named query, as mappings by column. FileNotFoundError for a name that has no file."""
    found = connection.execute(_query(name), parameters).mappings()
    return [dict(row) for row in found]


@functools.cache
def _query(name: str) -> sa.TextClause:
    return sa.text("\n".join(line for line in _lines(name) if not line.startswith("--")))


def _lines(name: str) -> list[str]:
    return (FOLDER / "queries" / f"{name}.sql").read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True)
class FileCheck:
    """A data file whose digest was computed. The same size, inode and time (ns) of its last change: it still holds."""

    location: str
    size: int
    ctime_ns: int
    inode: int
    sha256: str


def file_checks(connection: Connection, receiver: str, since: float = 0.0) -> dict[str, FileCheck]:
    """What is remembered of digests that were computed at `since` (seconds since 1970) or later, by location."""
    sql = "SELECT location, size, ctime_ns, inode, sha256 FROM file_check WHERE receiver = :receiver AND checked >= :since"
    found = connection.execute(sa.text(sql), {"receiver": receiver, "since": since})
    return {row.location: FileCheck(**row._mapping) for row in found}


def put_file_checks(connection: Connection, receiver: str, checks: Iterable[FileCheck], at: float) -> None:
    """Digests that were computed, with the signs by which an untouched file is known again."""
    values = [{**asdict(check), "receiver": receiver, "checked": at} for check in checks]
    write_rows(
        connection,
        "INSERT INTO file_check (receiver, location, size, ctime_ns, inode, sha256, checked)"
        " VALUES (:receiver, :location, :size, :ctime_ns, :inode, :sha256, :checked)"
        " ON CONFLICT (receiver, location) DO UPDATE SET size = excluded.size, ctime_ns = excluded.ctime_ns,"
        " inode = excluded.inode, sha256 = excluded.sha256, checked = excluded.checked",
        values,
    )


def forget_file_checks(connection: Connection, receiver: str, locations: Iterable[str]) -> None:
    """These locations were written or removed: their digests say nothing any more."""
    values = [{"receiver": receiver, "location": location} for location in locations]
    write_rows(connection, "DELETE FROM file_check WHERE receiver = :receiver AND location = :location", values)
