"""Merged files in the ledger: choose what may be merged, publish in one step, withdraw, and settle.

A **merged file** is derived from live sources of one site; while it is visible they are not. All merged files of one group
of overlapping sources are published and withdrawn together, so no point is read twice or missed. A merged file **stands
alone** once its sources are reclaimed (`merge_account.settled`): it cannot be withdrawn any more. Every function works in
the caller's transaction. Source: DESIGN §3 "Sources and merges", sql/0002_receiver_side.sql.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.journal import record_event
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import settled as settled_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.touched import note_files
from tidemark.ledger.sql import in_chunks, write_rows, write_tuples


@dataclass(frozen=True)
class Withdrawn:
    """Result of `unmerge_files`: merged files retired, sources visible again, and merged files that stand alone and were not
    withdrawn."""

    retired: tuple[int, ...] = ()
    restored: tuple[int, ...] = ()
    alone: tuple[int, ...] = ()


@dataclass(frozen=True)
class Account:
    """Points of one merged file: points_in = points_out + overwritten + deleted."""

    points_in: int
    points_out: int
    overwritten: int
    deleted: int


@dataclass(frozen=True)
class MergedFile:
    """One output to publish: its row, its devices and its account."""

    file: CatalogFile
    devices: tuple[CatalogDevice, ...]
    account: Account


@dataclass(frozen=True)
class Kept:
    """Overlapping sources that are not merged, and why. `subject`: the series or file concerned."""

    file_ids: tuple[int, ...]
    subject: str
    reason: str


def mergeable_files(connection: Connection, receiver: str, database: str | None = None) -> list[CatalogFile]:
    """Return files that may be merged: live sources, seen or hidden, and merged files that stand alone; by site and rank."""
    where = (
        "f.receiver = :receiver AND f.state = 'live' AND (f.role = 'source' OR EXISTS "
        "(SELECT 1 FROM merge_account a WHERE a.merged_id = f.file_id AND a.settled IS NOT NULL))"
    ) + ("" if database is None else " AND f.database_name = :database")
    query = sa.text(f"SELECT f.file_id FROM catalog_file f WHERE {where}")
    ids = [int(row[0]) for row in connection.execute(query, {"receiver": receiver, "database": database})]
    return sorted(catalog_rows.files_by_id(connection, ids), key=lambda f: (f.site_id, f.database, f.rank, f.file_id))


def unmerge_files(connection: Connection, receiver: str, file_ids: Iterable[int], at: float) -> Withdrawn:
    """Withdraw the merged files that these sources make wrong; their live sources become visible at once.

    `file_ids` may be sources that leave (retire them before or after, in the same transaction) and new sources (insert them
    before). A merged file is withdrawn if it was made from one of them. It is withdrawn too if a new one overlaps it in a
    device's time and ranks below it: the merged file does not show which point is newer. Merged files of the same sources
    are withdrawn together. Those that stand alone are only reported. `at` in seconds since 1970. Idempotent.
    """
    ids = set(file_ids)
    hit = {merged for merged, sources in _live_lineage(connection, receiver).items() if ids & set(sources)}
    hit |= _ranked_above(connection, receiver, ids)
    return _withdraw_merged(connection, receiver, hit, at)


def publish_merged(
    connection: Connection,
    receiver: str,
    sources: Sequence[CatalogFile],
    merged: Sequence[MergedFile],
    batch: str,
    at: float,
) -> tuple[int, ...] | None:
    """Replace `sources` by `merged` in one step; return the new file_ids, or None if the ledger changed since planning.

    None, and nothing changed: a source is not live any more, has another rank or is to be replaced, or a new file overlaps
    the sources and ranks below them. Merged files made earlier from any of the sources retire in the same step.
    """
    ids = {f.file_id for f in sources}
    now = {f.file_id: f for f in catalog_rows.files_by_id(connection, ids)}
    if any(f.file_id not in now or (now[f.file_id].state, now[f.file_id].rank) != ("live", f.rank) for f in sources):
        return None
    if settled_rows.to_go(connection, ids):
        return None
    if _came_between(connection, receiver, ids, merged):
        return None
    older = {m for m, made_from in _live_lineage(connection, receiver).items() if ids & set(made_from)} - ids
    catalog_rows.retire_files(connection, sorted(older), at)
    _set_visible(connection, sorted(ids), False)
    made = tuple(_insert_merged(connection, one, sorted(ids), batch, at) for one in merged)
    roots = catalog_rows.files_by_id(connection, ids | _original_sources(connection, sorted(ids)))
    settled_rows.note_gone(connection, receiver, roots[0].site_id, {root.path for root in roots})
    judge_anew(connection, receiver, ids)
    return made


def put_merge(
    connection: Connection,
    merged_id: int,
    source_ids: Collection[int],
    account: Account,
    batch: str,
    *,
    at: float,
    settled: float | None = None,
) -> None:
    """Record what a merged file was made of, in the place of what was recorded. Times in seconds since 1970."""
    for table in ("lineage", "merge_account"):
        connection.execute(sa.text(f"DELETE FROM {table} WHERE merged_id = :m"), {"m": merged_id})
    lineage = [{"m": merged_id, "s": source_id} for source_id in sorted(source_ids)]
    write_rows(connection, "INSERT INTO lineage (merged_id, source_id) VALUES (:m, :s)", lineage)
    sql = (
        "INSERT INTO merge_account (merged_id, batch, points_in, points_out, overwritten, deleted, at, settled) "
        "VALUES (:merged_id, :batch, :points_in, :points_out, :overwritten, :deleted, :at, :settled)"
    )
    values = {"merged_id": merged_id, "batch": batch, **vars(account), "at": at, "settled": settled}
    connection.execute(sa.text(sql), values)


def remember_unmerged(connection: Connection, receiver: str, kept: Kept, digest: str, at: float) -> None:
    """Record that these sources are not merged, so that the same ones are not tried again."""
    judge_anew(connection, receiver, set(kept.file_ids))
    first = catalog_rows.files_by_id(connection, kept.file_ids[:1])[0]
    values = {
        "receiver": receiver,
        "sources": digest,
        "site": first.site_id,
        "database": first.database,
        "files": json.dumps(kept.file_ids),
        "subject": kept.subject,
        "reason": kept.reason,
        "at": at,
    }
    connection.execute(
        sa.text(
            "INSERT INTO merge_kept (receiver, sources, site_id, database_name, files, subject, reason, at) VALUES "
            "(:receiver, :sources, :site, :database, :files, :subject, :reason, :at)"
        ),
        values,
    )


def judge_anew(connection: Connection, receiver: str, ids: Collection[int]) -> None:
    """Forget the records of unmerged groups with any of these files: the files changed, so they are tried again."""
    rows = connection.execute(sa.text("SELECT sources, files FROM merge_kept WHERE receiver = :r"), {"r": receiver}).all()
    for digest, files in rows:
        if not set(ids).isdisjoint(json.loads(files)):
            values = {"receiver": receiver, "sources": digest}
            connection.execute(sa.text("DELETE FROM merge_kept WHERE receiver = :receiver AND sources = :sources"), values)


def kept_groups(connection: Connection, receiver: str) -> dict[str, Kept]:
    """Return digest of sources → why they are not merged; only if all of them are still live."""
    query = sa.text("SELECT sources, files, subject, reason FROM merge_kept WHERE receiver = :receiver ORDER BY at, sources")
    rows = connection.execute(query, {"receiver": receiver}).all()
    found = {row[0]: Kept(tuple(json.loads(row[1])), row[2], row[3]) for row in rows}
    ids = {file_id for kept in found.values() for file_id in kept.file_ids}
    live = {f.file_id for f in catalog_rows.files_by_id(connection, ids) if f.state == "live"}
    return {digest: kept for digest, kept in found.items() if live.issuperset(kept.file_ids)}


def known_locations(connection: Connection, receiver: str, locations: Iterable[str]) -> set[str]:
    """Return which of these locations hold bytes of a file that the catalog has, or had and did not reclaim yet."""
    sql = "SELECT location FROM catalog_file WHERE receiver = :receiver AND state <> 'reclaimed' AND location IN :many"
    return {row[0] for row in in_chunks(connection, sql, locations, receiver=receiver)}


def settle_due(connection: Connection, receiver: str, before: float) -> tuple[int, ...]:
    """Return merged files made before `before` whose sources may retire: all merged files of those sources are as old."""
    query = sa.text(
        "SELECT f.file_id FROM catalog_file f JOIN merge_account a ON a.merged_id = f.file_id WHERE f.receiver = :receiver "
        "AND f.state = 'live' AND f.visible = 1 AND a.settled IS NULL AND a.at < :before"
    )
    due = {int(row[0]) for row in connection.execute(query, {"receiver": receiver, "before": before})}
    lineage = _unsettled_lineage(connection, receiver)
    due -= {m for m in due if settled_rows.to_go(connection, lineage.get(m, ()))}
    return tuple(sorted(m for m in due if _connected_merges(lineage, {m}) <= due))


def mark_settled(connection: Connection, merged_ids: Collection[int], at: float) -> tuple[int, ...]:
    """Settle these merged files: they stand alone, and their sources retire. Return the sources' file_ids."""
    sources: set[int] = set()
    for merged_id in sorted(set(merged_ids)):
        rows = connection.execute(
            sa.text(
                "SELECT l.source_id FROM lineage l JOIN catalog_file f ON f.file_id = l.source_id "
                "WHERE l.merged_id = :merged AND f.state = 'live'"
            ),
            {"merged": merged_id},
        )
        mine = sorted(int(row[0]) for row in rows)
        values = {"merged": merged_id, "at": at}
        connection.execute(sa.text("UPDATE merge_account SET settled = :at WHERE merged_id = :merged"), values)
        _record_merge(connection, "merge.settled", merged_id, {"sources": mine})
        sources.update(mine)
    note_files(connection, merged_ids, settled=True)
    catalog_rows.retire_files(connection, sorted(sources), at)
    return tuple(sorted(sources))


def has_overlap(mine: Iterable[CatalogDevice], other: Iterable[CatalogDevice]) -> bool:
    """Return whether two files have a device in common with overlapping times."""
    extents = {d.device: (d.start, d.end) for d in mine}
    met = ((extents[device.device], device) for device in other if device.device in extents)
    return any(start <= device.end and device.start <= end for (start, end), device in met)


def _withdraw_merged(connection: Connection, receiver: str, hit: set[int], at: float) -> Withdrawn:
    if not hit:
        return Withdrawn()
    lineage = _live_lineage(connection, receiver)
    alone = hit & settled_rows.settled_files(connection, receiver)
    going = _connected_merges(_unsettled_lineage(connection, receiver), hit - alone)
    sources = {source for m in going for source in lineage[m]}
    live = [f.file_id for f in catalog_rows.files_by_id(connection, sources) if f.state == "live"]
    catalog_rows.retire_files(connection, sorted(going), at)
    _set_visible(connection, live, True)
    for merged_id in sorted(going):
        _record_merge(connection, "merge.undone", merged_id, {"sources": sorted(lineage[merged_id])})
    return Withdrawn(tuple(sorted(going)), tuple(sorted(live)), tuple(sorted(alone)))


def _connected_merges(lineage: Mapping[int, Sequence[int]], merged: set[int]) -> set[int]:
    """Return `merged` and every merged file that shares a source with them, directly or through others."""
    found: set[int] = set()
    todo = {m for m in merged if m in lineage}
    while todo:
        found |= todo
        sources = {source for m in todo for source in lineage[m]}
        todo = {m for m, made_from in lineage.items() if m not in found and sources & set(made_from)}
    return found | merged


def _ranked_above(connection: Connection, receiver: str, ids: set[int]) -> set[int]:
    """Return visible merged files that overlap one of the live sources `ids`, if it ranks below and is no part of them."""
    new = [f for f in catalog_rows.files_by_id(connection, ids) if f.role == "source" and f.state == "live"]
    if not new:
        return set()
    found: set[int] = set()
    places = sorted({(f.site_id, f.database) for f in new})
    merged = [f for place in places for f in catalog_rows.visible_files(connection, receiver, *place, role="merged")]
    if not merged:
        return set()
    lineage = _live_lineage(connection, receiver)
    devices = catalog_rows.devices_of_files(connection, [f.file_id for f in (*new, *merged)])
    for file in new:
        for other in merged:
            place = (file.site_id, file.database, file.kept)  # kept files rank below all files of the site
            if (other.site_id, other.database, other.kept) != place or other.rank <= file.rank:
                continue
            if file.file_id in lineage.get(other.file_id, ()):
                continue
            if has_overlap(devices.get(file.file_id, ()), devices.get(other.file_id, ())):
                found.add(other.file_id)
    return found


def _came_between(connection: Connection, receiver: str, ids: set[int], merged: Sequence[MergedFile]) -> bool:
    """Return whether another visible file, no source of the merge nor made from one, overlaps a source and ranks below.

    The sources' times count, as in the plan: a file between two sources' times shares no point with the merged file.
    """
    if not merged:
        return False
    mine = merged[0].file
    made = {m for m, sources in _live_lineage(connection, receiver).items() if ids & set(sources)}
    derived = _unsettled_lineage(connection, receiver)
    others = [
        source
        for f in catalog_rows.visible_files(connection, receiver, mine.site_id, mine.database)
        if f.file_id not in ids and f.file_id not in made and f.rank <= mine.rank and f.kept == mine.kept
        for source in derived.get(f.file_id, (f.file_id,))
    ]
    devices = catalog_rows.devices_of_files(connection, [*ids, *others])
    return any(has_overlap(devices.get(one, ()), devices.get(other, ())) for other in others for one in ids)


def _insert_merged(connection: Connection, one: MergedFile, source_ids: Sequence[int], batch: str, at: float) -> int:
    merged_id = catalog_rows.add_file(connection, one.file, one.devices)
    put_merge(connection, merged_id, {*source_ids, *_original_sources(connection, source_ids)}, one.account, batch, at=at)
    counts = {"in": one.account.points_in, "out": one.account.points_out}
    lost = {"overwritten": one.account.overwritten, "deleted": one.account.deleted}
    _record_merge(connection, "merge.published", merged_id, counts | lost)
    return merged_id


def _original_sources(connection: Connection, merged_ids: Sequence[int]) -> set[int]:
    """Return the original sources of merged files that stand alone (each merge records all of them)."""
    sql = "SELECT source_id FROM lineage WHERE merged_id IN :many"
    return {int(row[0]) for row in in_chunks(connection, sql, merged_ids)}


def _live_lineage(connection: Connection, receiver: str) -> dict[int, tuple[int, ...]]:
    """Return live merged file → its sources."""
    query = sa.text(
        "SELECT l.merged_id, l.source_id FROM lineage l JOIN catalog_file f ON f.file_id = l.merged_id "
        "WHERE f.receiver = :receiver AND f.state = 'live' ORDER BY l.merged_id, l.source_id"
    )
    found: dict[int, list[int]] = {}
    for merged_id, source_id in connection.execute(query, {"receiver": receiver}):
        found.setdefault(int(merged_id), []).append(int(source_id))
    return {merged_id: tuple(sources) for merged_id, sources in found.items()}


def _unsettled_lineage(connection: Connection, receiver: str) -> dict[int, tuple[int, ...]]:
    """Return live merged file → its sources, without files that stand alone: files merged from them share sources."""
    alone = settled_rows.settled_files(connection, receiver)
    return {m: sources for m, sources in _live_lineage(connection, receiver).items() if m not in alone}


def _set_visible(connection: Connection, file_ids: Sequence[int], visible: bool) -> None:
    note_files(connection, file_ids)
    sql = "UPDATE catalog_file SET visible = :visible WHERE state = 'live' AND file_id = :file_id"
    write_tuples(connection, sql, ("file_id",), ((file_id,) for file_id in file_ids), visible=int(visible))


def _record_merge(connection: Connection, kind: str, merged_id: int, detail: dict[str, Any]) -> None:
    file = catalog_rows.files_by_id(connection, [merged_id])[0]
    record_event(connection, kind, site_id=file.site_id, path=file.location, file_id=merged_id, **detail)
