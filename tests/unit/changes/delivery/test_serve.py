"""`changes serve` over a real socket: the seed's state machine, every row once, Arrow blocks, points, TLS."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.change_worlds import ORDERS, START
from tests.commanded import run_here
from tests.served_changes import (
    COUNT,
    ENDS,
    ENVIRONMENT,
    LIMITS,
    OTHERS,
    TOKEN,
    UUID,
    Served,
    append,
    expected,
    make,
    make_certificate,
    places_of,
    rows_of,
    serving,
)
from tests.wire_client import number, pairs, read_message, text
from tidemark.changes.delivery.http.client.session import ReaderClient
from tidemark.changes.delivery.http.requests import ARROW, Checkpoint, Subscription
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.store.block import HEADER_BYTES, decode_header, is_sound
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Rows
from tidemark.changes.store.read import Reader
from tidemark.changes.store.retain import Rules, retain
from tidemark.changes.store.write import Writer
from tidemark.errors import BinlogGapError, PermanentError

# the state machine


@pytest.mark.full
def test_the_states_of_the_seed_in_their_order_give_every_row_once(served: Served) -> None:
    client = served.client()
    assert client.fetch().status == 410  # PICK_SERVER
    told = client.connect()  # CONNECT
    assert (told["serverStatus"], told["address"]) == ("AVAILABLE", served.address.removeprefix("http://"))
    assert 0 <= told["loadFactor"] <= 1 and told["inboundBytes"] > 0
    early = client.fetch()
    assert early.status == 409 and text(early.envelope, 5).startswith("NOT_SUBSCRIBED") and number(early.envelope, 2) == 3
    assert client.subscribe().body == b"success"  # SUBSCRIBE
    found = client.fetch_all(events=37)  # FETCH_EVENTS
    assert {shard: rows_of(events) for shard, events in found.items()} == expected(served.disk, Sharding(3))
    ends = {shard: [one for one in events if one["type"] == 16] for shard, events in found.items()}
    for mine in ends.values():
        assert [one["point"]["transactionId"] for one in mine] == list(range(1, COUNT + 4))
    given = Counter(seq for events in found.values() for seq, _ in rows_of(events))
    assert all(int(one["props"]["rows"]) == given[one["point"]["transactionId"]] for one in ends[0])
    assert client.connect()["writerTaskList"] == ["billing"]


def test_subscribing_again_begins_anew_and_a_point_goes_on_behind_its_event(served: Served) -> None:
    client = served.ready()
    whole = client.fetch_all()
    assert not client.fetch().events
    for shard in range(3):
        rows = [one for one in whole[shard] if one["type"] in (1, 2, 3)]
        for event in (rows[len(rows) // 2], [one for one in whole[shard] if one["type"] == 16][20]):
            point = {"checkpointMode": "NORMAL", **event["point"]}
            parts = {"partitionTotal": 3, "partitionSet": [shard]}
            assert client.subscribe(buffaloCheckpoint=point, partitionClusterInfo=parts).status == 200
            place = (event["point"]["transactionId"], event["index"])
            found = client.fetch_all()
            assert list(found) == [shard]
            assert rows_of(found[shard]) == [one for one in rows_of(whole[shard]) if one > place]
            by_offset = {name: value for name, value in point.items() if name not in ("uuid", "transactionId")}
            client.subscribe(buffaloCheckpoint=by_offset, partitionClusterInfo=parts)
            assert rows_of(client.fetch_all()[shard]) == rows_of(found[shard])


@pytest.mark.full
def test_the_set_of_a_reply_says_what_comes_next_and_what_it_has_is_empty(served: Served) -> None:
    client = served.ready(shards=1)
    given: list[tuple[int, int]] = []
    while (reply := client.fetch(events=23)).events:
        given += rows_of(reply.events[0])
        other = served.client(shards=1)
        other.connect()
        other.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", "gtidSet": pairs(reply.envelope, 7)["gtidSet"]})
        again = other.fetch(events=1).events
        if again:
            last = reply.events[0][-1]["point"]["transactionId"]
            assert again[0][0]["point"]["transactionId"] == last + (reply.events[0][-1]["type"] in ENDS)
    gap = f"{UUID}:1-9:12-20:40"
    client.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", "gtidSet": gap})
    has = {*range(1, 10), *range(12, 21), 40}
    assert rows_of(client.fetch_all()[0]) == [one for one in expected(served.disk, Sharding())[0] if one[0] not in has]


def test_tables_ends_and_definitions_are_left_out_where_they_are_not_wanted(served: Served) -> None:
    group = {"taskName": "billing", "serviceGroupName": "orders"}
    only = {**group, "databaseInfoSet": [{"databaseName": "shop", "tableNames": ["ord*"]}]}
    client = served.ready(shards=1, serviceGroupInfo=only, needEndTransaction=False, needDDL=False)
    events = client.fetch_all()[0]
    assert {one["table"] for one in events} == {"orders", ""}
    assert not [one for one in events if one["ddl"] or one["type"] == 16 or one["props"].get("mark") == "schema"]
    wanted = [(piece.seq, record) for piece in Reader(served.disk).read() for record in piece.transaction.records]
    assert len(rows_of(events)) == sum(r.count for _, r in wanted if isinstance(r, Rows) and r.shape == ORDERS)


@pytest.mark.full
def test_a_long_poll_ends_with_the_next_transaction_or_with_its_time(served: Served) -> None:
    client = served.ready(shards=1, buffaloCheckpoint={"checkpointMode": "LATEST"})
    begun = time.monotonic()
    assert not client.fetch(milliseconds=300).events
    assert time.monotonic() - begun >= 0.3
    reader = subprocess.Popen(
        [sys.executable, "-c", _WAITER, served.address, TOKEN, client.session],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert reader.stdout is not None and reader.stdout.readline() == "asking\n"
    time.sleep(0.3)
    seq = served.writer.state.seq + 1
    append(served.writer, make(seq))
    assert int(reader.communicate(timeout=30)[0]) == seq


_WAITER = """
import sys
from urllib.parse import urlsplit
from tests.wire_client import Client
place = urlsplit(sys.argv[1])
client = Client(place.hostname, place.port, sys.argv[2], sys.argv[3])
print("asking", flush=True)
[[first, *_]] = client.fetch(milliseconds=20_000).events.values()
print(first["point"]["transactionId"])
"""


@pytest.mark.parametrize(
    ("point", "code"),
    [
        ({"uuid": UUID, "transactionId": 10_000, "eventIndex": 0}, "GREATER_THAN_MAX"),
        ({"binlogFile": 9, "binlogOffset": 4}, "GREATER_THAN_MAX"),
        ({"gtidSet": f"{UUID}:1-9999"}, "GREATER_THAN_MAX"),
        ({"gtidSet": "0-1-5"}, "GREATER_THAN_MAX"),
    ],
)
def test_a_point_that_the_store_does_not_have_is_told_on_which_side(
    served: Served, point: dict[str, Any], code: str
) -> None:
    client = served.client(buffaloCheckpoint={"checkpointMode": "NORMAL", **point})
    told = client.connect()
    assert (told["serverStatus"], told["code"], client.session) == ("UNAVAILABLE", code, "")
    client = served.ready()
    refused = client.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", **point})
    assert (refused.status, refused.json["code"]) == (416, code)


# codec ARROW, by the client of Tidemark


@pytest.mark.parametrize("is_undivided", [False, True])
@pytest.mark.parametrize("shards", [(0, 1, 2, 3), (1, 3)])
def test_arrow_blocks_hold_the_same_rows(served: Served, shards: tuple[int, ...], is_undivided: bool) -> None:
    wanted = Subscription(
        "billing", "orders", Sharding(4), shards, checkpoint=Checkpoint("EARLIEST"), codec=ARROW, is_undivided=is_undivided
    )
    client = ReaderClient(served.address, TOKEN, wanted)
    assert client.ask_server()["serverStatus"] == "AVAILABLE"
    client.subscribe()
    found: dict[int, list[tuple[int, int]]] = {shard: [] for shard in shards}
    ends: list[tuple[int, int]] = []
    count = 0
    while (got := client.fetch(milliseconds=0, size=5000)).frames:
        count += got.count
        for shard, frame in got.frames:
            found[shard] += places_of(frame.pieces)
            if shard == 1:
                ends += [(piece.seq, piece.rows) for piece in frame.pieces if piece.ends]
    client.close()
    rows = expected(served.disk, Sharding(4))
    assert found == {shard: rows[shard] for shard in shards}
    given = Counter(seq for places in rows.values() for seq, _ in places)
    assert ends == [(seq, given[seq]) for seq in range(1, served.writer.state.seq + 1)]
    assert count == (sum(map(len, rows.values())) if is_undivided else sum(map(len, found.values())))


@pytest.mark.full
def test_the_client_goes_on_after_a_pause_in_which_the_reader_closed_its_connection(served: Served) -> None:
    wanted = Subscription("billing", "orders", Sharding(1), (0,), checkpoint=Checkpoint("EARLIEST"), codec=ARROW)
    client = ReaderClient(served.address, TOKEN, wanted)
    client.ask_server()
    client.subscribe()
    assert client.fetch(size=1).frames
    time.sleep(5.5)
    assert client.fetch(size=1).frames
    client.close()


def test_a_block_that_fits_goes_out_as_it_is_stored(served: Served) -> None:
    client = served.ready(shards=1, codec="ARROW", undivided=True)
    sent = []
    while entries := read_message(client.fetch(size=1).envelope.get(3, [b""])[0]).get(1, []):
        for entry in map(read_message, entries):
            assert number(entry, 1) == -1
            sent += read_message(entry[2][0])[3]
    stored = b"".join(path.read_bytes() for path in sorted(served.folder.glob("store/data/*/*.data")))
    assert b"".join(sent).startswith(stored) and len(stored) > 20_000


@pytest.mark.full
def test_a_block_that_was_compressed_harder_says_so_and_is_read(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "store")
    writer = Writer(disk, 1, LIMITS)
    for hours in (0, 30):
        for _ in range(40):
            one = make(writer.state.seq + 1)
            late = one.info._replace(timestamp=one.info.timestamp + hours * 3_600_000_000)
            append(writer, one._replace(info=late))
    with serving(tmp_path, '[sources.orders]\nstore = "store"\n', writer) as served:
        wanted = Subscription(
            "billing", "orders", Sharding(), (0,), ("**",), Checkpoint("EARLIEST"), ARROW, is_undivided=True
        )
        found = []
        for task in ("billing", "mail"):
            client = ReaderClient(served.address, TOKEN, replace(wanted, task=task))
            client.ask_server()
            client.subscribe()
            pieces = []
            while got := client.fetch(milliseconds=0, size=1).frames:
                pieces += [piece for _, frame in got for piece in frame.pieces]
            rows = [(p.seq, [*one.rows()]) for p in pieces for one in p.transaction.records if isinstance(one, Rows)]
            found.append(rows)
            now = (START + 33 * 3_600_000_000) / 1e6
            done = retain(disk, Rules(hours=99, compress_hours=2), now)
            assert bool(done.compressed) == (task == "billing")
            client.close()
        assert found[0] == found[1] and found[0][-1][0] == 80
        client = served.ready(shards=1, codec="ARROW", undivided=True)
        block = read_message(client.fetch(size=1).envelope[3][0])[1][0]
        sent = read_message(read_message(block)[2][0])[3][0]
        header = decode_header(sent)
        assert header is not None and header.is_dense and is_sound(header, sent[HEADER_BYTES:])


@pytest.mark.full
def test_over_tls_and_what_retention_took_is_told_and_never_jumped_over(tmp_path: Path) -> None:
    """Of the transactions that a client has still to get, or where it wants to begin."""
    make_certificate(tmp_path)
    config = '[sources.orders]\nstore = "store"\n[changes]\ncertificate = "c.pem"\nkey = "k.pem"\n'
    disk = Disk(tmp_path / "store")
    writer = Writer(disk, 1, LIMITS)
    for hours in (0, 1, 30):
        for _ in range(40):
            one = make(writer.state.seq + 1)
            late = one.info._replace(timestamp=one.info.timestamp + hours * 3_600_000_000)
            append(writer, one._replace(info=late))
    with serving(tmp_path, config, writer) as served:
        assert served.address.startswith("https://")
        wanted = Subscription("billing", "orders", Sharding(), (0,), checkpoint=Checkpoint("EARLIEST"), codec=ARROW)
        client = ReaderClient(served.address, TOKEN, wanted, ca=str(tmp_path / "c.pem"))
        client.ask_server()
        client.subscribe()
        assert client.fetch(size=1).frames[0][1].pieces[0].seq == 1
        assert retain(disk, Rules(hours=2, grace_seconds=0), (START + 31 * 3_600_000_000) / 1e6).retired
        retain(disk, Rules(hours=2, grace_seconds=0), (START + 32 * 3_600_000_000) / 1e6)
        first, last = Reader(disk).first, 0
        assert first > 40
        point = Checkpoint(uuid=UUID, transaction_id=2)
        told = ReaderClient(
            served.address, TOKEN, replace(wanted, checkpoint=point), ca=str(tmp_path / "c.pem")
        ).ask_server()
        assert (told["serverStatus"], told["code"]) == ("UNAVAILABLE", "LESS_THAN_MIN")
        with pytest.raises(BinlogGapError, match="LESS_THAN_MIN"):
            while (got := client.fetch(milliseconds=0, size=1)).frames:
                last = got.frames[-1][1].pieces[-1].seq
                assert last < first, "it was jumped over"
        with pytest.raises(PermanentError, match="no ca is given, and this machine does not know") as caught:
            ReaderClient(served.address, TOKEN, wanted).ask_server()
        assert caught.value.hint.startswith("ca names the certificate")


# storage points


def test_points_are_told_moved_forward_alone_and_rewound(served: Served) -> None:
    config = served.folder / "tidemark.toml"
    words = ("mail", "--source", "orders", "--shards", "2", "--limit", "1", "--out", str(served.folder / "out"))
    begun = run_here(config, "changes", "consume", *words)
    assert begun.code == 0, begun
    client = served.ready(task="mail", shards=2)
    events = client.fetch_all()[1]
    told = client.post("/v1/points", {"taskName": "mail"}).json
    assert (told["partitionTotal"], told["serviceGroupName"], len(told["points"])) == (2, "orders", 2)
    version = told["points"][1]["versionTs"]

    def commit(event: dict[str, Any], version: int = version) -> Any:
        point = {"checkpointMode": "NORMAL", **event["point"], "versionTs": version}
        return client.post("/v1/commit", {"taskName": "mail", "shard": 1, "buffaloCheckpoint": point})

    middle = next(one for one in events if one["type"] == 16 and one["point"]["transactionId"] == 20)
    row = next(one for one in events if one["type"] < 4 and one["point"]["transactionId"] == COUNT and one["index"] > 30)
    assert (commit(middle).json["seq"], commit(middle).json["eventIndex"]) == (21, 0)
    assert commit(events[0]).json["seq"] == 21  # it stays
    moved = commit(row).json
    assert (moved["seq"], moved["eventIndex"], moved["gtids"]) == (COUNT, row["index"] + 1, f"{UUID}:1-{COUNT - 1}")
    shown = run_here(config, "changes", "show").json["tasks"][0]["points"][1]
    assert (shown["point"], shown["event_index"]) == (f"seq:{COUNT}", row["index"] + 1)

    asked = {"taskName": "mail", "to": "seq:5", "shards": [1]}
    preview = client.post("/v1/rewind", asked).json
    assert not preview["applied"] and preview["shards"][0]["from"] == 5 and preview["rows"] > 0
    assert client.post("/v1/points", {"taskName": "mail"}).json["points"][1]["seq"] == COUNT
    assert client.post("/v1/rewind", {**asked, "apply": True}).json["applied"]
    with sqlite3.connect(served.folder / "var" / "ledger.db") as ledger:
        assert json.loads(ledger.execute("SELECT detail FROM audit").fetchall()[-1][0])["by"] == "http"
    stale = commit(row)
    assert (stale.status, stale.json["code"]) == (409, "STALE")
    now = client.post("/v1/points", {"taskName": "mail"}).json["points"][1]
    assert now["seq"] == 5 and now["versionTs"] > version
    assert commit(middle, now["versionTs"]).json["seq"] == 21


@pytest.mark.full_after(1)
@pytest.mark.parametrize("path", ["/v1/points", "/v1/commit", "/v1/rewind"])
def test_points_of_another_task_are_not_told_nor_moved(served: Served, path: str) -> None:
    point = {"uuid": UUID, "transactionId": 5, "eventIndex": 0, "versionTs": 1}
    body = {"taskName": "billing", "shard": 0, "buffaloCheckpoint": point, "to": "earliest", "apply": True}
    answers = [served.client(token=OTHERS).post(path, {**body, "taskName": name}) for name in ("billing", "nobody")]
    assert answers[0].status == answers[1].status == 403 and answers[0].body == answers[1].body
    assert served.client().post(path, body).status == 404  # ours, and not begun
    assert served.client().post(path, {"taskName": 5}).status == 400
