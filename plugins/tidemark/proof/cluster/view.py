"""A receiver's cluster for a person: nodes, groups, slot moves and their progress. Values that others fill.

Slots are counted by their header node, so the nodes' counts add up to all of them. `holds` counts the slots that a node has
a copy of. Source: CONTRACT §1 (`cluster show`, `cluster route`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.cluster.migration.pull import PathView
from tidemark.proof.as_of import format_iso
from tidemark.proof.explanation import join_names

_OLDER = "the ledger is older than the nodes: they are ahead in group {}; ./tidemark ledger rebuild --replace"
Span = tuple[int, int]
"""Slots from one to another, both inclusive."""


@dataclass(frozen=True)
class NodeView:
    """`slots`: how many it heads. `holds`: of how many it has or shall have a copy. `epoch`: newest table in its folder."""

    name: str
    state: str  # joining | serving | leaving | left
    slots: int
    holds: int
    bytes: int
    store: str
    epoch: int

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class GroupView:
    """A data group: the members that have a copy of its slots. `spans`: the slots, ascending."""

    header: str
    members: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def slots(self) -> int:
        return count_slots(self.spans)

    def as_json(self) -> dict[str, Any]:
        return {
            "header": self.header,
            "members": list(self.members),
            "slots": self.slots,
            "ranges": [list(s) for s in self.spans],
        }


@dataclass(frozen=True)
class MovingView:
    """Slots that move from and to the same nodes. `bytes`: to copy, each slot once per member of `new` that lacks it.
    `done`: copied."""

    spans: tuple[Span, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    state: str  # moving | acknowledged: every member of `new` has them, old copies remain
    bytes: int
    done: int

    @property
    def slots(self) -> int:
        return count_slots(self.spans)

    def as_json(self) -> dict[str, Any]:
        return {
            "slots": self.slots,
            "ranges": [list(s) for s in self.spans],
            "from": list(self.old),
            "to": list(self.new),
            "state": self.state,
            "bytes": self.bytes,
            "done": self.done,
        }


@dataclass(frozen=True)
class ChangeView:
    """The unfinished change."""

    change_id: str
    kind: str  # init | add | remove | rebalance | replace
    node: str
    state: str  # planned | swapped | migrating
    actor: str
    begun: float
    gone: str = ""  # who leaves by a `replace`

    @property
    def command(self) -> str:
        return f"replace {self.gone} by {self.node}" if self.gone else f"{self.kind} {self.node}".strip()

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "begun": format_iso(self.begun)}


@dataclass(frozen=True)
class ClusterView:
    """The whole cluster. `owners`: header by slot. `made`: time of the view, seconds since 1970. `ahead`: groups that are
    ahead of the ledger, by the last round of the watch."""

    receiver: str
    epoch: int
    replicas: int
    owners: Sequence[str]
    nodes: tuple[NodeView, ...]
    groups: tuple[GroupView, ...]
    moving: tuple[MovingView, ...]
    change: ChangeView | None
    made: float
    roads: tuple[PathView, ...] = ()  # used under the table in force
    ahead: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        return len(self.owners)

    @property
    def older(self) -> str:
        """What `ahead` means, and the next command; "" if no group is."""
        return _OLDER.format(join_names(self.ahead)) if self.ahead else ""

    @property
    def moving_slots(self) -> int:
        return sum(one.slots for one in self.moving)

    @property
    def moving_bytes(self) -> int:
        return sum(one.bytes for one in self.moving)

    @property
    def moved_bytes(self) -> int:
        return sum(one.done for one in self.moving)

    def as_json(self) -> dict[str, Any]:
        return {
            "receiver": self.receiver,
            "epoch": self.epoch,
            "slots": self.slots,
            "replicas": self.replicas,
            "nodes": [one.as_json() for one in self.nodes],
            "groups": [one.as_json() for one in self.groups],
            "moving": [one.as_json() for one in self.moving],
            "change": self.change.as_json() if self.change else None,
            "roads": [one.as_json() for one in self.roads],
            "ahead": list(self.ahead),
        }


@dataclass(frozen=True)
class RouteView:
    """The slot and nodes to which data of a database in a time partition is written. `partition` None: its schema. `before`:
    nodes that readers also ask while the slot moves. `known`: the catalog has a file of the database."""

    database: str
    partition: int | None
    slot: int
    members: tuple[str, ...]
    before: tuple[str, ...]
    epoch: int
    known: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "header": self.members[0],
            "members": list(self.members),
            "epoch": self.epoch,
            "before": list(self.before),
            "database": self.database,
            "partition": self.partition,
            "known": self.known,
        }


def spans_of(slots: Iterable[int]) -> tuple[Span, ...]:
    """Return runs of adjacent slots, ascending."""
    found: list[Span] = []
    for slot in sorted(slots):
        if found and found[-1][1] + 1 == slot:
            found[-1] = (found[-1][0], slot)
        else:
            found.append((slot, slot))
    return tuple(found)


def count_slots(spans: Iterable[Span]) -> int:
    return sum(last - first + 1 for first, last in spans)


def spans_text(spans: Sequence[Span], most: int = 3) -> str:
    """Format spans: `0-333, 2000-2333 and 4 more`."""
    words = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:most]]
    return ", ".join(words) + (f" and {len(spans) - most} more" if len(spans) > most else "")
