"""How a receiver's IoTDB stands, from the ledger alone: for `status`, and a line more where `why` explains a file."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.engine import Connection

from tidemark.ledger.receiver import iotdb as iotdb_rows
from tidemark.ledger.receiver.iotdb import Target
from tidemark.proof.explanation import Explanation
from tidemark.proof.status import TargetStatus
from tidemark.receiver.iotdb.thrift import Server
from tidemark.settings.model import ReceiverSettings


def target_status(connection: Connection, receiver: ReceiverSettings) -> TargetStatus:
    """One line for the server that a receiver names."""
    target = Target(receiver.name, Server.of(receiver.iotdb, "").name)
    states = iotdb_rows.tally(connection, target)
    held = states.get("held", 0)
    openly = (iotdb_rows.open_files, iotdb_rows.open_merged, iotdb_rows.left_files)
    waits = sum(len(find(connection, target)) for find in openly) - held
    differing = iotdb_rows.partitions(connection, target, ("differs",))
    told = tuple(f"{row.database}, partition {row.partition}: {row.reason}" for row in differing)
    return TargetStatus(receiver.name, target.server, states.get("given", 0), max(0, waits), held, told)


def at_targets(connection: Connection, answer: Explanation) -> Explanation:
    """The explanation of a file with what became of it at IoTDBs that it is also loaded into."""
    rows = iotdb_rows.of_path(connection, answer.subject) if answer.kind == "file" else []
    if not rows:
        return answer
    words = {
        "given": "has it",
        "giving": "was being given it; the next load asks what it has",
        "held": "was not given it",
        "gone": "forgot it",
    }
    told = tuple(f"IoTDB {server} {words[row.state]}" + (f": {row.reason}" if row.reason else "") for server, row in rows)
    answer = replace(answer, evidence=(*answer.evidence, *told))
    if all(row.state == "given" for _, row in rows):
        return answer
    return replace(answer, next=answer.next or "./tidemark load", final=False)
