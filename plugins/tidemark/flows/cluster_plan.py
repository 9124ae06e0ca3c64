"""What a change of the nodes would move, from where to where, and how long that takes; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.app import App
from tidemark.cluster import change_plan
from tidemark.cluster.balance import balance_of
from tidemark.cluster.change_plan import ChangePlan
from tidemark.cluster.ring import Group
from tidemark.errors import UsageError
from tidemark.flows.cluster_nodes import Cluster
from tidemark.flows.cluster_stock import Stock, read_stock
from tidemark.flows.cluster_wanted import Wanted, joining_row, require_cluster, require_settings
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import tables as table_rows
from tidemark.settings.model import ClusterSettings, ReceiverSettings

_MANY = 10_000  # changes that are looked at
_UNMEASURED = 100e6  # bytes a second a plan reckons with before anything has moved


@dataclass(frozen=True)
class MoveGroup:
    """Slots that go from one group to another. `ranges`: (first, last), both inclusive; `bytes` cross a line."""

    slots: int
    ranges: tuple[tuple[int, int], ...]
    old: Group
    new: Group
    bytes: int


@dataclass(frozen=True)
class NodeGain:
    """What comes to a node. `seconds`: at the rate of the last migration, or the cap of the settings."""

    node: str
    slots: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class PlanReport:
    """What a change would do; nothing was changed. `epoch`: of the table it would put in force."""

    epoch: int
    moves: tuple[MoveGroup, ...]
    nodes: tuple[NodeGain, ...]
    slots: int
    bytes: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        moves = [{"slots": m.slots, "ranges": m.ranges, "from": m.old, "to": m.new, "bytes": m.bytes} for m in self.moves]
        return {"ok": True, **asdict(self), "moves": moves}


def plan_change(app: App, receiver: ReceiverSettings, wanted: Wanted) -> PlanReport:
    """What it would move, from where to where; changes nothing. Errors as `change` raises them for what cannot be."""
    settings = require_settings(app, receiver)
    with require_cluster(app, receiver) as cluster:
        if wanted.kind == "add":
            joining_row(app, receiver, wanted)
        plan, stock = planned(app, cluster, wanted)
        rate = _rate(app, receiver, settings)
    return _report(plan, stock, rate)


def planned(app: App, cluster: Cluster, wanted: Wanted) -> tuple[ChangePlan, Stock]:
    """The plan of a change on the table in force, and what there is to move. Errors as `change_plan.plan_change`."""
    with app.ledger.read() as connection:
        stock = read_stock(connection, cluster.receiver.name, cluster.table)
        gone = {row.node for row in table_rows.nodes(connection, cluster.receiver.name) if row.state == "left"}
    if wanted.kind == "remove" and wanted.node in gone:
        raise UsageError(f"{wanted.node} has left the cluster", hint="./tidemark cluster show", subject=wanted.node)
    sizes, by = stock.sizes(), cluster.settings.balance
    balance = balance_of(by, dict(stock.writes) if by == "writes" else sizes)
    return change_plan.plan_change(cluster.table, wanted.kind, wanted.node, sizes, balance), stock


def _report(plan: ChangePlan, stock: Stock, rate: float) -> PlanReport:
    sizes = stock.sizes()
    groups: dict[tuple[Group, Group], list[tuple[int, int]]] = {}
    for move in plan.moves:
        groups.setdefault((move.old, move.new), []).append((move.first, move.last))
    moves = tuple(_group(old, new, ranges, sizes) for (old, new), ranges in sorted(groups.items()))
    slots, gained = plan.gained_slots(), plan.gained_bytes(sizes)
    nodes = tuple(NodeGain(name, slots[name], gained[name], gained[name] / rate) for name in sorted(slots))
    return PlanReport(plan.new.epoch, moves, nodes, plan.slots, plan.bytes, plan.bytes / rate)


def _group(old: Group, new: Group, ranges: Sequence[tuple[int, int]], sizes: Mapping[int, int]) -> MoveGroup:
    slots = [slot for first, last in ranges for slot in range(first, last + 1)]
    lacking = sum(name not in old for name in new)
    return MoveGroup(len(slots), tuple(ranges), old, new, lacking * sum(sizes.get(slot, 0) for slot in slots))


def _rate(app: App, receiver: ReceiverSettings, settings: ClusterSettings) -> float:
    """Bytes a second to reckon with: the cap, or what the last change that moved anything came to, pauses included."""
    caps = [cap for cap in (settings.bandwidth, receiver.bandwidth) if cap]
    if caps:
        return min(caps)
    with app.ledger.read() as connection:
        for row in table_rows.changes(connection, receiver.name, _MANY):
            if row.state == "done" and row.ended is not None and row.ended > row.begun:
                moved = sum(move.bytes_done for move in move_rows.moves(connection, receiver.name, row.from_epoch + 1))
                if moved:
                    return moved / (row.ended - row.begun)
    return _UNMEASURED
