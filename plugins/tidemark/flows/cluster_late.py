"""Which members lack operations of their groups: not by how far they are noted to have come, but by what is not there.

A member that got its slots by moving has their files before anybody notes how far it has come.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy.engine import Connection

from tidemark.cluster.deliveries import due
from tidemark.cluster.node_folder import NodeFolder
from tidemark.cluster.partition_table import PartitionTable
from tidemark.cluster.schema_paper import paper_of
from tidemark.errors import CorruptionError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import operations as operation_rows
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.receiver import catalog as catalog_rows


def late_members(connection: Connection, receiver: str, table: PartitionTable) -> dict[str, list[OperationRow]]:
    """Node → committed operations that it lacks: files it has no proved copy of, databases it was not told of.

    What a slot's move still brings is not late. Of a database only the node's folder says for sure: whoever asks there
    compares (`as_now`, `schema_digest`).
    """
    newest, applied = operation_rows.committed_versions(connection, receiver), operation_rows.applied(connection, receiver)
    states = None
    found: dict[str, list[OperationRow]] = defaultdict(list)
    for header, members in table.groups().items():
        for node in members:
            before = applied.get((header, node), 0)
            if before >= newest.get(header, 0):
                continue
            states = move_rows.slot_states(connection, receiver) if states is None else states
            waiting = due(operation_rows.operations(connection, receiver, header, before))
            here = [o for o in waiting if table.owners[o.slot] == header and (node, o.slot) not in states]
            found[node] += _missing(connection, receiver, node, here)
    return {node: rows for node, rows in found.items() if rows}


def _missing(connection: Connection, receiver: str, node: str, operations: list[OperationRow]) -> list[OperationRow]:
    files = [operation.subject for operation in operations if operation.kind == "put"]
    copies = copy_rows.copies_of(connection, receiver, files)
    known = catalog_rows.locations_in_use(connection, receiver, files)

    def lacks(operation: OperationRow) -> bool:
        if operation.kind == "put":
            proved = ((row.node, row.state, row.sha256) for row in copies.get(operation.subject, ()))
            return operation.subject in known and (node, "held", operation.sha256) not in proved
        return operation.kind.endswith("_database")

    return [operation for operation in operations if lacks(operation)]


def as_now(connection: Connection, late: Mapping[str, Sequence[OperationRow]]) -> dict[str, list[OperationRow]]:
    """With `sha256` of an operation on a database what its schema's paper has to be now, '' for none: series may have come
    since it was written down."""
    digests: dict[tuple[str, str], str] = {}

    def now(operation: OperationRow) -> OperationRow:
        if operation.kind == "put":
            return operation
        if operation.kind == "drop_database":
            return replace(operation, sha256="")
        about = operation.receiver, operation.subject
        if about not in digests:
            digests[about] = hashlib.sha256(paper_of(connection, *about)).hexdigest()
        return replace(operation, sha256=digests[about])

    return {node: [now(operation) for operation in operations] for node, operations in late.items()}


def schema_digest(folder: NodeFolder, database: str) -> str:
    """Of what lies at the node; '' where it has none, or a torn one."""
    try:
        paper = folder.schema(database)
    except CorruptionError:
        return ""
    return "" if paper is None else hashlib.sha256(paper).hexdigest()
