"""Parts begun by several at once: one has them, the others are told so and try again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tidemark.stores.agent import durable
from tidemark.stores.agent.block_journal import Block, Identity
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import BARE
from tidemark.stores.agent.part_file import PartFile, begin_part, claimed_blocks, write_small


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes a file anew as soon as it is removed."""
    remove = durable.remove_quietly

    def removed(place: bytes) -> None:
        remove(place)
        Path(os.fsdecode(place)).write_bytes(b"theirs")

    monkeypatch.setattr(durable, "remove_quietly", removed)


@pytest.mark.usefixtures("somebody_else")
def test_a_small_part_that_another_makes_now_is_theirs(tmp_path: Path) -> None:
    part = tmp_path / "f.part"
    part.write_bytes(b"of a run before")
    with pytest.raises(OSError, match="somebody else") as found:
        write_small(os.fsencode(part), memoryview(b"mine"))
    assert found.value.errno == errno.ESTALE and part.read_bytes() == b"theirs"


@pytest.mark.usefixtures("somebody_else")
def test_a_large_part_that_another_begins_now_is_theirs(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="somebody else") as found:
        begin_part(Disk(str(tmp_path)), "f", Identity(4, 1, 1), [])
    assert found.value.errno == errno.ESTALE and (tmp_path / "f.part").read_bytes() == b"theirs"


def test_a_disk_that_is_full_costs_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, identity, block = Disk(str(tmp_path)), Identity(8, 1, 1), Block(0, 4, "a" * 64)
    begin_part(disk, "f", identity, [])
    (tmp_path / "f.part").write_bytes(b"1234")
    begin_part(disk, "f", identity, [block])

    def full(*_given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        for name in ("write", "pwrite"):
            patch.setattr(os, name, full)
        with pytest.raises(OSError) as found:
            begin_part(disk, "f", identity, [block])
    assert found.value.errno == errno.ENOSPC
    assert claimed_blocks(disk, "f", identity) == [block] and len(list(tmp_path.iterdir())) == 2


def test_bytes_that_somebody_cut_off_are_to_come_again(tmp_path: Path) -> None:
    disk, identity = Disk(str(tmp_path)), Identity(8, 1, 1)
    begin_part(disk, "f", identity, [])
    with (tmp_path / "f.part").open("r+b") as theirs:
        part = PartFile(disk, "f", identity, None)
        part.write_piece(0, memoryview(b"12345678"))
        theirs.truncate(3)
        with pytest.raises(OSError, match="lost bytes") as found:
            part.verify_piece(0, 8, BARE, b"")
        part.close()
    assert found.value.errno == errno.ESTALE


def test_reads_that_bring_fewer_bytes_than_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some file systems answer: nothing looks cut off, or taken by somebody else."""
    disk, identity, pread = Disk(str(tmp_path)), Identity(8, 1, 1), os.pread
    begin_part(disk, "f", identity, [])
    (tmp_path / "paper").write_bytes(b"0123456789")
    monkeypatch.setattr(os, "pread", lambda handle, length, offset: pread(handle, (length + 1) // 2, offset))
    PartFile(disk, "f", identity, None).close()
    assert disk.read("paper", 0, None) == b"0123456789"
    assert disk.read("paper", 2, 5) == b"23456" and disk.read("paper", 8, 5) == b"89"
