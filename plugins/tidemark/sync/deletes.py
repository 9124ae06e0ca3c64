"""The step transfer_deletes: which vanished files this run tells the receiver.

They travel in the manifest of the part that ends their partition, never before the files that cover them. Held drops
of a run that the operator approved before its first landing are let go here; later the next run does it.
Source: seed 000 "Sync data file" 2 to 5, DESIGN §3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy.engine import Connection

from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import DROP, HELD, PLANNED, SUPERSEDE
from tidemark.sync.work import Work


def transfer_deletes(work: Work) -> Mapping[str, int]:
    """{"dropped", "superseded": to be told, "held": waiting for approve}."""
    with work.recording() as connection:
        _let_go(connection, work)
        counted = run_rows.count_items(connection, work.run_id)
    return {
        "dropped": counted.get((DROP, PLANNED), 0),
        "superseded": counted.get((SUPERSEDE, PLANNED), 0),
        "held": counted.get((DROP, HELD), 0),
    }


def _let_go(connection: Connection, work: Work) -> None:
    link = link_rows.get_link(connection, work.link.name)
    run = run_rows.get_run(connection, work.run_id)
    if link is None or run is None or run.inventory is None or link.approved_run != work.run_id:
        return
    if run_rows.landings(connection, work.link.name, run_id=work.run_id):
        return  # the inventory change is told already
    held = frozenset(i.path for i in run_rows.items(connection, work.run_id, HELD) if i.action == DROP)
    inventory = json.loads(run.inventory)
    away = held - link_rows.held_paths(connection, work.link.name, sorted(held))  # not told as gone yet
    inventory["removed"] = sorted({*inventory["removed"], *held})
    inventory["count"] -= len(away)
    inventory["held"] = []
    inventory["approved"] = True
    run_rows.set_items(connection, work.run_id, [{"path": path, "state": PLANNED, "reason": None} for path in sorted(held)])
    run_rows.set_run(connection, work.run_id, inventory=json.dumps(inventory, ensure_ascii=False), pending=0)
    link_rows.set_link(connection, work.link.name, guard=None, guard_run=None)
