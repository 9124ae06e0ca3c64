"""Count by device whether the server has all points that readers of the catalog see, and compare some bit for bit.

`count_open` counts every partition that received files since its last count, or that differed then. A device's points are
known from statistics if its files have no overlap and no deletion. Otherwise they are decoded. A difference from the
statistics is confirmed by decoding before it is reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.app import App
from tidemark.errors import DIFFERENCES_FOUND, RetryableError, TidemarkError
from tidemark.ledger.journal import record_event
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import iotdb as iotdb_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.iotdb import PartitionRow, Target
from tidemark.receiver.iotdb import server as iotdb_server
from tidemark.receiver.iotdb.points import TOO_WIDE, Mender, server_points, table_name, table_of
from tidemark.receiver.iotdb.server import Answering, Span
from tidemark.receiver.iotdb.session import RefusedError
from tidemark.receiver.load.result import Trouble
from tidemark.receiver.view import CatalogReader, Layer, SeenDevice, overlay_points

_DEVICES = 50  # of one query
DIGEST_POINTS = 100_000  # compared value by value in one load; `verify --deep` compares what a site has with the catalog


@dataclass(frozen=True)
class Counted:
    """`points` at the server. `compared`: how many of them also by value. `wrong`: device or table → what differs."""

    points: int
    compared: int
    wrong: Mapping[str, str]


@dataclass(frozen=True)
class Extents:
    """{file_id: {device: its extent in the file}}"""

    held: Mapping[int, Mapping[str, CatalogDevice]]

    def extent_of(self, layer: Layer) -> CatalogDevice:
        return self.held[layer.file.file_id][layer.name]


def known_points(seen: SeenDevice, extents: Extents, span: Span) -> int | None:
    """Return a device's points within a span by its files' statistics; None if they do not suffice: files overlap, have
    deletions or reach beyond the span."""
    layers = [(extents.extent_of(layer), layer.file.mods_location) for layer in seen.layers]
    inside = [(d, mods) for d, mods in layers if d.start <= span.end and span.start <= d.end]
    if any(mods or d.start < span.start or d.end > span.end for d, mods in inside):
        return None
    ordered = sorted((d.start, d.end) for d, _ in inside)
    if any(one[1] >= other[0] for one, other in itertools.pairwise(ordered)):
        return None
    return sum(d.points for d, _ in inside)


def seen_points(reader: CatalogReader, seen: SeenDevice, span: Span) -> int:
    """Return how many points of a device readers see within a span, by decoding them."""
    sites = {layer.file.site_id for layer in seen.layers}
    start, end = dict.fromkeys(sites, span.start), dict.fromkeys(sites, span.end + 1)
    return sum(len(overlay_points(columns).times) for _, columns in reader.read_columns(seen, start, end))


def count_devices(server: Answering, devices: Sequence[str], span: Span) -> dict[str, int]:
    """Count points of tree devices within a span at the server; an unknown device has none."""
    found = dict.fromkeys(devices, 0)
    for some in (devices[at : at + _DEVICES] for at in range(0, len(devices), _DEVICES)):
        try:
            told = server.rows(iotdb_server.counts_of(some, span))
        except RefusedError as refused:
            if refused.code not in TOO_WIDE:
                raise
            for device in some:
                found[device] = sum(len(column) for column in server_points(server, device, span).values())
            continue
        for cell in told.cells:
            device = iotdb_server.counted_device(cell.name)
            if device in found and len(cell.values):
                found[device] += int(cell.values[0])
    return found


def count_table(server: Answering, database: str, name: str, span: Span) -> int:
    """Count points of a table within a span at the server; 0 if it has no such table."""
    table = table_of(server, database, name)
    if table is None or not table.fields:
        return 0
    told = server.rows(iotdb_server.table_counts(database, name, table.fields, span), table=True)
    return sum(int(cell.values[0]) for cell in told.cells if len(cell.values))


def count_database(mender: Mender, database: str, devices: Iterable[SeenDevice], extents: Extents, span: Span) -> Counted:
    """Count the devices of one database within a span. A difference from the statistics is confirmed by decoding."""
    tree = [seen for seen in devices if seen.layers[-1].file.model != "table"]
    tables: dict[str, list[SeenDevice]] = {}
    for seen in devices:
        if seen.layers[-1].file.model == "table":
            tables.setdefault(table_name(seen.layers[-1].name), []).append(seen)
    wrong: dict[str, str] = {}
    there = count_devices(mender.server, [seen.layers[-1].name for seen in tree], span)
    total = sum(there.values())
    for seen in tree:
        name = seen.layers[-1].name
        _note_wrong_count(wrong, name, there[name], [seen], mender.reader, extents, span)
    for name, members in sorted(tables.items()):
        found = count_table(mender.server, database, name, span)
        total += found
        _note_wrong_count(wrong, f"{database}.{name}", found, members, mender.reader, extents, span)
    compared = _compare_values(mender, [*tree, *itertools.chain(*tables.values())], extents, span, wrong)
    return Counted(total, compared, wrong)


def _note_wrong_count(
    wrong: dict[str, str],
    name: str,
    there: int,
    members: Sequence[SeenDevice],
    reader: CatalogReader,
    extents: Extents,
    span: Span,
) -> None:
    known = [known_points(seen, extents, span) for seen in members]
    if None not in known and sum(n or 0 for n in known) == there:
        return
    here = sum(seen_points(reader, seen, span) for seen in members)
    if here != there:
        wrong[name] = f"the server has {there} points, the catalog {here}"


def _compare_values(
    mender: Mender, devices: Sequence[SeenDevice], extents: Extents, span: Span, wrong: dict[str, str]
) -> int:
    """Compare value by value, as many points as fit into DIGEST_POINTS. Return how many were compared."""
    left = DIGEST_POINTS
    for seen in devices:
        size = sum(extents.extent_of(layer).points for layer in seen.layers)
        layer = seen.layers[-1]
        if size > left or layer.name in wrong:
            continue
        left -= size
        try:
            found = mender.compare_device(layer.file, layer.name, span)
        except RetryableError:
            raise
        except TidemarkError as trouble:
            wrong[layer.name] = trouble.message
            continue
        if found:
            some = sum(len(column) for column in found.missing.values())
            wrong[layer.name] = f"{some} points are other or missing at the server, {len(found.extra)} series have more"
    return DIGEST_POINTS - left


def count_open(
    app: App,
    target: Target,
    lease: Lease,
    mender_of: Callable[[Sequence[CatalogFile]], Mender],
    troubles: list[Trouble],
) -> int:
    """Count every partition that is open, or differed last time; return the points. `mender_of`: makes a Mender around
    files."""
    with app.ledger.read() as connection:
        rows = iotdb_rows.partitions_in(connection, target, ("open", "differs"))
    points = 0
    databases: dict[str, list[PartitionRow]] = {}
    for row in rows:
        databases.setdefault(row.database, []).append(row)
    for database, some in databases.items():
        counted = _count_partitions(app, target, database, some, mender_of)
        points += counted.points
        _record_counts(app, target, lease, database, some, counted)
        troubles += [
            Trouble("iotdb", "", name, f"{database}: {why}", DIFFERENCES_FOUND) for name, why in counted.wrong.items()
        ]
    return points


def _count_partitions(
    app: App,
    target: Target,
    database: str,
    rows: Sequence[PartitionRow],
    mender_of: Callable[[Sequence[CatalogFile]], Mender],
) -> Counted:
    """Count the devices with files in these partitions, over the time of those files."""
    with app.ledger.read() as connection:
        given = iotdb_rows.partition_files(connection, target, database, [row.partition for row in rows])
        files = catalog_rows.files_by_id(connection, given)
        of_given = catalog_rows.devices_of_files(connection, given)
    mender = mender_of(files)
    with app.ledger.read() as connection:
        ids = {layer.file.file_id for seen in mender.seen.values() for layer in seen.layers}
        devices = catalog_rows.devices_of_files(connection, ids)
    extents = Extents({file_id: {d.device: d for d in found} for file_id, found in devices.items()})
    concerned: list[CatalogDevice] = [d for found in of_given.values() for d in found]
    names = {d.device for d in concerned}
    if not names:
        return Counted(0, 0, {})
    span = Span(min(d.start for d in concerned), max(d.end for d in concerned))
    seen: list[SeenDevice] = [mender.seen[name] for name in sorted(names & mender.seen.keys())]
    if any(one.layers[-1].file.model == "table" for one in seen):  # a table is counted as a whole
        seen = [one for one in mender.seen.values() if one.layers[-1].file.database == database]
    return count_database(mender, database, seen, extents, span)


def _record_counts(
    app: App, target: Target, lease: Lease, database: str, rows: Sequence[PartitionRow], counted: Counted
) -> None:
    reason = "; ".join(f"{name}: {why}" for name, why in sorted(counted.wrong.items()))[:2000] or None
    state = "differs" if reason else "equal"
    # CRASH WINDOW: counted, not recorded: the next load counts again.
    with app.ledger.write() as connection:
        assert_held(connection, lease)
        done = [replace(row, state=state, reason=reason) for row in rows]
        iotdb_rows.conclude_counts(connection, target, done, app.clock())
        record_event(
            connection,
            "iotdb.counted",
            path=database,
            server=target.server,
            partitions=len(rows),
            points=counted.points,
            compared=counted.compared,
            wrong=len(counted.wrong),
        )
