"""Restore a partition table that is damaged in the ledger from a node: each keeps the newest in its folder."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from tidemark.app import App
from tidemark.cluster.nodes.cluster import NodeStores
from tidemark.cluster.slots.table import decode_table
from tidemark.errors import CorruptionError, TidemarkError
from tidemark.ledger import journal
from tidemark.ledger.cluster import tables as table_rows
from tidemark.settings.model import ReceiverSettings


@dataclass(frozen=True)
class LostTable:
    """Nodes' copies of the table. `whole`: node → bytes that match the ledger's digest; if that is damaged too, those that
    most nodes share. `others`: node → why it has none."""

    epoch: int
    nodes: int
    whole: Mapping[str, bytes]
    others: Mapping[str, str]


def find_lost(app: App, receiver: ReceiverSettings, stores: NodeStores) -> LostTable:
    """Ask every node for the table of the epoch in force."""
    with app.ledger.read() as connection:
        epoch = table_rows.current_epoch(connection, receiver.name)
        sha256 = _recorded_digest(connection, receiver.name, epoch)
        nodes = [row.node for row in table_rows.nodes_of_receiver(connection, receiver.name) if row.state != "left"]
    found: dict[str, bytes] = {}
    others: dict[str, str] = {}
    for node in nodes:
        try:
            found[node] = _table_at(stores, node, epoch)
        except TidemarkError as trouble:
            others[node] = trouble.message
    right = _choose_right_table(found, sha256)
    others |= {node: f"its table {epoch} is another one" for node, paper in found.items() if paper != right}
    return LostTable(epoch, len(nodes), {node: paper for node, paper in found.items() if paper == right}, others)


def restore_table(app: App, receiver: ReceiverSettings, stores: NodeStores) -> str:
    """Write the ledger's row again from a node; return its name. CorruptionError if no node has the table whole."""
    lost = find_lost(app, receiver, stores)
    if not lost.whole:
        raise CorruptionError(
            f"no node has partition table {lost.epoch} of {receiver.name} whole",
            hint="./tidemark ledger backup keeps copies of the ledger: put one back",
            subject=receiver.name,
        )
    node, paper = next(iter(sorted(lost.whole.items())))
    values = {
        "r": receiver.name,
        "e": lost.epoch,
        "paper": base64.b64encode(paper).decode(),
        "sha256": hashlib.sha256(paper).hexdigest(),
    }
    with app.ledger.write() as connection:
        table_rows.require_epoch(connection, receiver.name, lost.epoch)
        sql = "UPDATE cluster_table SET paper = :paper, sha256 = :sha256 WHERE receiver = :r AND epoch = :e"
        connection.execute(sa.text(sql), values)
        journal.record_decision(connection, "cluster restore-table", receiver.name, epoch=lost.epoch, node=node)
    return node


def _recorded_digest(connection: sa.engine.Connection, receiver: str, epoch: int) -> str:
    sql = "SELECT sha256 FROM cluster_table WHERE receiver = :r AND epoch = :e"
    return str(connection.execute(sa.text(sql), {"r": receiver, "e": epoch}).scalar_one())


def _table_at(stores: NodeStores, node: str, epoch: int) -> bytes:
    """Read a node's newest table. CorruptionError if it has none, or one of another epoch."""
    found = stores.open_folder(node).read_table()
    if found is None or found[0] != epoch:
        has = f"table {found[0]}" if found else "no table"
        raise CorruptionError(f"its folder has {has}, {epoch} is in force", subject=node)
    decode_table(found[1])
    return found[1]


def _choose_right_table(found: Mapping[str, bytes], sha256: str) -> bytes:
    """Return the bytes that match the recorded digest, or else the bytes that more than half of the nodes share, or b""."""
    papers = list(found.values())
    named = [paper for paper in papers if hashlib.sha256(paper).hexdigest() == sha256]
    if named:
        return named[0]
    shared = [paper for paper in papers if papers.count(paper) * 2 > len(papers)]
    return shared[0] if shared else b""
