"""The point of a task follows a stream by readers, and is held by that stream alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.reader_worlds import RunningReader, join
from tests.spark_frames import Stream, copy_of, served
from tidemark.changes.delivery.http import points
from tidemark.changes.delivery.http.client import held_point
from tidemark.changes.delivery.http.client.readers import Reader
from tidemark.errors import LeaseHeldError, PermanentError


def test_commit_moves_the_point_of_the_task_and_nothing_else(reader: RunningReader) -> None:
    stream = Stream(**served(reader), rowsPerBatch=40, from_="seq:5")
    stream.read_batch()
    assert {shard: point.seq for shard, point in reader.points().items()} == {0: 5}
    done = json.loads(stream.offset)
    stream.read_batch()
    stream.reader.commit(done)
    assert reader.points()[0].seq == done["seq"] > 5
    stream.reader.commit(done | {"seq": 6})
    assert reader.points()[0].seq == done["seq"]  # no point goes back
    reader.kill()
    stream.reader.commit(json.loads(stream.offset))  # a reader that is away keeps more
    reader.start()
    stream.reader.commit(json.loads(stream.offset))
    assert reader.points()[0].seq == json.loads(stream.offset)["seq"]


def test_a_point_that_was_moved_at_one_reader_is_moved_at_all_by_the_next(
    reader: RunningReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(reader, "copy")
    copy.start()
    stream = Stream(**served(reader, copy), rowsPerBatch=40)
    stream.read_batch()
    done = json.loads(stream.offset)
    commit, moved = Reader.commit, []

    def die_after_one(self: Reader, *words: Any) -> object:
        if moved:
            raise KeyboardInterrupt
        moved.append(self.url)
        return commit(self, *words)

    monkeypatch.setattr(Reader, "commit", die_after_one)
    with pytest.raises(KeyboardInterrupt):
        stream.reader.commit(done)
    assert sorted(one.points()[0].seq for one in (reader, copy)) == [1, done["seq"]]
    monkeypatch.setattr(Reader, "commit", commit)
    stream.reader.stop()
    again = Stream(json.dumps(done), **served(reader, copy), rowsPerBatch=40)
    again.read_batch()
    again.reader.commit(json.loads(again.offset))
    assert [one.points()[0].seq for one in (reader, copy)] == [json.loads(again.offset)["seq"]] * 2
    copy.close()


def test_a_task_of_consumers_is_not_taken(reader: RunningReader) -> None:
    with join([reader], shards=1) as member:
        assert member.next_batch()
        with pytest.raises(
            LeaseHeldError, match=r"another stream, or a member, of task billing has its shard.*hint: end the"
        ):
            Stream(**served(reader)).read_batch()
    with join([reader], shards=None), pytest.raises(PermanentError, match="has shards 1, not"):
        join([reader], shards=4).join()


def test_two_streams_of_one_task_are_kept_apart(reader: RunningReader) -> None:
    """The second one is refused, and moves no point; after the first one is stopped it goes on."""
    first, second = Stream(**served(reader), rowsPerBatch=40), Stream(**served(reader), from_="seq:30")
    first.read_batch()
    with pytest.raises(LeaseHeldError, match=r"another stream, or a member, of task billing.*hint: end the other stream"):
        second.read_batch()
    with join([reader], shards=None) as member:
        assert member.next_batch() is None  # no consumer has the shard
    assert reader.points()[0].seq == 1
    first.read_batch()
    first.reader.commit(json.loads(first.offset))
    assert reader.points()[0].seq == json.loads(first.offset)["seq"] > 1
    first.reader.stop()
    assert Stream(**served(reader), from_="seq:30").read_batch()
    assert reader.points()[0].seq == 30


def test_who_is_refused_at_one_of_two_readers_holds_nothing_at_the_other(reader: RunningReader) -> None:
    """They have a ledger each. A reader that was away is held once it answers."""
    copy = copy_of(reader, "copy")
    copy.start()
    first = Stream(**served(copy))
    first.read_batch()
    with pytest.raises(LeaseHeldError, match=f"has its shard at {copy.url}"):
        Stream(**served(reader, copy)).read_batch()
    third = Stream(**served(reader), rowsPerBatch=40)
    assert third.read_batch()
    first.reader.stop()
    third.reader.stop()
    copy.kill()
    fourth = Stream(**served(reader, copy), rowsPerBatch=40)
    fourth.read_batch()
    copy.start()
    fourth.reader.commit(json.loads(fourth.offset))
    with pytest.raises(LeaseHeldError):
        Stream(**served(copy)).read_batch()
    fourth.reader.stop()
    copy.close()


def test_the_lease_of_a_stream_that_died_runs_out_and_that_of_a_living_one_does_not(
    reader: RunningReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(held_point, "RENEW_SECONDS", 0.1)
    first = Stream(**served(reader), rowsPerBatch=40)
    first.read_batch()
    time.sleep(1.5)
    with pytest.raises(LeaseHeldError):
        Stream(**served(reader)).read_batch()
    monkeypatch.setattr(held_point.HeldPoint, "_leave", lambda _self: None)
    first.reader.stop()  # its thread ends, and it says nothing: as one that was killed
    monkeypatch.setattr(held_point, "PATIENCE_SECONDS", 20)
    assert Stream(**served(reader)).read_batch()
    with pytest.raises(LeaseHeldError):  # it lives after all
        first.reader.commit(json.loads(first.offset))
