"""The partition table: which group holds which slot, with a version, and which slots of the previous version still move.

It is a value: a change of the nodes gives a new table with the next epoch. Groups are computed, not stored: the header and
the ring determine them. Source: seed 001 "SlotPartitionTable"; research/iotdb.md §3.2.

`encode_table` and `decode_table` convert it to bytes, for the ledger and for nodes: JSON with names, numbers and ranges,
compressed. The first byte is the version of this form. 10,000 slots and 1,000 nodes are about 20 KB; the original writes the
whole group at every slot. A table that cannot be read raises CorruptionError.
"""

from __future__ import annotations

import json
import zlib
from array import array
from base64 import b85decode, b85encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from tidemark.cluster.slots.balance import Balance, Owners
from tidemark.cluster.slots.hash_ring import Group, Node, Ring, SlotHash, data_slot, schema_slot
from tidemark.errors import CorruptionError, RetryableError, SchemaTooNewError, UsageError
from tidemark.formats.json_stream import parse_json


class Route(NamedTuple):
    """The nodes of a slot: data is written to all `members`. `before`: others that readers ask while the slot moves."""

    epoch: int
    slot: int
    members: Group
    before: Group = ()

    @property
    def header(self) -> str:
        return self.members[0]


@dataclass(frozen=True)
class PartitionTable:
    """One version of the table. `owners`: header by slot. `moving`: slot → its previous group, until it has moved."""

    epoch: int
    replicas: int
    ring: Ring
    owners: Owners
    hash: SlotHash = SlotHash.FULL
    moving: Mapping[int, Group] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        return len(self.owners)

    def group_of(self, slot: int) -> Group:
        return self.ring.group_of_header(self.owners[slot], self.replicas)

    def groups_by_header(self) -> dict[str, Group]:
        """Return every group by its header along the ring, also groups without slots."""
        return {name: self.ring.group_of_header(name, self.replicas) for name in self.ring.names}

    def route_data(self, database: str, partition: int) -> Route:
        """Return the route of a database's data in a time partition."""
        return self._route_slot(data_slot(database, partition, self.slots, self.hash))

    def route_schema(self, database: str) -> Route:
        """Return the route of a database's schema, by its name alone."""
        return self._route_slot(schema_slot(database, self.slots, self.hash))

    def holds_slot(self, node: str, slot: int) -> bool:
        """Return whether the node is in the slot's group at this epoch."""
        return node in self.group_of(slot)

    def with_node(self, node: Node, balance: Balance) -> PartitionTable:
        """Return the next table, with a node added. UsageError if it is there already, RetryableError while slots move."""
        self._require_settled(f"add {node.name}")
        return self._next_table(self._join_ring(node), balance)

    def without_node(self, name: str, balance: Balance, *, supersedes: bool = False) -> PartitionTable:
        """Return the next table, without a node. UsageError for an unknown one, or if too few would be left.

        `supersedes`: also while slots move; they then move on to the nodes of the next table.
        """
        self._require_leaving(name, "remove", supersedes)
        if len(self.ring) <= self.replicas:
            raise UsageError(
                f"{len(self.ring)} nodes hold {self.replicas} copies of everything: none of them can leave",
                hint="add a node first",
                subject=name,
            )
        return self._next_table(self.ring.without_node(name), balance)

    def replace_node(self, name: str, node: Node, balance: Balance, *, supersedes: bool = False) -> PartitionTable:
        """Return the next table, with `node` and without the node `name`. Errors and `supersedes` as `without_node`."""
        self._require_leaving(name, "replace", supersedes)
        return self._next_table(self._join_ring(node).without_node(name), balance)

    def rebalance_slots(self, balance: Balance) -> PartitionTable:
        """Return the next table, with the same nodes."""
        self._require_settled("rebalance")
        return self._next_table(self.ring, balance)

    def with_moved(self, slots: Iterable[int]) -> PartitionTable:
        """Mark these slots as moved. The epoch stays: writes go to the same nodes as before."""
        gone = set(slots)
        return replace(self, moving={slot: group for slot, group in self.moving.items() if slot not in gone})

    def _route_slot(self, slot: int) -> Route:
        return Route(self.epoch, slot, self.group_of(slot), self.moving.get(slot, ()))

    def _require_leaving(self, name: str, what: str, supersedes: bool) -> None:
        if not supersedes:
            self._require_settled(f"{what} {name}")
        if name not in self.ring:
            raise UsageError(f"{name} is no node of the cluster", hint="./tidemark cluster show", subject=name)

    def _join_ring(self, node: Node) -> Ring:
        if node.name in self.ring:
            raise UsageError(
                f"{node.name} is a node of the cluster already", hint="./tidemark cluster show", subject=node.name
            )
        if any(other.identifier == node.identifier for other in self.ring):
            raise UsageError(
                f"{node.name} would stand at the same place of the ring as another node",
                hint="give it another name",
                subject=node.name,
            )
        return self.ring.with_node(node)

    def _next_table(self, ring: Ring, balance: Balance) -> PartitionTable:
        """Make the next table. Slots whose group changes its members are `moving`.

        So is a slot that still moves. Its files are at its previous group, and newer ones at the group of this table: who
        of that one leaves the slot counts as a previous member too.
        """
        owners = balance(self.owners, ring.names)
        new = PartitionTable(self.epoch + 1, self.replicas, ring, owners, self.hash)
        then, now = self.groups_by_header(), new.groups_by_header()
        pairs = ((slot, then[a], now[b]) for slot, (a, b) in enumerate(zip(self.owners, owners, strict=True)))
        moving = {slot: old for slot, old, group in pairs if old != group and set(old) != set(group)}
        for slot, before in self.moving.items():
            leaving = (name for name in self.group_of(slot) if name not in new.group_of(slot))
            moving[slot] = tuple(dict.fromkeys((*before, *leaving)))
        return replace(new, moving=moving)

    def _require_settled(self, what: str) -> None:
        if self.moving:
            raise RetryableError(
                f"cannot {what}: {len(self.moving)} slots of the change to epoch {self.epoch} still move",
                hint="./tidemark cluster show tells how far it is; run it again when nothing moves",
            )


def begin_table(nodes: Iterable[Node], replicas: int, owners: Owners, kind: SlotHash = SlotHash.FULL) -> PartitionTable:
    """Make the first table, epoch 1. UsageError if there are fewer nodes than copies, or none of either."""
    ring = Ring(list(nodes))
    if replicas < 1 or len(ring) < replicas:
        raise UsageError(
            f"{replicas} copies of every slot need as many nodes, there are {len(ring)}",
            hint="set `[cluster] replicas` to no more than the number of `[nodes.…]`, and to 1 at least",
        )
    return PartitionTable(1, replicas, ring, owners, kind)


FORM = 1
_MOST = 1 << 24  # bytes of an unpacked table


def encode_table(table: PartitionTable) -> bytes:
    """Write the table, of any size; equal tables give equal bytes."""
    places = {name: place for place, name in enumerate(table.ring.names)}
    groups = sorted(set(table.moving.values()))
    numbers = {group: number for number, group in enumerate(groups)}
    words = {
        "epoch": table.epoch,
        "replicas": table.replicas,
        "hash": table.hash.value,
        "nodes": [[node.name, node.identifier] for node in table.ring],
        "owners": _encode_numbers(places[name] for name in table.owners),
        "groups": [list(group) for group in groups],
        "moving": [[*span, numbers[group]] for span, group in _moving_spans(table)],
    }
    return bytes([FORM]) + zlib.compress(json.dumps(words, separators=(",", ":")).encode(), 9)


def decode_table(data: bytes) -> PartitionTable:
    """Read a table. CorruptionError for damaged bytes, SchemaTooNewError for those of a later form."""
    if data[:1] > bytes([FORM]):
        raise SchemaTooNewError(
            "the partition table was written by a newer Tidemark", hint="use that version, or a newer one"
        )
    try:
        unpack = zlib.decompressobj()
        words = parse_json(unpack.decompress(data[1:], _MOST))
        if data[:1] != bytes([FORM]) or not unpack.eof or unpack.unused_data:
            raise ValueError("its end is missing, or something follows it")
        return _parse_table(words)
    except (ValueError, KeyError, IndexError, TypeError, zlib.error) as error:
        raise CorruptionError(
            f"the partition table is damaged: {error}", hint="./tidemark cluster check; every node keeps a copy of it"
        ) from error


def _parse_table(words: Any) -> PartitionTable:
    ring = Ring([Node(int(identifier), str(name)) for name, identifier in words["nodes"]])
    names, groups = ring.names, [tuple(map(str, group)) for group in words["groups"]]
    owners = array("H", b85decode(words["owners"]))
    moving = {slot: groups[number] for first, last, number in words["moving"] for slot in range(first, last + 1)}
    if any(number >= len(names) for number in owners) or any(not 0 <= slot < len(owners) for slot in moving):
        raise ValueError("a slot without a node")
    owned = tuple(names[number] for number in owners)
    return PartitionTable(int(words["epoch"]), int(words["replicas"]), ring, owned, SlotHash(words["hash"]), moving)


def _encode_numbers(numbers: Iterable[int]) -> str:
    """Write 16 bits each, little-endian on every machine Tidemark runs on."""
    return b85encode(array("H", numbers).tobytes()).decode()


def _moving_spans(table: PartitionTable) -> Iterable[tuple[tuple[int, int], tuple[str, ...]]]:
    """Yield runs of neighbours that come from one group: ((first, last), group)."""
    ordered = sorted(table.moving.items())
    for (_, group), run in groupby(enumerate(ordered), key=lambda entry: (entry[1][0] - entry[0], entry[1][1])):
        slots = [slot for _, (slot, _) in run]
        yield (slots[0], slots[-1]), group
