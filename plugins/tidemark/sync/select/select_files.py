"""The steps select_files and transfer_deletes: list the site, decide, pin, record; count the deletions to report.

`select_files` records its selection in one transaction. That selection is final: a rerun follows the record and never
decides again. If nothing was recorded, a rerun first removes the links of the earlier try. `make_selection` makes the same
decision for a plan.

`transfer_deletes` counts the vanished files that this run reports to the receiver. They are in the manifest of the part
that ends their partition, never before the files that cover them. If the operator approved the run's held drops before
its first landing, they are released here. After that, the next run releases them.

Source: seed 000 "Sync data file" 2 to 5, DESIGN §3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from threading import Event
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, NotFoundError, OwnershipError, RetryableError
from tidemark.ledger import journal
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import DROP, HELD, PINNED, PLANNED, SUPERSEDE
from tidemark.stores.listing import classify_files, entries_in, list_names, odd_paths_to_report
from tidemark.stores.protocol import UNLISTED, Listing, Range, Tier
from tidemark.sync.select import snapshot
from tidemark.sync.select.choose import Facts, Selection, choose_files, exclude_paths, left_out_reason
from tidemark.sync.select.compacting import hold_back, new_outputs, partitions_at_work, partitions_of_outputs_passed_over
from tidemark.sync.select.diff import (
    Change,
    Changes,
    Compared,
    Kind,
    classify_changes,
    compare_listing,
    list_shown,
    set_outside,
)
from tidemark.sync.select.owners import require_own_devices
from tidemark.sync.select.quarantine import kept_back
from tidemark.sync.select.vanished import View
from tidemark.sync.session import Options, Site, Work
from tidemark.tsfiles.companions.resource import Extent, read_extent
from tidemark.tsfiles.names import RESOURCE, SUFFIX, parse_place, refuse_misplaced_files
from tidemark.tsfiles.sealed import MISPLACED, NAMELESS, NO_FOLDER, is_hidden, too_large

_OTHER = {"sequence": "unsequence", "unsequence": "sequence"}
_HAS = ("acked", "held")  # states of a file whose content the receiver has
ROWS_AT_ONCE, ROWS_AHEAD = 1_000, 200_000  # a row in memory takes about 500 bytes
TRIES = 5  # of a listing or a selection while a compaction moves files


def select_files(work: Work, options: Options) -> Mapping[str, int]:
    """Make and record the run's selection unless it is recorded. Returns {action: number of items}."""
    with work.ledger.read() as connection:
        run = run_rows.get_run(connection, work.run_id)
    if run is None or run.inventory is None:
        began = work.clock()
        selection, pinned = _select_and_pin(work, options)
        narrowed = options.send_all_again and (options.only_paths or options.exactly is not None)  # the rest is not recorded
        listed = began if selection.whole and not narrowed else None
        try:
            with work.write_under_lease() as connection:
                require_own_devices(connection, work, selection)
                _record_selection(connection, work, selection, (pinned, listed))
        except OwnershipError:  # until somebody acts: the links would hold the site's disk for as long
            if pinned:
                snapshot.remove_snapshot(work.source, work.folders, work.run_id)
            raise
    with work.ledger.read() as connection:
        counted = run_rows.count_items(connection, work.run_id)
    return {action: sum(n for (a, _), n in counted.items() if a == action) for action in {a for a, _ in counted}}


def make_selection(site: Site, options: Options) -> Selection:
    """Return what a run would do now. Changes nothing."""
    listing, found, view = _list_site(site, options.send_all_again)
    if not options.send_all_again and options.exactly is None:
        with site.ledger.read() as connection:
            found = kept_back(connection, site.link.name, found)
    moving = [c for c in found.changed if c.kind is not Kind.MODS]
    extents, unreadable = _read_extents(site, [*moving, *found.waiting])
    beside = [*(r.path for r in found.vanished), *(f.entry.path for f in found.live)] if found.vanished else []
    beside += [c.file.entry.path for c in found.changed if c.kind is Kind.MODS and c.row and c.row.state == "held"]
    with site.ledger.read() as connection:
        known = link_rows.file_extents(connection, site.link.name, beside)
        approved = _approved_drops(connection, site.link.name)
        states = link_rows.states_of(connection, site.link.name, sorted(options.plan.paths)) if options.plan else {}
    odd = odd_paths_to_report(listing.odd, site.site.data)
    facts = Facts(
        changes=replace(found, skipped=(*found.skipped, *odd, *((folder, NO_FOLDER) for folder in listing.missing))),
        view=view,
        extents=extents,
        known_extents=known,
        same=frozenset() if options.send_all_again else _same_digest(site, moving),
        same_mods=frozenset() if options.send_all_again else _same_mods(site, found.changed),
        approved=approved,
        unreadable=unreadable,
        states=states,
    )
    return replace(choose_files(facts, site.link, site.site.data, options), whole=_is_whole(listing, found, odd))


def _is_whole(listing: Listing, found: Changes, odd: Sequence[tuple[str, str]]) -> bool:
    """Whether the listing showed the whole site: every folder was listed, no known file vanished below a missing data
    folder, and no file waits for a compaction."""
    away = tuple(f"{folder.rstrip('/')}/" for folder in listing.missing)
    unlisted = any(why.startswith(UNLISTED) for _, why in odd)
    return not unlisted and not found.waiting and not any(row.path.startswith(away) for row in found.vanished)


def _select_and_pin(work: Work, options: Options) -> tuple[Selection, frozenset[str]]:
    """Make a selection and link its files. Returns it with the linked TsFiles; the others will be read in place. Links all
    files, as many as `snapshot_bytes` allows, or none if the site cannot link."""
    if work.again and work.site.snapshot:
        snapshot.remove_snapshot(work.source, work.folders, work.run_id)
    for tries_left in reversed(range(TRIES)):
        selection = make_selection(work, options)
        if not work.site.snapshot or not selection.files:
            return selection, frozenset()
        linked = snapshot.fit_budget(selection.files, work.site.snapshot_bytes)
        pinned = frozenset(file.entry.path for file in linked)
        troubled = snapshot.pin_files(work.source, work.folders, work.run_id, linked) if linked else frozenset()
        if troubled is None:
            return selection, frozenset()
        if not troubled:
            return selection, pinned
        with work.write_under_lease() as connection:
            rows = [{"link": work.link.name, "run_id": work.run_id, "path": path} for path in sorted(troubled)]
            journal.record_many(connection, "file.vanished", rows)
        if not tries_left:
            return exclude_paths(selection, troubled), pinned
        snapshot.remove_snapshot(work.source, work.folders, work.run_id)
    raise AssertionError("unreachable: the last try returns")


def _list_site(site: Site, everything: bool) -> tuple[Listing, Changes, View]:
    """List the site and return the listing, its differences and what it showed. Raises RetryableError if it keeps changing.

    A listing is not a snapshot in time. A compaction makes its outputs before it removes its sources, and not always in
    their folder: points that leave `unsequence` may come to `sequence`, which was listed before. So if something differs,
    all folders of its time partition are classified. If files vanished or came from a compaction, the folders are listed
    until two listings agree. A partition in which a compaction runs waits for the next run.
    """
    data = site.site.data
    for _ in range(TRIES):
        listing, compared = _list_and_compare(site, everything)
        whole = listing
        if not compared.known:
            _require_folders(site, listing)
        compared.folders |= _partitions_folders(compared, data)
        if listing.partial and compared.folders:
            listing, compared = _list_closer(site, listing, compared)
        entries = entries_in(listing.entries, compared.folders)
        classified = classify_files(site.source, entries, data)
        _require_places(site, whole, [path for path, why in classified.skipped if why == MISPLACED])
        found = classify_changes(compared, classified, [path for path, _ in listing.odd], everything)
        at_work = partitions_at_work(entries, data)
        found = hold_back(found, at_work | partitions_of_outputs_passed_over(found.skipped, data), data)
        moved = found.vanished or new_outputs(found, data)
        if not moved or _is_unmoved(site, listing, compared.folders):
            return listing, found, _make_view(site, listing, compared)
    raise RetryableError(
        f"site {site.site.name}: its folders changed during every one of {TRIES} looks", hint="run it again in a while"
    )


def _partitions_folders(compared: Compared, data: Sequence[str]) -> set[str]:
    """Return all folders of the time partitions in which something differs, in every data folder, existing or not."""
    if not compared.folders:
        return set()
    folders = tuple(data)
    places = {place[1:] for folder in compared.folders if (place := parse_place(folder, folders))}
    found = {prefix.rstrip("/") for prefix in compared.prefixes} | compared.folders
    for folder in tuple(found):
        parts = folder.split("/")
        others = [number for number, part in enumerate(parts) if part in _OTHER]
        found |= {"/".join((*parts[:n], _OTHER[parts[n]], *parts[n + 1 :])) for n in others}
    return {folder for folder in found if (place := parse_place(folder, folders)) and place[1:] in places}


def _list_and_compare(site: Site, everything: bool) -> tuple[Listing, Compared]:
    """List the site, `.resource` files by name alone unless `everything` is set, and compare it with the ledger.

    The far end walks its folders for as long as the ledger takes to be read, so both go on at once: a thread reads up to
    ROWS_AHEAD rows while the listing is awaited. Where the listing fails, it ends before its connection is closed."""
    source, data, arrived = site.source, site.site.data, Event()
    with site.ledger.read() as connection, ThreadPoolExecutor(1, "ledger") as beside:
        rows = iter(link_rows.stream_files(connection, site.link.name))
        ahead = beside.submit(_read_rows, rows, arrived)
        try:
            listing = source.list_files(data) if everything else list_names(source, data, RESOURCE)
        finally:
            arrived.set()
        known = chain(ahead.result(), rows)
        compared = compare_listing(listing.entries, known, left_out_reason(site.link), everything, data_folders=data)
    set_outside(compared, data, listing.entries)
    return listing, compared


def _read_rows(rows: Iterator[Sequence[Any]], enough: Event) -> list[Sequence[Any]]:
    found: list[Sequence[Any]] = []
    while not enough.is_set() and len(found) < ROWS_AHEAD and (some := list(islice(rows, ROWS_AT_ONCE))):
        found += some
    return found


def _require_folders(site: Site, listing: Listing) -> None:
    """Raise NotFoundError if none of the site's data folders exists. For a site without known files this is a mistake."""
    if set(site.site.data) <= set(listing.missing):
        folders = ", ".join(site.site.data)
        raise NotFoundError(
            f"site {site.site.name}: none of its data folders is there ({folders} in {site.site.store})",
            hint="is the disk mounted, is data in the settings right? ./tidemark doctor",
            subject=site.site.name,
        )


def _require_places(site: Site, listing: Listing, misplaced: Sequence[str]) -> None:
    """Raise PermanentError if of all files of a data folder none lies where IoTDB keeps files."""
    for folder in site.site.data:
        below = folder.rstrip("/") + "/"
        if any(path.startswith(below) for path in misplaced):
            paths = (entry.path for entry in listing.entries if entry.path.startswith(below))
            refuse_misplaced_files(paths, folder, site.site.name)


def _list_closer(site: Site, glanced: Listing, compared: Compared) -> tuple[Listing, Compared]:
    """List again in full, and compare, the folders in which the partial listing differs."""
    folders = compared.folders
    closer = site.source.list_files(sorted(folders))
    entries = entries_in(closer.entries, folders)
    with site.ledger.read() as connection:
        rows = link_rows.files_in(connection, site.link.name, folders)
    again = compare_listing(entries, rows, left_out_reason(site.link), data_folders=site.site.data)
    in_them = [files for files in list_shown(glanced.entries, site.site.data) if files.folder in folders]
    again.folders |= folders
    again.listed += compared.listed - sum(name.endswith(SUFFIX) for files in in_them for name in files.names)
    again.known, again.outside, again.moved = compared.known, compared.outside, compared.moved
    again.prefixes |= compared.prefixes - {files.prefix for files in in_them}
    odd = sorted({**dict(glanced.odd), **dict(closer.odd)}.items())
    return Listing(entries, glanced.missing, odd), again


def _is_unmoved(site: Site, listing: Listing, folders: set[str]) -> bool:
    def inside(one: Listing) -> list[tuple[str, int]]:
        return [(e.path, e.size) for e in entries_in(one.entries, folders)]

    return inside(listing) == inside(site.source.list_files(sorted(folders)))


def _make_view(site: Site, listing: Listing, compared: Compared) -> View:
    def holds(paths: Iterable[str], folder: str) -> bool:
        return any(path.startswith(folder.rstrip("/") + "/") for path in paths)

    bare = [f for f in site.site.data if f not in listing.missing and not holds(compared.prefixes, f)]
    away = [row.path for row in compared.absent]
    hollow = [f for f in bare if holds(away, f) and all(_is_hidden(name) for name in site.source.list_folder(f))]
    return View(compared.known, compared.listed, tuple(listing.missing), tuple(bare), tuple(hollow))


def _is_hidden(name: str) -> bool:
    return is_hidden(name, ("",))


def _read_extents(site: Site, moving: Sequence[Change]) -> tuple[dict[str, Extent], dict[str, str]]:
    """Return the extents of the changed files, and the unreadable .resource files with the reason. Such a file is sent all
    the same: the receiver judges its content."""
    extents: dict[str, Extent] = {}
    unreadable: dict[str, str] = {}
    resources = site.source.read_many([c.file.resource.path for c in moving], [c.file.resource_bytes for c in moving])
    for change, (path, data) in zip(moving, resources, strict=True):
        if not change.file.resource_bytes:
            unreadable[path] = f"{NAMELESS}it {too_large(change.file.resource.size)}"
        extents[change.file.entry.path] = ()
        try:
            if data:
                extents[change.file.entry.path] = read_extent(data, change.file.place.database, path)
        except CorruptionError as broken:
            unreadable[path] = f"{NAMELESS}{broken.message}"
    return extents, unreadable


def _same_digest(site: Site, moving: Sequence[Change]) -> frozenset[str]:
    """Return the changed files of unchanged size with the acknowledged digest: touched, or restored from a backup."""
    if site.source.properties.tier is Tier.SFTP:
        return frozenset()  # a digest there costs as much as sending
    asked = [
        (c.file.entry.path, c.row.sha256, c.row.size)
        for c in moving
        if c.kind is Kind.CONTENT and c.row and c.row.state in _HAS and c.row.size == c.file.entry.size
    ]
    found = site.source.digest_ranges([Range(path, 0, size) for path, _, size in asked])
    return frozenset(path for (path, sha256, _), now in zip(asked, found, strict=True) if now == sha256)


def _same_mods(site: Site, changed: Sequence[Change]) -> frozenset[str]:
    """Return the changed files whose mods have another mtime but the acknowledged size and digest."""
    if site.source.properties.tier is Tier.SFTP:
        return frozenset()  # sending them costs as much
    asked = [
        (c.file.entry.path, Range(c.file.mods.path, 0, c.file.mods.size))
        for c in changed
        if c.file.mods and c.row and c.row.state in _HAS and c.row.mods_size == c.file.mods.size
    ]
    with site.ledger.read() as connection:
        known = link_rows.acked_digests(connection, site.link.name, [path for path, _ in asked])
    found = site.source.digest_ranges([mods for _, mods in asked])
    return frozenset(path for (path, _), now in zip(asked, found, strict=True) if now == known[path][1])


def _approved_drops(connection: Connection, link: str) -> frozenset[str]:
    """Return the paths of the held drops of the run that the operator approved."""
    row = link_rows.get_link(connection, link)
    if row is None or not row.approved_run:
        return frozenset()
    return frozenset(i.path for i in run_rows.read_items(connection, row.approved_run, HELD) if i.action == DROP)


def _record_selection(
    connection: Connection, work: Work, selection: Selection, made: tuple[frozenset[str], float | None]
) -> None:
    """Write the selection to the ledger. `made`: the linked TsFiles, and when the listing began (None: not whole)."""
    link, run_id, (pinned, listed) = work.link.name, work.run_id, made
    items = [
        i if i.action in (DROP, SUPERSEDE) else i._replace(state=PINNED if i.path in pinned else PLANNED)
        for i in selection.items
    ]
    in_place = sum(i.state == PLANNED and i.action not in (DROP, SUPERSEDE) for i in items)
    if in_place and pinned:
        limit = work.site.snapshot_bytes
        journal.record_event(
            connection, "snapshot.full", link=link, run_id=run_id, linked=len(pinned), in_place=in_place, limit=limit
        )
    link_rows.add_files(connection, link, selection.seen)
    link_rows.adopt_files(connection, link, selection.adopted)
    link_rows.touch_files(connection, link, selection.touched)
    link_rows.put_extents(connection, link, selection.extents)
    link_rows.put_skipped(connection, link, selection.skipped)
    link_rows.mark_gone(connection, link, selection.forgotten)
    hold_rows.end_held(connection, link, [*selection.forgotten, *(i.path for i in items)])
    run_rows.add_items(connection, run_id, items)
    gone = [i.path for i in items if i.action in (DROP, SUPERSEDE) and i.state != HELD]
    told = len(gone) - len(link_rows.held_paths(connection, link, gone))
    link_rows.mark_held(connection, link, [path for path, _ in selection.held])
    link_rows.mark_back(connection, link, selection.back)
    inventory = {
        "added": [vars(entry) for entry in selection.added],
        "removed": selection.removed,
        "held": selection.held,
        "count": link_rows.count_live(connection, link) - told,
        "approved": selection.approved,
        "listed": listed,
    }
    if listed is not None:
        link_rows.set_link(connection, link, listed=listed, selected=listed)
    held = sum(i.state == HELD for i in items)
    run_rows.set_run(connection, run_id, inventory=json.dumps(inventory, ensure_ascii=False), pending=held)
    _set_guard(connection, work, selection, held)


def _set_guard(connection: Connection, work: Work, selection: Selection, held: int) -> None:
    before = link_rows.get_link(connection, work.link.name)
    assert before is not None  # `open_lease` added it
    if selection.guard:
        link_rows.set_link(connection, work.link.name, guard=selection.guard, guard_run=work.run_id)
        if before.guard != selection.guard:
            journal.record_event(
                connection, "guard.tripped", link=work.link.name, run_id=work.run_id, reason=selection.guard, drops=held
            )
    elif before.guard and not selection.approved:
        link_rows.set_link(connection, work.link.name, guard=None, guard_run=None, approved_run=None)
        journal.record_event(connection, "guard.cleared", link=work.link.name, run_id=work.run_id)


def transfer_deletes(work: Work) -> Mapping[str, int]:
    """Release approved drops and count: {"dropped", "superseded": to be reported, "held": waiting for approve}."""
    with work.write_under_lease() as connection:
        _release_approved(connection, work)
        counted = run_rows.count_items(connection, work.run_id)
    return {
        "dropped": counted.get((DROP, PLANNED), 0),
        "superseded": counted.get((SUPERSEDE, PLANNED), 0),
        "held": counted.get((DROP, HELD), 0),
    }


def _release_approved(connection: Connection, work: Work) -> None:
    link = link_rows.get_link(connection, work.link.name)
    run = run_rows.get_run(connection, work.run_id)
    if link is None or run is None or run.inventory is None or link.approved_run != work.run_id:
        return
    if run_rows.sent_landings(connection, work.link.name, run_id=work.run_id):
        return  # the inventory change is sent already
    held = frozenset(i.path for i in run_rows.read_items(connection, work.run_id, HELD) if i.action == DROP)
    inventory = json.loads(run.inventory)
    away = held - link_rows.held_paths(connection, work.link.name, sorted(held))  # not reported as vanished yet
    inventory["removed"] = sorted({*inventory["removed"], *held})
    inventory["count"] -= len(away)
    inventory["held"] = []
    inventory["approved"] = True
    run_rows.set_items(connection, work.run_id, [{"path": path, "state": PLANNED, "reason": None} for path in sorted(held)])
    run_rows.set_run(connection, work.run_id, inventory=json.dumps(inventory, ensure_ascii=False), pending=0)
    link_rows.set_link(connection, work.link.name, guard=None, guard_run=None)
