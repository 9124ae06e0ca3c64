"""Keep the sites' schema logs and the series that they and the files declare; report where two of them disagree.

Bytes of a log are appended durably first, then its position is recorded with the landing. A faulty schema log never stops
data. It is reported, and the log goes on when its missing bytes arrive. Source: DESIGN §3, §5, seed 000 ("direct incremental
synchronization"), research/iotdb.md §1.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError
from tidemark.formats.landing import Answer, LandedSchema, Manifest
from tidemark.formats.layout import landed_path, schema_location
from tidemark.ledger.database import Ledger
from tidemark.ledger.journal import record_many
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.schemas import ReceivedLog, SeriesRow
from tidemark.receiver.load.admit import Load, Origin
from tidemark.receiver.load.check import check_part, landed_file
from tidemark.stores.protocol import Store
from tidemark.tsfiles.companions.schema_log import SchemaRecord, decode_log, form_of
from tidemark.tsfiles.devices import pattern_matches, put_below, split_nodes
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.statistics import FileFacts

_COPY_BLOCK = 4 << 20


@dataclass(frozen=True)
class KeptLog:
    """A schema log after a landing's bytes were appended. `records`: new ones. `trouble`: why bytes are missing."""

    log: ReceivedLog
    records: tuple[SchemaRecord, ...] = ()
    trouble: str = ""


def append_logs(ledger: Ledger, store: Store, root: Path, origin: Origin, manifest: Manifest) -> list[KeptLog]:
    """Append the landing's pieces to the logs kept at the receiver, and decode what is new. One entry per log."""
    if not manifest.schema:
        return []
    with ledger.read() as connection:
        known = schema_rows.received_logs(connection, origin.receiver, origin.site_id)
    kept: dict[str, KeptLog] = {path: KeptLog(log) for path, log in known.items()}
    for part in sorted(manifest.schema, key=lambda s: (s.path, s.epoch, s.start)):
        before = kept.get(part.path, KeptLog(ReceivedLog(part.path, part.epoch, 0, 0)))
        if part.epoch > before.log.epoch:  # the log began anew at the site
            before = KeptLog(ReceivedLog(part.path, part.epoch, 0, 0))
        kept[part.path] = _append_log(store, root, origin, before, part)
    told = {part.path for part in manifest.schema}
    return [_decode_records(store, origin, log) for path, log in sorted(kept.items()) if path in told]


def recall_logs(ledger: Ledger, store: Store, origin: Origin, manifest: Manifest) -> list[KeptLog]:
    """Return what `append_logs` returned when this landing was loaded, from the kept logs. For the rebuild of a ledger."""
    with ledger.read() as connection:
        known = schema_rows.received_logs(connection, origin.receiver, origin.site_id)
    kept: dict[str, KeptLog] = {}
    for part in sorted(manifest.schema, key=lambda s: (s.path, s.epoch, s.start)):
        before = kept.get(part.path, KeptLog(known.get(part.path, ReceivedLog(part.path, part.epoch, 0, 0))))
        if part.epoch > before.log.epoch:
            before = KeptLog(ReceivedLog(part.path, part.epoch, 0, 0))
        entry = store.stat(schema_location(origin.site_id, part.path, part.epoch))
        end = min(part.start + part.part.size, entry.size if entry else 0)
        if part.epoch == before.log.epoch and part.start <= before.log.position < end:
            before = replace(before, log=replace(before.log, position=end))
        kept[part.path] = before
    return [_decode_records(store, origin, log) for _, log in sorted(kept.items())]


def write_schema(connection: Connection, origin: Origin, logs: Sequence[KeptLog], loads: Iterable[Load]) -> tuple[str, ...]:
    """Record positions and series. Return the clashes that are new with this landing, one sentence each."""
    schema_rows.put_received(connection, origin.receiver, origin.site_id, [kept.log for kept in logs])
    declared = declared_series(connection, origin, logs)
    observed = _of_files(loads)
    if not declared and not observed:
        return ()
    names = {row.series for row in (*declared, *observed)}
    before = schema_rows.series_of(connection, origin.receiver, names)
    after, clashes = merge_series(before, declared, observed)
    schema_rows.put_series(connection, after)
    record_many(
        connection,
        "schema.clash",
        [{"site_id": origin.site_id, "landing": origin.landing, "path": row.series, "types": row.clash} for row in clashes],
    )
    return tuple(f"{row.series}: {row.type} by {row.source}, but {row.clash}" for row in clashes)


def write_observed(connection: Connection, row: CatalogFile, facts: FileFacts) -> None:
    """Record the series of a catalog file that nobody declared before."""
    write_unknown(connection, row.receiver, list(_series_of(row, facts, row.path or row.location, {})))


def write_unknown(connection: Connection, receiver: str, observed: Sequence[SeriesRow]) -> None:
    """Record those of these series that nobody declared before."""
    before = schema_rows.series_of(connection, receiver, [one.series for one in observed])
    schema_rows.put_series(connection, merge_series(before, (), observed)[0])


def schema_answers(logs: Iterable[KeptLog]) -> tuple[Answer, ...]:
    """Return the receipt's answers about schema logs that are incomplete; a complete log needs none."""
    return tuple(Answer(k.log.path, k.log.epoch, "schema", k.trouble) for k in logs if k.trouble)


def merge_series(
    before: Iterable[SeriesRow], declared: Iterable[SeriesRow], observed: Iterable[SeriesRow]
) -> tuple[list[SeriesRow], list[SeriesRow]]:
    """Return (rows that changed, those of them with a new clash). Pure.

    A schema log declares a series; a file does so only where no log has. `before` holds every site's rows of the series.
    """
    rows = {(row.site_id, row.series): row for row in before}
    first = dict(rows)
    clash: dict[tuple[str, str], set[str]] = {}
    for row in declared:
        rows[(row.site_id, row.series)] = row
    for row in observed:
        key = (row.site_id, row.series)
        mine = rows.setdefault(key, row)
        if mine.type != row.type and mine.state == "live":
            clash.setdefault(key, set()).add(f"{row.type} in {row.source}")
    by_series: dict[str, list[SeriesRow]] = {}
    for row in rows.values():
        by_series.setdefault(row.series, []).append(row)
    for same in by_series.values():
        for mine in (row for row in same if row.state == "live"):
            others = {f"{o.type} at site {o.site_id}" for o in same if o.type != mine.type and o.state == "live"}
            clash.setdefault((mine.site_id, mine.series), set()).update(others)
    for key, row in rows.items():
        words = "; ".join(sorted(clash.get(key, ())))
        if not words and key in first and _is_still_clash(first[key], row):
            words = first[key].clash or ""
        rows[key] = replace(row, clash=words or None)
    changed = [row for key, row in sorted(rows.items()) if first.get(key) != row]
    return changed, [row for row in changed if row.clash and (row.site_id, row.series) not in _known_clash(first, row)]


def _is_still_clash(before: SeriesRow, now: SeriesRow) -> bool:
    """Whether a clash found earlier remains: nothing new was declared since."""
    return before.type == now.type and before.state == now.state == "live"


def _known_clash(before: dict[tuple[str, str], SeriesRow], row: SeriesRow) -> set[tuple[str, str]]:
    key = (row.site_id, row.series)
    return {key} if key in before and before[key].clash == row.clash else set()


def declared_series(connection: Connection, origin: Origin, logs: Iterable[KeptLog]) -> list[SeriesRow]:
    """Apply the new records of the logs, in order, to the site's series. One row per series."""
    rows: dict[str, SeriesRow] = {}
    for kept in logs:
        databases = [record.series for record in kept.records if record.kind == "create_database"]
        for record in kept.records:
            if record.kind == "create":
                series = put_below(origin.prefix, record.series)
                rows[series] = SeriesRow(
                    receiver=origin.receiver,
                    site_id=origin.site_id,
                    series=series,
                    database_name=put_below(origin.prefix, _database_of_series(kept.log.path, record.series, databases)),
                    type=record.type,
                    encoding=record.encoding,
                    compression=record.compression,
                    aligned=record.aligned,
                    source=kept.log.path,
                )
            elif record.kind in ("delete", "delete_database"):
                below = ".**" if record.kind == "delete_database" else ""
                pattern = put_below(origin.prefix, record.series) + below
                for row in [*_matching_series(connection, origin, pattern), *rows.values()]:
                    if pattern_matches(pattern, row.series):
                        rows[row.series] = replace(rows.get(row.series, row), state="deleted", clash=None)
    return list(rows.values())


def _matching_series(connection: Connection, origin: Origin, pattern: str) -> list[SeriesRow]:
    """Return the site's recorded rows that a deletion pattern may mean."""
    if "*" in pattern:
        return schema_rows.series_of_site(connection, origin.receiver, origin.site_id)
    rows = schema_rows.series_of(connection, origin.receiver, [pattern])
    return [row for row in rows if row.site_id == origin.site_id]


def _database_of_series(log_path: str, series: str, databases: Iterable[str]) -> str:
    """Return the database of a series: the log's folder from 1.x on, else the longest in the log, else the first two
    nodes."""
    folders = log_path.split("/")[:-1]
    if len(folders) >= 2 and folders[-1].isdigit():
        return folders[-2]
    known = [database for database in databases if series.startswith(database + ".")]
    return max(known, key=len) if known else ".".join(split_nodes(series)[:2])


def _of_files(loads: Iterable[Load]) -> list[SeriesRow]:
    """Return the series that loaded files declare, one row per type, the newest file first, which decides the type."""
    told: _Told = {}
    rows: list[SeriesRow] = []
    for load in sorted(loads, key=lambda load: load.row.rank, reverse=True):
        if load.facts:
            rows += _series_of(load.row, load.facts, load.file.path, told)
    return rows


_Told = dict[str, set[tuple[str, DataType]]]  # device → measurements with their types
"""Most files of a landing tell what the one before told: only what is new becomes a row."""


def _series_of(row: CatalogFile, facts: FileFacts, source: str, told: _Told) -> Iterator[SeriesRow]:
    for device in facts.devices:
        known = told.setdefault(device.device, set())
        for measurement, found in device.series.items():
            if (measurement, found.type) in known:
                continue
            known.add((measurement, found.type))
            yield SeriesRow(
                receiver=row.receiver,
                site_id=row.site_id,
                series=f"{device.device}.{measurement}",
                database_name=row.database,
                type=found.type.name,
                encoding=found.encoding,
                compression=found.compression,
                aligned=device.aligned,
                source=source,
            )


def _append_log(store: Store, root: Path, origin: Origin, kept: KeptLog, part: LandedSchema) -> KeptLog:
    log, end = kept.log, part.start + part.part.size
    if kept.trouble or part.epoch < log.epoch or end <= log.position:
        return kept
    if part.start > log.position:
        missing = f"bytes {log.position} to {part.start} of schema log {part.path} have not come"
        return replace(kept, trouble=missing)
    try:
        check_part(landed_file(root, origin.folder, part.part), part.part)
    except CorruptionError as broken:
        return replace(kept, trouble=f"schema log {part.path}: {broken.message}")
    location = schema_location(origin.site_id, part.path, part.epoch)
    if store.stat(location) is None:
        store.publish(location, b"")  # makes the file's name durable
    skip = log.position - part.start
    source = f"{origin.folder}/{landed_path(part.part.path)}"
    # CRASH WINDOW: bytes appended, position not recorded: the next load writes them again at the recorded position.
    store.write_part(location, log.position, store.read_chunks(source, skip, part.part.size - skip, _COPY_BLOCK), sync=True)
    return replace(kept, log=replace(log, position=end))


def _decode_records(store: Store, origin: Origin, kept: KeptLog) -> KeptLog:
    """Decode the complete records between the last decoded position and the end of the kept log."""
    log = kept.log
    form = form_of(log.path)
    if form is None or log.decoded >= log.position:
        return kept
    data = store.read(schema_location(origin.site_id, log.path, log.epoch), log.decoded, log.position - log.decoded)
    try:
        records, end = decode_log(data, form, log.path)
    except CorruptionError as broken:
        return replace(kept, trouble=kept.trouble or f"schema log {log.path} cannot be decoded: {broken.message}")
    return replace(kept, records=tuple(records), log=replace(log, decoded=log.decoded + end))
