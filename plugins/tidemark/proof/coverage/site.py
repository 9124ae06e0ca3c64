"""Coverage of one site at a receiver on this machine: inventory, unloaded landings, gaps, the catalog, the bytes.

Files in unloaded landings are known from their manifests. `find_altered_records` finds manifests and receipts in loaded
landings that are not what was loaded and answered. `sites_of` lists a receiver's sites, from the settings and the manifests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import NotFoundError, PermanentError, PermissionDeniedError
from tidemark.formats.answered import kept_manifest, landing_sign, landings_of, list_altered, read_manifest
from tidemark.formats.landing import Manifest
from tidemark.formats.layout import MANIFEST, landed_path, landing_folder
from tidemark.ledger.receiver.landings import read_sites as known_sites
from tidemark.ledger.receiver.settled import kept_files
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender.links import get_link
from tidemark.ledger.sender.runs import sent_landings
from tidemark.ledger.sql import Row, run_report
from tidemark.progress import format_count
from tidemark.proof.as_of import AsOf, day_of
from tidemark.proof.coverage.cells import (
    CatalogView,
    Expected,
    SiteCoverage,
    build_stretches,
    claim_days,
    list_unplaced,
    mark_unknown_days,
)
from tidemark.proof.coverage.gather import catalog_view, expected_files, waiting_files
from tidemark.proof.explanation import given_up_note, kept_note
from tidemark.receiver.faults import message_of, require_theirs
from tidemark.receiver.proved_files import Recorded
from tidemark.settings.model import ReceiverSettings
from tidemark.sync.notes import not_verified, passed_over
from tidemark.tsfiles.times import parse_time_bound

LOST = "it was whole, is not loaded, and is not at the receiver any more: the later ones of the site wait for it"


def list_landed_parts(
    root: Path, site_id: str, loaded: Collection[str], unread: dict[str, str]
) -> list[tuple[Recorded, str, str]]:
    """Return (record, path of the TsFile, source path of the part) of every file in landings that are not in `loaded`.

    `unread`: {path of a manifest, or of all landings, that cannot be read: why}, filled here.
    """
    found = []
    there, closed = _list_landings(root, site_id)
    unread |= {f"landing/{site_id}": closed} if closed else {}
    for landing, path in there:
        if landing in loaded:
            continue
        try:
            manifest = read_manifest(root, path)
        except Exception as broken:
            unread[path] = message_of(require_theirs(broken))
            continue
        folder = landing_folder(site_id, landing)
        for file in manifest.files:
            for part in (file.tsfile, file.resource, file.mods):
                if part is not None:
                    record = Recorded(f"{folder}/{landed_path(part.path)}", part.size, part.sha256)
                    found.append((record, file.path, part.path))
    return found


def _list_landings(root: Path, site_id: str) -> tuple[list[tuple[str, str]], str]:
    """Return `landings_of` a site, and why they cannot be listed ('': they can)."""
    try:
        return landings_of(root, site_id), ""
    except Exception as closed:
        return [], message_of(closed if isinstance(closed, PermanentError) else require_theirs(closed))


def find_altered_records(root: Path, site_id: str, loaded: Sequence[Row], trusting: bool) -> Iterator[tuple[str, str]]:
    """Yield (landing, what is wrong) for `loaded` landings whose manifest or receipt was changed since. `loaded`: rows of
    `loaded_landings`. `trusting`: skip landings with an unchanged sign."""
    for row in loaded:
        sign, place = int(row["folder_mtime"]), (site_id, row["landing"])
        try:
            untouched = trusting and sign and sign == landing_sign(root, *place)
            altered = [] if untouched else list_altered(root, *place, row["manifest_sha256"])
        except Exception as error:
            altered = [f"its manifest and receipt cannot be compared: {message_of(require_theirs(error))}"]
        for what in altered:
            yield row["landing"], what


@dataclass(frozen=True)
class Site:
    """`unit`: ms, us or ns. `link`: the link of this ledger from the site to the receiver, '' without."""

    site_id: str
    name: str
    unit: str
    link: str = ""


@dataclass(frozen=True)
class CoverageScope:
    """What all sites of a report share. `broken`: location → what is wrong with its bytes."""

    receiver: str
    root: Path
    names: Mapping[str, str]  # {site id: name}
    broken: Mapping[str, str] = field(default_factory=dict)
    left_out: str = "excluded by"  # how a reason begins that comes from a link's patterns
    since: str | None = None
    until: str | None = None
    clock: float = 0.0  # now


def cover_site(connection: Connection, scene: CoverageScope, site: Site, known: AsOf) -> SiteCoverage:
    """Decide every cell of one site; `known`: when it was last listed. UsageError for a malformed `since` or `until`."""
    expected = {e.path: e for e in expected_files(connection, scene.receiver, site.site_id)}
    view = catalog_view(connection, scene.receiver, site.site_id, scene.broken, scene.names)
    trouble = dict(view.trouble)
    gaps: list[str] = []
    apart = _find_unexpected(scene, site, [e for e in expected.values() if not e.generation or _has_changed(e, view)])
    for manifest in _read_unloaded(connection, scene, site, gaps):
        why = f"landing {manifest.landing} (sequence {manifest.sequence}) is not loaded yet"
        for entry in manifest.named_added:
            apart |= {entry.path: entry.reason} if entry.reason else {}
            expected[entry.path] = Expected(entry.path, entry.size, 0, entry.extent, manifest.landing)
            trouble.setdefault(entry.path, why)
        for path in manifest.removed:
            expected.pop(path, None)
    for file, why in waiting_files(connection, site.link, expected) if site.link else ():
        expected[file.path] = file
        trouble.setdefault(file.path, why)
        apart |= {file.path: why} if why.startswith(scene.left_out) else {}
    apart = {path: why for path, why in apart.items() if path in expected}
    for path in apart:
        del expected[path]
    loaded = run_report(connection, "loaded_landings", receiver=scene.receiver, site=site.site_id)
    gaps += [what for _, what in find_altered_records(scene.root, site.site_id, loaded, trusting=True)]
    gaps += _missing_landings(connection, scene, site) or _lost_landings(connection, scene, site)
    skipped = passed_over(connection, site.link)
    gaps += [f"{path} {why}: nobody knows what is there" for path, why in skipped.unlisted]
    view = view.with_troubles(trouble)
    gaps += list_unplaced(expected.values(), view)
    found = claim_days(expected.values(), view, site.unit)
    since, until = parse_time_bound(scene.since or "", site.unit), parse_time_bound(scene.until or "", site.unit)
    first = None if since is None else day_of(since, site.unit)
    last = None if until is None else day_of(until - 1, site.unit)
    notes = (*_list_notes(apart, view, scene, _never_ran(connection, site)), *skipped.notes)
    unverified = hold_rows.count_unverified(connection).get(site.link, 0)
    notes += (not_verified(unverified, site.name),) if unverified else ()
    kept = kept_files(connection, scene.receiver).get(site.site_id, ())
    notes += (*kept_note(kept), *given_up_note(connection, scene.receiver, site.site_id))
    today = day_of(int(scene.clock * 1000), "ms")
    shown = mark_unknown_days(
        build_stretches(found, first, last), known.last_day, today if last is None else min(today, last)
    )
    return SiteCoverage(site.name, shown, tuple(gaps), notes, known, kept)


def _list_notes(apart: Mapping[str, str], view: CatalogView, scene: CoverageScope, never_ran: str) -> tuple[str, ...]:
    """Return what no cell shows and a reader must know. `apart`: {path: why it is not expected}."""
    left_out = [path for path, why in apart.items() if why.startswith(scene.left_out)]
    older = sum(any(h.state == "live" for h in view.by_path.get(path, ())) for path in left_out)
    adopted = len(apart) - len(left_out)
    notes = [never_ran] if never_ran else []
    if left_out:
        notes.append(f"{format_count(len(left_out), 'file is', 'files are')} left out by the link's patterns")
    if older:
        notes.append(f"{older} of them changed since they were sent: the catalog keeps what they were before")
    if adopted:
        notes.append(
            f"{format_count(adopted, 'file was', 'files were')} adopted: brought by another tool, not in the catalog"
        )
    return tuple(notes)


def _lost_landings(connection: Connection, scene: CoverageScope, site: Site) -> Sequence[str]:
    """Return landings of this ledger's link that were not loaded and whose manifest is missing or unreadable. Used where no
    later landing waits for them, so that the receiver does not report them."""
    loaded = {r["landing"] for r in run_report(connection, "loaded_landings", receiver=scene.receiver, site=site.site_id)}
    made = sent_landings(connection, site.link, state="landed") if site.link else ()
    folder = scene.root / "landing" / site.site_id
    troubles = {one: _check_manifest(folder / one.landing / MANIFEST) for one in made if one.landing not in loaded}
    return [
        f"landing {one.landing} (sequence {one.sequence}, {format_count(one.files, 'file')}): {why}"
        for one, why in troubles.items()
        if why
    ]


def _check_manifest(record: Path) -> str:
    """Return why a manifest that should be there cannot be read, "" where it is there."""
    try:
        record.lstat()
    except FileNotFoundError:
        return f"{LOST}; ./tidemark verify --repair"
    except OSError as broken:
        return f"{record} cannot be looked at: {broken.strerror}"
    return ""


def _never_ran(connection: Connection, site: Site) -> str:
    """Return a note on a link without a run: it has listed nothing, so no cell is expected or proved."""
    link = get_link(connection, site.link) if site.link else None
    if not site.link or (link is not None and link.last_run):
        return ""
    return f"link {site.link} never ran: nothing is known of what the site has"


def _has_changed(file: Expected, view: CatalogView) -> bool:
    """Whether the site's file differs in size from what the catalog has."""
    rows = view.by_path.get(file.path, ())
    return bool(rows) and max(rows, key=lambda h: h.file_id).size != file.size


def _find_unexpected(scene: CoverageScope, site: Site, not_carried: Sequence[Expected]) -> dict[str, str]:
    """Return path → reason for files that their manifests mark as not expected: the link's patterns exclude them, or they
    were adopted."""
    told: dict[str, dict[str, str]] = {}
    for file in not_carried:
        if file.landing not in told:
            kept = kept_manifest(site.site_id, file.landing)
            record = f"{landing_folder(site.site_id, file.landing)}/{MANIFEST}"
            try:
                added = read_manifest(scene.root, kept if (scene.root / kept).exists() else record).added
            except Exception as error:
                if not isinstance(error, PermissionDeniedError):
                    require_theirs(error)
                added = ()  # without its manifest the file counts as expected
            told[file.landing] = {entry.path: entry.reason for entry in added if entry.reason}
    return {file.path: told[file.landing][file.path] for file in not_carried if file.path in told[file.landing]}


def _read_unloaded(connection: Connection, scene: CoverageScope, site: Site, gaps: list[str]) -> Iterator[Manifest]:
    """Yield manifests on disk that are not loaded yet, in sequence; errors go to `gaps`.

    A rejected manifest, or one that the sequence has passed, is a copy of an old landing and says nothing of the site.
    """
    place = {"receiver": scene.receiver, "site": site.site_id}
    loaded = run_report(connection, "loaded_landings", **place)
    newest = max((int(r["sequence"]) for r in loaded), default=0)
    rejected = [r for r in run_report(connection, "unloaded_landings", **place) if r["state"] == "rejected"]
    decided = {r["landing"] for r in (*loaded, *rejected)}
    found = []
    there, closed = _list_landings(scene.root, site.site_id)
    gaps += [f"what landed of {site.name} cannot be looked at: {closed}"] if closed else []
    for landing, path in there:
        if landing in decided:
            continue
        try:
            found.append(read_manifest(scene.root, path))
        except Exception as broken:
            gaps.append(f"the manifest of landing {landing} cannot be read: {message_of(require_theirs(broken))}")
    yield from sorted((m for m in found if m.sequence > newest), key=lambda m: (m.sequence, m.landing))


def _missing_landings(connection: Connection, scene: CoverageScope, site: Site) -> Sequence[str]:
    """Return landings missing from the sequence. A landing whose folder is still being copied counts as missing."""
    place = {"receiver": scene.receiver, "site": site.site_id}
    unloaded = run_report(connection, "unloaded_landings", **place)
    return [
        r["reason"] or f"landing {r['landing']} is {r['state']}" for r in unloaded if r["state"] in ("waiting", "rejected")
    ]


def sites_of(app: App, connection: Connection, receiver: ReceiverSettings, wanted: str = "") -> list[Site]:
    """Return sites that a receiver knows and those with a link to it, by name; only `wanted` (name or UUID) if given.

    Raises NotFoundError if `wanted` is unknown.
    """
    names = app.site_names(connection)
    units = {s.id: s.time_unit for s in app.settings.sites.values()}
    units |= {site_id: row.time_unit for site_id, row in known_sites(connection).items()}
    links = {app.site_settings(x.site).id: x.name for x in app.settings.links.values() if x.receiver == receiver.name}
    told = {r["site_id"] for r in run_report(connection, "sites_at_receiver", receiver=receiver.name)}
    every = [Site(s, names.get(s, s), units.get(s, "ms"), links.get(s, "")) for s in told | set(links)]
    found = sorted((s for s in every if wanted in ("", s.name, s.site_id)), key=lambda s: s.name)
    if wanted and not found:
        known = ", ".join(sorted(s.name for s in every)) or "none"
        raise NotFoundError(f"receiver {receiver.name} knows no site {wanted!r}; it knows: {known}", subject=wanted)
    return found
