"""The slot of a database and time partition, and the ring of nodes with its groups.

The slot is a hash, so no table of partitions is needed. `FULL` hashes every byte. `COMPAT` is the original's, bit for bit,
with its two faults: bytes of the tail count as signed, and the length is that of the name in characters, so names beyond
ASCII lose the low bytes of the partition. Source: seed 001 "Improvement of the partitioning method"; research/iotdb.md §3.1.

A group is its header node and the next nodes on the ring, as many as there are replicas. There is one order, that of the
identifiers; the original has two. A node's identifier is computed from its name alone, so it is the same everywhere. Source:
seed 001 "Data group"; research/iotdb.md §3.2.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemark.errors import UsageError

SEED = 2333
_LOW = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")


class SlotHash(enum.StrEnum):
    """The hash of a database and a partition to a slot; fixed for the life of a cluster."""

    FULL = "full"
    COMPAT = "compat"


def data_slot(database: str, partition: int, slots: int, kind: SlotHash = SlotHash.FULL) -> int:
    """Return the slot, 0 … slots - 1, of a database's data in a time partition (its number, 64 bits signed)."""
    name, number = database.encode(), struct.pack(">q", partition)
    if kind is SlotHash.COMPAT:
        return _hash_as_original(name + number, len(database.encode("utf-16-le")) // 2 + 8, slots)
    return murmur3(name + number, SEED)[0] % slots


def schema_slot(database: str, slots: int, kind: SlotHash = SlotHash.FULL) -> int:
    """Return the slot, 0 … slots - 1, of a database's schema, for all times. The original takes it for data of time 0."""
    if kind is SlotHash.COMPAT:
        return data_slot(database, 0, slots, kind)
    return murmur3(database.encode(), SEED)[0] % slots


def murmur3(data: bytes, seed: int, signed_tail: bool = False) -> tuple[int, int]:
    """Compute MurmurHash3 x64 128 (Austin Appleby, public domain): both halves, unsigned."""
    first = second = seed
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        one, two = _BLOCK.unpack_from(data, at)
        first ^= _mix_block(one, _C1, 31, _C2)
        first = ((_rotate_left(first, 27) + second) * 5 + 0x52DCE729) & _LOW
        second ^= _mix_block(two, _C2, 33, _C1)
        second = ((_rotate_left(second, 31) + first) * 5 + 0x38495AB5) & _LOW
    tail = data[whole:]
    second ^= _mix_block(_join_tail(tail[8:], signed_tail), _C2, 33, _C1)
    first ^= _mix_block(_join_tail(tail[:8], signed_tail), _C1, 31, _C2)
    first, second = first ^ len(data), second ^ len(data)
    first = (first + second) & _LOW
    second = (second + first) & _LOW
    first, second = _finalize_mix(first), _finalize_mix(second)
    first = (first + second) & _LOW
    return first, (second + first) & _LOW


def _hash_as_original(data: bytes, length: int, slots: int) -> int:
    first, second = murmur3(data[:length], SEED, signed_tail=True)
    low = (first + second) & 0xFFFFFFFF
    value = low - (1 << 32) if low & 0x80000000 else low
    return abs(value) % slots  # Java's remainder has the sign of the value, which `abs` then removes


def _join_tail(tail: Sequence[int], signed: bool) -> int:
    value = 0
    for place, byte in enumerate(tail):
        value ^= (byte - 256 if signed and byte & 0x80 else byte) << 8 * place
    return value & _LOW


def _mix_block(value: int, by: int, turn: int, then: int) -> int:
    return (_rotate_left(value * by & _LOW, turn) * then) & _LOW


def _rotate_left(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _LOW


def _finalize_mix(value: int) -> int:
    value = ((value ^ (value >> 33)) * 0xFF51AFD7ED558CCD) & _LOW
    value = ((value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53) & _LOW
    return value ^ (value >> 33)


class Node(NamedTuple):
    """A data node. `identifier` is its place on the ring, for as long as it is a member."""

    identifier: int
    name: str


Group = tuple[str, ...]
"""Names of nodes: the header first, then along the ring."""


def identifier_of(name: str) -> int:
    """Return a new node's place on the ring, 0 … 2^31 - 1, from its name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


class Ring:
    """Nodes in the order of their identifiers; of equal ones in the order of their names."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = tuple(sorted(nodes))
        self._places = {node.name: place for place, node in enumerate(self._nodes)}
        if len(self._places) != len(self._nodes):
            raise UsageError("a node stands twice among the nodes of the cluster", hint="give every node a name of its own")

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ring) and self._nodes == other._nodes

    def __hash__(self) -> int:
        return hash(self._nodes)

    @property
    def names(self) -> Group:
        return tuple(node.name for node in self._nodes)

    def group_of_header(self, header: str, replicas: int) -> Group:
        """Return the group that `header` begins. No node is in it twice, so of a small ring it is the whole."""
        start, size = self._places[header], len(self._nodes)
        return tuple(self._nodes[(start + step) % size].name for step in range(min(replicas, size)))

    def with_node(self, node: Node) -> Ring:
        nodes = list(self._nodes)
        insort(nodes, node)
        return Ring(nodes)

    def without_node(self, name: str) -> Ring:
        return Ring([node for node in self._nodes if node.name != name])
