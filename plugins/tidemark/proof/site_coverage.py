"""Coverage of one site at a receiver on this machine: inventory, landings not loaded yet, gaps, the catalog, the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError
from tidemark.ledger.proof_rows import report
from tidemark.proof.coverage import SiteCoverage, claims, stretches, unplaced
from tidemark.proof.days import day_of, parse_time
from tidemark.proof.gather import catalog_view, expected_files, waiting_files
from tidemark.proof.presence import Expected
from tidemark.stores.landing import MANIFEST, Manifest, decode_manifest, landing_folder


@dataclass(frozen=True)
class Site:
    """`unit`: ms, us or ns. `link`: the link of this ledger that feeds the receiver from it, '' where none does."""

    site_id: str
    name: str
    unit: str
    link: str = ""


@dataclass(frozen=True)
class Scene:
    """What is the same for every site of a report. `broken`: location → what is wrong with its bytes."""

    receiver: str
    root: Path
    names: Mapping[str, str]  # {site id: name}
    broken: Mapping[str, str] = field(default_factory=dict)
    left_out: str = "excluded by"  # how the reason begins that a link's patterns give
    since: str | None = None
    until: str | None = None


def cover_site(connection: Connection, scene: Scene, site: Site) -> SiteCoverage:
    """Decide every cell of one site. Raises UsageError where `since` or `until` is no time."""
    expected = {e.path: e for e in expected_files(connection, scene.receiver, site.site_id)}
    view = catalog_view(connection, scene.receiver, site.site_id, scene.broken, scene.names)
    trouble = dict(view.trouble)
    gaps: list[str] = []
    left_out = _left_out(scene, site, [e for e in expected.values() if not e.generation])
    for manifest in _not_loaded(connection, scene, site, gaps):
        why = f"landing {manifest.landing} (sequence {manifest.sequence}) is not loaded yet"
        left_out |= {entry.path for entry in manifest.added if entry.reason}
        for entry in manifest.added:
            expected[entry.path] = Expected(entry.path, entry.size, 0, entry.extent, manifest.landing)
            trouble.setdefault(entry.path, why)
        for path in manifest.removed:
            expected.pop(path, None)
    for file, why in waiting_files(connection, site.link, expected) if site.link else ():
        expected[file.path] = file
        trouble.setdefault(file.path, why)
        left_out |= {file.path} if why.startswith(scene.left_out) else set()
    left_out &= expected.keys()
    for path in left_out:
        del expected[path]
    gaps += _missing_landings(connection, scene, site)
    view = view.knowing(trouble)
    gaps += unplaced(expected.values(), view)
    found = claims(expected.values(), view, site.unit)
    first = None if scene.since is None else day_of(parse_time(scene.since, site.unit), site.unit)
    last = None if scene.until is None else day_of(parse_time(scene.until, site.unit) - 1, site.unit)
    return SiteCoverage(site.name, stretches(found, first, last), tuple(gaps), len(left_out))


def _left_out(scene: Scene, site: Site, never_carried: Sequence[Expected]) -> set[str]:
    """Which of these the manifests that listed them call left out by the link's own patterns: not expected at all."""
    told: dict[str, set[str]] = {}
    for file in never_carried:
        if file.landing not in told:
            paper = scene.root / landing_folder(site.site_id, file.landing) / MANIFEST
            try:
                added = decode_manifest(paper.read_bytes()).added
            except (CorruptionError, OSError):
                added = ()  # without the paper the file counts as expected
            told[file.landing] = {entry.path for entry in added if entry.reason}
    return {file.path for file in never_carried if file.path in told[file.landing]}


def _not_loaded(connection: Connection, scene: Scene, site: Site, gaps: list[str]) -> Iterator[Manifest]:
    """Manifests on disk that no load has taken, in sequence; what cannot be read goes to `gaps`."""
    loaded = {r["landing"] for r in report(connection, "loaded_landings", receiver=scene.receiver, site=site.site_id)}
    found = []
    for paper in sorted((scene.root / "landing" / site.site_id).glob(f"*/{MANIFEST}")):
        if paper.parent.name in loaded:
            continue
        try:
            found.append(decode_manifest(paper.read_bytes()))
        except (CorruptionError, OSError) as broken:
            gaps.append(f"the manifest of landing {paper.parent.name} cannot be read: {broken}")
    yield from sorted(found, key=lambda m: (m.sequence, m.landing))


def _missing_landings(connection: Connection, scene: Scene, site: Site) -> Sequence[str]:
    """What the sequence says never came. A landing whose folder is being copied counts as not come."""
    place = {"receiver": scene.receiver, "site": site.site_id}
    unloaded = report(connection, "unloaded_landings", **place)
    return [
        r["reason"] or f"landing {r['landing']} is {r['state']}" for r in unloaded if r["state"] in ("waiting", "rejected")
    ]
