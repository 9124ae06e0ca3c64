"""Whatever is lost, doubled, slow or given up: every byte is asked for, and the schedule ends."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tidemark.transfer.stream.schedule import (
    KEPT_AHEAD,
    LEAST_CHUNK,
    SHORT_ROUND_TRIP,
    Kept,
    Schedule,
    Span,
    add_span,
    chunk_bytes,
    next_connections,
    uncovered_spans,
)

KB = 1 << 10
files = st.lists(st.integers(0, 3000 * KB), min_size=1, max_size=12)
SMALL = 100 * KB


def scheduled(sizes: list[int]) -> Schedule:
    schedule = Schedule()
    for number, size in enumerate(sizes):
        if size <= SMALL:
            schedule.add_small(number, size)
        else:
            schedule.add_large(number, [(0, size)])
    return schedule


@given(files, st.integers(1, 5), st.integers(60 * KB, 900 * KB), st.data())
def test_every_byte_comes_though_connections_die_and_answers_are_cut_anywhere(
    sizes: list[int], connections: int, chunk: int, data: st.DataObject
) -> None:
    schedule = scheduled(sizes)
    came: dict[int, list[tuple[int, int]]] = {number: [] for number in range(len(sizes))}
    asked: dict[int, list[tuple[int, int, int]]] = {c: [] for c in range(connections)}
    deaths = data.draw(st.integers(0, 6))
    steps = 0
    while not schedule.is_finished:
        steps += 1
        assert steps < 100_000
        connection = data.draw(st.integers(0, connections - 1)) if steps < 200 else steps % connections
        if deaths and steps < 200 and data.draw(st.integers(0, 9)) == 0:
            deaths -= 1
            schedule.drop_connection(connection)
            assert schedule.outstanding_bytes(connection) == 0
            asked[connection].clear()
            continue
        slow = frozenset(range(connections)) - {connection}
        asked[connection] += [tuple(span) for span in schedule.next_spans(connection, chunk, slow)]
        if not asked[connection]:
            continue
        number, offset, length = asked[connection].pop(0)
        got = length if steps >= 200 else data.draw(st.integers(min(length, 1), length))
        if got < length:
            asked[connection].insert(0, (number, offset + got, length - got))
        schedule.record_arrival(connection, number, offset, got)
        came[number].append((offset, offset + got))
        if sizes[number] > SMALL and not uncovered_spans(sizes[number], came[number]):
            schedule.complete_file(number)
    for number, size in enumerate(sizes):
        if size > SMALL:
            assert not uncovered_spans(size, came[number])
        else:
            assert came[number]


@given(files, st.integers(60 * KB, 900 * KB))
def test_one_connection_is_asked_for_each_byte_once_and_each_file_in_order(sizes: list[int], chunk: int) -> None:
    schedule = scheduled(sizes)
    at = dict.fromkeys(range(len(sizes)), 0)
    while spans := schedule.next_spans(1, chunk):
        assert sum(span.length for span in spans) <= max(chunk, SMALL)
        for number, offset, length in spans:
            assert offset == at[number]
            at[number] += length
    assert list(at.values()) == sizes
    assert schedule.outstanding_bytes(1) == sum(size or 1 for size in sizes)


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 4), st.data())
def test_what_is_kept_is_asked_for_its_digest_until_it_is_told_whoever_dies(
    missing: int, kept: int, connections: int, data: st.DataObject
) -> None:
    """And the first ask is of a missing byte."""
    schedule = Schedule()
    piece = 10 * KB
    if missing:
        schedule.add_large(0, [(0, missing * piece)])
    schedule.add_comparison(0, [((missing + n) * piece, (missing + n + 1) * piece) for n in range(kept)])
    asked: dict[int, list[Span]] = {c: [] for c in range(connections)}
    told: list[tuple[int, int]] = []
    deaths, turn = data.draw(st.integers(0, 6)), 0
    while not schedule.is_finished:
        connection = data.draw(st.integers(0, connections - 1)) if turn < 200 else turn % connections
        turn += 1
        if deaths and turn < 200 and data.draw(st.integers(0, 9)) == 0:
            deaths -= 1
            schedule.drop_connection(connection)
            asked[connection].clear()
            continue
        spans = schedule.next_spans(connection, piece, frozenset(range(connections)) - {connection})
        assert turn > 1 or not missing or not any(isinstance(span, Kept) for span in spans)
        asked[connection] += spans
        assert connections > 1 or sum(isinstance(span, Kept) for span in asked[connection]) <= KEPT_AHEAD
        assert schedule.outstanding_bytes(connection) == sum(span.weight for span in asked[connection])
        if not spans and asked[connection]:
            span = asked[connection].pop(0)
            schedule.record_arrival(connection, *span)
            told.append((span.offset, span.end))
        if not uncovered_spans((missing + kept) * piece, told):
            schedule.complete_file(0)
    assert not uncovered_spans((missing + kept) * piece, told)


def test_a_file_that_is_given_up_is_not_compared() -> None:
    schedule = Schedule()
    schedule.add_comparison(0, [(0, 10), (10, 20)])
    assert schedule.next_spans(1, 100) == (Kept(0, 0, 10),)
    schedule.drop_file(0)
    assert schedule.is_finished and schedule.next_spans(1, 100) == () and schedule.outstanding_bytes(1) == 0
    schedule.record_arrival(1, 0, 0, 10)
    schedule.drop_connection(1)
    assert schedule.is_finished and schedule.next_spans(2, 100) == ()


def test_a_digest_that_comes_late_brings_no_bytes_that_are_asked_for_again_since() -> None:
    schedule = Schedule()
    schedule.add_comparison(0, [(0, 10)])
    for connection in (1, 2):  # the second because the first is slow
        assert schedule.next_spans(connection, 100, frozenset([1])) == (Kept(0, 0, 10),)
    assert not schedule.record_arrival(1, 0, 0, 10)
    schedule.repeat_span(0, 0, 10)
    assert not schedule.record_arrival(2, 0, 0, 10)
    assert not schedule.has_arrived_whole(0) and schedule.next_spans(2, 100) == (Span(0, 0, 10),)
    schedule.drop_connection(2)
    assert schedule.next_spans(3, 100) == (Span(0, 0, 10),)
    assert schedule.record_arrival(3, 0, 0, 10) and schedule.has_arrived_whole(0)


def test_small_files_get_their_turn_beside_a_large_one_and_the_largest_comes_first() -> None:
    schedule = Schedule()
    schedule.add_large(0, [(0, 10_000 * KB)])
    schedule.add_large(1, [(0, 90_000 * KB)])
    for number in range(2, 40):
        schedule.add_small(number, 100 * KB)
    asks = [schedule.next_spans(1, 400 * KB) for _ in range(20)]
    assert asks[0][0].number == 1
    assert sum(ask[0].number > 1 for ask in asks) == 5


def test_a_file_that_is_given_up_is_not_asked_for_and_not_waited_for() -> None:
    schedule = scheduled([50, 500 * KB])
    schedule.next_spans(1, 100 * KB)
    schedule.drop_file(0)
    schedule.drop_file(1)
    assert schedule.is_finished and schedule.outstanding_bytes(1) == 0 and schedule.next_spans(1, KB) == ()
    assert not schedule.record_arrival(1, 1, 0, 10)


@given(st.floats(0, 1e10), st.integers(1, 64), st.integers(0, 1 << 40), st.integers(LEAST_CHUNK, 64 << 20))
def test_a_chunk_stays_within_its_bounds_and_shrinks_towards_the_end(
    rate: float, connections: int, waiting: int, most: int
) -> None:
    chunk = chunk_bytes(rate, connections, waiting, most)
    assert LEAST_CHUNK <= chunk <= most
    assert chunk_bytes(rate, connections, waiting // 2, most) <= chunk


@given(st.integers(1, 64), st.integers(1, 64), st.floats(0, 1), st.booleans(), st.floats(0, 1e9), st.floats(0, 1e4))
def test_connections_grow_only_on_a_long_line_up_to_the_limit(
    now: int, most: int, round_trip: float, lossy: bool, window: float, left: float
) -> None:
    wanted = next_connections(now, most, round_trip, lossy, window, left)
    assert now <= wanted <= max(now, most)
    if round_trip < SHORT_ROUND_TRIP:
        assert wanted == now


def test_losses_make_it_grow_far_and_a_clean_line_by_one() -> None:
    assert next_connections(2, 16, 0.05, True, 60e3, 60) == 8
    assert next_connections(8, 16, 0.05, True, 60e3, 60) == 16
    assert next_connections(1, 16, 0.05, False, 60e3, 60) == 2
    assert next_connections(2, 16, 0.05, False, 60e3, 60) == 2
    assert next_connections(4, 16, 0.05, True, 600e3, 60) == 4
    assert next_connections(4, 16, 0.05, True, 60e3, 0.1) == 4


@given(st.integers(0, 1000), st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(sorted).map(tuple)))
def test_gaps_and_spans_make_the_whole(size: int, spans: list[tuple[int, int]]) -> None:
    covered = {n for offset, end in spans for n in range(offset, min(end, size))}
    gaps = uncovered_spans(size, spans)
    assert {n for offset, end in gaps for n in range(offset, end)} == set(range(size)) - covered


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30))
def test_what_is_covered_is_every_byte_that_came_and_no_other(pieces: list[tuple[int, int]]) -> None:
    spans: list[tuple[int, int]] = []
    came: set[int] = set()
    for offset, length in pieces:
        add_span(spans, offset, offset + length)
        came |= set(range(offset, offset + length))
        assert {byte for start, end in spans for byte in range(start, end)} == came
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
