"""`tidemark read`: what readers of the catalog see, as rows. Memory holds one device at a time.

One read transaction fixes the list of files. Retired files keep their bytes for a grace, so the list stays readable during
loads and merges. Files are read only as what was loaded (`proved_files`). `point_file` writes the rows to a file or a
stream. What cannot be decoded is reported and left out, and the exit code shows it. Source: CONTRACT §1 `read`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import open_cluster
from tidemark.cluster.replicas.cache import Feed, feed_steps, open_feed
from tidemark.errors import PartialError
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import settled as settled_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.receiver.point_file import PointFile, Stream, Times, choose_times, form_of
from tidemark.receiver.proved_files import require_proved
from tidemark.receiver.session import local_root
from tidemark.receiver.view import Asked, Bounds, CatalogReader, SeenDevice, find_seen, kept_times, overlay_points
from tidemark.settings.model import ReceiverSettings
from tidemark.tsfiles.devices import translate_stars
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.spark.arrow import Part

_ARROW = {
    DataType.BOOLEAN: pa.bool_(),
    DataType.INT32: pa.int32(),
    DataType.INT64: pa.int64(),
    DataType.FLOAT: pa.float32(),
    DataType.DOUBLE: pa.float64(),
}
"""Types that a wide column keeps beside TIMESTAMP; the others, and columns whose files disagree, are canonical text."""


@dataclass(frozen=True)
class Query:
    """What to read. `site`: name or UUID. `device`: pattern. `start` inclusive, `end` exclusive: ISO 8601 or an integer.

    `measurements`: patterns, one of which a measurement matches; none: all. `tail`: the newest so many rows of each device
    (tall: of each series). `limit`: the first so many rows of all. `times`: number | instant; "" is an instant in a wide
    Parquet file or stream whose sites have one unit, else a number. `form`: of a stream; a file's name says its own.
    """

    site: str = ""
    device: str = "**"
    start: str = ""
    end: str = ""
    tall: bool = False
    verify: bool = False  # digest every file again, even if it was done recently
    live_only: bool = False  # without files that vanished at their site
    measurements: tuple[str, ...] = ()
    limit: int | None = None
    tail: int | None = None
    times: str = ""
    form: str = ""


@dataclass(frozen=True)
class ReadResult:
    """`undecodable`: `device.measurement` or file → why it is missing from the rows. `verified`: files that were digested.
    `kept_rows`: rows with a value of a file that vanished at its site. `kept_mixed`: such files whose rows nobody can tell
    from those of files that the site has: they are not in `kept_rows`, and `live_only` does not leave them out.
    `time_unit`: of the sites that are read; "" if they have several."""

    rows: int
    devices: int
    undecodable: Mapping[str, str]
    verified: int = 0
    kept_rows: int = 0
    kept_mixed: int = 0
    time_unit: str = ""

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
            "time_unit": self.time_unit or None,
            "undecodable": dict(self.undecodable),
        }


def read(
    app: App, receiver: ReceiverSettings, query: Query, out: Path | Stream, progress: Progress = ignore_progress
) -> ReadResult:
    """Write what readers see to `out`: a file (`.parquet`, `.csv` or `.jsonl`), or a stream in the query's form.

    Tall: CONTRACT §1. Wide: time, device, then every measurement by name, typed. What cannot be decoded is left out and
    listed in the result, whose exit code is then 23. Raises UsageError, NotFoundError for an unknown site, CorruptionError
    for a file that is not what was loaded; then nothing is written.
    """
    form = form_of(out) if isinstance(out, Path) else query.form
    root = local_root(app, receiver)
    seen = find_seen(app, receiver, Asked(query.site, (query.device,), query.start, query.end, query.live_only))
    with app.ledger.read() as connection:
        mixed = _find_mixed(connection, receiver.name)
    times = choose_times(query.times, form, seen.unit if query.times or not query.tall else "")
    if query.tall:  # a wide table has a column for every measurement, whenever it has points
        seen = seen.cut_to_bounds()
    devices, bounds, unit = seen.devices, seen.bounds, seen.unit
    verified = require_proved(app, receiver, root, seen.files, anew=query.verify, progress=progress)
    wanted = _Wanted.from_query(query)
    with open_cluster(app, receiver) as cluster, open_feed(cluster, root) as feed, CatalogReader(root, feed) as reader:
        shape = _Tall(times) if query.tall else _Wide.from_devices(reader, devices, (wanted, times), feed, progress)
        full = kept = 0
        with PointFile(out, shape.schema.with_metadata(_metadata(receiver, query, unit)), form) as target:
            for number, device in enumerate(_fetch_ahead(feed, devices), 1):
                if target.rows == query.limit:
                    break
                before = target.rows
                series = reader.read_layered_columns(device, bounds.start, bounds.end, wanted=wanted.matches)
                for rows in shape.rows_of(device, series):
                    kept += wanted.cut(rows, target.rows).add_to(target)
                    if target.rows == query.limit:
                        break
                full += target.rows > before
                progress(Tick("read", done=number, total=len(devices), things="devices"))
        unread = dict(sorted(reader.unread.found.items()))
        return ReadResult(target.rows, full, unread, verified, kept, _count_mixed(mixed, devices, bounds), unit)


def _metadata(receiver: ReceiverSettings, query: Query, unit: str) -> dict[str, str]:
    """Return what a Parquet file says of itself."""
    asked = {key: value for key, value in asdict(query).items() if value and key != "form"}
    return {
        "tidemark.receiver": receiver.name,
        "tidemark.time_unit": unit,
        "tidemark.query": json.dumps(asked, ensure_ascii=False),
    }


class _Rows(NamedTuple):
    """Rows of one device in time order. `kept`: which of them have a value of a file that vanished at its site."""

    part: Part
    kept: NDArray[np.bool_]

    def add_to(self, target: PointFile) -> int:
        """Add the rows to the file. Return how many of them are kept."""
        target.add_rows(self.part)
        return int(np.count_nonzero(self.kept))


@dataclass(frozen=True)
class _Wanted:
    """Which measurements and how many rows are asked for."""

    measurement: re.Pattern[str] | None
    limit: int | None
    tail: int | None

    @staticmethod
    def from_query(query: Query) -> _Wanted:
        """`*` in a pattern is any characters; all else is literal."""
        patterns = [translate_stars(pattern) for pattern in query.measurements]
        return _Wanted(re.compile("|".join(patterns), re.DOTALL) if patterns else None, query.limit, query.tail)

    def matches(self, measurement: str) -> bool:
        return self.measurement is None or self.measurement.fullmatch(measurement) is not None

    def cut(self, rows: _Rows, written: int) -> _Rows:
        """Return the newest rows, as many as are asked for and still missing after those that were written."""
        start = max(0, rows.part.rows - self.tail) if self.tail is not None else 0
        count = rows.part.rows - start
        if self.limit is not None:
            count = min(count, self.limit - written)
        if count == rows.part.rows:
            return rows
        return _Rows(rows.part.slice_rows(start, count), rows.kept[start : start + count])


def _find_mixed(connection: Connection, receiver: str) -> list[tuple[str, tuple[CatalogDevice, ...]]]:
    """Return (site, devices) of each file that vanished there and whose rows count as live."""
    gone = settled_rows.kept_files(connection, receiver, mixed_only=True)
    mixed = {one.file_id: site for site, files in gone.items() for one in files}
    held = catalog_rows.devices_of_files(connection, mixed)
    return [(site, held.get(file_id, ())) for file_id, site in mixed.items()]


def _count_mixed(mixed: Iterable[tuple[str, Iterable[CatalogDevice]]], devices: Iterable[SeenDevice], bounds: Bounds) -> int:
    """Return how many of these files may have points in what is read."""
    seen = {(layer.file.site_id, layer.name) for device in devices for layer in device.layers}
    return sum(any((site, d.device) in seen for d in bounds.devices_within(site, held)) for site, held in mixed)


def _fetch_ahead(feed: Feed | None, devices: Sequence[SeenDevice]) -> Iterator[SeenDevice]:
    return feed_steps(feed, ((device, [layer.file for layer in device.layers]) for device in devices))


Series = Iterable[tuple[str, list[tuple[CatalogFile, Column]]]]
"""(measurement, its columns with their files, lowest rank first)."""


@dataclass(frozen=True)
class _Tall:
    """One row per point."""

    times: Times

    @property
    def schema(self) -> pa.Schema:
        names = ("device", "measurement", "time", "type", "value")
        return pa.schema([(name, self.times.type if name == "time" else pa.string()) for name in names])

    def rows_of(self, device: SeenDevice, series: Series) -> Iterator[_Rows]:
        for measurement, layered in series:
            found = overlay_points([column for _, column in layered])
            count = len(found.times)
            if count:
                arrays = [
                    pa.repeat(device.name, count),
                    pa.repeat(measurement, count),
                    self.times.encode(found.times),
                    pa.array(found.types, pa.string()),
                    pa.array(found.texts, pa.string()),
                ]
                part = Part(count, dict(zip(self.schema.names, arrays, strict=True)))
                yield _Rows(part, np.isin(found.times, kept_times(layered)))


@dataclass(frozen=True)
class _Wide:
    """One row per device and time. `types`: measurement → type of its column, None for canonical text."""

    types: Mapping[str, DataType | None]
    times: Times

    @property
    def schema(self) -> pa.Schema:
        fields = [pa.field("time", self.times.type), pa.field("device", pa.string())]
        for name, kind in self.types.items():
            metadata = {"tidemark.type": kind.name} if kind is not None else None
            fields.append(pa.field(_column_name(name), self._arrow_type(kind), metadata=metadata))
        return pa.schema(fields)

    @staticmethod
    def from_devices(
        reader: CatalogReader,
        devices: Sequence[SeenDevice],
        asked: tuple[_Wanted, Times],
        feed: Feed | None,
        progress: Progress,
    ) -> _Wide:
        wanted, times = asked
        types: dict[str, set[DataType]] = {}
        for number, device in enumerate(_fetch_ahead(feed, devices), 1):
            for measurement, found in reader.series_types(device).items():
                if wanted.matches(measurement):
                    types.setdefault(measurement, set()).update(found)
            progress(Tick("columns", done=number, total=len(devices), things="devices"))
        return _Wide({m: next(iter(types[m])) if len(types[m]) == 1 else None for m in sorted(types)}, times)

    def rows_of(self, device: SeenDevice, series: Series) -> Iterator[_Rows]:
        layered = {m: one for m, one in series if one}
        if not layered:
            return
        columns = {m: [column for _, column in one] for m, one in layered.items()}
        times = np.unique(np.concatenate([column.times for found in columns.values() for column in found]))
        arrays = {"time": self.times.encode(times), "device": pa.repeat(device.name, len(times))}
        arrays |= {
            _column_name(name): self._align_to_times(times, found, self.types[name]) for name, found in columns.items()
        }
        kept = np.concatenate([kept_times(one) for one in layered.values()])
        yield _Rows(Part(len(times), arrays), np.isin(times, kept))

    def _arrow_type(self, kind: DataType | None) -> pa.DataType:
        if kind == DataType.TIMESTAMP:
            return self.times.type
        return _ARROW.get(kind, pa.string()) if kind is not None else pa.string()

    def _align_to_times(self, times: NDArray[np.int64], columns: Sequence[Column], kind: DataType | None) -> pa.Array:
        """Return one value or null for each of `times`."""
        if kind in _ARROW or kind == DataType.TIMESTAMP:
            whole = overlay_columns(columns)
            at = whole.times
            values = self.times.encode(whole.values) if kind == DataType.TIMESTAMP else pa.array(whole.values, _ARROW[kind])
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
