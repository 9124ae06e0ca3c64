"""Parts begun by several at once: one has them, the others are told so and try again. What is no regular file under the
name of a part, of its journal or of a final file is refused by name, and nobody waits for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemark.errors import PermanentError
from tidemark.stores.agent import durable
from tidemark.stores.agent.block_journal import Block, Identity
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import BARE
from tidemark.stores.agent.part_file import PartFile, begin_part, claimed_blocks, digest_of, write_small
from tidemark.stores.local import LocalStore


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


def digested(root: Path, name: str) -> None:
    digest_of(os.fsencode(root / name))


def made_durable(root: Path, name: str) -> None:
    durable.make_durable([(os.fsencode(root / "f.part"), os.fsencode(root / "f"))], singly=True)


def written(root: Path, name: str) -> None:
    durable.write_part(os.fsencode(root / name), 0, (b"x",))


def begun(root: Path, name: str) -> None:
    PartFile(Disk(str(root)), "f", Identity(4, 1, 1), None)


def put_fifo(place: Path) -> None:
    place.unlink(missing_ok=True)
    os.mkfifo(place)


OPENED = [
    (digested, "f.part"),
    (digested, "f"),
    (made_durable, "f.part"),
    (made_durable, "f"),
    (written, "f.part"),
    (begun, "f.part"),
    (begun, "f.part.blocks"),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("opens", "name"), OPENED, ids=[f"{opens.__name__} {name}" for opens, name in OPENED])
@pytest.mark.parametrize("read", [False, True], ids=["", "that somebody reads"])
def test_nobody_waits_for_a_fifo(tmp_path: Path, opens: Callable[[Path, str], None], name: str, read: bool) -> None:
    if opens is begun:
        begin_part(Disk(str(tmp_path)), "f", Identity(4, 1, 1), [])
    put_fifo(tmp_path / name)
    reader = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK) if read else -1
    try:
        with pytest.raises(OSError) as found:
            opens(tmp_path, name)
    finally:
        if read:
            os.close(reader)
    assert (found.value.errno, found.value.filename) == (errno.ENXIO, os.fsencode(tmp_path / name))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["f.part", "f"])
def test_a_store_names_the_fifo_that_it_may_not_seal(tmp_path: Path, name: str) -> None:
    put_fifo(tmp_path / name)
    with pytest.raises(PermanentError, match=f"{tmp_path / name} is not a regular file"):
        LocalStore(str(tmp_path)).seal_parts([("f.part", "f")])
