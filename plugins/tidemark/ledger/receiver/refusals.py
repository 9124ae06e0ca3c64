"""Owners of devices, files refused because another site owns a device, and files that cannot be loaded.

`owner` and `refusal`: the owner of each device, since when, by which landing. Refused files wait at their location until the
owner changes and they are loaded. `quarantine`: files that cannot be loaded, with the reason. Both keep the location of the
waiting bytes until these are removed. Every function works in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.receiver.touched import note_owners
from tidemark.ledger.sql import in_chunks, write_rows


@dataclass(frozen=True)
class OwnerRow:
    """The owner of a device, since when, by which landing."""

    device: str
    site_id: str
    since: float  # seconds since 1970
    landing: str


@dataclass(frozen=True)
class RefusalRow:
    """A refused file; its bytes wait at `location` (relative to the receiver's root, '' once removed)."""

    receiver: str
    site_id: str
    path: str
    generation: int
    landing: str
    device: str  # the first device that another site owns
    owner_site: str
    owner_since: float
    location: str
    entry: str  # JSON of the manifest's entry (formats.landing.encode_entry)
    at: float
    state: str = "refused"  # refused | replayed | superseded | dismissed
    refusal_id: int = 0


def owners_of(connection: Connection, receiver: str, devices: Iterable[str]) -> dict[str, OwnerRow]:
    """Return device → its owner, for those of `devices` that have one."""
    sql = "SELECT device, site_id, since, landing FROM owner WHERE receiver = :receiver AND device IN :many"
    return {row[0]: OwnerRow(*row) for row in in_chunks(connection, sql, devices, receiver=receiver)}


def all_owners(connection: Connection, receiver: str) -> list[OwnerRow]:
    """Return every owned device of a receiver, by name."""
    query = sa.text("SELECT device, site_id, since, landing FROM owner WHERE receiver = :receiver ORDER BY device")
    return [OwnerRow(*row) for row in connection.execute(query, {"receiver": receiver})]


def claimed_with(connection: Connection, receiver: str, site_id: str, landing: str) -> list[str]:
    """Return the devices that a site owns by one of its landings, by name."""
    sql = "SELECT device FROM owner WHERE receiver = :receiver AND site_id = :site AND landing = :landing ORDER BY device"
    return [r[0] for r in connection.execute(sa.text(sql), {"receiver": receiver, "site": site_id, "landing": landing})]


def put_owners(connection: Connection, receiver: str, rows: Iterable[OwnerRow]) -> None:
    """Claim devices, or transfer them to another site."""
    values = [{**asdict(row), "receiver": receiver} for row in rows]
    note_owners(connection, (str(row["device"]) for row in values))
    write_rows(
        connection,
        "INSERT INTO owner (receiver, device, site_id, since, landing) "
        "VALUES (:receiver, :device, :site_id, :since, :landing) ON CONFLICT (receiver, device) "
        "DO UPDATE SET site_id = excluded.site_id, since = excluded.since, landing = excluded.landing",
        values,
    )


_REFUSAL_COLUMNS = tuple(f.name for f in fields(RefusalRow) if f.name != "refusal_id")
_REFUSAL_ALL = ", ".join((*_REFUSAL_COLUMNS, "refusal_id"))


def add_refusal(connection: Connection, row: RefusalRow) -> None:
    """Record a refused file, so that it can be replayed when its owner changes."""
    values = asdict(row)
    del values["refusal_id"]
    connection.execute(
        sa.text(
            f"INSERT INTO refusal ({', '.join(_REFUSAL_COLUMNS)}) VALUES ({', '.join(':' + c for c in _REFUSAL_COLUMNS)})"
        ),
        values,
    )


def read_refusals(connection: Connection, receiver: str, site_id: str | None = None) -> list[RefusalRow]:
    """Return refused files in the order they came."""
    where = "receiver = :receiver AND state = 'refused'" + (" AND site_id = :site" if site_id is not None else "")
    query = sa.text(f"SELECT {_REFUSAL_ALL} FROM refusal WHERE {where} ORDER BY refusal_id")
    found = connection.execute(query, {"receiver": receiver, "site": site_id}).mappings()
    return [RefusalRow(**row) for row in found]


def refusals_to_sweep(connection: Connection, receiver: str) -> list[RefusalRow]:
    """Return rows whose file does not wait any more but whose bytes may still be there."""
    query = sa.text(
        f"SELECT {_REFUSAL_ALL} FROM refusal WHERE receiver = :receiver AND state <> 'refused' AND location <> ''"
    )
    return [RefusalRow(**row) for row in connection.execute(query, {"receiver": receiver}).mappings()]


def still_refused(connection: Connection, refusal_id: int, device: str, owner: OwnerRow) -> None:
    """Record another device of the refused file that another site owns, found by a replay."""
    connection.execute(
        sa.text("UPDATE refusal SET device = :device, owner_site = :owner, owner_since = :since WHERE refusal_id = :id"),
        {"device": device, "owner": owner.site_id, "since": owner.since, "id": refusal_id},
    )


def end_refusal(connection: Connection, refusal_id: int, state: str) -> None:
    """End a refusal. `state`: replayed (it is in the catalog), superseded (a newer generation is, or it vanished) or
    dismissed (by the operator)."""
    connection.execute(
        sa.text("UPDATE refusal SET state = :state WHERE refusal_id = :id"), {"state": state, "id": refusal_id}
    )


def supersede_refusals(connection: Connection, receiver: str, site_id: str, taken: Iterable[tuple[str, int]]) -> None:
    """End refusals of these (path, generation): refused generations of the path up to this one."""
    last = dict(sorted(taken))
    query = sa.text(
        "SELECT refusal_id, path, generation FROM refusal "
        "WHERE receiver = :receiver AND site_id = :site AND state = 'refused'"
    )
    rows = connection.execute(query, {"receiver": receiver, "site": site_id}).all() if last else ()
    over = [{"id": row[0]} for row in rows if row[2] <= last.get(row[1], -1)]
    write_rows(connection, "UPDATE refusal SET state = 'superseded' WHERE refusal_id = :id", over)


def forget_refused_bytes(connection: Connection, refusal_ids: Iterable[int]) -> None:
    """Record that the waiting bytes are removed."""
    rows = [{"id": refusal_id} for refusal_id in refusal_ids]
    write_rows(connection, "UPDATE refusal SET location = '' WHERE refusal_id = :id", rows)


@dataclass(frozen=True)
class QuarantineRow:
    """A held file. `location`: of the TsFile, below the receiver's root, next to its companions; '' if it never came."""

    receiver: str
    site_id: str
    path: str
    generation: int
    landing: str
    reason: str
    error_kind: int
    location: str
    entry: str  # JSON of the manifest's entry (formats.landing.encode_entry)
    at: float
    state: str = "held"  # held | awaiting | released | dropped | superseded
    quarantine_id: int = 0


_COLUMNS = tuple(f.name for f in fields(QuarantineRow) if f.name != "quarantine_id")
_ALL = ", ".join((*_COLUMNS, "quarantine_id"))


def add_quarantine(connection: Connection, row: QuarantineRow) -> int:
    """Hold a file in quarantine; return its id."""
    values = asdict(row)
    del values["quarantine_id"]
    insert = f"INSERT INTO quarantine ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + c for c in _COLUMNS)})"
    return int(connection.execute(sa.text(f"{insert} RETURNING quarantine_id"), values).scalar_one())


def read_quarantine(connection: Connection, receiver: str | None = None, state: str = "held") -> list[QuarantineRow]:
    """Return rows in one state in the order they came, of one receiver or of all."""
    where = "state = :state" + (" AND receiver = :receiver" if receiver is not None else "")
    query = sa.text(f"SELECT {_ALL} FROM quarantine WHERE {where} ORDER BY quarantine_id")
    found = connection.execute(query, {"receiver": receiver, "state": state}).mappings()
    return [QuarantineRow(**row) for row in found]


def quarantine_of(connection: Connection, quarantine_id: int) -> QuarantineRow | None:
    """Return the row of an id; None if there is none."""
    query = sa.text(f"SELECT {_ALL} FROM quarantine WHERE quarantine_id = :id")
    row = connection.execute(query, {"id": quarantine_id}).mappings().one_or_none()
    return None if row is None else QuarantineRow(**row)


def held_of_path(connection: Connection, receiver: str, site_id: str, path: str) -> list[QuarantineRow]:
    """Return the held rows of this path, oldest generation first."""
    query = sa.text(
        f"SELECT {_ALL} FROM quarantine WHERE receiver = :receiver AND site_id = :site AND path = :path "
        "AND state = 'held' ORDER BY generation, quarantine_id"
    )
    found = connection.execute(query, {"receiver": receiver, "site": site_id, "path": path}).mappings()
    return [QuarantineRow(**row) for row in found]


def end_quarantine(connection: Connection, quarantine_id: int, state: str) -> None:
    """End a hold. `state`: released (loaded), dropped (by the operator), superseded (a newer generation is loaded)."""
    connection.execute(
        sa.text("UPDATE quarantine SET state = :state WHERE quarantine_id = :id"), {"state": state, "id": quarantine_id}
    )


def supersede_quarantine(connection: Connection, receiver: str, site_id: str, taken: Iterable[tuple[str, int]]) -> None:
    """End holds of these (path, generation): held and awaiting generations of the path up to this one."""
    last = dict(sorted(taken))
    query = sa.text(
        "SELECT quarantine_id, path, generation FROM quarantine "
        "WHERE receiver = :receiver AND site_id = :site AND state IN ('held', 'awaiting')"
    )
    rows = connection.execute(query, {"receiver": receiver, "site": site_id}).all() if last else ()
    over = [{"id": row[0]} for row in rows if row[2] <= last.get(row[1], -1)]
    write_rows(connection, "UPDATE quarantine SET state = 'superseded' WHERE quarantine_id = :id", over)


def quarantine_to_sweep(connection: Connection, receiver: str) -> list[QuarantineRow]:
    """Return ended rows whose bytes may still be in the quarantine."""
    query = sa.text(
        f"SELECT {_ALL} FROM quarantine WHERE receiver = :receiver AND state NOT IN ('held', 'awaiting') AND location <> ''"
    )
    return [QuarantineRow(**row) for row in connection.execute(query, {"receiver": receiver}).mappings()]


def forget_held_bytes(connection: Connection, quarantine_ids: Iterable[int]) -> None:
    """Record that the held bytes are removed."""
    rows = [{"id": quarantine_id} for quarantine_id in quarantine_ids]
    write_rows(connection, "UPDATE quarantine SET location = '' WHERE quarantine_id = :id", rows)
