"""The log at the member: who appends, what is read back, and what a damaged byte is called."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.group_logs import COORDINATOR, fence_of, records_behind
from tests.memory_store import MemoryStore
from tidemark.cluster.replicas.core.epochs import Fence, Verdict
from tidemark.cluster.replicas.core.record import encode_stored
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position
from tidemark.cluster.replicas.core.segment import MARK_BYTES, Mark, decode_mark, encode_mark, read_segment
from tidemark.cluster.replicas.log import BLOCK, GroupLog, Tail, read_all_tails
from tidemark.errors import CorruptionError, NotFoundError, PermanentError, SchemaTooNewError
from tidemark.stores.protocol import Tier

FOLDER = "log/7"


@pytest.fixture(params=[Tier.PYTHON, Tier.SFTP])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(tier=request.param)


@pytest.fixture
def log(store: MemoryStore) -> GroupLog:
    return GroupLog(store, FOLDER)


def written(log: GroupLog, *batches: int, epoch: int = 1) -> Tail:
    tail = log.vote(fence_of(epoch)).tail
    for count in batches:
        answer = log.append(records_behind(tail.end, epoch, count), fence_of(epoch), expect=tail)
        assert answer.verdict is Verdict.ACCEPT
        tail = answer.tail
    return tail


def versions(log: GroupLog, start: int = 1) -> list[int]:
    return [stored.head.position.version for stored in log.read(start)]


def files(store: MemoryStore) -> list[str]:
    return [entry.path for entry in store.list_files([FOLDER]).entries]


def test_the_bytes_of_a_mark_are_those_of_the_format_page() -> None:
    mark = Mark(LogEnd(Position(2, 41), 0xA1B2C3D4), Fence("centre", 3, "n1"), closed=True)
    data = encode_mark(mark)
    assert len(data) == MARK_BYTES
    assert data[:46].hex(" ", -4) == (
        "544d4c4d 01000100 03000000 00000000 02000000 00000000 29000000 00000000 d4c3b2a1 06026365 6e747265 6e31"
    )
    assert data[46:252] == bytes(206)
    assert data[252:] == zlib.crc32(data[:252]).to_bytes(4, "little")
    assert decode_mark(data) == mark
    with pytest.raises(ValueError, match="at most 214"):
        encode_mark(Mark(ORIGIN, Fence("c" * 200, 1, "n" * 15)))


BATCHES = [records_behind(ORIGIN, 1, 2), records_behind(records_behind(ORIGIN, 1, 2)[-1].head.end, 1, 1)]
MARKS = [encode_mark(Mark(end, fence_of(1))) for end in (ORIGIN, *(batch[-1].head.end for batch in BATCHES))]
FIRST, SECOND = (b"".join(map(encode_stored, batch)) for batch in BATCHES)
WHOLE = MARKS[0] + FIRST + MARKS[1] + SECOND + MARKS[2]


def test_every_flipped_bit_is_noticed() -> None:
    for bit in range(len(WHOLE) * 8):
        flipped = bytearray(WHOLE)
        flipped[bit // 8] ^= 1 << bit % 8
        found = read_segment(bytes(flipped))
        second = len(WHOLE) - len(SECOND + MARKS[2])
        assert list(found.records) == (BATCHES[0] if bit // 8 >= second else [])
        assert (found.damage is None) is (bit // 8 >= len(WHOLE) - MARK_BYTES)  # torn, as if it had not come yet


@pytest.mark.parametrize(
    "data",
    [
        MARKS[0] + SECOND + MARKS[2],
        MARKS[0] + MARKS[1] + SECOND + MARKS[2],
        MARKS[0] + FIRST + MARKS[1] + FIRST,
        WHOLE + SECOND + MARKS[2],
        WHOLE + MARKS[1],
        FIRST + MARKS[1],
    ],
)
def test_what_is_left_out_or_doubled_breaks_the_chain(data: bytes) -> None:
    assert read_segment(data).damage is not None


@given(st.binary(max_size=600))
def test_any_bytes_behind_the_end_are_torn(data: bytes) -> None:
    found = read_segment(WHOLE + data)
    assert (found.records, found.sound, found.damage) == (tuple(BATCHES[0] + BATCHES[1]), len(WHOLE), None)


def test_a_duplicate_is_acknowledged_once_it_is_durable(store: MemoryStore, log: GroupLog) -> None:
    tail = written(log, 1)
    records = records_behind(tail.end, 1)
    last = "sync_folder" if store.tier is Tier.SFTP else "sync"

    def die(effect: str, _path: str) -> None:
        if effect == last:
            raise KeyboardInterrupt

    store.on_effect = die
    with pytest.raises(KeyboardInterrupt):
        log.append(records, fence_of(1), expect=tail)
    store.on_effect = lambda _effect, _path: None
    assert log.append(records, fence_of(1), expect=tail).verdict is Verdict.DUPLICATE
    store.crash()
    assert versions(log) == [1, 2]


def test_what_was_appended_is_read_from_any_version_on(log: GroupLog) -> None:
    tail = written(log, 3, 1, 2)
    assert tail.end.position == Position(1, 6)
    assert log.read_tail() == tail
    for start in range(1, 8):
        assert versions(log, start) == list(range(start, 7))
    assert [stored.body for stored in log.read(6)] == [b"{}"]


def test_a_member_without_a_log_has_no_fence_and_takes_nothing(log: GroupLog, store: MemoryStore) -> None:
    assert log.read_tail() == Tail()
    assert list(log.read(1)) == []
    assert log.append(records_behind(ORIGIN, 1), fence_of(1)).verdict is Verdict.UNFENCED
    assert files(store) == []


def test_a_repeated_append_is_acknowledged_and_changes_nothing(log: GroupLog) -> None:
    tail = log.vote(fence_of(1)).tail
    records = records_behind(tail.end, 1, 4)
    first = log.append(records[:3], fence_of(1), expect=tail)
    assert log.append(records[:3], fence_of(1), expect=tail).verdict is Verdict.DUPLICATE
    assert log.append(records[1:2], fence_of(1)).verdict is Verdict.DUPLICATE
    assert log.read_tail() == first.tail
    assert log.append(records, fence_of(1), expect=tail).verdict is Verdict.ACCEPT  # the fourth alone is new
    assert versions(log) == [1, 2, 3, 4]


def test_a_worker_that_wakes_up_late_writes_nothing(log: GroupLog) -> None:
    old = written(log, 2)
    late = records_behind(old.end, 1, body=b'{"late":1}')
    assert log.vote(fence_of(2, "n2")).verdict is Verdict.ACCEPT  # no record yet: the vote alone stops it

    assert log.append(late, fence_of(1), expect=old).verdict is Verdict.STALE
    assert log.vote(fence_of(1)).verdict is Verdict.STALE
    assert log.append(late, fence_of(2, "n3"), expect=old).verdict is Verdict.RIVAL
    assert log.append(records_behind(old.end, 2, 2)[1:], fence_of(2, "n2")).verdict is Verdict.GAP
    barrier = records_behind(old.end, 2)
    assert log.append(barrier, fence_of(2, "n2")).verdict is Verdict.ACCEPT
    assert log.append(late, fence_of(2, "n2")).verdict is Verdict.CONFLICT
    assert [stored.head.position for stored in log.read(2)] == [Position(1, 2), Position(2, 3)]


def test_a_second_coordinator_is_refused(log: GroupLog) -> None:
    tail = written(log, 1)
    other = fence_of(9, "n1", "another database")
    assert log.vote(other).verdict is Verdict.FOREIGN
    assert log.append(records_behind(tail.end, 9), other, expect=tail).verdict is Verdict.FOREIGN
    found = log.read_tail()
    assert found.fence is not None and found.fence.coordinator == COORDINATOR
    assert found == tail


def test_files_are_closed_by_size_and_read_as_one_log(store: MemoryStore) -> None:
    log = GroupLog(store, FOLDER, segment_bytes=1500)
    tail = written(log, *[1] * 20)
    assert len(files(store)) > 3
    assert versions(log) == list(range(1, 21))
    assert log.read_tail() == tail


def test_a_block_of_small_files_becomes_one(store: MemoryStore, log: GroupLog) -> None:
    small = GroupLog(store, FOLDER, segment_bytes=1)  # each append closes its file
    tail = written(small, *[1] * (2 * BLOCK + 5))
    log.seal()
    assert files(store)[:2] == [f"{FOLDER}/0000000001-0000000064.log", f"{FOLDER}/0000000065-0000000128.log"]
    assert len(files(store)) == 2 + 6
    assert versions(log) == list(range(1, tail.end.position.version + 1))
    assert versions(log, 100)[0] == 100
    assert log.append(records_behind(tail.end, 1), fence_of(1), expect=tail).is_yes


def test_sealing_closes_the_last_file(log: GroupLog, store: MemoryStore) -> None:
    tail = written(log, 2)
    log.seal()
    log.seal()
    before = len(files(store))
    assert log.append(records_behind(tail.end, 1), fence_of(1), expect=tail).is_yes
    assert len(files(store)) == before + 1
    assert versions(log) == [1, 2, 3]


def test_what_is_retained_is_gone_and_asking_for_it_is_no_empty_answer(store: MemoryStore) -> None:
    log = GroupLog(store, FOLDER, segment_bytes=1)
    tail = written(log, *[2] * 6)
    log.retain(0)
    assert versions(log) == list(range(1, 13))
    log.retain(7)
    assert versions(log, 7) == list(range(7, 13))
    with pytest.raises(NotFoundError, match="no longer keeps version 6"):
        list(log.read(6))
    log.retain(99)
    assert versions(log, 12) == [12]
    assert log.read_tail() == tail
    assert log.append(records_behind(tail.end, 1), fence_of(1), expect=tail).is_yes


def test_a_late_worker_cannot_take_a_number_that_was_packed_or_retained(store: MemoryStore) -> None:
    log = GroupLog(store, FOLDER, segment_bytes=1)
    old = log.vote(fence_of(1)).tail
    mine = records_behind(old.end, 1, body=b'{"late":1}')
    tail = old
    for _ in range(BLOCK + 4):
        tail = log.append(records_behind(tail.end, 1), fence_of(1), expect=tail).tail
    for remove in (log.seal, lambda: log.retain(99)):
        remove()
        assert f"{FOLDER}/0000000002.log" not in files(store)
        assert log.append(mine, fence_of(1), expect=old).verdict is Verdict.CONFLICT
        assert f"{FOLDER}/0000000002.log" not in files(store)
    assert log.read_tail() == tail


def test_an_emptied_member_does_not_go_on_from_what_a_worker_remembers(store: MemoryStore, log: GroupLog) -> None:
    tail = written(log, 2)
    store.remove_tree("log")
    assert log.append(records_behind(tail.end, 1), fence_of(1), expect=tail).verdict is Verdict.UNFENCED
    assert files(store) == []


def test_a_file_that_a_dead_worker_left_in_an_emptied_folder_is_no_log(store: MemoryStore) -> None:
    log = GroupLog(store, FOLDER, segment_bytes=1)
    written(log, 1, 1)
    log.retain(99)
    *others, last = files(store)
    assert len(others) == 1
    store.remove(others)
    for act in (log.read_tail, lambda: log.vote(fence_of(2)), lambda: list(log.read(2))):
        with pytest.raises(CorruptionError, match=f"{last} is damaged at byte 0"):
            act()


def test_every_torn_append_is_absent_and_the_next_one_takes_its_place(store: MemoryStore) -> None:
    log = GroupLog(store, FOLDER)
    tail = written(log, 2)
    last = files(store)[-1]
    kept = store.read(last) if store.properties.appends else b""
    after = log.append(records_behind(tail.end, 1, 2), fence_of(1), expect=tail).tail
    path = files(store)[-1]
    whole = store.read(path)
    for cut in range(len(kept), len(whole)):
        for rest in (b"", bytes(len(whole) - cut)):
            if rest and not any(whole[cut:]):
                continue
            store.put(path, whole[:cut] + rest)
            torn = log.read_tail()
            assert (torn.end, versions(log)) == (tail.end, [1, 2])
    store.put(path, whole[:-1])
    assert log.append(records_behind(tail.end, 1, 3), fence_of(1), expect=after).verdict is Verdict.ACCEPT
    assert versions(log) == [1, 2, 3, 4, 5]


def test_every_flipped_byte_before_the_last_append_is_named(store: MemoryStore, log: GroupLog) -> None:
    written(log, 1, 2, 1)
    last = len(files(store)) == 1
    for path in files(store) if last else files(store)[1:-1]:  # the first file of SFTP has a vote alone
        sound = store.read(path)
        for at in range(0, len(sound) - (MARK_BYTES + 66 if last else 0), 3):
            store.put(path, sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
            with pytest.raises(CorruptionError, match=rf"{path} is damaged at byte \d+") as told:
                list(log.read(1))
            assert int(told.value.message.rpartition(" ")[2]) <= at
        store.put(path, sound)
    assert versions(log) == [1, 2, 3, 4]


def test_a_newer_format_is_refused_by_name(store: MemoryStore, log: GroupLog) -> None:
    tail = written(log, 1)
    path = files(store)[-1]
    sound = store.read(path)
    mark = bytearray(sound[-MARK_BYTES:-4])
    struct.pack_into("<H", mark, 4, 2)
    store.put(path, sound[:-MARK_BYTES] + mark + zlib.crc32(mark).to_bytes(4, "little"))
    for act in (log.read_tail, lambda: list(log.read(1)), lambda: log.append(records_behind(tail.end, 1), fence_of(1))):
        with pytest.raises(SchemaTooNewError, match=f"{path}: .* newer Tidemark"):
            act()


def test_a_log_that_a_shell_wrote_is_not_forked_by_sftp_alone() -> None:
    store = MemoryStore(tier=Tier.PYTHON)
    tail = written(GroupLog(store, FOLDER), 1)
    store.tier = Tier.SFTP
    with pytest.raises(PermanentError, match="there is SFTP alone now"):
        GroupLog(store, FOLDER).append(records_behind(tail.end, 1), fence_of(1), expect=tail)


def test_the_ends_of_many_logs_are_those_that_each_tells_alone(store: MemoryStore) -> None:
    ends = {
        "log/none": Tail(),
        "log/short": written(GroupLog(store, "log/short"), 2, 1),
        "log/long": written(GroupLog(store, "log/long"), *[150] * 5),
        "log/sealed": written(GroupLog(store, "log/sealed"), 3),
        "log/short.parted-1": written(GroupLog(store, "log/short.parted-1"), 4),
    }
    GroupLog(store, "log/sealed").seal()
    asked: list[str] = []
    store.on_effect = lambda effect, _path: asked.append(effect)
    found = read_all_tails(store, list(ends))
    assert not asked
    assert {folder: GroupLog(store, folder).read_tail() for folder in ends} == found
    assert [tail.end for tail in found.values() if isinstance(tail, Tail)] == [tail.end for tail in ends.values()]


def test_a_damaged_log_is_named_among_sound_ones(store: MemoryStore) -> None:
    sound = written(GroupLog(store, "log/1"), 2)
    assert store.append_if("log/2/0000000002.log", encode_mark(Mark(ORIGIN, fence_of(1))), None)  # its folder was emptied
    found = read_all_tails(store, ["log/1", "log/2"])
    assert found["log/1"] == GroupLog(store, "log/1").read_tail() and found["log/1"] == sound
    assert isinstance(found["log/2"], CorruptionError) and "log/2/0000000002.log" in found["log/2"].message


@pytest.mark.parametrize("files_left", [1, 3])
def test_a_log_that_is_set_aside_leaves_none(files_left: int, store: MemoryStore) -> None:
    log = GroupLog(store, FOLDER, segment_bytes=700)
    written(log, *[1] * files_left)
    before = len(files(store))
    log.set_aside()
    assert log.read_tail() == Tail()
    (aside,) = {entry.path.rpartition("/")[0] for entry in store.list_files(["log"]).entries}
    assert len(store.list_files([aside]).entries) == before
    assert versions(GroupLog(store, aside)) == list(range(1, files_left + 1))
