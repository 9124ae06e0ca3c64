"""What an earlier try of a large file left at the target and is still good: same source, bytes that digest alike."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tidemark.stores.block_journal import Block, Identity, decode, journal_of, part_of
from tidemark.stores.disk import Disk
from tidemark.stores.part_file import Resumed
from tidemark.stores.protocol import Range, Store
from tidemark.stores.transfer_items import SendItem

_PIECE = 1 << 20


def resume(disk: Disk, source: Store, item: SendItem, identity: Identity) -> Resumed:
    """Journaled bytes of this very source that are whole in the part and unchanged at the source; else an empty start."""
    paper, part = (Path(disk.locate(of(item.target_path)).decode()) for of in (journal_of, part_of))
    if paper.is_symlink() or part.is_symlink() or not (paper.is_file() and part.is_file()):
        return Resumed()
    journal = decode(paper.read_bytes())
    if journal is None or journal.identity != identity:
        return Resumed()
    kept = whole_blocks(part, journal.blocks)
    ranges = [Range(item.source_path, 0, kept.prefix)] if kept.prefix else []
    ranges += [Range(item.source_path, block.offset, block.length) for block in kept.blocks]
    expected = [kept.running.hexdigest()] if kept.prefix else []
    expected += [block.sha256 for block in kept.blocks]
    return kept if list(source.digests(ranges)) == expected else Resumed()


def whole_blocks(part: Path, blocks: Sequence[Block]) -> Resumed:
    """The journal's claims that the part's bytes bear out: the longest prefix, and blocks behind it."""
    kept = Resumed()
    prefixes = {block.length: block.sha256 for block in blocks if block.offset == 0}
    following = {block.offset: block for block in blocks if block.offset}
    with part.open("rb") as file:
        total, at = hashlib.sha256(), 0
        for end in sorted(prefixes):
            if not _hash(file, total, at, end):
                break
            at = end
            if total.hexdigest() == prefixes[end]:  # one that differs may be followed by one written again
                kept.prefix, kept.running = end, total.copy()
        for block in sorted(following.values(), key=lambda block: block.offset):
            own = hashlib.sha256()
            if block.end > kept.prefix and _hash(file, own, block.offset, block.end) and own.hexdigest() == block.sha256:
                kept.blocks.append(block)
    return kept


def _hash(file: BinaryIO, total: Any, offset: int, end: int) -> bool:
    file.seek(offset)
    while offset < end:
        piece = file.read(min(_PIECE, end - offset))
        if not piece:
            return False
        total.update(piece)
        offset += len(piece)
    return True
