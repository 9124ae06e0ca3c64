"""Streams of the format `tidemark_changes`: batches, checkpoints, the point of a task."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.delivery_worlds import NOTES, ORDERS, START, expected_changes, fill_store, gtids_at, make_transaction
from tests.spark_frames import LAST, Stream, inserts, places, put, read_parts
from tidemark.app import open_app
from tidemark.changes import subscribe
from tidemark.changes.delivery.tasks import needed_of
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Column, Kind, Mark, Rows, Shape
from tidemark.changes.store.retain import Rules, retain
from tidemark.changes.store.write import Limits, Writer
from tidemark.errors import BinlogGapError, LeaseHeldError, NotFoundError, PermanentError, UsageError
from tidemark.settings.load import load_settings


def test_batches_have_whole_transactions_and_as_many_rows_as_asked(config: Path) -> None:
    batches = Stream(path=config, tables="shop.*", rowsPerBatch=25).read_all()
    assert places([row for batch in batches for row in batch]) == sorted(expected_changes(1, LAST))
    assert all(19 < len(batch) <= 25 for batch in batches[:-1])  # a transaction has 6 rows at most
    seqs = [{row["seq"] for row in batch} for batch in batches]
    assert all(one.isdisjoint(other) for one, other in pairwise(seqs))


def test_a_transaction_that_is_larger_than_a_batch_is_one(tmp_path: Path) -> None:
    limits = Limits(block_bytes=6_000, block_seconds=1e9, group_seconds=1e9)
    with Writer(Disk(tmp_path), 1, limits) as writer:
        for number, rows in ((1, 3), (2, 5000), (3, 3), (4, 3)):
            transaction = make_transaction(number, rows)
            whole = transaction.records[0]
            assert isinstance(whole, Rows)
            if rows < 10:
                writer.append(transaction, gtids_at(number))
                continue
            parts = [Rows(ORDERS, whole.whole, start, 500) for start in range(0, rows, 500)]
            writer.append_large(transaction._replace(records=()), [*parts, Mark("commit", "xid")], gtids_at(number))
    sizes = [len(batch) for batch in Stream(store=tmp_path, rowsPerBatch=100).read_all()]
    assert sizes == [3, 5000, 6]
    assert [len(batch) for batch in Stream(store=tmp_path, rowsPerBatch=0).read_all()] == [5009]
    assert [len(part) for part in read_parts(store=tmp_path, rowsPerPartition=100)] == [5003, 6]


def test_a_stream_goes_on_from_its_checkpoint(config: Path) -> None:
    first = Stream(path=config, tables="shop.*", rowsPerBatch=40)
    before = [row for _ in range(3) for row in first.read_batch() or []]
    again = Stream(first.offset, path=config, tables="shop.*", rowsPerBatch=40)
    after = [row for batch in again.read_all() for row in batch]
    assert places(before + after) == sorted(expected_changes(1, LAST))
    fill_store(config.parent / "store", LAST + 1, LAST + 4, fence=2)
    assert places(again.read_batch() or []) == sorted(expected_changes(LAST + 1, LAST + 4))
    assert again.read_batch() is None


def test_available_now_ends_where_the_store_ended_then(config: Path) -> None:
    stream = Stream(path=config, tables="shop.*", rowsPerBatch=50)
    stream.reader.prepareForTriggerAvailableNow()
    fill_store(config.parent / "store", LAST + 1, LAST + 4, fence=2)
    assert places([row for batch in stream.read_all() for row in batch]) == sorted(expected_changes(1, LAST))
    assert stream.reader.reportLatestOffset()["seq"] == LAST + 5


def test_without_a_limit_everything_is_a_batch(config: Path) -> None:
    stream = Stream(path=config, tables="shop.*", rowsPerBatch=0, from_="seq:40")
    assert isinstance(stream.reader.getDefaultReadLimit(), ReadAllAvailable)
    [batch] = stream.read_all()
    assert places(batch) == sorted(expected_changes(40, LAST))
    limited = Stream(path=config, rowsPerBatch=7).reader
    assert limited.getDefaultReadLimit() == ReadMaxRows(7)
    start = limited.initialOffset()
    assert limited.latestOffset(start, ReadAllAvailable())["seq"] == LAST + 1  # Trigger.Once wants all


def test_a_stream_may_begin_before_its_store_has_anything(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    stream = Stream(store=tmp_path / "store")
    assert stream.read_all() == []
    fill_store(tmp_path / "store", 1, 20)
    assert places([row for batch in stream.read_all() for row in batch]) == sorted(expected_changes(1, 20))


def test_a_checkpoint_of_something_else_is_refused(config: Path) -> None:
    kept = Stream(path=config).reader.initialOffset() | {"source": "billing"}
    with pytest.raises(PermanentError, match=r"of source billing, .* wanted are source orders"):
        Stream(json.dumps(kept), path=config).read_batch()
    with pytest.raises(PermanentError, match="has no offset of changes"):
        Stream(json.dumps({"seq": 3}), path=config).read_batch()
    half = Stream(path=config, rowsPerBatch=40)
    half.read_batch()
    fill_store(config.parent / "other", 3, LAST)  # another store of the source, which begins later
    other = {"store": config.parent / "other", "source": "orders"}
    with pytest.raises(PermanentError, match=r"has other transactions there.*begin a new checkpointLocation"):
        Stream(half.offset, **other).read_batch()
    fill_store(config.parent / "short", 1, 3)
    with pytest.raises(PermanentError, match="is ahead of the store"):
        Stream(half.offset, store=config.parent / "short", source="orders").read_batch()


def test_a_stream_that_retention_overran_stops(config: Path) -> None:
    stream = Stream(path=config, rowsPerBatch=10)
    planned = stream.plan_batch()
    fill_store(config.parent / "store", LAST + 1, 300, fence=2)
    now = START / 1e6 + 300 * 60
    assert retain(Disk(config.parent / "store"), Rules(hours=2), now).retired
    with pytest.raises(BinlogGapError, match=r"does not have any more.*hint: begin a new checkpointLocation"):
        Stream(stream.offset, path=config).read_batch()
    with pytest.raises(BinlogGapError, match=r"is not in the store.*hint: raise retain_bytes"):
        stream.read_parts(planned)


def test_a_stream_that_has_passed_its_point_needs_it_no_more(config: Path) -> None:
    """Retention took what `from` names, and the checkpoint stands behind it."""
    first = Stream(path=config, from_="seq:2")
    first.read_all()
    fill_store(config.parent / "store", LAST + 1, 300, fence=2)
    retain(Disk(config.parent / "store"), Rules(hours=4), START / 1e6 + 300 * 60)
    again = Stream(first.offset, path=config, from_="seq:2")
    assert places([row for batch in again.read_all() for row in batch]) == sorted(expected_changes(LAST + 1, 300))
    with pytest.raises(NotFoundError, match="the store begins after that"):
        read_parts(path=config, from_="seq:2")


def test_a_column_that_comes_while_a_stream_runs_stops_it_until_it_begins_again(config: Path) -> None:
    stream = Stream(path=config, tables="shop.notes")
    assert stream.read_batch()
    wide = Shape("shop", "notes", (*NOTES.columns, Column("new", Kind.TEXT, "text")))
    put(config.parent / "store", inserts(wide, (1, 2, "x")), seq=LAST + 1, fence=2)
    kept = stream.offset
    with pytest.raises(PermanentError, match=r"shop\.notes has a column new.*start the query again"):
        stream.read_batch()
    [batch] = Stream(kept, path=config, tables="shop.notes").read_all()
    assert [row["after"] for row in batch] == [{"id": 1, "n": 2, "new": "x"}]


def test_a_stream_has_no_end(config: Path) -> None:
    with pytest.raises(UsageError, match="a stream has no end"):
        Stream(path=config, to="seq:9")


# a task that holds retention


def needed(config: Path) -> int | None:
    return needed_of(open_app(load_settings(config, {}), whose_ever=True).ledger, "orders")


def test_commit_moves_the_point_of_a_task_and_nothing_else(config: Path) -> None:
    stream = Stream(path=config, rowsPerBatch=40, task="lake", from_="seq:5")
    stream.read_batch()
    assert needed(config) == 5
    done = stream.offset
    stream.read_batch()
    stream.reader.commit(json.loads(done))
    assert needed(config) == json.loads(done)["seq"]
    with pytest.raises(LeaseHeldError):  # a second query with the same task would let retention overrun the first
        Stream(done, path=config, rowsPerBatch=40, task="lake").read_batch()
    stream.reader.stop()
    behind = Stream(json.dumps(Stream(path=config, from_="seq:8").reader.initialOffset()), path=config, task="lake")
    assert places(behind.read_batch() or [])[0][0] == 8  # the checkpoint is the truth, not the point
    behind.reader.commit(json.loads(behind.offset) | {"seq": 8})
    assert needed(config) == json.loads(done)["seq"]  # and no point goes back
    behind.reader.stop()


def test_a_task_of_consumers_is_not_taken(config: Path) -> None:
    with subscribe("billing", source="orders", shards=4, settings=config, follow=False) as members:
        assert next(iter(members))
        with pytest.raises(UsageError, match="task billing has shards 4, not 1"):
            Stream(path=config, task="billing").read_batch()
