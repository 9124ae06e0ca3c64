"""Compare a server's points with those that readers see, and send or delete the difference.

Used for files that cannot be LOADed unchanged: late and changed ones, those that left the catalog, deletions, and LOADs with
an unknown outcome. The server gets exactly the difference, point by point (`Mender`). Values are compared bit for bit, so a
comparison without a difference proves both sides equal (`compute_difference`). After a crash it is simply repeated: what is
there already is no difference any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import CorruptionError, NotFoundError, PartialError, PermanentError, UnsupportedError
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver.iotdb import server as iotdb_server
from tidemark.receiver.iotdb.server import Answering, Span, load_into
from tidemark.receiver.iotdb.session import RefusedError, Rows
from tidemark.receiver.iotdb.staging import Stage
from tidemark.receiver.view import CatalogReader, SeenDevice
from tidemark.tsfiles.devices import split_nodes, table_segments
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import UntrustedFile

Series = Mapping[str, Column]
TOO_WIDE = (719, 411)  # "not enough memory for Query": also of a span of very many time partitions; 0.12: too many series


class TypeDiffersError(PermanentError):
    """A series has another type at the server than in the file."""


@dataclass(frozen=True)
class Difference:
    """The difference of one device. `missing`: points that the server lacks or has with another value. `extra`: measurement
    → times that only the server has."""

    missing: Series = field(default_factory=dict)
    extra: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    alike: int = 0  # points that both have
    other: int = 0  # of `missing`: those whose time has another value at the server

    def __bool__(self) -> bool:
        return bool(self.missing) or bool(self.extra)


def compute_difference(device: str, ours: Series, theirs: Series) -> Difference:
    """Compare the catalog's columns of a device with the server's. Raises TypeDiffersError."""
    missing, extra, alike, values = {}, {}, 0, 0
    for name in sorted({*ours, *theirs}):
        mine, other = ours.get(name), theirs.get(name)
        if mine is not None and other is not None and len(mine) and len(other) and mine.type is not other.type:
            raise TypeDiffersError(
                f"{device}.{name} is {other.type.name} at the server and {mine.type.name} in the file",
                hint="give it one type: change the series at the server, then ./tidemark load",
                subject=f"{device}.{name}",
            )
        lacks, much, same = _compare_columns(mine, other)
        alike += same
        values += (len(other) if other is not None else 0) - len(much) - same
        if lacks is not None and len(lacks):
            missing[name] = lacks
        if len(much):
            extra[name] = much
    return Difference(missing, extra, alike, values)


def _compare_columns(mine: Column | None, other: Column | None) -> tuple[Column | None, NDArray[np.int64], int]:
    none = np.empty(0, np.int64)
    if mine is None or not len(mine):
        return None, none if other is None else other.times, 0
    if other is None or not len(other):
        return mine, none, 0
    places = np.minimum(np.searchsorted(other.times, mine.times), len(other) - 1)
    there = other.times[places] == mine.times
    same = there & (_comparable_values(mine) == _comparable_values(other)[places])
    return mine.select_where(~same), np.setdiff1d(other.times, mine.times, assume_unique=True), int(same.sum())


def _comparable_values(column: Column) -> NDArray[np.generic]:
    """Return values that are equal if their bits are: NaN equals NaN, 0.0 differs from -0.0."""
    if column.type in (DataType.FLOAT, DataType.DOUBLE):
        return column.values.view(np.int32 if column.type is DataType.FLOAT else np.int64)
    return column.values


def deletion_spans(extra: NDArray[np.int64], kept: Sequence[NDArray[np.int64]]) -> Iterator[Span]:
    """Yield spans that cover all times of `extra` and none of `kept`; both ascending."""
    if not len(extra):
        return
    others = np.unique(np.concatenate([*kept, np.empty(0, np.int64)]))
    between = np.searchsorted(others, extra)
    cuts = np.flatnonzero(np.diff(between)) + 1
    for part in np.split(extra, cuts):
        yield Span(int(part[0]), int(part[-1]))


@dataclass(frozen=True)
class Table:
    """A table at the server: its tag columns in order, its fields."""

    database: str
    name: str
    tags: tuple[str, ...]
    fields: tuple[str, ...]


def table_of(server: Answering, database: str, name: str) -> Table | None:
    """Return a table of the server; None if it has no such table."""
    try:
        told = server.rows(iotdb_server.table_columns(database, name), table=True)
    except RefusedError:
        return None
    names, kinds = told.find_column("ColumnName"), told.find_column("Category")
    columns = list(zip(names.decode_texts(), kinds.decode_texts(), strict=True)) if names and kinds else []
    tags = tuple(str(n) for n, kind in columns if kind in ("TAG", "ID"))
    fields = tuple(str(n) for n, kind in columns if kind in ("FIELD", "MEASUREMENT"))
    return Table(database, name, tags, fields)


def server_points(
    server: Answering, device: str, span: Span, table: Table | None = None, measurement: str = "*"
) -> dict[str, Column]:
    """Return the points of a device at the server within a span, by measurement. `table`: for a device of the table model.
    `measurement`: only this one, tree model only."""
    if table is not None:
        tags, fields, database = table.tags, table.fields, table.database
        told = _query_within(
            server, lambda s: iotdb_server.table_points(device, tags, fields, database, s), span, table=True
        )
        time, *cells = told.cells
        times = time.values
        names = list(table.fields)
    else:
        told = _query_within(server, lambda s: iotdb_server.points_of(device, s, measurement), span)
        cells, times = list(told.cells), told.times
        names = [_measurement_of_column(cell.name, device) for cell in cells]
    found = {}
    for name, cell in zip(names, cells, strict=True):
        if name and len(cell.values):
            found[name] = Column(cell.type, times[cell.present], cell.values).slice_between(span.start, span.end + 1)
    return {name: column for name, column in found.items() if len(column)}


def _query_within(server: Answering, statement: Callable[[Span | None], str], span: Span, table: bool = False) -> Rows:
    """Query within a span. A server reserves memory for every time partition of the span and refuses very many. Then the
    query runs without a span, and the caller cuts the result."""
    try:
        return server.rows(statement(span), table)
    except RefusedError as refused:
        if refused.code not in TOO_WIDE:
            raise
    return server.rows(statement(None), table)


def _measurement_of_column(name: str, device: str) -> str:
    """Return the measurement of a column `<device>.<measurement>`; '' for a deeper device (0.12: `*` matches many nodes)."""
    nodes = split_nodes(name)
    return nodes[-1] if ".".join(nodes[:-1]) == device else ""


def table_name(device: str) -> str:
    """Return the table of a canonical device of the table model."""
    return str(table_segments(device)[0])


@dataclass
class Mended:
    """`alike`: points that were there already. `written`: points that were sent. `deleted`: spans that were deleted."""

    alike: int = 0
    written: int = 0
    deleted: int = 0


@dataclass
class Mender:
    """Makes a server agree with the catalog. `seen`: devices as readers see them, by the name that files give them."""

    server: Answering
    stage: Stage
    root: Path
    reader: CatalogReader
    seen: Mapping[str, SeenDevice]
    tables: dict[tuple[str, str], Table | None] = field(default_factory=dict)

    def compare_devices(self, file: CatalogFile, devices: Sequence[CatalogDevice]) -> dict[str, Difference]:
        """Compare a file's devices within their extents; the result also has devices without a difference."""
        return {d.device: self.compare_device(file, d.device, Span(d.start, d.end)) for d in devices}

    def mend_file(self, file: CatalogFile, devices: Sequence[CatalogDevice], leaves: bool = False) -> Mended:
        """Make the server agree within the extents of a file's devices.

        `leaves`: delete points of this file that readers no longer see; otherwise nothing is ever deleted. Raises
        TypeDiffersError, PartialError if the server still disagrees, UnsupportedError if we cannot read the points.
        """
        found = self.compare_devices(file, devices)
        done = Mended(alike=sum(one.alike for one in found.values()))
        missing = {device: one.missing for device, one in found.items() if one.missing}
        if missing:
            self._write_missing(file, missing)
            done.written = sum(len(column) for series in missing.values() for column in series.values())
        if leaves:
            done.deleted = self._delete_extra(file, devices, found)
        if done.written or done.deleted:
            for device, left in self.compare_devices(file, devices).items():
                if left.missing:
                    some = sum(len(column) for column in left.missing.values())
                    raise PartialError(f"{device}: {some} points did not arrive as they are", subject=file.path)
        return done

    def delete_unseen_points(self, file: CatalogFile, devices: Sequence[CatalogDevice]) -> int:
        """Delete what this file brought and readers do not see. Return the number of deletions."""
        return self._delete_extra(file, devices, self.compare_devices(file, devices))

    def compare_device(self, file: CatalogFile, device: str, span: Span) -> Difference:
        """Compare one device of `file` within a span."""
        table = self._cached_table(file, device)
        ours = self._read_catalog_columns(device, span)
        if file.model == "table" and table is None:
            return compute_difference(device, ours, {})
        theirs = server_points(self.server, device, span, table)
        found = compute_difference(device, ours, theirs)
        if not found.other or table is not None:
            return found
        # 2.0.1-beta returns old values of aligned devices where files overlap, if all series are queried at once
        for measurement in found.missing.keys() & theirs.keys():
            theirs |= server_points(self.server, device, span, measurement=measurement)
        return compute_difference(device, ours, theirs)

    def _read_catalog_columns(self, device: str, span: Span) -> dict[str, Column]:
        seen = self.seen.get(device)
        if seen is None:
            return {}
        before = set(self.reader.unread.found)
        sites = {layer.file.site_id for layer in seen.layers}
        start, end = dict.fromkeys(sites, span.start), dict.fromkeys(sites, span.end + 1)
        found = {}
        for measurement, columns in self.reader.read_columns(seen, start, end):
            if len({column.type for column in columns}) > 1:
                raise UnsupportedError(f"{device}.{measurement}: its files disagree on its type", subject=device)
            if columns:
                found[measurement] = overlay_columns(columns)
        unread = {name: why for name, why in self.reader.unread.found.items() if name not in before}
        for name, why in unread.items():
            if name.startswith(f"{device}.") or name in {layer.file.location for layer in seen.layers}:
                self.reader.unread.found.pop(name)
                raise UnsupportedError(f"{name} cannot be compared: {why}", subject=name)
        return found

    def _write_missing(self, file: CatalogFile, missing: Mapping[str, Mapping[str, Column]]) -> None:
        if self.server.version.format < 4:
            raise PermanentError(
                "it comes late, and this server reads only TsFiles of version 3: its points cannot be given apart",
                hint="LOAD its newer files again by hand after it, or use an IoTDB 2.x",
                subject=file.path,
            )
        table = file.model == "table"
        tags: dict[str, Sequence[str]] = {}
        aligned = {}
        for device in missing:
            with self._open_highest_file(device) as holder:
                aligned[device] = table or holder.is_aligned(device)
                if table:
                    name = table_name(device)
                    tags[name] = max(tags.get(name, ()), holder.tag_columns[name], key=len)  # a table gains tags
        self.stage.clear_folder()
        path = self.stage.write_points(missing, aligned, tags)
        load_into(self.server, path, file.database, table)
        self.tables.clear()  # the LOAD may have created one

    def _open_highest_file(self, device: str) -> TsFile:
        """Open the highest-ranked file that holds a device."""
        layer = self.seen[device].layers[-1]
        return TsFile(UntrustedFile(str(self.root), layer.file.location), layer.file.database, layer.file.prefix)

    def _delete_extra(self, file: CatalogFile, devices: Sequence[CatalogDevice], found: Mapping[str, Difference]) -> int:
        """Delete points that only the server has and that `file` brought, as the file's bytes show."""
        much = {device: one.extra for device, one in found.items() if one.extra}
        if not much:
            return 0
        try:
            brought = TsFile(UntrustedFile(str(self.root), file.location), file.database, file.prefix)
        except (NotFoundError, FileNotFoundError, CorruptionError):
            return 0  # the count reports extra points as `differs`
        spans = {d.device: Span(d.start, d.end) for d in devices}
        count = 0
        stays: dict[str, Series] = {}
        with brought:
            for device, extra in much.items():
                held = set(brought.list_measurements(device)) if device in brought.list_devices() else set()
                own = {
                    m: times
                    for m in sorted(held & extra.keys())
                    if len(times := _times_in_file(brought, device, m, extra[m]))
                }
                if file.model == "table":
                    deleted, stays[device] = self._delete_rows(file, device, own, spans[device])
                    count += deleted
                else:
                    count += self._delete_points(device, own, spans[device])
        if stays := {device: columns for device, columns in stays.items() if columns}:
            # CRASH WINDOW: rows are gone of which fields stay: the file is not recorded as gone, so the next load compares
            # again and sends what readers see of them.
            self._write_missing(file, stays)
        return count

    def _delete_points(self, device: str, own: Mapping[str, NDArray[np.int64]], span: Span) -> int:
        count = 0
        for measurement, times in own.items():
            there = server_points(self.server, device, span, measurement=measurement)  # as in `compare_device`: one by one
            held = there[measurement].times if measurement in there else times[:0]
            kept = np.setdiff1d(held, times, assume_unique=True)
            for part in deletion_spans(times, [kept]):
                self.server.run(iotdb_server.delete_statement(device, measurement, part))
                count += 1
        return count

    def _delete_rows(
        self, file: CatalogFile, device: str, own: Mapping[str, NDArray[np.int64]], span: Span
    ) -> tuple[int, Series]:
        """Delete the rows of a table that have these points: a table can only delete whole rows. Return the number of
        deletions, and the points of these rows that stay: they must be written again.

        Of a device that readers do not see at all, a row with anybody else's points stays as it is.
        """
        table = self._cached_table(file, device)
        if not own or table is None:
            return 0, {}
        none = np.empty(0, np.int64)
        there = server_points(self.server, device, span, table)
        kept = {name: column.select_where(~np.isin(column.times, own.get(name, none))) for name, column in there.items()}
        times = np.unique(np.concatenate(list(own.values())))
        if device not in self.seen:
            times = np.setdiff1d(times, np.concatenate([column.times for column in kept.values()]))
        others = [np.setdiff1d(column.times, times, assume_unique=True) for column in there.values()]
        parts = list(deletion_spans(times, others))
        for part in parts:
            self.server.run(iotdb_server.table_delete_statement(device, table.tags, table.database, part), table=True)
        stays = {name: column.select_where(np.isin(column.times, times)) for name, column in kept.items()}
        return len(parts), {name: column for name, column in stays.items() if len(column)}

    def _cached_table(self, file: CatalogFile, device: str) -> Table | None:
        """Return the device's table. None: the server lacks the table, or lacks tags of the device and so all its points."""
        if file.model != "table":
            return None
        key = (file.database, table_name(device))
        if self.tables.get(key) is None:
            self.tables[key] = table_of(self.server, *key)
        table = self.tables[key]
        return table if table and len(table_segments(device)) <= len(table.tags) + 1 else None


def _times_in_file(file: TsFile, device: str, measurement: str, extra: NDArray[np.int64]) -> NDArray[np.int64]:
    times = file.read_column(device, measurement).times
    return np.intersect1d(times, extra, assume_unique=False)
