"""A group gets a master that has everything, and what its predecessor left in doubt gets an outcome.

The epoch is given by compare-and-swap in the ledger; members vote; the barrier goes to a majority and a quorum; only then
is the master active (`core.epochs`). A commit that was at work is taken back: its transaction never came, or the row
would say so. Whoever works on groups holds the lease `groups:RECEIVER`. Source: seed 003 "Master election flow", "The
problem of a write that succeeds on a minority of virtual nodes"; docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from sqlalchemy.engine import Connection

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas.core.election import Forced, Restart, elect_master
from tidemark.cluster.replicas.core.epochs import Fence, Promotion, Vote, judge_promotion
from tidemark.cluster.replicas.core.quorum import has_barrier_quorum
from tidemark.cluster.replicas.core.roles import Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.deliver import doubt_copies, lacking_members
from tidemark.cluster.replicas.log import Tail
from tidemark.cluster.replicas.members import REBUILD, MemberLogs, is_put_back, read_round, read_rows
from tidemark.cluster.replicas.records.operation import barrier_behind, commit_of, is_take_back, taking_back
from tidemark.errors import CorruptionError, NoQuorumError, NotFoundError, PermanentError, RetryableError, UnreachableError
from tidemark.ledger import journal
from tidemark.ledger.cluster.group_logs import GroupLogRow, forget_cover, forget_log_readings, swap_group_log
from tidemark.ledger.leases import Lease, assert_held

_TRIES = 3


class Note(Protocol):
    """Writes why an epoch is given, in the transaction that gives it."""

    def __call__(self, connection: Connection, *, epoch: int) -> None: ...


def open_group(
    logs: MemberLogs, row: GroupLogRow, lease: Lease, *, without: Collection[str] = ()
) -> tuple[GroupLogRow, LogEnd]:
    """Return the group's row with an active master and nothing in doubt, and the end of that master's log.

    `without`: members that lack files of what is to be committed: none of them stays the master.
    NoQuorumError if no master can be had now. PermanentError if the nodes are ahead of the ledger.
    """
    if row.active and not row.operation and row.master in logs.names and row.master not in without:
        last, asked = logs.last_tail_of(row.master), Fence(logs.cluster.identity, row.epoch, row.master)
        if last is not None and last.fence == asked and last.end.position.version == row.settled[1]:
            return row, last.end  # its node compares it with what it has
        tail = logs.read_tail_of(row.master)
        if tail is not None and tail.fence is not None:
            logs.require_known(row.master, tail, row.epoch)
            if tail.end.position.version > row.settled[1]:
                raise logs.ahead_error(row.master)
            if tail.fence.epoch == row.epoch and tail.end.position.version == row.settled[1]:
                return row, tail.end
    return _promote(logs, row, lease, without)


def switch_master(logs: MemberLogs, row: GroupLogRow, lease: Lease, to: str, *, decided: bool = False) -> GroupLogRow:
    """Make the member `to` master, by a new epoch, and return the group's row. Nothing is done if it is master.
    `decided`: by somebody; that goes into the audit together with the epoch.

    RetryableError if it is not in step now, NoQuorumError and PermanentError as `open_group`.
    """
    row, _ = open_group(logs, row, lease)
    if row.master == to:
        return row
    if to not in row.in_step or to in _find_lacking(logs):
        raise _not_in_step_error(logs, to)
    note = partial(journal.record_decision, action="replica.switchover", subject=logs.header, to=to) if decided else None
    return _promote(logs, row, lease, (), to=to, note=note)[0]


def force_master(logs: MemberLogs, row: GroupLogRow, lease: Lease, forced: Forced, *, risk: str) -> GroupLogRow:
    """Make a member master though too few answer, and record the decision with its risk. What it lacks leaves the group's
    log; the next commit writes there again what the catalog has.

    UnreachableError if it does not answer any more, PermanentError as `open_group`.
    """
    logs.quorum = 1
    with logs.cluster.app.ledger.write() as connection:
        assert_held(connection, lease)
        if forced.loses_committed:
            forget_cover(connection, row.receiver, row.header)
        journal.record_decision(connection, "replica.force", row.header, master=forced.master.name, risk=risk)
    row = _give_epoch(logs, row, forced.master.name, lease, logs.read_tails())
    # CRASH WINDOW: the epoch is given, nobody may have voted for it: forced again, with a newer epoch.
    fence = Fence(logs.cluster.identity, row.epoch, row.master)
    voted = logs.vote([name for name in logs.names if name not in logs.silent], fence)
    if row.master not in voted:
        raise UnreachableError(f"node {row.master} does not answer any more", hint="run it again", subject=row.master)
    return _activate(logs, row, lease, voted[row.master].tail.end, majority=False)[0]


def require_newest(cluster: Cluster | None) -> None:
    """Raise PermanentError if a group's log goes on with what this ledger does not know: the ledger is older than the nodes.
    Who writes by the ledger asks first: an append to one group finds out for that group alone, and only then. Nothing is
    asked without a cluster.
    """
    ahead = find_ahead(cluster) if cluster is not None else {}
    if len(ahead) == 1:
        raise next(iter(ahead.values()))
    if ahead:
        raise PermanentError(
            f"groups {', '.join(ahead)} are ahead of this ledger: it was restored from an older copy, or another"
            " installation writes to these nodes",
            hint=REBUILD,
            subject=next(iter(ahead)),
        )


def find_ahead(cluster: Cluster) -> dict[str, PermanentError]:
    """Ask all nodes, and return header → why, of groups whose logs go on with what this ledger does not know."""
    before = read_rows(cluster)
    return judge_round(cluster, before, read_round(cluster, sorted(cluster.table.groups_by_header())))


def judge_round(
    cluster: Cluster, before: Mapping[str, GroupLogRow], heard: Mapping[str, tuple[MemberLogs, Mapping[str, Tail]]]
) -> dict[str, PermanentError]:
    """The same of a round that nodes answered. `before`: the ledger's rows from before it.

    Members that do not answer, or whose logs are damaged at their ends, tell nothing. A group whose row changes meanwhile is
    not ahead: somebody commits to it by this ledger.
    """
    found = {}
    for header, (logs, tails) in heard.items():
        if error := judge_ahead(logs, before.get(header, GroupLogRow(cluster.receiver.name, header)), tails):
            found[header] = error
    if not found:
        return {}
    after = read_rows(cluster)
    return {header: error for header, error in found.items() if after.get(header) == before.get(header)}


def judge_ahead(logs: MemberLogs, row: GroupLogRow, tails: Mapping[str, Tail]) -> PermanentError | None:
    """Return why a group is ahead of its row in the ledger, None if it is not. A log of another cluster tells nothing.

    A log that parted from the master's ends in an older epoch: what it has more was never committed.
    """
    for name in logs.names:
        tail = tails.get(name)
        if tail is None or tail.fence is None or tail.fence.coordinator != logs.cluster.identity:
            continue
        try:
            logs.require_known(name, tail, row.epoch)
            if tail.end.position > Position(*row.settled):
                with suppress(CorruptionError, RetryableError):  # what cannot be read there tells nothing
                    find_doubtful(logs, row, name)
        except NotFoundError:  # it gave up records that this ledger never saw
            return logs.ahead_error(name)
        except PermanentError as ahead:
            return ahead
    return None


def read_group(logs: MemberLogs, row: GroupLogRow) -> Group:
    """Return the group as it answers now, with its roles. PermanentError if the nodes are ahead of the ledger."""
    tails = logs.read_tails()
    for name, tail in tails.items():
        logs.require_known(name, tail, row.epoch)
    lacking = _find_lacking(logs)
    return logs.as_group([_as_member(name, tails, row, lacking) for name in logs.names], row.settled)


def _not_in_step_error(logs: MemberLogs, name: str) -> RetryableError:
    return RetryableError(
        f"node {name} is not in step in group {logs.header}: it cannot be its master",
        hint=f"./tidemark replica recover {name}, then again",
        subject=name,
    )


def _promote(
    logs: MemberLogs, row: GroupLogRow, lease: Lease, without: Collection[str], *, to: str = "", note: Note | None = None
) -> tuple[GroupLogRow, LogEnd]:
    """Promote who has everything; `to`: that one, or nobody. `note`: is written together with the epoch."""
    lacking = {*without, *_find_lacking(logs)}
    # Of two that have the same log, who has the files too.
    ranked = sorted(logs.names, key=lambda name: (name != to, name in lacking))
    for _ in range(_TRIES):
        tails = logs.read_tails()
        for name, tail in tails.items():
            logs.require_known(name, tail, row.epoch)
        if len(tails) == len(logs.names) and row.in_step and not set(row.in_step) & set(logs.names):
            tails = _set_older_aside(logs, row, tails)
        if len(tails) == len(logs.names) and all(tail.fence is None for tail in tails.values()):
            # All answer, none has a log: it is the first one, or all who had it left. The ledger knows what was in it.
            row = _begin_anew(logs, row, lease)
        group = logs.as_group([_as_member(name, tails, row, lacking) for name in ranked], row.settled)
        elected = elect_master(group, Restart.INTERSECT)
        if elected is None:
            break
        if to and elected.name != to:
            raise _not_in_step_error(logs, to)
        told = [Vote(name, tail.end, _is_in_step(name, tail, row)) for name, tail in tails.items()]
        if judge_promotion(group, elected.name, told, granted=group.even) is not Promotion.WRITE_BARRIER:
            break  # the epoch would be given in vain, and its old master would be none
        find_doubtful(logs, row, elected.name)  # or the nodes are ahead of the ledger: it gives no epoch
        row = _give_epoch(logs, row, elected.name, lease, tails, note=note)
        # CRASH WINDOW: the epoch is given, some members voted for it, some may have the barrier: the row is not active, the
        # next commit gives a newer epoch.
        fence = Fence(logs.cluster.identity, row.epoch, elected.name)
        voted = logs.vote(list(tails), fence, first=_is_first(row))
        votes = [Vote(n, a.tail.end, _is_in_step(n, tails[n], row)) for n, a in voted.items()]
        decided = judge_promotion(group, elected.name, votes, granted=group.even)
        if decided is Promotion.WAIT:
            break
        if decided is Promotion.GIVE_UP:
            continue
        return _activate(logs, row, lease, voted[elected.name].tail.end, majority=True)
    raise _no_master_error(logs)


def _activate(
    logs: MemberLogs, row: GroupLogRow, lease: Lease, end: LogEnd, *, majority: bool
) -> tuple[GroupLogRow, LogEnd]:
    """Write the barrier behind the master's end, and settle what was in doubt. Return the row and the log's new end.

    `majority`: NoQuorumError if the barrier is at fewer than its quorum and a majority.
    """
    fence = Fence(logs.cluster.identity, row.epoch, row.master)
    barrier = barrier_behind(end, row.epoch)
    try:
        holders = logs.append([barrier], fence)
    except NoQuorumError:  # a log that parted from the master's has nothing that was committed: it comes anew
        holders = logs.recover(logs.names, fence, barrier.head.end)
    group = logs.as_group([Member(name, Role.UNSYNCED) for name in logs.names])
    if majority and not has_barrier_quorum(len(holders), group, group.even):
        raise _no_master_error(logs)
    end = barrier.head.end
    doubtful = find_doubtful(logs, row, row.master)
    if doubtful:
        records = taking_back(doubtful, end, row.epoch)
        holders = logs.append(records, fence)
        end = records[-1].head.end
    # CRASH WINDOW: the master is active at the nodes, the row does not say so: promoted again, nothing is in doubt then.
    position = end.position
    done = replace(row, active=True, settled=(position.epoch, position.version), operation="", in_step=holders)
    return write_row(logs, row, done, lease), end


def _no_master_error(logs: MemberLogs) -> NoQuorumError:
    return logs.quorum_error("what makes one of them master", 0)


def _as_member(name: str, tails: Mapping[str, Tail], row: GroupLogRow, lacking: Collection[str]) -> Member:
    """Return a member with its role. One that lacks a file that its group committed proves its log, but is no slave."""
    tail = tails.get(name)
    if tail is None:
        return Member(name, Role.OFFLINE)
    synced = _is_in_step(name, tail, row) and name not in lacking
    return Member(name, Role.SLAVE if synced else Role.UNSYNCED, tail.end)


def _is_in_step(name: str, tail: Tail, row: GroupLogRow) -> bool:
    """Tell whether the ledger says so, and it has not lost its vote. At first all are.

    A log that was put back has lost it too: it does not tell what its member acknowledged.
    """
    lost = tail.fence is None or tail.filling or is_put_back(row, name, tail)
    return _is_first(row) or (name in row.in_step and not lost)


def _is_first(row: GroupLogRow) -> bool:
    """Tell whether the group has no log yet."""
    return row.settled == (0, 0) and not row.in_step


def _find_lacking(logs: MemberLogs) -> list[str]:
    receiver, table = logs.cluster.receiver.name, logs.cluster.table
    with logs.cluster.app.ledger.read() as connection:
        return [node for header, node in lacking_members(connection, receiver, table) if header == logs.header]


def _set_older_aside(logs: MemberLogs, row: GroupLogRow, tails: Mapping[str, Tail]) -> dict[str, Tail]:
    """Set the logs of members aside that lack what was settled, where all who had it left by a change of the nodes: nobody
    could ever bring them into step. Return the ends then, of those that answer. PermanentError for one that has more."""
    for name, tail in tails.items():
        if tail.end.position > Position(*row.settled):
            raise logs.ahead_error(name)
    # CRASH WINDOW: some are aside, the row is as it was: the next promotion sets the others aside.
    return logs.set_aside(logs.names)


def _begin_anew(logs: MemberLogs, row: GroupLogRow, lease: Lease) -> GroupLogRow:
    fresh = replace(row, active=False, settled=(0, 0), in_step=())
    with logs.cluster.app.ledger.write() as connection:
        forget_cover(connection, row.receiver, row.header)  # the next commit writes all that the catalog has in its slots
        forget_log_readings(connection, row.receiver, [(row.header, name) for name in logs.names])
    return write_row(logs, row, fresh, lease)


def _give_epoch(
    logs: MemberLogs, row: GroupLogRow, master: str, lease: Lease, tails: Mapping[str, Tail], *, note: Note | None = None
) -> GroupLogRow:
    """Members that have lost their votes are not in step from now on: with their next vote that is not seen any more."""
    put_back = [name for name, tail in tails.items() if is_put_back(row, name, tail)]
    if put_back:
        with logs.cluster.app.ledger.write() as connection:
            assert_held(connection, lease)
            doubt_copies(connection, logs.cluster, logs.header, put_back)
        # CRASH WINDOW: their files do not count, the row is as it was: the next promotion finds them so again.
    lost = {*put_back, *(name for name, tail in tails.items() if tail.fence is None)}
    in_step = tuple(name for name in row.in_step if name not in lost)
    given = replace(row, epoch=row.epoch + 1, master=master, active=False, in_step=in_step)
    return write_row(logs, row, given, lease, note=note)


def write_row(
    logs: MemberLogs, before: GroupLogRow, after: GroupLogRow, lease: Lease, *, note: Note | None = None
) -> GroupLogRow:
    """Swap the group's row in a transaction of its own, and return the new one. Errors as `swap_group_log`."""
    app = logs.cluster.app
    with app.ledger.write() as connection:
        assert_held(connection, lease)
        swap_group_log(connection, before, after, app.clock())
        if note is not None:
            note(connection, epoch=after.epoch)
    return after


def find_doubtful(logs: MemberLogs, row: GroupLogRow, name: str) -> str:
    """Return the commit whose records lie in a member's log behind what is settled, and count; "" for none.

    PermanentError for a record of a commit that this ledger does not know: it is older than the nodes.
    """
    doubtful = ""
    for stored in logs.read(name, row.settled[1] + 1):
        commit = commit_of(stored)
        if not commit:
            continue
        if commit != row.operation:
            raise logs.ahead_error(name)
        doubtful = "" if is_take_back(stored) else commit
    return doubtful
