"""The rows of a run: its work, its landings, its progress.

Every function works in the caller's transaction. A run is continued from these rows alone: `run_item` has the selected files
and their states, `sent_landing` the manifests that are reserved or whole. Tables: sql/0001_link_side.sql.

`put_progress` records how far a link's run is, as its process reports it. Other processes show it; nothing is decided by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.database import database_time
from tidemark.ledger.sql import in_chunks, read_tuples, write_rows, write_tuples
from tidemark.progress import Figures, Tick

SEND, MODS, DROP, SUPERSEDE = "send", "mods", "drop", "supersede"
PLANNED, PINNED, SENT, LANDED, FAILED, VANISHED, HELD = (
    "planned",
    "pinned",
    "sent",
    "landed",
    "failed",
    "vanished",
    "held",
)
TO_SEND = (PLANNED, PINNED)


@dataclass(frozen=True)
class RunRow:
    """One row of `run`. Times are seconds since 1970, sizes bytes."""

    run_id: str
    link: str
    state: str  # running | finished | failed
    step: str
    fence: int
    started: float
    options: str
    inventory: str | None
    files: int
    bytes: int
    sent_bytes: int
    dropped: int
    pending: int
    schema_bytes: int
    error_kind: int | None
    error: str | None
    hint: str | None


class RunItem(NamedTuple):
    """One path of a run; a row of `run_item`, where the columns are described."""

    path: str
    action: str
    state: str
    size: int = 0
    mtime: int = 0
    inode: int = 0
    mods_path: str = ""
    mods_size: int = 0
    mods_mtime: int = 0
    resource_size: int = 0
    generation: int = 0
    part: int | None = None
    sha256: str | None = None
    mods_sha256: str | None = None
    resource_sha256: str | None = None
    verified: str | None = None
    covered_by: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of a sealed file at the source: TsFile, `.resource`, mods."""
        return (self.path, self.path + ".resource", *([self.mods_path] if self.mods_path else []))


@dataclass(frozen=True)
class RunSchema:
    """Bytes `start`..`start + size` of a schema log, durable at the receiver under `landed_path`."""

    path: str
    epoch: int
    start: int
    size: int
    mtime: int
    sha256: str
    prefix_sha256: str
    landed_path: str
    state: str = SENT


@dataclass(frozen=True)
class SentLanding:
    """One row of `sent_landing`: a landing as its sender knows it."""

    landing: str
    run_id: str
    link: str
    part: int
    sequence: int
    previous: str | None
    state: str  # closing | landed | answered
    last: bool
    created: float
    manifest_sha256: str
    files: int
    bytes: int
    receipt: str | None = None


_RUN = ", ".join(f.name for f in fields(RunRow))
_ITEM = RunItem._fields
_COVERED_BY = _ITEM.index("covered_by")
_LANDING = tuple(f.name for f in fields(SentLanding))
_SCHEMA = tuple(f.name for f in fields(RunSchema))


def add_run(connection: Connection, run_id: str, link: str, fence: int, options: Mapping[str, Any]) -> None:
    """Insert a new run, before its first step."""
    connection.execute(
        sa.text(
            "INSERT INTO run (run_id, link, state, step, fence, started, options, files, bytes, sent_bytes, dropped,"
            " pending, schema_bytes, worked)"
            " VALUES (:run, :link, 'running', 'opened', :fence, :at, :options, 0, 0, 0, 0, 0, 0, 0)"
        ),
        {"run": run_id, "link": link, "fence": fence, "at": database_time(connection), "options": json.dumps(options)},
    )


def get_run(connection: Connection, run_id: str) -> RunRow | None:
    """Return the run's row; None if this ledger does not know it."""
    row = connection.execute(sa.text(f"SELECT {_RUN} FROM run WHERE run_id = :run"), {"run": run_id}).one_or_none()
    return None if row is None else RunRow(*row)


def finished_since(connection: Connection, link: str, since: float) -> Sequence[RunRow]:
    """Return the link's runs that began at `since` or later and ended without an error, the newest first."""
    where = "link = :link AND state = 'finished' AND error IS NULL AND started >= :since"
    query = sa.text(f"SELECT {_RUN} FROM run WHERE {where} ORDER BY started DESC, run_id DESC")
    return [RunRow(*row) for row in connection.execute(query, {"link": link, "since": since})]


def unfinished_run(connection: Connection, link: str) -> str | None:
    """Return the id of the link's run that has not ended; None if all have. A link has at most one."""
    sql = "SELECT run_id FROM run WHERE link = :link AND state <> 'finished' ORDER BY started, run_id LIMIT 1"
    found = connection.execute(sa.text(sql), {"link": link}).scalar()
    return None if found is None else str(found)


def known_runs(connection: Connection, link: str, asked: Iterable[str]) -> frozenset[str]:
    """Return which of the run ids are runs of the link in this ledger."""
    sql = "SELECT run_id FROM run WHERE link = :link AND run_id IN :many"
    return frozenset(row[0] for row in in_chunks(connection, sql, asked, link=link))


def set_run(connection: Connection, run_id: str, **columns: Any) -> None:
    """Change columns of the run's row."""
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    connection.execute(sa.text(f"UPDATE run SET {assignments} WHERE run_id = :run_"), {**columns, "run_": run_id})


def add_to_run(connection: Connection, run_id: str, **amounts: float) -> None:
    """Add amounts to columns of the run's row."""
    changes = ", ".join(f"{name} = {name} + :{name}" for name in amounts)
    connection.execute(sa.text(f"UPDATE run SET {changes} WHERE run_id = :run_"), {**amounts, "run_": run_id})


def set_success(connection: Connection, link: str, run_id: str, at: float) -> None:
    """Record the link's newest run that ended well."""
    sql = "UPDATE link SET last_run = :run, last_success = :at WHERE link = :link"
    connection.execute(sa.text(sql), {"run": run_id, "at": at, "link": link})


def run_of(connection: Connection, external: str) -> str | None:
    """Return the run of an orchestrator's run id."""
    found = connection.execute(sa.text("SELECT run_id FROM run_alias WHERE external = :e"), {"e": external}).scalar()
    return None if found is None else str(found)


def add_alias(connection: Connection, external: str, run_id: str) -> None:
    """Add an orchestrator's name of a run; a known name keeps its run."""
    connection.execute(
        sa.text("INSERT INTO run_alias (external, run_id) VALUES (:e, :run) ON CONFLICT (external) DO NOTHING"),
        {"e": external, "run": run_id},
    )


def item_bytes(item: RunItem) -> int:
    """Return the bytes that an item sends."""
    return item.mods_size if item.action == MODS else item.size + item.mods_size + item.resource_size


def add_items(connection: Connection, run_id: str, items: Iterable[RunItem]) -> None:
    """Insert the run's work, one row for each path."""
    columns = ", ".join(("run_id", *_ITEM))
    values = ", ".join(f":{name}" for name in ("run_id", *_ITEM))
    write_tuples(
        connection, f"INSERT INTO run_item ({columns}) VALUES ({values})", _ITEM, map(_item_values, items), run_id=run_id
    )


def read_items(connection: Connection, run_id: str, *states: str, part: int | None = None) -> Iterator[RunItem]:
    """Yield the run's items in one of `states` (all without any), ordered by path."""
    where = ["run_id = :run"]
    if states:
        where.append("state IN (" + ", ".join(f"'{s}'" for s in states) + ")")
    if part is not None:
        where.append("part = :part")
    sql = f"SELECT {', '.join(_ITEM)} FROM run_item WHERE {' AND '.join(where)} ORDER BY path"
    return map(
        _item_of_row, read_tuples(connection, sql, {"run": run_id, "part": part} if part is not None else {"run": run_id})
    )


def items_at(connection: Connection, run_id: str, paths: Sequence[str]) -> Sequence[RunItem]:
    """Return the items of these paths, in the paths' order."""
    sql = f"SELECT {', '.join(_ITEM)} FROM run_item WHERE run_id = :run AND path IN :many"
    found = {item.path: item for item in map(_item_of_row, in_chunks(connection, sql, paths, run=run_id))}
    return [found[path] for path in paths if path in found]


def item_sizes(connection: Connection, run_id: str) -> Sequence[tuple[str, int, str]]:
    """Return (path, bytes with companions, state) of every item that is sent."""
    size = f"CASE action WHEN '{MODS}' THEN mods_size ELSE size + mods_size + resource_size END"
    sql = f"SELECT path, {size}, state FROM run_item WHERE run_id = :run AND action IN ('{SEND}', '{MODS}')"
    return [(str(p), int(n), str(s)) for p, n, s in connection.execute(sa.text(sql), {"run": run_id})]


def set_items(connection: Connection, run_id: str, changes: Iterable[Mapping[str, Any]]) -> None:
    """Change columns of items; every mapping has `path` and the same other columns."""
    rows = [{**change, "run_": run_id} for change in changes]
    if rows:
        names = [name for name in rows[0] if name not in ("path", "run_")]
        assignments = ", ".join(f"{name} = :{name}" for name in names)
        write_rows(connection, f"UPDATE run_item SET {assignments} WHERE run_id = :run_ AND path = :path", rows)


def set_landed(connection: Connection, run_id: str, part: int) -> None:
    """Mark everything sent with this part as landed: its landing is closed."""
    sql = f"UPDATE run_item SET state = '{LANDED}' WHERE run_id = :run AND part = :part AND state = '{SENT}'"
    connection.execute(sa.text(sql), {"run": run_id, "part": part})


def count_items(connection: Connection, run_id: str) -> Mapping[tuple[str, str], int]:
    """Return {(action, state): number} of a run's items."""
    sql = "SELECT action, state, COUNT(*) FROM run_item WHERE run_id = :run GROUP BY action, state"
    return {(a, s): int(n) for a, s, n in connection.execute(sa.text(sql), {"run": run_id})}


def add_landing(connection: Connection, landing: SentLanding) -> None:
    """Insert a landing that is about to be closed."""
    names = [n for n in _LANDING if n != "receipt"]
    row = {n: getattr(landing, n) for n in names}
    connection.execute(
        sa.text(f"INSERT INTO sent_landing ({', '.join(names)}) VALUES ({', '.join(':' + n for n in names)})"),
        {**row, "last": int(landing.last)},
    )


def set_landing(connection: Connection, landing: str, **columns: Any) -> None:
    """Change columns of a landing's row."""
    assignments = ", ".join(f"{name} = :{name}" for name in columns)
    connection.execute(
        sa.text(f"UPDATE sent_landing SET {assignments} WHERE landing = :landing_"), {**columns, "landing_": landing}
    )


def remove_landing(connection: Connection, landing: str) -> None:
    """Delete a landing that was never closed: its number is free again."""
    connection.execute(
        sa.text("DELETE FROM sent_landing WHERE landing = :landing AND state = 'closing'"), {"landing": landing}
    )


def sent_landings(
    connection: Connection, link: str, *, run_id: str | None = None, state: str | None = None
) -> Sequence[SentLanding]:
    """Return the link's landings in their sequence, of one run or in one state if given."""
    where, values = ["link = :link"], {"link": link}
    for column, value in (("run_id", run_id), ("state", state)):
        if value is not None:
            where.append(f"{column} = :{column}")
            values[column] = value
    sql = f"SELECT {', '.join(_LANDING)} FROM sent_landing WHERE {' AND '.join(where)} ORDER BY sequence"
    found = connection.execute(sa.text(sql), values)
    return [SentLanding(**{**dict(zip(_LANDING, r, strict=True)), "last": bool(r.last)}) for r in found]


def landing_names(connection: Connection, link: str) -> Sequence[str]:
    """Return the ids of all landings of the link, in their sequence."""
    sql = "SELECT landing FROM sent_landing WHERE link = :link ORDER BY sequence"
    return [str(row[0]) for row in connection.execute(sa.text(sql), {"link": link})]


def put_schema(connection: Connection, run_id: str, piece: RunSchema) -> None:
    """Insert a piece of a schema log that is durable at the receiver; one for each run and log."""
    connection.execute(
        sa.text(
            f"INSERT INTO run_schema (run_id, {', '.join(_SCHEMA)}) VALUES (:run_id, {', '.join(':' + n for n in _SCHEMA)})"
            " ON CONFLICT (run_id, path) DO NOTHING"
        ),
        {"run_id": run_id, **dict(zip(_SCHEMA, astuple(piece), strict=True))},
    )


def schema_pieces(connection: Connection, run_id: str) -> Sequence[RunSchema]:
    """Return the run's pieces ordered by path."""
    sql = f"SELECT {', '.join(_SCHEMA)} FROM run_schema WHERE run_id = :run ORDER BY path"
    return [RunSchema(*row) for row in connection.execute(sa.text(sql), {"run": run_id})]


def remove_schema(connection: Connection, run_id: str, paths: Iterable[str]) -> None:
    """Delete pieces that are not at the receiver any more."""
    rows = [{"run": run_id, "path": path} for path in paths]
    if rows:
        write_rows(connection, "DELETE FROM run_schema WHERE run_id = :run AND path = :path", rows)


def set_schema_landed(connection: Connection, run_id: str) -> None:
    """Mark all pieces of the run as landed: they are in a closed landing."""
    connection.execute(sa.text("UPDATE run_schema SET state = 'landed' WHERE run_id = :run"), {"run": run_id})


def trim_runs(connection: Connection, before: float) -> int:
    """Delete the items of runs that finished before `before` and that no approval waits for; return how many."""
    sql = (
        "DELETE FROM {table} WHERE run_id IN (SELECT run_id FROM run WHERE state = 'finished' AND ended < :before)"
        " AND run_id NOT IN (SELECT guard_run FROM link WHERE guard_run IS NOT NULL)"
        " AND run_id NOT IN (SELECT approved_run FROM link WHERE approved_run IS NOT NULL)"
    )
    removed = 0
    for table in ("run_item", "run_schema"):
        removed += connection.execute(sa.text(sql.format(table=table)), {"before": before}).rowcount
    return removed


def _item_of_row(row: Sequence[Any]) -> RunItem:
    covered_by = row[_COVERED_BY]
    return RunItem._make((*row[:_COVERED_BY], tuple(json.loads(covered_by)) if covered_by else (), *row[_COVERED_BY + 1 :]))


def _item_values(item: RunItem) -> tuple[Any, ...]:
    """Return the values of the columns."""
    covered_by = json.dumps(item.covered_by) if item.covered_by else None
    return (*item[:_COVERED_BY], covered_by, *item[_COVERED_BY + 1 :])


_COLUMNS = ("phase", "files", "files_total", "bytes", "bytes_total", "rate", "seconds_left")


def put_progress(connection: Connection, link: str, run_id: str, figures: Figures) -> None:
    """Replace the newest figures of the link's run."""
    t = figures.tick
    said = (t.phase, t.done, t.total, t.bytes_done, t.bytes_total, figures.rate, figures.left)
    values = {"link": link, "run_id": run_id, **dict(zip(_COLUMNS, said, strict=True)), "noted": database_time(connection)}
    connection.execute(
        sa.text(
            f"INSERT INTO link_progress ({', '.join(values)}) VALUES ({', '.join(':' + name for name in values)})"
            f" ON CONFLICT (link) DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in values if n != 'link')}"
        ),
        values,
    )


def progress_of(connection: Connection) -> dict[str, Figures]:
    """Return {run: its figures} of every link's newest run with figures."""
    rows = connection.execute(sa.text(f"SELECT run_id, {', '.join(_COLUMNS)} FROM link_progress"))
    return {
        str(run): Figures(Tick(phase, int(done), int(total), int(some), int(all_)), float(rate), left)
        for run, phase, done, total, some, all_, rate, left in rows
    }
