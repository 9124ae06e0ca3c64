"""`verify --deep`: compare every point of a site's sealed files, newest wins, with what readers see of them.

It compares files that are in the catalog and at the site, where they are as acknowledged. The catalog may show more:

- A file changed or vanished since the newest run (the receiver's inventory still has it), or its newest content is kept out.
  The next sync or an operator decides. Content that only such a file shows is not compared. In a merged file, values between
  its first and last time are not compared.
- The receiver knows that a file vanished. Points that readers see only because of it are reported per file.

Memory holds one device at a time, at the site and at the receiver.
"""

from __future__ import annotations

import shlex
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.cache import feed_steps, open_feed
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.sql import run_report
from tidemark.progress import Progress, Tick
from tidemark.proof.coverage.gather import expected_files
from tidemark.proof.coverage.site import Site
from tidemark.proof.verify.differences import KEPT, POINTS, Difference, SourceChecked
from tidemark.proof.verify.points import ALL_TIMES, FOREIGN, LIVE, Origin, SitePoints, Span, compare_columns
from tidemark.receiver.view import CatalogReader, Layer, SeenDevice, seen_devices
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import Store


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
        bounds = {site.site_id: None for site in catalog_rows.visible_files(connection, proof.receiver.name)}
    found.visible = len(shown.sources)
    mine = {path: source.same[path] for path in present}
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-verify-") as scratch,
        open_feed(proof.cluster, proof.root) as feed,
        CatalogReader(proof.root, feed) as reader,
        SitePoints(store, mine, Path(scratch)) as points,
    ):
        names = sorted({*points.devices(), *shown.devices})
        steps = ((name, _select_layers(shown, name)) for name in names)
        needed = ((step, [layer.file for layer, _ in step[1]]) for step in steps)
        for number, (name, layers) in enumerate(feed_steps(feed, needed), 1):
            proof.progress(Tick(f"points of {proof.site.name}", done=number, total=len(names)))
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
