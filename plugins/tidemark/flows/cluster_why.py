"""`why node:NAME` and `why slot:N`: gather what the ledger says, ask the node itself, hand it to `proof.why_cluster`."""

from __future__ import annotations

from collections import Counter

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import NodeStores, cluster_settings
from tidemark.cluster.replicas.catch_up import as_now, late_members, schema_digest
from tidemark.errors import NotFoundError, TidemarkError
from tidemark.flows.cluster_show import table_of, view_of
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.proof.explanation import Explanation
from tidemark.proof.why_cluster import NodeFacts, SlotFacts, explain_node, explain_slot
from tidemark.settings.model import ReceiverSettings

PARTS = ("node:", "slot:")
"""How a subject begins that is a part of the cluster."""


def explain_part(app: App, subject: str) -> Explanation:
    """`node:NAME` or `slot:N`, where the settings have a cluster. NotFoundError for one that is not there."""
    receiver = next(r for r in app.settings.receivers.values() if cluster_settings(app, r) is not None)
    kind, _, name = subject.partition(":")
    return (_node if kind == "node" else _slot)(app, receiver, name)


def _node(app: App, receiver: ReceiverSettings, name: str) -> Explanation:
    with app.ledger.read() as connection:
        view = view_of(connection, receiver.name, app.clock(), with_left=True)
        shown = next((node for node in view.nodes if node.name == name), None)
        if shown is None:
            raise _unknown(f"node:{name}", "nodes", ", ".join(node.name for node in view.nodes))
        states = move_rows.slot_states(connection, receiver.name, name)
        going = [row for row in copy_rows.copies_at(connection, receiver.name, name) if row.state == "going"]
        late = late_members(connection, receiver.name, table_of(connection, receiver.name))
        behind = as_now(connection, {name: late.get(name, [])})[name]
        row = next(row for row in table_rows.nodes(connection, receiver.name) if row.node == name)
    away, free, behind = ("", None, behind) if row.state == "left" else _asked(app, receiver, row, behind)
    return explain_node(
        NodeFacts(
            node=shown,
            epoch=view.epoch,
            change=view.change,
            away=away,
            states=Counter(state for state, _ in states.values()),
            going=(len(going), sum(row.size for row in going)),
            behind=[f"{row.kind.replace('_', ' ')} {row.subject}" for row in behind],
            free=free,
        )
    )


def _asked(
    app: App, receiver: ReceiverSettings, row: NodeRow, late: list[OperationRow]
) -> tuple[str, int | None, list[OperationRow]]:
    """Why it cannot be worked with, its free bytes, and which of these operations it lacks: of schemas its folder says."""
    with app.ledger.read() as connection:
        identity = table_rows.cluster_identity(connection, receiver.name)
    with NodeStores(app, [row]) as stores:
        try:
            folder = stores.folder(row.node)
            if row.state != "joining":
                folder.require(identity)
            lacks = [o for o in late if o.kind == "put" or schema_digest(folder, o.subject) != o.sha256]
            return "", folder.free_bytes(), lacks
        except TidemarkError as trouble:
            return trouble.message, None, late


def _slot(app: App, receiver: ReceiverSettings, name: str) -> Explanation:
    with app.ledger.read() as connection:
        view = view_of(connection, receiver.name, app.clock())
        table = table_of(connection, receiver.name)
        if not name.isdecimal() or not 0 <= int(name) < table.slots:
            raise _unknown(f"slot:{name}", "slots", f"0 to {table.slots - 1}")
        slot = int(name)
        moves = move_rows.moves(connection, receiver.name, table.epoch, open_only=True)
        move = next((one for one in moves if one.slot == slot), None)
        told = move_rows.acknowledged(connection, receiver.name, table.epoch).get(slot, frozenset())
        states = move_rows.slot_states(connection, receiver.name)
        files, held = _copy(connection, receiver.name, slot)
    return explain_slot(
        SlotFacts(
            slot=slot,
            members=table.group_of(slot),
            before=move.old if move else (),
            epoch=table.epoch,
            move=move.state if move else "",
            acknowledged=tuple(sorted(told)) if move else (),
            states={node: state for (node, at), (state, _) in states.items() if at == slot},
            done=move.bytes_done if move else 0,
            bytes=held,
            files=files,
            change=view.change,
        )
    )


def _copy(connection: Connection, receiver: str, slot: int) -> tuple[int, int]:
    """Files and bytes of one copy of a slot."""
    nodes = table_rows.nodes(connection, receiver)
    rows = [row for node in nodes for row in copy_rows.copies_at(connection, receiver, node.node, [slot])]
    sizes = {row.location: row.size for row in rows if row.state == "held"}
    return len(sizes), sum(sizes.values())


def _unknown(subject: str, what: str, known: str) -> NotFoundError:
    return NotFoundError(f"there is no {subject}; {what}: {known}", hint="./tidemark cluster show", subject=subject)
