"""The one way in which a cluster's catalog changes: record at a quorum of each group, then the ledger's transaction.

    with hold_groups(cluster) as lease:                        # new files lie at a quorum already
        made, change = dry_run_change(cluster, act)
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord, encode_stored
from tidemark.cluster.replicas.core.roles import LogEnd
from tidemark.cluster.replicas.members import MemberLogs
from tidemark.cluster.replicas.plan import find_lacking, held_of, pieces_of
from tidemark.cluster.replicas.promote import open_group
from tidemark.cluster.replicas.records.change import Change, read_change, read_snapshot, sort_by_group
from tidemark.cluster.replicas.records.fold import fold_group, join_groups, snapshot_of
from tidemark.cluster.replicas.records.operation import Operation, commit_of, is_take_back, records_of
from tidemark.cluster.slots.routing import slots_of_file
from tidemark.cluster.slots.table import decode_table
from tidemark.errors import CorruptionError, LeaseHeldError, NoQuorumError, NotFoundError, TidemarkError, UnreachableError
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
from tidemark.ledger.cluster.recoveries import is_source_pinned
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Lease, Leases, assert_held
from tidemark.ledger.receiver.touched import watch_catalog

T = TypeVar("T")

PATIENCE_SECONDS = 120.0  # that a commit waits for another one; a dead one's lease of this machine is free at once
_PAUSE_SECONDS = 0.05
_RECORDS_AT_ONCE = 8
LONG_LOG = 64 << 20  # bytes; a shorter log is kept whole
_SHRINKS = 4  # times that a log must be longer than what it tells
SNAPSHOT_SECONDS = 3600.0  # until what is before a snapshot is given up
_NONE: Mapping[str, Sequence[Operation]] = MappingProxyType({})


@dataclass(frozen=True)
class Appended:
    """A commit whose records are at a quorum of each group. `rows`: each group's row before and after its transaction.
    `covers`: which slots logs tell of then."""

    rows: tuple[tuple[GroupLogRow, GroupLogRow], ...] = ()
    covers: tuple[CoverRow, ...] = ()


class _DryRunError(Exception):
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
                lease = held.enter_context(leases.hold_lease(name, holder, lasting=False))
                break
            except LeaseHeldError:
                if time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_SECONDS)
        yield lease


def dry_run_change(cluster: Cluster, act: Callable[[Connection], T]) -> tuple[T, Change]:
    """Return what `act` returns and what it changes in the catalog. Nothing of it stays."""
    with suppress(_DryRunError), cluster.app.ledger.write() as connection:
        with watch_catalog(connection) as touched:
            made = act(connection)
        change = read_change(connection, cluster.receiver.name, touched)
        raise _DryRunError
    return made, change


def append_change(
    cluster: Cluster, lease: Lease, change: Change, *, also: Mapping[str, Sequence[Operation]] = _NONE
) -> Appended:
    """Append the records of this change to the log of each of its groups (without a change: those of `also`). A log that
    does not tell of its group's slots by the table in force gets what it lacks first. A member that lacks a file of the
    change does not count.

    NoQuorumError if a group has no master or too few members take it, PermanentError if the nodes are ahead of the ledger.
    """
    commit, receiver, table = str(uuid.uuid4()), cluster.receiver.name, cluster.table
    with cluster.app.ledger.read() as connection:
        known = read_group_logs(connection, receiver)
        covers = read_covers(connection, receiver)
        pieces = pieces_of(table, [entry.file for entry in change.files])
        copies = copy_rows.copies_of(connection, receiver, [piece.location for piece in pieces])
    lacking = find_lacking(table, pieces, held_of(copies))
    logged = covers.keys() | {header for header, row in known.items() if row.epoch}  # a rebuilt ledger has no covers yet
    operations = sort_by_group(table, change, logged) or {h: list(more) for h, more in also.items()}
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
            known_cover = covers.get(header, CoverRow(receiver, header))
            covered[header] = replace(known_cover, table_epoch=table.epoch, slots=mine)
            gained, lost = mine - _find_kept(connection, cluster, known_cover), known_cover.slots - mine
            first = [Operation(RecordKind.LOSE_SLOT, slots=tuple(sorted(lost)), table=table.epoch)] if lost else []
            if gained:
                snapshot = read_snapshot(connection, receiver, table, gained)
                again = header not in covers and opened[header][1].epoch > 1  # it lost records that others may count on
                first.append(replace(snapshot, commits=_read_last_commits(cluster, known, header)) if again else snapshot)
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


def _find_kept(connection: Connection, cluster: Cluster, cover: CoverRow) -> frozenset[int]:
    """Return the slots of which the group's log tells all: it had them by each table since. What others had meanwhile has
    files that this log does not know, also where the group is back that had it before."""
    if not cover.slots:
        return cover.slots
    papers = table_rows.tables_between(connection, cover.receiver, cover.table_epoch, cluster.epoch)
    if len(papers) < cluster.epoch - cover.table_epoch - 1:
        return frozenset()
    try:
        tables = [decode_table(paper) for paper in papers]
    except CorruptionError:
        return frozenset()
    return frozenset(slot for slot in cover.slots if all(table.owners[slot] == cover.header for table in tables))


def settle_commit(connection: Connection, cluster: Cluster, lease: Lease, appended: Appended) -> None:
    """Note, in the transaction that makes the files visible, that their records count. A member that lacks them is not in
    step from now on. The lease is free with it. LeaseLostError, StaleEpochError if another process has the groups by now."""
    assert_held(connection, lease)
    for before, after in appended.rows:
        swap_group_log(connection, before, after, cluster.app.clock())
    for cover in appended.covers:
        put_cover(connection, cover)
    Leases(cluster.app.ledger, cluster.app.identity).release_within(connection, [lease])


def retain_logs(cluster: Cluster) -> None:
    """Let logs be packed, and give up what they told before a snapshot that every member has. A log that is much longer than
    what it tells gets a snapshot: one commit that tells all of it again.

    It is given up a while later: whoever reads logs without a ledger has another group's as it was before. While a recovery
    is at work nothing is given up.
    """
    receiver, table = cluster.receiver.name, cluster.table
    with cluster.app.ledger.read() as connection:
        rows, covers = read_group_logs(connection, receiver), read_covers(connection, receiver)
        now = database_time(connection)
        pinned = is_source_pinned(connection, Leases(cluster.app.ledger, cluster.app.identity), receiver)
    for header in sorted(set(table.owners)) if not pinned else ():
        logs = MemberLogs(cluster, header)
        row, cover = rows.get(header, GroupLogRow(receiver, header)), covers.get(header, CoverRow(receiver, header))
        whole = row.active and not row.operation and set(logs.names) <= set(row.in_step)
        due = whole and now - cover.snapshot_at >= SNAPSHOT_SECONDS
        logs.seal(cover.snapshot if due else 0)
        if due and cover.table_epoch == table.epoch:
            with suppress(NoQuorumError, UnreachableError, CorruptionError):  # a later round tries again
                if logs.count_bytes(row.master) > LONG_LOG:
                    _write_snapshot(cluster, header)


def _write_snapshot(cluster: Cluster, header: str) -> None:
    receiver, table, slots = cluster.receiver.name, cluster.table, partial(slots_of_file, cluster.table)
    with hold_groups(cluster) as lease:
        with cluster.app.ledger.read() as connection:
            rows, cover = read_group_logs(connection, receiver), read_covers(connection, receiver)[header]
        logs = MemberLogs(cluster, header, lease)
        row, end = open_group(logs, rows[header], lease)
        told = fold_group(logs.read_kept(row.master), slots)
        join_groups({header: told}, slots)  # settles its last commit: nothing is at work
        if told.slots.keys() != cover.slots or cover.table_epoch != table.epoch:
            return
        operations = snapshot_of(told, table.epoch, _read_last_commits(cluster, rows, header))
        records = records_of(str(uuid.uuid4()), operations, [header], end, epoch=row.epoch)
        if logs.count_bytes(row.master) < _SHRINKS * sum(len(encode_stored(one)) for one in records):
            return
        appended = append_change(cluster, lease, Change(), also={header: operations})
        ((before, _),) = appended.rows
        with cluster.app.ledger.write() as connection:
            table_rows.require_epoch(connection, receiver, table.epoch)
            noted = replace(cover, snapshot=before.settled[1], snapshot_at=database_time(connection))
            # CRASH WINDOW: the snapshot is recorded, not settled: the next commit takes it back, a later round writes it.
            settle_commit(connection, cluster, lease, replace(appended, covers=(noted,)))


def _read_last_commits(cluster: Cluster, rows: Mapping[str, GroupLogRow], header: str) -> tuple[str, ...]:
    """Return the last commit of each other group's log, of those that are settled. Such a commit may also be of this group,
    and nobody settles it in the other log before that one's next. One that is at work there is not it: it may not come."""
    found = set()
    for other, row in rows.items():
        if other == header or not row.epoch or other not in cluster.table.ring:
            continue
        names = [row.master, *(name for name in row.in_step if name != row.master)]
        found.add(_read_last_commit(MemberLogs(cluster, other), names, row.settled[1]))
    return tuple(sorted(found - {""}))


def _read_last_commit(logs: MemberLogs, names: Sequence[str], version: int) -> str:
    """Return the last commit of a log up to a version, from the first of these members that can be read; "" for none, and if
    it was taken back: the one before it is settled then."""
    for left, name in reversed(list(enumerate(reversed(names)))):
        try:
            back, last = 0, None
            while last is None and back < version:
                back = min(version, max(16, 8 * back))
                try:
                    last = _find_last(logs.read(name, version - back + 1), version)
                except NotFoundError:  # that is more than it keeps
                    back = version
                    last = _find_last(logs.read_kept(name), version)
            return "" if last is None or is_take_back(last) else commit_of(last)
        except TidemarkError:
            if not left:
                raise
    return ""


def _find_last(records: Iterable[StoredRecord], version: int) -> StoredRecord | None:
    """Return the last record that is of a commit, up to this version."""
    last = None
    for stored in records:
        if stored.head.position.version > version:
            break
        if commit_of(stored):
            last = stored
    return last


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
                appended = append_change(cluster, lease, Change(), also={header: ()})
            except NoQuorumError as few:  # the other groups' logs do not wait for it
                failed.append(few)
                continue
            # CRASH WINDOW: recorded, not settled: the next commit takes it back and records it again.
            with cluster.app.ledger.write() as connection:
                table_rows.require_epoch(connection, cluster.receiver.name, cluster.epoch)
                settle_commit(connection, cluster, lease, appended)
    if failed:
        raise failed[0]
