"""What a transaction changes in the ledger's catalog, as the operations of each group's log.

    with watch_catalog(connection) as touched: …
    change = read_change(connection, receiver, touched)      # in the same transaction
    operations = sort_by_group(table, change, headers)       # pure

A file belongs in the logs of all groups of its slots, a database's creation, drop and series in that of its schema's slot.
Source: seed 001 "Data partitioning"; docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.cluster.replicas.core.record import RecordKind
from tidemark.cluster.replicas.records.operation import (
    NO_FACTS,
    Facts,
    FileEntry,
    FileKey,
    MergeFacts,
    Operation,
    Width,
    key_of,
    without_ledger,
)
from tidemark.cluster.slots.routing import slots_of_file
from tidemark.cluster.slots.table import PartitionTable
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.schemas import SeriesRow
from tidemark.ledger.receiver.touched import Touched
from tidemark.ledger.sql import in_chunks

_ORDER = (
    RecordKind.REMOVE_FILES,
    RecordKind.DELETE_POINTS,
    RecordKind.ADD_FILES,
    RecordKind.PUBLISH_MERGE,
    RecordKind.SETTLE_MERGE,
)


@dataclass(frozen=True)
class Change:
    """What a catalog has otherwise afterwards. Two runs of one transaction give equal values, whatever ids they gave.

    `files`: live ones that are new or have other facts, of them `added` new, `settled` standing alone from now on. `gone`:
    live before. `created`, `dropped`: databases.
    """

    files: tuple[FileEntry, ...] = ()
    gone: tuple[CatalogFile, ...] = ()
    added: frozenset[FileKey] = frozenset()
    settled: frozenset[FileKey] = frozenset()
    facts: Facts = NO_FACTS
    series: tuple[SeriesRow, ...] = ()
    created: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != Change()


def read_change(connection: Connection, receiver: str, touched: Touched) -> Change:
    """Return what the transaction of this connection has changed so far."""
    rows = catalog_rows.files_by_id(connection, touched.files)
    live = [row for row in rows if row.state == "live"]
    files = read_entries(connection, live)
    new = [row for row in live if row.file_id in touched.added]
    owners = refusal_rows.owners_of(connection, receiver, touched.owners)
    series = schema_rows.series_of(connection, receiver, {name for _, name in touched.series}) if touched.series else []
    keys = {row.file_id: key_of(row) for row in live}
    return Change(
        tuple(sorted(files, key=lambda entry: entry.key)),
        tuple(sorted(map(without_ledger, (row for row in rows if row.state != "live")), key=key_of)),
        frozenset(keys[row.file_id] for row in new),
        frozenset(keys[file_id] for file_id in touched.settled & keys.keys()),
        _facts_of(connection, receiver, files, touched.widths, owners.values()),
        tuple(replace(row, receiver="") for row in series if (row.site_id, row.series) in touched.series),
        _created_databases(connection, receiver, new),
    )


def read_entries(connection: Connection, files: Sequence[CatalogFile]) -> list[FileEntry]:
    """Return the entries of these rows, with what the ledger knows of their devices and merges."""
    devices = catalog_rows.devices_of_files(connection, [file.file_id for file in files])
    merges = _merge_facts(connection, [file.file_id for file in files if file.role == "merged"])
    return [FileEntry(without_ledger(f), devices.get(f.file_id, ()), merges.get(f.file_id)) for f in files]


def read_snapshot(connection: Connection, receiver: str, table: PartitionTable, slots: Collection[int]) -> Operation:
    """Return the operation by which a log gets these slots, with all that the catalog has in them now."""
    wanted = frozenset(slots)
    files = [
        file for file in catalog_rows.live_files(connection, receiver) if wanted.intersection(slots_of_file(table, file))
    ]
    entries = read_entries(connection, files)
    tables = {(file.site_id, file.database) for file in files}
    widths = {key for key in catalog_rows.table_widths(connection, receiver) if key[:2] in tables}
    owners = refusal_rows.owners_of(connection, receiver, {d.device for entry in entries for d in entry.devices})
    schemas = {file.database for file in files} | set(catalog_rows.list_databases(connection, receiver))
    mine = sorted(database for database in schemas if table.route_schema(database).slot in wanted)
    series = [replace(r, receiver="") for name in mine for r in schema_rows.series_of_database(connection, receiver, name)]
    return Operation(
        RecordKind.GAIN_SLOT,
        tuple(entries),
        facts=_facts_of(connection, receiver, entries, widths, owners.values()),
        series=tuple(series),
        slots=tuple(sorted(slots)),
        table=table.epoch,
    )


def sort_by_group(table: PartitionTable, change: Change, headers: Collection[str]) -> dict[str, list[Operation]]:
    """Return header → its operations. `headers`: of groups that have a log; they all get facts that concern no file."""
    found: dict[str, list[Operation]] = {}
    touched = {h for file in (*(e.file for e in change.files), *change.gone) for h in headers_of(table, file)}
    for header in sorted(touched):
        files = [entry for entry in change.files if header in headers_of(table, entry.file)]
        gone = [file for file in change.gone if header in headers_of(table, file)]
        made = _operations_of(replace(change, files=tuple(files), gone=tuple(gone)))
        sites = {entry.file.site_id for entry in files}
        facts = replace(change.facts, sites=tuple(site for site in change.facts.sites if site.site_id in sites))
        found[header] = [*made[:-1], replace(made[-1], facts=facts)]
    if not touched and (change.facts.widths or change.facts.owners):
        for header in sorted(headers):
            found[header] = [Operation(RecordKind.WRITE_SCHEMA, facts=change.facts)]
    for database in sorted({*change.created, *change.dropped, *(row.database_name for row in change.series)}):
        mine = found.setdefault(table.route_schema(database).header, [])
        if database in change.created:
            mine.insert(0, Operation(RecordKind.CREATE_DATABASE, database=database))
        if series := tuple(row for row in change.series if row.database_name == database):
            mine.append(Operation(RecordKind.WRITE_SCHEMA, series=series))
        if database in change.dropped:
            mine.append(Operation(RecordKind.DROP_DATABASE, database=database))
    return found


def headers_of(table: PartitionTable, file: CatalogFile) -> frozenset[str]:
    """Return the headers of all groups of the file's slots."""
    return frozenset(table.owners[slot] for slot in slots_of_file(table, file))


def _operations_of(change: Change) -> list[Operation]:
    """Return a group's change by its kinds: what leaves comes first, since other rows may have the same names."""
    left = {key_of(file): file for file in change.gone}
    rest = {entry.key: entry for entry in change.files}
    kinds: dict[RecordKind, tuple[list[FileEntry], list[FileKey]]] = {}

    def take(kind: RecordKind, files: Iterable[FileKey], gone: Iterable[FileKey]) -> None:
        mine = kinds.setdefault(kind, ([], []))
        mine[0].extend(rest.pop(key) for key in sorted(files))
        mine[1].extend(sorted(gone))
        for key in mine[1]:
            left.pop(key, None)

    def sources_of(merged: Iterable[FileKey]) -> set[FileKey]:
        return {source for key in merged if (merge := rest[key].merge) for source in merge.sources}

    if settled := change.settled & rest.keys():
        take(RecordKind.SETTLE_MERGE, settled, sources_of(settled) & left.keys())
    if published := {key for key in change.added & rest.keys() if rest[key].merge is not None}:
        sources = sources_of(published)
        older = {key for key, file in left.items() if file.role == "merged" or key in sources}
        take(RecordKind.PUBLISH_MERGE, published | (sources & rest.keys()), older)
    older_of: dict[tuple[str, str], set[FileKey]] = {}
    for key in left:
        older_of.setdefault((key.path, key.location), set()).add(key)
    for key, entry in list(rest.items()):
        if entry.file.mods_location and (found := older_of.get((key.path, key.location))):
            take(RecordKind.DELETE_POINTS, [key], found)
    if rest:
        take(RecordKind.ADD_FILES, list(rest), ())
    if left:
        take(RecordKind.REMOVE_FILES, (), list(left))
    return [Operation(kind, tuple(kinds[kind][0]), tuple(kinds[kind][1])) for kind in _ORDER if kind in kinds]


def _facts_of(
    connection: Connection,
    receiver: str,
    entries: Sequence[FileEntry],
    widths: Collection[tuple[str, str, str]],
    owners: Iterable[refusal_rows.OwnerRow],
) -> Facts:
    sites = landing_rows.read_sites(connection) if entries else {}
    tags = catalog_rows.table_widths(connection, receiver) if widths else {}
    return Facts(
        tuple(sites[site] for site in sorted({entry.file.site_id for entry in entries}) if site in sites),
        tuple(Width(*key, tags[key]) for key in sorted(widths) if key in tags),
        tuple(sorted(owners, key=lambda row: row.device)),
    )


def _created_databases(connection: Connection, receiver: str, new: Sequence[CatalogFile]) -> tuple[str, ...]:
    """Return databases that have no live file but new ones."""
    first = min((row.file_id for row in new), default=0)
    sql = "SELECT 1 FROM catalog_file WHERE receiver = :r AND database_name = :d AND state = 'live' AND file_id < :f LIMIT 1"
    databases = sorted({row.database for row in new})
    query = sa.text(sql)
    return tuple(d for d in databases if connection.execute(query, {"r": receiver, "d": d, "f": first}).first() is None)


def _merge_facts(connection: Connection, merged_ids: Collection[int]) -> Mapping[int, MergeFacts]:
    if not merged_ids:
        return {}
    sources: dict[int, list[FileKey]] = {}
    sql = (
        "SELECT l.merged_id, f.site_id, f.path, f.generation, f.location FROM lineage l"
        " JOIN catalog_file f ON f.file_id = l.source_id WHERE l.merged_id IN :many"
    )
    for merged_id, *key in in_chunks(connection, sql, merged_ids):
        sources.setdefault(int(merged_id), []).append(FileKey(key[0], key[1], int(key[2]), key[3]))
    sql = (
        "SELECT merged_id, batch, points_in, points_out, overwritten, deleted, at, settled FROM merge_account"
        " WHERE merged_id IN :many"
    )
    found = {}
    for merged_id, batch, came, went, overwritten, deleted, at, settled in in_chunks(connection, sql, merged_ids):
        made_from = tuple(sorted(sources.get(int(merged_id), ())))
        counts = int(came), int(went), int(overwritten), int(deleted)
        found[int(merged_id)] = MergeFacts(made_from, batch, *counts, float(at), None if settled is None else float(settled))
    return found
