"""Replace settled merged files whose sources changed, or report which of their sources are late.

`recheck_settled` acts inside the transaction that brings the change, so readers pass from a settled file to its
replacement in one step. The missing files are recorded with the merged files (`merge_account.waits`), and the receipt
asks the site to send them. Every later landing asks again. The rules are in `settled`.

`leave_approved` applies the operator's approval to vanished files. A dropped file whose points settled into a merged file
cannot leave alone. The receipt asks for the other sources, and the merged file leaves when they have arrived. Until then
the ledger records what is missing.

Source: DESIGN §3 "Sources and merges" ("a later drop waits for the operator"),
docs/decisions/0007-settled-files-are-replaced-whole.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.ledger.journal import record_many
from tidemark.ledger.receiver import (
    catalog as catalog_rows,
)
from tidemark.ledger.receiver import (
    iotdb as iotdb_rows,
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
from tidemark.ledger.receiver import (
    settled as settled_rows,
)
from tidemark.ledger.receiver.catalog import CatalogFile, Rank, below_live
from tidemark.ledger.receiver.landings import GIVEN_UP, DropRow, InventoryRow
from tidemark.ledger.receiver.settled import SettledSet
from tidemark.receiver.load.removal.rules import APPROVED, KEPT, SETTLED
from tidemark.receiver.load.removal.settled import Outcome, Requested, Root, SourceFate, is_outranked, judge_settled_set


@dataclass(frozen=True)
class Late:
    """`waits`: {path: why} of files whose content readers do not see yet. `again`: files that the site shall resend."""

    waits: Mapping[str, str]
    again: tuple[Requested, ...] = ()


@dataclass(frozen=True)
class _LedgerFacts:
    """The ledger's rows about the paths of a settled set."""

    live: Mapping[str, CatalogFile]
    inventory: Mapping[str, InventoryRow]
    drops: Mapping[str, DropRow]
    troubles: Mapping[str, str]
    awaiting: frozenset[str]


def recheck_settled(connection: Connection, receiver: str, site_id: str, paths: Iterable[str], at: float) -> Late:
    """Judge the settled sets that `paths` affect, and all waiting ones. `at` in seconds since 1970."""
    alone = settled_rows.settled_files(connection, receiver, site_id)
    if not alone:
        return Late({})
    concerned = _concerned_files(connection, receiver, site_id, sorted(set(paths)), alone)
    concerned |= alone & settled_rows.waiting_for_sources(connection, receiver).keys()
    waits: dict[str, str] = {}
    again: dict[str, Requested] = {}
    for stand in settled_rows.settled_sets(connection, concerned):
        outcome = _judge_settled_set(connection, receiver, site_id, stand)
        _apply_outcome(connection, receiver, site_id, stand, outcome, at)
        waits |= outcome.late
        again |= {one.path: one for one in outcome.again}
    return Late(dict(sorted(waits.items())), tuple(again[path] for path in sorted(again)))


def troubles_of(connection: Connection, receiver: str, site_id: str, paths: Iterable[str]) -> dict[str, str]:
    """Return path → why its newest generation is not in the catalog, where the receiver knows the reason."""
    wanted = set(paths)
    found: dict[str, str] = {}
    for refusal in refusal_rows.read_refusals(connection, receiver, site_id=site_id):
        if refusal.path in wanted:
            found[refusal.path] = f"refused, since device {refusal.device} belongs to another site"
    for held in refusal_rows.read_quarantine(connection, receiver):
        if held.site_id == site_id and held.path in wanted:
            found[held.path] = f"in quarantine as {held.quarantine_id}: {held.reason}"
    return found


def _concerned_files(connection: Connection, receiver: str, site_id: str, paths: Sequence[str], alone: set[int]) -> set[int]:
    """Return merged files made from earlier generations of these paths, and those that overlap and outrank a live file."""
    place = (receiver, site_id)
    rows = catalog_rows.sources_of_paths(connection, *place, paths, ("live", "retired", "reclaimed"))
    found = settled_rows.made_from(connection, [row.file_id for row in rows]) & alone
    live = [row for row in rows if row.state == "live"]
    if not live:
        return found
    others = [
        file for file in catalog_rows.files_by_id(connection, alone - found) if any(_may_outrank(row, file) for row in live)
    ]
    devices = catalog_rows.devices_of_files(connection, [f.file_id for f in (*live, *others)])
    for file in others:
        mine = devices.get(file.file_id, ())
        if any(_may_outrank(row, file) and merge_rows.has_overlap(mine, devices.get(row.file_id, ())) for row in live):
            found.add(file.file_id)
    return found


def _may_outrank(row: CatalogFile, merged: CatalogFile) -> bool:
    """Whether a live file may lose points to a merged one, by database, partitions and rank alone."""
    together = row.partition_from <= merged.partition_to and merged.partition_from <= row.partition_to
    below = row.rank < merged.rank and row.kept == merged.kept  # vanished files rank below live ones on purpose
    return row.database == merged.database and below and together


def _judge_settled_set(connection: Connection, receiver: str, site_id: str, stand: SettledSet) -> Outcome:
    newest = {row.path: row for row in stand.roots}
    roots = judge_roots(connection, receiver, site_id, stand)
    kept = {root.path for root in roots if root.fate is SourceFate.KEPT}
    here = [newest[root.path] for root in roots if root.fate in (SourceFate.HERE, SourceFate.TOLD)]
    wrong = _find_outranked(connection, receiver, site_id, stand, ([newest[path] for path in sorted(kept)], here))
    if any(file.kept for file in stand.merged):  # they were gone at the site, and are there again
        wrong += [row.path for row in here]
    return judge_settled_set(roots, wrong)


def judge_roots(connection: Connection, receiver: str, site_id: str, stand: SettledSet) -> list[Root]:
    """Return what became of each source path of a settled set."""
    newest = {row.path: row for row in stand.roots}  # ordered by generation: the last of a path is its newest
    place = (receiver, site_id)
    known = _LedgerFacts(
        live={row.path: row for row in catalog_rows.sources_of_paths(connection, *place, newest)},
        inventory=landing_rows.inventory_of(connection, *place, newest),
        drops=landing_rows.drops_of_paths(connection, *place, newest),
        troubles=troubles_of(connection, *place, newest),
        awaiting=frozenset(
            row.path for row in refusal_rows.read_quarantine(connection, receiver, "awaiting") if row.site_id == site_id
        ),
    )
    return [_judge_root(row, known) for row in newest.values()]


def _judge_root(row: CatalogFile, known: _LedgerFacts) -> Root:
    path = row.path
    live, drop, listed = known.live.get(path), known.drops.get(path), known.inventory.get(path)
    if live is not None and live.generation > row.generation:
        changed = (live.sha256, live.mods_sha256) != (row.sha256, row.mods_sha256)
        return Root(path, live.generation, SourceFate.AGAIN, changed)
    told = listed.generation if listed is not None else 0
    late = path in known.awaiting
    if drop is not None and drop.generation >= max(told, row.generation):
        fate = _fate_of_vanished(row, drop)
        return Root(path, drop.generation, fate, late, drop.covered_by if fate is SourceFate.COVERED else ())
    if listed is not None and listed.live:
        newer = told > row.generation
        return Root(path, told, SourceFate.TOLD if newer else SourceFate.HERE, newer, trouble=known.troubles.get(path, ""))
    return Root(path, told, SourceFate.KEPT, late)


def _fate_of_vanished(row: CatalogFile, drop: DropRow) -> SourceFate:
    if drop.state == "waiting":
        return SourceFate.ASKED
    if (drop.reason or "").startswith((APPROVED, GIVEN_UP)):
        return SourceFate.LEFT
    if drop.reason == KEPT or row.marked == "dropped":  # dropped after it settled, or kept before, whatever its site told
        return SourceFate.KEPT
    if drop.kind == "superseded":
        return SourceFate.COVERED if drop.state == "done" or drop.reason == SETTLED else SourceFate.COVERING
    return SourceFate.LEFT


def _find_outranked(
    connection: Connection,
    receiver: str,
    site_id: str,
    stand: SettledSet,
    fates: tuple[Sequence[CatalogFile], Sequence[CatalogFile]],
) -> list[str]:
    """Return the paths of files that overlap the settled set and that it outranks wrongly: live files, not its sources, that
    rank between the set and one of its sources, and files of the site that rank below a kept vanished source. `fates`: the
    kept sources, and those that the site still has."""
    kept, here = fates
    mine = {row.path for row in stand.roots}
    databases = {file.database for file in stand.merged}
    rows = settled_rows.source_rows(connection, receiver, site_id, databases)
    rows = [row for row in rows if row.path not in mine and any(_may_outrank(row, file) for file in stand.merged)]
    roots = [root for root in stand.roots if any(root.rank < row.rank for row in rows)]
    concerned = (*rows, *stand.merged, *roots, *kept, *(here if kept else ()))
    devices = catalog_rows.devices_of_files(connection, [f.file_id for f in concerned])

    def overlap(one: CatalogFile, other: CatalogFile) -> bool:
        return merge_rows.has_overlap(devices.get(one.file_id, ()), devices.get(other.file_id, ()))

    found = {row.path for row in (*rows, *here) if any(row.rank < gone.rank and overlap(row, gone) for gone in kept)}
    for row in rows:
        above = [m for m in stand.merged if _may_outrank(row, m) and overlap(row, m)]
        low = [r.rank for r in roots if overlap(row, r)]
        if low and any(is_outranked(min(low), file.rank, row.rank) for file in above):
            found.add(row.path)
    return sorted(found)


def rank_below_live(
    connection: Connection, place: tuple[str, str], files: Iterable[CatalogFile], at: float
) -> Collection[int]:
    """Rank vanished files below all live files of their site, and withdraw what was merged from them. `place`: receiver and
    site. Returns the IDs of those that were not below before."""
    landings, _ = landing_rows.last_loaded(connection, *place)
    ranks = {file.file_id: below_live(file.rank, landings) for file in files if not file.kept}
    rank_anew(connection, place[0], ranks, at)
    return ranks.keys()


def rank_anew(connection: Connection, receiver: str, ranks: Mapping[int, Rank], at: float) -> None:
    """Give files other ranks. What was merged from them is withdrawn, and every IoTDB server compares them again."""
    catalog_rows.rank_files(connection, ranks)
    merge_rows.unmerge_files(connection, receiver, ranks, at)
    iotdb_rows.compare_again(connection, receiver, ranks)


def _apply_outcome(
    connection: Connection, receiver: str, site_id: str, stand: SettledSet, outcome: Outcome, at: float
) -> None:
    merged = [file.file_id for file in stand.merged]
    if outcome.action != "wait":
        settled_rows.set_waits(connection, merged if stand.waits else (), {})
    if outcome.action == "stand":
        return
    if outcome.action == "below":
        below = rank_below_live(connection, (receiver, site_id), stand.merged, at)
        catalog_rows.mark_files(connection, below, "dropped")
        _conclude_drops(connection, receiver, site_id, stand)
        return
    merge_rows.unmerge_files(connection, receiver, merged, at)  # files merged from it are withdrawn too
    if outcome.action == "go":
        catalog_rows.retire_files(connection, merged, at)
        gone = [{"site_id": site_id, "path": file.location, "file_id": file.file_id} for file in stand.merged]
        record_many(connection, "merge.replaced", gone)
        _conclude_drops(connection, receiver, site_id, stand)
        return
    if dict(stand.waits) != dict(outcome.late):
        settled_rows.set_waits(connection, merged, outcome.late)
        told = [{"site_id": site_id, "path": path, "reason": why} for path, why in outcome.late.items()]
        record_many(connection, "merge.waits", told)


def _conclude_drops(connection: Connection, receiver: str, site_id: str, stand: SettledSet) -> None:
    """Record as done the drops of superseded and approved sources, which left with the settled set."""
    paths = {row.path for row in stand.roots}
    drops = list(landing_rows.drops_of_paths(connection, receiver, site_id, paths).values())
    covered = [d for d in drops if d.state == "pending" and d.reason == SETTLED]
    approved = [d for d in drops if d.state == "done" and (d.reason or "").startswith(APPROVED)]
    done = [replace(d, state="done", reason=None) for d in (*covered, *approved)]
    landing_rows.put_drops(connection, receiver, site_id, done)
    record_many(connection, "file.removed", [{"site_id": site_id, "path": d.path, "approved": True} for d in approved])


def leave_approved(connection: Connection, receiver: str, site_id: str, approved: Iterable[DropRow], at: float) -> Late:
    """Take approved files out of the catalog where possible. Return what still waits, and what the site must send for it."""
    drops = list(approved)
    paths = {d.path: d.generation for d in drops}
    rows = catalog_rows.sources_of_paths(connection, receiver, site_id, paths, ("live", "retired", "reclaimed"))
    rows = [row for row in rows if row.generation <= paths[row.path]]
    leaving = [row.file_id for row in rows if row.state == "live"]
    catalog_rows.retire_files(connection, leaving, at)
    merge_rows.unmerge_files(connection, receiver, leaving, at)
    approved = [replace(d, state="done", reason=APPROVED) for d in drops]
    landing_rows.put_drops(connection, receiver, site_id, approved)
    late = recheck_settled(connection, receiver, site_id, paths, at)
    told = [replace(d, reason=f"{APPROVED}: {late.waits[d.path]}" if d.path in late.waits else None) for d in approved]
    landing_rows.put_drops(connection, receiver, site_id, told)
    gone = [d for d in drops if d.path not in late.waits]
    record_many(connection, "file.removed", [{"site_id": site_id, "path": d.path, "approved": True} for d in gone])
    return late


def give_up_kept(connection: Connection, receiver: str, gone: DropRow, why: str, at: float, site_id: str) -> None:
    """Remove a kept file whose bytes differ from those loaded (`why`): its site cannot resend it. A settled file that holds
    its points leaves with the last of its sources. Idempotent."""
    rows = catalog_rows.sources_of_paths(connection, receiver, site_id, [gone.path])
    leaving = [row.file_id for row in rows if row.kept and row.generation <= gone.generation]
    catalog_rows.retire_files(connection, leaving, at)
    merge_rows.unmerge_files(connection, receiver, leaving, at)
    done = replace(gone, kind="dropped", covered_by=(), state="done", reason=f"{GIVEN_UP}: {why}")
    landing_rows.put_drops(connection, receiver, site_id, [done])
    recheck_settled(connection, receiver, site_id, [gone.path], at)
    record_many(connection, "file.removed", [{"site_id": site_id, "path": gone.path, "why": done.reason}])
