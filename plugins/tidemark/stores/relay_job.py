"""One file on its way through this machine: how far it has come, what is known of its bytes, what its journal claims.

While the hash of the file from its start is known, a claim is of all bytes so far (offset 0), so nothing is hashed twice; a
file that goes on from an earlier try gets claims of single blocks behind what was there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.stores.agent.block_journal import Block, BlockJournal, Identity, journal_of, part_of
from tidemark.stores.protocol import Digesting, Entry
from tidemark.stores.transfer_items import SendItem
from tidemark.stores.transfer_proof import identity


@dataclass(eq=False)
class Job:
    number: int
    item: SendItem
    entry: Entry  # of the source, when it was looked at
    small: bool  # one piece, without a journal
    claims: list[Block] = field(default_factory=list)  # in the journal
    at: int = 0  # the next byte
    kept: int = 0  # where a next try would go on: the end of what is claimed
    running: Any = field(default_factory=hashlib.sha256)  # of all bytes; None when some came by an earlier try
    block: Any = None  # of those since the last claim, where `running` is None
    edition: int | None = None  # of a source on a disk of this machine, before its first byte was read
    beside: Digesting | None = None  # the source's digest, being made while the bytes come

    @property
    def part(self) -> str:
        return part_of(self.item.target_path)

    @property
    def journalled(self) -> bool:
        return not self.small or self.item.may_have_an_old_journal

    @property
    def paper(self) -> str:
        return journal_of(self.item.target_path)

    @property
    def identity(self) -> Identity:
        return identity(self.item, self.entry)

    @property
    def left(self) -> int:
        return self.item.size - self.at

    def go_on(self, claims: Sequence[Block]) -> None:
        """From what an earlier try left."""
        self.claims = list(claims)
        self.at = self.kept = max((claim.end for claim in claims), default=0)
        self.running = None if self.at else self.running

    def take(self, data: bytes | memoryview) -> None:
        """The next bytes came."""
        self.at += len(data)
        if self.running is not None:
            self.running.update(data)
        else:
            self.block = self.block or hashlib.sha256()
            self.block.update(data)

    def claim(self) -> Block:
        """What came is handed on: a line for the journal."""
        if self.running is not None:
            made = Block(0, self.at, self.running.copy().hexdigest())
        else:
            made = Block(self.kept, self.at - self.kept, self.block.hexdigest())
            self.block = None
        self.claims.append(made)
        self.kept = self.at
        return made

    def digest(self) -> str:
        """Of all bytes as they came; "" where some came by an earlier try."""
        return "" if self.running is None else str(self.running.hexdigest())

    def journal(self) -> bytes:
        return BlockJournal(self.identity, self.claims).encode()


def good_claims(claims: Sequence[Block], digests: Callable[[Sequence[Block]], Sequence[str | None]]) -> list[Block]:
    """Those a next try can go on from: the longest file so far that is what was claimed, and blocks that follow on it.

    `claims` in the order of the journal, `digests` of what is in the part now. Asks about few of them: a part that has
    rotted in one place is good before it and bad behind.
    """
    from_start = sorted({claim.length: claim for claim in claims if claim.offset == 0}.values(), key=lambda c: c.length)
    good = from_start[: _first_bad(from_start, digests)][-1:]
    at = good[-1].end if good else 0
    following: list[Block] = []
    for claim in claims:
        if claim.offset and claim.offset == at:
            following.append(claim)
            at = claim.end
    found = digests(following) if following else ()
    for claim, digest in zip(following, found, strict=True):
        if digest != claim.sha256:
            break
        good.append(claim)
    return good


def first_bad_block(claims: Sequence[Block], digests: Callable[[Sequence[Block]], Sequence[str | None]]) -> Block | None:
    """The first bytes that are not what was claimed of them, as a block; None where all are."""
    at = max((claim.end for claim in good_claims(claims, digests)), default=0)
    following = sorted(claim.end for claim in claims if claim.end > at)
    return Block(at, following[0] - at, "") if following else None


def _first_bad(claims: Sequence[Block], digests: Callable[[Sequence[Block]], Sequence[str | None]]) -> int:
    """How many of them, each holding the one before, are good: the last one is looked at first."""
    low, high = 0, len(claims)  # the answer is within
    look = high - 1
    while low < high:
        if digests([claims[look]])[0] == claims[look].sha256:
            low = look + 1
        else:
            high = look
        look = (low + high) // 2
    return low
