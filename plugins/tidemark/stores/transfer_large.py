"""A large file travels in blocks: each is written, then journaled; a later try goes on behind the last one that is whole."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.errors import DiskFullError, SourceVanishedError
from tidemark.stores.block_journal import (
    Block,
    BlockJournal,
    Identity,
    decode,
    in_order,
    journal_of,
    part_of,
    verified_prefix,
)
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.transfer_items import PIECE, SendItem, Sent, TryAgain, Wire, changed, require
from tidemark.stores.transfer_proof import already_there, differs, identity, other_digest, unsure

SYNC_BYTES = 64 << 20  # a power loss costs at most this; a killed sender loses the block under way alone


@dataclass
class LargeFile:
    """One try at one file."""

    wire: Wire
    item: SendItem
    started: float = field(default_factory=time.time)
    blocks: list[Block] = field(default_factory=list)  # in the part and in the journal
    running: Any = field(default_factory=hashlib.sha256)  # of all bytes as read; None when some came by an earlier try

    @property
    def part(self) -> str:
        return part_of(self.item.target_path)

    @property
    def paper(self) -> str:
        return journal_of(self.item.target_path)

    def send(self) -> Sent | None:
        """Sent, or None when asked to stop between two blocks. Raises TryAgain where another try may do better."""
        wire, item = self.wire, self.item
        there = already_there(wire, [item])
        if item in there:
            return wire.sent(item, there[item])
        before = require(item, wire.source.stat(item.source_path))
        self.blocks = self._resumable(before)
        if self.blocks:
            self.running = None
        self._check_space()
        if not self._send_blocks(identity(item, before)):
            return None
        digest = self._proven(before)
        wire.target.seal_parts([(self.part, item.target_path)])
        # CRASH WINDOW: final name there, journal left over; `already_there` of the rerun removes it.
        wire.target.remove([self.paper])
        return wire.sent(item, digest)

    def _resumable(self, before: Entry) -> list[Block]:
        """Journaled blocks of this very source whose bytes are whole at the target, and unchanged at the source."""
        wire, item = self.wire, self.item
        journal = decode(wire.target.read(self.paper)) if wire.target.stat(self.paper) else None
        if journal is None or journal.identity != identity(item, before):
            return []
        blocks = in_order(journal.blocks)
        kept = verified_prefix(blocks, wire.target.digests(_ranges(self.part, blocks)))
        if wire.proven_at_source:
            kept = verified_prefix(kept, wire.source.digests(_ranges(item.source_path, kept)))
        return list(kept)

    def _check_space(self) -> None:
        missing = self.item.size - (self.blocks[-1].end if self.blocks else 0)
        free = self.wire.target.free_bytes(self.item.target_path.rpartition("/")[0])
        if free is not None and free < missing:
            raise DiskFullError(
                f"{self.wire.target.url} has {free} bytes free, {self.item.target_path} needs {missing}",
                hint="free space there, then run again",
                subject=self.item.target_path,
            )

    def _send_blocks(self, source: Identity) -> bool:
        """Send what the journal lacks; False when asked to stop."""
        wire, item = self.wire, self.item
        known = BlockJournal(source, tuple(self.blocks)).encode()
        # What stands behind the verified blocks in an old journal is cut; without any, a new journal is begun.
        written = wire.target.write_part(self.paper, len(known) if self.blocks else 0, [] if self.blocks else [known])
        offset = synced = self.blocks[-1].end if self.blocks else 0
        while offset < item.size:
            if wire.stopped():
                return False
            length = min(wire.options.block_bytes, item.size - offset)
            sync = offset + length - synced >= SYNC_BYTES
            self.blocks.append(self._send_block(offset, length, sync))
            offset += length
            synced = offset if sync else synced
            # CRASH WINDOW: the block lies in the part, the journal does not know: the rerun sends this one block again.
            written = wire.target.write_part(self.paper, written, [self.blocks[-1].line()])
        return True

    def _send_block(self, offset: int, length: int, sync: bool) -> Block:
        total = hashlib.sha256()

        def pieces() -> Iterator[bytes]:
            chunks = self.wire.source.chunks(self.item.source_path, offset, length, PIECE)
            for piece in self.wire.metered(self.item, chunks):
                total.update(piece)
                if self.running is not None:
                    self.running.update(piece)
                yield piece

        try:
            end = self.wire.target.write_part(self.part, offset, pieces(), sync)
        except SourceVanishedError as gone:
            raise TryAgain(gone) from gone  # the next try's look at the source says what became of it
        if end != offset + length:
            raise TryAgain(differs(self.item, "target", offset, length))
        return Block(offset, length, total.hexdigest())

    def _proven(self, before: Entry) -> str:
        """The digest of the file, made at the source where it can be and equal at the target; else TryAgain."""
        wire, item = self.wire, self.item
        actual = wire.target.sha256(self.part)
        expected = item.sha256 or self._source_digest(before)
        if not expected:  # some blocks came by an earlier try from an end that cannot digest
            self._name_what_differs()
            expected = actual
        if actual != expected:
            self._name_what_differs()
            wire.target.remove([self.paper])
            raise TryAgain(other_digest(item, actual, expected))
        return actual

    def _source_digest(self, before: Entry) -> str:
        """Digest of what the source holds now, "" where only sending all again would tell. TryAgain when it changed."""
        wire, item = self.wire, self.item
        if wire.digests_far or (wire.proven_at_source and (self.running is None or unsure(item, before, self.started))):
            digest = wire.source.digests([Range(item.source_path, 0, item.size)])[0]
            if digest is None:
                raise changed(item)
            return digest
        after = wire.source.stat(item.source_path)
        if after is None or identity(item, after) != identity(item, before):
            raise changed(item)
        return "" if self.running is None else str(self.running.hexdigest())

    def _name_what_differs(self) -> None:
        """TryAgain naming the first block whose digest is another at the target or, where it can tell, at the source."""
        ends = [("target", self.wire.target, self.part)]
        if self.wire.proven_at_source:
            ends.append(("source", self.wire.source, self.item.source_path))
        for end, store, path in ends:
            whole = verified_prefix(tuple(self.blocks), store.digests(_ranges(path, self.blocks)))
            if len(whole) < len(self.blocks):
                block = self.blocks[len(whole)]
                raise TryAgain(differs(self.item, end, block.offset, block.length))


def _ranges(path: str, blocks: Sequence[Block]) -> list[Range]:
    return [Range(path, block.offset, block.length) for block in blocks]
