"""A node that stays away is replaced: others take its places, by the changes of the nodes that an operator would make.

    replaced = replace_away(app, receiver)        # by its own command or task: data moves for hours, and the watch goes on

A node that the watch has missed for `[cluster] replace_hours` leaves the cluster. Before that one of the settings that was
never in it joins, if there is one: the first that answers, has a free folder and room. One change is made at a time, and
none while a group of the node has fewer members in step than its quorum. A change that was begun is gone on with, also if
the node is back meanwhile; one that the operator rolled back is not begun again. `choose_changes` is pure.

Source: seed 003 "Data replication of Meta Data" (characteristic 2); seed 001 "Two-phase method".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.app import App
from tidemark.cluster.health.watch import find_due
from tidemark.cluster.membership.change import Wanted, change_nodes
from tidemark.cluster.nodes.cluster import Cluster, describe_change, require_cluster
from tidemark.cluster.replicas.core.placement import Kept, plan_replacement
from tidemark.cluster.replicas.core.roles import Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.deliver import lacking_members
from tidemark.errors import LeaseHeldError, RetryableError, TidemarkError
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.ledger.cluster.node_watch import PAUSE_SECONDS, WatchRow, read_watch
from tidemark.ledger.cluster.tables import ChangeRow
from tidemark.ledger.database import database_time
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import ReceiverSettings

_OURS = "replace-"  # how the ids of these changes begin; then node, number, kind


@dataclass(frozen=True)
class Replaced:
    """`node`: who is away for so long, "" for nobody. `did`: the change that was made, as `add n4`; `state`: how far it is.
    `why`: what keeps it. `exit_code`: 5 if something does."""

    node: str = ""
    did: str = ""
    state: str = ""
    why: str = ""

    @property
    def exit_code(self) -> int:
        return RetryableError.kind if self.why else 0

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"ok": not self.why}
        if self.why:
            told |= {"error": f"{self.node} stays away and is not replaced: {self.why}", "hint": "./tidemark replica show"}
        return {**told, **vars(self)}


def replace_away(
    app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress, *, wait: bool = True
) -> Replaced:
    """Make, or go on with, the one change that replaces a node. `wait`: until its data has moved.

    Errors as `change_nodes`: the next call goes on. RetryableError if none of several nodes can join.
    """
    with require_cluster(app, receiver) as cluster:
        hours = cluster.settings.replace_hours
        if not hours:
            return Replaced()
        with app.ledger.read() as connection:
            change = table_rows.open_change(connection, receiver.name)
            seen = read_watch(connection, receiver.name)
            known = {row.node for row in table_rows.nodes_of_receiver(connection, receiver.name)}
            changes = table_rows.newest_changes(connection, receiver.name)
            now = database_time(connection)
            groups = _read_groups(
                cluster,
                read_group_logs(connection, receiver.name),
                seen,
                lacking=set(lacking_members(connection, receiver.name, cluster.table)),
            )
        ring = cluster.table.ring.names
        due = find_due(seen, ring, cluster.settings)
    if change is not None and _gone_of(change):
        asked = Wanted(change.kind, change.node, request=change.change_id)
        return Replaced(_gone_of(change), str(asked), change_nodes(app, receiver, asked, progress, wait).state)
    gone = next(iter(due), "")
    if not gone:
        return Replaced()
    if change is not None:
        return Replaced(gone, why=describe_change(change))
    if now - seen[gone].at >= PAUSE_SECONDS:
        return Replaced(
            gone, why=f"the watch looked {(now - seen[gone].at) / 3600:,.0f} h ago: run ./tidemark replica watch"
        )
    ours = [row for row in changes if _gone_of(row) == gone]
    last = next((row for row in ours if row.state == "done"), None)
    joined = last is not None and last.kind == "add" and last.node in ring
    chosen = choose_changes(
        groups, gone, ring, () if joined else app.settings.nodes.keys() - known, due, after_s=hours * 3600
    )
    if isinstance(chosen, str):
        return Replaced(gone, why=chosen)
    undone = {(row.kind, row.node) for row in ours if row.state == "rolled_back" and row.begun >= seen[gone].since}
    left = [wanted for wanted in chosen if (wanted.kind, wanted.node) not in undone]
    if not left:
        told = ", ".join(sorted(" ".join(one) for one in undone))
        return Replaced(gone, why=f"{told} was rolled back: ./tidemark cluster add another node, or remove {gone}, by hand")
    unable = []
    for wanted in left:
        asked = replace(wanted, request=f"{_OURS}{gone}-{len(ours)}-{wanted.kind}")
        try:
            return Replaced(gone, str(asked), change_nodes(app, receiver, asked, progress, wait).state)
        except LeaseHeldError:
            raise
        except TidemarkError as error:
            if len(left) == 1 or _is_recorded(app, receiver, asked.request):
                raise
            unable.append(f"{wanted.node}: {error.message}")
    raise RetryableError(
        f"{gone} stays away, and no node can take its places: {'; '.join(unable)}",
        hint=f"bring one of them up, or ./tidemark cluster remove {gone}",
        subject=gone,
    )


def _gone_of(change: ChangeRow) -> str:
    """Return the node that a change of ours replaces; "" for somebody else's change."""
    ours = change.change_id.startswith(_OURS)
    return change.change_id.removeprefix(_OURS).rsplit("-", 2)[0] if ours else ""


def _is_recorded(app: App, receiver: ReceiverSettings, change_id: str) -> bool:
    with app.ledger.read() as connection:
        return any(row.change_id == change_id for row in table_rows.newest_changes(connection, receiver.name))


def choose_changes(
    groups: Mapping[str, Group],
    gone: str,
    ring: Sequence[str],
    spares: Collection[str],
    away_s: Mapping[str, float],
    *,
    after_s: float,
) -> tuple[Wanted, ...] | str:
    """Return the changes of which the first possible one comes next, or why there is none. Pure.

    `groups`: header → those that have a log; `spares`: nodes of the settings that may join. Each group of the node must
    agree, by `plan_replacement`, and some node must be free for it.
    """
    free = dict.fromkeys(ring, 1.0) | dict.fromkeys(spares, 0.0)
    free.pop(gone)
    for header, group in sorted(groups.items()):
        if any(member.name == gone for member in group.members):
            planned = plan_replacement(group, away_s, free, after_s=after_s)
            if isinstance(planned, Kept):
                return f"group {header}: {planned.value}"
    return tuple(Wanted("add", name) for name in sorted(spares)) or (Wanted("remove", gone),)


def _read_groups(
    cluster: Cluster,
    rows: Mapping[str, GroupLogRow],
    seen: Mapping[str, WatchRow],
    *,
    lacking: Collection[tuple[str, str]],
) -> dict[str, Group]:
    """Return the groups that have a log, as the ledger knows them behind a round of the watch."""
    found = {}
    for header, names in cluster.table.groups_by_header().items():
        row = rows.get(header)
        if row is None or not row.epoch:
            continue
        settled = Position(*row.settled)
        members = [
            Member(name, _role_of(row, name, seen.get(name), lacks=(header, name) in lacking), LogEnd(settled, 0))
            for name in names
        ]
        found[header] = Group(tuple(members), min(cluster.quorum, len(names)), committed=settled)
    return found


def _role_of(row: GroupLogRow, name: str, seen: WatchRow | None, *, lacks: bool) -> Role:
    if seen is None or seen.misses:
        return Role.OFFLINE
    if name == row.master and row.active and not row.operation:
        return Role.MASTER
    return Role.SLAVE if name in row.in_step and not lacks else Role.UNSYNCED
