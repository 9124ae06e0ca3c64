"""What an operator decides about a data group: bring members back, move the master, take a member anew, force a master.

    recover_members(app, receiver, "n2")       # what is not in step: all, a node, or group:NAME
    switch_over(app, receiver, "n1", "n2")     # n2 becomes master of the group that n1 heads
    resync_member(app, receiver, "n2", "n1")   # its log and files of that group, or of all, are set aside and come anew
    force_group(app, receiver, "n1", "n2")     # n2 becomes master though too few members answer

Each may be run again: what is so already is not done twice. Decisions are in the audit. Nothing is deleted: files and logs
that do not count any more are moved. Source: seed 003 "Data recovery flow"; docs/decisions/0024.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tidemark.app import App
from tidemark.cluster.nodes.cluster import Cluster, require_cluster
from tidemark.cluster.replicas.commit import hold_groups, record_slots
from tidemark.cluster.replicas.core.election import Forced
from tidemark.cluster.replicas.core.election import force_master as choose_forced
from tidemark.cluster.replicas.core.roles import Group
from tidemark.cluster.replicas.deliver import late_members, stop_counting
from tidemark.cluster.replicas.log import GroupLog
from tidemark.cluster.replicas.members import MemberLogs, folder_of, is_behind, read_round, read_rows
from tidemark.cluster.replicas.plan import pieces_of
from tidemark.cluster.replicas.promote import force_master, open_group, read_group, require_newest, switch_master, write_row
from tidemark.cluster.replicas.recover import Recovered, find_resting, hold_node, recover_logs, recover_node
from tidemark.errors import (
    CorruptionError,
    NoQuorumError,
    NotFoundError,
    RetryableError,
    TidemarkError,
    UnreachableError,
    UsageError,
)
from tidemark.ledger import journal
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.group_logs import GroupLogRow, note_log_readings, swap_group_log
from tidemark.ledger.cluster.recoveries import read_recoveries
from tidemark.ledger.leases import Lease, assert_held
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import ReceiverSettings


@dataclass(frozen=True)
class Done:
    """One thing that was done. `groups`: of that node, or the one group."""

    did: str
    node: str
    groups: tuple[str, ...] = ()
    files: int = 0
    bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "groups": list(self.groups)}


@dataclass(frozen=True)
class Decided:
    """`done`: nothing if all was so already. `left`: node → why it is not in step yet."""

    receiver: str
    done: tuple[Done, ...] = ()
    left: tuple[tuple[str, TidemarkError], ...] = ()

    @property
    def exit_code(self) -> int:
        return self.left[0][1].kind if self.left else 0

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"ok": not self.left}
        if self.left:
            node, error = self.left[0]
            told |= {"error": f"node {node}: {error.message}", "hint": error.hint}
        left = [{"node": node, "why": error.message} for node, error in self.left]
        return {**told, "receiver": self.receiver, "done": [one.as_json() for one in self.done], "left": left}


def recover_members(app: App, receiver: ReceiverSettings, what: str = "", progress: Progress = ignore_progress) -> Decided:
    """Bring members back into step. `what`: a node, `group:NAME`, or "" for all. Errors of nodes are in the result.

    Logs of what is named are read whole, and come anew from other members if they are damaged. So do those that are gone or
    end earlier than the ledger says, as in a folder from an older copy; its files are proved again then, or come.
    NotFoundError for a node or a group that is not there, PermanentError if the ledger is older than the nodes.
    """
    done, left = [], []
    with require_cluster(app, receiver) as cluster:
        require_newest(cluster)
        group = what.removeprefix("group:") if what.startswith("group:") else ""
        headers = [_require_group(cluster, group)] if group else None
        nodes = [_require_node(cluster, what)] if what and not group else _find_unsynced(cluster, headers)
        if group:
            nodes = sorted({*nodes, *cluster.table.groups_by_header()[group]})
        for number, node in enumerate(nodes):
            progress(Tick("recover", number, len(nodes)))
            try:
                if what:
                    _set_damaged_aside(cluster, node, headers)
                    if behind := _bring_logs(cluster, node, headers):
                        done.append(Done("recovered", node, behind))
                if group and node not in _find_unsynced(cluster, headers):
                    continue
                with app.receiver_store(receiver) as store:
                    got = recover_node(cluster, store, node, headers)
            except TidemarkError as error:
                left.append((node, error))
                continue
            if got.files or got.groups:
                done.append(Done("recovered", node, got.groups, got.files, got.bytes))
            if got.left:
                left.append((node, _not_back_error(got.left)))
    return Decided(receiver.name, tuple(done), tuple(left))


def find_unsynced(app: App, receiver: ReceiverSettings) -> list[str]:
    """Return the nodes that are not in step in some group, by the ledger, without those whose recovery rests."""
    with require_cluster(app, receiver) as cluster:
        with app.ledger.read() as connection:
            rests = find_resting(connection, receiver.name)
        return [node for node in _find_unsynced(cluster, None) if node not in rests]


def switch_over(app: App, receiver: ReceiverSettings, header: str, to: str) -> Decided:
    """Make a node master of a group. Nothing is done if it is.

    NotFoundError for a group that is not there, UsageError for a node that is no member, RetryableError for one that is not
    in step, NoQuorumError if too few members answer, PermanentError if the ledger is older than the nodes.
    """
    with require_cluster(app, receiver) as cluster:
        require_newest(cluster)
        logs = _open_members(cluster, header, to)
        with hold_groups(cluster) as lease:
            logs.lease = lease
            before = read_rows(cluster).get(header, GroupLogRow(receiver.name, header))
            row, _ = open_group(logs, before, lease)
            if row.master == to:
                return Decided(receiver.name)
            switch_master(logs, row, lease, to, decided=True)
    return Decided(receiver.name, (Done("switched over", to, (header,)),))


def resync_member(
    app: App, receiver: ReceiverSettings, node: str, header: str = "", *, progress: Progress = ignore_progress
) -> Decided:
    """Set the files and the log of a member aside, and bring it both anew: in one group, or one after another in all groups
    of the node. The others must be enough without it.

    Errors as `switch_over`; RetryableError if only this node has a file. With all groups, errors of single ones are in the
    result.
    """
    done: list[Done] = []
    left: list[tuple[str, TidemarkError]] = []
    with require_cluster(app, receiver) as cluster:
        require_newest(cluster)
        groups = cluster.table.groups_by_header()
        mine = [header] if header else sorted(h for h, names in groups.items() if _require_node(cluster, node) in names)
        for one in mine:
            try:
                got = _resync_in_group(cluster, node, one, progress)
            except TidemarkError as error:
                if header:
                    raise
                left.append((node, error))
                continue
            done.append(Done("resynced", node, (one,), got.files, got.bytes))
            if got.left:
                left.append((node, _not_back_error(got.left)))
    return Decided(receiver.name, tuple(done), tuple(left))


def _resync_in_group(cluster: Cluster, node: str, header: str, progress: Progress) -> Recovered:
    logs = _open_members(cluster, header, node)
    if len(logs.names) == 1:
        raise UsageError(f"group {header} has no other member than {node}", hint="./tidemark replica show", subject=node)
    label = f"resync-{uuid.uuid4().hex[:8]}"
    with hold_node(cluster, node), hold_groups(cluster) as lease:
        places = _stop_counting(cluster, logs, lease, node)
        # CRASH WINDOW: nothing of it counts, and it lies where it lay: a recovery compares it by digest and by the log,
        # so what is sound stays. The same command sets it aside.
        cluster.open_folder(node).set_aside(places, label)
        # CRASH WINDOW: some files are aside: as above.
        GroupLog(cluster.open_store(node), folder_of(header)).set_aside()
        cluster.kept.pop((header, node), None)
    progress(Tick("resync", 0, len(places)))
    with cluster.app.receiver_store(cluster.receiver) as store:
        return recover_node(cluster, store, node, [header])


def _set_damaged_aside(cluster: Cluster, node: str, headers: Iterable[str] | None) -> None:
    """Read the node's logs whole, and set those aside that are damaged anywhere. The node is not in step in their groups
    then, and the master's log is whole. Errors as `_open_without`; CorruptionError if no member in step has a whole log."""
    wanted = None if headers is None else set(headers)
    for header, names in sorted(cluster.table.groups_by_header().items()):
        if node not in names or (wanted is not None and header not in wanted) or _is_whole(cluster, node, header):
            continue
        logs = MemberLogs(cluster, header)
        with hold_groups(cluster) as lease:
            logs.lease = lease
            row, others = _open_without(logs, lease, _find_damaged(logs), node=node)
            write_row(logs, row, replace(row, in_step=others), lease)
            # CRASH WINDOW: it does not count, its log is as it was: the same command sets it aside.
            GroupLog(cluster.open_store(node), folder_of(header)).set_aside()
            cluster.kept.pop((header, node), None)


def _bring_logs(cluster: Cluster, node: str, headers: Iterable[str] | None) -> tuple[str, ...]:
    """Bring the node's logs that have less than the ledger says they have; return the groups that are in step again."""
    wanted = None if headers is None else set(headers)
    groups = cluster.table.groups_by_header()
    mine = [header for header, names in sorted(groups.items()) if node in names and (wanted is None or header in wanted)]
    behind = _find_behind(cluster, node, mine)
    if behind:
        recover_logs(cluster, nodes=[node], headers=behind, doubted={(header, node) for header in behind})
    rows, left = read_rows(cluster), _find_behind(cluster, node, behind)
    return tuple(header for header in behind if node in rows[header].in_step and header not in left)


def _find_behind(cluster: Cluster, node: str, headers: Sequence[str]) -> list[str]:
    """Return the groups whose log at the node has less than the ledger says. A node that does not answer tells nothing."""
    rows, heard = read_rows(cluster), read_round(cluster, headers)
    tails = {header: tails[node] for header, (_, tails) in heard.items() if header in rows and node in tails}
    return [header for header, tail in tails.items() if is_behind(rows[header], node, tail)]


def _is_whole(cluster: Cluster, node: str, header: str) -> bool:
    """Read a member's log whole, and note that. False if it is damaged."""
    try:
        if GroupLog(cluster.open_store(node), folder_of(header)).read_whole():
            with cluster.app.ledger.write() as connection:
                note_log_readings(connection, cluster.receiver.name, [(header, node)])
    except CorruptionError:
        return False
    return True


def _find_damaged(logs: MemberLogs) -> list[str]:
    """Return the members whose logs cannot be read whole. CorruptionError if no other one is in step."""
    damaged = []
    for name in logs.names:
        try:
            damaged += [] if _is_whole(logs.cluster, name, logs.header) else [name]
        except TidemarkError:
            damaged.append(name)
    row = read_rows(logs.cluster).get(logs.header)
    if row is None or not set(row.in_step) - set(damaged):
        raise CorruptionError(
            f"no member in step of group {logs.header} has a log that can be read whole: {', '.join(damaged)} are damaged"
            " or do not answer",
            hint="./tidemark replica verify names the places; bring back who does not answer, or put a backup in its place",
            subject=logs.header,
        )
    return damaged


def _open_without(
    logs: MemberLogs, lease: Lease, without: Sequence[str], *, node: str
) -> tuple[GroupLogRow, tuple[str, ...]]:
    """Return the group's row with a master that is none of `without`, and who is in step beside `node`. NoQuorumError if
    these are too few."""
    row = read_rows(logs.cluster).get(logs.header, GroupLogRow(logs.cluster.receiver.name, logs.header))
    row, _ = open_group(logs, row, lease, without=without)
    others = tuple(name for name in row.in_step if name != node)
    if len(others) < logs.quorum:
        raise logs.quorum_error(f"everything without node {node}", len(others))
    return row, others


def _stop_counting(cluster: Cluster, logs: MemberLogs, lease: Lease, node: str) -> list[str]:
    """Let nothing that the member has in the group count; return the locations of its files there."""
    receiver, header, table = cluster.receiver.name, logs.header, cluster.table
    row, others = _open_without(logs, lease, [node], node=node)
    with cluster.app.ledger.write() as connection:
        assert_held(connection, lease)
        table_rows.require_epoch(connection, receiver, table.epoch)
        pieces = pieces_of(table, catalog_rows.live_files(connection, receiver))
        mine = [piece.location for piece in pieces if any(table.owners[slot] == header for slot in piece.slots)]
        copies = copy_rows.copies_of(connection, receiver, mine)
        for at, rows in copies.items():
            if not any(one.state == "held" and one.node != node for one in rows):
                raise RetryableError(
                    f"only node {node} has {at}", hint="./tidemark cluster check --repair, then again", subject=at
                )
        places = sorted(at for at, rows in copies.items() if any(one.node == node for one in rows))
        stop_counting(connection, cluster, node, places)
        swap_group_log(connection, row, replace(row, in_step=others), cluster.app.clock())
        journal.record_decision(connection, "replica.resync", header, node=node, files=len(places))
    return places


@dataclass(frozen=True)
class Risk:
    """What forcing a master would lose. `forced` is None if the group has a master, or can get one."""

    group: str
    forced: Forced | None = None
    settled: int = 0

    def describe(self) -> str:
        """Say it in a line; "" if there is none."""
        if self.forced is None:
            return ""
        version = self.forced.master.end.position.version
        told = [f"{self.forced.master.name} has its records up to {version}"]
        if self.forced.absent:
            told.append(f"what only {', '.join(self.forced.absent)} has is set aside when that is back")
        if self.forced.loses_committed:
            told.append(f"{version + 1} to {self.settled} were acknowledged: its log is written anew by what the ledger has")
        return "; ".join(told)


def find_risk(app: App, receiver: ReceiverSettings, header: str, name: str = "") -> Risk:
    """Ask the members of a group what forcing a master, `name` or the best, would lose. Changes nothing."""
    with require_cluster(app, receiver) as cluster:
        logs = _open_members(cluster, header, name)
        return _judge_risk(logs, read_rows(cluster).get(header, GroupLogRow(receiver.name, header)), name)


def force_group(app: App, receiver: ReceiverSettings, header: str, name: str = "") -> Decided:
    """Make a member, `name` or the best that answers, master of a group that can get none. Nothing is done if it can.

    Records that only members have that are away are lost to the group. UnreachableError if nobody answers, or not `name`,
    PermanentError if the ledger is older than the nodes.
    """
    with require_cluster(app, receiver) as cluster:
        require_newest(cluster)
        logs = _open_members(cluster, header, name)
        with hold_groups(cluster) as lease:
            logs.lease = lease
            row = read_rows(cluster).get(header, GroupLogRow(receiver.name, header))
            try:
                open_group(logs, row, lease)
                return Decided(receiver.name)
            except NoQuorumError:
                row = read_rows(cluster)[header]
            risk = _judge_risk(logs, row, name)
            if risk.forced is None:
                raise UnreachableError(
                    f"{f'node {name}' if name else 'no member'} of group {header} answers", hint="./tidemark doctor"
                )
            after = force_master(logs, row, lease, risk.forced, risk=risk.describe())
        with suppress(NoQuorumError):  # its log tells of its files again once a quorum is back
            recover_logs(cluster, headers=[header])
            record_slots(cluster)
    return Decided(receiver.name, (Done("forced", after.master, (header,)),))


def _judge_risk(logs: MemberLogs, row: GroupLogRow, name: str) -> Risk:
    group = read_group(logs, row)
    if name:
        others = tuple(member for member in group.members if member.name != name)
        chosen = next(member for member in group.members if member.name == name)
        alone = choose_forced(Group((chosen,), 1, committed=group.committed))
        absent = tuple(member.name for member in others if not member.online or member.end.position > chosen.end.position)
        return Risk(row.header, alone and replace(alone, absent=absent), row.settled[1])
    return Risk(row.header, choose_forced(group), row.settled[1])


def _find_unsynced(cluster: Cluster, headers: Iterable[str] | None) -> list[str]:
    wanted = None if headers is None else set(headers)
    found = set()
    for header, row in read_rows(cluster).items():
        if row.epoch and (wanted is None or header in wanted):
            found |= set(cluster.table.groups_by_header().get(header, ())) - set(row.in_step)
    with cluster.app.ledger.read() as connection:
        # A recovery that died before its last record is ended by the next one.
        recovering = read_recoveries(connection, cluster.receiver.name)
        found |= {node for header, node in recovering if node in cluster.table.ring and (wanted is None or header in wanted)}
        for node, rows in late_members(connection, cluster.receiver.name, cluster.table).items():
            if any(wanted is None or row.header in wanted for row in rows if row.kind == "put"):
                found.add(node)
    return sorted(found)


def _require_node(cluster: Cluster, name: str) -> str:
    if name not in cluster.table.ring:
        known = ", ".join(sorted(cluster.table.ring.names))
        raise NotFoundError(
            f"there is no node {name}; there are {known}",
            hint="./tidemark replica recover NODE, or group:NAME",
            subject=name,
        )
    return name


def _require_group(cluster: Cluster, header: str) -> str:
    groups = cluster.table.groups_by_header()
    if header not in groups:
        raise NotFoundError(
            f"there is no group {header}; there are {', '.join(sorted(groups))}",
            hint="./tidemark replica show",
            subject=header,
        )
    return header


def _open_members(cluster: Cluster, header: str, node: str) -> MemberLogs:
    """Return the group's members. UsageError if `node` is none of them, "" for nobody in particular."""
    logs = MemberLogs(cluster, _require_group(cluster, header))
    if node and node not in logs.names:
        raise UsageError(
            f"node {node} is no member of group {header}; {', '.join(logs.names)} are",
            hint="./tidemark replica show",
            subject=node,
        )
    return logs


def _not_back_error(headers: Iterable[str]) -> TidemarkError:
    return RetryableError(
        f"its log is not in step in group {', '.join(headers)}", hint="./tidemark replica show says why; then run it again"
    )
