"""The Python door: `subscribe`, batches as Arrow and as dicts, callbacks, points that a consumer keeps itself."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import run_here
from tests.delivery_worlds import ORDERS, changes_of, expected_changes, fill_store, gtids_at, make_transaction, write_store
from tidemark.changes import subscribe
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.stream import Stream
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import ABSENT, BinlogInfo, Ddl, Mark, Op, Row, Rows, Transaction
from tidemark.changes.store.write import Writer
from tidemark.errors import UsageError
from tidemark.ledger.leases import this_process

LAST = 60


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_store(tmp_path, LAST)


def bill(config: Path, **more: Any) -> Stream:
    return subscribe("billing", **{"source": "orders", "shards": 4, "follow": False, "settings": config, **more})


def test_a_batch_is_arrow_and_dicts(tmp_path: Path) -> None:
    rows = [
        Row(Op.INSERT, None, (1, 10)),
        Row(Op.UPDATE, (1, 10), (1, ABSENT)),
        Row(Op.DELETE, (1, 11), None),
        Row(Op.READ, None, (1, None)),
    ]
    with Writer(Disk(tmp_path / "store"), 1) as writer:
        records = (Ddl("shop", "alter table orders"), Rows.of(ORDERS, rows), Mark("commit", "xid"))
        writer.append(Transaction(BinlogInfo(1, 7, 1, 100, bytes(16), 1, 0, 1), "", 1, records), gtids_at(1))
    config = tmp_path / "tidemark.toml"
    config.write_text('[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n')
    with bill(config, shards=1, controls=True) as stream:
        ddl, batch, commit = list(stream)
        assert (ddl.kind, ddl.text, commit.kind) == ("ddl", "alter table orders", "commit")
        assert (batch.kind, batch.table, len(batch)) == ("rows", "shop.orders", 4)
        assert batch.op.to_pylist() == ["I", "U", "D", "R"]
        assert batch.before.to_pylist() == [None, {"id": 1, "n": 10}, {"id": 1, "n": 11}, None]
        assert batch.after.field("id").to_pylist()[0] == 1
        assert batch.after.is_null().to_pylist() == [False, False, True, False]
        assert batch.schema is not None
        assert [(column.name, column.key) for column in batch.schema.columns] == [("id", True), ("n", False)]
        told = batch.to_pylist()
        assert [row["after"] for row in told] == [{"id": 1, "n": 10}, {"id": 1}, None, {"id": 1, "n": None}]
        assert [(row["seq"], row["i"]) for row in told] == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_done_in_any_order_twice_or_never(config: Path) -> None:
    with bill(config, shards=1, rows=10) as stream:
        first, second, third = (stream.next_batch() for _ in range(3))
        assert first and second and third
        assert second.done() and second.done()
    with bill(config, rows=10, shards=None) as stream:  # the first was not done: all come again
        again = stream.next_batch()
        assert again is not None and changes_of(again) == changes_of(first)
        assert again.done()
        assert not first.done()  # it belongs to a stream that has ended
    with bill(config, rows=10, shards=None) as stream:
        third_time = stream.next_batch()
        assert third_time is not None and changes_of(third_time) == changes_of(second)


def test_a_point_that_the_consumer_keeps_makes_each_effect_once(config: Path) -> None:
    kept: dict[int, str] = {}
    effects: list[tuple[int, int]] = []
    for _ in range(6):  # each process dies before its points are written: no `done`
        with bill(config, rows=20, point=kept.get) as stream:
            for _ in range(20):
                if (batch := stream.next_batch()) is not None:
                    effects += changes_of(batch)  # in one transaction of the consumer's own database
                    kept[batch.shard] = batch.point
    assert len(effects) == len(set(effects))
    assert set(effects) == expected_changes(1, LAST)


def test_a_point_of_something_else_is_refused(config: Path) -> None:
    with bill(config, shards=2) as stream:
        batch = stream.next_batch()
        assert batch is not None
        point, shard = batch.point, batch.shard
        fields = json.loads(point)
        assert fields["checkpointMode"] == "NORMAL" and fields["uuid"] == "11111111-2222-3333-4444-555555555555"
    for wrong in ("", "{", "[]", json.dumps({**fields, "seq": "1"}), json.dumps({**fields, "task": "other"})):
        if wrong:
            with pytest.raises(UsageError), bill(config, shards=2, point={shard: wrong}.get):
                pass
    with pytest.raises(UsageError, match="a dict, not a function"):
        bill(config, shards=2, point={shard: point})  # it would be old when the shard comes back


def test_one_process_is_one_member(config: Path) -> None:
    with bill(config):
        with pytest.raises(UsageError, match="member of task billing already"), bill(config):
            pass
        with subscribe("shipping", source="orders", settings=config, follow=False) as other:
            assert other.shards
    with bill(config) as again:
        assert again.shards == (0, 1, 2, 3)


def test_callbacks_of_a_shard_come_one_after_another(config: Path) -> None:
    lock, inside, seen = threading.Lock(), set[int](), defaultdict[int, list[tuple[int, int]]](list)
    most = 0

    def callback(batch: Batch) -> None:
        nonlocal most
        with lock:
            assert batch.shard not in inside
            inside.add(batch.shard)
            most = max(most, len(inside))
        time.sleep(0.001)
        with lock:
            seen[batch.shard] += changes_of(batch)
            inside.remove(batch.shard)

    with bill(config) as stream:
        stream.run(callback, batch=5, workers=3)
    assert most > 1
    assert all(rows == sorted(rows) for rows in seen.values())
    assert sorted(change for rows in seen.values() for change in rows) == sorted(expected_changes(1, LAST))


@pytest.mark.full
def test_a_callback_that_raises(config: Path, tmp_path: Path) -> None:
    calls = 0

    def callback(batch: Batch) -> None:
        nonlocal calls
        if (13, 0) in changes_of(batch):
            calls += 1
            if calls < 3:
                raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"), bill(config, shards=2) as stream:
        stream.run(callback, batch=50)
    with bill(config, shards=2) as stream:  # the batch comes again, and once more after it raised
        stream.run(callback, batch=50, on_error="retry")
    assert calls == 3

    def refuse(batch: Batch) -> None:
        if (20, 0) in changes_of(batch):
            raise ValueError("never \udcff")

    letters = tmp_path / "dead.jsonl"
    with subscribe("shipping", source="orders", shards=2, follow=False, settings=config) as stream:
        stream.run(refuse, batch=3, on_error="dead_letter", dead_letters=letters)
        assert stream.dead == 1
    [letter] = [json.loads(line) for line in letters.read_text().splitlines()]
    assert letter["error"] == "ValueError: never \udcff"  # as of a file whose name is no UTF-8
    assert (20, 0) in [(row["seq"], row["i"]) for row in letter["rows"]]
    with subscribe("shipping", source="orders", follow=False, settings=config) as stream:
        assert stream.next_batch() is None  # all the rest went on
    assert show_letters(config) == [{"host": this_process().host, "place": str(letters), "batches": 1}]
    assert run_here(config, "status").json["sources"][0]["dead_letters"] == 1
    why = run_here(config, "why", "task:shipping").json
    assert any(str(letters) in one for one in why["evidence"]), why

    letters.write_text('{"task":"other"}\n' + 2 * '{"task":"shipping","shard":0}\n')  # as others left it
    for count in (2, 0):
        with subscribe("shipping", source="orders", follow=False, settings=config) as stream:
            stream.run(refuse, on_error="dead_letter", dead_letters=letters)
        assert [one["batches"] for one in show_letters(config)] == [count] * bool(count)
        letters.write_text("")  # somebody dealt with them


def show_letters(config: Path) -> list[dict[str, Any]]:
    tasks = {task["name"]: task for task in run_here(config, "changes", "show", "orders").json["tasks"]}
    return list(tasks["shipping"]["dead_letters"])


def test_dead_letters_that_cannot_be_written_are_told_before_a_row_is_given(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()

    def refuse(handle: int) -> None:
        if os.fstat(handle).st_rdev:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)  # as the system does of a device
    for place in (tmp_path, tmp_path / "file" / "dead.jsonl", Path(os.devnull)):
        with (
            bill(config, shards=2) as stream,
            pytest.raises(UsageError, match=f"no dead letters .* to {place}: ") as refused,
        ):
            stream.run(lambda _batch: None, on_error="dead_letter", dead_letters=place)
        assert "let dead_letters name a file" in refused.value.hint
    with bill(config, shards=2) as stream:
        assert stream.next_batch() is not None  # its points are where they were


def test_who_follows_is_given_what_comes(config: Path) -> None:
    with bill(config, start="now", follow=True) as stream:
        assert stream.next_batch(patience=0.05) is None
        fill_store(config.parent / "store", LAST + 1, LAST + 2, fence=2)
        rows: list[tuple[int, int]] = []
        while len(rows) < len(expected_changes(LAST + 1, LAST + 2)):
            batch = stream.next_batch(patience=5)
            assert batch is not None
            rows += changes_of(batch)
    assert set(rows) == expected_changes(LAST + 1, LAST + 2)


@pytest.mark.full
def test_it_needs_neither_airflow_nor_spark() -> None:
    program = (
        "import sys; from tidemark.changes import subscribe; import tidemark.changes.delivery.stream;"
        "print([name for name in sys.modules if name.partition('.')[0] in ('airflow', 'pyspark', 'paramiko')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_day_is_its_begin_and_no_gtid_of_mariadb(tmp_path: Path) -> None:
    """As a GTID of the domain 2026 it was the store's end: whoever began there had no row of the day."""
    with Writer(Disk(tmp_path / "store"), 1) as writer:
        for number in range(1, 49):
            made = make_transaction(number, 1, minutes=60)
            writer.append(Transaction(made.info, f"0-1-{number}", number, made.records), f"0-1-{number}")
    config = tmp_path / "tidemark.toml"
    config.write_text('[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n')

    def read_from(start: str) -> list[tuple[int, int]]:
        with subscribe(start.replace(":", "_"), source="orders", follow=False, settings=config, start=start) as stream:
            return sorted(change for batch in stream for change in changes_of(batch))

    day = read_from("2026-09-22")
    assert day == read_from("2026-09-22T00:00") and 0 < len(day) < 48
    assert read_from("0-1-40") == [(number, 0) for number in range(40, 49)]
    with pytest.raises(UsageError, match="is no GTID as the store has them: 0-1-48") as refused:
        read_from("11111111-2222-3333-4444-555555555555:7")
    assert "seq:N" in refused.value.hint


@pytest.mark.full
def test_rows_come_without_pandas(config: Path) -> None:
    """Arrow imports pandas where it is given lists or asked for numpy's arrays: 0.3 s of each consumer."""
    program = (
        "import sys; from tidemark.changes import subscribe\n"
        f"with subscribe('billing', source='orders', shards=4, follow=False, settings={str(config)!r}) as stream:\n"
        "    rows = 0\n"
        "    for batch in stream:\n"
        "        rows += len(batch.op) + batch.before.null_count + batch.after.null_count\n"
        "        batch.done()\n"
        "print(rows > 0, 'pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True False", done.stderr
