"""The block journal `<target>.part.blocks`: which blocks of a large file have arrived, and what their digests are.

The first line is a header with the source's identity. Each further line is a block: offset, length, SHA-256. Blocks may
overlap: one from offset 0 covers the file so far. The journal lies next to the `.part` at the target, so the next sender
finds it. It proves nothing by itself: a block counts only after its bytes in the `.part` were digested again. So a torn
line, a lost block or a journal without its part costs bytes, never correctness. Runs at the far end too (see `server`):
Python 3.6, no annotations.
"""

from __future__ import annotations

import hashlib
import json
from collections import namedtuple
from collections.abc import Sequence

_MAGIC = "tidemark-blocks 1 "
_DIGITS = 19  # of a number of bytes
_LONG = 225  # longest name, in bytes, to which the longest suffix can be added


def part_of(target_path: str) -> str:
    """Return the path of the `.part` that holds a file's bytes during its transfer."""
    return _stem_of(target_path) + ".part"


def part_at(place: bytes) -> bytes:
    """`part_of` for a path on the disk, as bytes."""
    return _stem_at(place) + b".part"


def copy_at(place: bytes) -> bytes:
    """`part_at` for a small file that is sent a second time while its first copy is still under way."""
    return _stem_at(place) + b".again.part"


def copy_of(target_path: str) -> str:
    return _stem_of(target_path) + ".again.part"


def journal_of(target_path: str) -> str:
    """Return the path of the file's block journal."""
    return _stem_of(target_path) + ".part.blocks"


def journal_at(place: bytes) -> bytes:
    """`journal_of` for a path on the disk, as bytes."""
    return _stem_at(place) + b".part.blocks"


def _stem_of(path: str) -> str:
    if len(path) - path.rfind("/") <= _LONG // 4:  # a character takes four bytes at most
        return path
    return _stem_at(path.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _stem_at(place: bytes) -> bytes:
    """Return what the names of a file's part and journal begin with: its own path. Where the name is too long for a suffix
    (a name has 255 bytes at most), the name's SHA-256 replaces it."""
    start = place.rfind(b"/") + 1
    if len(place) - start <= _LONG:
        return place
    return place[:start] + hashlib.sha256(place[start:]).hexdigest().encode()


class Identity(namedtuple("Identity", "wanted mtime inode")):
    """The source's state when its blocks were read. `wanted`: bytes to send. `mtime`: -1 for a prefix of a growing file."""

    __slots__ = ()


class Block(namedtuple("Block", "offset length sha256")):
    """One block that is durable in the part: its place and digest."""

    __slots__ = ()

    @property
    def end(self) -> int:
        return int(self.offset + self.length)

    def encode_line(self) -> bytes:
        return f"{self.offset} {self.length} {self.sha256}\n".encode()


class BlockJournal:
    """The blocks of one part, for one state of the source."""

    def __init__(self, identity: Identity, blocks: Sequence[Block] = ()) -> None:
        self.identity = identity
        self.blocks = tuple(blocks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockJournal) and (self.identity, self.blocks) == (other.identity, other.blocks)

    def __hash__(self) -> int:
        return hash((self.identity, self.blocks))

    def encode(self) -> bytes:
        return encode_header(self.identity) + b"".join(block.encode_line() for block in self.blocks)


def encode_header(identity: Identity) -> bytes:
    """Encode the journal's first line, the identity of the source."""
    return (_MAGIC + json.dumps(identity._asdict()) + "\n").encode()


def decode_journal(data: bytes) -> BlockJournal | None:
    """Decode the journal up to its first torn or impossible line. Returns None where the header is torn or unknown."""
    lines = data.split(b"\n")[:-1]  # after the last newline comes a torn line or nothing
    if not lines or not lines[0].startswith(_MAGIC.encode()):
        return None
    try:
        identity = Identity(**{key: int(value) for key, value in json.loads(lines[0][len(_MAGIC) :]).items()})
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    if not (0 <= identity.wanted < 1 << 63 and -(1 << 63) <= identity.mtime < 1 << 63 and 0 <= identity.inode < 1 << 64):
        return None  # no disk has such values, and no request can encode them
    blocks: list[Block] = []
    for line in lines[1:]:
        words = line.split()
        if len(words) != 3 or len(words[2]) != 64:
            break
        if not all(number.isdigit() and len(number) <= _DIGITS for number in words[:2]):
            break
        block = Block(int(words[0]), int(words[1]), words[2].decode("ascii", "replace"))
        if block.end > identity.wanted:
            break
        blocks.append(block)
    return BlockJournal(identity, tuple(blocks))
