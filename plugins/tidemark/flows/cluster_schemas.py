"""The schema of slots at their nodes: before any file of a slot comes to a member, the series of its databases do.

Of a database one slot has the schema, by its name alone. Source: seed 001 "Installing a snapshot"; docs/decisions/0015.
"""

from __future__ import annotations

import contextlib

from tidemark.cluster.migration_plan import Batch
from tidemark.cluster.schema_paper import paper_of
from tidemark.cluster.slot_states import SlotEvent, SlotState, after
from tidemark.errors import UnreachableError
from tidemark.flows.cluster_moves import Moving
from tidemark.ledger import cluster_rows, group_rows, move_rows
from tidemark.ledger.group_rows import OperationRow
from tidemark.ledger.leases import check_in


def put_schemas(work: Moving, batch: Batch, member: str) -> list[OperationRow]:
    """Give a gaining member the schema of the batch's slots: they may be written to from then on. Again, it stays.

    Returns the operations on these databases that the papers carry: what the member need not be told again.
    """
    with work.app.ledger.read() as connection:
        operations = group_rows.operations(connection, work.receiver, batch.new[0], states=["committed"])
    databases = [name for slot in batch.slots for name in work.stock.schemas.get(slot, ())]
    folder = work.cluster.folder(member)
    for database in databases:
        with work.app.ledger.read() as connection:
            paper = paper_of(connection, work.receiver, database)
        folder.put_schema(database, paper)
    # CRASH WINDOW: the papers lie there, the slots are `pulling` still: put again, to the same bytes.
    with work.app.ledger.write() as connection:
        check_in(connection, work.lease)
        cluster_rows.require_epoch(connection, work.receiver, batch.epoch)
        known = move_rows.slot_states(connection, work.receiver, member)
        pulling = {
            (member, slot): after(SlotState.PULLING, SlotEvent.SCHEMA_LOADED).value
            for slot in batch.slots
            if known.get((member, slot), ("", 0))[0] == SlotState.PULLING
        }
        move_rows.put_slot_states(connection, work.receiver, pulling, batch.epoch)
    return [one for one in operations if one.kind.endswith("_database") and one.slot in batch.slots]


def drop_schemas(work: Moving, batch: Batch) -> None:
    """Who gave the slots away forgets their schema. A node that is away keeps it, which harms nobody."""
    for node in batch.deleting:
        with contextlib.suppress(UnreachableError):
            for slot in batch.slots:
                for database in work.stock.schemas.get(slot, ()):
                    work.cluster.folder(node).drop_schema(database)
