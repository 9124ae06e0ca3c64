"""What an earlier try of a large file left in its part and is still good: the same source, bytes that digest alike.

Where the parts are, so at the far end of a push too (see `far_program`): Python 3.6. That the source still has these bytes
is for who reads it to say, by `claims`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from tidemark.stores import durable
from tidemark.stores.block_journal import Block, Identity, decode, journal_of, part_of
from tidemark.stores.disk import Disk
from tidemark.stores.part_file import Resumed

_PIECE = 1 << 20


def whole_blocks(disk: Disk, path: str, identity: Identity | None) -> Resumed:
    """The journal's claims that the part's bytes bear out, where it is a journal of `identity`; else an empty start."""
    if identity is None or disk.stat(part_of(path)) is None or disk.stat(journal_of(path)) is None:
        return Resumed()
    journal = decode(disk.read(journal_of(path), 0, None))
    if journal is None or journal.identity != identity:
        return Resumed()
    handle = disk.open(part_of(path), writing=True)  # as who goes on will: one who hangs loses all of a lease, not half
    try:
        before = durable.Proof.of(os.fstat(handle))
        resumed = _borne_out(disk, handle, journal.blocks)
        resumed.seen = before
        return resumed
    finally:
        os.close(handle)


def claims(resumed: Resumed) -> list[tuple[int, int, str]]:
    """(offset, length, SHA-256) of what is kept, for the other end to compare."""
    return [tuple(block) for block in resumed.known()]


def _borne_out(disk: Disk, handle: int, blocks: Sequence[Block]) -> Resumed:
    """The longest prefix, and blocks behind it."""
    kept = Resumed()
    prefixes = {block.length: block.sha256 for block in blocks if block.offset == 0}
    following = {block.offset: block for block in blocks if block.offset}
    total, at = hashlib.sha256(), 0
    for end in sorted(prefixes):
        if not _hash(disk, handle, total, at, end):
            break
        at = end
        if total.hexdigest() == prefixes[end]:  # one that differs may be followed by one written again
            kept.prefix, kept.running = end, total.copy()
    for block in sorted(following.values(), key=lambda block: block.offset):
        own = hashlib.sha256()
        if block.end > kept.prefix and _hash(disk, handle, own, block.offset, block.end) and own.hexdigest() == block.sha256:
            kept.blocks.append(block)
    return kept


def _hash(disk: Disk, handle: int, total: Any, offset: int, end: int) -> bool:
    while offset < end:
        piece = os.pread(handle, min(_PIECE, end - offset), offset)
        if not piece:
            return False
        total.update(piece)
        offset += len(piece)
        disk.tell()
    return True
