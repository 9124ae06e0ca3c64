"""Take vanished files out of the catalog, or keep and mark them: the acting half of `drops`, inside the load's transaction.

Every load looks again at what is still pending, so a drop that waited for a covering file happens in the transaction that
brings it. Source: DESIGN §3 "Vanished files", "Sources and merges".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.ledger import catalog_rows, landing_rows, merge_rows, owner_rows, trouble_rows
from tidemark.ledger.catalog_rows import CatalogFile
from tidemark.ledger.events import record_many
from tidemark.ledger.landing_rows import DropRow
from tidemark.load.admit import Origin
from tidemark.load.drops import (
    PathState,
    Presence,
    Vanished,
    Verdict,
    covering_closure,
    judge_dropped,
    judge_superseded,
)

_STATE_OF = {"leave": "done", "mark": "done", "leave_settled": "pending", "wait": "pending", "ask": "waiting"}
_SETTLED_REASON = "its points stand in a merged file together with those of files that the site still has"


@dataclass(frozen=True)
class _Picture:
    """What the receiver has of the paths concerned, after this landing's files were recorded."""

    rows: Mapping[str, Sequence[CatalogFile]]  # source rows of a path, oldest generation first
    settled: Mapping[int, tuple[int, ...]]  # row that is not live → merged files that stand for it
    states: Mapping[str, PathState]


def take_vanished(
    connection: Connection, origin: Origin, told: Iterable[DropRow], deletes: str, at: float
) -> tuple[tuple[str, str], ...]:
    """Apply what a manifest tells and what was pending before; returns (path, reason) of all that still wait.

    `deletes`: what the link does with drops (keep | apply).
    """
    place = (origin.receiver, origin.site_id)
    new = list(told)
    rows = {(d.path, d.generation): d for d in [*landing_rows.drops(connection, *place, states=("pending",)), *new]}
    if not rows:
        return _still_waiting(connection, origin)
    landing_rows.put_drops(connection, *place, list(rows.values()))
    picture = _look(connection, origin, rows.values())
    verdicts = [_judge(drop, picture, deletes) for drop in rows.values()]
    _act(connection, origin, verdicts, picture, at)
    judged = [_recorded(drop, verdict) for drop, verdict in zip(rows.values(), verdicts, strict=True)]
    judged = _leave_settled(connection, origin, judged, picture, at)
    landing_rows.put_drops(connection, *place, judged)
    _tell(connection, origin, new, verdicts)
    return _still_waiting(connection, origin)


def replace_settled(connection: Connection, origin: Origin, paths: Iterable[str], at: float) -> None:
    """Retire merged files that stand alone once every one of their sources came again under a newer generation."""
    place = (origin.receiver, origin.site_id)
    old = catalog_rows.sources_of_paths(connection, *place, paths, ("retired", "reclaimed"))
    for merged_id, source_ids in catalog_rows.merged_over(connection, [row.file_id for row in old]).items():
        sources = catalog_rows.files_by_id(connection, source_ids)
        live = {row.path for row in catalog_rows.sources_of_paths(connection, *place, [s.path for s in sources])}
        if all(source.path in live for source in sources):
            catalog_rows.retire_files(connection, [merged_id], at)


def _judge(drop: DropRow, picture: _Picture, deletes: str) -> Verdict:
    vanished = Vanished(drop.path, drop.generation, drop.kind, drop.covered_by)
    if drop.kind == "superseded" and drop.covered_by:
        return judge_superseded(vanished, picture.states)
    return judge_dropped(vanished, picture.states[drop.path], deletes)


def _look(connection: Connection, origin: Origin, drops: Iterable[DropRow]) -> _Picture:
    place = (origin.receiver, origin.site_id)
    vanished = [Vanished(d.path, d.generation, d.kind, d.covered_by) for d in drops]
    told = {v.path: v for v in vanished}
    covered_by = {v.path: v.covered_by for v in vanished if v.kind == "superseded"}
    paths: set[str] = set()
    older: dict[str, DropRow] = {}
    while (closure := covering_closure(vanished, covered_by)) != paths:
        older |= landing_rows.drops_of_paths(connection, *place, closure - paths)
        covered_by |= {d.path: d.covered_by for d in older.values() if d.kind == "superseded" and d.path not in told}
        paths = closure
    rows: dict[str, list[CatalogFile]] = {}
    for row in catalog_rows.sources_of_paths(connection, *place, paths, ("live", "retired", "reclaimed")):
        rows.setdefault(row.path, []).append(row)
    gone = [row.file_id for found in rows.values() for row in found if row.state != "live"]
    settled: dict[int, tuple[int, ...]] = {}
    for merged_id, sources in catalog_rows.merged_over(connection, gone).items():
        for source in sources:
            settled[source] = (*settled.get(source, ()), merged_id)
    inventory = landing_rows.inventory_of(connection, *place, paths)
    troubles = _troubles(connection, origin, paths)
    dropped = {d.path for d in older.values() if d.kind == "dropped"} | {v.path for v in vanished if v.kind == "dropped"}
    states = {}
    for path in paths:
        newest = rows[path][-1] if path in rows else None
        carried = inventory[path].generation if path in inventory else 0
        presence = Presence.ABSENT
        if newest is not None and newest.state == "live" and newest.generation >= carried:
            presence = Presence.LOADED
        elif newest is not None and newest.file_id in settled:
            presence = Presence.SETTLED
        states[path] = PathState(presence, covered_by.get(path), path in dropped, troubles.get(path, ""))
    return _Picture(rows, settled, states)


def _troubles(connection: Connection, origin: Origin, paths: Iterable[str]) -> dict[str, str]:
    """Why a path is absent, where the reason is known here."""
    wanted = set(paths)
    found: dict[str, str] = {}
    for refusal in owner_rows.refusals(connection, origin.receiver, site_id=origin.site_id):
        if refusal.path in wanted:
            found[refusal.path] = f"refused, since device {refusal.device} belongs to another site"
    for held in trouble_rows.quarantined(connection, origin.receiver):
        if held.site_id == origin.site_id and held.path in wanted:
            found[held.path] = f"in quarantine as {held.quarantine_id}: {held.reason}"
    return found


def _act(connection: Connection, origin: Origin, verdicts: Iterable[Verdict], picture: _Picture, at: float) -> None:
    leaving: list[int] = []
    marked: list[int] = []
    for verdict in verdicts:
        vanished = verdict.vanished
        live = [
            row.file_id
            for row in picture.rows.get(vanished.path, ())
            if row.state == "live" and row.generation <= vanished.generation
        ]
        if verdict.action == "leave":
            leaving += live
            place = (origin.receiver, origin.site_id, vanished.path, vanished.generation)
            owner_rows.supersede_refusals(connection, *place)
            trouble_rows.supersede_quarantine(connection, *place)
        elif verdict.action == "mark":
            marked += live
    catalog_rows.retire_files(connection, leaving, at)
    merge_rows.unmerge(connection, origin.receiver, leaving, at)
    catalog_rows.mark_dropped(connection, marked)


def _leave_settled(
    connection: Connection, origin: Origin, judged: Sequence[DropRow], picture: _Picture, at: float
) -> list[DropRow]:
    """Retire merged files that stand alone when all their sources are superseded and covered; else they go on waiting."""
    may_leave = {row.file_id for d in judged if d.reason == _SETTLED_REASON for row in picture.rows.get(d.path, ())}
    merged = {m for file_id in may_leave for m in picture.settled.get(file_id, ())}
    replaced: set[int] = set()
    for merged_id, sources in catalog_rows.merged_over(connection, may_leave).items():
        others = catalog_rows.files_by_id(connection, set(sources) - may_leave)
        live = {
            row.path
            for row in catalog_rows.sources_of_paths(connection, origin.receiver, origin.site_id, [o.path for o in others])
        }
        if merged_id in merged and all(other.path in live for other in others):
            replaced.add(merged_id)
    catalog_rows.retire_files(connection, sorted(replaced), at)
    done = {file_id for file_id in may_leave if set(picture.settled.get(file_id, ())) <= replaced}
    return [
        replace(d, state="done", reason=None)
        if d.reason == _SETTLED_REASON and picture.rows[d.path][-1].file_id in done
        else d
        for d in judged
    ]


def _recorded(drop: DropRow, verdict: Verdict) -> DropRow:
    reason = _SETTLED_REASON if verdict.action == "leave_settled" else verdict.reason or None
    return replace(drop, state=_STATE_OF[verdict.action], reason=reason)


def _still_waiting(connection: Connection, origin: Origin) -> tuple[tuple[str, str], ...]:
    rows = landing_rows.drops(connection, origin.receiver, origin.site_id, states=("pending", "waiting"))
    return tuple((row.path, row.reason or "") for row in rows)


def _tell(connection: Connection, origin: Origin, new: Iterable[DropRow], verdicts: Iterable[Verdict]) -> None:
    place = {"site_id": origin.site_id, "landing": origin.landing}
    told = {(d.path, d.generation) for d in new}
    for verdict in verdicts:
        vanished = verdict.vanished
        event = {**place, "path": vanished.path, "generation": vanished.generation}
        if verdict.action == "mark":
            record_many(connection, "file.marked", [event])
        elif verdict.action == "leave":
            kind = "file.swapped" if vanished.kind == "superseded" else "file.removed"
            record_many(connection, kind, [{**event, "covered_by": vanished.covered_by}])
        elif (vanished.path, vanished.generation) in told:
            record_many(connection, "drop.pending", [{**event, "reason": verdict.reason or _SETTLED_REASON}])
