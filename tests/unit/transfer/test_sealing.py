"""Names are given to what is durable and proven, whatever the disk says and whoever else writes there."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.memory_store import MemoryStore
from tidemark.errors import PermissionDeniedError, UnreachableError
from tidemark.stores.agent import durable
from tidemark.stores.agent.block_journal import Identity, part_at
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import PREFIX
from tidemark.stores.agent.part_file import begin_part, write_small
from tidemark.stores.os_errors import Where
from tidemark.stores.protocol import Range
from tidemark.transfer.items import Failed, SendItem, SendOptions, Sent, TryAgain, Wire
from tidemark.transfer.stream.publish import Outcome, Publisher, Whole
from tidemark.transfer.stream.verify import VerifiedPart

BUFFER = memoryview(bytearray(700))


class Target:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = Disk(str(root))
        self.told: list[Outcome] = []
        self.source = MemoryStore()
        self.sealer = Publisher(
            Wire(self.source, MemoryStore(), SendOptions(), lambda _: None),
            self.disk,
            Where("", str(root)),
            self.told.extend,
        )

    def small(self, name: str, data: bytes) -> Whole:
        place = self.disk.locate(name)
        seen, failed = write_small(part_at(place), memoryview(data)), self.sealer.syncs_failed
        digest = hashlib.sha256(data).hexdigest()
        return Whole(SendItem(name, name, len(data)), place, digest, False, proof=seen, syncs_failed=failed)

    def large(self, name: str, data: bytes) -> tuple[Whole, VerifiedPart]:
        of = Identity(len(data), 1, 1)
        begin_part(self.disk, name, of, [])
        part = VerifiedPart(self.disk, name, of)
        digest = hashlib.sha256(data)
        part.write_block(0, memoryview(data), PREFIX, digest.digest())
        part.verify_written(BUFFER)
        return Whole(SendItem(name, name, len(data)), part.place, digest.hexdigest(), True, proof=part.proof), part

    def seal(self, *wholes: Whole) -> list[Outcome]:
        self.sealer.queue_files(list(wholes))
        self.sealer.finish_publishing()
        return self.told

    def files(self) -> dict[str, bytes]:
        return {place.name: place.read_bytes() for place in sorted(self.root.iterdir())}


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def again(outcome: Outcome) -> str:
    assert isinstance(outcome, tuple) and isinstance(outcome[1], TryAgain)
    return str(outcome[1].error.message)


def failing_once(monkeypatch: pytest.MonkeyPatch, name: str = "fsync") -> list[int]:
    """A disk that reports lost bytes once, as Linux does."""
    real, said = getattr(os, name), []

    def sync(handle: int) -> None:
        if not said:
            said.append(handle)
            raise OSError(errno.EIO, "Input/output error")
        real(handle)

    monkeypatch.setattr(os, name, sync)
    return said


def test_a_large_file_whose_sync_failed_under_way_is_brought_again(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = target.large("f", b"x" * 10)
    failing_once(monkeypatch)
    target.sealer.queue_sync(os.open(part_at(whole.place), os.O_RDWR), part)
    (outcome,) = target.seal(whole)
    assert "Input/output error" in again(outcome)
    assert target.files() == {}, "no name, and neither part nor journal to go on from"
    with pytest.raises(OSError):
        part.verify_written(BUFFER)


def test_one_whose_last_sync_failed_too_and_the_others_get_their_names(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_once(monkeypatch)
    outcomes = target.seal(target.small("a", b"1"), target.small("b", b"2"), target.small("c", b"3"))
    assert "the disk lost" in again(outcomes[0])
    assert [type(outcome) for outcome in outcomes[1:]] == [Sent, Sent]
    assert target.files() == {"b": b"2", "c": b"3"}


def test_an_older_edition_is_not_taken_for_what_the_disk_lost(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    (target.root / "a").write_bytes(b"old")
    failing_once(monkeypatch)
    (outcome,) = target.seal(target.small("a", b"new"))
    assert "the disk lost" in again(outcome) and target.files() == {"a": b"old"}


def test_after_a_failed_sync_of_the_disk_all_that_was_written_before_is_in_doubt(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def sync_disks(*_: object) -> bool:
        asked.append(1)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(durable, "_sync_disks", sync_disks)
    many = [target.small(f"{number}", b"x") for number in range(durable.SYNC_ONCE)]
    waiting, (large, _) = target.small("waiting", b"w"), target.large("large", b"l" * 10)
    target.sealer.queue_files(many)
    while len(target.told) < len(many):
        time.sleep(0.01)
    target.sealer.queue_files([waiting, large])
    while len(target.told) < len(many) + 2:
        time.sleep(0.01)
    assert [again(outcome) for outcome in target.told] and target.files() == {}, "nothing to go on from"
    later = [target.small(f"later {number}", b"x") for number in range(durable.SYNC_ONCE)]
    assert all(isinstance(outcome, Sent) for outcome in target.seal(*later)[len(many) + 2 :])
    assert len(asked) == 1, "the disk has said its error: files are synced singly then"


@pytest.mark.parametrize("large", [False, True])
def test_another_file_under_the_parts_name_gets_no_final_name(target: Target, large: bool) -> None:
    """A later try, or another process, put it there; it may be half."""
    whole = target.large("f", b"mine")[0] if large else target.small("f", b"mine")
    part = target.root / "f.part"
    part.rename(target.root / "f.other")  # so that its number is not given to the next file
    part.write_bytes(b"half")
    (outcome,) = target.seal(whole)
    assert "somebody else" in again(outcome)
    assert "f" not in target.files() and target.files()["f.part"] == b"half"


def begun_at_the_last_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a part and its rename another process puts its own there."""
    rename = os.rename

    def late(part: bytes, final: bytes) -> None:
        monkeypatch.setattr(os, "rename", rename)
        durable.remove_quietly(part)
        write_small(part, memoryview(b"half"))  # where numbers of files are given anew at once, it has the same
        rename(part, final)

    monkeypatch.setattr(os, "rename", late)


@pytest.mark.parametrize("before", [b"", b"an older edition"])
def test_a_part_put_there_at_the_last_moment_does_not_keep_the_name(
    target: Target, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    if before:
        (target.root / "f").write_bytes(before)
    whole, other = target.small("f", b"mine"), target.small("other", b"whole")
    begun_at_the_last_moment(monkeypatch)
    outcomes = target.seal(whole, other)
    assert isinstance(outcomes[0], Sent) and "somebody else" in again(outcomes[1])
    assert target.files() == {"f.part": b"half", "other": b"whole"}, "it is a part again, for whoever writes to it"


def test_a_part_taken_away_at_the_last_moment_leaves_an_older_edition_and_says_so(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target.root / "f").write_bytes(b"an older edition")
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda part, final: (durable.remove_quietly(part), rename(part, final)))
    (outcome,) = target.seal(target.small("f", b"mine"))
    assert "somebody else" in again(outcome) and target.files() == {"f": b"an older edition"}


@pytest.mark.parametrize("length", [5, 240])
def test_a_sync_that_failed_is_of_its_file_however_long_the_name(
    target: Target, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    failing_once(monkeypatch)
    (outcome,) = target.seal(target.small("n" * length, b"x"))
    assert "the disk lost" in again(outcome)


def test_what_a_disk_says_when_folders_are_synced_is_of_what_was_written_since(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []

    def sync_disks(*_: object) -> bool:
        said.append(1)
        if len(said) == 2:  # of the folders
            later.append(target.small("later", b"x"))
            raise OSError(errno.EIO, "Input/output error")
        return True

    monkeypatch.setattr(durable, "_sync_disks", sync_disks)
    later: list[Whole] = []
    many = []
    for number in range(durable.SYNC_ONCE):
        (target.root / f"d{number}").mkdir()
        many.append(target.small(f"d{number}/f", b"x"))
    target.sealer.queue_files(many)
    while len(target.told) < len(many):
        time.sleep(0.01)
    outcomes = target.seal(*later)
    assert [again(outcome) for outcome in outcomes] and len(outcomes) == len(many) + 1
    assert not (target.root / "later").exists()


def test_names_whose_folder_could_not_be_synced_are_tried_again(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, said = durable.sync_folder, []

    def sync_folder(folder: bytes) -> None:
        if not said and folder.endswith(b"/bad"):
            said.append(1)
            raise OSError(errno.EIO, "Input/output error")
        sync(folder)

    for name in ("bad", "good"):
        (target.root / name).mkdir()
    monkeypatch.setattr(durable, "sync_folder", sync_folder)
    outcomes = target.seal(target.small("bad/a", b"1"), target.small("bad/b", b"2"), target.small("good/c", b"3"))
    assert ["the disk lost" in again(outcome) for outcome in outcomes[:2]] == [True, True]
    assert [outcome.item.target_path for outcome in outcomes[2:] if isinstance(outcome, Sent)] == ["good/c"]


@pytest.mark.parametrize("large", [False, True])
def test_bytes_that_rot_before_the_name_are_seen(target: Target, large: bool) -> None:
    whole = target.large("f", b"mine")[0] if large else target.small("f", b"mine")
    time.sleep(0.01)
    (target.root / "f.part").write_bytes(b"mYne")
    (outcome,) = target.seal(whole)
    assert "somebody else" in again(outcome) and "f" not in target.files()


def test_other_times_alone_leave_it_to_the_bytes(target: Target) -> None:
    """A network disk sets them when it closes a file, a backup when it has read one."""
    whole = target.small("f", b"mine")
    time.sleep(0.01)
    os.utime(part_at(whole.place), (5, 5))
    assert [type(outcome) for outcome in target.seal(whole)] == [Sent]
    assert target.files() == {"f": b"mine"}


@pytest.mark.parametrize(
    ("trouble", "tried_again"),
    [
        (UnreachableError("the line is cut"), True),
        (None, True),  # it is there no more
        (PermissionDeniedError("may not be read"), False),
    ],
)
def test_what_may_work_again_is_tried_again_and_nothing_else(
    target: Target, monkeypatch: pytest.MonkeyPatch, trouble: Exception | None, tried_again: bool
) -> None:
    def digest_ranges(ranges: Sequence[Range]) -> Sequence[str | None]:
        if trouble is not None:
            raise trouble
        return [None for _ in ranges]

    monkeypatch.setattr(target.source, "digest_ranges", digest_ranges)
    whole, part = target.large("f", b"x" * 10)
    (outcome,) = target.seal(whole._replace(confirm=True))
    part.close()
    assert isinstance(outcome, tuple if tried_again else Failed)
    assert "f" not in target.files()


def test_a_large_file_takes_its_journal_along(target: Target) -> None:
    whole, _ = target.large("f", b"x" * 10)
    assert "f.part.blocks" in target.files()
    assert [type(outcome) for outcome in target.seal(whole)] == [Sent]
    assert target.files() == {"f": b"x" * 10}


def test_a_bug_is_raised_and_not_swallowed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(durable, "make_durable", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        target.seal(target.small("f", b"x"))
    assert target.told == []
