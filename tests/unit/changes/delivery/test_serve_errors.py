"""`changes serve` and what it cannot give: nothing is left out silently, and a point that is not exact is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.change_worlds import ORDERS, PEOPLE, START
from tests.commanded import run_here
from tests.served_changes import COUNT, LIMITS, OTHERS, UUID, Served, append, expected, make, rows_of, serving
from tests.wire_client import pairs, text
from tidemark.changes.delivery.shards import Sharding
from tidemark.changes.delivery.storage_points import point_fields
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Mark, Op, Record, Row, Rows, SchemaChange, Transaction
from tidemark.changes.store.write import Writer
from tidemark.ledger.delivery import StoragePoint

CONFIG = '[sources.orders]\nstore = "store"\n'

ROWS = (Row(Op.INSERT, None, (1, 1, 0.5, "", b"")), Row(Op.INSERT, None, ("ä",)))


def make_of(seq: int, records: Sequence[Record]) -> Transaction:
    return Transaction(make(seq).info, f"{UUID}:{seq}", seq, (*records, Mark("commit", "xid")))


@pytest.mark.full
def test_what_comes_behind_a_block_that_cannot_be_given_is_not_given(tmp_path: Path) -> None:
    writer = Writer(Disk(tmp_path / "store"), 1, LIMITS)
    moved = Row(Op.UPDATE, (1, 1, 0.5, "", b""), (2, 1, 0.5, "", b""))
    append(writer, make(1))
    append(writer, make_of(2, [Rows.of(ORDERS, [moved])]))
    append(writer, make(3), make(4))
    with serving(tmp_path, CONFIG, writer) as served:
        parts = {"partitionTotal": 3, "partitionSet": [0, 1, 2], "keyChange": "refuse"}
        for _ in range(2):
            client = served.ready(partitionClusterInfo=parts)
            while (answer := client.fetch(events=1)).status == 200:
                assert {seq for events in answer.events.values() for seq, _ in rows_of(events)} <= {1}
            assert answer.status == 422 and text(answer.envelope, 5).startswith("REFUSED: transaction seq:2 changes the key")
            after = client.fetch()
            assert after.status == 409 and text(after.envelope, 5).startswith("NOT_SUBSCRIBED")
        point = {"checkpointMode": "NORMAL", "uuid": UUID, "transactionId": 3, "eventIndex": -1}
        client.subscribe(partitionClusterInfo=parts, buffaloCheckpoint=point)
        assert {seq for events in client.fetch_all().values() for seq, _ in rows_of(events)} == {3, 4}


@pytest.mark.full
def test_many_blocks_without_anything_for_a_client_are_looked_at_in_several_takes(tmp_path: Path) -> None:
    writer = Writer(Disk(tmp_path / "store"), 1, replace(LIMITS, block_bytes=1))
    for seq in range(1, 101):
        append(writer, make_of(seq, [Rows.of(PEOPLE if seq == 90 else ORDERS, [ROWS[seq == 90]])]))
    group = {"taskName": "billing", "serviceGroupName": "orders"}
    only = {**group, "databaseInfoSet": [{"databaseName": PEOPLE.database, "tableNames": ["*"]}]}
    with serving(tmp_path, CONFIG, writer) as served:
        client = served.ready(shards=1, serviceGroupInfo=only, needEndTransaction=False)
        known = []
        while not (reply := client.fetch()).events:
            assert pairs(reply.envelope, 7)["more"] == "true"
            known.append(pairs(reply.envelope, 7)["gtidSet"])
        assert known == [f"{UUID}:1-{seq}" for seq in (32, 64)] and rows_of(reply.events[0]) == [(90, 0)]
        ends = client.fetch()
        assert not ends.events and set(pairs(ends.envelope, 7)) == {"gtidSet"}
        client.subscribe(serviceGroupInfo=only, needEndTransaction=False)
        assert rows_of(client.fetch(milliseconds=20_000).events[0]) == [(90, 0)]


# points that are not exact

BETWEEN = {"binlogFile": 3, "binlogOffset": 2050}


@pytest.mark.parametrize(
    ("point", "first"),
    [
        ({"checkpointMode": "EARLIEST"}, 1),
        ({"checkpointMode": "NORMAL", "binlogFile": 3, "binlogOffset": 2150}, 22),
        ({"checkpointMode": "NORMAL", "timestamp": (START + 22_000_000) // 1000}, 22),
    ],
)
def test_an_event_index_counts_in_the_transaction_of_its_point_alone(
    served: Served, point: dict[str, Any], first: int
) -> None:
    client = served.ready(shards=1, buffaloCheckpoint={**point, "eventIndex": 10_000})
    assert rows_of(client.fetch_all()[0]) == expected(served.disk, Sharding(), first)[0]


@pytest.mark.full
def test_a_shape_behind_the_row_of_a_point_is_given(tmp_path: Path) -> None:
    writer = Writer(Disk(tmp_path / "store"), 1, LIMITS)
    append(writer, make_of(1, [Rows.of(ORDERS, [ROWS[0]]), SchemaChange(PEOPLE), Rows.of(PEOPLE, [ROWS[1]])]))
    with serving(tmp_path, CONFIG, writer) as served:
        client = served.ready(shards=1)
        row, shape, other, end = client.fetch().events[0]
        assert (row["index"], shape["props"]["mark"], other["index"], end["type"]) == (0, "schema", 1, 16)
        for event, behind in ((row, [shape, other, end]), (other, [end])):
            client.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", **event["point"]})
            assert client.fetch().events[0] == behind


def test_a_point_of_another_server_is_told(served: Served) -> None:
    client = served.client()
    for place in ({"binlogFile": 3, "binlogOffset": 2000}, {"uuid": UUID, "transactionId": 20}, BETWEEN):
        told = client.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", "eventIndex": 0, "serverId": 8, **place})
        assert told.status == 410  # no session
        client.connect()
        told = client.subscribe(buffaloCheckpoint={"checkpointMode": "NORMAL", "eventIndex": 0, "serverId": 8, **place})
        assert (told.status, told.json["code"]) == (416, "OTHER_SERVER")
        client.session = ""


@pytest.mark.full
def test_a_gtid_of_mysql_is_told_by_a_store_of_mariadb(tmp_path: Path) -> None:
    writer = Writer(Disk(tmp_path / "store"), 1, LIMITS)
    writer.append(make(1)._replace(gtid="0-1-1"), "0-1-1")
    writer.sync()
    with serving(tmp_path, CONFIG, writer) as served:
        client = served.client(buffaloCheckpoint={"checkpointMode": "NORMAL", "uuid": UUID, "transactionId": 1})
        told = client.connect()
        assert (told["serverStatus"], told["code"]) == ("UNAVAILABLE", "GREATER_THAN_MAX")


def begin_task(served: Served) -> None:
    words = ("mail", "--source", "orders", "--shards", "2", "--limit", "1", "--out", str(served.folder / "out"))
    begun = run_here(served.folder / "tidemark.toml", "changes", "consume", *words)
    assert begun.code == 0, begun


POINT = {**point_fields(StoragePoint()), "seq": 3}


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"from": "sometime"}, 400, "is no point of a change store"),
        ({"point": {"seq": 3}}, 400, "point: no storage point"),
        ({"rows": -1}, 400, "rows: a whole number"),
        ({"partRows": 1 << 70}, 400, "partRows: a whole number"),
        ({"table": 7}, 400, "table: a text is wanted"),
        ({"taskName": "secret"}, 403, "the token is for no such task"),
        ({"serviceGroupName": "none"}, 404, "no such source"),
        ({"point": {**POINT, "changeId": 9, "binlogFile": 3, "binlogOffset": 5}}, 416, "has something else there"),
        ({"point": {**POINT, "gtids": f"{UUID}:1-1000", "changeId": 1}}, 416, "is ahead of the store of this reader"),
    ],
    ids=str,
)
def test_a_span_that_cannot_be_is_told(served: Served, more: dict[str, Any], status: int, said: str) -> None:
    answer = served.client().post("/v1/span", {"taskName": "billing", "serviceGroupName": "orders", **more})
    assert (answer.status, said in answer.json["error"]) == (status, True), answer.json


def test_a_session_that_is_ended_is_none(served: Served) -> None:
    client = served.ready()
    assert client.post("/v1/endSession", {}).status == 200
    assert client.post("/v1/endSession", {}).json["code"] == "NO_SESSION"
    assert client.subscribe().status == 410


@pytest.mark.parametrize("path", ["/v1/points", "/v1/commit", "/v1/rewind"])
def test_the_names_of_other_tasks_are_not_told(served: Served, path: str) -> None:
    begin_task(served)
    point = {"uuid": UUID, "transactionId": 5, "eventIndex": 0, "versionTs": 1}
    body = {"taskName": "secret", "shard": 0, "buffaloCheckpoint": point, "to": "earliest"}
    answer = served.client(token=OTHERS).post(path, body)
    assert answer.status == 404 and b"secret" in answer.body and b"mail" not in answer.body


def test_a_commit_names_a_transaction_exactly(served: Served) -> None:
    begin_task(served)
    client = served.client(task="mail", shards=2)
    before = client.post("/v1/points", {"taskName": "mail"}).json["points"][1]

    def commit(**point: Any) -> Any:
        point = {"checkpointMode": "NORMAL", "eventIndex": 10_000, "versionTs": before["versionTs"], **point}
        return client.post("/v1/commit", {"taskName": "mail", "shard": 1, "buffaloCheckpoint": point})

    exact = {"uuid": UUID, "transactionId": 20}
    for mode in ("EARLIEST", "LATEST"):
        assert commit(**exact, checkpointMode=mode).status == 400
    assert commit(uuid=UUID).status == commit(gtidSet=f"{UUID}:1-30").status == commit(timestamp=1).status == 400
    between = commit(**BETWEEN)
    assert between.status == 400 and "seq:21" in between.json["error"]
    assert commit(**exact, serverId=8).json["code"] == "OTHER_SERVER"
    assert client.post("/v1/points", {"taskName": "mail"}).json["points"][1] == before
    assert commit(**exact, gtidSet=f"{UUID}:1-30").json["seq"] == 21
    assert commit(binlogFile=3, binlogOffset=2200).json["seq"] == 23


@pytest.mark.parametrize("index", [0, 7, 10_000])
def test_a_point_that_was_told_goes_on_exactly_behind_what_is_done(served: Served, index: int) -> None:
    """Behind a transaction that is whole, and in the middle of one: no row of it is left out or comes again."""
    begin_task(served)
    client = served.client(task="mail", shards=2)
    client.post("/v1/rewind", {"taskName": "mail", "to": "earliest", "apply": True})
    first = client.post("/v1/points", {"taskName": "mail"}).json["points"][1]
    point = {"uuid": UUID, "transactionId": COUNT, "eventIndex": index, "versionTs": first["versionTs"]}
    told = client.post("/v1/commit", {"taskName": "mail", "shard": 1, "buffaloCheckpoint": point})
    assert told.status == 200, told.body
    [_, now] = client.post("/v1/points", {"taskName": "mail"}).json["points"]
    parts = {"partitionTotal": 2, "partitionSet": [1]}
    client = served.ready(task="mail", buffaloCheckpoint=now, partitionClusterInfo=parts)
    rest = [one for one in expected(served.disk, Sharding(2))[1] if one > (COUNT, index)]
    assert rows_of(client.fetch_all()[1]) == rest
    client.subscribe(buffaloCheckpoint=first, partitionClusterInfo=parts)
    assert rows_of(client.fetch_all()[1]) == expected(served.disk, Sharding(2))[1]


def test_a_block_that_closes_over_what_was_given_gives_no_row_again(tmp_path: Path) -> None:
    writer = Writer(Disk(tmp_path / "store"), 1, replace(LIMITS, block_bytes=2_000))
    append(writer, make(1))
    with serving(tmp_path, CONFIG, writer) as served:
        client = served.ready(shards=1)
        found = rows_of(client.fetch().events[0])
        for seq in range(2, 30):
            append(writer, make(seq))
            for events in client.fetch(milliseconds=100).events.values():
                found += rows_of(events)
        assert found == expected(served.disk, Sharding())[0]
