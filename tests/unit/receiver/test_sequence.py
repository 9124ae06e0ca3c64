"""Which landings may load, whatever order they arrive in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemark.receiver.load.landings import Arrival, order_arrivals

CHAIN = [Arrival(f"run-{n}", n, f"run-{n - 1}" if n > 1 else None) for n in range(1, 9)]


def said(arrivals: list[Arrival], last: int = 0, landing: str | None = None) -> list[tuple[str, str]]:
    return [(v.arrival.landing, v.state) for v in order_arrivals(arrivals, last, landing)]


def test_a_chain_loads_in_its_order() -> None:
    assert said([CHAIN[2], CHAIN[0], CHAIN[1]]) == [("run-1", "next"), ("run-2", "next"), ("run-3", "next")]


def test_all_behind_a_gap_wait_and_name_what_is_missing() -> None:
    verdicts = order_arrivals([CHAIN[0], CHAIN[2], CHAIN[5], CHAIN[6]], 0, None)
    assert [v.state for v in verdicts] == ["next", "waiting", "waiting", "waiting"]
    assert "landing 2 (run-2)" in verdicts[1].reason
    assert "2 to 5" in verdicts[2].reason and "2 to 6" in verdicts[3].reason


def test_a_number_is_taken_once() -> None:
    twin = Arrival("run-9", 1, None)
    assert said([twin, CHAIN[0]]) == [("run-1", "next"), ("run-9", "rejected")]
    assert said([twin], 1, "run-1") == [("run-9", "rejected")]
    assert "landing run-1" in order_arrivals([twin], 1, "run-1")[0].reason


def test_another_history_is_rejected_and_ends_the_way() -> None:
    stranger = Arrival("run-x", 3, "run-other")
    assert said([stranger, CHAIN[3]], 2, "run-2") == [("run-x", "rejected"), ("run-4", "waiting")]


@given(st.permutations(range(8)), st.lists(st.integers(1, 4), max_size=8))
def test_any_order_of_arrival_ends_with_all_loaded_in_sequence(order: list[int], sizes: list[int]) -> None:
    """Landings become visible in portions; each look loads what it can."""
    loaded: list[Arrival] = []
    there: list[Arrival] = []
    todo = [CHAIN[i] for i in order]
    for size in [*sizes, len(todo)]:
        there, todo = there + todo[:size], todo[size:]
        last = (loaded[-1].sequence, loaded[-1].landing) if loaded else (0, None)
        verdicts = order_arrivals(there, *last)
        loaded += [v.arrival for v in verdicts if v.state == "next"]
        there = [v.arrival for v in verdicts if v.state == "waiting"]
        assert len(loaded) + len(there) + len(todo) == len(CHAIN)
    assert loaded == CHAIN
