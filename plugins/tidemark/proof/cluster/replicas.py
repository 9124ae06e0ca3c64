"""Who of each data group is master, slave, unsynced or offline, at which version, why, and what the group waits for.

Each node is asked once for the ends of all its logs; the ledger says what is settled and who is in step. Nothing is changed.
A commit that goes on meanwhile is waited out: rows and logs are read until the rows stay. Source: seed 003 "Role",
"Version"; docs/replication.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidemark.app import App
from tidemark.cluster.nodes.cluster import Cluster, require_cluster
from tidemark.cluster.replicas.core.election import Restart
from tidemark.cluster.replicas.core.placement import describe_unreplaced
from tidemark.cluster.replicas.core.roles import ORIGIN, Group, Member, Role
from tidemark.cluster.replicas.core.status import Wait, evaluate
from tidemark.cluster.replicas.deliver import lacking_members
from tidemark.cluster.replicas.log import Tail
from tidemark.cluster.replicas.members import MemberLogs, is_put_back, read_round
from tidemark.cluster.replicas.promote import judge_round
from tidemark.errors import TidemarkError
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs, read_log_readings
from tidemark.ledger.cluster.recoveries import RecoveryRow, find_at_work, read_recoveries
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Leases
from tidemark.proof.as_of import format_iso
from tidemark.proof.explanation import join_names
from tidemark.settings.model import ReceiverSettings

_ROUNDS = 5
_NO_MASTER = "it has no master"
_NOT_NAMED = "the ledger names no master, as after a restore, a rebuild or a promotion that died"
_FORCE = " ./tidemark replica force --help"
_AHEAD = "the nodes are ahead of the ledger in group {}, so it is older than they are: ./tidemark ledger rebuild --replace"


@dataclass(frozen=True)
class ReplicaView:
    """One member. `epoch`, `version`: where its log ends, 0 if unknown. `why`: why it is neither master nor slave.

    `phase`: of its recovery, "" without one; `recovery`: how far that is, and what it waits for. `log_read`: when its log
    was last read whole and was sound, None before: damage in its middle since then is not known.
    """

    node: str
    role: Role
    epoch: int = 0
    version: int = 0
    why: str = ""
    phase: str = ""
    recovery: str = ""
    log_read: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "role": self.role.value, "log_read": format_iso(self.log_read)}


@dataclass(frozen=True)
class GroupReplicasView:
    """One group with its members in the order of the ring. `epoch`, `version`: of the last settled record. `ahead`: groups
    that are ahead of the ledger, if it waits for that."""

    group: str
    epoch: int
    version: int
    members: tuple[ReplicaView, ...]
    waits: str = ""  # for what, and what ends it
    ahead: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "members": [member.as_json() for member in self.members], "ahead": list(self.ahead)}


@dataclass(frozen=True)
class ReplicasView:
    """`coordinator`: the identity of the cluster, which its members accept records of."""

    receiver: str
    coordinator: str
    groups: tuple[GroupReplicasView, ...]

    def as_json(self) -> dict[str, Any]:
        groups = [group.as_json() for group in self.groups]
        return {"receiver": self.receiver, "coordinator": self.coordinator, "groups": groups}


def show_replicas(app: App, receiver: ReceiverSettings) -> ReplicasView:
    """Ask every node. NotFoundError before `cluster init`."""
    with require_cluster(app, receiver) as cluster:
        headers = sorted(cluster.table.groups_by_header())
        for left in reversed(range(_ROUNDS)):
            before, lacking = _read_rows(cluster)
            heard = read_round(cluster, headers)
            steady = _read_rows(cluster) == (before, lacking)
            if steady or not left:
                break
        ahead = judge_round(cluster, before, heard)
        recoveries = _describe_recoveries(cluster, lacking)
        with app.ledger.read() as connection:
            readings = read_log_readings(connection, receiver.name)
        groups = []
        for header in headers:
            row = before.get(header, GroupLogRow(receiver.name, header))
            logs, tails = heard[header]
            mine = {name: count for (other, name), count in lacking.items() if other == header}
            judged = judge_replicas(row, cluster.identity, logs.names, tails, logs.silent, mine)
            if ahead and (header in ahead or judged.waits in (_NO_MASTER, _NOT_NAMED)):
                judged = replace(judged, waits=_AHEAD.format(join_names(sorted(ahead))), ahead=tuple(sorted(ahead)))
            elif judged.waits in (_NO_MASTER, _NOT_NAMED):
                told = _describe_new_log(row, logs.names, tails)
                told = told or describe_election(_as_group(judged, logs, tails, mine), consistent=steady)
                judged = replace(judged, waits=f"{judged.waits}: {told}")
            judged = _add_unreplaced(judged, logs.quorum)
            groups.append(_add_readings(_add_recoveries(judged, recoveries), readings, tails))
    return ReplicasView(receiver.name, cluster.identity, tuple(groups))


def _read_rows(cluster: Cluster) -> tuple[dict[str, GroupLogRow], dict[tuple[str, str], int]]:
    """Return header → row, and (header, member) → how many committed files it lacks."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.read() as connection:
        return read_group_logs(connection, receiver), lacking_members(connection, receiver, cluster.table)


def _describe_recoveries(cluster: Cluster, lacking: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (header, member) → the phase of its recovery, and how far it is in words."""
    receiver = cluster.receiver.name
    with cluster.app.ledger.read() as connection:
        rows = read_recoveries(connection, receiver)
        leases = Leases(cluster.app.ledger, cluster.app.identity)
        at_work, now = find_at_work(connection, leases, receiver, rows), database_time(connection)
    return {
        key: (row.phase, describe_recovery(row, lacking.get(key, 0), at_work=key in at_work, now=now))
        for key, row in rows.items()
    }


def describe_recovery(row: RecoveryRow, lacking: int, *, at_work: bool, now: float) -> str:
    """Tell how far a recovery is, and what it waits for. Pure. `lacking`: files that it lacks now."""
    told = f"its recovery is in phase {row.phase}" if at_work else f"its recovery stopped in phase {row.phase}"
    if row.files:
        told += f": {max(0, row.files - lacking)} of {row.files} files came"
    if row.restarts:
        told += f"; its source changed {row.restarts} {'time' if row.restarts == 1 else 'times'}"
    if at_work:
        return told + (f"; it waits: {row.why}" if row.why else "")
    told += f"; {row.why or 'its process died'}"
    wait = row.again - now
    when = f"in {wait:.0f} s" if wait > 0 else "with the next round"
    return f"{told}; it goes on {when}, or by ./tidemark replica recover {row.node}"


def _add_recoveries(group: GroupReplicasView, recoveries: Mapping[tuple[str, str], tuple[str, str]]) -> GroupReplicasView:
    """Add to members that are not in step how far their recovery is. A row of one in step goes with the next round."""
    members = tuple(
        replace(member, phase=told[0], recovery=told[1])
        if member.role in (Role.UNSYNCED, Role.OFFLINE) and (told := recoveries.get((group.group, member.node)))
        else member
        for member in group.members
    )
    return replace(group, members=members)


def _add_readings(
    group: GroupReplicasView, readings: Mapping[tuple[str, str], float], tails: Mapping[str, Tail]
) -> GroupReplicasView:
    """Add when each member's log was read whole. One that is gone, or has not got all again, is not the one that was."""
    lost = {name for name, tail in tails.items() if tail.fence is None or tail.filling}
    members = tuple(
        replace(member, log_read=None if member.node in lost else readings.get((group.group, member.node)))
        for member in group.members
    )
    return replace(group, members=members)


def _add_unreplaced(group: GroupReplicasView, quorum: int) -> GroupReplicasView:
    """Add what a group waits for if a member is offline that nobody replaces by itself."""
    gone = [member.node for member in group.members if member.role is Role.OFFLINE]
    told = describe_unreplaced(join_names(gone), quorum, len(group.members)) if gone else ""
    return replace(group, waits="; ".join(filter(None, (group.waits, told))))


def judge_replicas(
    row: GroupLogRow,
    identity: str,
    names: tuple[str, ...],
    tails: Mapping[str, Tail],
    silent: Mapping[str, TidemarkError],
    lacking: Mapping[str, int],
) -> GroupReplicasView:
    """Return the roles of a group's members. Pure. `tails`: of those that answer; `silent`: why others do not; `lacking`:
    how many committed files a member lacks."""
    members = tuple(
        _judge_member(row, identity, name, tails.get(name), silent.get(name), lacking.get(name, 0)) for name in names
    )
    return GroupReplicasView(row.header, *row.settled, members, _find_wait(row, members))


def _judge_member(
    row: GroupLogRow, identity: str, name: str, tail: Tail | None, error: TidemarkError | None, lacking: int
) -> ReplicaView:
    if tail is None:
        return ReplicaView(name, Role.OFFLINE, why=error.message if error else "")
    epoch, version = tail.end.position.epoch, tail.end.position.version
    if tail.fence is None:
        why = "its folder has no log; it gets one with the next record or catch-up"
    elif tail.fence.coordinator != identity:
        why = "its log belongs to another cluster"
    elif is_put_back(row, name, tail):
        why = f"its log was put back: it ends at version {version}, and it acknowledged {row.settled[1]}; it has no vote"
        why += " until the next record or catch-up brings what it lacks"
    elif version < row.settled[1]:
        why = f"it lacks the versions {version + 1} to {row.settled[1]}; it gets them with the next record or catch-up"
    elif lacking:
        why = f"it lacks {lacking} {'file' if lacking == 1 else 'files'} of the group; the next catch-up brings them"
    elif tail.filling:
        why = "it lost its log, and nobody noted yet that it has all again; the next record or catch-up notes it"
    elif name not in row.in_step:
        why = "it did not acknowledge the last record; the next catch-up brings it back into step"
    elif name == row.master and row.active:
        return ReplicaView(name, Role.MASTER, epoch, version)
    else:
        return ReplicaView(name, Role.SLAVE, epoch, version)
    return ReplicaView(name, Role.UNSYNCED, epoch, version, why)


def _find_wait(row: GroupLogRow, members: tuple[ReplicaView, ...]) -> str:
    if row.operation:
        return "a commit is at work; if it died, the next record of the group takes it back"
    if not row.epoch:
        return "it has no record yet"
    if not row.active:
        return _NOT_NAMED
    return "" if any(member.role is Role.MASTER for member in members) else _NO_MASTER


def _as_group(view: GroupReplicasView, logs: MemberLogs, tails: Mapping[str, Tail], lacking: Collection[str]) -> Group:
    """Return the group as an election sees it: of two that have the same log, who has the files too comes first."""
    ranked = sorted(view.members, key=lambda member: member.node in lacking)
    members = [Member(m.node, m.role, tails[m.node].end if m.node in tails else ORIGIN) for m in ranked]
    return logs.as_group(members, (view.epoch, view.version))


def _describe_new_log(row: GroupLogRow, names: Collection[str], tails: Collection[str]) -> str:
    """Tell that the log begins anew, if all who are in step left by a change of the nodes; else ""."""
    if not row.in_step or set(row.in_step) & set(names):
        return ""
    away = join_names([name for name in names if name not in tails])
    when = f" once {away} answers" if away else ""
    return f"all who had its whole log left; it begins anew{when}, by ./tidemark replica watch or the next record"


def describe_election(group: Group, *, consistent: bool) -> str:
    """Tell who is to become the master of a group that has none, or what that waits for. Pure. It is decided by the votes of
    the members, so this promises nothing."""
    found = evaluate(group, consistent=consistent, restart=Restart.INTERSECT)
    if found.master is not None:
        return f"{found.master} is to become it, by ./tidemark replica watch or the next record"
    away = join_names([member.name for member in group.members if not member.online])
    wait = next(action.wait for action in found.actions if action.wait is not None)
    if wait is Wait.INCONSISTENT:
        return "a commit goes on; ask again"
    if wait is Wait.NO_CANDIDATE:
        return f"nobody who answers has for sure all that was committed: bring {away or 'its disks'} back, or" + _FORCE
    few = f"{len(group.online)} of its {len(group.members)} members answer, too few to make one"
    return f"{few}: bring {away} back, or" + _FORCE
