"""Which landings of a link are lost, by what is left at the receiver."""

from __future__ import annotations

import pytest

from tidemark.operations.rebuild.gaps import Told, find_lost

ONE, TWO, THREE, FOUR = (f"2026010{day}T000000Z-aaaaaa-1" for day in (1, 2, 3, 4))


def lost(told: list[Told], *damaged: str) -> list[tuple[int, str, str | None]]:
    return [(one.sequence, one.landing, one.previous) for one in find_lost("plant1", told, damaged, 9.0)]


def test_before_an_answered_landing_none_is_lost() -> None:
    assert lost([Told(3, THREE, TWO, True), Told(4, FOUR, THREE, False)]) == []


def test_of_several_in_a_row_the_newest_is_named_and_damaged_ones_keep_their_names() -> None:
    told = [Told(1, ONE, None, False), Told(5, FOUR, THREE, False)]
    assert lost(told, TWO, "rubbish") == [(2, f"{THREE}-lost-2", ONE), (3, TWO, f"{THREE}-lost-2"), (4, THREE, TWO)]


def test_damaged_ones_after_the_newest_take_the_next_numbers_though_their_runs_began_in_one_second() -> None:
    told = [Told(1, TWO.replace("-a", "-b"), None, True)]
    assert [name for _, name, _ in lost(told, ONE, TWO, THREE)] == [TWO, THREE]


def test_one_that_was_made_again_and_lost_again_is_found_again() -> None:
    assert lost([Told(2, TWO, f"{TWO}-lost-1", False)]) == [(1, f"{TWO}-lost-1", None)]


@pytest.mark.parametrize("before", [None, "../../data", FOUR])
def test_a_manifest_that_names_no_landing_before_it_tells_of_none(before: str | None) -> None:
    assert lost([Told(3, THREE, before, False), Told(4, FOUR, THREE, False)]) == []


def test_a_number_that_no_site_reaches_is_not_believed() -> None:
    assert lost([Told(1 << 40, TWO, ONE, False)]) == []
