"""Series in a rebuilt ledger that only the data nodes still know: of schema logs and files that the receiver has no more.

What the receiver's own papers told stands: a node's paper may be of before. Source: docs/decisions/0015.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidemark.app import App
from tidemark.cluster.nodes.schema_format import decode
from tidemark.errors import CorruptionError, SchemaTooNewError
from tidemark.flows.rebuild_nodes import Survivors
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.schemas import SeriesRow
from tidemark.receiver.load.schema import write_unknown
from tidemark.settings.model import ReceiverSettings


def write_schemas(app: App, receiver: ReceiverSettings, nodes: Survivors) -> None:
    """After the receiver's papers were replayed. A torn paper goes to the findings."""
    for database, kept in sorted(_papers(nodes).items()):
        told = []
        for paper, node in kept.items():
            try:
                told.append(decode(paper, receiver.name, f"node {node}"))
            except (CorruptionError, SchemaTooNewError) as odd:
                nodes.findings.troubles.append(f"the schema of {database} at node {node}: {odd.message}")
        # Rows of series never go: a paper of before has fewer, or fewer that are deleted. Else the one that most nodes have.
        rows = max(told, key=_age, default=[])
        if sum(_age(one) == _age(rows) for one in told) > 1:
            nodes.findings.troubles.append(f"nodes differ on the schema of {database}, none is newer: most nodes' was taken")
        with app.ledger.write() as connection:
            known = schema_rows.series_of(connection, receiver.name, [row.series for row in rows])
            keys = {(row.site_id, row.series) for row in known}
            write_unknown(connection, receiver.name, [row for row in rows if (row.site_id, row.series) not in keys])


def _age(rows: Sequence[SeriesRow]) -> tuple[int, int]:
    return len(rows), sum(row.state == "deleted" for row in rows)


def _papers(nodes: Survivors) -> dict[str, dict[bytes, str]]:
    """Database → its papers, those that most nodes have first → a node that has it."""
    count: Counter[tuple[str, bytes]] = Counter()
    where: dict[bytes, str] = {}
    for name in sorted(nodes.rows):
        for kept in nodes.stores.folder(name).schemas():
            if isinstance(kept, CorruptionError):
                nodes.findings.troubles.append(f"node {name}: {kept.message}")
                continue
            count[kept.about, kept.body] += 1
            where.setdefault(kept.body, name)
    found: dict[str, dict[bytes, str]] = {}
    for (database, paper), _ in count.most_common():
        found.setdefault(database, {})[paper] = where[paper]
    return found
