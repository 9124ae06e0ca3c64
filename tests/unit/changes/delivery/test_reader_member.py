"""A member of a task at readers: `subscribe(url=…)`. Shards and points at one reader, and what a reader cannot do to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.commanded import run_here
from tests.delivery_worlds import LIMITS, SERVER, changes_of
from tests.reader_worlds import QUICK, TOKEN, Alter, RunningReader, flip_blocks, gtids_of, join
from tests.services.processes import soon
from tidemark.changes import subscribe
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.http.app import MOST_BODY
from tidemark.changes.delivery.http.client.readers import Address, Reader
from tidemark.changes.delivery.http.client.session import ReaderConnection
from tidemark.errors import (
    CorruptionError,
    NotFoundError,
    PermanentError,
    RetryableError,
    TidemarkError,
    UnreachableError,
    UsageError,
)
from tidemark.ledger.delivery import SinkBatch, TaskRow, write_batch

LAST = 40
EVERY = [(seq, row) for seq in range(1, LAST + 1) for row in range(3)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[RunningReader]:
    one = RunningReader(tmp_path / "one")
    one.append(range(1, LAST + 1))
    one.start()
    yield one
    one.close()


def read_all(reader: RunningReader, **more: Any) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    with join([reader], **more) as stream:
        for batch in stream:
            found += changes_of(batch)
            batch.done()
    return found


def test_every_row_comes_once_in_order_and_the_points_are_kept(reader: RunningReader) -> None:
    found: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    with join([reader]) as stream:
        for batch in stream:
            found[batch.shard] += changes_of(batch)
            assert batch.done()
    assert all(rows == sorted(rows) and rows for rows in found.values())
    assert sorted(found[0] + found[1]) == EVERY
    assert {point.seq for point in reader.points().values()} == {LAST + 1}
    assert read_all(reader, shards=None) == []


def test_what_is_not_done_comes_again(reader: RunningReader) -> None:
    with join([reader], replace(QUICK, rows=10), shards=1) as stream:
        first, second = stream.next_batch(), stream.next_batch()
        assert first and second and first.done()
    assert read_all(reader, shards=None) == EVERY[10:]


def test_callbacks_dead_letters_and_points_that_the_consumer_keeps(reader: RunningReader, tmp_path: Path) -> None:
    kept: dict[int, str] = {}
    seen: list[tuple[int, int]] = []
    lock = threading.Lock()

    def take(batch: Batch) -> None:
        if (7, 0) in changes_of(batch):
            raise ValueError("never")
        with lock:
            seen.extend(changes_of(batch))
            kept[batch.shard] = batch.point

    with join([reader]) as stream:
        stream.run(take, batch=5, workers=2, on_error="dead_letter", dead_letters=tmp_path / "dead.jsonl")
        assert stream.dead == 1
    [letter] = [json.loads(line) for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    dead = [(row["seq"], row["i"]) for row in letter["rows"]]
    assert sorted(seen + dead) == EVERY
    for shard, point in kept.items():  # in front of the ledger: they win
        kept[shard] = json.dumps({**json.loads(point)})
    assert read_all(reader, options=replace(QUICK, given=kept.get), shards=None) == []


def test_members_share_the_shards_and_a_leaver_gives_its_own(reader: RunningReader) -> None:
    options = replace(QUICK, follow=True)
    with join([reader], options, shards=4) as first:
        assert first.shards == (0, 1, 2, 3)
        with join([reader], options, shards=None, member="two") as second:
            assert soon(lambda: len(second.shards) == 2 and len(first.shards) == 2)
            assert {*first.shards} | {*second.shards} == {0, 1, 2, 3}
        assert soon(lambda: len(first.shards) == 4)
        with join([reader], options, shards=None, member="three", only=[1]) as third:
            assert third.shards == ()
            assert soon(lambda: len(first.shards) == 4)
    with join([reader], shards=None, only=[1]) as alone:
        assert alone.shards == (1,)
        assert {batch.shard for batch in alone} == {1}


def test_a_rewind_and_another_number_of_shards_are_noticed(reader: RunningReader) -> None:
    with join([reader], replace(QUICK, follow=True), shards=1) as stream:
        seen = take_rows(stream, len(EVERY))
        call = ReaderConnection(reader.url, TOKEN)
        call.ask("/v1/rewind", {"taskName": "billing", "to": f"seq:{LAST}", "apply": True})
        assert take_rows(stream, 3) == EVERY[-3:]
        assert seen == EVERY
        call.close()


@pytest.mark.full
def test_points_of_many_shards_go_to_a_reader(reader: RunningReader) -> None:
    """A member that begins at another reader brings them all in one call, and commits them in several."""
    task, shards = {"taskName": "billing", "serviceGroupName": "orders"}, 1000
    call = ReaderConnection(reader.url, TOKEN)
    told = call.ask("/v1/begin", {**task, "partitionTotal": shards, "start": f"seq:{LAST}"})
    assert len(json.dumps(told["points"])) > MOST_BODY
    call.ask("/v1/begin", {**task, "look": True, "partitionTotal": shards, "generation": 1, "points": told["points"]})
    call.close()
    asked: list[str] = []
    reader.kill()
    reader.alter = lambda path, body: asked.append(path) or body  # type: ignore[func-returns-value]
    reader.start()
    one = Reader(Address([reader.url], TOKEN), reader.url)
    row, points = TaskRow("billing", "orders", shards, "mixed", "split"), reader.points()
    assert {*one.locate(row, points)} == {*range(shards)}
    old = {shard: replace(point, version_ts=point.version_ts - shard % 2) for shard, point in points.items()}
    assert {*one.commit(row, old, "one").refused} == {*range(1, shards, 2)}
    assert (asked.count("/v1/locate"), asked.count("/v1/commit")) == (10, 10)
    one.close()


def test_after_a_rewind_of_one_shard_a_reader_that_was_away_is_gone_on_at(reader: RunningReader) -> None:
    with join([reader], replace(QUICK, follow=True)) as stream:
        take_rows(stream, len(EVERY))
        call = ReaderConnection(reader.url, TOKEN)
        call.ask("/v1/rewind", {"taskName": "billing", "to": "seq:1", "shards": [0], "apply": True})
        call.close()
        take_rows(stream, 10)
        reader.kill()
        reader.append([LAST + 1])
        reader.start()
        rest = {(LAST + 1, number) for number in range(3)}  # of both shards, which come in any order
        while rest:
            rest -= set(take_rows(stream, 1))
    assert {point.seq for point in reader.points().values()} == {LAST + 2}


def test_a_task_and_its_points_are_told_as_of_one_moment(reader: RunningReader) -> None:
    """Where a rewind comes between two looks, the points would be of a later version than their task."""
    with join([reader]) as stream:
        take_rows(stream, len(EVERY))
    call, rewind = ReaderConnection(reader.url, TOKEN), ReaderConnection(reader.url, TOKEN)
    looks: list[str] = []

    def rewind_at_the_first_look(*seen: Any) -> None:
        if "FROM change_point" in seen[2] and not looks:
            looks.append(seen[2])
            rewind.ask("/v1/rewind", {"taskName": "billing", "to": "seq:1", "apply": True})

    sa.event.listen(reader.ledger.engine, "before_cursor_execute", rewind_at_the_first_look)
    told = call.ask("/v1/points", {"taskName": "billing"})
    assert looks and {point["versionTs"] for point in told["points"]} == {told["versionTs"]}
    call.close()
    rewind.close()


def test_a_member_counts_on_its_leases_no_longer_than_they_are_valid(reader: RunningReader) -> None:
    """A reader does not renew a lease at every call: another one may take it when its time is over."""
    with join([reader], replace(QUICK, follow=True)) as stream:
        began = stream._valid_until
        assert soon(lambda: stream._valid_until > began + 0.3)
        with reader.ledger.read() as connection:
            found = connection.execute(sa.text("SELECT min(expires) FROM lease WHERE name LIKE 'task:billing/%'"))
            assert stream._valid_until <= found.scalar_one()


def take_rows(stream: Any, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        batch = stream.next_batch(patience=20)
        assert batch is not None, found
        found += changes_of(batch)
        batch.done()
    return found


def test_who_follows_is_given_what_comes_also_in_blocks_that_close_meanwhile(tmp_path: Path) -> None:
    reader = RunningReader(tmp_path, limits=replace(LIMITS, block_bytes=1000))
    reader.append([1])
    reader.start()
    with join([reader], replace(QUICK, follow=True), shards=1) as stream:
        assert take_rows(stream, 3) == EVERY[:3]
        for number in range(2, 20):  # blocks close over groups that were given already
            reader.append([number])
            assert take_rows(stream, 3) == [(number, 0), (number, 1), (number, 2)]
    reader.close()


def test_tables_are_those_of_the_task_and_another_shape_is_refused(reader: RunningReader) -> None:
    more: dict[str, Any] = {"source": "orders", "url": reader.url, "token": TOKEN, "follow": False}
    with subscribe("billing", tables=["shop.none"], shards=2, **more) as stream:
        assert list(stream) == []
    with pytest.raises(PermanentError, match="has shards 2, not 3"), subscribe("billing", shards=3, **more):
        pass
    with pytest.raises(UsageError, match="are for readers"):
        subscribe("billing", source="orders", token=TOKEN)


def test_the_command_reads_without_settings_and_store(reader: RunningReader, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    words = ("billing", "--source", "orders", "--shards", "2", "--url", reader.url, "--out", str(tmp_path / "out"))
    nowhere = tmp_path / "nowhere.toml"
    said = run_here(nowhere, "changes", "consume", *words, "--token-file", str(tmp_path / "token"))
    assert said.code == 0 and said.json["rows"] == len(EVERY), said
    lines = [json.loads(line) for file in (tmp_path / "out").iterdir() for line in file.read_text().splitlines()]
    assert sorted((line["seq"], line["i"]) for line in lines if line["k"] == "row") == EVERY
    assert run_here(nowhere, "changes", "consume", *words, "--token-file", str(tmp_path / "none")).code == 2
    assert run_here(nowhere, "changes", "consume", *words).code == 2


# what goes wrong


def test_a_wrong_token_a_source_that_is_not_there_and_no_reader_are_told(reader: RunningReader) -> None:
    with pytest.raises(PermanentError, match="UNAUTHORIZED"), join([reader], token="wrong" * 5):
        pass
    with pytest.raises(PermanentError, match="FORBIDDEN"), join([reader], token="another-token-of-the-tests"):
        pass
    more: dict[str, Any] = {"url": reader.url, "token": TOKEN}
    with pytest.raises(NotFoundError, match="NO_SOURCE"), subscribe("billing", source="others", **more):
        pass
    for url, token in (("ftp://x", TOKEN), ("reader:28332", TOKEN), (reader.url, ""), (reader.url, "a\nb")):
        with pytest.raises(UsageError):
            subscribe("billing", source="orders", url=[url], token=token).close()
    reader.kill()
    with pytest.raises(UnreachableError), join([reader]):
        pass


def test_a_reader_that_is_away_is_waited_for_and_nothing_comes_twice(reader: RunningReader) -> None:
    found: list[tuple[int, int]] = []
    with join([reader], replace(QUICK, rows=7), shards=1) as stream:
        for batch in stream:
            found += changes_of(batch)
            batch.done()
            if len(found) in (14, 63):
                reader.kill()
                reader.start()
    assert found == EVERY


def cut_blocks(path: str, body: bytes) -> bytes | None:
    return body[: len(body) // 2] if path == "/v1/fetchMessages" and len(body) > 1000 else body


def jump(path: str, body: bytes) -> bytes | None:
    if path != "/v1/locate":
        return body
    told = json.loads(body)
    return json.dumps({"starts": [{**one, "seq": one["seq"] + 5} for one in told["starts"]]}).encode()


def no_json(path: str, body: bytes) -> bytes | None:
    return b"[1, 2" if path == "/v1/hold" else body


def other_types(path: str, body: bytes) -> bytes | None:
    return json.dumps({**json.loads(body), "held": [3], "points": 7}).encode() if path == "/v1/hold" else body


def no_end(path: str, body: bytes) -> bytes | None:
    return None if path == "/v1/hold" else body


def no_end_of_blocks(path: str, body: bytes) -> bytes | None:
    return None if path == "/v1/fetchMessages" else body


def no_answer(path: str, body: bytes) -> bytes | None:
    if path == "/v1/hold":
        raise TimeoutError
    return body


def alter(path: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Alter:
    """A reader of which one answer is changed."""

    def lie(at: str, body: bytes) -> bytes | None:
        return json.dumps({**(told := json.loads(body)), **change(told)}).encode() if at == path else body

    return lie


def alter_points(told: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {"points": [{**one, **change} for one in told["points"]]}


def alter_starts(told: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {"starts": [{**one, **change} for one in told["starts"]]}


FIRST = {"seq": 1, "changeId": 0, "gtids": "", "checkpointMode": "EARLIEST"}
FORGED = {
    "an older version": alter("/v1/hold", lambda told: {"versionTs": 1, **alter_points(told, versionTs=1, **FIRST)}),
    "an older version of points": alter("/v1/hold", lambda told: alter_points(told, versionTs=1, **FIRST)),
    "a later version of points": alter("/v1/hold", lambda told: alter_points(told, versionTs=1 << 50, **FIRST)),
    "an older generation": alter("/v1/hold", lambda told: {"generation": 0, **alter_points(told, **FIRST)}),
    "more shards": alter(
        "/v1/hold", lambda told: {"partitionTotal": 2, "points": [{**told["points"][0], "shard": one} for one in (0, 1)]}
    ),
    "another task": alter("/v1/hold", lambda _told: {"taskName": "mail"}),
    "other tables": alter("/v1/hold", lambda _told: {"tables": ["shop.none"]}),
    "another hash": alter("/v1/hold", lambda _told: {"hash": "java"}),
    "a shard that is none": alter("/v1/hold", lambda told: {"held": {**told["held"], "7": 1}}),
    "a text for a fence": alter("/v1/hold", lambda _told: {"held": {"0": "1"}}),
    "no number as load": alter("/v1/hold", lambda _told: {"loadFactor": float("nan")}),
    "an endless end": alter("/v1/hold", lambda _told: {"end": {"seq": float("inf"), "newest": 1}}),
    "more that is done": alter("/v1/locate", lambda told: alter_starts(told, known=f"{SERVER}:1-30")),
    "rows that are done": alter("/v1/locate", lambda told: alter_starts(told, half=5, index=2)),
    "a session of two lines": alter("/v1/getServerInfo", lambda _told: {"session": "a\r\nb: c"}),
}
LIES = [
    cut_blocks,
    jump,
    no_answer,
    *(pytest.param(lie, id=what) for what, lie in FORGED.items()),
    *(pytest.param(lie, marks=pytest.mark.full) for lie in (no_end, no_end_of_blocks, flip_blocks, no_json, other_types)),
]


@pytest.mark.parametrize("lie", LIES)
def test_a_reader_that_lies_or_answers_half_gives_no_row_wrong_and_none_is_left_out(tmp_path: Path, lie: Any) -> None:
    """Alone it ends the member. With another beside it, all comes from that."""
    liar, honest = RunningReader(tmp_path / "liar"), RunningReader(tmp_path / "honest")
    for one in (liar, honest):
        one.append(range(1, LAST + 1))
    liar.alter = lie
    liar.start()
    with honest_points(liar), pytest.raises((CorruptionError, UnreachableError, RetryableError)):
        found = []
        with join([liar], replace(QUICK, follow=True), shards=1, timeout=0.25) as stream:
            while (batch := stream.next_batch(patience=0.8)) is not None:
                found += changes_of(batch)
            assert found == EVERY[3 : 3 + len(found)] and len(found) < len(EVERY) - 3
            raise UnreachableError("it goes on to ask")
    honest.start()
    rows: list[str] = []
    with join([liar, honest], shards=1, patience=30) as stream:
        for batch in stream:
            rows += gtids_of(batch)
            batch.done()
        assert stream.reader == honest.url
    assert len(rows) == len(set(rows)) == len(EVERY) - 3  # those came from the liar while it was honest
    liar.close()
    honest.close()


class honest_points:
    """The task stands behind its first transaction: a reader that jumps leaves something out."""

    def __init__(self, reader: RunningReader) -> None:
        alter, reader.alter = reader.alter, lambda _path, body: body
        with join([reader], replace(QUICK, rows=3), shards=1) as stream:
            batch = stream.next_batch()
            assert batch is not None
            batch.done()
        reader.alter = alter

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def test_forged_points_are_refused_and_move_nothing(reader: RunningReader) -> None:
    read_all(reader, shards=1)
    call = ReaderConnection(reader.url, TOKEN)
    [point] = call.ask("/v1/points", {"taskName": "billing"})["points"]
    assert point["seq"] == LAST + 1
    before = reader.points()
    forged: list[dict[str, Any]] = [
        {**point, "seq": LAST + 30, "gtids": point["gtids"].replace("1-40", "1-70")},
        {**point, "gtids": "no set"},
        {**point, "seq": "1"},
        {**point, "seq": -5},
        {**point, "uuid": "x"},
        {**point, "eventIndex": 1 << 70},
        {name: value for name, value in point.items() if name != "gtids"},
    ]
    for one in forged:
        for path, body in (("/v1/commit", {}), ("/v1/locate", {})):
            with pytest.raises(TidemarkError):
                call.ask(path, {"taskName": "billing", "points": [one], **body})
    told = call.ask("/v1/commit", {"taskName": "billing", "points": [{**point, "versionTs": 1}]})
    assert told["refused"] == {"0": "STALE"}
    with pytest.raises(PermanentError, match="FORBIDDEN"):
        call.ask("/v1/hold", {"taskName": "secret", "member": "one"})
    with pytest.raises(PermanentError, match="member"):
        call.ask("/v1/hold", {"taskName": "billing", "member": "a@1/b"})
    assert reader.points() == before
    call.close()


def test_the_task_of_a_sink_is_no_consumers(reader: RunningReader) -> None:
    """What a consumer said is done would never come to the sink's tables."""
    with suppress(TidemarkError), join([reader]) as stream:
        assert stream.next_batch() is not None
        with reader.ledger.write() as connection:
            write_batch(connection, "billing", SinkBatch(1, 1, 2, stream.task.version_ts))
        before = reader.points()
        for batch in stream:
            batch.done()
    assert reader.points() == before
    with pytest.raises(PermanentError, match="task billing is that of a sink: it alone takes its changes"):
        read_all(reader)
