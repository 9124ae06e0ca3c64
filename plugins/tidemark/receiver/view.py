"""Read what readers see: the catalog's visible files overlaid, device by device, whether or not merges have run.

Within a site the file with the higher rank wins at a point. Deletions apply to their own file only. Nulls overwrite nothing.
Where ownership of a device moved, files of its present owner win over those of the former one. Source: DESIGN §3 "Who wins";
research/iotdb.md "What to know first" 10.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from tidemark.app import App
from tidemark.errors import CorruptionError, NotFoundError, PermanentError, RetryableError, UnsupportedError
from tidemark.ledger.cluster.node_watch import read_ahead
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver.load.check import read_deletions
from tidemark.receiver.load.examine import site_of
from tidemark.settings.model import ReceiverSettings
from tidemark.tsfiles.companions.mods import Deletions
from tidemark.tsfiles.devices import pad_null_tags, pattern_matches, split_nodes, unquote_node
from tidemark.tsfiles.points import column as points_column
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, overlay_columns
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.times import parse_time_bound
from tidemark.untrusted_files import UntrustedFile

_OPEN_FILES = 64
_MOST_OPEN_FILES = 512  # for a device in very many files: each file is read for each measurement


@dataclass(frozen=True)
class Layer:
    """One visible file that holds a device. `name`: the device's name in that file. `owned`: its site owns the device."""

    file: CatalogFile
    name: str
    owned: bool


@dataclass(frozen=True)
class SeenDevice:
    """A device as readers see it, with its files from lowest to highest rank."""

    name: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Points:
    """The points of one series in time order, as canonical text. `types[i]` differs only where files disagree."""

    times: NDArray[np.int64]
    types: Sequence[str]
    texts: Sequence[str]


@dataclass(frozen=True)
class Asked:
    """The part of a catalog that is asked for. `site`: name or UUID. `devices`: patterns, one of which a device matches.
    `databases`: none: all. `start` inclusive, `end` exclusive: ISO 8601 or an integer. `live_only`: without kept files."""

    site: str = ""
    devices: tuple[str, ...] = ("**",)
    start: str = ""
    end: str = ""
    live_only: bool = False
    databases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """Site → time bound in the site's own unit; None: no bound."""

    start: Mapping[str, int | None]
    end: Mapping[str, int | None]

    def devices_within(self, site: str, devices: Iterable[CatalogDevice]) -> tuple[CatalogDevice, ...]:
        """Return devices that may have points within the bounds. Files with none of them need not be opened or fetched."""
        start, end = self.start[site], self.end[site]
        return tuple(d for d in devices if (start is None or d.end >= start) and (end is None or d.start < end))


@dataclass(frozen=True)
class Seen:
    """The devices that are asked for, by name, and what tells of them. `held`: file id → its devices. `sites`: those with a
    file among them. `unit`: of their times; "" if they have several."""

    devices: Sequence[SeenDevice]
    held: Mapping[int, Sequence[CatalogDevice]]
    bounds: Bounds
    sites: frozenset[str]
    unit: str

    @property
    def files(self) -> list[CatalogFile]:
        return list({layer.file.file_id: layer.file for device in self.devices for layer in device.layers}.values())

    def cut_to_bounds(self) -> Seen:
        """Return devices that may have points within the bounds, with such files only: the others need not be fetched.
        Device names stay those of a read without bounds."""
        near: dict[int, set[str]] = {}

        def may(layer: Layer) -> bool:
            file = layer.file
            if file.file_id not in near:
                within = self.bounds.devices_within(file.site_id, self.held.get(file.file_id, ()))
                near[file.file_id] = {d.device for d in within}
            return layer.name in near[file.file_id]

        cut = (replace(device, layers=tuple(filter(may, device.layers))) for device in self.devices)
        return replace(self, devices=[device for device in cut if device.layers])


def find_seen(app: App, receiver: ReceiverSettings, asked: Asked) -> Seen:
    """Find what readers see of the catalog, in one read transaction. Raises UsageError for a malformed bound, NotFoundError
    for an unknown site, PermanentError if the watch found the nodes ahead of the ledger: its catalog would be an older one.

    Nodes are not asked here. So until the watch's next round a ledger that was restored older answers as of its copy.
    """
    for bound in (asked.start, asked.end):
        parse_time_bound(bound, "ms")  # report a malformed bound even if there is nothing to read
    site_id = site_of(app, asked.site)
    databases = {unquote_node(database) for database in asked.databases}
    with app.ledger.read() as connection:
        if ahead := read_ahead(connection, receiver.name):
            raise PermanentError(
                f"group {', '.join(ahead)}: the nodes are ahead of the ledger, so its catalog is an older one",
                hint="./tidemark read … --from-nodes, or ./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)",
                subject=ahead[0],
            )
        files = [
            file
            for file in catalog_rows.visible_files(connection, receiver.name, site_id)
            if not (asked.live_only and file.kept) and (not databases or unquote_node(file.database) in databases)
        ]
        held = catalog_rows.devices_of_files(connection, [file.file_id for file in files])
        owners = {row.device: row.site_id for row in refusal_rows.all_owners(connection, receiver.name)}
        widths = catalog_rows.table_widths(connection, receiver.name)
        sites = landing_rows.read_sites(connection)
    bounds = Bounds(
        {s: parse_time_bound(asked.start, row.time_unit) for s, row in sites.items()},
        {s: parse_time_bound(asked.end, row.time_unit) for s, row in sites.items()},
    )
    devices = [
        device
        for device in seen_devices(files, held, owners, widths)
        if any(pattern_matches(pattern, device.name) for pattern in asked.devices)
    ]
    of_sites = frozenset(layer.file.site_id for device in devices for layer in device.layers)
    units = {sites[site].time_unit for site in of_sites or sites.keys()}
    # Where no site is known yet it is the settings' default.
    return Seen(devices, held, bounds, of_sites, next(iter(units), "ms") if len(units) < 2 else "")


@dataclass
class Unread:
    """What could not be read: (`device.measurement` or file, why). The rest was read."""

    found: dict[str, str] = field(default_factory=dict)


def seen_devices(
    files: Iterable[CatalogFile],
    devices: Mapping[int, Sequence[CatalogDevice]],
    owners: Mapping[str, str],
    widths: Mapping[tuple[str, str, str], int],
) -> list[SeenDevice]:
    """Return every device of the files, by name. `owners`: device → site. `widths`: (site, database, table) → tags."""
    layers: dict[str, list[Layer]] = {}
    for file in files:
        for device in devices.get(file.file_id, ()):
            owned = owners.get(device.device) == file.site_id
            layers.setdefault(device.device, []).append(Layer(file, device.device, owned))
    seen = []
    for name, found in layers.items():
        found.sort(key=lambda layer: (layer.owned, layer.file.site_id, layer.file.rank, layer.file.file_id))
        seen.append(SeenDevice(_pad_device_name(name, found, widths), tuple(found)))
    return sorted(seen, key=lambda device: device.name)  # code points sort as UTF-8 bytes do


def _pad_device_name(name: str, layers: Sequence[Layer], widths: Mapping[tuple[str, str, str], int]) -> str:
    """Pad a device of the table model to the table's latest number of tags."""
    nodes = split_nodes(name)
    if nodes[0] == "root" or len(nodes) < 2 or all(layer.file.model == "tree" for layer in layers):
        return name
    table = unquote_node(nodes[1])
    return pad_null_tags(name, max(widths.get((layer.file.site_id, layer.file.database, table), 0) for layer in layers))


class CatalogReader:
    """Reads series from the files of a receiver. A context manager; keeps recently used files open."""

    def __init__(self, root: Path, fetch: Callable[[CatalogFile], Path | None] | None = None) -> None:
        """`fetch`: fetches a file that only data nodes have and returns its folder (None: `root`), or raises why not."""
        self._root = root
        self._fetch = fetch
        self._open: OrderedDict[int, tuple[TsFile, Deletions]] = OrderedDict()
        self._bad: set[int] = set()
        self._at_once = _OPEN_FILES
        self.unread = Unread()

    def __enter__(self) -> CatalogReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()

    def series_types(self, device: SeenDevice) -> dict[str, set[DataType]]:
        """Return measurement → its types in the files. A file that cannot be read is added to `unread`."""
        types: dict[str, set[DataType]] = {}
        self._at_once = min(max(len(device.layers), _OPEN_FILES), _MOST_OPEN_FILES)
        for layer in device.layers:
            try:
                if opened := self._open_cached(layer.file):
                    for measurement, series in opened[0].series_of(layer.name)[1].items():
                        types.setdefault(measurement, set()).add(series.type)
            except CorruptionError as broken:
                self._note_unread(layer.file.location, broken)
        return types

    def read_columns(
        self, device: SeenDevice, start: Mapping[str, int | None], end: Mapping[str, int | None]
    ) -> Iterator[tuple[str, list[Column]]]:
        """Yield (measurement, its columns, lowest rank first), by name. `start`, `end`: site → time bound or None."""
        for measurement, found in self.read_layered_columns(device, start, end):
            yield measurement, [column for _, column in found]

    def read_layered_columns(
        self,
        device: SeenDevice,
        start: Mapping[str, int | None],
        end: Mapping[str, int | None],
        *,
        wanted: Callable[[str], bool] = lambda _measurement: True,
    ) -> Iterator[tuple[str, list[tuple[CatalogFile, Column]]]]:
        """As `read_columns`, each column with its file. `wanted`: whether a measurement is read."""
        for measurement in filter(wanted, sorted(self.series_types(device))):
            columns = [
                (layer.file, column)
                for layer in device.layers
                if (column := self._read_column(layer, measurement, start[layer.file.site_id], end[layer.file.site_id]))
                is not None
            ]
            yield measurement, [(file, column) for file, column in columns if len(column)]

    def _read_column(self, layer: Layer, measurement: str, start: int | None, end: int | None) -> Column | None:
        opened = self._open_cached(layer.file)
        try:
            if opened is None or measurement not in opened[0].series_of(layer.name)[1]:
                return None
            return opened[0].read_column(layer.name, measurement, start, end, opened[1])
        except UnsupportedError as unsupported:
            self._note_unread(f"{layer.name}.{measurement}", unsupported)
        except CorruptionError as broken:
            self._note_unread(f"{layer.name}.{measurement}", broken)
        return None

    def _open_cached(self, file: CatalogFile) -> tuple[TsFile, Deletions] | None:
        """Return the open file with its deletions; None when it cannot be opened (added to `unread` once)."""
        if file.file_id in self._bad:
            return None
        if file.file_id in self._open:
            self._open.move_to_end(file.file_id)
            return self._open[file.file_id]
        try:
            opened, deletions = self._open_or_fetch(file)
        except CorruptionError as broken:
            self._bad.add(file.file_id)
            self._note_unread(file.location, broken)
            return None
        except (NotFoundError, FileNotFoundError) as gone:
            raise gone_error(file.location) from gone
        self._open[file.file_id] = (opened, deletions)
        while len(self._open) > self._at_once:
            self._open.popitem(last=False)[1][0].close()
        return opened, deletions

    def _open_or_fetch(self, file: CatalogFile) -> tuple[TsFile, Deletions]:
        try:
            return _open_with_deletions(self._root, file)
        except (NotFoundError, FileNotFoundError):
            if self._fetch is None:
                raise
        return _open_with_deletions(self._fetch(file) or self._root, file)

    def _note_unread(self, subject: str, error: CorruptionError) -> None:
        self.unread.found.setdefault(subject, error.message)


def gone_error(location: str) -> RetryableError:
    """The error to raise for a visible file whose bytes are not there."""
    return RetryableError(
        f"{location} is gone from the receiver: somebody removed it, or the read took longer than the grace",
        hint="read again; if it stays: ./tidemark verify --repair",
        subject=location,
    )


def _open_with_deletions(root: Path, file: CatalogFile) -> tuple[TsFile, Deletions]:
    deletions = read_deletions(str(root), file.mods_location, file.prefix)
    return TsFile(UntrustedFile(str(root), file.location), file.database, file.prefix), deletions


def kept_times(found: Sequence[tuple[CatalogFile, Column]]) -> NDArray[np.int64]:
    """Return the times, ascending, whose value comes from a file that vanished at its site. `found`: lowest rank first."""
    if not any(file.kept for file, _ in found):
        return np.empty(0, np.int64)
    times = np.concatenate([column.times for _, column in found])
    kept = np.concatenate([np.full(len(column), file.kept) for file, column in found])
    backwards = len(times) - 1
    unique, first = np.unique(times[::-1], return_index=True)  # the last of equal times wins
    from_kept: NDArray[np.int64] = unique[kept[backwards - first]]
    return from_kept


def overlay_points(columns: Sequence[Column]) -> Points:
    """Overlay columns of one series, lowest rank first; types may differ from file to file."""
    if not columns:
        return Points(np.empty(0, np.int64), (), ())
    if len({column.type for column in columns}) == 1:
        whole = overlay_columns(columns)
        return Points(whole.times, [whole.type.name] * len(whole), points_column.format_values(whole.type, whole.values))
    times = np.concatenate([column.times for column in columns])
    types = [column.type.name for column in columns for _ in range(len(column))]
    texts = [text for column in columns for text in points_column.format_values(column.type, column.values)]
    order = np.argsort(times, kind="stable")  # equal times stay in rank order, so the last of them wins
    last = np.append(times[order][1:] != times[order][:-1], True)
    kept = order[last]
    return Points(times[kept], [types[i] for i in kept], [texts[i] for i in kept])
