"""`verify --deep`: compare every point of a site's sealed files, newest wins, with what readers see of them.

It compares files that are in the catalog and at the site, where they are as acknowledged. The catalog may show more:

- A file changed or vanished since the newest run (the receiver's inventory still has it), or its newest content is kept out.
  The next sync or an operator decides. Content that only such a file shows is not compared. In a merged file, values between
  its first and last time are not compared.
- The receiver knows that a file vanished. Points that readers see only because of it are reported per file.

The comparison is pure. It implements the rule independently of the catalog's reader, so a mistake in one of the two shows.
`SitePoints` reads the site's own points from files that were verified against what was acknowledged. Files of a remote site
are fetched into a temporary folder first. Memory holds one device at a time, at the site and at the receiver.
"""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.cache import feed_steps, open_feed
from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.sql import run_report
from tidemark.progress import Progress, Tick, format_count
from tidemark.proof.coverage.gather import expected_files
from tidemark.proof.coverage.site import Site
from tidemark.proof.verify.differences import KEPT, POINTS, Difference, SourceChecked, SourceFile
from tidemark.receiver.load.check import mods_form
from tidemark.receiver.view import CatalogReader, Layer, SeenDevice, seen_devices
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import Store
from tidemark.tsfiles.companions.mods import NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.names import rank_of_source
from tidemark.tsfiles.points import column
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

Span = tuple[int, int]
ALL_TIMES: Span = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class Series:
    """The points of one series in time order, as canonical text with their type. `layers[i]`: index of the column that point
    i comes from."""

    times: NDArray[np.int64]
    texts: NDArray[np.object_]
    layers: NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """Which files a column of the catalog shows. `free`: (first, last) times at which it may show a file that changed or
    vanished since the newest run; values there are not compared. `gone`: source path → times at which it may show a file
    that the receiver knows as vanished."""

    free: tuple[Span, ...] = ()
    gone: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)


LIVE = Origin()
"""A column of files that the site has, as they are there."""
FOREIGN = Origin((ALL_TIMES,))
"""A column of another site that has, or had, the device."""


@dataclass(frozen=True)
class Compared:
    """`trouble`: '' where the catalog shows what the site has. `kept`: path of a vanished file → points only from it."""

    trouble: str
    kept: Mapping[str, int] = field(default_factory=dict)


def newest_wins(columns: Sequence[Column]) -> Series:
    """Overlay columns of one series, lowest rank first: the last of equal times wins."""
    filled = [(number, c) for number, c in enumerate(columns) if len(c)]
    if not filled:
        return Series(np.empty(0, np.int64), np.empty(0, np.object_), np.empty(0, np.int64))
    texts = np.empty(sum(len(c) for _, c in filled), np.object_)
    texts[:] = [f"{c.type.name} {text}" for _, c in filled for text in column.format_values(c.type, c.values)]
    times = np.concatenate([c.times for _, c in filled])
    layers = np.repeat([number for number, _ in filled], [len(c) for _, c in filled])
    backwards = len(times) - 1
    unique, first = np.unique(times[::-1], return_index=True)
    return Series(unique, texts[backwards - first], layers[backwards - first])


def compare_columns(source: Sequence[Column], catalog: Sequence[Column], origins: Sequence[Origin] = ()) -> Compared:
    """Compare what the site has with what readers see. Columns lowest rank first. `origins`: those of the `catalog` columns
    (none: all `LIVE`)."""
    if _is_identical(source, catalog):
        return Compared("")
    mine, theirs = newest_wins(source), newest_wins(catalog)
    excused = np.zeros(len(theirs.times), np.bool_)
    for number, origin in enumerate(origins):
        excused |= (theirs.layers == number) & _mask_within(theirs.times, origin.free)
    times, at_mine, at_theirs = np.intersect1d(mine.times, theirs.times, assume_unique=True, return_indices=True)
    troubles = []
    missing = np.setdiff1d(mine.times, theirs.times, assume_unique=True)
    if len(missing):
        troubles.append(
            f"{format_count(len(missing), 'point is', 'points are')} missing in the catalog, the first at {missing[0]}"
        )
    alone = ~np.isin(theirs.times, mine.times, assume_unique=True) & ~excused
    kept: Counter[str] = Counter()
    for number, origin in enumerate(origins):
        for path, spans in origin.gone.items():
            found = alone & (theirs.layers == number) & _mask_within(theirs.times, spans)
            kept[path] += int(found.sum())
            alone &= ~found
    extra = theirs.times[alone]
    if len(extra):
        more = format_count(len(extra), "point of the catalog is", "points of the catalog are")
        troubles.append(f"{more} not at the site, the first at {extra[0]}")
    other = np.flatnonzero((mine.texts[at_mine] != theirs.texts[at_theirs]) & ~excused[at_theirs])
    if len(other):
        at = other[0]
        values = f"{mine.texts[at_mine[at]]!r} at the site, {theirs.texts[at_theirs[at]]!r} in the catalog"
        troubles.append(f"{format_count(len(other), 'point differs', 'points differ')}, the first at {times[at]}: {values}")
    return Compared("; ".join(troubles), {path: count for path, count in kept.items() if count})


def _mask_within(times: NDArray[np.int64], spans: Sequence[Span]) -> NDArray[np.bool_]:
    found = np.zeros(len(times), np.bool_)
    for first, last in spans:
        found |= (times >= first) & (times <= last)
    return found


def _is_identical(source: Sequence[Column], catalog: Sequence[Column]) -> bool:
    """Compare two single columns of one type quickly, bit for bit."""
    if len(source) != 1 or len(catalog) != 1 or source[0].type is not catalog[0].type:
        return False
    mine, theirs = source[0], catalog[0]
    if not np.array_equal(mine.times, theirs.times):
        return False
    if mine.values.dtype == np.object_:
        return bool(np.array_equal(mine.values, theirs.values))
    return mine.values.tobytes() == theirs.values.tobytes()


_OPEN_FILES = 32
_BLOCK = 4 << 20
_Opened = tuple[TsFile, Deletions]


class SitePoints:
    """Reads a site's files; a context manager. `not_read`: file or series → why it could not be compared. `prefix`: what the
    catalog puts before their devices."""

    def __init__(self, store: Store, files: Mapping[str, SourceFile], scratch: Path, prefix: str = "") -> None:
        self._prefix = prefix
        self._store = store
        self._files = files
        self._scratch = scratch
        self._local = Path(store.url.removeprefix("file://")) if store.url.startswith("file://") else None
        self._open: OrderedDict[str, _Opened] = OrderedDict()
        self._by_device: dict[str, list[str]] = defaultdict(list)
        self.not_read: dict[str, str] = {}

    def __enter__(self) -> SitePoints:
        for path in sorted(self._files, key=lambda p: rank_of_source(self._files[p].name)):
            if (opened := self._open_file(path)) is not None:
                for device in opened[0].list_devices():
                    self._by_device[device].append(path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file, _ in self._open.values():
            file.close()

    def devices(self) -> Sequence[str]:
        return sorted(self._by_device)

    def paths(self, device: str) -> Sequence[str]:
        """Return the files that hold a device, lowest rank first."""
        return self._by_device[device]

    def read_columns(self, device: str) -> Mapping[str, list[Column]]:
        """Return measurement → its columns, deletions applied, lowest rank first."""
        found: dict[str, list[Column]] = defaultdict(list)
        for path in self._by_device[device]:
            opened = self._open_file(path)
            if opened is None:
                continue
            for measurement in opened[0].list_measurements(device):
                try:
                    found[measurement].append(opened[0].read_column(device, measurement, deletions=opened[1]))
                except UnsupportedError as broken:
                    self.not_read[f"{device}.{measurement}"] = broken.message
                except CorruptionError as broken:
                    self.not_read[f"{path} {device}.{measurement}"] = broken.message
        return found

    def _open_file(self, path: str) -> _Opened | None:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        file = self._files[path]
        try:
            place = self._fetch_file(path, file.size)
            opened = TsFile(place, file.name.database, self._prefix), self._read_deletions(file)
        except CorruptionError as broken:
            self.not_read[path] = broken.message
            return None
        self._open[path] = opened
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1][0].close()
        return opened

    def _read_deletions(self, file: SourceFile) -> Deletions:
        if not file.mods_size:
            return NO_DELETIONS
        if file.mods_size > MOST_MODS:
            raise CorruptionError(f"{file.mods_path} has {file.mods_size} bytes of deletions; at most {MOST_MODS} are read")
        data = self._store.read(file.mods_path, 0, file.mods_size)
        return parse_mods(data, mods_form(file.mods_path), file.mods_path, self._prefix)

    def _fetch_file(self, path: str, size: int) -> Path | UntrustedFile:
        if self._local is not None:
            return UntrustedFile(str(self._local), path)
        copy = self._scratch / path.lstrip("/")
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("wb") as target:
                for piece in self._store.read_chunks(path, 0, size, _BLOCK):
                    target.write(piece)
        return copy


@dataclass(frozen=True)
class Proof:
    """The site and receiver to compare. `root` holds the receiver's files. `live_only`: compare with `read --live-only`."""

    app: App
    receiver: ReceiverSettings
    root: Path
    site: Site
    cluster: Cluster | None
    live_only: bool
    progress: Progress


@dataclass
class Found:
    """The results. `visible`: files of the site that readers see. `not_read`: file or series → why it is not compared."""

    visible: int = 0
    series: int = 0
    differences: list[Difference] = field(default_factory=list)
    not_read: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Shown:
    """What readers see. `sources`: visible file → the (id, path) of the source files that it shows."""

    devices: Mapping[str, SeenDevice]
    sources: Mapping[int, Sequence[tuple[int, str]]]
    extents: Mapping[int, Sequence[CatalogDevice]]
    behind: frozenset[str]  # paths of which the site has another content than the catalog, or none since the newest run
    same: frozenset[str]  # paths that are compared

    def origin_of(self, layer: Layer) -> Origin | None:
        """Return which files a layer shows; None where it is not compared."""
        sources = self.sources.get(layer.file.file_id)
        if sources is None:
            return FOREIGN
        free: list[Span] = []
        gone: dict[str, list[Span]] = defaultdict(list)
        for file_id, path in sources:
            if path in self.same:
                continue
            whole = len(sources) == 1
            spans = [ALL_TIMES] if whole else [(d.start, d.end) for d in self.extents[file_id] if d.device == layer.name]
            if path in self.behind:
                free += spans
            else:
                gone[path] += spans
        if sources and all(path in self.behind for _, path in sources):
            return None
        return Origin(tuple(free), {path: tuple(spans) for path, spans in gone.items()}) if free or gone else LIVE


def compare_points(proof: Proof, store: Store, source: SourceChecked, present: set[str]) -> Found:
    """Compare every point of `present`: paths that are as acknowledged at the site and are in the catalog."""
    found, kept = Found(), _Kept()
    with proof.app.ledger.read() as connection:
        shown = _read_visible(connection, proof, source, frozenset(present))
        site = landing_rows.read_sites(connection).get(proof.site.site_id)
        bounds = {file.site_id: None for file in catalog_rows.visible_files(connection, proof.receiver.name)}
    found.visible = len(shown.sources)
    mine = {path: source.same[path] for path in present}
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-verify-") as scratch,
        open_feed(proof.cluster, proof.root) as feed,
        CatalogReader(proof.root, feed) as reader,
        SitePoints(store, mine, Path(scratch), site.prefix if site else "") as points,
    ):
        names = sorted({*points.devices(), *shown.devices})
        steps = ((name, _select_layers(shown, name)) for name in names)
        needed = ((step, [layer.file for layer, _ in step[1]]) for step in steps)
        for number, (name, layers) in enumerate(feed_steps(feed, needed), 1):
            proof.progress(Tick(f"points of {proof.site.name}", done=number, total=len(names), things="devices"))
            at_site = points.read_columns(name)
            seen = SeenDevice(name, tuple(layer for layer, _ in layers))
            origins = {layer.file.file_id: origin for layer, origin in layers}
            at_centre = dict(reader.read_layered_columns(seen, bounds, bounds)) if layers else {}
            for measurement in sorted({*at_site, *at_centre}):
                found.series += 1
                there = at_centre.get(measurement, [])
                told = [origins[file.file_id] for file, _ in there]
                compared = compare_columns(at_site.get(measurement, []), [column for _, column in there], told)
                kept.add_counts(compared.kept)
                if compared.trouble:
                    series, following = f"{name}.{measurement}", f"./tidemark why {shlex.quote(name)}"
                    found.differences.append(
                        Difference(POINTS, proof.site.name, series, "catalog", compared.trouble, next=following)
                    )
        found.not_read.update(points.not_read)
        found.not_read.update(reader.unread.found)
    found.differences += kept.list_differences(proof.site.name)
    return found


class _Kept:
    """Files that vanished at the site, with the points that readers see only because of them."""

    def __init__(self) -> None:
        self._points: Counter[str] = Counter()
        self._series: Counter[str] = Counter()

    def add_counts(self, kept: Mapping[str, int]) -> None:
        self._points.update(kept)
        self._series.update(kept.keys())

    def list_differences(self, site: str) -> Iterator[Difference]:
        """Yield one difference per file, by path."""
        for path, count in sorted(self._points.items()):
            of = f"{count:,} points in {self._series[path]:,} series"
            told = f"gone at the site and kept: readers see {of} that only this file has"
            yield Difference(KEPT, site, path, "catalog", told, next=f"./tidemark why {shlex.quote(path)}")


def _read_visible(connection: Connection, proof: Proof, source: SourceChecked, same: frozenset[str]) -> _Shown:
    receiver, site_id = proof.receiver.name, proof.site.site_id
    files = [f for f in catalog_rows.visible_files(connection, receiver) if not (proof.live_only and f.kept)]
    held = catalog_rows.devices_of_files(connection, [f.file_id for f in files])
    owners = {row.device: row.site_id for row in refusal_rows.all_owners(connection, receiver)}
    ours = [f for f in files if f.site_id == site_id]
    sources = _trace_sources(connection, receiver, site_id, ours)
    behind = source.sealed | {file.path for file in expected_files(connection, receiver, site_id)}
    devices = {d.name: d for d in seen_devices(files, held, owners, {}) if any(x.file.site_id == site_id for x in d.layers)}
    below = [file_id for found in sources.values() for file_id, path in found if path not in same]
    return _Shown(devices, sources, catalog_rows.devices_of_files(connection, below), frozenset(behind - same), same)


def _trace_sources(
    connection: Connection, receiver: str, site_id: str, visible: Sequence[CatalogFile]
) -> Mapping[int, Sequence[tuple[int, str]]]:
    """Return which source files (id, path) each visible file shows, directly or through all that it was merged from."""
    place = {"receiver": receiver, "site": site_id}
    paths = {int(r["file_id"]): r["path"] for r in run_report(connection, "catalog_held", **place) if r["role"] == "source"}
    made: dict[int, list[int]] = defaultdict(list)
    for r in run_report(connection, "catalog_lineage", **place):
        made[int(r["merged_id"])].append(int(r["source_id"]))
    found: dict[int, Sequence[tuple[int, str]]] = {}
    for file in visible:
        leaves, open_ids, seen = [], [file.file_id], set()
        while open_ids:
            file_id = open_ids.pop()
            if file_id in seen:
                continue
            seen.add(file_id)
            if file_id in paths:
                leaves.append((file_id, paths[file_id]))
            open_ids += made.get(file_id, ())
        found[file.file_id] = leaves
    return found


def _select_layers(shown: _Shown, name: str) -> list[tuple[Layer, Origin]]:
    """Return the layers of a device that are compared, each with its origin."""
    layers = shown.devices[name].layers if name in shown.devices else ()
    return [(layer, origin) for layer in layers if (origin := shown.origin_of(layer)) is not None]
