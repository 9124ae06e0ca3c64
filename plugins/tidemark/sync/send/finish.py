"""The step finish, and the end of every part: reserve a sequence number, rename the manifest, acknowledge.

    reserve   one transaction: the landing's row (closing) with its sequence number and its manifest's digest
    publish   manifest.json under its final name: from here on the landing is complete
    land      one transaction: landing landed, files acknowledged, deletions recorded, schema positions moved

`conclude_landing` settles a crash between any two of them. The normal path uses it too.

Before a landing is complete its files are listed once more (`inspect_landing`), to find files that its manifest does not
name, and named files that are missing. Between a file's record and its manifest, another process may clear the
receiver's landing folder or unmount its disk. A missing file is sent again; no manifest names it. Changes after the
manifest is renamed are not seen here: the load finds them by digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, RetryableError
from tidemark.formats.layout import MANIFEST, landed_path
from tidemark.ledger import journal
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.links import Acked, SchemaPosition
from tidemark.ledger.sender.runs import (
    DROP,
    HELD,
    LANDED,
    MODS,
    PINNED,
    PLANNED,
    SEND,
    SENT,
    SUPERSEDE,
    TO_SEND,
    RunItem,
    SentLanding,
)
from tidemark.progress import format_count
from tidemark.stores.listing import folders_of, list_names
from tidemark.stores.protocol import read_record
from tidemark.sync.select import snapshot
from tidemark.sync.send.manifest import Contents, LandingManifest, manifest_of
from tidemark.sync.session import Work, partition_of
from tidemark.tsfiles.names import RESOURCE
from tidemark.untrusted_files import MOST_DOCUMENT


def finish(work: Work) -> Mapping[str, int]:
    """Close the run's last part, unless it is empty. Returns {"landings": landings of this run}."""
    conclude_landings(work)
    require_all_sent(work)
    with work.ledger.read() as connection:
        closed = run_rows.sent_landings(connection, work.link.name, run_id=work.run_id)
    if not any(landing.last for landing in closed):
        close_part(work, last=True)
    with work.ledger.read() as connection:
        return {"landings": len(run_rows.sent_landings(connection, work.link.name, run_id=work.run_id))}


def require_all_sent(work: Work) -> None:
    """Raise RetryableError if the run has no selection yet, or selected files are neither sent nor left out. Such a run must
    not end, even if a person starts the step."""
    with work.ledger.read() as connection:
        run = run_rows.get_run(connection, work.run_id)
        counted = run_rows.count_items(connection, work.run_id)
    unsent = sum(n for (action, state), n in counted.items() if action in (SEND, MODS) and state in TO_SEND)
    if run is None or run.inventory is None or unsent:
        files = format_count(unsent, "file is", "files are")
        what = f"{files} not sent yet" if run and run.inventory is not None else "nothing is selected yet"
        raise RetryableError(
            f"run {work.run_id} cannot end: {what}",
            hint=f"run the steps before it: ./tidemark sync {work.link.name}",
            subject=work.run_id,
        )


def close_part(work: Work, last: bool) -> None:
    """Make a landing of all items sent since the previous part, unless it would be empty. Raises RetryableError if sent
    files are missing at the receiver; they are sent again."""
    with work.write_under_lease() as connection:
        reserved = _reserve_landing(connection, work, last)
    # CRASH WINDOW: a number is reserved, the manifest does not exist; `conclude_landing` makes the same manifest again.
    if reserved is not None and not conclude_landing(work, *reserved):
        landing, receiver = reserved[0].landing, work.receiver.name
        raise RetryableError(
            f"files that were sent into landing {landing} are not at receiver {receiver} any more",
            hint=f"does somebody clear its landing folder, was its disk unmounted? ./tidemark sync {work.link.name} sends"
            " them again",
            subject=landing,
        )


def conclude_landings(work: Work) -> int:
    """Settle every landing of this link that a crash left in the state closing. Returns how many."""
    with work.ledger.read() as connection:
        closing = run_rows.sent_landings(connection, work.link.name, state="closing")
    for landing in closing:
        conclude_landing(work, landing)
    return len(closing)


def conclude_landing(work: Work, landing: SentLanding, record: LandingManifest | None = None) -> bool:
    """Complete a reserved landing: read back its manifest, publish it if it is missing, acknowledge.

    `record`: the manifest just reserved; None: read the same from the ledger. Returns False if files are missing and the
    landing was withdrawn: they are to be sent again. Raises CorruptionError if the receiver has another manifest.
    """
    if record is None:
        with work.ledger.read() as connection:
            record = manifest_of(connection, work.link, work.site, landing)
    contents, data = record
    digest = hashlib.sha256(data).hexdigest()
    path = f"{work.landing_folder(landing.landing)}/{MANIFEST}"
    there = _read_back(work, path)
    if there is None:
        found = inspect_landing(work, landing.landing, contents)
        if found.lost:
            withdraw_landing(work, landing, contents, found.lost)
            return False
        if digest != landing.manifest_sha256:  # the settings changed since it was reserved; it is not published yet
            with work.write_under_lease() as connection:
                run_rows.set_landing(connection, landing.landing, manifest_sha256=digest)
        if found.unnamed:  # only before the landing is complete: then its receiver loads it and writes there
            work.target.remove(found.unnamed)
        # CRASH WINDOW: partial files are removed, the landing is incomplete; the rerun lists it once more and goes on.
        work.target.publish(path, data)
    elif there != landing.manifest_sha256:
        raise CorruptionError(
            f"{path} at the receiver is not the manifest that this run wrote",
            hint="does another Tidemark with this site's id send to this receiver? See ./tidemark doctor",
            subject=landing.landing,
        )
    # CRASH WINDOW: the landing is complete but not recorded; the rerun reads the manifest back and goes on below.
    with work.write_under_lease() as connection:
        _record_landed(connection, work, landing, contents)
    # CRASH WINDOW: landed, hard links not removed: cleanup removes all that are left of the run.
    if work.site.snapshot and not landing.last:  # cleanup removes those of the last part
        released = [path for item in contents.files for path in item.paths]
        snapshot.unpin_files(work.source, work.folders, landing.run_id, released)
    return True


def _read_back(work: Work, path: str) -> str | None:
    """Return the digest of the file at `path`, None if there is none."""
    data = read_record(work.target, path, MOST_DOCUMENT)
    return None if data is None else hashlib.sha256(data).hexdigest()


def _reserve_landing(connection: Connection, work: Work, last: bool) -> tuple[SentLanding, LandingManifest] | None:
    link = link_rows.get_link(connection, work.link.name)
    assert link is not None  # `open_lease` added it
    before = run_rows.sent_landings(connection, work.link.name, run_id=work.run_id)
    part = len(before) + 1
    _assign_gone(connection, work, part)
    draft = SentLanding(
        landing=work.landing_of_part(part),
        run_id=work.run_id,
        link=work.link.name,
        part=part,
        sequence=link.next_sequence,
        previous=link.last_landing,
        state="closing",
        last=last,
        created=round(work.clock(), 3),
        manifest_sha256="",
        files=0,
        bytes=0,
    )
    record = manifest_of(connection, work.link, work.site, draft)
    contents = record.contents
    if contents.is_empty and not (last and before):
        return None
    digest = hashlib.sha256(record.data).hexdigest()
    landing = replace(draft, manifest_sha256=digest, files=len(contents.files), bytes=contents.bytes)
    run_rows.add_landing(connection, landing)
    return landing, record


def _assign_gone(connection: Connection, work: Work, part: int) -> None:
    """Put vanished files into this part if their partition has no unsent files. A file whose covering files were not sent is
    held: it stays at the receiver, and the next run decides again."""
    gone = [i for i in run_rows.read_items(connection, work.run_id, PLANNED) if i.action in (DROP, SUPERSEDE)]
    if not gone:
        return
    data = work.site.data
    unsent = [path for path, _, state in run_rows.item_sizes(connection, work.run_id) if state in TO_SEND]
    open_partitions = {partition_of(path, data) for path in unsent}
    ready = [i for i in gone if partition_of(i.path, data) not in open_partitions]
    missing = _missing_covers(connection, work, ready)
    changes = [
        {
            "path": i.path,
            "state": HELD if missing.get(i.path) else SENT,
            "part": None if missing.get(i.path) else part,
            "reason": missing.get(i.path),
        }
        for i in ready
    ]
    run_rows.set_items(connection, work.run_id, changes)


def _missing_covers(connection: Connection, work: Work, gone: list[RunItem]) -> Mapping[str, str]:
    """Return {superseded path: why it cannot be reported yet}."""
    covers = sorted({path for item in gone for path in item.covered_by})
    arrived = {i.path for i in run_rows.items_at(connection, work.run_id, covers) if i.state in (SENT, LANDED)}
    acked = link_rows.acked_paths(connection, work.link.name, covers)
    return {
        item.path: f"waits for what covers it: {', '.join(absent)}"
        for item in gone
        if (absent := [path for path in item.covered_by if path not in arrived and path not in acked])
    }


def _record_landed(connection: Connection, work: Work, landing: SentLanding, contents: Contents) -> None:
    link, run_id = work.link.name, landing.run_id
    place = {"link": link, "run_id": run_id, "landing": landing.landing}
    files = contents.files
    link_rows.ack_files(connection, link, [_acked_row(i, landing.landing) for i in files])
    gone = [i for i in contents.items if i.action in (DROP, SUPERSEDE)]
    link_rows.mark_gone(connection, link, [i.path for i in gone])
    hold_rows.note_sent(connection, link, [_sent_row(i) for i in files])
    if gone and hold_rows.any_unverified(connection, link):
        hold_rows.end_unverified(connection, link, [i.path for i in gone])
    positions = [SchemaPosition(p.path, p.start + p.size, p.mtime, p.prefix_sha256, p.epoch) for p in contents.schema]
    link_rows.put_schema_positions(connection, link, positions)
    if contents.schema:
        run_rows.set_schema_landed(connection, run_id)
    run_rows.set_landed(connection, run_id, landing.part)
    run_rows.set_landing(connection, landing.landing, state="landed", landed=work.clock())
    link_rows.set_link(connection, link, next_sequence=landing.sequence + 1, last_landing=landing.landing, last_run=run_id)
    run_rows.add_to_run(
        connection,
        run_id,
        files=len(files),
        bytes=contents.bytes,
        dropped=sum(i.action == DROP for i in gone),
        schema_bytes=sum(p.size for p in contents.schema),
    )
    if contents.inventory.approved:
        link_rows.end_approval(connection, link, run_id)
    journal.record_many(
        connection, "file.acked", [{**place, "path": i.path, "generation": i.generation, "sha256": i.sha256} for i in files]
    )
    for action, kind in ((DROP, "file.dropped"), (SUPERSEDE, "file.superseded")):
        rows = [{**place, "path": i.path, "covered_by": i.covered_by} for i in gone if i.action == action]
        journal.record_many(connection, kind, rows)
    journal.record_event(connection, "landing.closed", **place, sequence=landing.sequence, files=len(files))


def _sent_row(item: RunItem) -> hold_rows.Sent:
    return hold_rows.Sent(item.path, item.generation, item.verified == "source", item.action == SEND)


def _acked_row(item: RunItem, landing: str) -> Acked:
    return Acked(
        path=item.path,
        size=item.size,
        mtime=item.mtime,
        inode=item.inode,
        mods_size=item.mods_size,
        generation=item.generation,
        sha256=item.sha256 or "",
        mods_sha256=item.mods_sha256 or "",
        landing=landing,
        mods_mtime=item.mods_mtime,
    )


class Found(NamedTuple):
    """Paths at the receiver. `unnamed`: partial files, temporary files, files of items that failed or were left out.
    `lost`: files that the manifest names and that are missing or of another size."""

    unnamed: list[str]
    lost: frozenset[str]


def inspect_landing(work: Work, landing: str, contents: Contents) -> Found:
    """Compare a landing's folder, by one listing, with the files that its manifest will name."""
    folder = work.landing_folder(landing)
    named = {f"{folder}/{path}": size for path, size in _named_files(contents)}
    unnamed, lost = [], set(named)
    for files in folders_of(list_names(work.target, [folder], RESOURCE).entries):
        for path, size in zip(map(files.prefix.__add__, files.names), files.sizes, strict=True):
            wanted = named.get(path)
            if wanted is None:
                unnamed.append(path)
            elif size in (wanted, -1):  # `list_names` gives no sizes of `.resource` files
                lost.discard(path)
    return Found(unnamed, frozenset(lost))


def withdraw_landing(work: Work, landing: SentLanding, contents: Contents, lost: frozenset[str]) -> None:
    """Withdraw a landing that is not published: lost files are sent again, the rest waits for them. CRASH WINDOW:
    one transaction; before it the rerun finds the same landing reserved and inspects it again."""
    folder = work.landing_folder(landing.landing)
    again = [i for i in contents.files if any(f"{folder}/{landed_path(path)}" in lost for path in _travelled_paths(i))]
    linked = _linked_paths(work, again)
    told = [i for i in contents.items if i.action in (DROP, SUPERSEDE)]
    back = [(i.path, PINNED if i.path in linked else PLANNED) for i in again] + [(i.path, PLANNED) for i in told]
    pieces = [p.path for p in contents.schema if f"{folder}/{landed_path(p.landed_path)}" in lost]
    with work.write_under_lease() as connection:
        run_rows.remove_landing(connection, landing.landing)
        run_rows.set_items(connection, work.run_id, [{"path": p, "state": state, "part": None} for p, state in back])
        run_rows.remove_schema(connection, work.run_id, pieces)
        place = {"link": work.link.name, "run_id": work.run_id, "landing": landing.landing}
        journal.record_event(connection, "landing.withdrawn", **place, lost=len(lost), example=min(lost))


def _named_files(contents: Contents) -> Iterator[tuple[str, int]]:
    """Yield (path below the landing, bytes) of all files that its manifest names."""
    for item in contents.files:
        sizes = {item.path: item.size, item.path + ".resource": item.resource_size, item.mods_path: item.mods_size}
        yield from ((landed_path(path), sizes[path]) for path in _travelled_paths(item))
    yield from ((landed_path(log.landed_path), log.size) for log in contents.schema)


def _travelled_paths(item: RunItem) -> tuple[str, ...]:
    if item.action == MODS:
        return (item.mods_path,)
    return item.paths if item.resource_size else tuple(path for path in item.paths if path != item.path + ".resource")


def _linked_paths(work: Work, items: Sequence[RunItem]) -> frozenset[str]:
    """Return the paths of items whose hard links all exist: the record of which were pinned is overwritten once sent."""
    if not work.site.snapshot:
        return frozenset()
    paths = {path: item.path for item in items for path in _travelled_paths(item)}
    links = work.source.stat_many([work.folders.link_path(work.run_id, path) for path in paths])
    missing = {path for path, link in zip(paths.values(), links, strict=True) if link is None}
    return frozenset(paths.values()) - missing
