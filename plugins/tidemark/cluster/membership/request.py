"""A requested change of the nodes, and what it needs to begin: the settings, the cluster, the row of a joining node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.app import App
from tidemark.cluster.nodes.cluster import node_row
from tidemark.errors import UsageError
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.settings.model import ReceiverSettings
from tidemark.stores.protocol import without_password

_MANY = 10_000  # changes that are read


@dataclass(frozen=True)
class Wanted:
    """The requested change. `kind`: add | remove | rebalance. `url`, `host_key`, `key` (a private key file): of a joining
    node, as in `[nodes.NAME]`; empty if the settings have the node. `request`: the caller's id of this request, or "". A
    repeated request with the id of a finished change is answered, not done again."""

    kind: str
    node: str = ""
    url: str = ""
    host_key: str = ""
    key: str = ""
    request: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.node}".rstrip()


def done_before(app: App, receiver: ReceiverSettings, wanted: Wanted) -> str | None:
    """Return the id of the change that already did this ("" if a rebuilt ledger does not know it); None if it is still to
    do.

    UsageError for a node of that name elsewhere, and for `init` if there are other nodes than those of the settings.
    """
    with app.ledger.read() as connection:
        if table_rows.open_change(connection, receiver.name) or not table_rows.current_epoch(connection, receiver.name):
            return None
        nodes = {row.node: row for row in table_rows.nodes_of_receiver(connection, receiver.name)}
        changes = [row for row in table_rows.newest_changes(connection, receiver.name, _MANY) if row.state == "done"]
    node = nodes.get(wanted.node)
    if wanted.kind == "init":
        other = sorted(name for name in app.settings.nodes if name not in nodes or nodes[name].state == "left")
        if other:
            raise UsageError(
                f"{receiver.name} has its nodes already, and {', '.join(other)} is none of them",
                hint=f"./tidemark cluster add {other[0]}",
                subject=receiver.name,
            )
    elif wanted.kind == "add" and node is not None and node.state == "serving":
        asked = node_row(app, receiver, wanted.node, wanted.url) if wanted.url else node
        if asked.store.rstrip("/") != node.store.rstrip("/"):
            raise UsageError(
                f"{node.node} is a node of the cluster already, at {without_password(node.store)}",
                hint="give the new one another name; ./tidemark cluster show",
                subject=node.node,
            )
    elif wanted.kind != "remove" or node is None or node.state != "left":
        return None
    return next((row.change_id for row in changes if (row.kind, row.node) == (wanted.kind, wanted.node)), "")


def joining_row(app: App, receiver: ReceiverSettings, wanted: Wanted) -> NodeRow:
    """Make the row of the joining node. If the request has no address, the one recorded with the change is used.

    UsageError without an address, or if it is the folder of the receiver or of another node.
    """
    with app.ledger.read() as connection:
        known = {row.node: row for row in table_rows.nodes_of_receiver(connection, receiver.name)}
    rows = {name: row for name, row in known.items() if row.state != "left"}
    noted = rows.get(wanted.node)
    if noted is not None and not wanted.url and wanted.node not in app.settings.nodes:
        told = (wanted.host_key or noted.host_key, wanted.key or noted.key_file)
        wanted = replace(wanted, url=noted.store, host_key=told[0], key=told[1])
    row = node_row(app, receiver, wanted.node, wanted.url, wanted.host_key, wanted.key)
    stores = {name: node.store for name, node in app.settings.nodes.items() if name not in known}
    stores |= {name: other.store for name, other in rows.items()}
    whose = {f"the folder of node {name}": store for name, store in stores.items() if name != wanted.node}
    whose["the receiver's own folder"] = receiver.store
    taken = next((words for words, store in whose.items() if store.rstrip("/") == row.store.rstrip("/")), "")
    if taken:
        raise UsageError(
            f"{row.store} is {taken}: node {wanted.node} needs one of its own",
            hint="name another folder",
            subject=wanted.node,
        )
    return row
