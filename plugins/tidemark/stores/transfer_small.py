"""Small files travel in bundles: read many, write many, digest many, one seal. A bundle costs a few round trips."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence

from tidemark.errors import TidemarkError
from tidemark.stores.block_journal import part_of
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.transfer_items import Failed, SendItem, Sent, TryAgain, Wire, changed, require
from tidemark.stores.transfer_proof import already_there, differs, unsure

BUNDLE_FILES = 512
BUNDLE_BYTES = 8 << 20

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
