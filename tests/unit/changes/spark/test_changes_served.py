"""Frames and streams of the format `tidemark_changes` by readers. Those by the store's folder are the measure."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.delivery_worlds import ORDERS, START, make_transaction
from tests.reader_worlds import TOKEN, RunningReader, flip_blocks
from tests.served_changes import make_certificate
from tests.services.processes import soon
from tests.spark_frames import LAST, Options, Stream, copy_of, fill, make_source, read_frame, read_parts, served, shared
from tidemark.changes.delivery.http.client import fetched, spans
from tidemark.changes.delivery.http.client.spans import Turns
from tidemark.changes.delivery.http.sessions import Sessions
from tidemark.changes.spark import places as of_spark
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Mark, Rows
from tidemark.changes.store.retain import Rules, retain
from tidemark.changes.store.write import Limits
from tidemark.errors import (
    BinlogGapError,
    CorruptionError,
    NotFoundError,
    PermanentError,
    RetryableError,
    UnreachableError,
    UsageError,
)

# frames


@pytest.mark.parametrize(
    "words",
    [
        {"tables": "shop.orders", "rowsPerPartition": 40},
        {"tables": "shop.notes", "shards": 3},
        {"tables": "shop.*", "controls": "true", "rowsPerPartition": 25},
        {"shards": 8, "controls": "true"},
        {"shards": 11, "rowsPerPartition": 60},
        {"from_": "seq:10", "to": "seq:31"},
        {"from_": "2026-09-21T00:20:00Z", "to": "latest", "tables": "shop.orders"},
        {"from_": f"seq:{LAST + 1}"},
        {"from_": "seq:20", "to": "seq:10"},
    ],
    ids=str,
)
def test_frames_are_those_of_the_folder(reader: RunningReader, words: Options) -> None:
    parts = read_parts(**served(reader), **words)
    assert parts == read_parts(**shared(reader), **words)
    rows = [row for part in parts for row in part]
    assert bool(rows) == (words not in ({"from_": f"seq:{LAST + 1}"}, {"from_": "seq:20", "to": "seq:10"}))
    assert not rows or rows[0]["file"] == "mysql-bin.000009"


def test_a_transaction_that_is_in_several_blocks_is_one(tmp_path: Path) -> None:
    running = RunningReader(tmp_path / "reader", limits=Limits(block_bytes=6_000, block_seconds=1e9, group_seconds=1e9))
    (tmp_path / "token").write_text(TOKEN)
    large = make_transaction(2, 5000)
    large = large._replace(info=large.info._replace(file=9, offset=20))
    [whole, *_] = large.records
    assert isinstance(whole, Rows)
    parts = [Rows(ORDERS, whole.whole, start, 500) for start in range(0, 5000, 500)]
    fill(running, 1, 1)
    running.writer.append_large(large._replace(records=()), [*parts, Mark("commit", "xid")], running._known)
    running.writer.sync()
    running.start()
    rows = [len(part) for part in read_parts(**served(running), rowsPerPartition=1)]
    running.close()
    assert rows == [1, 5000]


def test_parts_that_are_read_leave_no_session(reader: RunningReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has 128 sessions of a task at most, which end when they are idle for 90 seconds."""
    opened: list[Sessions] = []
    begin = Sessions.begin

    def note(self: Sessions, task: str, source: str) -> object:
        opened.append(self)
        return begin(self, task, source)

    monkeypatch.setattr(Sessions, "begin", note)
    assert len(read_parts(**served(reader), rowsPerPartition=5)) == len(opened) > 4
    assert soon(lambda: not len(opened[0])), "a part is told before its session ends"


# streams


def test_a_stream_has_the_batches_of_the_folder(reader: RunningReader) -> None:
    words = {"tables": "shop.*", "rowsPerBatch": 25}
    mine, other = Stream(**served(reader), **words), Stream(**shared(reader), **words)
    assert mine.offset == other.offset
    batches = mine.read_all()
    assert len(batches) > 5 and batches == other.read_all() and mine.offset == other.offset
    fill(reader, LAST + 1, LAST + 5)
    assert mine.read_all() == other.read_all() != []


def test_a_checkpoint_of_the_folder_goes_on_at_a_reader(reader: RunningReader) -> None:
    words = {"tables": "shop.*", "rowsPerBatch": 40}
    whole = [row for batch in Stream(**shared(reader), **words).read_all() for row in batch]
    stream, found = Stream(**shared(reader), **words), []
    for place in (shared(reader), served(reader), shared(reader), served(reader)):
        stream = Stream(stream.offset, **place, **words)
        found += stream.read_batch() or []
        stream.reader.stop()
    assert found == whole[: len(found)] and len(found) > 120


def test_available_now_ends_where_the_store_ended_then(reader: RunningReader) -> None:
    stream = Stream(**served(reader), rowsPerBatch=50)
    stream.reader.prepareForTriggerAvailableNow()
    fill(reader, LAST + 1, LAST + 4)
    assert max(row["seq"] for batch in stream.read_all() for row in batch) == LAST
    assert stream.reader.reportLatestOffset()["seq"] == LAST + 5
    assert stream.reader.latestOffset(json.loads(stream.offset), ReadMaxRows(1)) == json.loads(stream.offset)


def test_a_frame_begins_no_task(reader: RunningReader) -> None:
    assert read_frame(**served(reader))
    assert reader.points() == {}


# certificates


def test_by_tls_with_the_certificate_that_vouches_and_no_other(tmp_path: Path) -> None:
    for name in ("reader", "other"):
        (tmp_path / name).mkdir()
        make_certificate(tmp_path / name)
    running = RunningReader(tmp_path / "reader", has_tls=True)
    (tmp_path / "token").write_text(TOKEN)
    fill(running, 1, LAST)
    running.start()
    assert running.url.startswith("https://")
    words = served(running, ca=tmp_path / "reader" / "c.pem")
    assert read_parts(**words) == read_parts(**shared(running))
    stream = Stream(**words)
    assert stream.read_batch()
    stream.reader.commit(json.loads(stream.offset))
    stream.reader.stop()
    other = str(tmp_path / "other" / "c.pem")
    for ca, said in ((other, f"ca {other} does not vouch for"), ("", "no ca is given, and this machine does not know")):
        wrong = rf'{said} the certificate of the reader https://.*hint: ca names .*\.option\("ca", FILE\)'
        with pytest.raises(PermanentError, match=wrong):
            read_frame(**{**words, "ca": ca})
    (tmp_path / "none").write_text("no certificate")
    with pytest.raises(UsageError, match=r"the certificate .*none cannot be read"):
        read_frame(**{**words, "ca": tmp_path / "none"})
    running.close()


# readers that die, or have something else


def test_another_address_goes_on_where_one_dies(reader: RunningReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans.random, "shuffle", lambda _readers: None)
    monkeypatch.setattr(fetched, "SPAN_BYTES", 1)  # a block at a time
    whole = read_parts(**shared(reader), shards=2)
    copy, count = copy_of(reader, "copy"), [0]

    def spoil_third(path: str, body: bytes) -> bytes | None:
        count[0] += path == "/v1/fetchMessages"
        return flip_blocks(path, body) if count[0] >= 3 else body

    copy.alter = spoil_third
    copy.start()
    assert read_parts(**served(copy, reader), shards=2) == whole and count[0] >= 3
    reader.kill()
    copy.kill()
    copy.alter = None
    copy.start()
    assert read_parts(**served(reader, copy), shards=2) == whole
    copy.close()


def test_a_reader_that_comes_back_is_waited_for(reader: RunningReader, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(**served(reader))
    planned = stream.plan_batch()
    whole = stream.read_parts(planned)
    monkeypatch.setattr(of_spark, "PATIENCE_SECONDS", 20)
    reader.kill()
    came_back: list[float] = []
    sleep = spans.time.sleep

    def come_back(seconds: float) -> None:
        came_back.append(seconds)
        if len(came_back) == 3:
            reader.start()
        sleep(seconds)

    monkeypatch.setattr(Turns.__init__, "__kwdefaults__", {**(Turns.__init__.__kwdefaults__ or {}), "sleep": come_back})
    assert stream.read_parts(planned) == whole and len(came_back) >= 3


def test_a_reader_that_stays_away_is_told(reader: RunningReader) -> None:
    stream = Stream(**served(reader))
    planned = stream.plan_batch()
    reader.kill()
    for act in (lambda: stream.read_parts(planned), lambda: read_frame(**served(reader))):
        with pytest.raises(UnreachableError, match=f"the reader {reader.url} does not answer"):
            act()


def test_another_store_behind_the_address_is_refused(reader: RunningReader) -> None:
    """Planned at one store; then the address has another one, with the same numbers."""
    stream = Stream(**served(reader), rowsPerBatch=30)
    stream.read_batch()
    planned = stream.plan_batch()
    other = RunningReader(reader.folder.parent / "other", file=8, has_gtids=False)
    fill(other, 1, LAST)
    reader.kill()
    other.port = reader.port
    other.start()
    with pytest.raises(PermanentError, match=r"another transaction before seq:\d+ than the query was planned with.*hint: "):
        stream.read_parts(planned)
    kept = stream.offset
    with pytest.raises(RetryableError, match=r"is ahead of the store.*hint: .* give a reader of the store that was read"):
        Stream(kept, **served(other)).read_batch()
    assert json.loads(kept)["gtids"]
    unnamed = json.dumps(json.loads(kept) | {"gtids": ""})
    with pytest.raises(PermanentError, match=r"OTHER_SERVER.*hint: give the store that it read; begin a new checkpoint"):
        Stream(unnamed, **served(other)).read_batch()
    other.close()


def test_a_checkpoint_of_another_source_is_refused(reader: RunningReader) -> None:
    kept = Stream(**served(reader)).reader.initialOffset() | {"source": "billing"}
    with pytest.raises(PermanentError, match=r"of source billing, .* wanted are source orders"):
        Stream(json.dumps(kept), **served(reader)).read_batch()
    with pytest.raises(NotFoundError, match=r"NO_SOURCE.*hint: give a reader of this source: \./tidemark changes show"):
        read_frame(**{**served(reader), "source": "billing"})


def test_a_point_that_retention_overran_is_told(tmp_path: Path, reader: RunningReader) -> None:
    first, passed = Stream(**served(reader), rowsPerBatch=10), Stream(**served(reader), from_="seq:2", rowsPerBatch=0)
    planned = first.plan_batch()
    first.reader.stop()
    passed.read_all()
    passed.reader.stop()
    fill(reader, LAST + 1, 300)
    assert retain(Disk(reader.disk.root), Rules(hours=4), START / 1e6 + 300 * 60).retired
    begun = Stream(**served(reader)).offset
    with pytest.raises(BinlogGapError, match=r"LESS_THAN_MIN.*does not have any more.*hint: begin a new checkpointLocation"):
        Stream(first.offset, **served(reader)).read_batch()
    with pytest.raises(BinlogGapError, match=r"LESS_THAN_MIN.*hint: raise retain_bytes"):
        first.read_parts(planned)
    with pytest.raises(NotFoundError, match=r"the store begins after that.*hint: \.option\(\"from\", \"earliest\"\)"):
        read_frame(**served(reader), from_="seq:2")
    again = Stream(passed.offset, **served(reader), from_="seq:2")  # it stands behind what is gone
    assert {row["seq"] for batch in again.read_all() for row in batch} <= set(range(LAST + 1, 301))
    assert json.loads(begun)["seq"] > 1


# tokens and options


@pytest.mark.parametrize(
    ("token", "task", "said"),
    [
        ("no-token-of-this-server", "billing", r"401: UNAUTHORIZED.*hint: give a token that is a line `TOKEN TASK…` of"),
        (TOKEN, "mail", r"403: FORBIDDEN.*hint: give the token of this task"),
        ("", "billing", "token is empty"),
    ],
)
def test_a_token_that_is_wrong_is_told(reader: RunningReader, token: str, task: str, said: str) -> None:
    stream = Stream(**served(reader))
    planned = stream.plan_batch()
    (reader.folder.parent / "token").write_text(token)
    acts: list[Callable[[], object]] = [lambda: read_frame(**{**served(reader), "task": task})]
    acts += [] if task == "mail" else [lambda: stream.read_parts(planned), stream.read_batch]
    for act in acts:
        with pytest.raises((PermanentError, UsageError), match=said) as told:
            act()
        assert not token or token not in str(told.value)


def test_the_token_is_in_nothing_that_is_sent_or_kept(reader: RunningReader) -> None:
    source = make_source(**served(reader))
    schema = source.schema()
    frame, stream = source.reader(schema), Stream(**served(reader))
    planned = stream.plan_batch() or b""
    sent = [pickle.dumps(one) for one in (source, frame, frame.partitions(), stream.reader)]
    assert all(TOKEN.encode() not in data for data in [*sent, planned, stream.offset.encode()])
    assert stream.read_parts(planned)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"task": ""}, "url needs task, too"),
        ({"source": ""}, "url needs source, too"),
        ({"tokenFile": ""}, "url needs tokenFile, too"),
        ({"store": "/data"}, "both url and store"),
        ({"path": "tidemark.toml"}, "both url and path"),
        ({"url": ""}, "tokenFile is for readers"),
        ({"url": " , "}, "url names no reader"),
        ({"url": "ftp://reader"}, "is no address of a reader"),
        ({"tokenFile": "/nowhere/token"}, "the token cannot be read"),
        ({"ca": "/nowhere/ca.pem", "url": "https://127.0.0.1:1"}, r"the certificate /nowhere/ca\.pem cannot be read"),
        ({"rowsPerPartition": 0}, "rowsPerPartition"),
        ({"from": "sometime"}, "is no point of a change store"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_told(reader: RunningReader, words: Options, said: str) -> None:
    with pytest.raises((UsageError, PermanentError), match=said):
        read_frame(**{**served(reader), **words})


# readers that lie


def spoil(change: Callable[[dict[str, object]], object]) -> Callable[[str, bytes], bytes]:
    def alter(path: str, body: bytes) -> bytes:
        if path != "/v1/span":
            return body
        told = json.loads(body)
        change(told)
        return json.dumps(told).encode().ljust(len(body))

    return alter


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("points"),
        lambda told: told.update(points=[]),
        lambda told: told.update(points=told["points"][::-1]),
        lambda told: told["points"][0].update(eventIndex=3),
        lambda told: told["points"][0].update(seq="1"),
        lambda told: told.update(shapes=["[1]"]),
        lambda told: told.update(shapes=['["shop","none",[]]']),
        lambda told: told.update(logs=[{"changeId": -1, "base": "x", "digits": 1}]),
        lambda told: told.update(logs=[{"changeId": 1, "base": "x", "digits": 1 << 40}]),
        lambda told: told.update(exact=1),
    ],
)
def test_a_span_that_is_none_is_refused(reader: RunningReader, change: Callable[[dict[str, object]], object]) -> None:
    reader.kill()
    reader.alter = spoil(change)
    reader.start()
    with pytest.raises(CorruptionError, match="/v1/span with something else than it should"):
        read_frame(**served(reader), tables="shop.orders")


def test_a_copy_that_ends_earlier_is_waited_for_and_then_told(reader: RunningReader) -> None:
    copy = copy_of(reader, "copy")
    fill(reader, LAST + 1, LAST + 20)
    stream = Stream(**served(reader))
    planned = stream.plan_batch()
    reader.kill()
    copy.port = reader.port
    copy.start()
    with pytest.raises(RetryableError, match=r"ends before seq:|GREATER_THAN_MAX"):
        stream.read_parts(planned)
    copy.close()
