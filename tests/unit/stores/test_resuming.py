"""What of a part bears out the claims of its journal, and where the first bytes are that do not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tidemark.stores.agent.block_journal import Block, BlockJournal, Identity, journal_of, part_of
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.part_file import first_bad, whole_blocks

CONTENT = bytes(range(200)) * 10
OF = Identity(len(CONTENT), 1_600_000_000, 7)
PATH = "x.tsfile"


def claim(offset: int, length: int, of: bytes = CONTENT) -> Block:
    return Block(offset, length, hashlib.sha256(of[offset : offset + length]).hexdigest())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / part_of(PATH)).write_bytes(CONTENT)
    return Disk(str(tmp_path))


def journaled(disk: Disk, *claims: Block) -> Disk:
    Path(os.fsdecode(disk.root), journal_of(PATH)).write_bytes(BlockJournal(OF, claims).encode())
    return disk


def rotten(disk: Disk, at: int) -> Disk:
    part = Path(os.fsdecode(disk.root), part_of(PATH))
    data = bytearray(part.read_bytes())
    data[at] ^= 1
    part.write_bytes(data)
    return disk


CLAIMS = [claim(0, 300), claim(0, 600), claim(1000, 400), claim(1400, 600), claim(0, 1000)]


@pytest.mark.parametrize(
    ("rot", "first", "kept"),
    [
        (299, (0, 300), [(1000, 400), (1400, 600)]),
        (300, (300, 300), [(0, 300), (1000, 400), (1400, 600)]),
        (999, (600, 400), [(0, 600), (1000, 400), (1400, 600)]),
        (1000, (1000, 400), [(0, 1000), (1400, 600)]),
        (1999, (1400, 600), [(0, 1000), (1000, 400)]),
    ],
)
def test_the_first_bytes_that_rotted_are_named_and_the_others_kept(
    disk: Disk, rot: int, first: tuple[int, int], kept: list[tuple[int, int]]
) -> None:
    assert first_bad(journaled(disk, *CLAIMS), PATH) == (0, 0)
    assert first_bad(rotten(disk, rot), PATH) == first
    assert [(block.offset, block.length) for block in whole_blocks(disk, PATH, OF).known_blocks()] == kept


def test_a_claim_that_a_later_one_took_the_place_of_is_no_rot(disk: Disk) -> None:
    stale = b"?" * len(CONTENT)
    journaled(disk, claim(0, 300, stale), claim(1000, 400, stale), claim(0, 600), claim(1000, 400))
    assert first_bad(disk, PATH) == (0, 0)


def test_a_part_that_ends_early_lacks_what_was_claimed_behind(disk: Disk) -> None:
    journaled(disk, *CLAIMS)
    Path(os.fsdecode(disk.root), part_of(PATH)).write_bytes(CONTENT[:1200])
    assert first_bad(disk, PATH) == (1000, 400)
