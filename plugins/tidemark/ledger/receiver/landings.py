"""The contents of manifests at the receiver: sites, landings in their order, each site's inventory, vanished files.

Tables `site`, `landing`, `inventory`, `pending_drop`. Only a load writes them, in its transactions. Nothing here is derived
from link tables, since the sender's Tidemark may be another machine (DESIGN §3 "Each end has its own ledger").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.sql import in_chunks, write_rows

GIVEN_UP = "given up by the operator"
"""How the reason of a drop begins whose file was kept, rotted here, and is not kept any more."""


@dataclass(frozen=True)
class SiteRow:
    """One row of `site`: what a receiver knows of a site from its manifests."""

    site_id: str
    name: str
    time_unit: str
    partition_interval_ms: int
    prefix: str = ""


@dataclass(frozen=True)
class LandingRow:
    """One row of `landing`. `sequence` is 0 if the manifest could not be read."""

    receiver: str
    landing: str
    site_id: str
    sequence: int
    previous: str | None
    run_id: str
    part: int
    state: str  # waiting | found | loading | loaded | rejected
    reason: str | None
    manifest_sha256: str
    files: int
    bytes: int
    found: float
    loaded: float | None = None
    receipt: str | None = None
    listed: float | None = None  # see the column


@dataclass(frozen=True)
class InventoryRow:
    """One path of a site's inventory: whether the site has it, and in which generation."""

    path: str
    live: bool
    generation: int


Extent = tuple[tuple[str, int, int], ...]  # (device, start, end) from a .resource, the site's time unit


@dataclass(frozen=True)
class InventoryChange:
    """Changes that one manifest reports of its site's sealed files."""

    landing: str
    added: tuple[tuple[str, int, int, Extent, bool], ...]  # path, size, mtime, extent, never sent; of files at the site now
    carried: tuple[tuple[str, int, int, int], ...]  # path, size, mtime, generation of files in the landing
    removed: tuple[str, ...]


@dataclass(frozen=True)
class DropRow:
    """A path that vanished at its site. `state`: pending | waiting (for the operator) | done."""

    path: str
    generation: int
    kind: str  # superseded | dropped
    covered_by: tuple[str, ...]
    landing: str
    at: float
    state: str = "pending"
    reason: str | None = None


def put_site(connection: Connection, site: SiteRow, at: float) -> None:
    """Insert the site, or rename it; its time unit, partition interval and prefix are not changed."""
    connection.execute(
        sa.text(
            "INSERT INTO site (site_id, name, time_unit, partition_interval_ms, prefix, first_seen) "
            "VALUES (:site_id, :name, :time_unit, :partition_interval_ms, :prefix, :at) "
            "ON CONFLICT (site_id) DO UPDATE SET name = excluded.name"
        ),
        {**asdict(site), "at": at},
    )


def read_sites(connection: Connection) -> dict[str, SiteRow]:
    """Return {site id: its row}."""
    query = sa.text("SELECT site_id, name, time_unit, partition_interval_ms, prefix FROM site")
    return {r["site_id"]: SiteRow(**r) for r in connection.execute(query).mappings()}


_LANDING = tuple(f.name for f in fields(LandingRow))


def put_landing(connection: Connection, row: LandingRow) -> None:
    """Insert or replace the landing's row; `found` keeps its first value."""
    kept = ("receiver", "site_id", "landing", "found")
    connection.execute(
        sa.text(
            f"INSERT INTO landing ({', '.join(_LANDING)}) VALUES ({', '.join(':' + c for c in _LANDING)}) "
            "ON CONFLICT (receiver, site_id, landing) DO UPDATE SET "
            + ", ".join(f"{c} = excluded.{c}" for c in _LANDING if c not in kept)
        ),
        asdict(row),
    )


def read_landings(connection: Connection, receiver: str, open_only: bool = False) -> dict[tuple[str, str], LandingRow]:
    """Return (site, landing) → its row without receipt, in sequence; `open_only`: of landings with work left."""
    columns = ", ".join(c for c in _LANDING if c != "receipt")
    where = "receiver = :receiver" + (" AND folder_mtime = 0" if open_only else "")
    query = sa.text(f"SELECT {columns} FROM landing WHERE {where} ORDER BY site_id, sequence, landing")
    rows = connection.execute(query, {"receiver": receiver}).mappings()
    return {(r["site_id"], r["landing"]): LandingRow(**r) for r in rows}


def finished_landings(connection: Connection, receiver: str) -> dict[tuple[str, str], int]:
    """Return (site, landing) → its sign (`formats.answered.landing_sign`) when it had no work left."""
    sql = "SELECT site_id, landing, folder_mtime FROM landing WHERE receiver = :receiver AND folder_mtime <> 0"
    return {(r[0], r[1]): int(r[2]) for r in connection.execute(sa.text(sql), {"receiver": receiver})}


def note_finished(connection: Connection, receiver: str, folders: Mapping[tuple[str, str], int]) -> None:
    """Record signs for `finished_landings`."""
    rows = [{"receiver": receiver, "site": s, "landing": name, "mtime": sign} for (s, name), sign in folders.items()]
    sql = "UPDATE landing SET folder_mtime = :mtime WHERE receiver = :receiver AND site_id = :site AND landing = :landing"
    write_rows(connection, sql, rows)


def last_loaded(connection: Connection, receiver: str, site_id: str) -> tuple[int, str | None]:
    """Return sequence and id of the site's newest loaded landing; (0, None) before the first."""
    query = sa.text(
        "SELECT sequence, landing FROM landing WHERE receiver = :receiver AND site_id = :site AND state = 'loaded' "
        "ORDER BY sequence DESC LIMIT 1"
    )
    row = connection.execute(query, {"receiver": receiver, "site": site_id}).one_or_none()
    return (0, None) if row is None else (int(row[0]), row[1])


def receipt_of(connection: Connection, receiver: str, site_id: str, landing: str) -> tuple[str, str]:
    """Return (digest of the answered manifest, the receipt's text) of a landing; ('', '') if it is not loaded."""
    query = sa.text(
        "SELECT manifest_sha256, receipt FROM landing "
        "WHERE receiver = :receiver AND site_id = :site AND landing = :landing AND state = 'loaded'"
    )
    row = connection.execute(query, {"receiver": receiver, "site": site_id, "landing": landing}).one_or_none()
    return ("", "") if row is None else (row[0], row[1])


def put_receipt(connection: Connection, receiver: str, site_id: str, landing: str, text: str) -> None:
    """Replace the receipt of a loaded landing."""
    sql = "UPDATE landing SET receipt = :text WHERE receiver = :receiver AND site_id = :site AND landing = :landing"
    connection.execute(sa.text(sql), {"text": text, "receiver": receiver, "site": site_id, "landing": landing})


def take_inventory(connection: Connection, receiver: str, site_id: str, change: InventoryChange) -> None:
    """Apply a manifest's inventory change: the site's present files, generations carried, vanished files."""
    place = {"r": receiver, "s": site_id, "l": change.landing}
    _upsert_inventory(
        connection,
        "size = excluded.size, mtime = excluded.mtime, extent = excluded.extent, live = 1, landing = excluded.landing, "
        "excluded = excluded.excluded",
        [
            {**place, "p": path, "z": size, "m": mtime, "e": json.dumps(extent, ensure_ascii=False), "g": 0, "x": int(out)}
            for path, size, mtime, extent, out in change.added
        ],
    )
    _upsert_inventory(
        connection,
        "generation = excluded.generation, landing = excluded.landing, excluded = 0",
        [
            {**place, "p": path, "z": size, "m": mtime, "e": "[]", "g": generation, "x": 0}
            for path, size, mtime, generation in change.carried
        ],
    )
    gone = [{**place, "p": path} for path in change.removed]
    sql = "UPDATE inventory SET live = 0, landing = :l WHERE receiver = :r AND site_id = :s AND path = :p"
    write_rows(connection, sql, gone)


def inventory_of(connection: Connection, receiver: str, site_id: str, paths: Iterable[str]) -> dict[str, InventoryRow]:
    """Return {path: row} for those of `paths` that the site ever had."""
    sql = "SELECT path, live, generation FROM inventory WHERE receiver = :receiver AND site_id = :site AND path IN :many"
    found = in_chunks(connection, sql, paths, receiver=receiver, site=site_id)
    return {path: InventoryRow(path, bool(live), int(generation)) for path, live, generation in found}


def not_loaded(connection: Connection, receiver: str, site_id: str, below: str) -> list[str]:
    """Return the site's present sealed files that the catalog lacks at their generation, in order, without those that its
    link excludes. `below`: `/database/region/partition/`, a part of their paths."""
    query = sa.text(
        "SELECT i.path FROM inventory i WHERE i.receiver = :receiver AND i.site_id = :site AND i.live = 1 "
        "AND i.excluded = 0 AND i.path LIKE :below ESCAPE '!' AND NOT EXISTS (SELECT 1 FROM catalog_file f "
        "WHERE f.receiver = i.receiver AND f.site_id = i.site_id AND f.role = 'source' AND f.path = i.path "
        "AND f.generation >= i.generation) ORDER BY i.path"
    )
    like = "%" + below.replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"
    rows = connection.execute(query, {"receiver": receiver, "site": site_id, "below": like})
    return [row[0] for row in rows if below in row[0]]


def extents_of(connection: Connection, receiver: str, site_id: str, paths: Iterable[str]) -> dict[str, Extent]:
    """Return path → the extent in its .resource, if a manifest had it."""
    sql = "SELECT path, extent FROM inventory WHERE receiver = :receiver AND site_id = :site AND path IN :many"
    found = in_chunks(connection, sql, paths, receiver=receiver, site=site_id)
    return {path: tuple((d, a, b) for d, a, b in json.loads(extent)) for path, extent in found}


def put_drops(connection: Connection, receiver: str, site_id: str, rows: Sequence[DropRow]) -> None:
    """Insert or replace rows of `pending_drop`."""
    values = [
        {**asdict(row), "covered_by": json.dumps(row.covered_by, ensure_ascii=False), "r": receiver, "s": site_id}
        for row in rows
    ]
    write_rows(
        connection,
        "INSERT INTO pending_drop "
        "(receiver, site_id, path, generation, kind, covered_by, landing, at, state, reason) "
        "VALUES (:r, :s, :path, :generation, :kind, :covered_by, :landing, :at, :state, :reason) "
        "ON CONFLICT (receiver, site_id, path, generation) DO UPDATE SET kind = excluded.kind, "
        "covered_by = excluded.covered_by, state = excluded.state, reason = excluded.reason",
        values,
    )


_DROPS = (
    "SELECT path, generation, kind, covered_by, landing, at, state, reason FROM pending_drop"
    " WHERE receiver = :receiver AND site_id = :site"
)


def read_drops(
    connection: Connection, receiver: str, site_id: str, states: Sequence[str] = ("pending", "waiting", "done")
) -> list[DropRow]:
    """Return the site's vanished files in the order of their reports."""
    sql = f"{_DROPS} AND state IN :many ORDER BY at, path, generation"
    return [_drop_of_row(row._mapping) for row in in_chunks(connection, sql, states, receiver=receiver, site=site_id)]


def drops_of_paths(connection: Connection, receiver: str, site_id: str, paths: Iterable[str]) -> dict[str, DropRow]:
    """Return path → its newest row of `pending_drop`, in any state."""
    sql = f"{_DROPS} AND path IN :many ORDER BY path, generation"
    found = in_chunks(connection, sql, paths, receiver=receiver, site=site_id)
    return {row.path: _drop_of_row(row._mapping) for row in found}


def _drop_of_row(row: Mapping[Any, Any]) -> DropRow:
    return DropRow(**{**row, "covered_by": tuple(json.loads(row["covered_by"]))})


def _upsert_inventory(connection: Connection, change: str, rows: list[dict[str, object]]) -> None:
    write_rows(
        connection,
        "INSERT INTO inventory (receiver, site_id, path, size, mtime, extent, live, generation, landing, excluded) "
        "VALUES (:r, :s, :p, :z, :m, :e, 1, :g, :l, :x) "
        f"ON CONFLICT (receiver, site_id, path) DO UPDATE SET {change}",
        rows,
    )
