"""What a server lacks of a device and what it has too much: bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.receiver.iotdb.points import TypeDiffersError, compute_difference, deletion_spans
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column

Points = dict[int, int]
points = st.dictionaries(st.integers(-20, 20), st.integers(0, 2), max_size=25)


def column(some: Points, kind: DataType = DataType.INT64) -> Column:
    times = sorted(some)
    return Column(kind, np.array(times, np.int64), np.array([some[t] for t in times], VALUE_DTYPES[kind]))


@given(points, points)
def test_missing_and_extra_are_the_whole_difference(ours: Points, theirs: Points) -> None:
    found = compute_difference("d", {"s": column(ours)} if ours else {}, {"s": column(theirs)} if theirs else {})
    missing = dict(zip(found.missing["s"].times, found.missing["s"].values, strict=True)) if found.missing else {}
    extra = set(found.extra["s"].tolist()) if found.extra else set()
    assert missing == {t: v for t, v in ours.items() if theirs.get(t) != v}
    assert extra == set(theirs) - set(ours)
    assert found.alike == sum(theirs.get(t) == v for t, v in ours.items())
    assert found.other == sum(t in theirs and theirs[t] != v for t, v in ours.items())
    assert bool(found) == (ours != theirs)


@given(st.sets(st.integers(-30, 30)), st.sets(st.integers(-30, 30)))
def test_spans_cover_what_leaves_and_nothing_that_stays(leaving: set[int], staying: set[int]) -> None:
    staying -= leaving
    spans = list(deletion_spans(np.array(sorted(leaving), np.int64), [np.array(sorted(staying), np.int64)]))
    covered = {t for span in spans for t in range(span.start, span.end + 1)}
    assert leaving <= covered and not staying & covered


def test_floats_are_compared_by_their_bits() -> None:
    times = np.arange(3)
    mine = Column(DataType.DOUBLE, times, np.array([np.nan, 0.0, 1.0]))
    theirs = Column(DataType.DOUBLE, times, np.array([np.nan, -0.0, 1.0]))
    assert compute_difference("d", {"s": mine}, {"s": mine}).alike == 3
    assert compute_difference("d", {"s": mine}, {"s": theirs}).missing["s"].times.tolist() == [1]


def test_another_type_is_an_error_that_names_the_series() -> None:
    with pytest.raises(TypeDiffersError, match=r"root.d.s is TEXT at the server and INT64"):
        compute_difference("root.d", {"s": column({1: 1})}, {"s": column({1: 1}, DataType.TEXT)})
