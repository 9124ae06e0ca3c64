"""The ring of nodes and the groups on it: a group is its header node and the next nodes, as many as there are replicas.

One order, that of the identifiers, everywhere; the original has two. Source: seed 001 "Data group"; research/iotdb.md §3.2.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemark.errors import UsageError


class Node(NamedTuple):
    """A data node. `identifier` is its place on the ring, for as long as it is a member."""

    identifier: int
    name: str


Group = tuple[str, ...]
"""Names of nodes: the header first, then along the ring."""


def identifier_of(name: str) -> int:
    """The place of a node that has none yet: 0 … 2^31 - 1, of its name alone, so the same wherever it is worked out."""
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

    def group(self, header: str, replicas: int) -> Group:
        """The group that `header` begins. No node is in it twice, so of a small ring it is the whole."""
        start, size = self._places[header], len(self._nodes)
        return tuple(self._nodes[(start + step) % size].name for step in range(min(replicas, size)))

    def joined(self, node: Node) -> Ring:
        nodes = list(self._nodes)
        insort(nodes, node)
        return Ring(nodes)

    def left(self, name: str) -> Ring:
        return Ring([node for node in self._nodes if node.name != name])

    def between(self, first: str, new: Node, last: str) -> bool:
        """Whether a node that joins comes to lie behind `first` and before `last`, along the ring."""
        start, end = self._places[first], self._places[last]
        place = bisect_left(self._nodes, new)  # before the node that stands there now
        steps = (end - start) % len(self._nodes) or len(self._nodes)
        return 0 < ((place - start) % len(self._nodes) or len(self._nodes)) <= steps
