"""`verify`: compare the site's bytes, the landed files and the catalog by digest, with `deep` by points; repair on demand.

Stored digests are not trusted: every byte is read where it lies. Files that a quarantine or an owner keeps out are listed as
held, not as differences. Files that changed or arrived since the newest run are counted as pending. Repairs: `repair`.

`find_lost_landings` finds unanswered landings of a link whose manifest is missing or damaged at its receiver. All later
landings of the site wait for a lost one for ever. If nobody restores it, its manifest is made again from the ledger. Its
files are then missing like any that a disk lost. Where the receiver is on this machine, verify fetches them from the site.
Otherwise the load reports them as missing in its receipt, and the link's next run sends what the site still has.
`find_changed_records` finds loaded landings whose manifest or receipt was changed.

Points are compared where the link's ledger and the receiver's files are on this machine. `deep` is refused for a remote
receiver. A site of which no point was compared is named in `not_compared`, and so are the bytes of a remote receiver.

`unsent_files` finds what is sealed at a site and was not sent. It selects files as every run and plan does
(`sync.select.select_files.make_selection`). The waiting time is measured with this machine's clock where possible, since a
site's clock may be off by days or years.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.app import App, catch_up_mark
from tidemark.cluster.nodes.cluster import Cluster, open_cluster
from tidemark.cluster.replicas.cache import restore_file
from tidemark.cluster.replicas.promote import require_newest
from tidemark.errors import (
    HostKeyError,
    NotFoundError,
    PermanentError,
    PermissionDeniedError,
    RetryableError,
    TidemarkError,
    UnreachableError,
    UsageError,
)
from tidemark.formats.layout import MANIFEST, landing_folder
from tidemark.ledger import journal
from tidemark.ledger.cluster.copies import held_somewhere
from tidemark.ledger.database import database_time
from tidemark.ledger.receiver.settled import KeptFile, kept_files
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import MODS, SEND, SentLanding, item_bytes
from tidemark.ledger.sql import Row, put_file_checks, run_report
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.proof.as_of import is_overdue
from tidemark.proof.coverage.cells import why_unread
from tidemark.proof.coverage.gather import catalog_view, expected_files
from tidemark.proof.coverage.site import LOST, Site, find_altered_records, list_landed_parts, sites_of
from tidemark.proof.verify.deep import Proof, compare_points
from tidemark.proof.verify.differences import (
    DAMAGED,
    MISSING,
    Difference,
    NotCompared,
    SourceChecked,
    Unsent,
    VerifyReport,
    check_source,
    encode_unreachable,
)
from tidemark.proof.verify.nodes import verify_nodes
from tidemark.proof.verify.repair import Damage, Repairs
from tidemark.receiver.faults import message_of, require_theirs
from tidemark.receiver.kept_damage import kept_id
from tidemark.receiver.proved_files import Recorded, check_files
from tidemark.receiver.session import hold_writers_lease
from tidemark.settings.model import LinkSettings, ReceiverSettings, SiteSettings
from tidemark.settings.window import next_opening
from tidemark.stores.protocol import Range, Store
from tidemark.sync import session
from tidemark.sync.select.choose import Selection
from tidemark.sync.select.select_files import make_selection
from tidemark.sync.send.manifest import manifest_of
from tidemark.sync.session import Options
from tidemark.untrusted_files import MOST_DOCUMENT


@dataclass
class _Tally:
    checked: int = 0
    series: int = 0
    pending: int = 0
    adopted: int = 0
    differences: list[Difference] = field(default_factory=list)
    held: list[tuple[str, str]] = field(default_factory=list)
    unreachable: list[tuple[str, TidemarkError]] = field(default_factory=list)
    not_read: dict[str, str] = field(default_factory=dict)
    elsewhere: list[tuple[str, str]] = field(default_factory=list)
    proved: int = 0
    unverified: int = 0
    unsent: list[Unsent] = field(default_factory=list)
    kept: dict[str, Sequence[KeptFile]] = field(default_factory=dict)  # by the name of their site
    not_compared: list[NotCompared] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    """One site of a receiver. `root` is None where the receiver is remote."""

    app: App
    receiver: ReceiverSettings
    root: Path | None
    site: Site
    names: Mapping[str, str]
    repairs: Repairs | None
    tally: _Tally
    progress: Progress
    cluster: Cluster | None
    live_only: bool = False


def verify(
    app: App,
    receiver: ReceiverSettings,
    site: str = "",
    deep: bool = False,
    repair: bool = False,
    progress: Progress = ignore_progress,
    *,
    live_only: bool = False,
) -> VerifyReport:
    """Verify every site of a receiver, or one (name or UUID). Sites that do not answer are reported, the rest goes on.

    `deep` also compares the points that readers see, or with `live_only` those of `read --live-only`. Raises NotFoundError
    for an unknown site, LeaseHeldError if a load runs during `repair`, UsageError for `deep` at a remote receiver.
    """
    root = app.receiver_root(receiver)
    if deep and root is None:
        raise UsageError(
            f"receiver {receiver.name} is remote: verify --deep compares points with its files, and none is read from here",
            hint="./tidemark verify proves here that the sites have what was sent; "
            f"{_AT_RECEIVER.format(store=receiver.store)}; "
            "points are compared by a Tidemark that has the link and the receiver's folder (docs/verbs/verify.md)",
        )
    with app.ledger.read() as connection:
        names, wanted = app.site_names(connection), sites_of(app, connection, receiver, site)
    tally = _Tally()
    if root is None:
        tally.not_compared.append(_remote_bytes(receiver))
    with open_cluster(app, receiver) as cluster:
        if not repair:
            works = [_Work(app, receiver, root, one, names, None, tally, progress, cluster, live_only) for one in wanted]
            _verify_all(works, cluster, None, deep)
        else:
            with hold_writers_lease(app, receiver, "verify") as lease, app.receiver_store(receiver) as store:
                require_newest(cluster)
                catch_up_mark(app, receiver, store)  # a folder without it is not written to
                repairs = Repairs(app, receiver, lease)
                works = [
                    _Work(app, receiver, root, one, names, repairs, tally, progress, cluster, live_only) for one in wanted
                ]
                _verify_all(works, cluster, store, deep)
            repairs.derive_again()
    return VerifyReport(
        receiver=receiver.name,
        deep=deep,
        checked=tally.checked,
        series=tally.series,
        differences=tuple(tally.differences),
        held=tuple(tally.held),
        pending=tally.pending,
        adopted=tally.adopted,
        **encode_unreachable(tally.unreachable),
        not_read=tuple(tally.not_read.items()),
        elsewhere=tuple(tally.elsewhere),
        proved=tally.proved,
        unverified=tally.unverified,
        unsent=tuple(tally.unsent),
        kept=tally.kept,
        not_compared=tuple(tally.not_compared),
    )


_AT_RECEIVER = "./tidemark verify where {store} is a file:// store proves the receiver's bytes"


def _remote_bytes(receiver: ReceiverSettings) -> NotCompared:
    told = "they are not read from here; the sites' files were compared with the digests of what was sent (ledger)"
    return NotCompared(f"the bytes at receiver {receiver.name}", told, _AT_RECEIVER.format(store=receiver.store))


def _verify_all(works: Sequence[_Work], cluster: Cluster | None, store: Store | None, deep: bool) -> None:
    """Verify all sites, then the nodes. `store`: the receiver's, if differences at nodes are to be repaired."""
    if not works:
        return
    first = works[0]
    with first.app.ledger.read() as connection:
        kept = kept_files(connection, first.receiver.name)
    first.tally.kept.update((work.site.name, kept.get(work.site.site_id, ())) for work in works)
    for work in works:
        try:
            _verify_site(work, deep)
        except PermissionDeniedError as closed:  # its folder below `landing/`, whose rights its sender sets
            work.tally.unreachable.append((work.site.name, closed))
        except Exception as surprise:
            work.tally.not_read[work.site.name] = message_of(require_theirs(surprise))
    if cluster is not None:
        sites = {work.site.site_id: work.site.name for work in works}
        found = verify_nodes(cluster, sites, sites, store, first.progress)
        first.tally.checked += found.checked
        first.tally.differences += found.differences
        first.tally.unreachable += [(f"node {node}", error) for node, error in found.away]


def _verify_site(work: _Work, deep: bool) -> None:
    work.progress(Tick(f"verify {work.site.name}"))
    if not work.site.link:
        work.tally.elsewhere.append((work.site.name, "its files are sent by another Tidemark: run verify there for them"))
        if deep:
            work.tally.not_compared.append(NotCompared(f"the points of {work.site.name}", _NO_LINK, _BOTH_ENDS))
        _verify_receiver(work, None, None)
        return _note_held_files(work)
    settings = work.app.site_settings(work.app.link_settings(work.site.link).site)
    with work.app.ledger.read() as connection:
        acked = run_report(connection, "acked_files", link=work.site.link)
    source: SourceChecked | None = None
    try:
        with work.app.site_store(settings) as store:
            source = check_source(store, work.site.name, settings.data, acked)
            _verify_source(work, source)
            add_unsent(work.app, work.site, store, (work.tally.unsent, work.tally.unreachable))
            _record_proved(work, source)
            for lost in find_lost_landings(
                work.app, work.app.link_settings(work.site.link), repair=work.repairs is not None
            ):
                _record_difference(work, lost, lost.repaired)  # its files are checked below, and fetched if possible
            _verify_receiver(work, store, source)
            present = _find_present(work, source, acked)
            if deep:
                _verify_points(work, store, (source, present), acked)
    except (UnreachableError, HostKeyError, PermissionDeniedError) as error:
        work.tally.unreachable.append((work.site.name, error))
        if source is None:
            _verify_receiver(work, None, None)
    with work.app.ledger.read() as connection:
        work.tally.unverified += hold_rows.count_unverified(connection).get(work.site.link, 0)
    return None


_NO_LINK = "this Tidemark has no link from the site, so its files cannot be read from here"
_BOTH_ENDS = "./tidemark verify here and at the Tidemark that sends its files proves the bytes (docs/verbs/verify.md)"
_NONE_IN_STEP = "no file of the site is there as its link's newest run sent it, and in the catalog"


def _verify_points(work: _Work, store: Store, checked: tuple[SourceChecked, set[str]], acked: Sequence[Row]) -> None:
    assert work.root is not None  # `verify` refuses `deep` at a remote receiver
    proof = Proof(work.app, work.receiver, work.root, work.site, work.cluster, work.live_only, work.progress)
    found = compare_points(proof, store, *checked)
    if not found.series and (acked or found.visible or checked[0].sealed):
        again = f"./tidemark sync {work.site.link}, then verify --deep again"
        following = f"{again}; if that does not help: ./tidemark why {shlex.quote(work.site.name)}"
        work.tally.not_compared.append(NotCompared(f"the points of {work.site.name}", _NONE_IN_STEP, following))
    work.tally.series += found.series
    work.tally.not_read.update(found.not_read)
    for difference in found.differences:
        _record_difference(work, difference)


def _verify_source(work: _Work, source: SourceChecked) -> None:
    work.tally.checked += source.checked
    work.tally.pending += source.pending
    work.tally.adopted += source.adopted
    for difference in source.differences:
        again = ""
        if work.repairs and difference.path in source.other_mods:
            again = work.repairs.send_again(work.site.link, [difference.path], difference.detail)
        _record_difference(work, difference, again)


def _record_proved(work: _Work, source: SourceChecked) -> None:
    """Record files that were sent without a digest of the source and now have the receiver's digest at the source."""
    link = work.site.link
    with work.app.ledger.write() as connection:
        same = hold_rows.unverified_of(connection, link, list(source.same))
        hold_rows.end_unverified(connection, link, same)
        journal.record_many(connection, "file.verified", [{"link": link, "path": path} for path in sorted(same)])
    work.tally.proved += len(same)


def _verify_receiver(work: _Work, store: Store | None, source: SourceChecked | None) -> None:
    """Check the landed files and the catalog's files of the site, byte by byte."""
    if work.root is None:
        return
    place = {"receiver": work.receiver.name}
    with work.app.ledger.read() as connection:
        kept = [r for r in run_report(connection, "live_bytes", **place) if r["site_id"] == work.site.site_id]
        loaded = run_report(connection, "loaded_landings", **place, site=work.site.site_id)
        elsewhere = held_somewhere(connection, work.receiver.name)
    for other in find_changed_records(work.root, work.site, loaded, work.repairs):
        _record_difference(work, other, other.repaired)
    damage = {d.record.location: d for d in (*_list_catalog_files(kept, source), *_list_landed_files(work, loaded))}
    checked = check_files(work.root, [d.record for d in damage.values()], {}, elsewhere)
    with work.app.ledger.write() as connection:  # coverage then uses these digests
        catalog = {d.record.location for d in damage.values() if d.where == "catalog"}
        put_file_checks(
            connection, work.receiver.name, [c for c in checked.fresh if c.location in catalog], database_time(connection)
        )
    work.tally.checked += checked.files
    for location, why in checked.wrong.items():
        found = damage[location]
        repaired = ""
        if work.repairs and restore_file(work.cluster, location, found.record.sha256):
            repaired = "fetched again from a data node"
        elif work.repairs:
            repaired = work.repairs.restore_file(found, work.site.link, store, source)
        lost = f"./tidemark quarantine drop {kept_id(found.file_id)}" if found.kept and work.repairs and not repaired else ""
        difference = Difference(DAMAGED, work.site.name, found.path or location, found.where, why, next=lost)
        _record_difference(work, difference, repaired)


def _list_catalog_files(rows: Sequence[Row], source: SourceChecked | None) -> list[Damage]:
    found = []
    for r in rows:
        kept = int(r["rank_unsequence"]) < 0 and bool(r["visible"])
        place = {"file_id": int(r["file_id"]), "database": r["database_name"], "kept": kept}
        found.append(Damage(Recorded(r["location"], int(r["size"]), r["sha256"]), r["path"], "catalog", r["path"], **place))
        if r["mods_location"]:
            same = source.same.get(r["path"]) if source else None
            record = Recorded(r["mods_location"], 0, r["mods_sha256"])
            mods, size = (same.mods_path, same.mods_size) if same else ("", 0)
            found.append(Damage(record, r["path"], "catalog", mods, size=size, **place))
    return found


def _list_landed_files(work: _Work, loaded: Sequence[Row]) -> list[Damage]:
    assert work.root is not None
    parts = list_landed_parts(work.root, work.site.site_id, {r["landing"] for r in loaded}, work.tally.not_read)
    return [Damage(record, path, "landing", source) for record, path, source in parts]


def _find_present(work: _Work, source: SourceChecked, acked: Sequence[Row]) -> set[str]:
    """Return paths whose acknowledged generation readers read. Record the others as held, pending or missing."""
    if work.root is None:  # only its receipts are known
        told = ("refused", "quarantined")
        work.tally.held += [(r["path"], r["reason"]) for r in acked if r["reason"].startswith(told)]
        return set()
    with work.app.ledger.read() as connection:
        view = catalog_view(connection, work.receiver.name, work.site.site_id, {}, work.names)
        unloaded = run_report(connection, "unloaded_landings", receiver=work.receiver.name, site=work.site.site_id)
        at_site = {file.path for file in expected_files(connection, work.receiver.name, work.site.site_id)}
    present: set[str] = set()
    for r in acked:
        path = r["path"]
        if path not in source.same:
            continue
        rows = [h for h in view.by_path.get(path, ()) if h.generation >= int(r["generation"])]
        why = why_unread(max(rows, key=lambda h: h.file_id), view) if rows else ""
        held = view.trouble.get(path) or (r["reason"] if r["reason"].startswith(("refused", "quarantined")) else "")
        if rows and not why:
            present.add(path)
        elif path in view.late:
            continue
        elif not rows and held:
            again = work.repairs.send_again(work.site.link, [path], held) if work.repairs and "quarantine" in held else ""
            work.tally.held.append((path, f"{held}; {again}" if again else held))
        elif not rows and _is_on_its_way(work, path, unloaded):
            work.tally.pending += 1
        else:
            why = why or f"generation {r['generation']} was acknowledged and is not in the catalog"
            repaired = work.repairs.send_again(work.site.link, [path], why) if work.repairs else ""
            _record_difference(work, Difference(MISSING, work.site.name, path, "catalog", why), repaired)
    for path in sorted(view.late.keys() & at_site):  # the next sync or the operator solves it, not a repair
        following = f"./tidemark sync {work.site.link}"
        _record_difference(work, Difference(MISSING, work.site.name, path, "catalog", view.late[path], next=following))
    return present


def _note_held_files(work: _Work) -> None:
    """List files of a site that another Tidemark sends, which arrived and are kept out of the catalog."""
    if work.root is None:
        return
    with work.app.ledger.read() as connection:
        view = catalog_view(connection, work.receiver.name, work.site.site_id, {}, work.names)
        for file in expected_files(connection, work.receiver.name, work.site.site_id):
            rows = [h for h in view.by_path.get(file.path, ()) if h.generation >= file.generation]
            if not rows and file.path in view.trouble:
                work.tally.held.append((file.path, view.trouble[file.path]))


def _is_on_its_way(work: _Work, path: str, unloaded: Sequence[Row]) -> bool:
    """Whether the landing that carried the path is not loaded yet, whether or not a load has found it."""
    with work.app.ledger.read() as connection:
        links = run_report(connection, "path_at_links", site=work.site.site_id, path=path)
        landing = next((link["landing"] for link in links if link["link"] == work.site.link), "")
        loaded = run_report(connection, "landing_story", landing=landing)
    return landing in {r["landing"] for r in unloaded} or not any(r["side"] == "receiver" for r in loaded)


def _record_difference(work: _Work, difference: Difference, repaired: str = "") -> None:
    following = "" if repaired else difference.next or "./tidemark verify --repair"
    found = replace(difference, repaired=repaired, next=following)
    work.tally.differences.append(found)
    with work.app.ledger.write() as connection:
        journal.record_event(
            connection,
            "verify.repaired" if repaired else "verify.difference",
            site_id=work.site.site_id,
            path=found.path,
            what=found.what,
            detail=repaired or found.detail,
        )


MADE_AGAIN = "its manifest was made again: what is not fetched from the site is sent by link {link} after the next load"


def find_lost_landings(app: App, link: LinkSettings, repair: bool) -> Iterator[Difference]:
    """Yield one difference for each landing of `link` whose manifest is missing or is not the one that was sent. `repair`:
    make the manifest again.

    Raises UnreachableError and what else opening the receiver's store raises.
    """
    site = app.site_settings(link.site)
    waiting = _read_unanswered(app, link)
    if not waiting:
        return
    with app.receiver_store(app.receiver_settings(link.receiver)) as store:
        troubles = _manifest_troubles(store, site, waiting)
        for landing in _read_unanswered(app, link) if troubles else ():  # one may be answered and removed by now
            if trouble := troubles.get(landing.landing):
                again = _remake_manifest(app, link, landing, store) if repair else ""
                kind = MISSING if trouble == LOST else DAMAGED
                yield Difference(kind, site.name, landing.landing, "landing", trouble, again)


ALTERED = "its manifest is not the one that was sent: it is not loaded, and the later ones of the site wait for it"


def _manifest_troubles(store: Store, site: SiteSettings, waiting: Sequence[SentLanding]) -> Mapping[str, str]:
    """Return {landing: what is wrong with its manifest}. One that may not be read is told by the load."""
    found = store.stat_many([_manifest_path(site, landing) for landing in waiting])
    troubles = {
        one.landing: ALTERED if entry is not None or MANIFEST in store.list_folder(_folder(site, one)) else LOST
        for one, entry in zip(waiting, found, strict=True)
        if entry is None or entry.size > MOST_DOCUMENT
    }
    there = [one for one in waiting if one.landing not in troubles]
    with suppress(PermissionDeniedError):
        digests = store.digest_ranges([Range(_manifest_path(site, one)) for one in there])
        pairs = zip(there, digests, strict=True)
        troubles |= {one.landing: ALTERED for one, digest in pairs if digest not in (None, one.manifest_sha256)}
    return troubles


def find_changed_records(root: Path, site: Site, loaded: Sequence[Row], repairs: Repairs | None) -> Iterator[Difference]:
    """Yield one difference for each manifest or receipt in a loaded landing that was changed. `repairs` restores it from the
    receiver's kept copy."""
    for landing, what in list(find_altered_records(root, site.site_id, loaded, trusting=False)):
        again = repairs.restore_records(root, site.site_id, landing) if repairs else ""
        yield Difference(DAMAGED, site.name, landing, "landing", what, again)


def _read_unanswered(app: App, link: LinkSettings) -> Sequence[SentLanding]:
    with app.ledger.read() as connection:
        return run_rows.sent_landings(connection, link.name, state="landed")


def _remake_manifest(app: App, link: LinkSettings, landing: SentLanding, store: Store) -> str:
    """Make the manifest again and return what was done; "" where the ledger does not know all files of the landing."""
    site = app.site_settings(link.site)
    path = _manifest_path(site, landing)
    with app.ledger.read() as connection:
        contents, data = manifest_of(connection, link, site, landing)
    if len(contents.files) != landing.files:  # the ledger was rebuilt
        return ""
    digest = hashlib.sha256(data).hexdigest()
    with app.ledger.write() as connection:  # before a load can answer it
        run_rows.set_landing(connection, landing.landing, manifest_sha256=digest)
        place = {"link": link.name, "run_id": landing.run_id, "landing": landing.landing}
        journal.record_event(connection, "landing.made_again", **place, sequence=landing.sequence, files=landing.files)
        journal.record_decision(connection, "verify repair", landing.landing, link=link.name)
    # CRASH WINDOW: recorded, and no manifest or another: it is still a lost landing, and this is done again.
    if store.stat(path) is None:
        store.remove_tree(path)  # a folder in its place is not replaced by a rename
    store.publish(path, data)
    return MADE_AGAIN.format(link=link.name)


def _manifest_path(site: SiteSettings, landing: SentLanding) -> str:
    return f"{_folder(site, landing)}/{MANIFEST}"


def _folder(site: SiteSettings, landing: SentLanding) -> str:
    return landing_folder(site.id, landing.landing)


MOUNTED = (
    "is the disk mounted there? ./tidemark doctor; if the files are gone for good, ./tidemark sync names what to approve"
)


def add_unsent(app: App, site: Site, store: Store, told: tuple[list[Unsent], list[tuple[str, TidemarkError]]]) -> None:
    """Add unsent files, or the reason why they are unknown, to the lists in `told`: (unsent, not verified)."""
    unsent, unverified = told
    try:
        found, lost = unsent_files(app, site, store)
        unsent += found
        if lost:
            unverified.append((site.name, PermanentError(lost, hint=MOUNTED, subject=site.name)))
    except UnreachableError:
        raise
    except (NotFoundError, RetryableError) as error:
        unverified.append((site.name, error))


def unsent_files(app: App, site: Site, store: Store) -> tuple[list[Unsent], str]:
    """Return the files that the next run of the site's link would send and those that wait for a compaction, by path; and
    why a folder or disk of the site seems to be missing, "" where none does. A listing that shows nothing new is recorded as
    the site's newest whole one. Raises what listing a site raises."""
    link = app.link_settings(site.link)
    began = app.clock()
    selection = make_selection(session.Site(app.ledger, link, app.site_settings(link.site), store), Options())
    sending = [*(item for item in selection.items if item.action in (SEND, MODS)), *selection.waiting]
    with app.ledger.read() as connection:
        known = link_rows.get_link(connection, link.name)
        since = link_rows.waiting_since(connection, link.name, [item.path for item in sending])
    selected = known.selected if known else None
    found = []
    for item in sending:
        mtime = float(item.mods_mtime if item.action == MODS else item.mtime)
        sealed = sealed_at(mtime, since.get(item.path), selected, began)
        late = is_overdue(link, next_opening(link.window, link.timezone, sealed), began)
        found.append(Unsent(site.name, item.path, item_bytes(item), sealed, late))
    if known is not None and _has_nothing_new(selection):
        with app.ledger.write() as connection:
            link_rows.note_listed(connection, link.name, began)
    return sorted(found, key=lambda one: one.path), selection.guard if selection.lost else ""


def sealed_at(mtime: float, waiting: float | None, selected: float | None, clock: float) -> float:
    """Return since when a file waits to be sent, seconds since 1970. Pure.

    `waiting`: when a run found the file and did not send it. `selected`: start of the newest run's whole listing, which did
    not show the file as it is. So it was sealed later, whatever `mtime` the site's clock gave it. An `mtime` in the future
    is ignored.
    """
    if waiting is not None:
        return min(waiting, clock)
    floor = selected or 0.0
    return mtime if floor <= mtime <= clock else floor


def _has_nothing_new(selection: Selection) -> bool:
    """Whether the ledger knew everything that the listing showed."""
    news: Sequence[object] = (*selection.items, *selection.seen, *selection.added, *selection.removed, *selection.forgotten)
    return selection.whole and not news
