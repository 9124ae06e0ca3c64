"""The one way in which a cluster's catalog changes: record at a quorum of each group, then the ledger's transaction.

    with hold_groups(cluster) as lease:                        # new files lie at a quorum already
        made, change = rehearse(cluster, act)
        appended = append_change(cluster, lease, change)
        with ledger.write() as connection: act(connection); settle_commit(connection, cluster, lease, appended)

What a transaction changes is known once it has run. So it runs twice: first to see, and nothing of that stays; then, with
its records at a quorum, for good. All who change the catalog of a cluster hold the same lease, so both runs do the same.

One process commits at a time; what it is at stands in `group_log.operation` before the first record is written. If its
transaction does not come, the next commit of the group promotes a master of a new epoch, so that a late worker's
append is refused, and takes the records back. Source: docs/decisions/0024.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.record import RecordKind
from tidemark.cluster.replicas.core.roles import LogEnd
from tidemark.cluster.replicas.members import MemberLogs
from tidemark.cluster.replicas.plan import find_lacking, held_of, pieces_of
from tidemark.cluster.replicas.promote import open_group
from tidemark.cluster.replicas.records.change import Change, read_change, read_snapshot, sort_by_group
from tidemark.cluster.replicas.records.operation import Operation, records_of
from tidemark.errors import LeaseHeldError, NoQuorumError, TidemarkError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.group_logs import (
    CoverRow,
    GroupLogRow,
    put_cover,
    read_covers,
    read_group_logs,
    swap_group_log,
)
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.receiver.touched import watch_catalog

T = TypeVar("T")

PATIENCE_SECONDS = 120.0  # that a commit waits for another one; a dead one's lease of this machine is free at once
_PAUSE_SECONDS = 0.05
_RECORDS_AT_ONCE = 8


@dataclass(frozen=True)
class Appended:
    """A commit whose records are at a quorum of each group. `rows`: each group's row before and after its transaction.
    `covers`: which slots logs tell of then."""

    rows: tuple[tuple[GroupLogRow, GroupLogRow], ...] = ()
    covers: tuple[CoverRow, ...] = ()


class _RehearsedError(Exception):
    """Ends a transaction that is not to stay."""


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


def rehearse(cluster: Cluster, act: Callable[[Connection], T]) -> tuple[T, Change]:
    """Return what `act` returns and what it changes in the catalog. Nothing of it stays."""
    with suppress(_RehearsedError), cluster.app.ledger.write() as connection:
        with watch_catalog(connection) as touched:
            made = act(connection)
        change = read_change(connection, cluster.receiver.name, touched)
        raise _RehearsedError
    return made, change


def append_change(cluster: Cluster, lease: Lease, change: Change, *, also: Iterable[str] = ()) -> Appended:
    """Append the records of this change to the log of each of its groups (without a change: of `also`). A log that does not
    tell of its group's slots by the table in force gets what it lacks first. A member that lacks a file of the change does
    not count.

    NoQuorumError if a group has no master or too few members take it, PermanentError if the nodes are ahead of the ledger.
    """
    commit, receiver, table = str(uuid.uuid4()), cluster.receiver.name, cluster.table
    with cluster.app.ledger.read() as connection:
        known = read_group_logs(connection, receiver)
        covers = read_covers(connection, receiver)
        pieces = pieces_of(table, [entry.file for entry in change.files])
        copies = copy_rows.copies_of(connection, receiver, [piece.location for piece in pieces])
    lacking = find_lacking(table, pieces, held_of(copies))
    operations = sort_by_group(table, change, covers) or {header: [] for header in also}
    opened: dict[str, tuple[MemberLogs, GroupLogRow, LogEnd]] = {}
    for header in sorted(operations.keys() & set(table.ring.names)):
        logs = MemberLogs(cluster, header, lease)
        logs.require_holders(lacking.get(header, ()))
        row = known.get(header, GroupLogRow(receiver, header))
        opened[header] = (logs, *open_group(logs, row, lease, without=lacking.get(header, ())))
    covered = {}
    with cluster.app.ledger.read() as connection:
        covers = read_covers(connection, receiver)  # a log may have begun anew
        for header in opened:
            if covers.get(header, CoverRow(receiver, header)).table_epoch == table.epoch:
                continue
            mine = frozenset(slot for slot, owner in enumerate(table.owners) if owner == header)
            covered[header] = CoverRow(receiver, header, table.epoch, mine)
            before = covers[header].slots if header in covers else frozenset()
            gained, lost = mine - before, before - mine
            first = [Operation(RecordKind.LOSE_SLOT, slots=tuple(sorted(lost)), table=table.epoch)] if lost else []
            first += [read_snapshot(connection, receiver, table, gained)] if gained else []
            operations[header] = first + operations.get(header, [])
    doing = {header: replace(row, operation=commit) for header, (_, row, _) in opened.items() if operations[header]}
    with cluster.app.ledger.write() as connection:
        assert_held(connection, lease)
        for header, row in doing.items():
            swap_group_log(connection, opened[header][1], row, cluster.app.clock())
    # CRASH WINDOW: at work by the row, the record at none, some or all members: the next commit of the group takes it back.
    rows = []
    for header, row in doing.items():
        logs, _, end = opened[header]
        records = records_of(commit, operations[header], doing, end, epoch=row.epoch)
        fence = Fence(cluster.identity, row.epoch, row.master)
        for at in range(0, len(records), _RECORDS_AT_ONCE):
            holders = logs.append(records[at : at + _RECORDS_AT_ONCE], fence, without=lacking.get(header, ()))
        position = records[-1].head.position
        rows.append((row, replace(row, settled=(position.epoch, position.version), operation="", in_step=holders)))
    return Appended(tuple(rows), tuple(covered.values()))


def settle_commit(connection: Connection, cluster: Cluster, lease: Lease, appended: Appended) -> None:
    """Note, in the transaction that makes the files visible, that their records count. A member that lacks them is not in
    step from now on. The lease is free with it. LeaseLostError, StaleEpochError if another process has the groups by now."""
    assert_held(connection, lease)
    for before, after in appended.rows:
        swap_group_log(connection, before, after, cluster.app.clock())
    for cover in appended.covers:
        put_cover(connection, cover)
    Leases(cluster.app.ledger, cluster.app.identity).release_within(connection, [lease])


def record_slots(cluster: Cluster) -> None:
    """Record in the log of each group which slots it has by the table in force, with their files. What is recorded is not
    recorded again.

    Errors as `append_change`: the first one, when the other groups are done.
    """
    failed: list[TidemarkError] = []
    for header in sorted(set(cluster.table.owners)):
        with hold_groups(cluster) as lease:
            with cluster.app.ledger.read() as connection:
                cover = read_covers(connection, cluster.receiver.name).get(header)
            if cover is not None and cover.table_epoch == cluster.epoch:
                continue
            try:
                appended = append_change(cluster, lease, Change(), also=[header])
            except NoQuorumError as few:  # the other groups' logs do not wait for it
                failed.append(few)
                continue
            # CRASH WINDOW: recorded, not settled: the next commit takes it back and records it again.
            with cluster.app.ledger.write() as connection:
                table_rows.require_epoch(connection, cluster.receiver.name, cluster.epoch)
                settle_commit(connection, cluster, lease, appended)
    if failed:
        raise failed[0]
