"""The step transfer_deletes: which vanished files this run tells the receiver.

They travel in the manifest of the part that ends their partition, never before the files that cover them. Held drops
whose run the operator approved meanwhile are let go here. Source: seed 000 "Sync data file" 2 to 5, DESIGN §3.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.ledger import link_rows, run_rows
from tidemark.ledger.run_rows import DROP, HELD, PLANNED, SUPERSEDE
from tidemark.sync.work import Work


def transfer_deletes(work: Work) -> Mapping[str, int]:
    """{"dropped", "superseded": to be told, "held": waiting for approve}."""
    with work.recording() as connection:
        link = link_rows.get_link(connection, work.link.name)
        if link is not None and link.approved_run == work.run_id:
            held = [i.path for i in run_rows.items(connection, work.run_id, HELD) if i.action == DROP]
            run_rows.set_items(connection, work.run_id, [{"path": path, "state": PLANNED, "reason": None} for path in held])
        counted = run_rows.count_items(connection, work.run_id)
    return {
        "dropped": counted.get((DROP, PLANNED), 0),
        "superseded": counted.get((SUPERSEDE, PLANNED), 0),
        "held": counted.get((DROP, HELD), 0),
    }
