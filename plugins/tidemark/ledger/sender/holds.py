"""Files that a sender must return to: without a digest made at the source, or in quarantine at the link.

Every function works in the caller's transaction. Tables: sql/0006_sender_care.sql.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.sql import in_chunks, write_rows

HELD, RELEASED, DROPPED = "held", "released", "dropped"


class Sent(NamedTuple):
    """An acknowledged path. `verified`: its digest was made at the source. `whole`: the TsFile came; otherwise only grown
    mods, which prove nothing about the TsFile."""

    path: str
    generation: int
    verified: bool
    whole: bool


class Held(NamedTuple):
    """A row of `link_quarantine`. Sizes in bytes, times in seconds since 1970."""

    quarantine_id: int
    link: str
    path: str
    size: int
    mtime: int
    mods_size: int
    run_id: str
    at: float
    reason: str
    state: str = HELD

    @property
    def name(self) -> str:
        """The operator's name of it; a receiver's quarantine has bare numbers."""
        return f"s{self.quarantine_id}"


_HELD = ", ".join(Held._fields)


def note_sent(connection: Connection, link: str, sent: Sequence[Sent]) -> None:
    """Record files that are not verified at the source; forget those that now are."""
    weak = [s for s in sent if not s.verified]
    known = unverified_of(connection, link, [s.path for s in sent]) if any_unverified(connection, link) else frozenset()
    end_unverified(connection, link, [s.path for s in sent if s.verified and s.whole and s.path in known])
    grown = [s for s in sent if s.verified and not s.whole and s.path in known]
    at = database_time(connection)
    rows = [{"link": link, "path": s.path, "generation": s.generation, "at": at} for s in (*weak, *grown)]
    write_rows(
        connection,
        "INSERT INTO unverified (link, path, generation, since) VALUES (:link, :path, :generation, :at)"
        " ON CONFLICT (link, path) DO UPDATE SET generation = excluded.generation, since = excluded.since",
        rows,
    )


def end_unverified(connection: Connection, link: str, paths: Iterable[str]) -> None:
    """Forget these: they are verified, or vanished."""
    rows = [{"link": link, "path": path} for path in paths]
    write_rows(connection, "DELETE FROM unverified WHERE link = :link AND path = :path", rows)


def any_unverified(connection: Connection, link: str) -> bool:
    found = connection.execute(sa.text("SELECT 1 FROM unverified WHERE link = :link LIMIT 1"), {"link": link})
    return found.scalar() is not None


def count_unverified(connection: Connection) -> Mapping[str, int]:
    """Return {link: number of files at the receiver that are not verified at the source}."""
    return {r[0]: int(r[1]) for r in connection.execute(sa.text("SELECT link, COUNT(*) FROM unverified GROUP BY link"))}


def unverified_of(connection: Connection, link: str, paths: Sequence[str]) -> frozenset[str]:
    """Return those of `paths` that are not verified at the source."""
    sql = "SELECT path FROM unverified WHERE link = :link AND path IN :many"
    return frozenset(path for (path,) in in_chunks(connection, sql, paths, link=link))


def quarantine_file(connection: Connection, held: Held) -> str:
    """Put a file into the link's quarantine (`quarantine_id` and `at` are made here); return its name there."""
    end_held(connection, held.link, [held.path])
    names = [name for name in Held._fields if name != "quarantine_id"]
    insert = f"INSERT INTO link_quarantine ({', '.join(names)}) VALUES ({', '.join(':' + n for n in names)})"
    values = {**{name: getattr(held, name) for name in names}, "at": database_time(connection)}
    made = connection.execute(sa.text(f"{insert} RETURNING quarantine_id"), values).scalar_one()
    return held._replace(quarantine_id=int(made)).name


def held_files(connection: Connection) -> list[Held]:
    """Return the files that wait for the operator, at any link."""
    sql = sa.text(f"SELECT {_HELD} FROM link_quarantine WHERE state = 'held' ORDER BY quarantine_id")
    return [Held(*row) for row in connection.execute(sql)]


def held_or_dropped(connection: Connection, link: str) -> list[Held]:
    """Return the files that no run of the link sends: held, or dropped."""
    sql = f"SELECT {_HELD} FROM link_quarantine WHERE link = :link AND state IN ('held', 'dropped') ORDER BY quarantine_id"
    return [Held(*row) for row in connection.execute(sa.text(sql), {"link": link})]


def held_as(connection: Connection, quarantine_id: int) -> Held | None:
    """Return one row, in any state."""
    sql = sa.text(f"SELECT {_HELD} FROM link_quarantine WHERE quarantine_id = :id")
    row = connection.execute(sql, {"id": quarantine_id}).one_or_none()
    return None if row is None else Held(*row)


def decide_held(connection: Connection, quarantine_id: int, state: str) -> None:
    """Record the operator's decision: RELEASED (the next run sends it) or DROPPED (none does)."""
    sql = "UPDATE link_quarantine SET state = :state WHERE quarantine_id = :id"
    connection.execute(sa.text(sql), {"id": quarantine_id, "state": state})


def end_held(connection: Connection, link: str, paths: Iterable[str]) -> None:
    """End the quarantine of files that are sent after all, have other content or vanished."""
    sql = "SELECT DISTINCT path FROM link_quarantine WHERE link = :link AND state <> 'over'"
    known = {row[0] for row in connection.execute(sa.text(sql), {"link": link})}
    rows = [{"link": link, "path": path} for path in paths if path in known]
    sql = "UPDATE link_quarantine SET state = 'over' WHERE link = :link AND path = :path AND state <> 'over'"
    write_rows(connection, sql, rows)


def has_carried(connection: Connection, receiver: str, site_id: str, landing: str, manifest_sha256: str) -> bool:
    """Return whether a run of this ledger brought this landing of the site to the receiver. Runs that a rebuild found there
    have no fence and do not count."""
    sql = (
        "SELECT 1 FROM sent_landing s JOIN run r ON r.run_id = s.run_id JOIN link l ON l.link = s.link"
        " WHERE s.landing = :landing AND s.manifest_sha256 = :sha256 AND r.fence > 0"
        " AND l.receiver = :receiver AND l.site_id = :site"
    )
    values = {"landing": landing, "sha256": manifest_sha256, "receiver": receiver, "site": site_id}
    return connection.execute(sa.text(sql), values).first() is not None
