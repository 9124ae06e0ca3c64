"""A node that stays away is replaced: others take its places, by the changes of the nodes that an operator would make.

    replaced = replace_away(app, receiver)        # behind a round of the watch, which says who is away

A node that the watch has missed for `[cluster] replace_hours` leaves the cluster. Before that one of the settings that was
never in it joins, if there is one. One change is made at a time, and none while a group of the node has fewer members in
step than its quorum. A change that was begun is gone on with, also if the node is back meanwhile. `choose_change` is pure.

Source: seed 003 "Data replication of Meta Data" (characteristic 2); seed 001 "Two-phase method".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.app import App
from tidemark.cluster.membership.change import Wanted, change_nodes
from tidemark.cluster.nodes.cluster import Cluster, describe_change, require_cluster
from tidemark.cluster.replicas.core.placement import Kept, plan_replacement
from tidemark.cluster.replicas.core.roles import Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.deliver import lacking_members
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.ledger.cluster.node_watch import WatchRow, read_watch
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import ReceiverSettings

_OURS = "replace-"  # how the ids of these changes begin
_MANY = 10_000  # changes that are read


@dataclass(frozen=True)
class Replaced:
    """`node`: who is away for so long, "" for nobody. `did`: the change that was made, as `add n4`; `state`: how far it is.
    `why`: what keeps it."""

    node: str = ""
    did: str = ""
    state: str = ""
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def replace_away(
    app: App, receiver: ReceiverSettings, progress: Progress = ignore_progress, *, wait: bool = True
) -> Replaced:
    """Make, or go on with, the one change that replaces a node. `wait`: until its data has moved.

    Errors as `change_nodes`: the next call goes on.
    """
    with require_cluster(app, receiver) as cluster:
        hours = cluster.settings.replace_hours
        if not hours:
            return Replaced()
        with app.ledger.read() as connection:
            change = table_rows.open_change(connection, receiver.name)
            seen = read_watch(connection, receiver.name)
            known = {row.node for row in table_rows.nodes_of_receiver(connection, receiver.name)}
            begun = {row.change_id for row in table_rows.newest_changes(connection, receiver.name, _MANY)}
            groups = _read_groups(
                cluster,
                read_group_logs(connection, receiver.name),
                seen,
                lacking=set(lacking_members(connection, receiver.name, cluster.table)),
            )
        ring = cluster.table.ring.names
        away_s = {node: row.at - row.since for node, row in seen.items() if row.misses >= cluster.settings.misses}
    if change is not None and change.change_id.startswith(_OURS):
        return _make_change(app, receiver, Wanted(change.kind, change.node, request=change.change_id), progress, wait=wait)
    gone = find_gone(ring, away_s, hours * 3600)
    if not gone:
        return Replaced()
    if change is not None:
        return Replaced(gone, why=describe_change(change))
    request = f"{_OURS}{gone}-{int(seen[gone].since)}"
    spares = app.settings.nodes.keys() - known if f"{request}-add" not in begun else ()
    wanted = choose_change(groups, gone, ring, spares, away_s, after_s=hours * 3600)
    if isinstance(wanted, str):
        return Replaced(gone, why=wanted)
    asked = Wanted(wanted.kind, wanted.node, request=f"{request}-{wanted.kind}")
    made = _make_change(app, receiver, asked, progress, wait=wait)
    return Replaced(gone, made.did, made.state)


def _make_change(app: App, receiver: ReceiverSettings, wanted: Wanted, progress: Progress, *, wait: bool) -> Replaced:
    state = change_nodes(app, receiver, wanted, progress, wait).state
    gone = wanted.request.removeprefix(_OURS).rsplit("-", 2)[0]
    return Replaced(gone, str(wanted), state)


def find_gone(ring: Sequence[str], away_s: Mapping[str, float], after_s: float) -> str:
    """Return the node that is away the longest, and for `after_s` at least; "" for none. Pure."""
    gone = [name for name in ring if away_s.get(name, -1.0) >= after_s]
    return max(gone, key=lambda name: away_s[name], default="")


def choose_change(
    groups: Mapping[str, Group],
    gone: str,
    ring: Sequence[str],
    spares: Collection[str],
    away_s: Mapping[str, float],
    *,
    after_s: float,
) -> Wanted | str:
    """Return the change of the nodes that comes next, or why there is none. Pure.

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
    return Wanted("add", min(spares)) if spares else Wanted("remove", gone)


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
