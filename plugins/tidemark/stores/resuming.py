"""What an earlier try of a large file left in its part and is still good: the same source, bytes that digest alike.

Where the parts are, so at the far end of a push too (see `far_program`): Python 3.6. That the source still has these bytes
is for who reads it to say, by `claims`. A pull goes by what is `claimed` and asks the source for the digests of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence

from tidemark.stores import durable
from tidemark.stores.block_journal import Block, BlockJournal, Identity, decode, journal_of, part_of
from tidemark.stores.disk import Disk
from tidemark.stores.part_file import Resumed, hash_range


def whole_blocks(disk: Disk, path: str, identity: Identity | None) -> Resumed:
    """The journal's claims that the part's bytes bear out, where it is a journal of `identity`; else an empty start."""
    blocks = claimed(disk, path, identity)
    if not blocks:
        return Resumed()
    handle = disk.open(part_of(path), writing=True)  # as who goes on will: one who hangs loses all of a lease, not half
    try:
        before = durable.Proof.of(os.fstat(handle))
        resumed = _borne_out(handle, blocks, disk.tell)
        resumed.seen = before
        return resumed
    finally:
        os.close(handle)


def claimed(disk: Disk, path: str, identity: Identity | None) -> list[Block]:
    """What the journal says lies in the part, where it is a journal of `identity`; nobody looked at the bytes."""
    part, journal = disk.stat(part_of(path)), journal_at_hand(disk, path)
    if part is None or journal is None or journal.identity != identity:
        return []
    return [block for block in journal.blocks if block.end <= part[0]]


def journal_at_hand(disk: Disk, path: str) -> BlockJournal | None:
    """The journal of the part of `path`, whatever it is of."""
    return decode(disk.read(journal_of(path), 0, None)) if disk.stat(journal_of(path)) is not None else None


def claims(resumed: Resumed) -> list[tuple[int, int, str]]:
    """(offset, length, SHA-256) of what is kept, for the other end to compare."""
    return [tuple(block) for block in resumed.known()]


def first_bad(disk: Disk, path: str) -> tuple[int, int]:
    """(offset, length) of the first bytes of a part that are not what its journal claims; (0, 0) where all are."""
    journal = decode(disk.read(journal_of(path), 0, None))
    if journal is None:
        return 0, 0
    handle = disk.open(part_of(path))
    try:
        kept = _borne_out(handle, journal.blocks)
    finally:
        os.close(handle)
    claimed = sorted(block.length for block in journal.blocks if block.offset == 0 and block.length > kept.prefix)
    if claimed:
        return kept.prefix, claimed[0] - kept.prefix
    latest = {block.offset: block for block in journal.blocks if block.offset and block.end > kept.prefix}
    bad = [block for block in latest.values() if block not in kept.blocks]
    return (bad[0].offset, bad[0].length) if bad else (0, 0)


def _borne_out(handle: int, blocks: Sequence[Block], tell: Callable[[], None] | None = None) -> Resumed:
    """The longest prefix, and blocks behind it."""
    kept = Resumed()
    prefixes = {block.length: block.sha256 for block in blocks if block.offset == 0}
    following = {block.offset: block for block in blocks if block.offset}
    total, at = hashlib.sha256(), 0
    for end in sorted(prefixes):
        if not hash_range(handle, total, at, end, tell):
            break
        at = end
        if total.hexdigest() == prefixes[end]:  # one that differs may be followed by one written again
            kept.prefix, kept.running = end, total.copy()
    for block in sorted(following.values(), key=lambda block: block.offset):
        own = hashlib.sha256()
        if block.end <= kept.prefix or not hash_range(handle, own, block.offset, block.end, tell):
            continue
        if own.hexdigest() == block.sha256:
            kept.blocks.append(block)
    return kept
