"""What the far end of a push does with frames, whoever sends them, however late, over however many connections."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.services.processes import soon
from tidemark.stores.agent import durable, part_file
from tidemark.stores.agent import writer as far_receive
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import (
    ANSWERS,
    BARE,
    BLOCK,
    COPY,
    DIFFERS,
    FILE,
    HEAD,
    LARGE,
    LOST,
    NOTHING,
    PIECES,
    PREFIX,
    RECORD,
    SEALED,
    SEALS,
    SHARED,
    WORDS,
)
from tidemark.stores.agent.writer import FrameReceiver, begin_parts
from tidemark.transfer.stream.push import ANSWERS_ROOM

KNOWN = (1_600_000_000, 7)  # mtime and inode of a source
CONTENT = bytes(range(256)) * 40
PATH = "landing/x.tsfile"


class Answer(NamedTuple):
    number: int
    offset: int
    length: int
    trouble: int
    kind: int
    size: int
    digest: bytes


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


class End:
    """One connection's far end."""

    def __init__(self, root: Path, resumed: dict[str, Any] | None = None) -> None:
        self.answers: list[Answer] = []
        self.receiver = FrameReceiver(Disk(str(root)), self._take, resumed if resumed is not None else {})

    def _take(self, records: bytes) -> None:
        self.answers += [Answer(*record) for record in RECORD.iter_unpack(records)]

    def send(self, asked: int, record: bytes, data: bytes, flags: int, known: tuple[int, int]) -> Answer:
        file = FILE.pack(1, len(CONTENT), *known, flags, len(PATH)) + PATH.encode()
        before = len(self.answers)
        self.receiver.receive_frame(WORDS.pack(asked, len(file)) + file + record, memoryview(data))
        assert soon(lambda: len(self.answers) > before)
        return self.answers[-1]

    def piece(self, start: int, end: int, kind: int = BLOCK, flags: int = LARGE, known: tuple[int, int] = KNOWN) -> Answer:
        data = CONTENT[start:end]
        digest = NOTHING if kind == BARE else sha(CONTENT[:end] if kind == PREFIX else data)
        return self.send(PIECES, RECORD.pack(1, start, len(data), 0, kind, 0, digest), data, flags, known)

    def seal(self, digest: bytes = NOTHING, flags: int = LARGE) -> Answer:
        kind = BARE if digest == NOTHING else PREFIX
        return self.send(SEALS, RECORD.pack(1, 0, 0, 0, kind, 0, digest), b"", flags, KNOWN)


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Callable[..., End]]:
    ends: list[End] = []

    def start(resumed: dict[str, Any] | None = None) -> End:
        ends.append(End(tmp_path, resumed))
        return ends[-1]

    yield start
    for end in ends:
        end.receiver.finish_files()


def made(root: Path, known: tuple[int, int] = KNOWN, keep: bool = True) -> tuple[list[Any], dict[str, Any]]:
    """The part of the file, as `begin_parts` makes it; what it found there."""
    resumed: dict[str, Any] = {}
    ((trouble, claims),) = begin_parts(Disk(str(root)), [[PATH, len(CONTENT), *known, keep]], resumed)
    assert trouble == 0
    return claims, resumed


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_two_connections_bring_a_file_in_any_order(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    one, two = another(), another()
    assert one.piece(0, 3000, PREFIX).trouble == 0
    assert two.piece(6000, len(CONTENT)).trouble == 0
    assert two.piece(2000, 6500).trouble == 0
    assert one.seal(sha(CONTENT)) == Answer(1, 0, 0, 0, SEALED, 0, sha(CONTENT))
    assert files(tmp_path) == {"x.tsfile": CONTENT}


def test_a_piece_that_comes_after_the_name_leaves_nothing(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    one, two, three = another(), another(), another()
    two.piece(0, 10)  # has the part open
    one.piece(0, len(CONTENT), PREFIX)
    one.seal(sha(CONTENT))
    two.piece(100, 200)
    assert three.piece(100, 200).trouble == errno.ENOENT
    assert files(tmp_path) == {"x.tsfile": CONTENT}


def test_a_name_asked_for_twice_is_given_once(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    one, two = another(), another()
    one.piece(0, len(CONTENT), PREFIX)
    one.seal(sha(CONTENT))
    assert two.seal(sha(CONTENT)).trouble == 0  # the first answer was lost with its connection
    assert another().seal(sha(b"another")).trouble == DIFFERS
    assert files(tmp_path) == {"x.tsfile": CONTENT}


def test_bytes_that_differ_get_no_name(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    one, two = another(), another()
    one.piece(0, 5000, PREFIX)
    two.piece(5000, len(CONTENT))
    part = tmp_path / f"{PATH}.part"
    with part.open("r+b") as file:
        file.seek(7000)
        file.write(b"rot on the disk")
    answer = one.seal(sha(CONTENT))
    assert answer == Answer(1, 5000, len(CONTENT) - 5000, DIFFERS, SEALED, 0, sha(part.read_bytes()))
    assert not (tmp_path / PATH).exists()
    claims, _ = made(tmp_path)  # the block that differs is named, the other one is gone on from
    assert [tuple(claim) for claim in claims] == [(0, 5000, sha(CONTENT[:5000]).hex())]


def test_what_lies_behind_the_end_never_gets_the_name(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    one = another()
    beyond = RECORD.pack(1, len(CONTENT) + 5, 4, 0, BLOCK, 0, sha(b"evil"))
    assert one.send(PIECES, beyond, b"evil", LARGE, KNOWN).trouble == errno.EINVAL
    assert one.piece(0, len(CONTENT), PREFIX).trouble == 0
    assert one.seal(sha(CONTENT)).trouble == 0
    assert files(tmp_path) == {"x.tsfile": CONTENT}


def test_a_piece_with_another_digest_does_not_count(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    one = another()
    other = RECORD.pack(1, 10, 5, 0, BLOCK, 0, sha(b"hello"))
    assert one.send(PIECES, other, b"hullo", LARGE, KNOWN)[:4] == (1, 10, 5, DIFFERS)
    assert one.piece(0, 10).trouble == 0
    one.receiver.finish_files()
    assert [tuple(claim) for claim in made(tmp_path)[0]] == [(0, 10, sha(CONTENT[:10]).hex())]


def test_a_small_file_that_came_over_another_connection_is_looked_at(tmp_path: Path, another: Callable[..., End]) -> None:
    """Its own connection was lost before it got its name; what lies in its part may be anybody's."""
    one = another()
    (tmp_path / PATH).parent.mkdir()
    part, copy = tmp_path / f"{PATH}.part", tmp_path / f"{PATH}.again.part"
    part.write_bytes(b"of a run that was killed")
    assert one.seal(sha(CONTENT), SHARED).trouble == errno.ESTALE
    (tmp_path / PATH).write_bytes(b"an older edition")
    assert one.seal(sha(CONTENT), SHARED)[3:] == (DIFFERS, SEALED, 0, sha(b"an older edition"))
    assert (tmp_path / PATH).read_bytes() == b"an older edition"
    another().piece(0, len(CONTENT), PREFIX, SHARED | COPY)
    assert copy.read_bytes() == CONTENT
    assert one.seal(sha(CONTENT), SHARED).trouble == 0
    assert (tmp_path / PATH).read_bytes() == CONTENT and not copy.exists()
    assert another().seal(sha(CONTENT), SHARED).trouble == 0  # it has its name, whatever still lies beside it
    assert (tmp_path / PATH).read_bytes() == CONTENT


def test_a_part_that_another_put_there_gets_no_name(tmp_path: Path, another: Callable[..., End]) -> None:
    """A third connection, or the far end of a try that was cut, writes its own where ours lies."""
    one = another()
    one.piece(0, len(CONTENT), PREFIX, SHARED | COPY)
    copy = tmp_path / f"{PATH}.again.part"
    copy.unlink()
    copy.write_bytes(CONTENT[:100])
    assert one.seal(sha(CONTENT), SHARED | COPY).trouble == errno.ESTALE
    assert not (tmp_path / PATH).exists()


def test_a_part_begun_anew_while_its_name_is_asked_for_gets_none(
    tmp_path: Path, another: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    one = another()
    one.piece(0, len(CONTENT), PREFIX)
    sync = durable.make_durable

    def begun_meanwhile(*arguments: Any) -> None:
        sync(*arguments)
        made(tmp_path, (KNOWN[0] + 1, KNOWN[1]))

    monkeypatch.setattr(durable, "make_durable", begun_meanwhile)
    assert one.seal(sha(CONTENT)).trouble == errno.ESTALE
    assert not (tmp_path / PATH).exists()


def test_a_part_put_there_at_the_last_moment_does_not_keep_the_name(
    tmp_path: Path, another: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, rename = another(), os.rename
    assert one.piece(0, len(CONTENT), PREFIX, 0).trouble == 0

    def late(part: bytes, final: bytes) -> None:
        monkeypatch.setattr(os, "rename", rename)
        durable.remove_quietly(part)
        part_file.write_small(part, memoryview(b"half"))
        rename(part, final)

    monkeypatch.setattr(os, "rename", late)
    assert one.seal(sha(CONTENT), 0).trouble == errno.ESTALE
    assert files(tmp_path) == {"x.tsfile.part": b"half"}


def test_bytes_that_the_disk_lost_on_the_way_get_no_name(
    tmp_path: Path, another: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync says so once; the sync before the name would find all well."""
    monkeypatch.setattr(part_file, "SYNC_BYTES", 1000)
    made(tmp_path)
    one = another()
    fsync, failed = os.fsync, threading.Event()

    def fails_once(handle: int) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EIO, "lost")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fails_once)
    one.piece(0, len(CONTENT), PREFIX)
    assert soon(failed.is_set)
    assert one.seal(sha(CONTENT)).trouble == LOST
    assert not (tmp_path / PATH).exists() and made(tmp_path)[0] == []


def test_after_a_disk_lost_bytes_what_was_written_before_comes_again(
    tmp_path: Path, another: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> bool:
        raise OSError(errno.EIO, "lost")

    answers: list[Answer] = []
    receiver = FrameReceiver(Disk(str(tmp_path)), lambda r: answers.extend(Answer(*a) for a in RECORD.iter_unpack(r)), {})
    monkeypatch.setattr(durable, "SYNC_ONCE", 2)
    monkeypatch.setattr(durable, "_sync_disks", lost)

    def bring(numbers: list[int], asked: int) -> None:
        files = b"".join(FILE.pack(n, 1, 0, 0, 0, len(str(n))) + str(n).encode() for n in numbers)
        records = b"".join(RECORD.pack(n, 0, asked == PIECES, 0, PREFIX, 0, sha(b"x")) for n in numbers)
        receiver.receive_frame(WORDS.pack(asked, len(files)) + files + records, memoryview(b"x" * len(numbers)))

    bring([1, 2, 3], PIECES)
    bring([1, 2], SEALS)
    assert soon(lambda: len(answers) == 5)
    bring([3], SEALS)
    assert soon(lambda: len(answers) == 6)
    assert {answer.number: answer.trouble for answer in answers if answer.kind == SEALED} == {1: LOST, 2: LOST, 3: LOST}
    bring([4, 5], PIECES)
    bring([4, 5], SEALS)  # each synced by itself now
    receiver.finish_files()
    assert {answer.number: answer.trouble for answer in answers[-2:]} == {4: 0, 5: 0}
    assert files(tmp_path) == {"4": b"x", "5": b"x"}


def test_who_writes_for_another_source_is_refused(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    late = another()
    late.piece(0, 5000)  # its line is silent now; the source changes, and the file is begun anew
    claims, _ = made(tmp_path, (KNOWN[0] + 1, KNOWN[1]))
    assert claims == []
    late.piece(5000, 9000)  # into nothing
    assert another().piece(0, 100).trouble == errno.ESTALE
    assert (tmp_path / f"{PATH}.part").read_bytes() == b""


def test_what_an_earlier_try_left_is_gone_on_from(tmp_path: Path, another: Callable[..., End]) -> None:
    made(tmp_path)
    first = another()
    first.piece(0, 2000, PREFIX)
    first.piece(5000, 6000)
    first.receiver.finish_files()
    claims, resumed = made(tmp_path)
    assert [tuple(claim) for claim in claims] == [
        (0, 2000, sha(CONTENT[:2000]).hex()),
        (5000, 1000, sha(CONTENT[5000:6000]).hex()),
    ]
    second = another(resumed)
    second.piece(2000, 5000)
    second.piece(6000, len(CONTENT))
    assert second.seal(sha(CONTENT)).trouble == 0
    assert files(tmp_path) == {"x.tsfile": CONTENT}
    assert made(tmp_path, keep=False)[0] == []


@pytest.mark.parametrize("late", [0, 1])
def test_a_small_file_sent_twice_gets_its_name_from_either_copy(
    tmp_path: Path, another: Callable[..., End], late: int
) -> None:
    ends = [(another(), SHARED), (another(), SHARED | COPY)]
    (slow, slow_flags), (quick, flags) = ends[late], ends[1 - late]
    assert quick.piece(0, len(CONTENT), PREFIX, flags).digest == sha(CONTENT)
    assert quick.seal(sha(CONTENT), flags).trouble == 0
    assert slow.piece(0, len(CONTENT), PREFIX, slow_flags).trouble == 0
    assert files(tmp_path) == {"x.tsfile": CONTENT}


def test_a_small_file_replaces_another_content_of_its_name(tmp_path: Path, another: Callable[..., End]) -> None:
    (tmp_path / PATH).parent.mkdir()
    (tmp_path / PATH).write_bytes(b"of long ago")
    one = another()
    one.piece(0, len(CONTENT), PREFIX, 0)
    assert one.seal(sha(CONTENT), 0).trouble == 0
    assert files(tmp_path) == {"x.tsfile": CONTENT}


def test_a_folder_that_is_a_symlink_is_not_followed(tmp_path: Path, another: Callable[..., End]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "landing").symlink_to("elsewhere")
    assert another().piece(0, len(CONTENT), PREFIX, 0).trouble == errno.ELOOP
    found = begin_parts(Disk(str(tmp_path)), [[PATH, len(CONTENT), *KNOWN, True]], {})
    assert found[0][0] == errno.ELOOP and files(tmp_path) == {}


def test_no_answer_is_larger_than_the_other_end_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HEAD.size + ANSWERS * RECORD.size <= ANSWERS_ROOM
    monkeypatch.setattr(far_receive, "ANSWERS", 10)
    frames: list[bytes] = []
    receiver = FrameReceiver(Disk(str(tmp_path)), frames.append, {})
    count = 21
    files = b"".join(FILE.pack(n, 0, 0, 0, 0, len(str(n))) + str(n).encode() for n in range(count))
    pieces = b"".join(RECORD.pack(n, 0, 0, 0, BARE, 0, NOTHING) for n in range(count))
    for asked in (PIECES, SEALS):
        receiver.receive_frame(WORDS.pack(asked, len(files)) + files + pieces, memoryview(b""))
    receiver.finish_files()
    assert sorted(len(frame) // RECORD.size for frame in frames) == [1, 1, 10, 10, 10, 10]
    assert len(list(tmp_path.iterdir())) == count


def test_the_longest_name_is_found_under_it_by_another_connection(
    tmp_path: Path, another: Callable[..., End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PATH", "landing/" + "x" * 255)
    another().piece(0, len(CONTENT), PREFIX, SHARED)
    assert another().seal(sha(CONTENT), SHARED).trouble == 0
    assert another().seal(sha(CONTENT), SHARED).trouble == 0
    assert files(tmp_path) == {"x" * 255: CONTENT}
