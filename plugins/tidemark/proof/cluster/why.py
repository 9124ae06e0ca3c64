"""`why node:NAME`, `why slot:N` and `why group:NAME`: collect what the ledger says, ask the nodes, explain it.

`explain_part` reads the ledger and asks the nodes. `explain_node`, `explain_slot` and `explain_group` are pure: from
`NodeFacts`, `SlotFacts` and `GroupReplicasView` to words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.nodes.cluster import NodeStores, cluster_settings, command_of_change, require_settings
from tidemark.cluster.replicas.catch_up import as_now, schema_digest
from tidemark.cluster.replicas.core.placement import describe_unreplaced
from tidemark.cluster.replicas.core.roles import Role
from tidemark.cluster.replicas.deliver import late_members
from tidemark.errors import NotFoundError, TidemarkError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.ledger.cluster.node_watch import WatchRow, read_watch
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.cluster.tables import NodeRow
from tidemark.progress import format_count, format_size
from tidemark.proof.cluster.replicas import GroupReplicasView, ReplicaView, show_replicas
from tidemark.proof.cluster.show import table_of, view_of
from tidemark.proof.cluster.view import ChangeView, NodeView
from tidemark.proof.explanation import Explanation, format_time, join_names
from tidemark.settings.model import ReceiverSettings


def explain_part(app: App, subject: str) -> Explanation:
    """Explain `node:NAME`, `slot:N` or `group:NAME` of the settings' cluster. NotFoundError for one that does not exist."""
    receiver = next(r for r in app.settings.receivers.values() if cluster_settings(app, r) is not None)
    kind, _, name = subject.partition(":")
    explain = {"node": _explain_named_node, "slot": _explain_named_slot, "group": _explain_named_group}[kind]
    return explain(app, receiver, name)


def _explain_named_group(app: App, receiver: ReceiverSettings, name: str) -> Explanation:
    groups = {group.group: group for group in show_replicas(app, receiver).groups}
    if name not in groups:
        raise _not_found_error(f"group:{name}", "groups", ", ".join(groups))
    with app.ledger.read() as connection:
        watched = read_watch(connection, receiver.name)
    return explain_group(groups[name], watched)


def _explain_named_node(app: App, receiver: ReceiverSettings, name: str) -> Explanation:
    with app.ledger.read() as connection:
        view = view_of(connection, receiver.name, app.clock(), with_left=True)
        shown = next((node for node in view.nodes if node.name == name), None)
        if shown is None:
            raise _not_found_error(f"node:{name}", "nodes", ", ".join(node.name for node in view.nodes))
        states = move_rows.slot_states(connection, receiver.name, name)
        going = [row for row in copy_rows.copies_at(connection, receiver.name, name) if row.state == "going"]
        late = late_members(connection, receiver.name, table_of(connection, receiver.name))
        behind = as_now(connection, {name: late.get(name, [])})[name]
        settings, replicas = require_settings(app, receiver), table_of(connection, receiver.name).replicas
        row = next(row for row in table_rows.nodes_of_receiver(connection, receiver.name) if row.node == name)
        missed = read_watch(connection, receiver.name).get(name)
    groups = _groups_of(app, receiver, name) if row.state == "serving" else []
    away, free, behind = ("", None, behind) if row.state == "left" else _ask_node(app, receiver, row, behind)
    return explain_node(
        NodeFacts(
            node=shown,
            epoch=view.epoch,
            change=view.change,
            away=away,
            states=Counter(state for state, _ in states.values()),
            going=(len(going), sum(row.size for row in going)),
            behind=[f"{row.kind.replace('_', ' ')} {row.subject}" for row in behind],
            free=free,
            roles={group.group: member for group in groups for member in group.members if member.node == name},
            ahead=tuple(sorted({header for group in groups for header in group.ahead})),
            missed=missed,
            unreplaced=describe_unreplaced(name, min(settings.quorum, replicas), replicas),
        )
    )


def _groups_of(app: App, receiver: ReceiverSettings, name: str) -> list[GroupReplicasView]:
    """Return the groups of which the node is a member, as the nodes tell them."""
    return [one for one in show_replicas(app, receiver).groups if name in {member.node for member in one.members}]


def _ask_node(
    app: App, receiver: ReceiverSettings, row: NodeRow, late: list[OperationRow]
) -> tuple[str, int | None, list[OperationRow]]:
    """Return why the node is unusable, its free bytes, and which operations it lacks; its folder shows its schemas."""
    with app.ledger.read() as connection:
        identity = table_rows.cluster_identity(connection, receiver.name)
    with NodeStores(app, [row]) as stores:
        try:
            folder = stores.open_folder(row.node)
            if row.state != "joining":
                folder.require_owner(identity)
            lacks = [o for o in late if o.kind == "put" or schema_digest(folder, o.subject) != o.sha256]
            return "", folder.free_bytes(), lacks
        except TidemarkError as trouble:
            return trouble.message, None, late


def _explain_named_slot(app: App, receiver: ReceiverSettings, name: str) -> Explanation:
    with app.ledger.read() as connection:
        view = view_of(connection, receiver.name, app.clock())
        table = table_of(connection, receiver.name)
        if not name.isdecimal() or not 0 <= int(name) < table.slots:
            raise _not_found_error(f"slot:{name}", "slots", f"0 to {table.slots - 1}")
        slot = int(name)
        moves = move_rows.moves_of_epoch(connection, receiver.name, table.epoch, open_only=True)
        move = next((one for one in moves if one.slot == slot), None)
        told = move_rows.acknowledged_nodes(connection, receiver.name, table.epoch).get(slot, frozenset())
        states = move_rows.slot_states(connection, receiver.name)
        files, held = _measure_copy(connection, receiver.name, slot)
    return explain_slot(
        SlotFacts(
            slot=slot,
            members=table.group_of(slot),
            before=move.old if move else (),
            epoch=table.epoch,
            move=move.state if move else "",
            acknowledged=tuple(sorted(told)) if move else (),
            states={node: state for (node, at), (state, _) in states.items() if at == slot},
            done=move.bytes_done if move else 0,
            bytes=held,
            files=files,
            change=view.change,
        )
    )


def _measure_copy(connection: Connection, receiver: str, slot: int) -> tuple[int, int]:
    """Return files and bytes of one copy of a slot."""
    nodes = table_rows.nodes_of_receiver(connection, receiver)
    rows = [row for node in nodes for row in copy_rows.copies_at(connection, receiver, node.node, [slot])]
    sizes = {row.location: row.size for row in rows if row.state == "held"}
    return len(sizes), sum(sizes.values())


def _not_found_error(subject: str, what: str, known: str) -> NotFoundError:
    return NotFoundError(f"there is no {subject}; {what}: {known}", hint="./tidemark cluster show", subject=subject)


_SHOW = "./tidemark cluster show"
_REBUILD = "./tidemark ledger rebuild --replace"
_SHOWN = 5  # operations that a node lacks


@dataclass(frozen=True)
class NodeFacts:
    """`away`: why it could not be reached just now, '' where it answered. `states`: state → number of moving slots at it.
    `going`: files and bytes to be removed. `behind`: operations of its groups that it lacks, in words. `ahead`: groups that
    are ahead of the ledger and keep a group of its waiting."""

    node: NodeView
    epoch: int  # in force
    change: ChangeView | None
    away: str = ""
    states: Mapping[str, int] = field(default_factory=dict)
    going: tuple[int, int] = (0, 0)
    behind: Sequence[str] = ()
    free: int | None = None  # bytes
    roles: Mapping[str, ReplicaView] = field(default_factory=dict)  # by the header of the group
    ahead: tuple[str, ...] = ()
    missed: WatchRow | None = None
    unreplaced: str = ""  # why nobody replaces it by itself, "" if somebody can


@dataclass(frozen=True)
class SlotFacts:
    """`move`: state of its move, '' where it does not move. `states`: node → state."""

    slot: int
    members: tuple[str, ...]
    before: tuple[str, ...]
    epoch: int
    move: str = ""
    acknowledged: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    done: int = 0  # bytes copied
    bytes: int = 0  # of one copy
    files: int = 0
    change: ChangeView | None = None

    @property
    def lacking_members(self) -> tuple[str, ...]:
        """Members that have not acknowledged a complete copy."""
        return tuple(name for name in self.members if name not in self.acknowledged)


def explain_node(f: NodeFacts) -> Explanation:
    """Explain a data node: whether it serves, what it lacks, what it still has to give."""
    node = f.node
    evidence = [
        f"{node.store}: heads {node.slots:,} slots, holds copies of {node.holds:,}, {format_size(node.bytes)}",
        _describe_table(f),
        *(f"{count:,} slots are {state}" for state, count in sorted(f.states.items())),
        *(f"it lacks: {operation}" for operation in f.behind[:_SHOWN]),
    ]
    if f.going[0]:
        evidence.append(f"{f.going[0]:,} files ({format_size(f.going[1])}) go when their grace is over")
    evidence += _describe_roles(f.roles)
    if f.missed is not None and f.missed.misses:
        since = format_time(f.missed.since)
        evidence.append(f"the watch had no answer {f.missed.misses} times in a row; the node counts as away since {since}")
    if f.missed is not None and f.missed.ahead:
        evidence.append(f"the last round of the watch found group {f.missed.ahead} ahead of the ledger")
    if f.free is not None:
        evidence.append(f"{format_size(f.free)} free")
    if f.change is not None:
        evidence.append(_describe_change(f.change))
    state, cause, following, wait = _node_state(f)
    final = state in ("serving", "left")
    return Explanation(f"node:{node.name}", "node", state, cause, tuple(evidence), following, wait, final)


def _describe_table(f: NodeFacts) -> str:
    if f.node.state == "left" and not f.node.epoch:
        return "its folder was let go: nothing of ours lies there"
    return f"table {f.node.epoch} lies in its folder, {f.epoch} is in force"


def _node_state(f: NodeFacts) -> tuple[str, str, str, str]:
    """Return (state, cause, next, if you wait)."""
    node, go_on = f.node, _change_command(f.change)
    coming = f.states.get("pulling", 0) + f.states.get("pulling_writable", 0)
    if node.state == "left":
        return "left", "everything it had is with others, proved", "", ""
    if f.away:
        return (
            "away",
            f.away,
            "./tidemark doctor; is the machine up, its disk mounted?",
            "reads go to the other copies, loads commit while a quorum answers, and it catches up when it is back"
            + (f"; {f.unreplaced}" if f.unreplaced else ""),
        )
    if f.ahead:
        cause = f"the ledger is older than the nodes: they are ahead in group {join_names(f.ahead)}"
        return "refused", cause, _REBUILD, "nothing is written"
    if node.state == "joining":
        cause = "its change is not in force yet: nothing moves before every group has a quorum that knows the new table"
        return "joining", cause, f"{go_on}, or ./tidemark cluster roll-back", "nothing: a change that stopped waits"
    if node.state == "leaving":
        cause = (
            f"{f.states.get('sending', 0):,} slots of its are not at their new nodes yet; it stays readable until they are"
        )
        return "leaving", cause, go_on, "the migration at work goes on; one that died waits for that command"
    if coming:
        cause = f"{coming:,} slots are on their way to it; readers ask the old groups, too"
        return "filling", cause, go_on, "the migration at work goes on; one that died waits for that command"
    if f.behind:
        return (
            "behind",
            f"it lacks {len(f.behind):,} operations of its groups",
            "./tidemark load",
            "the next load brings them",
        )
    fallen = [header for header, member in f.roles.items() if member.role is Role.UNSYNCED and member.version]
    if fallen:
        cause = f"it is not in step in group {join_names(fallen)}: {f.roles[fallen[0]].why}"
        return "unsynced", cause, f"./tidemark replica recover {node.name}", "the next catch-up or the DAG brings it back"
    if f.states.get("sending") or f.states.get("sent"):
        count = f.states.get("sending", 0) + f.states.get("sent", 0)
        return "giving", f"{count:,} slots leave it", go_on, "the migration at work goes on; one that died waits"
    return "serving", "it has what the table says", "", ""


def _describe_roles(roles: Mapping[str, ReplicaView]) -> list[str]:
    """One line a role; a line of its own for each group in which it is not in step."""
    of: dict[Role, list[str]] = {}
    for header, member in sorted(roles.items()):
        of.setdefault(member.role, []).append(f"{header} at version {member.version}")
    whole = [f"{role.value} of group {', '.join(of[role])}" for role in (Role.MASTER, Role.SLAVE) if role in of]
    odd = [(h, m) for h, m in sorted(roles.items()) if m.role not in (Role.MASTER, Role.SLAVE)]
    return whole + [
        f"{member.role.value} in group {header}: {'; '.join(filter(None, (member.why, member.recovery)))}"
        for header, member in odd[:_SHOWN]
    ]


def explain_group(group: GroupReplicasView, watched: Mapping[str, WatchRow]) -> Explanation:
    """Explain a data group: its master, who is not in step, and what it waits for."""
    evidence = [f"its last settled record is version {group.version} of epoch {group.epoch}"]
    for member in group.members:
        missed = watched[member.node].misses if member.node in watched else 0
        words = f"{member.node}: {member.role.value} at version {member.version}, epoch {member.epoch}"
        words += "".join(f"; {said}" for said in (member.why, member.recovery) if said)
        evidence.append(words + (f"; missed {format_count(missed, 'round')} of the watch" if missed else ""))
    about = f"group:{group.group}", "group"
    masters = [member.node for member in group.members if member.role is Role.MASTER]
    fallen = [member.node for member in group.members if member.role in (Role.UNSYNCED, Role.OFFLINE)]
    if group.ahead:
        return Explanation(*about, "refused", group.waits, tuple(evidence), _REBUILD, "nothing is written")
    if not group.epoch:
        return Explanation(*about, "new", group.waits, tuple(evidence), final=True)
    if not masters:
        wait = "the next load, or the watch, makes a master once enough members answer"
        cause = f"{group.waits or 'it has no master'}; not in step: {join_names(fallen) or 'nobody'}"
        return Explanation(*about, "without master", cause, tuple(evidence), "./tidemark replica watch", wait)
    if fallen:
        cause = f"{masters[0]} is its master; not in step: {join_names(fallen)}"
        wait = "the next catch-up or the DAG recovers who answers"
        return Explanation(*about, "short", cause, tuple(evidence), f"./tidemark replica recover group:{group.group}", wait)
    cause = f"{masters[0]} is its master, all members are in step"
    return Explanation(*about, "in step", cause, (*evidence, group.waits) if group.waits else tuple(evidence), final=True)


def explain_slot(f: SlotFacts) -> Explanation:
    """Explain a slot: its members, and what its move waits for."""
    evidence = [
        f"group {', '.join(f.members)} at epoch {f.epoch}; {f.files:,} files, {format_size(f.bytes)} a copy",
        *(f"at {node} it is {state}" for node, state in sorted(f.states.items())),
    ]
    if f.before:
        evidence.append(f"before this epoch: {', '.join(f.before)}")
    if f.move:
        evidence.append(f"{format_size(f.done)} came; acknowledged by {', '.join(f.acknowledged) or 'nobody'}")
    if f.change is not None:
        evidence.append(_describe_change(f.change))
    subject = f"slot:{f.slot}"
    if not f.move:
        return Explanation(subject, "slot", "settled", "every member of its group is its owner", tuple(evidence), final=True)
    go_on = _change_command(f.change)
    if f.lacking_members and f.move == "moving":
        cause = f"{join_names(f.lacking_members)} did not acknowledge it yet"
        wait = "readers ask both groups; the migration at work goes on, one that died waits for that command"
        return Explanation(subject, "slot", "moving", cause, tuple(evidence), go_on, wait)
    cause = "its new group has all of it; what the old one has is to be removed"
    return Explanation(subject, "slot", "acknowledged", cause, tuple(evidence), go_on, "the old files go after their grace")


def _change_command(change: ChangeView | None) -> str:
    return command_of_change(change.command) if change is not None else _SHOW


def _describe_change(change: ChangeView) -> str:
    return f"{change.command} of {change.actor}, begun {format_time(change.begun)}, is {change.state}"
