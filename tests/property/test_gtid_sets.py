"""GTID sets beside Python's own sets of (uuid, tag, number)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.changes.binlog.gtid_sets import MysqlGtidSet

UUIDS = ["0198b1a1-c2d3-11f0-8899-aabbccddeeff", "97c7af02-4c50-11ec-acd8-681842034964"]
Plain = frozenset[tuple[str, str, int]]
plain_sets = st.frozensets(st.tuples(st.sampled_from(UUIDS), st.sampled_from(["", "t"]), st.integers(1, 30)))


def made(plain: Plain) -> MysqlGtidSet:
    return MysqlGtidSet.of((uuid, tag, [(number, number)]) for uuid, tag, number in plain)


def members(found: MysqlGtidSet) -> Plain:
    pairs = found.intervals.items()
    return frozenset((*key, number) for key, held in pairs for first, last in held for number in range(first, last + 1))


@given(plain_sets, plain_sets)
def test_they_are_sets(one: Plain, two: Plain) -> None:
    first, second = made(one), made(two)
    assert members(first | second) == one | two
    assert members(first - second) == one - two
    assert members(first & second) == one & two
    assert (first >= second) == (one >= two)
    assert first.count() == len(one)
    assert all(first.contains(*member) == (member in one) for member in one | two)
    assert MysqlGtidSet.parse(str(first)) == first
    assert (first | second) == (second | first) and ((first - second) | (first & second)) == first
