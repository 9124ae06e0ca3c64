"""What is copied and what is decoded: copies meet nothing, pieces do not meet, no extent is lost."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import example, given

from tidemark.receiver.windows import Extent, Piece, pieces_of, windows_of
from tidemark.tsfiles.reader import Stretch


def extent(start: int, end: int, rows: int = 5000, holder: int = 0, copyable: bool = True) -> Extent:
    return Extent(holder, start, end, rows, {"s": rows}, Stretch(start, end, rows, None) if copyable else None)


def shape(pieces: list[Piece]) -> list[tuple[int, int, bool]]:
    return [(piece.start, piece.end, piece.copied) for piece in pieces]


def test_what_nothing_meets_is_copied_and_the_rest_is_decoded() -> None:
    old = [extent(0, 9), extent(10, 19), extent(20, 29), extent(30, 39)]
    assert shape(pieces_of([*old, extent(15, 24, holder=1)])) == [(0, 9, True), (10, 29, False), (30, 39, True)]


def test_times_at_both_ends_meet() -> None:
    assert shape(pieces_of([extent(0, 10), extent(10, 20, holder=1)])) == [(0, 20, False)]
    assert shape(pieces_of([extent(0, 10), extent(11, 20, holder=1)])) == [(0, 10, True), (11, 20, True)]


def test_a_long_extent_reaches_over_short_ones() -> None:
    assert shape(pieces_of([extent(0, 100), extent(10, 20, holder=1), extent(90, 95, holder=1)])) == [(0, 100, False)]


def test_small_chunks_become_one_but_a_lone_one_is_copied() -> None:
    assert shape(pieces_of([extent(n, n, rows=10) for n in range(8)])) == [(0, 7, False)]
    assert shape(pieces_of([extent(0, 9, rows=10)])) == [(0, 9, True)]
    small_between = [extent(0, 9), extent(10, 10, rows=3), extent(11, 11, rows=3), extent(12, 19)]
    assert shape(pieces_of(small_between)) == [(0, 9, True), (10, 11, False), (12, 19, True)]


def test_what_may_not_be_copied_is_decoded() -> None:
    assert shape(pieces_of([extent(0, 9, copyable=False), extent(10, 19)])) == [(0, 9, False), (10, 19, True)]
    assert pieces_of([]) == []


def test_points_of_a_piece_are_those_of_each_file() -> None:
    (piece,) = pieces_of([extent(0, 9, 3), extent(5, 6, 2), extent(8, 30, 7, holder=1)])
    assert piece.points(0) == {"s": 5} and piece.points(1) == {"s": 7} and piece.points(2) == {}


EXTENTS = st.builds(
    lambda start, length, rows, holder, may: extent(start, start + length, rows, holder, may),
    *(st.integers(-50, 50), st.integers(0, 30), st.integers(1, 3000), st.integers(0, 3), st.booleans()),
)


@given(st.lists(EXTENTS, max_size=20))
def test_every_extent_is_in_one_piece_and_no_two_pieces_meet(extents: list[Extent]) -> None:
    pieces = pieces_of(extents)
    assert sorted(id(one) for piece in pieces for one in piece.extents) == sorted(map(id, extents))
    assert all(before.end < after.start for before, after in itertools.pairwise(pieces))
    assert all(len(piece.extents) == 1 and piece.extents[0].stretch for piece in pieces if piece.copied)


def test_a_large_piece_is_decoded_in_windows_of_equal_points() -> None:
    piece = Piece((extent(0, 999, 4000), extent(500, 1499, 4000, holder=1)))
    assert windows_of(piece, 8000) == [(0, 1499)]
    assert windows_of(piece, 4000) == [(0, 749), (750, 1499)]
    assert windows_of(Piece((extent(7, 7, 5000),)), 10) == [(7, 7)]  # one time is never cut


@given(st.lists(EXTENTS, min_size=1, max_size=20), st.integers(1, 5000))
@example([extent(0, 22, 117)], 1)
def test_windows_follow_each_other_and_hold_the_whole_piece(extents: list[Extent], points: int) -> None:
    piece = Piece(tuple(extents))
    windows = windows_of(piece, points)
    assert windows[0][0] == piece.start and windows[-1][1] == piece.end
    assert all(start <= end for start, end in windows)
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(windows))
