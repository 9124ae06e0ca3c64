"""A digest tree over the files of a group: equal roots mean equal files, and two trees are compared where they differ alone.
Pure.

A file's place in the tree is the SHA-256 of its location, so trees of equal files have one shape, in whatever order they
came. A node has sixteen children by the next hexadecimal digit; one with few files lists them. Of a million files that
differ in one, some hundred digests are exchanged. Source: docs/replication.md.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

FEW = 16  # files that a node lists
_DIGITS = "0123456789abcdef"


class Leaf(NamedTuple):
    """A file as a member has it. `operation`: the commit by which it stands in the catalog so."""

    location: str
    sha256: str
    operation: str = ""


class Summary(NamedTuple):
    """What a node of the tree says: the digest of all below it, and how many files these are."""

    digest: str
    files: int


class Tree(Protocol):
    """A tree here or elsewhere: each call may be one message. A node is named by its hexadecimal digits; "" is the root."""

    def summarize(self, prefixes: Sequence[str]) -> Sequence[Summary]: ...

    def list_leaves(self, prefixes: Sequence[str]) -> Sequence[Leaf]: ...


class DigestTree:
    """The tree of these files, each location once."""

    def __init__(self, leaves: Iterable[Leaf]) -> None:
        placed = sorted((hashlib.sha256(leaf.location.encode()).hexdigest(), leaf) for leaf in leaves)
        self._keys = [key for key, _ in placed]
        self._leaves = [leaf for _, leaf in placed]
        self._known: dict[str, Summary] = {}

    @property
    def root(self) -> str:
        return self._summarize("").digest

    def summarize(self, prefixes: Sequence[str]) -> list[Summary]:
        return [self._summarize(prefix) for prefix in prefixes]

    def list_leaves(self, prefixes: Sequence[str]) -> list[Leaf]:
        return [leaf for prefix in prefixes for leaf in self._leaves[slice(*self._range_of(prefix))]]

    def _summarize(self, prefix: str) -> Summary:
        if prefix not in self._known:
            first, last = self._range_of(prefix)
            if last - first <= FEW:
                content = json.dumps(self._leaves[first:last], ensure_ascii=False, separators=(",", ":")).encode()
            else:
                content = "".join(self._summarize(prefix + digit).digest for digit in _DIGITS).encode()
            self._known[prefix] = Summary(hashlib.sha256(content).hexdigest(), last - first)
        return self._known[prefix]

    def _range_of(self, prefix: str) -> tuple[int, int]:
        return bisect_left(self._keys, prefix), bisect_left(self._keys, prefix + "g")


@dataclass(frozen=True)
class Compared:
    """`differences`: (the file here, the file there) by location, None where it is not. `asked`: summaries and files that
    the other tree gave."""

    differences: tuple[tuple[Leaf | None, Leaf | None], ...]
    asked: int


def compare_trees(mine: Tree, other: Tree) -> Compared:
    """Return where two trees differ. The other one is asked level by level, for nodes of which the parents differ."""
    level, small, asked = [""], [], 0
    while level:
        pairs = list(zip(level, mine.summarize(level), other.summarize(level), strict=True))
        asked += len(level)
        parted = [(prefix, max(ours.files, theirs.files)) for prefix, ours, theirs in pairs if ours != theirs]
        small += [prefix for prefix, files in parted if files <= FEW]
        level = [prefix + digit for prefix, files in parted if files > FEW for digit in _DIGITS]
    theirs_of = {leaf.location: leaf for leaf in other.list_leaves(small)}
    ours_of = {leaf.location: leaf for leaf in mine.list_leaves(small)}
    found = [(ours_of.get(at), theirs_of.get(at)) for at in sorted(ours_of.keys() | theirs_of.keys())]
    return Compared(tuple(pair for pair in found if pair[0] != pair[1]), asked + len(theirs_of))
