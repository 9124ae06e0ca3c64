"""The link's rows: sites, links, a site's files, what the receiver has of them, schema logs sent, the newest try of a task.

Every function works in the caller's transaction. The `file` table is streamed as plain tuples, since a site may have a
million files. Tables: sql/0001_link_side.sql, sql/0011_link_attempt.sql.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import itemgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.processes import Identity
from tidemark.ledger.sql import in_chunks, read_tuples, write_rows, write_tuples

Extent = tuple[tuple[str, int, int], ...]
_FILE = "path, size, mtime, inode, mods_size, state, generation, sha256, reason, mods_mtime"
_FOLDERS = 64  # up to so many, a query for each folder is cheaper than reading every row


@dataclass(frozen=True)
class LinkRow:
    """A row of `link`; the columns are described there."""

    link: str
    site_id: str
    receiver: str
    next_sequence: int
    last_landing: str | None
    last_run: str | None
    guard: str | None
    guard_run: str | None
    approved_run: str | None
    listed: float | None = None
    selected: float | None = None


class Seen(NamedTuple):
    """A sealed file as listed, waiting to be acknowledged. `reason`: why it is not sent, None if it is. `mods_mtime`: of its
    mods, 0 without."""

    path: str
    size: int
    mtime: int
    inode: int
    reason: str | None
    mods_mtime: int = 0


class Acked(NamedTuple):
    """What a landing acknowledged of one path."""

    path: str
    size: int
    mtime: int
    inode: int
    mods_size: int
    generation: int
    sha256: str
    mods_sha256: str
    landing: str
    mods_mtime: int = 0


class Skipped(NamedTuple):
    """Why a listing skipped a file, and since when (seconds since 1970) for that reason."""

    reason: str
    since: float


def put_site(
    connection: Connection, site_id: str, name: str, time_unit: str, partition_interval_ms: int, *, prefix: str = ""
) -> None:
    """Write the site as the settings describe it."""
    connection.execute(
        sa.text(
            "INSERT INTO site (site_id, name, time_unit, partition_interval_ms, prefix, first_seen)"
            " VALUES (:id, :name, :unit, :interval, :prefix, :at) ON CONFLICT (site_id) DO UPDATE SET name = excluded.name,"
            " time_unit = excluded.time_unit, partition_interval_ms = excluded.partition_interval_ms,"
            " prefix = excluded.prefix"
        ),
        {
            "id": site_id,
            "name": name,
            "unit": time_unit,
            "interval": partition_interval_ms,
            "prefix": prefix,
            "at": database_time(connection),
        },
    )


def fixed_prefix(connection: Connection, site_id: str) -> str | None:
    """Return the prefix under which the site's first landing was sent, and so every later one; None: nothing was sent."""
    query = sa.text(
        "SELECT prefix FROM site WHERE site_id = :site AND EXISTS"
        " (SELECT 1 FROM link WHERE link.site_id = site.site_id AND link.next_sequence > 1)"
    )
    return connection.execute(query, {"site": site_id}).scalar()


def site_name(connection: Connection, site_id: str) -> str:
    """Return the name that the settings gave the site last; its id if it is not known."""
    sql = sa.text("SELECT name FROM site WHERE site_id = :site")
    return str(connection.execute(sql, {"site": site_id}).scalar() or site_id)


def devices_on_the_way(connection: Connection, links: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (site, its prefix, device) of the files that `links` have selected and no load has answered yet. Devices have
    the site's own names."""
    sql = (
        "SELECT site.site_id, site.prefix, file_extent.extent FROM link JOIN site ON site.site_id = link.site_id"
        " JOIN file ON file.link = link.link AND file.reason IS NULL"
        " JOIN file_extent ON file_extent.link = file.link AND file_extent.path = file.path"
        " WHERE link.link IN :many AND (file.state = 'waiting'"
        " OR file.landing IN (SELECT landing FROM sent_landing WHERE sent_landing.link = link.link AND state = 'landed'))"
    )
    for site_id, prefix, extent in in_chunks(connection, sql, links):
        yield from ((site_id, prefix, device) for device, _, _ in json.loads(extent))


def add_link(connection: Connection, link: str, site_id: str, receiver: str) -> None:
    """Insert a link that never ran; a known one stays."""
    connection.execute(
        sa.text(
            "INSERT INTO link (link, site_id, receiver, next_sequence) VALUES (:link, :site, :receiver, 1)"
            " ON CONFLICT (link) DO NOTHING"
        ),
        {"link": link, "site": site_id, "receiver": receiver},
    )


def get_link(connection: Connection, link: str) -> LinkRow | None:
    """Return the link's row; None if it never ran."""
    columns = ", ".join(LinkRow.__dataclass_fields__)
    row = connection.execute(sa.text(f"SELECT {columns} FROM link WHERE link = :link"), {"link": link}).one_or_none()
    return None if row is None else LinkRow(*row)


def set_link(connection: Connection, link: str, **columns: Any) -> None:
    """Change columns of the link's row."""
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    connection.execute(sa.text(f"UPDATE link SET {assignments} WHERE link = :link_"), {**columns, "link_": link})


def end_approval(connection: Connection, link: str, run_id: str) -> None:
    """End an approval once the approved drops are reported. A guard that `run_id` tripped over other drops stays."""
    set_link(connection, link, approved_run=None)
    sql = "UPDATE link SET guard = NULL, guard_run = NULL WHERE link = :link AND guard_run <> :run"
    connection.execute(sa.text(sql), {"link": link, "run": run_id})


def stream_files(connection: Connection, link: str) -> Iterator[Sequence[Any]]:
    """Yield (path, size, mtime, inode, mods_size, state, generation, sha256, reason, mods_mtime) of all files, ordered by
    path bytes."""
    collation = "" if connection.dialect.name == "sqlite" else ' COLLATE "C"'
    sql = f"SELECT {_FILE} FROM file WHERE link = :link ORDER BY path{collation}"
    return read_tuples(connection, sql, {"link": link})


def files_in(connection: Connection, link: str, folders: Collection[str]) -> list[Sequence[Any]]:
    """Return rows as `stream_files`, of the files directly in one of `folders`."""
    if len(folders) > _FOLDERS:
        return [row for row in stream_files(connection, link) if row[0].rpartition("/")[0] in folders]
    path = "path" if connection.dialect.name == "sqlite" else 'path COLLATE "C"'
    sql = sa.text(f"SELECT {_FILE} FROM file WHERE link = :link AND {path} >= :first AND {path} < :beyond")
    found: list[Sequence[Any]] = []
    for folder in folders:
        between = {"first": f"{folder}/", "beyond": f"{folder}0"} if folder else {"first": "", "beyond": "\U0010ffff"}
        rows = connection.execute(sql, {"link": link, **between})
        found += [row for row in rows if row[0].rpartition("/")[0] == folder]
    return sorted(found, key=itemgetter(0))


def add_files(connection: Connection, link: str, files: Iterable[Seen]) -> None:
    """Insert files that are new or have new content: they wait. Earlier acknowledgements stay recorded."""
    write_tuples(
        connection,
        "INSERT INTO file (link, path, size, mtime, inode, mods_size, state, generation, sha256, mods_sha256,"
        " first_seen, changed, reason) VALUES (:link, :path, :size, :mtime, :inode, 0, 'waiting', 0, '', '', :at,"
        " :at, :reason) ON CONFLICT (link, path) DO UPDATE SET size = excluded.size, mtime = excluded.mtime,"
        " inode = excluded.inode, state = 'waiting', changed = excluded.changed, reason = excluded.reason",
        Seen._fields,
        files,
        link=link,
        at=database_time(connection),
    )


def adopt_files(connection: Connection, link: str, files: Iterable[tuple[Seen, int]]) -> None:
    """Insert files that the receiver has by other means, with their mods' size: acknowledged as generation 0."""
    at = database_time(connection)
    rows = [{"link": link, "at": at, "mods_size": mods_size, **f._asdict()} for f, mods_size in files]
    write_rows(
        connection,
        "INSERT INTO file (link, path, size, mtime, inode, mods_size, mods_mtime, state, generation, sha256,"
        " mods_sha256, first_seen, changed, reason) VALUES (:link, :path, :size, :mtime, :inode, :mods_size,"
        " :mods_mtime, 'acked', 0, '', '', :at, :at, :reason) ON CONFLICT (link, path) DO UPDATE SET"
        " size = excluded.size, mtime = excluded.mtime, inode = excluded.inode, mods_size = excluded.mods_size,"
        " mods_mtime = excluded.mods_mtime, state = 'acked', changed = excluded.changed, reason = excluded.reason",
        rows,
    )


def adopted_paths(connection: Connection, link: str) -> frozenset[str]:
    """Return paths that count as sent because `adopt` found them at the receiver: no landing of ours brought them."""
    sql = "SELECT path FROM file WHERE link = :link AND state = 'acked' AND generation = 0"
    return frozenset(row[0] for row in connection.execute(sa.text(sql), {"link": link}))


def raise_generations(connection: Connection, link: str, newest: Mapping[str, int]) -> None:
    """Let the next contents of these paths have higher generations than these, which the receiver has had. A path that the
    link does not know counts as one that is gone."""
    at = database_time(connection)
    rows = [{"link": link, "at": at, "path": path, "g": generation} for path, generation in sorted(newest.items())]
    write_rows(
        connection,
        "INSERT INTO file (link, path, size, mtime, inode, mods_size, mods_mtime, state, generation, sha256,"
        " mods_sha256, first_seen, changed) VALUES (:link, :path, 0, 0, 0, 0, 0, 'gone', :g, '', '', :at, :at)"
        " ON CONFLICT (link, path) DO UPDATE SET generation = excluded.generation"
        " WHERE file.generation < excluded.generation",
        rows,
    )


def touch_files(connection: Connection, link: str, files: Iterable[Seen]) -> None:
    """Update times and inode of unchanged files, for comparison with the next listing."""
    rows = [{"link": link, **f._asdict()} for f in files]
    write_rows(
        connection,
        "UPDATE file SET mtime = :mtime, inode = :inode, mods_mtime = :mods_mtime WHERE link = :link AND path = :path",
        rows,
    )


def ack_files(connection: Connection, link: str, files: Iterable[Acked]) -> None:
    """Record that the receiver has these contents: acknowledged, from any state."""
    write_tuples(
        connection,
        "INSERT INTO file (link, path, size, mtime, inode, mods_size, mods_mtime, state, generation, sha256,"
        " mods_sha256, landing, first_seen, changed) VALUES (:link, :path, :size, :mtime, :inode, :mods_size,"
        " :mods_mtime, 'acked', :generation, :sha256, :mods_sha256, :landing, :at, :at) ON CONFLICT (link, path)"
        " DO UPDATE SET size = excluded.size, mtime = excluded.mtime, inode = excluded.inode,"
        " mods_size = excluded.mods_size, mods_mtime = excluded.mods_mtime, state = 'acked',"
        " generation = excluded.generation, sha256 = excluded.sha256, mods_sha256 = excluded.mods_sha256,"
        " landing = excluded.landing, changed = excluded.changed, reason = NULL",
        Acked._fields,
        files,
        link=link,
        at=database_time(connection),
    )


def mark_gone(connection: Connection, link: str, paths: Iterable[str]) -> None:
    """Mark files that vanished and were reported."""
    _update_files(connection, link, paths, "state = 'gone', reason = NULL")


def mark_held(connection: Connection, link: str, paths: Iterable[str]) -> None:
    """Mark files that vanished and were reported; their drop waits for the operator."""
    _update_files(connection, link, paths, "state = 'held'")


def mark_back(connection: Connection, link: str, paths: Iterable[str]) -> None:
    """Mark files that are listed again as they were acknowledged."""
    _update_files(connection, link, paths, "state = 'acked'")


def held_paths(connection: Connection, link: str, paths: Sequence[str]) -> frozenset[str]:
    """Return those of `paths` that were reported as vanished while their drop waits."""
    sql = "SELECT path FROM file WHERE link = :link AND state = 'held' AND path IN :many"
    return frozenset(row[0] for row in in_chunks(connection, sql, paths, link=link))


def mark_resend(connection: Connection, link: str, paths: Iterable[str], reason: str) -> None:
    """Let the files at these paths be sent again as a new generation."""
    _update_files(connection, link, paths, "state = 'waiting', reason = :reason", reason=reason)


def note_reason(connection: Connection, link: str, paths: Iterable[str], reason: str) -> None:
    """Record why these files are not in the centre although they were sent; the state stays."""
    _update_files(connection, link, paths, "reason = :reason", reason=reason)


def _update_files(connection: Connection, link: str, paths: Iterable[str], change: str, **values: str) -> None:
    at = database_time(connection)
    rows = [{"link": link, "path": path, "at": at, **values} for path in paths]
    write_rows(connection, f"UPDATE file SET {change}, changed = :at WHERE link = :link AND path = :path", rows)


def count_live(connection: Connection, link: str) -> int:
    """Count the link's files whose state is neither `gone` nor `held`."""
    sql = sa.text("SELECT COUNT(*) FROM file WHERE link = :link AND state NOT IN ('gone', 'held')")
    return int(connection.execute(sql, {"link": link}).scalar_one())


def acked_digests(connection: Connection, link: str, paths: Sequence[str]) -> Mapping[str, tuple[str, str, int]]:
    """Return {path: (sha256, mods_sha256, generation)} as acknowledged."""
    sql = "SELECT path, sha256, mods_sha256, generation FROM file WHERE link = :link AND path IN :many"
    return {r[0]: (r[1], r[2], r[3]) for r in in_chunks(connection, sql, paths, link=link)}


def acked_paths(connection: Connection, link: str, paths: Sequence[str]) -> frozenset[str]:
    """Return those of `paths` whose present content the receiver has."""
    sql = "SELECT path FROM file WHERE link = :link AND state = 'acked' AND path IN :many"
    return frozenset(row[0] for row in in_chunks(connection, sql, paths, link=link))


def states_of(connection: Connection, link: str, paths: Sequence[str]) -> Mapping[str, str]:
    """Return {path: state} for those of `paths` that are known."""
    sql = "SELECT path, state FROM file WHERE link = :link AND path IN :many"
    return {row[0]: row[1] for row in in_chunks(connection, sql, paths, link=link)}


def put_extents(connection: Connection, link: str, extents: Mapping[str, Extent]) -> None:
    """Write {path: extent} from the `.resource` of the sent content."""
    rows = [{"link": link, "path": p, "extent": json.dumps(e, ensure_ascii=False)} for p, e in extents.items()]
    write_rows(
        connection,
        "INSERT INTO file_extent (link, path, extent) VALUES (:link, :path, :extent)"
        " ON CONFLICT (link, path) DO UPDATE SET extent = excluded.extent",
        rows,
    )


def file_extents(connection: Connection, link: str, paths: Sequence[str]) -> Mapping[str, Extent]:
    """Return {path: extent} for those of `paths` that have one."""
    sql = "SELECT path, extent FROM file_extent WHERE link = :link AND path IN :many"
    found = in_chunks(connection, sql, paths, link=link)
    return {path: tuple((d, a, b) for d, a, b in json.loads(extent)) for path, extent in found}


def put_skipped(connection: Connection, link: str, skipped: Mapping[str, str]) -> None:
    """Write the files skipped by the newest listing; `since` stays while the reason does."""
    known = {path: one.reason for path, one in skipped_files(connection, link).items()}
    stale = [{"link": link, "path": p} for p, reason in known.items() if skipped.get(p) != reason]
    write_rows(connection, "DELETE FROM skipped_file WHERE link = :link AND path = :path", stale)
    at = database_time(connection)
    fresh = [{"link": link, "path": p, "reason": r, "at": at} for p, r in skipped.items() if known.get(p) != r]
    write_rows(connection, "INSERT INTO skipped_file (link, path, reason, since) VALUES (:link, :path, :reason, :at)", fresh)


def add_skipped(connection: Connection, link: str, skipped: Mapping[str, str]) -> None:
    """Add files that the newest listing skipped in another folder."""
    known = {path: one.reason for path, one in skipped_files(connection, link).items()}
    put_skipped(connection, link, {**known, **skipped})


def skipped_files(connection: Connection, link: str) -> Mapping[str, Skipped]:
    """Return the files that the newest listing skipped, by path."""
    rows = connection.execute(sa.text("SELECT path, reason, since FROM skipped_file WHERE link = :link"), {"link": link})
    return {str(path): Skipped(str(reason), float(since)) for path, reason, since in rows}


def note_listed(connection: Connection, link: str, at: float) -> None:
    """Record that a whole listing begun at `at` showed nothing new. A later recorded one stays."""
    sql = "UPDATE link SET listed = :at WHERE link = :link AND (listed IS NULL OR listed < :at)"
    connection.execute(sa.text(sql), {"link": link, "at": at})


def waiting_since(connection: Connection, link: str, paths: Sequence[str]) -> dict[str, float]:
    """Return {path: when this ledger recorded it} for those of `paths` that wait."""
    sql = "SELECT path, changed FROM file WHERE link = :link AND state = 'waiting' AND path IN :many"
    return {str(path): float(changed) for path, changed in in_chunks(connection, sql, paths, link=link)}


class SchemaPosition(NamedTuple):
    """How far a schema log was sent: `position` bytes of its `epoch`, with the digest `prefix_sha256`."""

    path: str
    position: int
    mtime: int
    prefix_sha256: str
    epoch: int


def schema_positions(connection: Connection, link: str) -> Mapping[str, SchemaPosition]:
    """Return {path of the log: how far it was sent}."""
    sql = "SELECT path, position, mtime, prefix_sha256, epoch FROM schema_position WHERE link = :link"
    return {row[0]: SchemaPosition(*row) for row in connection.execute(sa.text(sql), {"link": link})}


def put_schema_positions(connection: Connection, link: str, positions: Iterable[SchemaPosition]) -> None:
    """Write how far the logs were sent; callers only go forward within an epoch."""
    at = database_time(connection)
    rows = [{"link": link, "at": at, **p._asdict()} for p in positions]
    write_rows(
        connection,
        "INSERT INTO schema_position (link, path, position, mtime, prefix_sha256, epoch, updated)"
        " VALUES (:link, :path, :position, :mtime, :prefix_sha256, :epoch, :at) ON CONFLICT (link, path) DO UPDATE"
        " SET position = excluded.position, mtime = excluded.mtime, prefix_sha256 = excluded.prefix_sha256,"
        " epoch = excluded.epoch, updated = excluded.updated",
        rows,
    )


def forget_schema_prefix(connection: Connection, link: str, path: str) -> None:
    """Let a log be sent again from its start, under the next epoch: the receiver lacks some of its bytes."""
    sql = "UPDATE schema_position SET prefix_sha256 = '', mtime = -1 WHERE link = :link AND path = :path"
    connection.execute(sa.text(sql), {"link": link, "path": path})


WORKING, DONE, RETRYING, FAILED = "working", "done", "retrying", "failed"


@dataclass(frozen=True)
class Try:
    """A try of an orchestrator's task, for `status` between two tries, when no process holds a lease. `next_try`: seconds
    since 1970, None if none follows.

    A try is recorded before its step begins and when it ends. A killed worker leaves it `working`, and its identity shows
    that it is dead. Nothing is decided by it.
    """

    task: str
    state: str
    try_number: int
    tries: int
    next_try: float | None = None
    error: str = ""
    hint: str = ""


@dataclass(frozen=True)
class AttemptRow:
    """A recorded try. `noted`: when, seconds since 1970; `worker`: the process that recorded it."""

    attempt: Try
    worker: Identity
    noted: float


_TRY = tuple(f.name for f in fields(Try))
_WORKER = tuple(f.name for f in fields(Identity))


def put_attempt(connection: Connection, link: str, attempt: Try, worker: Identity) -> None:
    """Replace the newest try of the link."""
    values = {"link": link, **asdict(attempt), **asdict(worker), "noted": database_time(connection)}
    connection.execute(
        sa.text(
            f"INSERT INTO link_attempt ({', '.join(values)}) VALUES ({', '.join(':' + name for name in values)})"
            f" ON CONFLICT (link) DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in values if n != 'link')}"
        ),
        values,
    )


def forget_attempt(connection: Connection, link: str) -> None:
    """Delete the link's try: a command continues its run instead of an orchestrator's task."""
    connection.execute(sa.text("DELETE FROM link_attempt WHERE link = :link"), {"link": link})


def newest_attempts(connection: Connection) -> dict[str, AttemptRow]:
    """Return {link: its newest try}."""
    found = {}
    for row in connection.execute(sa.text("SELECT * FROM link_attempt")).mappings():
        attempt = Try(**{name: row[name] for name in _TRY})
        found[row["link"]] = AttemptRow(attempt, Identity(**{name: row[name] for name in _WORKER}), row["noted"])
    return found
