"""A part read back behind its writer: what gets a digest is the file on the disk."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.stores.agent.block_journal import Block, Identity, decode_journal, journal_at, part_at
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import BARE, BLOCK, NOTHING, PREFIX
from tidemark.stores.agent.part_file import Differs, begin_part, claimed_blocks, whole_blocks
from tidemark.transfer.stream import verify as proving
from tidemark.transfer.stream.verify import VerifiedPart, Verifier

PIECE = 1000
BUFFER = memoryview(bytearray(700))
CONTENT = bytes(range(256)) * 20
IDENTITY = Identity(len(CONTENT), 1_600_000_000, 7)
PATH = "f.tsfile"


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_a_part_whose_journal_cannot_be_opened_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing open."""
    disk, open_it, handles = Disk(str(tmp_path)), os.open, list[int]()
    begin_part(disk, PATH, IDENTITY, [])

    def out_of_handles(place: bytes, *how: int) -> int:
        if place == journal_at(disk.locate(PATH)):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        handles.append(open_it(place, *how))
        return handles[-1]

    monkeypatch.setattr(os, "open", out_of_handles)
    with pytest.raises(OSError, match="Too many open files"):
        VerifiedPart(disk, PATH, IDENTITY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handles[0])


class Target:
    def __init__(self, root: Path) -> None:
        self.disk = Disk(str(root))
        self.place = Path(os.fsdecode(part_at(self.disk.locate(PATH))))
        self.signs: list[int] = []
        self.begin()

    def begin(self) -> None:
        begin_part(self.disk, PATH, IDENTITY, claimed_blocks(self.disk, PATH, IDENTITY))
        self.part = VerifiedPart(self.disk, PATH, IDENTITY, lambda: self.signs.append(1))

    def keep(self, offset: int, source: bytes = CONTENT) -> None:
        """A piece of an earlier try, of which the source says what it has now."""
        right = source[offset : offset + PIECE]
        self.part.keep_block(Block(offset, len(right), sha(right).hex()))

    def put(self, offset: int, kind: int = PREFIX, data: bytes | None = None) -> None:
        right = CONTENT[offset : offset + PIECE]
        digest = {PREFIX: sha(CONTENT[: offset + len(right)]), BLOCK: sha(right), BARE: NOTHING}[kind]
        self.part.write_block(offset, memoryview(right if data is None else data), kind, digest)

    def flip(self, at: int) -> None:
        with self.place.open("r+b") as file:
            file.seek(at)
            file.write(bytes([CONTENT[at] ^ 1]))

    def journaled(self) -> list[tuple[int, int]]:
        journal = decode_journal(Path(os.fsdecode(journal_at(self.disk.locate(PATH)))).read_bytes())
        assert journal is not None
        return [(block.offset, block.end) for block in journal.blocks]

    def proven(self) -> bool:
        assert self.part.verify_written(BUFFER)
        assert self.part.verified_digest() == hashlib.sha256(self.place.read_bytes()).hexdigest()
        return self.place.read_bytes() == CONTENT


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path)
    yield made
    made.part.close()


OFFSETS = range(0, len(CONTENT), PIECE)


@pytest.mark.parametrize("kind", [PREFIX, BLOCK, BARE])
def test_pieces_in_order(target: Target, kind: int) -> None:
    for offset in OFFSETS:
        assert not target.part.verify_written(BUFFER)
        target.put(offset, kind)
    assert target.proven()


@pytest.mark.parametrize("kind", [BLOCK, BARE])
def test_pieces_in_any_order_and_some_twice(target: Target, kind: int) -> None:
    for offset in (3000, 0, 5000, 3000, 1000, 4000, 0, 2000):
        target.put(offset, kind)
        target.part.verify_written(BUFFER) if offset != 2000 else None
    assert target.proven()


def test_what_is_proven_is_not_read_again_however_often_somebody_asks(target: Target) -> None:
    for offset in OFFSETS:
        target.put(offset)
    assert target.proven()
    digest = target.part.verified_digest()
    assert not target.part.verify_written(BUFFER)
    assert target.part.verified_digest() == digest


def flipped(offset: int) -> bytes:
    right = CONTENT[offset : offset + PIECE]
    return bytes([right[0] ^ 1]) + right[1:]


@pytest.mark.parametrize("kind", [PREFIX, BLOCK])
def test_a_piece_that_the_disk_keeps_otherwise_is_put_again_it_alone(target: Target, kind: int) -> None:
    target.put(0, kind)
    target.put(1000, kind, flipped(1000))
    with pytest.raises(Differs) as found:
        target.part.verify_written(BUFFER)
    assert (found.value.offset, found.value.length) == (1000, PIECE)
    for offset in (2000, 3000, 4000, 5000):
        target.put(offset, kind)
    assert not target.part.verify_written(BUFFER), "waits for that piece"
    target.part.reopen_span(1000, 2000)
    assert not target.part.is_complete
    target.put(1000, BLOCK)
    assert target.proven()


@pytest.mark.parametrize("kind", [PREFIX, BLOCK, BARE])
def test_a_byte_flipped_before_the_reader_costs_its_piece_alone(target: Target, kind: int) -> None:
    for offset in OFFSETS:
        target.put(offset, kind)
        if offset == 1000:
            target.flip(1500)
        if offset < 1000:
            target.part.verify_written(BUFFER)
    with pytest.raises(Differs) as found:
        target.part.verify_written(BUFFER)
    assert (found.value.offset, found.value.length) == (1000, PIECE)
    target.part.reopen_span(1000, 2000)
    target.put(1000, kind if kind == BARE else BLOCK)
    assert target.proven()


def test_a_bad_piece_is_told_once_while_the_good_one_is_on_its_way(target: Target) -> None:
    target.put(2000, BLOCK, flipped(2000))
    with pytest.raises(Differs):
        target.part.verify_written(BUFFER)
    assert target.part.reopen_span(2000, 3000) == (2000, 3000)
    for offset in (4000, 0, 3000, 1000, 5000):
        target.put(offset, BLOCK)
        assert not target.part.verify_written(BUFFER), "nobody looks at what is to come again"
    target.put(2000, BLOCK)
    assert target.proven()


@pytest.mark.parametrize("bad", [1, 2, 3, 4])
def test_what_is_put_again_leaves_all_others_where_they_are(target: Target, bad: int) -> None:
    """Before it, behind it, and far from what is here without a gap."""
    for place in (1, 2, 4):
        target.put(place * PIECE, BLOCK)
    assert target.part.reopen_span(bad * PIECE, (bad + 1) * PIECE) == (bad * PIECE, (bad + 1) * PIECE)
    for place in {0, 3, 5, bad}:
        target.put(place * PIECE, BLOCK)
    assert target.part.is_complete


def test_what_is_put_again_has_whole_pieces(target: Target) -> None:
    """Or bytes of a piece that it cut would be looked at by no digest any more."""
    target.put(1000, BLOCK)
    target.part.write_block(1500, memoryview(CONTENT[1500:2500]), BLOCK, sha(CONTENT[1500:2500]))
    target.put(4000, BLOCK)
    assert target.part.reopen_span(1200, 1300) == (1000, 2500)
    for offset in OFFSETS:
        target.put(offset, BLOCK)
    assert target.proven()


@pytest.mark.parametrize("kind", [PREFIX, BLOCK])
def test_a_piece_over_what_was_read_back_does_not_replace_it(target: Target, kind: int) -> None:
    target.put(0)
    target.part.verify_written(BUFFER)
    digest = {PREFIX: sha(CONTENT[:1500]), BLOCK: sha(CONTENT[500:1500])}[kind]
    target.part.write_block(500, memoryview(bytes(500) + CONTENT[1000:1500]), kind, digest)
    target.part.write_block(1500, memoryview(CONTENT[1500:]), PREFIX, sha(CONTENT))
    assert target.proven()


def test_bytes_behind_the_end_are_refused(target: Target) -> None:
    for offset, length in ((len(CONTENT) + 1000, 4), (len(CONTENT) - 2, 4)):
        with pytest.raises(OSError, match="behind its end") as found:
            target.part.write_block(offset, memoryview(b"evil"[:length]), BLOCK, sha(b"evil"))
        assert found.value.errno == errno.EINVAL
    for offset in OFFSETS:
        target.put(offset)
    assert target.proven()


def left_by_an_earlier_try(target: Target, *offsets: int) -> None:
    for offset in offsets:
        target.put(offset, BLOCK)
    target.part.close()
    target.begin()


def test_what_an_earlier_try_left_counts_once_the_source_has_it_and_it_was_read_back(target: Target) -> None:
    left_by_an_earlier_try(target, 0, 1000, 3000)
    assert target.journaled() == [(0, 1000), (1000, 2000), (3000, 4000)]
    for offset in (2000, 4000, 5000):  # what is missing comes first
        target.put(offset, BLOCK)
        assert not target.part.verify_written(BUFFER)
    for offset in (3000, 0, 1000):
        assert not target.part.is_complete
        target.keep(offset)
        assert target.part.is_behind
    assert target.part.is_complete and target.proven() and not target.part.is_behind


@pytest.mark.parametrize("late", [True, False])
def test_a_byte_that_rotted_between_two_tries_costs_its_piece_alone(target: Target, late: bool) -> None:
    left_by_an_earlier_try(target, *OFFSETS)
    if not late:
        target.flip(1500)
    for offset in OFFSETS:
        target.keep(offset)
        target.flip(1500) if late and offset == 1000 else None
    with pytest.raises(Differs) as found:
        target.part.verify_written(BUFFER)
    assert (found.value.offset, found.value.length) == (1000, PIECE)
    assert 1000 in target.part.kept
    target.part.reopen_span(1000, 2000)
    assert 1000 not in target.part.kept and not target.part.is_complete
    target.put(1000, BLOCK)
    assert target.proven()


def test_a_piece_of_which_the_source_has_another_is_put_again(target: Target) -> None:
    left_by_an_earlier_try(target, 0, 1000)
    other = CONTENT[:1000] + b"?" * 1000 + CONTENT[2000:]
    target.keep(0)
    target.keep(1000, other)
    with pytest.raises(Differs) as found:
        target.part.verify_written(BUFFER)
    assert (found.value.offset, found.value.length) == (1000, PIECE)
    target.part.reopen_span(1000, 2000)
    target.part.write_block(1000, memoryview(other[1000:2000]), BLOCK, sha(other[1000:2000]))
    for offset in OFFSETS[2:]:
        target.put(offset, BLOCK)
    assert target.part.verify_written(BUFFER)
    assert target.place.read_bytes() == other and target.part.verified_digest() == sha(other).hex()


def test_kept_pieces_that_differ_are_found_while_bytes_flow(target: Target) -> None:
    left_by_an_earlier_try(target, 0, 1000, 3000)
    for at in (1500, 3500):
        target.flip(at)
    for offset in (0, 1000, 3000):
        target.keep(offset)
    for at in (1000, 3000):
        with pytest.raises(Differs) as found:
            target.part.verify_written(BUFFER)
        assert found.value.offset == at and not target.part.is_complete
        target.part.reopen_span(at, at + PIECE)
    for offset in OFFSETS[1:]:
        target.put(offset, BARE)
    assert target.proven()


def test_there_is_a_sign_of_life_while_one_piece_is_read_back(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "_SIGN_BYTES", len(CONTENT) // 4)
    target.part.write_block(0, memoryview(CONTENT), PREFIX, sha(CONTENT))
    assert target.proven() and len(target.signs) >= 3


def test_a_piece_that_came_again_meanwhile_is_not_compared_any_more(target: Target) -> None:
    left_by_an_earlier_try(target, 0)
    for offset in OFFSETS:
        target.put(offset)
    target.keep(0, b"?" * 1000)
    assert target.proven()


def test_claims_are_journaled_when_written_also_of_pieces_that_came_without(target: Target) -> None:
    target.put(0)
    target.put(1000, BLOCK)
    target.put(2000, BARE)
    assert target.journaled() == [(0, 1000), (1000, 2000), (2000, 3000)]
    target.part.close()
    assert whole_blocks(target.disk, PATH, IDENTITY).known_spans() == [(0, 1000), (1000, 2000), (2000, 3000)]


def test_a_lost_sync_is_told_and_takes_the_journal(target: Target) -> None:
    for offset in OFFSETS:
        target.put(offset)
    target.part.mark_lost(OSError(errno.EIO, "lost"))
    with pytest.raises(OSError, match="lost"):
        target.part.verify_written(BUFFER)
    assert whole_blocks(target.disk, PATH, IDENTITY).known_blocks() == []


def test_a_closed_part_is_let_go(target: Target) -> None:
    target.put(0)
    target.part.close()
    assert not target.part.verify_written(BUFFER)


def test_the_thread_says_what_it_found(target: Target) -> None:
    signs: list[int] = []
    prover = Verifier(lambda: signs.append(1))
    for offset in OFFSETS:
        target.put(offset)
        prover.queue_part(3, target.part)
    prover.finish_verifying()
    looked = prover.results.get_nowait()
    assert (looked.number, looked.trouble) == (3, None) and signs
    assert target.place.read_bytes() == CONTENT
