"""The beat of a member when something goes wrong: the ledger, the consumer's own points, its lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tests.delivery_worlds import World, changes_of, expected_changes
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.stream import Options
from tidemark.errors import BinlogGapError, RetryableError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Leases, this_process

FAST = 0.05


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    assert is_so()


class KeptPoints:
    """A consumer's own points, in a database that may fail."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self, _shard: int) -> None:
        if self.error is not None:
            raise self.error


def test_what_the_consumers_own_points_raise_in_the_beat_is_raised_to_it(world: World) -> None:
    kept = KeptPoints()
    with world.member(Options(rows=3, beat_seconds=FAST, given=kept), shards=1) as stream:
        assert stream.next_batch() is not None
        kept.error = KeyError("of another thread")
        world.rewind("seq:2")
        with pytest.raises(KeyError, match="of another thread"):
            while True:
                stream.next_batch(patience=5)


def test_a_stream_in_trouble_is_not_finished(world: World) -> None:
    kept = KeptPoints()
    with world.member(Options(follow=False, beat_seconds=FAST, given=kept), shards=1) as stream:
        while (batch := stream.next_batch()) is not None:
            batch.done()
        assert stream.is_finished
        kept.error = BinlogGapError("gone")
        world.rewind("seq:2")
        wait_until(lambda: stream._thread is not None and not stream._thread.is_alive())
        with pytest.raises(BinlogGapError, match="gone"):
            stream.run(lambda _batch: None)


def test_a_shard_that_comes_back_goes_on_from_what_the_consumer_keeps_by_then(world: World) -> None:
    kept: dict[int, str] = {}
    options = Options(rows=3, follow=False, given=kept.get)
    elsewhere = Leases(world.ledger, replace(this_process(), host="elsewhere"))
    first, second = world.member(options, shards=2), world.member(options, shards=2, leases=elsewhere)
    first.join()
    batch = first.next_batch(patience=0)
    assert batch is not None
    kept[batch.shard] = batch.point
    second.join()
    seen: list[tuple[int, int, int]] = [(batch.shard, *change) for change in changes_of(batch)]
    batch.done()
    for _ in range(3):
        first.beat()
        second.beat()
    assert len(first.shards) == len(second.shards) == 1
    for member in (second, first):
        while (batch := member.next_batch(patience=0)) is not None:
            kept[batch.shard] = batch.point
            seen += [(batch.shard, *change) for change in changes_of(batch)]
        second.close()
        first.beat()
        first.beat()
    first.close()
    assert len(seen) == len(set(seen)) == len(expected_changes(1, world.last))


def test_a_member_that_was_taken_for_dead_tries_each_beat_to_be_one_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = world.member(Options(follow=False), shards=2)
    member.join()
    with world.ledger.write() as connection:
        connection.execute(sa.text("UPDATE lease SET fence = fence + 1, holder = '', expires = 0"))
    with monkeypatch.context() as patched:
        patched.setattr(member.leases, "acquire_within", go_away)
        with pytest.raises(RetryableError):
            member.beat()
    for _ in range(2):
        member.beat()
    assert member.shards == (0, 1)
    member.close()


def go_away(*_arguments: object) -> NoReturn:
    raise RetryableError("the ledger is away")


def lose_answers(ledger: Ledger, patched: pytest.MonkeyPatch) -> None:
    """What is written is written, and the connection breaks before it is told."""
    write = ledger.write

    @contextmanager
    def write_and_break() -> Iterator[Connection]:
        with write() as connection:
            yield connection
        raise RetryableError("the connection was lost at COMMIT")

    patched.setattr(ledger, "write", write_and_break)


def test_a_point_goes_on_behind_a_commit_whose_answer_was_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    member = world.member(Options(rows=3, follow=False, checkpoint_seconds=0), shards=1)
    member.join()
    for number in range(1000):
        batch = member.next_batch(patience=0)
        if batch is None:
            break
        batch.done()
        if number == 10:
            with monkeypatch.context() as patched:
                lose_answers(world.ledger, patched)
                with pytest.raises(RetryableError):
                    member.beat()
            assert world.points()[0].seq > 1
    member.beat()
    assert world.points()[0].seq == world.last + 1
    member.close()


def test_callbacks_of_a_shard_come_one_after_another_also_over_a_rewind(world: World) -> None:
    lock, inside, most = threading.Lock(), 0, 0
    rewound = threading.Event()

    def callback(_batch: Batch) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        if not rewound.is_set():
            rewound.set()
            version = world.points()[0].version_ts
            world.rewind("seq:1")
            wait_until(lambda: stream._held[0].saved.version_ts > version)
            time.sleep(0.1)  # another worker could take what comes again
        with lock:
            inside -= 1

    with world.member(Options(follow=False, beat_seconds=FAST), shards=1) as stream:
        stream.run(callback, batch=20, workers=3)
    assert most == 1
    assert world.points()[0].seq == world.last + 1


def test_a_shard_whose_point_could_not_be_written_is_given_away_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    member = world.member(Options(follow=False), shards=2)
    member.join()
    while (batch := member.next_batch(patience=0)) is not None:
        batch.done()
    elsewhere = Leases(world.ledger, replace(this_process(), host="elsewhere"))
    other = world.member(Options(follow=False), shards=2, leases=elsewhere)
    other.join()
    with monkeypatch.context() as patched:
        patched.setattr(world.ledger, "write", go_away)
        with pytest.raises(RetryableError):
            member.beat()
    member.beat()
    assert len(member.shards) == 1
    assert {point.seq for point in world.points().values()} == {world.last + 1}
    other.close()
    member.close()
