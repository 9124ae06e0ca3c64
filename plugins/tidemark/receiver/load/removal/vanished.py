"""Take vanished files out of the catalog, or keep and mark them, as `rules` decides. Runs inside the load's transaction.

Every load judges pending drops again. A drop that waits for a covering file therefore takes effect in the transaction that
brings this file. Source: DESIGN §3 "Vanished files", "Sources and merges".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.ledger.journal import record_many
from tidemark.ledger.receiver import (
    catalog as catalog_rows,
)
from tidemark.ledger.receiver import (
    landings as landing_rows,
)
from tidemark.ledger.receiver import (
    merges as merge_rows,
)
from tidemark.ledger.receiver import (
    refusals as refusal_rows,
)
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import DropRow
from tidemark.receiver.load.admit import Origin
from tidemark.receiver.load.removal.replaced import rank_anew, rank_below_live, troubles_of
from tidemark.receiver.load.removal.rules import (
    SETTLED,
    PathState,
    Presence,
    Survival,
    Vanished,
    Verdict,
    covering_closure,
    judge_by_points,
    judge_dropped,
    judge_superseded,
)
from tidemark.receiver.load.removal.survival import NOTHING_FOUND, Found, group_of
from tidemark.tsfiles.names import SourceName, may_hold, parse_former_path, parse_source_path, rank_of_source

_STATE_OF = {"leave": "done", "mark": "done", "leave_settled": "pending", "wait": "pending", "ask": "waiting"}
_NOT_ASKED = Found(None, trouble="nobody looked yet; the next load does")


@dataclass(frozen=True)
class _Picture:
    """What the receiver has of the affected paths, after this landing's files were recorded."""

    rows: Mapping[str, Sequence[CatalogFile]]  # source rows of a path, oldest generation first
    settled: frozenset[int]  # rows that are not live and whose points a merged file holds
    states: Mapping[str, PathState]


def apply_vanished(
    connection: Connection,
    origin: Origin,
    told: Iterable[DropRow],
    deletes: str,
    at: float,
    found: Mapping[str, Found] = NOTHING_FOUND,
) -> set[str]:
    """Apply the drops of a manifest and the pending ones. Return the paths that were judged.

    Call `replaced.recheck_settled` afterwards: it acts on paths whose points are in settled files. `deletes`: what the link
    does with drops (keep | apply; "": unknown). `found`: what became of the files' points, by path.
    """
    place = (origin.receiver, origin.site_id)
    new = list(told)
    rows = {(d.path, d.generation): d for d in [*landing_rows.read_drops(connection, *place, states=("pending",)), *new]}
    marked = landing_rows.drops_of_paths(connection, *place, found.keys() - {path for path, _ in rows})
    rows |= {(d.path, d.generation): d for d in marked.values()}
    if not rows:
        return set()
    landing_rows.put_drops(connection, *place, list(rows.values()))
    picture = _read_picture(connection, origin, rows.values())
    keep_below_live(connection, origin, dict(sorted(rows)), at)  # sorted: the newest generation of a path stays
    missing = _find_missing(connection, origin, rows.values(), picture)
    verdicts = [_judge_vanished_file(drop, picture, deletes, found, missing) for drop in rows.values()]
    again = {(drop.path, drop.generation) for drop in marked.values()}
    _apply_verdicts(connection, origin, verdicts, picture, at)
    judged = [
        drop if not deletes and drop.state == "done" and verdict.action == "wait" else _judged_drop(drop, verdict)
        for drop, verdict in zip(rows.values(), verdicts, strict=True)
    ]
    landing_rows.put_drops(connection, *place, judged)
    _report_drops(
        connection,
        origin,
        new,
        [v for v in verdicts if (v.vanished.path, v.vanished.generation) not in again or v.action == "leave"],
    )
    return {drop.path for drop in judged}


def keep_below_live(connection: Connection, origin: Origin, gone: Mapping[str, int], at: float) -> None:
    """Rank vanished files {path: newest generation} below all live files of their site, as soon as they are reported. Merged
    files that hold them together with live ones are withdrawn. Whether the files leave is judged elsewhere."""
    found = catalog_rows.sources_of_paths(connection, origin.receiver, origin.site_id, gone)
    told = [file for file in found if file.generation <= gone[file.path]]
    rank_below_live(connection, (origin.receiver, origin.site_id), told, at)


def lift_listed(connection: Connection, origin: Origin, listed: Iterable[str], at: float) -> None:
    """Restore the rank of kept files that the site lists again unchanged (a folder that was unmounted is mounted again)."""
    found = catalog_rows.sources_of_paths(connection, origin.receiver, origin.site_id, listed)
    back = {
        f.file_id: rank_of_source(source) for f in found if f.kept and (source := parse_source_path(f.path, origin.data))
    }
    if back:
        rank_anew(connection, origin.receiver, back, at)
        catalog_rows.mark_files(connection, back, None)


def _find_missing(connection: Connection, origin: Origin, drops: Iterable[DropRow], picture: _Picture) -> dict[str, str]:
    """Return path → a file at the site, with its trouble, that the catalog lacks and that may be compacted from it."""
    lacks: dict[tuple[str, str, int], list[SourceName]] = {}
    out: dict[str, str] = {}
    for drop in drops:
        name, group = parse_former_path(drop.path, origin.data), group_of(drop.path, origin.data)
        if name is None or group is None or picture.states[drop.path].presence is not Presence.LOADED:
            continue
        if group not in lacks:
            database, region, partition = group
            below = f"/{database}/{region}/{partition}/" if region else f"/{database}/"
            paths = landing_rows.not_loaded(connection, origin.receiver, origin.site_id, below)
            lacks[group] = [other for path in paths if (other := parse_source_path(path, origin.data))]
        if away := next((other.path for other in lacks[group] if may_hold(other, name)), ""):
            trouble = troubles_of(connection, origin.receiver, origin.site_id, [away]).get(away, "")
            out[drop.path] = f"{away} ({trouble})" if trouble else away
    return out


def _judge_vanished_file(
    drop: DropRow, picture: _Picture, deletes: str, found: Mapping[str, Found], missing: Mapping[str, str]
) -> Verdict:
    told = Vanished(drop.path, drop.generation, drop.kind, drop.covered_by)
    covered = judge_superseded(told, picture.states) if drop.kind == "superseded" and drop.covered_by else None
    if picture.states[drop.path].presence is Presence.LOADED and (covered is None or covered.action != "wait"):
        one = found.get(drop.path, _NOT_ASKED)
        if covered is not None and covered.action == "ask" and one.survival is Survival.GONE and deletes == "apply":
            return covered
        by = one.by if one.survival is Survival.LIVES else drop.covered_by
        kind = "superseded" if one.survival is Survival.LIVES else drop.kind
        vanished = Vanished(drop.path, drop.generation, kind, by)
        return judge_by_points(vanished, one.survival, missing.get(drop.path, ""), deletes, one.trouble or one.proof)
    return covered or judge_dropped(told, picture.states[drop.path], deletes)


def _read_picture(connection: Connection, origin: Origin, drops: Iterable[DropRow]) -> _Picture:
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
    settled = frozenset(s for sources in catalog_rows.merged_over(connection, gone).values() for s in sources)
    inventory = landing_rows.inventory_of(connection, *place, paths)
    troubles = troubles_of(connection, *place, paths)
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


def _apply_verdicts(
    connection: Connection, origin: Origin, verdicts: Iterable[Verdict], picture: _Picture, at: float
) -> None:
    leaving: list[int] = []
    marked: list[int] = []
    gone: list[tuple[str, int]] = []
    for verdict in verdicts:
        vanished = verdict.vanished
        live = [
            row.file_id
            for row in picture.rows.get(vanished.path, ())
            if row.state == "live" and row.generation <= vanished.generation
        ]
        if verdict.action == "leave":
            leaving += live
            gone.append((vanished.path, vanished.generation))
        elif verdict.action == "mark":
            marked += live
    refusal_rows.supersede_refusals(connection, origin.receiver, origin.site_id, gone)
    refusal_rows.supersede_quarantine(connection, origin.receiver, origin.site_id, gone)
    catalog_rows.retire_files(connection, leaving, at)
    merge_rows.unmerge_files(connection, origin.receiver, leaving, at)
    catalog_rows.mark_files(connection, marked, "dropped")


def _judged_drop(drop: DropRow, verdict: Verdict) -> DropRow:
    reason = SETTLED if verdict.action == "leave_settled" else verdict.reason or None
    state, found = _STATE_OF[verdict.action], verdict.vanished
    if verdict.action == "leave":  # the kind that was found, which may differ from the site's report
        return replace(drop, state=state, reason=reason, kind=found.kind, covered_by=found.covered_by)
    return replace(drop, state=state, reason=reason)


def still_waiting(connection: Connection, origin: Origin) -> tuple[tuple[str, str], ...]:
    """Return (path, reason) of vanished files that could not leave yet."""
    rows = landing_rows.read_drops(connection, origin.receiver, origin.site_id, states=("pending", "waiting"))
    return tuple((row.path, row.reason or "") for row in rows)


def _report_drops(connection: Connection, origin: Origin, new: Iterable[DropRow], verdicts: Iterable[Verdict]) -> None:
    place = {"site_id": origin.site_id, "landing": origin.landing}
    told = {(d.path, d.generation) for d in new}
    for verdict in verdicts:
        vanished = verdict.vanished
        event = {**place, "path": vanished.path, "generation": vanished.generation}
        if verdict.action == "mark":
            record_many(connection, "file.marked", [event])
        elif verdict.action == "leave":
            kind = "file.swapped" if vanished.kind == "superseded" else "file.removed"
            why = {"why": verdict.reason} if verdict.reason else {}
            record_many(connection, kind, [{**event, "covered_by": vanished.covered_by, **why}])
        elif (vanished.path, vanished.generation) in told:
            record_many(connection, "drop.pending", [{**event, "reason": verdict.reason or SETTLED}])
