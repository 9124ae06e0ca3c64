"""`tidemark read`: write what readers of the catalog see to a file. Memory holds one device at a time.

One read transaction fixes the list of files. Retired files keep their bytes for a grace, so the list stays readable during
loads and merges. Files are read only as what was loaded (`proved_files`). The `.parquet` or `.csv` file is written in
batches to a temporary file, which is renamed durably when it is complete (`PointFile`). CSV distinguishes a null (nothing)
from an empty text (`""`). What cannot be decoded is reported and left out, and the exit code shows it. Source: CONTRACT §1
`read`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import open_cluster
from tidemark.cluster.replicas.cache import Feed, feed_steps, open_feed
from tidemark.errors import PartialError, PermissionDeniedError, UsageError, limits_named
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver import settled as settled_rows
from tidemark.ledger.receiver.catalog import CatalogDevice
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.receiver.load.examine import site_of
from tidemark.receiver.proved_files import require_proved
from tidemark.receiver.session import local_root
from tidemark.receiver.view import CatalogReader, Layer, SeenDevice, kept_times, overlay_points, seen_devices
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.agent import durable
from tidemark.tsfiles.devices import pattern_matches
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.spark.arrow import MOST_BYTES, Part, concatenate_parts, rows_at_once
from tidemark.tsfiles.times import parse_time_bound

_TALL = pa.schema(
    [
        ("device", pa.string()),
        ("measurement", pa.string()),
        ("time", pa.int64()),
        ("type", pa.string()),
        ("value", pa.string()),
    ]
)
_ARROW = {
    DataType.BOOLEAN: pa.bool_(),
    DataType.INT32: pa.int32(),
    DataType.INT64: pa.int64(),
    DataType.FLOAT: pa.float32(),
    DataType.DOUBLE: pa.float64(),
    DataType.TIMESTAMP: pa.int64(),
}
"""Types that a wide column keeps; the others, and columns whose files disagree, are canonical text."""


@dataclass(frozen=True)
class Query:
    """What to read. `site`: name or UUID. `device`: pattern. `start` inclusive, `end` exclusive: ISO 8601 or an integer."""

    site: str = ""
    device: str = "**"
    start: str = ""
    end: str = ""
    tall: bool = False
    verify: bool = False  # digest every file again, even if it was done recently
    live_only: bool = False  # without files that vanished at their site


@dataclass(frozen=True)
class ReadResult:
    """`undecodable`: `device.measurement` or file → why it is missing from the rows. `verified`: files that were digested.
    `kept_rows`: rows with a value of a file that vanished at its site. `kept_mixed`: such files whose rows nobody can tell
    from those of files that the site has: they are not in `kept_rows`, and `live_only` does not leave them out."""

    rows: int
    devices: int
    undecodable: Mapping[str, str]
    verified: int = 0
    kept_rows: int = 0
    kept_mixed: int = 0

    @property
    def exit_code(self) -> int:
        return PartialError.kind if self.undecodable else 0

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if self.undecodable:
            (what, why), *more = self.undecodable.items()
            rest = f" (and {len(more)} more)" if more else ""
            told = {
                "error": f"{what} was not read: {why}{rest}",
                "hint": f"./tidemark why {shlex.quote(_subject_of_unread(what))}",
            }
        return {
            "ok": not self.undecodable,
            **told,
            "rows": self.rows,
            "kept_rows": self.kept_rows,
            "kept_mixed": self.kept_mixed,
            "verified": self.verified,
            "devices": self.devices,
            "undecodable": dict(self.undecodable),
        }


@dataclass(frozen=True)
class _Bounds:
    """Site → time bound in the site's own unit; None: no bound."""

    start: Mapping[str, int | None]
    end: Mapping[str, int | None]

    def devices_within(self, site: str, devices: Iterable[CatalogDevice]) -> tuple[CatalogDevice, ...]:
        """Return devices that may have points within the bounds. Files with none of them need not be opened or fetched."""
        start, end = self.start[site], self.end[site]
        return tuple(d for d in devices if (start is None or d.end >= start) and (end is None or d.start < end))


def read(app: App, receiver: ReceiverSettings, query: Query, out: Path, progress: Progress = ignore_progress) -> ReadResult:
    """Write what readers see to `out` (`.parquet` or `.csv`).

    Tall: CONTRACT §1. Wide: time, device, then every measurement by name, typed. What cannot be decoded is left out and
    listed in the result, whose exit code is then 23. Raises UsageError, NotFoundError for an unknown site, CorruptionError
    for a file that is not what was loaded; then `out` is not written.
    """
    check_ending(out)
    for bound in (query.start, query.end):
        parse_time_bound(bound, "ms")  # report a malformed bound even if there is nothing to read
    root = local_root(app, receiver)
    site_id = site_of(app, query.site)
    with app.ledger.read() as connection:
        files = catalog_rows.visible_files(connection, receiver.name, site_id)
        files = [file for file in files if not (query.live_only and file.kept)]
        held = catalog_rows.devices_of_files(connection, [file.file_id for file in files])
        owners = {row.device: row.site_id for row in refusal_rows.all_owners(connection, receiver.name)}
        widths = catalog_rows.table_widths(connection, receiver.name)
        sites = landing_rows.read_sites(connection)
        mixed = _find_mixed(connection, receiver.name)
    bounds = _Bounds(
        {s: parse_time_bound(query.start, row.time_unit) for s, row in sites.items()},
        {s: parse_time_bound(query.end, row.time_unit) for s, row in sites.items()},
    )
    devices = [d for d in seen_devices(files, held, owners, widths) if pattern_matches(query.device, d.name)]
    if query.tall:  # a wide table has a column for every measurement, whenever it has points
        devices = _cut_to_bounds(devices, held, bounds)
    needed = (layer.file for device in devices for layer in device.layers)
    verified = require_proved(app, receiver, root, needed, anew=query.verify, progress=progress)
    with open_cluster(app, receiver) as cluster, open_feed(cluster, root) as feed, CatalogReader(root, feed) as reader:
        shape = _Tall() if query.tall else _Wide.from_devices(reader, devices, feed, progress)
        seen = kept = 0
        with PointFile(out, shape.schema) as target:
            for number, device in enumerate(_fetch_ahead(feed, devices), 1):
                before = target.rows
                kept += shape.write_device(target, reader, device, bounds)
                seen += target.rows > before
                progress(Tick("read", done=number, total=len(devices)))
        unread = dict(sorted(reader.unread.found.items()))
        return ReadResult(target.rows, seen, unread, verified, kept, _count_mixed(mixed, devices, bounds))


def _find_mixed(connection: Connection, receiver: str) -> list[tuple[str, tuple[CatalogDevice, ...]]]:
    """Return (site, devices) of each file that vanished there and whose rows count as live."""
    gone = settled_rows.kept_files(connection, receiver, mixed_only=True)
    mixed = {one.file_id: site for site, files in gone.items() for one in files}
    held = catalog_rows.devices_of_files(connection, mixed)
    return [(site, held.get(file_id, ())) for file_id, site in mixed.items()]


def _count_mixed(
    mixed: Iterable[tuple[str, Iterable[CatalogDevice]]], devices: Iterable[SeenDevice], bounds: _Bounds
) -> int:
    """Return how many of these files may have points in what is read."""
    seen = {(layer.file.site_id, layer.name) for device in devices for layer in device.layers}
    return sum(any((site, d.device) in seen for d in bounds.devices_within(site, held)) for site, held in mixed)


def _cut_to_bounds(
    devices: Iterable[SeenDevice], held: Mapping[int, Iterable[CatalogDevice]], bounds: _Bounds
) -> list[SeenDevice]:
    """Return devices that may have points within the bounds, with such files only: the others need not be fetched. Device
    names stay those of a read without bounds."""
    near: dict[int, set[str]] = {}

    def may(layer: Layer) -> bool:
        file = layer.file
        if file.file_id not in near:
            near[file.file_id] = {d.device for d in bounds.devices_within(file.site_id, held.get(file.file_id, ()))}
        return layer.name in near[file.file_id]

    cut = (replace(device, layers=tuple(filter(may, device.layers))) for device in devices)
    return [device for device in cut if device.layers]


def _fetch_ahead(feed: Feed | None, devices: Sequence[SeenDevice]) -> Iterator[SeenDevice]:
    return feed_steps(feed, ((device, [layer.file for layer in device.layers]) for device in devices))


class _Tall:
    schema = _TALL

    def write_device(self, target: PointFile, reader: CatalogReader, device: SeenDevice, bounds: _Bounds) -> int:
        """Write a device's rows. Return how many of them come from files that vanished at their site."""
        kept = 0
        for measurement, layered in reader.read_layered_columns(device, bounds.start, bounds.end):
            found = overlay_points([column for _, column in layered])
            kept += len(kept_times(layered))
            count = len(found.times)
            if count:
                arrays = [
                    pa.repeat(device.name, count),
                    pa.repeat(measurement, count),
                    pa.array(found.times),
                    pa.array(found.types, pa.string()),
                    pa.array(found.texts, pa.string()),
                ]
                target.add_rows(Part(count, dict(zip(self.schema.names, arrays, strict=True))))
        return kept


@dataclass(frozen=True)
class _Wide:
    """One row per device and time. `types`: measurement → type of its column, None for canonical text."""

    types: Mapping[str, DataType | None]

    @property
    def schema(self) -> pa.Schema:
        fields = [("time", pa.int64()), ("device", pa.string())]
        return pa.schema(
            fields + [(_column_name(n), _ARROW[t] if t in _ARROW else pa.string()) for n, t in self.types.items()]
        )

    @staticmethod
    def from_devices(reader: CatalogReader, devices: Sequence[SeenDevice], feed: Feed | None, progress: Progress) -> _Wide:
        types: dict[str, set[DataType]] = {}
        for number, device in enumerate(_fetch_ahead(feed, devices), 1):
            for measurement, found in reader.series_types(device).items():
                types.setdefault(measurement, set()).update(found)
            progress(Tick("columns", done=number, total=len(devices)))
        return _Wide({m: next(iter(types[m])) if len(types[m]) == 1 else None for m in sorted(types)})

    def write_device(self, target: PointFile, reader: CatalogReader, device: SeenDevice, bounds: _Bounds) -> int:
        """Write a device's rows. Return how many of them have a value of a file that vanished at its site."""
        layered = {m: one for m, one in reader.read_layered_columns(device, bounds.start, bounds.end) if one}
        if not layered:
            return 0
        series = {m: [column for _, column in one] for m, one in layered.items()}
        times = np.unique(np.concatenate([column.times for columns in series.values() for column in columns]))
        found = {"time": pa.array(times), "device": pa.repeat(device.name, len(times))}
        found |= {
            _column_name(name): self._align_to_times(times, columns, self.types[name]) for name, columns in series.items()
        }
        target.add_rows(Part(len(times), found))
        return len(np.unique(np.concatenate([kept_times(one) for one in layered.values()])))

    @staticmethod
    def _align_to_times(times: NDArray[np.int64], columns: Sequence[Column], data_type: DataType | None) -> pa.Array:
        """Return one value or null for each of `times`."""
        typed = data_type in _ARROW
        if typed and data_type is not None:
            whole = overlay_columns(columns)
            at, values = whole.times, pa.array(whole.values, _ARROW[data_type])
        else:
            found = overlay_points(columns)
            at, values = found.times, pa.array(found.texts, pa.string())
        places = np.searchsorted(at, times)
        present = (places < len(at)) & (at[np.minimum(places, len(at) - 1)] == times)
        return values.take(pa.array(places, mask=~present))


def _subject_of_unread(unread: str) -> str:
    """Return the subject for `why` of a series or file that was not read."""
    return unread if "/" in unread else unread.rpartition(".")[0]


def _column_name(measurement: str) -> str:
    """Return the column name of a measurement."""
    return f"measurement.{measurement}" if measurement in ("time", "device") else measurement


BATCH_ROWS = 65_536
ENDINGS = (".parquet", ".csv")


class PointFile:
    """A result file being written. A context manager that publishes it at the end, or removes it after an error.

    Rows are collected and written `BATCH_ROWS` at a time, fewer if there are very many columns.
    """

    def __init__(self, place: Path, schema: pa.Schema) -> None:
        check_ending(place)
        self._place = place
        self._temp = place.with_name(f"{place.name}.{os.getpid()}.tmp")
        self._schema = schema
        self._gathered: list[Part] = []
        self._at_once = rows_at_once(len(schema), BATCH_ROWS)
        self._waiting = self._bytes = 0
        self.rows = 0
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._writer: Any = (
                pa_parquet.ParquetWriter(self._temp, schema, compression="zstd")
                if place.suffix == ".parquet"
                else pa_csv.CSVWriter(str(self._temp), schema)
            )
        except PermissionError as refused:
            raise PermissionDeniedError(f"cannot write {place}: {refused}", subject=str(place)) from refused

    def add_rows(self, part: Part) -> None:
        """Add rows."""
        if self._at_once < BATCH_ROWS and part.rows > self._at_once:  # with very many columns most values are null
            for start in range(0, part.rows, self._at_once):
                self.add_rows(part.slice_rows(start, self._at_once))
            return
        size = part.nbytes
        if self._bytes + size > MOST_BYTES:
            self._write_gathered()
        self._gathered.append(part)
        self._bytes += size
        self._waiting += part.rows
        self.rows += part.rows
        if self._waiting >= self._at_once:
            self._write_gathered()

    def __enter__(self) -> PointFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with limits_named(self._place):
            try:
                if error is not None:
                    raise error
                self._write_gathered()
                self._writer.close()
                durable.seal([(os.fsencode(self._temp), os.fsencode(self._place))])
            except BaseException:
                with suppress(OSError):  # it repeats the first error
                    self._writer.close()
                durable.remove_quietly(os.fsencode(self._temp))
                raise

    def _write_gathered(self) -> None:
        if self._waiting:
            self._writer.write_batch(concatenate_parts(self._gathered, self._schema))
            self._gathered, self._waiting, self._bytes = [], 0, 0


def check_ending(place: Path) -> None:
    if place.suffix not in ENDINGS:
        raise UsageError(f"--out {place}: the name must end in .parquet or .csv", subject=str(place))
