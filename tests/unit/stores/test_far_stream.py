"""What the far end of a pull says of files that change under its hands: never bytes of two editions without a word."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import ALONE, ANY, CHANGED, KEPT, RANGE, RECORD
from tidemark.stores.agent.reader import RangeReader, edition_of, editions_of, same_edition

OLD = 1_600_000_000
FRAME = 1000
SIZE = 3000
NAME = "f.tsfile"


class Record(NamedTuple):
    number: int
    offset: int
    length: int
    trouble: int
    kind: int
    note: int
    digest: bytes


class Source:
    def __init__(self, folder: Path) -> None:
        self.place = folder / NAME
        self.records: list[Record] = []
        self.bytes = b""
        self.meanwhile: Callable[[], None] = lambda: None  # before each frame goes out
        self.ranges = RangeReader(Disk(str(folder)), self._take, FRAME, True)

    def _take(self, records: bytes, data: memoryview) -> None:
        self.records += [Record(*record) for record in RECORD.iter_unpack(records)]
        self.bytes += bytes(data)
        self.meanwhile()

    def write(self, letter: bytes, size: int = SIZE, mtime_ns: int = OLD * 10**9) -> None:
        with self.place.open("r+b" if self.place.exists() else "wb") as file:
            file.write(letter * size)
        os.utime(self.place, ns=(mtime_ns, mtime_ns))

    def ask(self, offset: int, length: int, wanted: int = SIZE, mtime: int = OLD) -> list[Record]:
        self.records.clear()
        inode = self.place.stat().st_ino
        self.ranges.answer(RANGE.pack(0, offset, length, wanted, mtime, inode, len(NAME)) + NAME.encode())
        return self.records


@pytest.fixture
def source(tmp_path: Path) -> Source:
    made = Source(tmp_path)
    made.write(b"A")
    time.sleep(0.03)  # a tick: its ctime is an old one
    return made


def test_a_change_during_the_last_chunk_comes_instead_of_a_piece(source: Source) -> None:
    """Behind the last piece nobody would wait for it any more: mixed bytes would be told as a whole file."""
    source.meanwhile = lambda: source.write(b"B", mtime_ns=(OLD + 5) * 10**9)
    records = source.ask(0, SIZE)
    assert [(r.offset, r.length, r.trouble) for r in records] == [(0, FRAME, 0), (FRAME, 0, CHANGED)]


def test_a_change_within_one_second_shows_between_two_requests(source: Source) -> None:
    """Though the request knows whole seconds alone, and whatever the clocks of the two ends say."""
    (first,) = source.ask(0, 1000)
    source.write(b"B", mtime_ns=OLD * 10**9 + 500_000_000)
    (second,) = source.ask(1000, 1000)
    assert first.trouble == second.trouble == 0
    assert same_edition(first.note, second.note)[0] is False


def test_a_time_set_back_leaves_it_to_a_digest(source: Source) -> None:
    (first,) = source.ask(0, 1000)
    source.write(b"B")
    (second,) = source.ask(1000, 1000)
    assert same_edition(first.note, second.note) == (True, False)


def test_so_does_a_link_which_changes_nothing_else(source: Source) -> None:
    (first,) = source.ask(0, 1000)
    os.link(source.place, source.place.with_name("pinned"))
    (second,) = source.ask(1000, 1000)
    assert same_edition(first.note, second.note) == (True, False)


def test_one_that_rests_is_sure(source: Source) -> None:
    (first,), (second,) = list(source.ask(0, 1000)), list(source.ask(1000, 1000))
    assert same_edition(first.note, second.note) == (True, True)


def test_of_what_the_near_end_has_the_digest_alone_is_told(source: Source) -> None:
    (source.place).write_bytes(bytes(range(250)) * 12)
    os.utime(source.place, (OLD, OLD))
    (kept,) = list(source.ask(500, ALONE + 2000))
    assert (kept.offset, kept.length, kept.trouble, kept.kind) == (500, 2000, 0, KEPT)
    assert kept.digest == hashlib.sha256(source.place.read_bytes()[500:2500]).digest() and source.bytes == b""
    (sent,) = list(source.ask(2000, 1000))
    assert same_edition(kept.note, sent.note)[0]


def test_a_digest_alone_of_another_file_or_beyond_its_end_is_none(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = source.ask(0, ALONE + SIZE, mtime=OLD + 1)
    assert record.trouble == CHANGED
    (record,) = source.ask(SIZE - 10, ALONE + 11)
    assert record.trouble == CHANGED
    read = os.readv

    def readv(handle: int, views: list[memoryview]) -> int:
        source.write(b"B", mtime_ns=(OLD + 5) * 10**9)
        return read(handle, views)

    monkeypatch.setattr(os, "readv", readv)
    (record,) = source.ask(0, ALONE + SIZE)
    assert record.trouble == CHANGED


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_young_is_by_the_clock_of_the_machine_that_has_the_file(
    source: Source, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    there = time.time() + skew
    monkeypatch.setattr(time, "time", lambda: there)
    mtime = int(there) - 1
    source.write(b"A", mtime_ns=mtime * 10**9)
    (record,) = source.ask(0, 1000, mtime=mtime)
    assert same_edition(record.note, record.note)[1] is False


def test_a_small_file_whose_ctime_moves_is_read_twice(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write(b"S", 100)
    os.truncate(source.place, 100)
    os.utime(source.place, (OLD, OLD))
    time.sleep(0.03)
    read = os.readv

    def readv(handle: int, views: list[memoryview]) -> int:
        done = read(handle, views)
        source.write(b"T", 100)  # and its mtime set back
        return done

    monkeypatch.setattr(os, "readv", readv)
    (record,) = source.ask(0, 100, wanted=100, mtime=ANY)
    assert record.trouble == CHANGED


def test_a_small_file_that_is_read_twice_in_parts_is_the_same(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems bring fewer bytes at a read than there are."""
    source.write(b"S", 100, mtime_ns=time.time_ns())
    pread, read = os.pread, list[int]()

    def half(handle: int, length: int, offset: int) -> bytes:
        read.append(offset)
        return pread(handle, (length + 1) // 2, offset)

    monkeypatch.setattr(os, "pread", half)
    (record,) = source.ask(0, 100, wanted=100, mtime=ANY)
    assert record.trouble == 0 and len(read) > 1


def test_editions_of_files_and_of_none(source: Source, tmp_path: Path) -> None:
    (record,) = source.ask(0, 1000)
    assert editions_of(Disk(str(tmp_path)), [NAME, "gone"]) == [record.note, None]


def test_a_disk_with_whole_seconds_alone_is_young_for_longer(tmp_path: Path) -> None:
    class Coarse(NamedTuple):
        st_mtime_ns: int
        st_ctime_ns: int

        def __getitem__(self, at: int) -> int:  # type: ignore[override]
            return OLD

    coarse, fine = Coarse(OLD * 10**9, 5 * 10**9), Coarse(OLD * 10**9, 5 * 10**9 + 1)
    now = OLD + 100.0
    assert edition_of(coarse, now) & 1 == edition_of(fine, now) & 1 == 0
    coarse, fine = (one._replace(st_ctime_ns=one.st_ctime_ns + (OLD + 94) * 10**9) for one in (coarse, fine))
    assert (edition_of(coarse, now) & 1, edition_of(fine, now) & 1) == (1, 0)
