"""The schema of slots at their nodes: before any file of a slot comes to a member, the series of its databases do.

Of a database one slot has the schema, by its name alone. Source: seed 001 "Installing a snapshot"; docs/decisions/0015.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tidemark.cluster.migration_plan import Batch
from tidemark.cluster.schema_paper import paper_of
from tidemark.cluster.slot_states import SlotEvent, SlotState, after
from tidemark.errors import TidemarkError
from tidemark.flows.cluster_deliver import advance
from tidemark.flows.cluster_late import late_members
from tidemark.flows.cluster_moves import Moving
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.leases import check_in


def put_schemas(work: Moving, batch: Batch, member: str) -> None:
    """Give a gaining member the schema of the batch's slots: they may be written to from then on. Again, it stays."""
    databases = [name for slot in batch.slots for name in work.stock.schemas.get(slot, ())]
    folder = work.cluster.folder(member)
    for database in databases:
        with work.app.ledger.read() as connection:
            paper = paper_of(connection, work.receiver, database)
        folder.put_schema(database, paper)
    # CRASH WINDOW: the papers lie there, the slots are `pulling` still: put again, to the same bytes.
    with work.app.ledger.write() as connection:
        check_in(connection, work.lease)
        table_rows.require_epoch(connection, work.receiver, batch.epoch)
        known = move_rows.slot_states(connection, work.receiver, member)
        pulling = {
            (member, slot): after(SlotState.PULLING, SlotEvent.SCHEMA_LOADED).value
            for slot in batch.slots
            if known.get((member, slot), ("", 0))[0] == SlotState.PULLING
        }
        move_rows.put_slot_states(connection, work.receiver, pulling, batch.epoch)


def tell_databases(work: Moving) -> None:
    """Operations on databases whose slots have come: a member that got the papers with its slots is not known to have done
    them, and would be called behind. One that is away is told by the next load."""
    with work.app.ledger.read() as connection:
        late = late_members(connection, work.receiver, work.cluster.table)
    for node, rows in late.items():
        operations = [row for row in rows if row.kind.endswith("_database")]
        if not operations:
            continue
        try:
            put = _put(work, node, operations)
        except TidemarkError:  # it is away, or full: it stays behind, and the change has an end all the same
            continue
        # CRASH WINDOW: done and not noted: done again, to the same bytes.
        with work.app.ledger.write() as connection:
            check_in(connection, work.lease)
            # A load may have told more series meanwhile: of such a database this member has the paper of before.
            as_it_is = {row: paper_of(connection, work.receiver, row.subject) for row, paper in put.items() if paper}
            advance(connection, work.cluster, node, [row for row in put if put[row] == as_it_is.get(row)])


def _put(work: Moving, node: str, operations: Sequence[OperationRow]) -> dict[OperationRow, bytes | None]:
    """The paper that was put for each; None where the database is dropped."""
    papers: dict[OperationRow, bytes | None] = {}
    folder = work.cluster.folder(node)
    for row in operations:
        papers[row] = None
        if row.kind == "drop_database":
            folder.drop_schema(row.subject)
            continue
        with work.app.ledger.read() as connection:
            papers[row] = paper = paper_of(connection, work.receiver, row.subject)
        folder.put_schema(row.subject, paper)
    return papers


def drop_schemas(work: Moving, batch: Batch) -> None:
    """Who gave the slots away forgets their schema. A node that is away keeps it, which harms nobody."""
    for node in batch.deleting:
        with contextlib.suppress(TidemarkError):
            for slot in batch.slots:
                for database in work.stock.schemas.get(slot, ()):
                    work.cluster.folder(node).drop_schema(database)
