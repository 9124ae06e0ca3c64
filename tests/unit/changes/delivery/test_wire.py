"""The protocol's messages: golden bytes from fixed changes, what a client reads in them by the field list, Arrow blocks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.change_worlds import ORDERS, PEOPLE, START
from tests.wire_client import Answer, read_event
from tidemark.changes.delivery.http.events import Event, Reply, encode_checkpoint, encode_error, encode_events
from tidemark.changes.delivery.http.frames import Frame, decode_frame, decode_stretch, encode_frame
from tidemark.changes.delivery.http.schema import FIELDS, message_class, read_fields
from tidemark.changes.delivery.shards import Divider, Sharding
from tidemark.changes.store.block import Draft, encode_block
from tidemark.changes.store.layout import State
from tidemark.changes.store.model import (
    ABSENT,
    BinlogInfo,
    Ddl,
    Mark,
    Op,
    Row,
    Rows,
    SchemaChange,
    Transaction,
)
from tidemark.changes.store.read import Piece
from tidemark.errors import CorruptionError

GOLDEN = Path(__file__).parents[3] / "data" / "change_wire.json"
UUID = bytes.fromhex("c055a63d99c711eaa39c0a580a24b346")
SHARDING = Sharding(2)
NEW = (2**64 - 1, -5, 0.1, "für 你好", b"\x00\xff")
OLD = (2**64 - 1, None, 0.1, "", ABSENT)


def make_pieces() -> list[Piece]:
    """One transaction of each sort, all that a column may hold, a row whose key changes."""
    rows = [
        Row(Op.INSERT, None, NEW),
        Row(Op.UPDATE, OLD, NEW),
        Row(Op.UPDATE, NEW, (1, *NEW[1:])),
        Row(Op.DELETE, NEW, None),
    ]
    read = Rows.of(PEOPLE, [Row(Op.READ, None, ("ä",))])
    plans = [
        [SchemaChange(ORDERS), Rows.of(ORDERS, rows), read, Mark("commit", "xid")],
        [Ddl("shop", "/* by hand */ ALTER TABLE orders ADD note text")],
        [Mark("bootstrap_begin", "häuser.人")],
        [Mark("heartbeat")],
        [Mark("xa_rollback", "x-1")],
    ]
    return [
        Piece(
            seq,
            Transaction(
                BinlogInfo(1, 4_000_000_000, 68, 130_958_732 + seq, UUID, 54_839_254 + seq, 0, START + seq * 1000),
                f"c055a63d-99c7-11ea-a39c-0a580a24b346:{54_839_254 + seq}",
                seq,
                tuple(records),
            ),
        )
        for seq, records in enumerate(plans, 1)
    ]


def make_events() -> dict[int, list[Event]]:
    divided = Divider(SHARDING).divide(make_pieces())
    return {
        shard: [event for piece in pieces for events in encode_events(piece, 0, SHARDING) for event in events]
        for shard, pieces in divided.items()
    }


def make_envelopes() -> dict[str, bytes]:
    messages = {shard: [event.data for event in events] for shard, events in make_events().items()}
    latest = encode_checkpoint(make_pieces()[-1].transaction, 0)
    reply = Reply(
        messages, sum(map(len, messages.values())), [("gtidSet", "c055a63d-99c7-11ea-a39c-0a580a24b346:1-7")], latest
    )
    empty = Reply({}, 0, (), latest)
    return {
        "changes": b"".join(reply.encode()),
        "nothing": b"".join(empty.encode()),
        "error": encode_error(410, "LESS_THAN_MIN: the store begins after that"),
    }


def test_messages_are_byte_for_byte_those_of_before() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert {name: data.hex() for name, data in make_envelopes().items()} == golden["envelopes"]


def test_a_client_that_knows_the_field_list_reads_every_value() -> None:
    found = Answer(200, {}, make_envelopes()["changes"]).events
    assert sorted(found) == [0, 1]
    rows = sorted(
        (one for events in found.values() for one in events if one["table"] == "orders" and "mark" not in one["props"]),
        key=lambda one: (one["index"], one["type"]),
    )
    largest = str(2**64 - 1)
    new = {"id": largest, "paid": "-5", "rate": "0.1", "note": "für 你好", "photo": b"\x00\xff"}
    old = {"id": largest, "paid": None, "rate": "0.1", "note": "", "photo": {}}
    assert [(one["type"], one["index"], one["before"], one["after"]) for one in rows] == [
        (1, 0, {}, new),
        (2, 1, old, new),
        (1, 2, {}, {**new, "id": "1"}),
        (3, 2, new, {}),
        (3, 3, new, {}),
    ]
    inserted, deleted = rows[2]["props"], rows[3]["props"]
    assert {inserted["moved"], deleted["moved"]} == {"0", "1"}
    assert {(one["database"], one["key"], one["gtid"]) for one in rows} == {
        ("shop", "id", "c055a63d-99c7-11ea-a39c-0a580a24b346:54839255")
    }
    assert rows[1]["point"] == {
        "uuid": "c055a63d-99c7-11ea-a39c-0a580a24b346",
        "transactionId": 54_839_255,
        "eventIndex": 1,
        "serverId": 4_000_000_000 - (1 << 32),
        "binlogFile": 68,
        "binlogOffset": 130_958_733,
        "timestamp": (START + 1000) // 1000,
    }
    [read] = [one for events in found.values() for one in events if one["props"].get("op") == "R"]
    assert (read["type"], read["index"], read["table"], read["after"]) == (1, 4, "人", {"name": "ä"})
    for events in found.values():
        others = [one for one in events if one["ddl"] or "mark" in one["props"]]
        assert [(one["type"], one["props"].get("mark"), one["index"]) for one in others] == [
            (5, "schema", -1),
            (16, "commit", 5),
            (5, None, 0),
            (7, "bootstrap_begin", 0),
            (17, "heartbeat", 0),
            (14, "xa_rollback", 0),
        ]
        assert others[1]["props"]["rows"] == "6" and others[2]["sql"].endswith("note text")
        assert others[3]["comment"] == "häuser.人"


def test_a_column_that_is_set_to_null_is_updated_also_where_the_image_before_lacks_it() -> None:
    lacks = (ABSENT, ABSENT, ABSENT, ABSENT)
    rows = Rows.of(ORDERS, [Row(Op.UPDATE, (1, *lacks), (ABSENT, None, ABSENT, "x", ABSENT))])
    piece = Piece(1, Transaction(BinlogInfo(), records=(rows,)))
    [own] = Divider(Sharding(1)).divide([piece])[0]
    [[event]] = list(encode_events(own, 0, Sharding(1)))
    after = message_class("RdsEvent").FromString(event.data).rowData.after
    assert {name for name, column in after.items() if column.updated} == {"paid", "note"} and after["paid"].isNull


def test_what_changed_is_said_and_a_null_is_no_empty_text() -> None:
    """The original never says `updated`."""
    event = message_class("RdsEvent")
    [update] = [one for events in make_events().values() for one in events if event.FromString(one.data).eventType == 2]
    row = event.FromString(update.data).rowData
    assert {name: column.updated for name, column in row.after.items()} == {
        "id": False,
        "paid": True,
        "rate": False,
        "note": True,
        "photo": True,
    }
    assert (row.before["paid"].isNull, row.before["note"].isNull, row.before["note"].value) == (True, False, "")
    assert [row.after[name].sqlType for name in ("id", "rate", "note", "photo")] == [-5, 8, 12, -4]
    assert row.after["id"].isKey and row.after["id"].mysqlType == "bigint unsigned" and row.after["id"].length == 20


def test_protobuf_reads_what_is_written_without_it_and_knows_every_field() -> None:
    for data in make_envelopes().values():
        envelope = message_class("RdsEnvelope").FromString(data)
        assert not len(UnknownFieldSet(envelope))
        assert message_class("RdsEnvelope").FromString(envelope.SerializeToString(deterministic=True)) == envelope
    for events in make_events().values():
        for one in events:
            again = message_class("RdsEvent").FromString(one.data).SerializeToString()
            assert read_event(again) == read_event(one.data)
    numbers = {name: [int(one.split()[-1]) for one in fields.split(", ")] for name, fields in FIELDS.items()}
    assert numbers["RdsEnvelope"] == [1, 2, 3, 4, 5, 6, 7, 8] and numbers["Column"] == list(range(1, 11))


def test_fields_are_read_as_protobuf_reads_them_and_refused_where_it_refuses() -> None:
    envelope = make_envelopes()["changes"]
    known = message_class("RdsEnvelope").FromString(envelope)
    found = dict(read_fields(memoryview(envelope)))
    assert (found[1], found[2], found[6], bytes(found[3])) == (1, 1, known.totalEventCount, known.message)
    other = message_class("RdsMessage")(messageCount=-1, messages=[b"", b"x" * 300]).SerializeToString()
    fixed = b"\x51" + bytes(8) + b"\x55" + bytes(4)
    assert [number for number, _ in read_fields(memoryview(other + fixed))] == [1, 3, 3]
    cuts = [envelope[:end] for end in range(len(envelope))]
    for data in (*cuts, other + fixed, fixed[:-1], b"\xff" * 9, b"\x08" + b"\xff" * 10 + b"\1", b"\x0e"):
        try:
            message_class("RdsEnvelope").FromString(data)
        except DecodeError:
            with pytest.raises(ValueError, match=r"cut off|wire type"):
                list(read_fields(memoryview(data)))
        else:
            list(read_fields(memoryview(data)))


@pytest.mark.parametrize("shard", [0, 1])
def test_a_block_of_a_shard_holds_what_the_shard_has(shard: int) -> None:
    pieces = Divider(SHARDING).divide(make_pieces())[shard]
    frame = Frame("u:1-3", "u:1-8", pieces)
    assert decode_frame(encode_frame(frame)) == frame


def test_a_part_of_a_large_transaction_stays_a_part() -> None:
    rows = Rows.of(PEOPLE, [Row(Op.INSERT, None, (f"n{number}",)) for number in range(9)])
    first = Piece(4, Transaction(BinlogInfo(), "u:4", 4, (rows,)), ends=False)
    last = Piece(4, Transaction(BinlogInfo(), "u:4", 4, (rows, Mark("commit", "xid"))))
    divider = Divider(Sharding())
    for piece, begins, told in ((first, True, (9, 9)), (last, False, (18, 18))):
        frame = Frame("u:1-3", "u:1-4", divider.divide([piece])[0], begins)
        found = decode_frame(encode_frame(frame))
        assert found == frame and found.begins is begins
        assert (found.pieces[0].rows, found.pieces[0].behind) == told


def test_a_block_that_came_damaged_is_told() -> None:
    draft = Draft(State(), State(1), "", "", [make_pieces()[0].transaction])
    block = encode_block(draft, compress=True).place(0, 0)
    assert decode_stretch(block).pieces[0].transaction == make_pieces()[0].transaction
    for damaged in (block[:-1], block[:100], b"", block[:-9] + bytes([block[-9] ^ 1]) + block[-8:]):
        with pytest.raises(CorruptionError):
            decode_stretch(damaged)
    with pytest.raises(CorruptionError, match="without the number of rows"):
        decode_frame(block)
