"""Several readers of one source, each with a store and a ledger of its own: chosen, left, and gone on at, without loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.delivery_worlds import make_transaction
from tests.reader_worlds import QUICK, TOKEN, RunningReader, flip_blocks, gtids_of, join, name_maria
from tests.services.processes import soon
from tidemark.changes.delivery.http.client.member import ReaderStream
from tidemark.changes.delivery.http.client.readers import Look, order_readers
from tidemark.changes.delivery.http.client.session import ReaderConnection
from tidemark.changes.delivery.storage_points import furthest_point
from tidemark.changes.store.model import Transaction
from tidemark.changes.store.read import Reader
from tidemark.errors import CorruptionError, PermanentError, UnreachableError, UsageError
from tidemark.ledger.delivery import StoragePoint

LAST = 30


def make(number: int) -> Transaction:
    return make_transaction(number, 3)


def make_maria(number: int) -> Transaction:
    return name_maria(make(number))


ORDERS = {
    make: [*range(20, 0, -1), *range(30, 20, -1)],
    make_maria: sorted(range(1, LAST + 1), key=lambda number: (number % 3, number)),  # domain by domain
}


@pytest.fixture(params=[pytest.param(make, marks=pytest.mark.full), make_maria])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[RunningReader]]:
    """Two readers of replicas that committed in another order, with logs of their own."""
    readers = [RunningReader(tmp_path / "one", 3), RunningReader(tmp_path / "two", 8)]
    for one, order in zip(readers, (range(1, LAST + 1), ORDERS[request.param]), strict=True):
        one.append(order, request.param)
        one.start()
    yield readers
    for one in readers:
        one.close()


def every_row(readers: Sequence[RunningReader]) -> list[str]:
    made = make_maria if "0-1-" in Reader(readers[0].disk).view.gtids else make
    return sorted(f"{made(number).gtid} {row}" for number in range(1, LAST + 1) for row in range(3))


def test_a_consumer_that_changes_the_reader_again_and_again_misses_and_doubles_nothing(pair: list[RunningReader]) -> None:
    found: list[str] = []
    changes = 0
    with join(pair, replace(QUICK, rows=3)) as stream:
        for batch in stream:
            found += gtids_of(batch)
            batch.done()
            changes += move(stream) if len(found) % 2 else 0
        assert sorted(found) == every_row(pair)
    assert changes >= 7
    for one in pair:  # both know it: none of them is needed afterwards
        with join([one], shards=None) as again:
            assert list(again) == []


def move(stream: ReaderStream) -> int:
    """Have the stream take its reader for dead, once, and wait until it reads at the other."""
    former = stream.reader
    stream._failed = UnreachableError("it died")
    assert soon(lambda: stream.reader != former)
    return 1


def test_a_dead_reader_is_left_also_with_batches_that_are_not_done(pair: list[RunningReader]) -> None:
    found: list[str] = []
    with join(pair, replace(QUICK, rows=5)) as stream:
        waiting = []
        for batch in stream:
            found += gtids_of(batch)
            waiting.append(batch)
            if len(waiting) == 4:
                first = next(one for one in pair if one.url == stream.reader)
                first.kill()
        assert stream.reader != first.url
        assert [batch.done() for batch in waiting] == [True] * len(waiting)
    assert sorted(found) == every_row(pair)
    other = next(one for one in pair if one is not first)
    assert {point.seq for point in other.points().values()} == {LAST + 1}


def test_who_begins_goes_on_from_the_furthest_point_of_any_reader(pair: list[RunningReader]) -> None:
    found: list[str] = []
    for turn in range(4):
        dead = pair[turn % 2]
        dead.kill()
        with join(pair, replace(QUICK, rows=6), shards=1) as stream:  # two whole transactions
            batch = stream.next_batch()
            assert batch is not None
            found += gtids_of(batch)
            batch.done()
        dead.start()
        with join(pair, shards=None, only=[]):  # it only carries the points over
            pass
    with join(pair, shards=None) as stream:
        for batch in stream:
            found += gtids_of(batch)
            batch.done()
    assert sorted(found) == every_row(pair)


@pytest.mark.parametrize("shards", [[0, 1], [0]])
def test_a_rewind_at_one_reader_is_one_at_the_other(pair: list[RunningReader], shards: list[int]) -> None:
    with join(pair) as stream:
        for batch in stream:
            batch.done()
    version = max(point.version_ts for one in pair for point in one.points().values())
    call = ReaderConnection(pair[0].url, TOKEN)
    call.ask("/v1/rewind", {"taskName": "billing", "to": "earliest", "shards": shards, "apply": True})
    call.close()
    with join(pair) as stream:
        found = [(batch.shard, row) for batch in stream for row in gtids_of(batch)]
    assert {shard for shard, _ in found} == {*shards}
    assert len(found) == len({*found}) and (shards == [0] or sorted(row for _, row in found) == every_row(pair))
    rewound = [{shard for shard, point in one.points().items() if point.version_ts > version} for one in pair]
    assert rewound == [{*shards}, {*shards}]


def test_who_changes_the_reader_gives_nothing_that_another_did_meanwhile(pair: list[RunningReader]) -> None:
    """Both readers have one ledger. The member was stopped: its leases ended, another did all and left, its reader died."""
    pair[1].kill()
    pair[1].ledger = pair[0].ledger
    pair[1].start()
    with join(pair, replace(QUICK, rows=3, beat_seconds=1e6, checkpoint_seconds=1e6), shards=1) as stopped:
        first = stopped.next_batch()
        assert first is not None and first.done()
        with pair[0].ledger.write() as connection:
            connection.execute(sa.text("UPDATE lease SET expires = 1"))
        with join(pair, shards=None, member="two") as other:
            found = [row for batch in other if batch.done() for row in gtids_of(batch)]
        assert sorted(found) == every_row(pair)
        next(one for one in pair if one.url == stopped.reader).kill()
        stopped.beat()
        assert stopped.next_batch(patience=0.1) is None
        stopped.beat()
        assert stopped.shards == (0,)
        assert stopped.next_batch(patience=0.1) is None


def test_a_late_reader_is_left_once_all_that_it_has_is_read(tmp_path: Path) -> None:
    late, other = RunningReader(tmp_path / "one", 3), RunningReader(tmp_path / "two", 8)
    for one in (late, other):
        one.append(range(1, 11))
        one.start()
    found: list[str] = []
    with join([late, other], replace(QUICK, follow=True), shards=1) as stream:
        assert stream.reader == late.url  # chance is none here
        while len(found) < 30:
            batch = stream.next_batch(patience=20)
            assert batch is not None
            found += gtids_of(batch)
        other.append(range(11, 16))
        while len(found) < 45:
            batch = stream.next_batch(patience=20)
            assert batch is not None
            found += gtids_of(batch)
        assert stream.reader == other.url
    assert len(found) == len(set(found))
    late.close()
    other.close()


def test_a_reader_that_is_behind_is_not_gone_to(tmp_path: Path) -> None:
    """It lacks what is done. The member waits, and goes on there once it has it."""
    first, behind = RunningReader(tmp_path / "one", 3), RunningReader(tmp_path / "two", 8)
    first.append(range(1, 21))
    behind.append(range(1, 6))
    for one in (first, behind):
        one.start()
    found: list[str] = []
    with join([first, behind], replace(QUICK, follow=True), shards=1) as stream:
        while len(found) < 60:
            batch = stream.next_batch(patience=20)
            assert batch is not None
            found += gtids_of(batch)
        first.kill()
        assert stream.next_batch(patience=1) is None
        behind.append(range(6, 23))
        while len(found) < 66:
            batch = stream.next_batch(patience=20)
            assert batch is not None
            found += gtids_of(batch)
    assert len(found) == len(set(found))
    first.close()
    behind.close()


@pytest.mark.parametrize("is_same", [True, False])
def test_without_gtids_only_a_reader_of_the_same_server_is_gone_to(tmp_path: Path, is_same: bool) -> None:
    readers = [RunningReader(tmp_path / "one", 3, has_gtids=False), RunningReader(tmp_path / "two", 3, has_gtids=False)]
    for one in readers:
        one.append(range(1, LAST + 1))
        one.name_server(1 if one is readers[0] or is_same else 2)
        one.start()
    found: list[tuple[int, int]] = []
    with join(readers, replace(QUICK, rows=5), shards=1) as stream:
        for _ in range(4):
            batch = stream.next_batch()
            assert batch is not None
            found += [(row["seq"], row["i"]) for row in batch.to_pylist()]
            batch.done()
        next(one for one in readers if one.url == stream.reader).kill()
        if is_same:
            found += [(row["seq"], row["i"]) for batch in stream for row in batch.to_pylist()]
            assert found == [(number, row) for number in range(1, LAST + 1) for row in range(3)]
        else:
            with pytest.raises(PermanentError, match="no GTIDs"):
                while stream.next_batch() is not None:
                    pass
    for one in readers:
        one.close()


def test_rows_that_a_bootstrap_read_are_taken_from_one_reader(tmp_path: Path) -> None:
    """They have no GTID, and each store has them at another place: nobody changes the reader in the middle of them."""
    readers = [RunningReader(tmp_path / "one", 3), RunningReader(tmp_path / "two", 8)]
    for one in readers:
        one.append([1])
        for first in (0, 40):
            one.append_chunk(range(first, first + 40), is_first=not first, is_last=bool(first))
        one.append(range(2, 11))
        one.start()
    every = [*range(40), *range(40, 80)]
    found: list[int] = []
    with join(readers, replace(QUICK, rows=10), shards=1) as stream:
        former = stream.reader
        for batch in stream:
            read = [row["after"]["id"] for row in batch.to_pylist() if row["op"] == "R"]
            found += read
            batch.done()
            stream._failed = UnreachableError("it died")
            assert soon(lambda: stream._failed is None)
            if read and len(found) < 80:
                assert stream.reader == former  # the same one again
            if not read:
                break
        assert found == every
        move(stream)
    for one in readers:
        one.close()


def test_who_is_in_the_middle_of_a_bootstrap_stops_where_its_reader_is_gone(tmp_path: Path) -> None:
    readers = [RunningReader(tmp_path / "one", 3), RunningReader(tmp_path / "two", 8)]
    for one in readers:
        one.append([1])
        one.append_chunk(range(40), is_first=True, is_last=False)
        one.start()
    with pytest.raises(PermanentError, match="bootstrap"), join(readers, replace(QUICK, rows=10, follow=True)) as stream:
        while (batch := stream.next_batch(patience=10)) is not None:
            if any(row["op"] == "R" for row in batch.to_pylist()):
                next(one for one in readers if one.url == stream.reader).kill()
    for one in readers:
        one.close()


def test_what_is_wrong_at_every_reader_ends_the_member(tmp_path: Path) -> None:
    readers = [RunningReader(tmp_path / name, alter=flip_blocks) for name in ("one", "two")]
    for one in readers:
        one.append(range(1, LAST + 1))
        one.start()
    with pytest.raises(CorruptionError), join(readers, replace(QUICK, follow=True)) as stream:
        while stream.next_batch(patience=10) is not None:
            pass
    with pytest.raises(UsageError, match="no storage point"), join(readers, replace(QUICK, given=lambda _shard: "{")):
        pass
    for one in readers:
        one.close()


def test_the_reader_with_least_to_do_is_chosen_and_no_late_one() -> None:
    looks = [Look(0.9, 10_000_000), Look(0.1, 10_000_000), Look(0.0, 1_000_000), Look(trouble=UnreachableError("dead"))]
    assert order_readers(looks, (), 4.0, lambda: 0.0) == [1, 0, 2]
    assert order_readers(looks, {1}, 4.0, lambda: 0.0) == [0, 2, 1]
    chances = iter([0.7, 0.2])
    assert order_readers([Look(0.10, 5), Look(0.15, 5)], (), 4.0, lambda: next(chances)) == [1, 0]


def test_two_points_of_a_shard_say_together_what_is_done() -> None:
    one, other = StoragePoint(5, gtids="0-1-5,1-1-2", change_id=1), StoragePoint(7, 2, gtids="0-1-4,1-1-7", change_id=1)
    together = furthest_point(one, other)
    assert (together.seq, together.event_index, together.gtids) == (5, 0, "0-1-5,1-1-7")
    assert furthest_point(one, together) is together and furthest_point(together, other) is together
    half = replace(one, event_index=3)
    assert furthest_point(one, half) is half
    assert furthest_point(replace(one, gtids=""), replace(one, seq=9, gtids="")).seq == 9


def test_a_reader_that_dies_between_a_commit_and_its_answer(pair: list[RunningReader]) -> None:
    """The point is in its ledger, and the member does not know: the other reader is told of it, and no row is missing."""
    died: list[RunningReader] = []

    def die(reader: RunningReader) -> Callable[[str, bytes], bytes]:
        def alter(path: str, body: bytes) -> bytes:
            if path.endswith("/commit") and not died:
                died.append(reader)
                threading.Thread(target=reader.kill).start()
                raise TimeoutError
            return body

        return alter

    for one in pair:
        one.kill()
        one.alter = die(one)
        one.start()
    found: list[str] = []
    with join(pair, replace(QUICK, rows=3)) as stream:
        for batch in stream:
            found += gtids_of(batch)
            batch.done()
    [first] = died
    assert sorted(found) == every_row(pair)
    other = next(one for one in pair if one is not first)
    assert {point.seq for point in other.points().values()} == {LAST + 1}
