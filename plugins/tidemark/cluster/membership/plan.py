"""Plan a change of the nodes before anything is done: the new table, the slots that move, the nodes that must get the table.

Pure: the same table, request and sizes give the same plan. Source: seed 001 "Two-phase method", "Data repartitioning";
docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tidemark.cluster.migration import plan
from tidemark.cluster.migration.plan import Move
from tidemark.cluster.slots.balance import Balance, Owners, even_slots, first_owners, original_balance
from tidemark.cluster.slots.hash_ring import Group, Node, SlotHash, identifier_of
from tidemark.cluster.slots.states import SlotEvent, SlotState, next_state
from tidemark.cluster.slots.table import PartitionTable, begin_table
from tidemark.errors import UsageError

KINDS = ("init", "add", "remove", "rebalance", "replace")

SlotStates = Mapping[tuple[str, int], SlotState]
"""(node, slot) → state, of slots that move at a node; no entry: null."""


@dataclass(frozen=True)
class ChangePlan:
    """A planned change. `old`: None for the first table. `slots`: how many move. `bytes`: sent over the network; a slot
    counts once for each new member that lacks it. `handed`: slots that go to another group of the same nodes. Nothing is
    sent, but no other group has the operations that a member still lacks, so it must acknowledge that it lacks none."""

    old: PartitionTable | None
    new: PartitionTable
    moves: tuple[Move, ...]
    slots: int
    bytes: int
    handed: tuple[Move, ...] = ()

    @property
    def takers(self) -> frozenset[str]:
        """The nodes that must get the table before it is in force: every member of every group, old and new."""
        return frozenset(self.new.ring.names) | frozenset(self.old.ring.names if self.old else ())

    def without_quorum(self, taken: Collection[str], quorum: int) -> tuple[Group, ...]:
        """Return the groups, old and new, with too few members that have the table: it must not come into force."""
        groups = {*self.new.groups_by_header().values(), *(self.old.groups_by_header().values() if self.old else ())}
        return tuple(sorted(group for group in groups if sum(name in taken for name in group) < min(quorum, len(group))))

    def gained_slots(self) -> dict[str, int]:
        """Return node → number of slots it gains."""
        return self._sum_gained(None)

    def gained_bytes(self, sizes: Mapping[int, int]) -> dict[str, int]:
        """Return node → bytes it gains. `sizes`: bytes by slot."""
        return self._sum_gained(sizes)

    def swap_states(self, known: SlotStates, *, supersedes: bool = False) -> dict[tuple[str, int], SlotState]:
        """Return the slot states after the swap: nodes that gain a slot pull it, nodes that lose one send it. If it
        `supersedes` a change, all states of that one end.

        OutcomeUnknownError if a slot is still in a state of an earlier change.
        """
        ended = dict.fromkeys(known, SlotState.NULL) if supersedes else {}
        before = ended if supersedes else known
        return ended | {key: next_state(before.get(key, SlotState.NULL), event) for key, event in self._slot_events()}

    def _slot_events(self) -> Iterable[tuple[tuple[str, int], SlotEvent]]:
        for move in self.moves:
            for slot in move.slots:
                yield from (((name, slot), SlotEvent.GAINED) for name in move.new if name not in move.old)
                yield from (((name, slot), SlotEvent.LOST) for name in move.deleting)

    def _sum_gained(self, sizes: Mapping[int, int] | None) -> dict[str, int]:
        """Bytes by node; without `sizes`, slots by node."""
        found: dict[str, int] = {}
        for move in self.moves:
            amount = len(move.slots) if sizes is None else sum(sizes.get(slot, 0) for slot in move.slots)
            for name in move.new:
                if name not in move.old:
                    found[name] = found.get(name, 0) + amount
        return found


def plan_change(
    table: PartitionTable,
    kind: str,
    node: str,
    sizes: Mapping[int, int],
    balance: Balance = even_slots,
    *,
    gone: str = "",
    supersedes: bool = False,
) -> ChangePlan:
    """Plan a change. `kind`: add | remove | rebalance | replace; `node`: the one that joins or leaves, else ""; `gone`: the
    one that is replaced by `node`; `sizes`: bytes by slot.

    UsageError for a node already there, an unknown one, or too few nodes for all copies. RetryableError while slots move,
    unless it `supersedes` the change that moves them.
    """
    if kind == "add":
        new = table.with_node(Node(identifier_of(node), node), balance)
    elif kind == "remove":
        new = table.without_node(node, balance, supersedes=supersedes)
    elif kind == "replace":
        new = table.replace_node(gone, Node(identifier_of(node), node), balance, supersedes=supersedes)
    elif kind == "rebalance":
        new = table.rebalance_slots(balance)
    else:
        raise UsageError(f"{kind!r} is no change of the nodes; there are {', '.join(KINDS)}", hint="./tidemark cluster plan")
    return _make_plan(table, new, plan.plan_moves(new), sizes)


def first_table(
    names: Collection[str], replicas: int, slots: int, kind: SlotHash, balance: Balance = even_slots
) -> PartitionTable:
    """Make the table of a new cluster, epoch 1: equal numbers of slots, or the original's ranges for its balance.

    UsageError if there are fewer nodes than copies.
    """
    nodes = sorted(Node(identifier_of(name), name) for name in names)
    ring = [node.name for node in nodes]
    owners: Owners = ()
    if ring:
        owners = first_owners(slots, ring) if balance is original_balance else even_slots(("",) * slots, ring)
    return begin_table(nodes, replicas, owners, kind)


def plan_init(table: PartitionTable, filled: Collection[int], sizes: Mapping[int, int]) -> ChangePlan:
    """Plan the first table: the receiver's data moves from no group to its groups. `filled`: slots with a file or a schema;
    `sizes`: bytes by slot."""
    moves = tuple(Move(table.epoch, slot, slot, (), table.group_of(slot)) for slot in sorted(filled))
    return _make_plan(None, table, moves, sizes)


def _make_plan(
    old: PartitionTable | None, new: PartitionTable, moves: tuple[Move, ...], sizes: Mapping[int, int]
) -> ChangePlan:
    return ChangePlan(old, new, moves, sum(len(m.slots) for m in moves), _count_bytes(moves, sizes), _handed_moves(old, new))


def _handed_moves(old: PartitionTable | None, new: PartitionTable) -> tuple[Move, ...]:
    if old is None:
        return ()
    pairs = enumerate(zip(old.owners, new.owners, strict=True))
    slots = [slot for slot, (before, now) in pairs if before != now and slot not in new.moving]
    return tuple(Move(new.epoch, slot, slot, old.group_of(slot), new.group_of(slot)) for slot in slots)


def _count_bytes(moves: Iterable[Move], sizes: Mapping[int, int]) -> int:
    return sum(
        sum(name not in move.old for name in move.new) * sum(sizes.get(slot, 0) for slot in move.slots) for move in moves
    )
