"""Columns of points, and who wins where they meet (DESIGN §3)."""

from __future__ import annotations

import numpy as np
import pytest

from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column, overlay_columns


def column(points: dict[int, int]) -> Column:
    return Column(DataType.INT32, np.array(list(points), np.int64), np.array(list(points.values()), np.int32))


def points(of: Column) -> dict[int, int]:
    return dict(zip(of.times.tolist(), of.values.tolist(), strict=True))


def test_the_later_column_wins_and_the_rest_stays() -> None:
    oldest, newer, newest = column({1: 10, 3: 30, 5: 50}), column({2: 21, 3: 31}), column({3: 32, 9: 92})
    assert points(overlay_columns([oldest, newer, newest])) == {1: 10, 2: 21, 3: 32, 5: 50, 9: 92}
    assert points(overlay_columns([newest, newer, oldest])) == {1: 10, 2: 21, 3: 30, 5: 50, 9: 92}


def test_columns_that_follow_each_other_are_joined() -> None:
    assert points(overlay_columns([column({1: 1, 2: 2}), Column.empty(DataType.INT32), column({5: 5})])) == {
        1: 1,
        2: 2,
        5: 5,
    }
    assert len(overlay_columns([Column.empty(DataType.INT32)])) == 0


def test_columns_of_two_types_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="DOUBLE"):
        overlay_columns([column({1: 1}), Column.empty(DataType.DOUBLE)])


def test_a_span_includes_its_start_and_not_its_end() -> None:
    whole = column({1: 1, 2: 2, 3: 3})
    assert points(whole.slice_between(1, 3)) == {1: 1, 2: 2}
    assert points(whole.slice_between(None, None)) == points(whole)
    assert points(whole.slice_between(4, None)) == {}


def test_a_span_may_end_where_no_time_can_be() -> None:
    """The time after the last one is 2^63: compared as a float it would leave out the last five hundred times."""
    first, last = -(1 << 63), (1 << 63) - 1
    whole = column({first: 1, 0: 2, last - 3: 3, last: 4})
    assert points(whole.slice_between(0, last + 1)) == {0: 2, last - 3: 3, last: 4}
    assert points(whole.slice_between(last + 1, None)) == {}
    assert points(whole.slice_between(first - 1, 1 << 70)) == points(whole)
    assert points(whole.slice_between(None, first - 1)) == {}


def test_bytes_keep_their_nul() -> None:
    values = np.empty(2, object)
    values[:] = [b"a\0", b""]
    text = Column(DataType.TEXT, np.array([1, 2], np.int64), values)
    assert overlay_columns([text, Column(DataType.TEXT, text.times[1:], values[1:])]).values.tolist() == [b"a\0", b""]
