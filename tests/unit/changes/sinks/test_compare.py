"""Rows that a table has in two places are compared key range by key range: how they come does not matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tidemark.changes.sinks.verify.compare import CHANGED, MISSING, UNKNOWN, Compared, Difference, compare_rows
from tidemark.errors import CorruptionError

SCHEMA = pa.schema([("place", pa.string()), ("n", pa.int64()), ("paid", pa.decimal128(12, 3)), ("photo", pa.binary())])
KEY = ("place", "n")
Table = dict[tuple[str, int], tuple[Any, Any]]


def cut(rows: Table, choice: Random, most: int = 5) -> Iterator[pa.RecordBatch]:
    """Batches of some rows each, `most` at most, one after the other in the order of the key; some are empty."""
    left = [(*key, *rows[key]) for key in sorted(rows, key=lambda one: (one[0].encode(), one[1]))]
    while left:
        count = choice.randrange(most + 1)
        columns = list(zip(*left[:count], strict=True)) or [()] * len(SCHEMA)
        yield pa.record_batch([pa.array(column, one.type) for column, one in zip(columns, SCHEMA, strict=True)], SCHEMA)
        left = left[count:]


def make_table(choice: Random) -> Table:
    keys = [(choice.choice(["", "a", "a ", "B", "é", "ÿ", "😀", "\uffff"]), choice.randrange(-9, 12)) for _ in range(60)]
    return {key: (choice.choice([None, choice.randrange(50)]), choice.choice([None, b"", b"\xff"])) for key in keys}


def differ(ours: Table, theirs: Table) -> dict[tuple[str, int], str]:
    """What `compare_rows` is to find."""
    found = dict.fromkeys(ours.keys() - theirs.keys(), MISSING) | dict.fromkeys(theirs.keys() - ours.keys(), UNKNOWN)
    return found | {key: CHANGED for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]}


@pytest.mark.parametrize("seed", range(40))
def test_every_key_that_differs_is_named_once(seed: int) -> None:
    choice = Random(seed)
    ours = make_table(choice)
    theirs = {key: row for key, row in ours.items() if choice.random() < 0.9}
    for key in choice.sample(sorted(theirs), min(4, len(theirs))):
        theirs[key] = (choice.randrange(50, 60), theirs[key][1])
    theirs |= dict(list(make_table(choice).items())[: choice.randrange(4)])
    most, narrow = choice.choice([1, 5, 100]), choice.choice([1, 2, 64])
    found = compare_rows(cut(ours, choice, most), cut(theirs, choice, most), KEY, most=1000, narrow=narrow)
    assert {one.key: one.what for one in found.named} == differ(ours, theirs)
    assert len(found.named) == found.counts.total()
    assert [one.key for one in found.named] == sorted(one.key for one in found.named)
    assert found.rows == len(ours)


def test_the_columns_that_differ_are_named() -> None:
    ours: Table = {("a", 1): (1, b"x"), ("a", 2): (2, None), ("b", 1): (None, b"x")}
    theirs: Table = {("a", 1): (1, b"x"), ("a", 2): (2, b""), ("b", 1): (0, b"y")}
    found = compare_rows(cut(ours, Random(1)), cut(theirs, Random(2)), KEY)
    assert found.named == [Difference(("a", 2), CHANGED, ("photo",)), Difference(("b", 1), CHANGED, ("paid", "photo"))]


def test_of_many_differences_the_first_are_named_and_all_are_counted() -> None:
    ours: Table = {("a", n): (n, None) for n in range(100)}
    found = compare_rows(cut(ours, Random(1)), (), KEY, most=3)
    assert [one.key for one in found.named] == [("a", 0), ("a", 1), ("a", 2)]
    assert found.counts == {MISSING: 100}


def test_a_side_without_rows() -> None:
    assert compare_rows((), (), KEY) == Compared()
    theirs: Table = {("a", 1): (1, None)}
    assert compare_rows((), cut(theirs, Random(1)), KEY).named == [Difference(("a", 1), UNKNOWN)]


def test_a_key_that_is_not_certain_may_differ() -> None:
    ours: Table = {("a", 1): (1, None), ("a", 2): (2, None), ("a", 3): (3, None)}
    theirs: Table = {("a", 1): (7, None), ("a", 3): (8, None)}
    found = compare_rows(cut(ours, Random(1)), cut(theirs, Random(1)), KEY, skip={("a", 1), ("a", 2)})
    assert (found.left_out, found.named) == (2, [Difference(("a", 3), CHANGED, ("paid",))])


def test_what_is_not_in_the_order_of_the_key_is_not_compared() -> None:
    def batch(numbers: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch({"n": pa.array(numbers)})

    with pytest.raises(CorruptionError, match="order of n"):
        compare_rows([batch([1, 3, 2])], [batch([1, 2, 3])], ("n",))
