"""Merged files that stand alone: the source paths they replace, as one set, the sources they wait for, and what of them is
gone at the site.

Merged files that share a source, directly or through others, hold its points together: a **settled set**. A single source
cannot be removed from it, so it is kept or replaced as a whole. `merge_account.waits` lists the late paths and why, while a
known change of a source cannot be read yet. Every function works in the caller's transaction. Source: DESIGN §3 "Sources and
merges"; docs/decisions/0007-settled-files-are-replaced-whole.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.sql import in_chunks, run_report, write_rows

_STANDS = "m.state = 'live' AND a.settled IS NOT NULL"
_ACCOUNTS = "merge_account a JOIN catalog_file m ON m.file_id = a.merged_id"


@dataclass(frozen=True)
class SettledSet:
    """A settled set. `merged`: files that stand alone together; `roots`: the source rows they were made from, by path and
    generation; `waits`: {late path: why}, empty if none is late."""

    merged: tuple[CatalogFile, ...]
    roots: tuple[CatalogFile, ...]
    waits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file that vanished at its site and that readers may still see. `points`: those in the file, before its deletions.

    `mixed`: its points stand in a settled merged file with those of files that the site has. Its rows cannot be told from
    theirs, so they count as live ones.
    """

    file_id: int
    path: str
    points: int
    mixed: bool = False


def kept_files(connection: Connection, receiver: str, mixed_only: bool = False) -> Mapping[str, tuple[KeptFile, ...]]:
    """Return site → the files that vanished there and that a receiver keeps, each path once, by path; or the mixed ones
    alone."""
    found: dict[str, dict[str, KeptFile]] = defaultdict(dict)
    for row in run_report(connection, "kept_files", receiver=receiver, mixed_only=int(mixed_only)):
        of_site, path = found[row["site_id"]], row["path"]
        mixed = bool(row["mixed"]) or (path in of_site and of_site[path].mixed)  # by an older generation
        of_site[path] = KeptFile(int(row["file_id"]), path, int(row["points"]), mixed)
    return {site_id: tuple(of_site.values()) for site_id, of_site in found.items()}


def note_gone(connection: Connection, receiver: str, site_id: str, paths: Iterable[str]) -> None:
    """Note with the merged files made from these paths which of them hold what is gone at its site: `kept_files` looks at no
    others."""
    sql = (
        "UPDATE merge_account SET gone = 1 WHERE gone = 0 AND merged_id IN (SELECT l.merged_id FROM inventory i "
        "JOIN catalog_file f ON f.receiver = i.receiver AND f.site_id = i.site_id AND f.path = i.path "
        "JOIN lineage l ON l.source_id = f.file_id "
        "WHERE i.receiver = :r AND i.site_id = :s AND i.path = :p AND i.live = 0)"
    )
    write_rows(connection, sql, [{"r": receiver, "s": site_id, "p": path} for path in paths])


def settled_files(connection: Connection, receiver: str, site_id: str | None = None) -> set[int]:
    """Return the merged files that stand alone, of one site or of all."""
    of_site = "" if site_id is None else " AND m.site_id = :site"
    query = sa.text(f"SELECT m.file_id FROM {_ACCOUNTS} WHERE m.receiver = :receiver AND {_STANDS}{of_site}")
    return {int(row[0]) for row in connection.execute(query, {"receiver": receiver, "site": site_id})}


def waiting_for_sources(connection: Connection, receiver: str) -> dict[int, Mapping[str, str]]:
    """Return merged files of a receiver that are to be replaced and wait for their sources → {late path: why}."""
    where = f"m.receiver = :receiver AND {_STANDS} AND a.waits IS NOT NULL"
    query = sa.text(f"SELECT m.file_id, a.waits FROM {_ACCOUNTS} WHERE {where}")
    return {int(file_id): json.loads(waits) for file_id, waits in connection.execute(query, {"receiver": receiver})}


def to_go(connection: Connection, merged_ids: Iterable[int]) -> set[int]:
    """Return those of these merged files that wait to be replaced: nothing new may be derived from them."""
    sql = "SELECT merged_id FROM merge_account WHERE waits IS NOT NULL AND merged_id IN :many"
    return {int(row[0]) for row in in_chunks(connection, sql, merged_ids)}


def made_from(connection: Connection, source_ids: Iterable[int]) -> set[int]:
    """Return merged files that stand alone and hold points of any of these rows."""
    where = f"{_STANDS} AND l.source_id IN :many"
    sql = f"SELECT DISTINCT l.merged_id FROM {_ACCOUNTS} JOIN lineage l ON l.merged_id = m.file_id WHERE {where}"
    return {int(row[0]) for row in in_chunks(connection, sql, source_ids)}


def settled_sets(connection: Connection, merged_ids: Iterable[int]) -> list[SettledSet]:
    """Return the settled sets of these merged files, each once, by their oldest merged file."""
    left = set(merged_ids)
    found: list[SettledSet] = []
    while left:
        stand = _settled_set_of(connection, {min(left)})
        left -= {file.file_id for file in stand.merged}
        found.append(stand)
    return found


def set_waits(connection: Connection, merged_ids: Iterable[int], late: Mapping[str, str]) -> None:
    """Set what these merged files wait for; an empty `late` ends the wait."""
    text = json.dumps(dict(sorted(late.items())), ensure_ascii=False) if late else None
    rows = [{"merged": merged_id, "waits": text} for merged_id in merged_ids]
    write_rows(connection, "UPDATE merge_account SET waits = :waits WHERE merged_id = :merged", rows)


def source_rows(connection: Connection, receiver: str, site_id: str, databases: Iterable[str]) -> list[CatalogFile]:
    """Return every live source row of these databases of a site, seen or hidden behind a merge."""
    sql = (
        "SELECT file_id FROM catalog_file WHERE receiver = :receiver AND site_id = :site AND role = 'source' "
        "AND state = 'live' AND database_name IN :many"
    )
    found = in_chunks(connection, sql, databases, receiver=receiver, site=site_id)
    return catalog_rows.files_by_id(connection, [int(row[0]) for row in found])


def _settled_set_of(connection: Connection, merged: set[int]) -> SettledSet:
    sources: set[int] = set()
    todo = set(merged)
    while todo:
        sql = "SELECT source_id FROM lineage WHERE merged_id IN :many"
        new = {int(row[0]) for row in in_chunks(connection, sql, todo)} - sources
        sources |= new
        todo = made_from(connection, new) - merged
        merged |= todo
    rows = catalog_rows.files_by_id(connection, sources)
    roots = sorted((row for row in rows if row.role == "source"), key=lambda row: (row.path, row.generation))
    files = catalog_rows.files_by_id(connection, merged)
    waits = waiting_for_sources(connection, files[0].receiver)
    late = {path: why for file in files for path, why in waits.get(file.file_id, {}).items()}
    return SettledSet(tuple(files), tuple(roots), late)
