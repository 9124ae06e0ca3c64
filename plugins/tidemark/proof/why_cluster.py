"""Why is this node or slot as it is? Pure: from what a flow gathered to words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemark.progress import size
from tidemark.proof.cluster_view import ChangeView, NodeView
from tidemark.proof.explanation import Explanation, listed, when

_SHOW = "./tidemark cluster show"
_SHOWN = 5  # operations that a node lacks


@dataclass(frozen=True)
class NodeFacts:
    """`away`: why it could not be reached just now, '' where it answered. `states`: state → slots that move at it. `going`:
    files and bytes to be removed. `behind`: operations of its groups that it lacks, in words."""

    node: NodeView
    epoch: int  # in force
    change: ChangeView | None
    away: str = ""
    states: Mapping[str, int] = field(default_factory=dict)
    going: tuple[int, int] = (0, 0)
    behind: Sequence[str] = ()
    free: int | None = None  # bytes


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
    done: int = 0  # bytes that came
    bytes: int = 0  # of one copy
    files: int = 0
    change: ChangeView | None = None

    @property
    def lacking(self) -> tuple[str, ...]:
        """Members that did not say yet that they have all of it."""
        return tuple(name for name in self.members if name not in self.acknowledged)


def explain_node(f: NodeFacts) -> Explanation:
    """A data node: whether it serves, what it lacks, what it still has to give."""
    node = f.node
    evidence = [
        f"{node.store}: heads {node.slots:,} slots, holds copies of {node.holds:,}, {size(node.bytes)}",
        _table(f),
        *(f"{count:,} slots are {state}" for state, count in sorted(f.states.items())),
        *(f"it lacks: {operation}" for operation in f.behind[:_SHOWN]),
    ]
    if f.going[0]:
        evidence.append(f"{f.going[0]:,} files ({size(f.going[1])}) go when their grace is over")
    if f.free is not None:
        evidence.append(f"{size(f.free)} free")
    if f.change is not None:
        evidence.append(_change(f.change))
    state, cause, following, wait = _node_state(f)
    final = state in ("serving", "left")
    return Explanation(f"node:{node.name}", "node", state, cause, tuple(evidence), following, wait, final)


def _table(f: NodeFacts) -> str:
    if f.node.state == "left" and not f.node.epoch:
        return "its folder was let go: nothing of ours lies there"
    return f"table {f.node.epoch} lies in its folder, {f.epoch} is in force"


def _node_state(f: NodeFacts) -> tuple[str, str, str, str]:
    """(state, cause, next, if you wait)."""
    node, go_on = f.node, _go_on(f.change)
    coming = f.states.get("pulling", 0) + f.states.get("pulling_writable", 0)
    if node.state == "left":
        return "left", "everything it had is with others, proved", "", ""
    if f.away:
        return (
            "away",
            f.away,
            "./tidemark doctor; is the machine up, its disk mounted?",
            "reads go to the other copies, loads commit while a quorum answers, and it catches up when it is back",
        )
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
    if f.states.get("sending") or f.states.get("sent"):
        count = f.states.get("sending", 0) + f.states.get("sent", 0)
        return "giving", f"{count:,} slots leave it", go_on, "the migration at work goes on; one that died waits"
    return "serving", "it has what the table says", "", ""


def explain_slot(f: SlotFacts) -> Explanation:
    """A slot: who has it, and what its move waits for."""
    evidence = [
        f"group {', '.join(f.members)} at epoch {f.epoch}; {f.files:,} files, {size(f.bytes)} a copy",
        *(f"at {node} it is {state}" for node, state in sorted(f.states.items())),
    ]
    if f.before:
        evidence.append(f"before this epoch: {', '.join(f.before)}")
    if f.move:
        evidence.append(f"{size(f.done)} came; acknowledged by {', '.join(f.acknowledged) or 'nobody'}")
    if f.change is not None:
        evidence.append(_change(f.change))
    subject = f"slot:{f.slot}"
    if not f.move:
        return Explanation(subject, "slot", "settled", "every member of its group is its owner", tuple(evidence), final=True)
    go_on = _go_on(f.change)
    if f.lacking and f.move == "moving":
        cause = f"{listed(f.lacking)} did not acknowledge it yet"
        wait = "readers ask both groups; the migration at work goes on, one that died waits for that command"
        return Explanation(subject, "slot", "moving", cause, tuple(evidence), go_on, wait)
    cause = "its new group has all of it; what the old one has is to be removed"
    return Explanation(subject, "slot", "acknowledged", cause, tuple(evidence), go_on, "the old files go after their grace")


def _go_on(change: ChangeView | None) -> str:
    return f"./tidemark cluster {change.said}" if change is not None else _SHOW


def _change(change: ChangeView) -> str:
    return f"{change.said} of {change.actor}, begun {when(change.begun)}, is {change.state}"
