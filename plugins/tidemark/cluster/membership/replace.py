"""A node that stays away is replaced: others take its places, by the changes of the nodes that an operator would make.

    replaced = replace_away(app, receiver)        # by its own command or task: data moves for hours, and the watch goes on

A node that the watch has missed for `[cluster] replace_hours` leaves the cluster, and one of the settings that was never in
it joins, if there is one: the first that answers, has a free folder and room. With just as many nodes as replicas both are
one change, so that no group has a member that is away; else it joins behind, once all nodes answer. One change is made at a
time, and none while a group of the node has fewer members in step than its quorum. A change that was begun is gone on with,
also if the node is back meanwhile.

- *Its node cannot join, the table is not in force yet*: it is given up. The next call, or the same one, chooses anew.
- *The table is in force, and a node of it stays away*, the one that joined or another: nobody can bring that one its files,
  so the change never ends. The next one supersedes it: it replaces the node, and moves on what has not moved.
- *The operator rolled it back*: it is not begun again.

`choose_changes` is pure.

Source: seed 003 "Data replication of Meta Data" (characteristic 2); seed 001 "Two-phase method".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.app import App
from tidemark.cluster.health.watch import find_due
from tidemark.cluster.membership.change import GIVEN_UP, Wanted, change_nodes, roll_back
from tidemark.cluster.nodes.cluster import Cluster, describe_change, require_cluster, require_settings
from tidemark.cluster.replicas.core.placement import Kept, describe_unreplaced, plan_replacement
from tidemark.cluster.replicas.core.roles import Arbitrator, Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.deliver import lacking_members
from tidemark.cluster.replicas.promote import require_newest
from tidemark.errors import (
    CorruptionError,
    DiskFullError,
    LeaseHeldError,
    PermanentError,
    RetryableError,
    TidemarkError,
    UnreachableError,
)
from tidemark.ledger import journal
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.ledger.cluster.node_watch import PAUSE_SECONDS, WatchRow, read_watch
from tidemark.ledger.cluster.tables import ChangeRow
from tidemark.ledger.database import database_time
from tidemark.progress import Progress, ignore_progress
from tidemark.settings.model import ClusterSettings, ReceiverSettings

_OURS = "replace-"  # how the ids of these changes begin; then node, number, kind


@dataclass(frozen=True)
class Replaced:
    """`node`: who is away for so long, "" for nobody. `did`: the change that was made, as `replace n2 by n4`; `state`: how
    far it is. `why`: what keeps it. `exit_code`: 5 if something does."""

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
    hours = require_settings(app, receiver).replace_hours
    begun = _go_on(app, receiver, progress, wait)
    return begun or (_begin(app, receiver, progress, wait) if hours else Replaced())


def _go_on(app: App, receiver: ReceiverSettings, progress: Progress, wait: bool) -> Replaced | None:
    """Go on with a change of ours that is open. None without one, if it was given up since its node cannot join, and if a
    node stays away without which it cannot end."""
    with app.ledger.read() as connection:
        change = table_rows.open_change(connection, receiver.name)
    if change is None or not _gone_of(change):
        return None
    if change.is_in_force and _find_away(app, receiver):
        return None
    asked = Wanted(change.kind, change.node, request=change.change_id, gone=change.gone)
    try:
        return Replaced(_gone_of(change), str(asked), change_nodes(app, receiver, asked, progress, wait).state)
    except (UnreachableError, DiskFullError, CorruptionError, PermanentError):
        with app.ledger.read() as connection:
            now = table_rows.open_change(connection, receiver.name)
        if change.kind == "remove" or now is None or (now.change_id, now.state) != (change.change_id, "planned"):
            raise
        roll_back(app, receiver, given_up=change.change_id)
        return None


def _find_away(app: App, receiver: ReceiverSettings) -> bool:
    """Tell whether a node of the table in force is to be replaced."""
    with require_cluster(app, receiver) as cluster, app.ledger.read() as connection:
        return bool(find_due(read_watch(connection, receiver.name), cluster.table.ring.names, cluster.settings))


def _begin(app: App, receiver: ReceiverSettings, progress: Progress, wait: bool) -> Replaced:
    """Begin the change that comes next."""
    with require_cluster(app, receiver) as cluster:
        with app.ledger.read() as connection:
            change = table_rows.open_change(connection, receiver.name)
            seen = read_watch(connection, receiver.name)
            known = {row.node for row in table_rows.nodes_of_receiver(connection, receiver.name)}
            changes = table_rows.newest_changes(connection, receiver.name)
            given_up = {row.change_id for row in changes if journal.was_decided(connection, GIVEN_UP, row.change_id)}
            now = database_time(connection)
            groups = _read_groups(
                cluster,
                read_group_logs(connection, receiver.name),
                seen,
                lacking=set(lacking_members(connection, receiver.name, cluster.table)),
            )
        ring, replicas = cluster.table.ring.names, cluster.table.replicas
        due = find_due(seen, ring, cluster.settings)
        if due:
            require_newest(cluster)
    spares = sorted(app.settings.nodes.keys() - known)
    gone = next(iter(due), "")
    place = "" if gone or any(node not in seen or seen[node].misses for node in ring) else _find_open_place(changes)
    whose = gone or place
    if not whose or (place and (change is not None or not spares)):
        return Replaced()
    if change is not None and (not change.is_in_force or change.kind == "init"):  # what the first one moves, no node has
        return Replaced(gone, why=describe_change(change))
    looked = min(seen[node].at for node in ring if node in seen)
    if now - looked >= PAUSE_SECONDS:
        return Replaced(whose, why=f"the watch looked {(now - looked) / 3600:,.0f} h ago: run ./tidemark replica watch")
    chosen: tuple[Wanted, ...] | str = tuple(Wanted("add", name) for name in spares)
    if gone:
        silent = {node for node, row in seen.items() if row.misses}
        chosen = choose_changes(groups, gone, ring, spares, due, silent=silent, settings=cluster.settings)
    if isinstance(chosen, str):
        told = describe_unreplaced(gone, min(cluster.quorum, replicas), replicas)
        return Replaced(gone, why=f"{chosen}; {told}" if told else chosen)
    ours = [row for row in changes if _gone_of(row) == whose]
    since = seen[gone].since if gone else max(row.begun for row in ours if row.kind == "remove")
    undone = {
        str(row) for row in ours if row.state == "rolled_back" and row.begun >= since and row.change_id not in given_up
    }
    left = [wanted for wanted in chosen if str(wanted) not in undone]
    if not left:
        told = ", ".join(sorted(undone))
        return Replaced(
            whose, why=f"{told} was rolled back: ./tidemark cluster add or remove, by hand, or write another [nodes.NAME]"
        )
    unable = []
    for wanted in left:
        request, supersedes = f"{_OURS}{whose}-{len(ours)}-{wanted.kind}", change.change_id if change else ""
        asked = replace(wanted, request=request, supersedes=supersedes)
        try:
            return Replaced(whose, str(asked), change_nodes(app, receiver, asked, progress, wait).state)
        except LeaseHeldError:
            raise
        except TidemarkError as error:
            if (len(left) == 1 and gone) or _is_recorded(app, receiver, asked.request):
                raise
            unable.append(f"{wanted.node}: {error.message}")
    if place:
        return Replaced(place, why=f"it left, and no node can join for it: {'; '.join(unable)}")
    raise RetryableError(
        f"{gone} stays away, and no node can take its places: {'; '.join(unable)}",
        hint=f"bring one of them up, or ./tidemark cluster remove {gone}",
        subject=gone,
    )


def _find_open_place(changes: Collection[ChangeRow]) -> str:
    """Return a node that left by a change of ours, and for which none joined; "" for none."""
    left = Counter[str]()
    for row in changes:
        if row.state in ("done", "superseded") and (gone := _gone_of(row)):
            left[gone] += {"remove": 1, "add": -1}.get(row.kind, 0)
    return next((gone for gone in sorted(left) if left[gone] > 0), "")


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
    silent: Collection[str],
    settings: ClusterSettings,
) -> tuple[Wanted, ...] | str:
    """Return the changes of which the first possible one comes next, or why there is none. Pure.

    `groups`: header → those that have a log; `spares`: nodes of the settings that may join; `silent`: who did not answer the
    last round. Each group of the node must
    agree, by `plan_replacement`, and some node must be free for it.

    Where more nodes are there than a group has, the node leaves first. No other node may be away then: what the node had may
    belong there, and that never ends.
    """
    free = dict.fromkeys(ring, 1.0) | dict.fromkeys(spares, 0.0)
    free.pop(gone)
    for header, group in sorted(groups.items()):
        if any(member.name == gone for member in group.members):
            planned = plan_replacement(group, away_s, free, after_s=settings.replace_hours * 3600)
            if isinstance(planned, Kept):
                return f"group {header}: {planned.value}"
    joining = tuple(Wanted("replace", name, gone=gone) for name in sorted(spares))
    if len(ring) <= settings.replicas and joining:
        return joining
    away = next((node for node in ring if node != gone and node in silent), "")
    if away:
        return f"node {away} does not answer either, and what {gone} had may belong there"
    return (Wanted("remove", gone),)


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
        quorum = min(cluster.quorum, len(names))
        found[header] = Group(tuple(members), quorum, Arbitrator.ONLINE, settled)  # the ledger is it: it just answered
    return found


def _role_of(row: GroupLogRow, name: str, seen: WatchRow | None, *, lacks: bool) -> Role:
    if seen is None or seen.misses:
        return Role.OFFLINE
    if name == row.master and row.active and not row.operation:
        return Role.MASTER
    return Role.SLAVE if name in row.in_step and not lacks else Role.UNSYNCED
