"""Points of a client that tell a GTID, at a source whose GTIDs have tags: `uuid:app:3` and `uuid:3` look the same there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.change_worlds import ORDERS
from tests.served_changes import LIMITS, UUID, Served, make, serving
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Mark, Op, Row, Rows, Transaction
from tidemark.changes.store.write import Writer

STEPS = [("app:3", 3, "1:app:3"), ("2", 2, "1-2:app:3"), ("3", 3, "1-3:app:3"), ("app:4", 4, "1-3:app:3-4")]
"""Of each transaction its GTID without the UUID, the number in it, and the set with it."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    writer = Writer(Disk(tmp_path / "store"), 1, LIMITS)
    for seq, (gtid, number, known) in enumerate(STEPS, 1):
        rows = Rows.of(ORDERS, [Row(Op.INSERT, None, (seq, 1, 0.5, "", b""))])
        info = make(seq).info._replace(transaction_id=number)
        writer.append(Transaction(info, f"{UUID}:{gtid}", seq, (rows, Mark("commit", "xid"))), f"{UUID}:{known}")
    writer.sync()
    with serving(tmp_path, '[sources.orders]\nstore = "store"\n', writer) as found:
        yield found


def point_of(seq: int, **more: Any) -> dict[str, Any]:
    """The point of the end of a transaction, as its events have it."""
    info = make(seq).info
    place = {"binlogFile": info.file, "binlogOffset": info.offset}
    return {"checkpointMode": "NORMAL", "uuid": UUID, "transactionId": STEPS[seq - 1][1], "eventIndex": 1, **place, **more}


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_what_comes_behind_a_point_is_given_whole(served: Served, seq: int) -> None:
    client = served.ready(buffaloCheckpoint=point_of(seq))
    found = {event["point"]["binlogOffset"] for events in client.fetch_all().values() for event in events}
    assert found == {make(behind).info.offset for behind in range(seq + 1, len(STEPS) + 1)}


@pytest.mark.parametrize("wrong", [{"binlogFile": 0, "binlogOffset": 0}, {"binlogOffset": 150}])
def test_a_point_that_may_be_another_transaction_s_is_refused(served: Served, wrong: dict[str, int]) -> None:
    client = served.client(buffaloCheckpoint=point_of(1, **wrong))
    told = client.connect()
    assert (told["serverStatus"], told["code"]) == ("UNAVAILABLE", "OTHER_SERVER")
    assert told["hint"] == "the point as gtidSet, or with binlogFile and binlogOffset at a reader of that server"
