"""Compare the rows that a table has in two places, key range by key range. Pure.

Both give their rows in the order of the key, and in the same types. Where the next rows of both are equal they are done,
many at a time. Where they are not, the stretch is halved until it is narrow; then the range up to the lower of its last keys
is compared key by key. So no more is in memory than the batches that came last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidemark.errors import CorruptionError

MISSING, UNKNOWN, CHANGED = "missing", "unknown", "changed"
"""What a row is: at the source alone, at the sink alone, at both with other values."""
MOST_NAMED = 20
NARROW = 64
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Difference:
    """A key whose row differs. `columns`: those with other values, where both have the row."""

    key: Key
    what: str
    columns: tuple[str, ...] = ()


@dataclass
class Compared:
    """`rows`: of the source. `counts`: differing keys by what they are; the first of them are `named`. `left_out`: keys that
    differ, and were not to be compared."""

    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    named: list[Difference] = field(default_factory=list)
    left_out: int = 0


def compare_rows(
    source: Iterable[Any],
    sink: Iterable[Any],
    key: Sequence[str],
    *,
    skip: Collection[Key] = (),
    most: int = MOST_NAMED,
    narrow: int = NARROW,
) -> Compared:
    """Compare Arrow batches of the same schema, each side in the order of `key`: numbers by value, texts and bytes by bytes.

    `skip`: keys that may differ. `most`: how many differences are named. `narrow`: rows of a range that is compared key by
    key. CorruptionError: a side is not in that order.
    """
    made, left, right, wide = Compared(), _Side(source, key), _Side(sink, key), narrow
    while left.fill() | right.fill():
        count = min(left.count, right.count, wide)
        if count and left.rows.slice(0, count).equals(right.rows.slice(0, count)):
            made.rows += count
            left.drop(count)
            right.drop(count)
            wide *= 2
        elif count > narrow:
            wide = count // 2
        else:
            ours, theirs = left.list_keys(narrow), right.list_keys(narrow)
            bound = min(keys[-1] for keys in (ours, theirs) if keys)
            _compare_range(left.take(ours, bound), right.take(theirs, bound), (made, skip, most))
    return made


def _compare_range(ours: dict[Key, Any], theirs: dict[Key, Any], into: tuple[Compared, Collection[Key], int]) -> None:
    made, skip, most = into
    made.rows += len(ours)
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key), theirs.get(key)
        if mine == other:
            continue
        if key in skip:
            made.left_out += 1
            continue
        what = UNKNOWN if mine is None else MISSING if other is None else CHANGED
        made.counts[what] += 1
        if len(made.named) < most:
            columns = tuple(name for name in mine if mine[name] != other[name]) if mine and other else ()
            made.named.append(Difference(key, what, columns))


class _Side:
    """Rows that came and are not compared yet."""

    def __init__(self, batches: Iterable[Any], key: Sequence[str]) -> None:
        self._batches: Iterator[Any] = iter(batches)
        self._key = key
        self.rows: Any = None

    @property
    def count(self) -> int:
        return 0 if self.rows is None else int(self.rows.num_rows)

    def fill(self) -> bool:
        """Have a row at least. Returns whether there is one."""
        while not self.count:
            self.rows = next(self._batches, None)
            if self.rows is None:
                return False
        return True

    def list_keys(self, most: int) -> list[Key]:
        """The keys of the first rows."""
        if not self.count:
            return []
        rows = self.rows.slice(0, most)
        keys = list(zip(*(rows.column(name).to_pylist() for name in self._key), strict=True))
        if any(one >= other for one, other in pairwise(keys)):
            raise CorruptionError(f"rows do not come in the order of {', '.join(self._key)}")
        return keys

    def take(self, keys: list[Key], bound: Key) -> dict[Key, Any]:
        """The rows up to a key, by their keys, which are the first here; they are gone from here."""
        count = bisect_right(keys, bound)
        rows = self.rows.slice(0, count).to_pylist() if count else []
        if count:
            self.drop(count)
        return dict(zip(keys[:count], rows, strict=True))

    def drop(self, count: int) -> None:
        self.rows = self.rows.slice(count)
