"""Files that cannot be loaded, with the reason: the quarantine (table `quarantine`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.many_rows import write_rows


@dataclass(frozen=True)
class QuarantineRow:
    """`location` is the TsFile's place relative to the receiver's root, companions beside it; '' where it never came."""

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
    """Hold a file back; the id it is called by."""
    values = asdict(row)
    del values["quarantine_id"]
    insert = f"INSERT INTO quarantine ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + c for c in _COLUMNS)})"
    return int(connection.execute(sa.text(f"{insert} RETURNING quarantine_id"), values).scalar_one())


def quarantined(connection: Connection, receiver: str | None = None, state: str = "held") -> list[QuarantineRow]:
    """Rows in one state in the order they came, of one receiver or of all."""
    where = "state = :state" + (" AND receiver = :receiver" if receiver is not None else "")
    query = sa.text(f"SELECT {_ALL} FROM quarantine WHERE {where} ORDER BY quarantine_id")
    found = connection.execute(query, {"receiver": receiver, "state": state}).mappings()
    return [QuarantineRow(**row) for row in found]


def quarantine_of(connection: Connection, quarantine_id: int) -> QuarantineRow | None:
    """The row of an id, None where there is none."""
    query = sa.text(f"SELECT {_ALL} FROM quarantine WHERE quarantine_id = :id")
    row = connection.execute(query, {"id": quarantine_id}).mappings().one_or_none()
    return None if row is None else QuarantineRow(**row)


def held_of_path(connection: Connection, receiver: str, site_id: str, path: str) -> list[QuarantineRow]:
    """What of this path is held, oldest generation first."""
    query = sa.text(
        f"SELECT {_ALL} FROM quarantine WHERE receiver = :receiver AND site_id = :site AND path = :path "
        "AND state = 'held' ORDER BY generation, quarantine_id"
    )
    found = connection.execute(query, {"receiver": receiver, "site": site_id, "path": path}).mappings()
    return [QuarantineRow(**row) for row in found]


def end_quarantine(connection: Connection, quarantine_id: int, state: str) -> None:
    """`state`: released (loaded after all), dropped (by the operator), superseded (a newer generation is loaded)."""
    connection.execute(
        sa.text("UPDATE quarantine SET state = :state WHERE quarantine_id = :id"), {"state": state, "id": quarantine_id}
    )


def supersede_quarantine(connection: Connection, receiver: str, site_id: str, taken: Iterable[tuple[str, int]]) -> None:
    """Of each (path, generation): held and awaiting generations of the path up to this one matter no more."""
    last = dict(sorted(taken))
    query = sa.text(
        "SELECT quarantine_id, path, generation FROM quarantine "
        "WHERE receiver = :receiver AND site_id = :site AND state IN ('held', 'awaiting')"
    )
    rows = connection.execute(query, {"receiver": receiver, "site": site_id}).all() if last else ()
    over = [{"id": row[0]} for row in rows if row[2] <= last.get(row[1], -1)]
    write_rows(connection, "UPDATE quarantine SET state = 'superseded' WHERE quarantine_id = :id", over)


def quarantine_to_sweep(connection: Connection, receiver: str) -> list[QuarantineRow]:
    """Rows that are over but whose bytes may still lie in the quarantine."""
    query = sa.text(
        f"SELECT {_ALL} FROM quarantine WHERE receiver = :receiver AND state NOT IN ('held', 'awaiting') AND location <> ''"
    )
    return [QuarantineRow(**row) for row in connection.execute(query, {"receiver": receiver}).mappings()]


def forget_bytes(connection: Connection, quarantine_ids: Iterable[int]) -> None:
    """The held bytes are gone."""
    rows = [{"id": quarantine_id} for quarantine_id in quarantine_ids]
    write_rows(connection, "UPDATE quarantine SET location = '' WHERE quarantine_id = :id", rows)
