"""The block journal `<target>.part.blocks`: which blocks of a large file have arrived, and what their digests are.

A header line with the source's identity, then one line a block: offset, length, SHA-256. It lies beside the `.part` at
the target, so whoever sends next finds it. It claims nothing by itself: a block counts only after its bytes in the
`.part` were digested again, so a torn line, a lost block or a journal that outlived its part costs bytes, never truth.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_MAGIC = "tidemark-blocks 1 "


def part_of(target_path: str) -> str:
    """Where the bytes of a file that is under way lie."""
    return target_path + ".part"


def journal_of(target_path: str) -> str:
    """Where the record of its durable blocks lies."""
    return target_path + ".part.blocks"


@dataclass(frozen=True)
class Identity:
    """What the source was when its blocks were read. `mtime` is -1 for a prefix of a growing file: it says nothing."""

    wanted: int  # bytes to send
    mtime: int
    inode: int


@dataclass(frozen=True)
class Block:
    """One block that is durable in the part: its place and digest."""

    offset: int
    length: int
    sha256: str

    @property
    def end(self) -> int:
        return self.offset + self.length

    def line(self) -> bytes:
        return f"{self.offset} {self.length} {self.sha256}\n".encode()


@dataclass(frozen=True)
class BlockJournal:
    """The blocks of one part, for one edition of the source."""

    identity: Identity
    blocks: tuple[Block, ...] = ()

    def encode(self) -> bytes:
        return header(self.identity) + b"".join(block.line() for block in self.blocks)


def header(identity: Identity) -> bytes:
    """The journal's first line: which source its blocks belong to."""
    return (_MAGIC + json.dumps(asdict(identity)) + "\n").encode()


def decode(data: bytes) -> BlockJournal | None:
    """The journal up to its first torn or out-of-order line; None where not even the header is whole or known."""
    lines = data.split(b"\n")[:-1]  # what follows the last newline is a torn line, or nothing
    if not lines or not lines[0].startswith(_MAGIC.encode()):
        return None
    try:
        identity = Identity(**{key: int(value) for key, value in json.loads(lines[0][len(_MAGIC) :]).items()})
    except (ValueError, TypeError, AttributeError):
        return None
    blocks: list[Block] = []
    for line in lines[1:]:
        words = line.split()
        if len(words) != 3 or len(words[2]) != 64 or not (words[0].isdigit() and words[1].isdigit()):
            break
        block = Block(int(words[0]), int(words[1]), words[2].decode("ascii", "replace"))
        if block.offset != (blocks[-1].end if blocks else 0) or block.end > identity.wanted:
            break
        blocks.append(block)
    return BlockJournal(identity, tuple(blocks))


def verified_prefix(blocks: Sequence[Block], digests: Sequence[str | None]) -> tuple[Block, ...]:
    """The leading blocks whose digest is the one recorded."""
    kept = []
    for block, digest in zip(blocks, digests, strict=True):
        if digest != block.sha256:
            break
        kept.append(block)
    return tuple(kept)
