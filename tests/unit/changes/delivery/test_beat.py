"""The beat of a member when something goes wrong: the ledger, the consumer's own points, its lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.delivery_worlds import World
from tidemark.changes.delivery.stream import Options
from tidemark.errors import BinlogGapError

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
