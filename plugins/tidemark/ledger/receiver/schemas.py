"""Series that the sites declared, by schema log or by a loaded TsFile (tables `schema_series`, `schema_received`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.receiver.touched import note_series
from tidemark.ledger.sql import in_chunks, write_rows


@dataclass(frozen=True)
class SeriesRow:
    """One series as a site's schema log, or a file, declares it."""

    receiver: str
    site_id: str
    series: str  # full path, canonical quoting
    database_name: str
    type: str
    encoding: str
    compression: str
    aligned: bool
    source: str  # schema log path, or the TsFile that declared it
    state: str = "live"  # live | deleted
    clash: str | None = None  # the types that others give it, NULL if they agree


@dataclass(frozen=True)
class ReceivedLog:
    """What the receiver has of a schema log: bytes of the epoch, and how many of them are decoded."""

    path: str
    epoch: int
    position: int
    decoded: int


_COLUMNS = tuple(f.name for f in fields(SeriesRow))
_KEY = ("receiver", "site_id", "series")


def series_of(connection: Connection, receiver: str, series: Iterable[str]) -> list[SeriesRow]:
    """Return every site's rows of these series."""
    sql = f"SELECT {', '.join(_COLUMNS)} FROM schema_series WHERE receiver = :receiver AND series IN :many ORDER BY site_id"
    return [_series_of_row(row._mapping) for row in in_chunks(connection, sql, series, receiver=receiver)]


def series_of_site(connection: Connection, receiver: str, site_id: str) -> list[SeriesRow]:
    """Return every series that a site declared."""
    query = sa.text(
        f"SELECT {', '.join(_COLUMNS)} FROM schema_series WHERE receiver = :receiver AND site_id = :site ORDER BY series"
    )
    found = connection.execute(query, {"receiver": receiver, "site": site_id})
    return [_series_of_row(row) for row in found.mappings()]


def series_of_database(connection: Connection, receiver: str, database: str) -> list[SeriesRow]:
    """Return every site's series of a database, by site and name."""
    query = sa.text(
        f"SELECT {', '.join(_COLUMNS)} FROM schema_series WHERE receiver = :receiver AND database_name = :database"
        " ORDER BY site_id, series"
    )
    found = connection.execute(query, {"receiver": receiver, "database": database})
    return [_series_of_row(row) for row in found.mappings()]


def put_series(connection: Connection, rows: Iterable[SeriesRow]) -> None:
    """Insert or replace series."""
    values = [{**asdict(row), "aligned": int(row.aligned)} for row in rows]
    note_series(connection, ((row["site_id"], row["series"]) for row in values))
    write_rows(
        connection,
        f"INSERT INTO schema_series ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + c for c in _COLUMNS)}) "
        f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
        + ", ".join(f"{c} = excluded.{c}" for c in _COLUMNS if c not in _KEY),
        values,
    )


def received_logs(connection: Connection, receiver: str, site_id: str) -> dict[str, ReceivedLog]:
    """Return schema log path → what the receiver has of it."""
    query = sa.text(
        "SELECT path, epoch, position, decoded FROM schema_received WHERE receiver = :receiver AND site_id = :site"
    )
    found = connection.execute(query, {"receiver": receiver, "site": site_id})
    return {row[0]: ReceivedLog(row[0], int(row[1]), int(row[2]), int(row[3])) for row in found}


def put_received(connection: Connection, receiver: str, site_id: str, logs: Iterable[ReceivedLog]) -> None:
    """Record how far logs were received and decoded."""
    values = [{**asdict(log), "receiver": receiver, "site_id": site_id} for log in logs]
    write_rows(
        connection,
        "INSERT INTO schema_received (receiver, site_id, path, epoch, position, decoded) "
        "VALUES (:receiver, :site_id, :path, :epoch, :position, :decoded) "
        "ON CONFLICT (receiver, site_id, path) DO UPDATE SET epoch = excluded.epoch, "
        "position = excluded.position, decoded = excluded.decoded",
        values,
    )


def _series_of_row(row: sa.RowMapping) -> SeriesRow:
    return SeriesRow(**{**row, "aligned": bool(row["aligned"])})
