"""`changes serve` and what it cannot give: nothing is left out silently, and a point that is not exact is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.change_worlds import ORDERS
from tests.served_changes import LIMITS, UUID, append, make, rows_of, serving
from tests.wire_client import text
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Mark, Op, Record, Row, Rows, Transaction
from tidemark.changes.store.write import Writer

CONFIG = '[sources.orders]\nstore = "store"\n'


def make_of(seq: int, records: Sequence[Record]) -> Transaction:
    return Transaction(make(seq).info, f"{UUID}:{seq}", seq, (*records, Mark("commit", "xid")))


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
