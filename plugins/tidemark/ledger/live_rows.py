"""Every live file of a receiver by where it belongs and what it must be, without its devices (table `catalog_file`).

Live is more than visible: a source under a merged file is live too, and lies at nodes as long. Source: sql/0002, docs/decisions/0015.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection


class LiveFile(NamedTuple):
    """`mods_location`, `mods_sha256`: "" without deletions; `size` in bytes, of the TsFile; `created` in seconds since 1970."""

    database: str
    partition_from: int
    partition_to: int
    location: str
    sha256: str
    size: int
    mods_location: str
    mods_sha256: str
    created: float
    role: str  # source | merged


_COLUMNS = (
    "database_name, partition_from, partition_to, location, sha256, size, mods_location, mods_sha256, created, role"
)


def live_files(connection: Connection, receiver: str) -> list[LiveFile]:
    """Ordered by location; one location may come several times, with one digest."""
    sql = f"SELECT {_COLUMNS} FROM catalog_file WHERE receiver = :r AND state = 'live' ORDER BY location, file_id"
    return [LiveFile(*row) for row in connection.execute(sa.text(sql), {"r": receiver})]


def databases_with_schema(connection: Connection, receiver: str) -> list[str]:
    """Databases of which any series was declared."""
    sql = "SELECT DISTINCT database_name FROM schema_series WHERE receiver = :r ORDER BY database_name"
    return [row[0] for row in connection.execute(sa.text(sql), {"r": receiver})]
