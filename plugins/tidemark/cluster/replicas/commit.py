"""The one way in which files become visible in a cluster: record at a quorum of each group, then the ledger's transaction.

    with hold_groups(cluster) as lease:
        appended = append_files(cluster, lease, files)        # the files lie at a quorum already
        with ledger.write() as connection: …; settle_commit(connection, cluster, lease, appended)

One process commits at a time; what it is at stands in `group_log.operation` before the first record is written. If its
transaction does not come, the next commit of the group promotes a master of a new epoch, so that a late worker's
append is refused, and takes the records back. Source: docs/decisions/0024.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.members import MemberLogs
from tidemark.cluster.replicas.operation import AddFiles, records_of
from tidemark.cluster.replicas.promote import open_group
from tidemark.cluster.slots.routing import slots_of
from tidemark.errors import LeaseHeldError
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs, swap_group_log
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.receiver.catalog import CatalogFile

PATIENCE_SECONDS = 120.0  # that a commit waits for another one; a dead one's lease of this machine is free at once
_PAUSE_SECONDS = 0.05
_RECORDS_AT_ONCE = 8


@dataclass(frozen=True)
class Appended:
    """A commit whose records are at a quorum of each group. `rows`: each group's row before and after its transaction."""

    rows: tuple[tuple[GroupLogRow, GroupLogRow], ...]


@contextmanager
def hold_groups(cluster: Cluster) -> Iterator[Lease]:
    """Hold the lease under which the logs of a receiver's groups change; wait for whoever has it. LeaseHeldError."""
    leases = Leases(cluster.app.ledger, cluster.app.identity)
    name, holder = f"groups:{cluster.receiver.name}", f"commit-{uuid.uuid4().hex[:12]}"
    until = time.monotonic() + PATIENCE_SECONDS
    with ExitStack() as held:
        while True:
            try:
                lease = held.enter_context(leases.hold_lease(name, holder))
                break
            except LeaseHeldError:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_SECONDS)
        yield lease


def append_files(cluster: Cluster, lease: Lease, files: Sequence[CatalogFile]) -> Appended:
    """Append the record that adds these files to the log of each of their groups.

    NoQuorumError if a group has no master or too few members take it, PermanentError if the nodes are ahead of the ledger.
    """
    commit = str(uuid.uuid4())
    with cluster.app.ledger.read() as connection:
        known = read_group_logs(connection, cluster.receiver.name)
    opened = []
    for header, mine in _by_header(cluster, files).items():
        logs = MemberLogs(cluster, header)
        row, end = open_group(logs, known.get(header, GroupLogRow(cluster.receiver.name, header)), lease)
        doing = replace(row, operation=commit)
        opened.append((logs, row, doing, records_of(AddFiles(commit, tuple(mine)), end, row.epoch)))
    with cluster.app.ledger.write() as connection:
        assert_held(connection, lease)
        for _, row, doing, _ in opened:
            swap_group_log(connection, row, doing, cluster.app.clock())
    # CRASH WINDOW: at work by the row, the record at none, some or all members: the next commit of the group takes it back.
    rows = []
    for logs, _, doing, records in opened:
        fence = Fence(cluster.identity, doing.epoch, doing.master)
        for at in range(0, len(records), _RECORDS_AT_ONCE):
            holders = logs.append(records[at : at + _RECORDS_AT_ONCE], fence)
        position = records[-1].head.position
        after = replace(doing, settled=(position.epoch, position.version), operation="", in_step=holders)
        rows.append((doing, after))
    return Appended(tuple(rows))


def settle_commit(connection: Connection, cluster: Cluster, lease: Lease, appended: Appended) -> None:
    """Note, in the transaction that makes the files visible, that their records count. A member that lacks them is not in
    step from now on. LeaseLostError, StaleEpochError if another process has the groups by now."""
    assert_held(connection, lease)
    for before, after in appended.rows:
        swap_group_log(connection, before, after, cluster.app.clock())


def _by_header(cluster: Cluster, files: Sequence[CatalogFile]) -> dict[str, list[CatalogFile]]:
    """Return header → its files, by header. A file that touches slots of several groups is an operation of each."""
    found: dict[str, list[CatalogFile]] = {}
    for file in files:
        slots = slots_of(cluster.table, file.database, file.partition_from, file.partition_to)
        for header in dict.fromkeys(cluster.table.owners[slot] for slot in slots):
            found.setdefault(header, []).append(file)
    return dict(sorted(found.items()))
