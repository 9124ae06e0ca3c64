"""Small files travel in bundles: read many, write many, digest many, one seal. A bundle costs a few round trips."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence

from tidemark.errors import CorruptionError, TidemarkError
from tidemark.stores.block_journal import copy_of, journal_of, part_of
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.schedule import BUNDLE_FILES
from tidemark.stores.transfer_items import Failed, SendItem, Sent, TryAgain, Wire, changed, require

BUNDLE_BYTES = 8 << 20
RACY_SECONDS = 2  # a file this young may change without a change of its mtime in whole seconds

Outcome = Sent | Failed | TryAgain


def bundles(items: Sequence[SendItem]) -> Iterator[list[SendItem]]:
    """`items` in order, cut where a bundle would exceed its files or bytes."""
    bundle: list[SendItem] = []
    size = 0
    for item in items:
        if bundle and (len(bundle) == BUNDLE_FILES or size + item.size > BUNDLE_BYTES):
            yield bundle
            bundle, size = [], 0
        bundle.append(item)
        size += item.size
    if bundle:
        yield bundle


def send_bundle(wire: Wire, items: Sequence[SendItem]) -> dict[SendItem, Outcome]:
    """One try of a bundle: an outcome for each item. Raises what concerns all of them (a full disk, a lost connection)."""
    outcomes: dict[SendItem, Outcome] = {}
    arrived = already_there(wire, items)
    outcomes.update({item: wire.sent(item, digest) for item, digest in arrived.items()})
    started = time.time()
    read = _read(wire, [item for item in items if item not in arrived], outcomes)
    proven = _proven(wire, read, started, outcomes)
    wire.target.write_parts([(part_of(item.target_path), read[item][1]) for item in proven])
    checks = wire.target.digests([Range(part_of(item.target_path)) for item in proven])
    whole = []
    for (item, digest), check in zip(proven.items(), checks, strict=True):
        if check == digest:
            whole.append(item)
        else:
            outcomes[item] = TryAgain(differs(item, "target", 0, item.size))
    # CRASH WINDOW: whole parts without final names; the rerun sends the bundle again over them.
    wire.target.seal_parts([(part_of(item.target_path), item.target_path) for item in whole])
    # CRASH WINDOW: final names that nobody recorded; the rerun finds them by `already_there`.
    outcomes.update({item: wire.sent(item, proven[item]) for item in whole})
    return outcomes


def already_there(wire: Wire, items: Sequence[SendItem]) -> dict[SendItem, str]:
    """Items whose target has the right size and digest, sent by a run that did not live to say so; durable now."""
    found = wire.target.stat_many([item.target_path for item in items])
    there = [item for item, entry in zip(items, found, strict=True) if entry is not None and entry.size == item.size]
    if not wire.proven_at_source:
        there = [item for item in there if item.sha256]  # a digest would cost what sending costs
    if not there:
        return {}
    unknown = [item for item in there if not item.sha256]
    wanted: dict[SendItem, str | None] = {item: item.sha256 for item in there}
    digests = wire.source.digests([Range(item.source_path, 0, item.size) for item in unknown])
    wanted.update(zip(unknown, digests, strict=True))
    actual = wire.target.digests([Range(item.target_path) for item in there])
    arrived = {item: digest for item, digest in zip(there, actual, strict=True) if digest and digest == wanted[item]}
    if arrived:  # whoever renamed them may have died before the folder was synced, or the journal removed
        paths = [item.target_path for item in arrived]
        wire.target.remove([of(path) for path in paths for of in (part_of, copy_of, journal_of)])
        wire.target.seal_parts([(part_of(path), path) for path in paths])
    return arrived


def differs(item: SendItem, end: str, offset: int, length: int) -> CorruptionError:
    return CorruptionError(
        f"{item.source_path}: block of {length} bytes at {offset} arrived with another digest (checked at the {end})",
        hint="check the disk at both ends; the next run sends the file again",
        subject=item.source_path,
    )


def _read(wire: Wire, items: Sequence[SendItem], outcomes: dict[SendItem, Outcome]) -> dict[SendItem, tuple[Entry, bytes]]:
    found: dict[SendItem, Entry] = {}
    for item, entry in zip(items, wire.source.stat_many([item.source_path for item in items]), strict=True):
        try:
            found[item] = require(item, entry)
        except TidemarkError as error:
            outcomes[item] = wire.failed(item, error)
    read: dict[SendItem, tuple[Entry, bytes]] = {}
    contents = wire.source.read_many([item.source_path for item in found], [item.size for item in found])
    for (item, entry), (_, data) in zip(found.items(), contents, strict=True):
        if data is None or len(data) != item.size:
            outcomes[item] = changed(item)
            continue
        wire.count(item, len(data))
        read[item] = (entry, data)
    return read


def _proven(
    wire: Wire, read: dict[SendItem, tuple[Entry, bytes]], started: float, outcomes: dict[SendItem, Outcome]
) -> dict[SendItem, str]:
    """The items whose bytes are those of one moment at the source, with their digests."""
    again = [item for item, (entry, _) in read.items() if wire.digests_far or unsure(item, entry, started)]
    far = dict(zip(again, wire.source.digests([Range(i.source_path, 0, i.size) for i in again]), strict=True))
    rest = [item for item in read if item not in far]
    after = dict(zip(rest, wire.source.stat_many([item.source_path for item in rest]), strict=True))
    proven: dict[SendItem, str] = {}
    for item, (entry, data) in read.items():
        digest = hashlib.sha256(data).hexdigest()
        if item in far and far[item] is None:
            outcomes[item] = changed(item)
        elif (item in far and far[item] != digest) or (item.sha256 and item.sha256 != digest):
            outcomes[item] = TryAgain(differs(item, "source", 0, item.size))
        elif item not in far and after[item] != entry:
            outcomes[item] = changed(item)
        else:
            proven[item] = digest
    return proven


def unsure(item: SendItem, entry: Entry, started: float) -> bool:
    """Size and mtime cannot show a change: a prefix of a growing file, or a file changed within the last seconds."""
    return entry.size != item.size or entry.mtime >= started - RACY_SECONDS
