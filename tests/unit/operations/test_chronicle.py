"""The order in which a rebuilt ledger replays a receiver's papers."""

from __future__ import annotations

from tidemark.formats.records import TRANSFER, Decision, SettledSource, Settlement
from tidemark.operations.rebuild.history import LandingRecord, Moment, order_moments


def heard(sequence: int, loaded: float | None, answered: bool = True, site: str = "a", landing: str = "") -> LandingRecord:
    return LandingRecord(site, landing or f"{site}-{sequence}", sequence, loaded, answered)


def decided(at: float) -> Decision:
    return Decision(at, "me@here", TRANSFER, "root.d", {"to": "b"})


def settled(at: float, name: str, source: str = "s") -> Settlement:
    sources = (SettledSource(source, 1, f"data/{source}", "0"),)
    return Settlement("a", "root.sg", "tree", 0, 0, name, "", 1, 1, (0, 1, 0, 0, 1), "batch", 1, 0, 0, 1.0, at, sources)


def whats(moments: list[Moment]) -> list[object]:
    return [moment.what.landing if isinstance(moment.what, LandingRecord) else moment.what for moment in moments]


def test_by_time_over_all_sites_and_kinds() -> None:
    moments, troubles = order_moments(
        [heard(2, 40.0), heard(1, 10.0), heard(1, 20.0, site="b")], [decided(30.0)], [settled(15.0, "m")]
    )
    assert whats(moments) == ["a-1", (settled(15.0, "m"),), "b-1", decided(30.0), "a-2"]
    assert troubles == []


def test_a_site_s_sequence_rules_over_a_clock_that_was_set_back() -> None:
    moments, _ = order_moments([heard(1, 50.0), heard(2, 20.0), heard(3, 60.0)], [], [])
    assert [(moment.at, moment.what.sequence) for moment in moments if isinstance(moment.what, LandingRecord)] == [
        (50.0, 1),
        (50.0, 2),
        (60.0, 3),
    ]


def test_what_nobody_answered_is_still_to_load() -> None:
    moments, troubles = order_moments([heard(1, 1.0), heard(2, None, answered=False)], [], [])
    assert (whats(moments), troubles) == (["a-1"], [])


def test_one_before_an_answered_one_was_loaded_although_its_receipt_is_gone_or_torn() -> None:
    moments, _ = order_moments([heard(1, None, answered=False), heard(2, None), heard(3, 7.0)], [], [])
    assert [(moment.at, moment.what.sequence) for moment in moments if isinstance(moment.what, LandingRecord)] == [
        (7.0, 1),
        (7.0, 2),
        (7.0, 3),
    ]


def test_a_second_landing_of_a_number_is_left_to_the_load() -> None:
    stray = heard(1, None, answered=False, landing="stray")
    moments, _ = order_moments([heard(1, 1.0), stray, heard(2, 2.0)], [], [])
    assert whats(moments) == ["a-1", "a-2"]


def test_numbers_of_which_nothing_is_here_are_named() -> None:
    _, troubles = order_moments([heard(2, 1.0), heard(5, 2.0), heard(7, None, answered=False)], [], [])
    assert [trouble.split(":")[0] for trouble in troubles] == [f"landing {number} of site a" for number in (1, 3, 4)]


def test_merged_files_of_the_same_sources_settled_together() -> None:
    one, two, other = settled(5.0, "m1"), settled(5.0, "m2"), settled(5.0, "m3", source="t")
    moments, _ = order_moments([], [], [one, two, other])
    assert whats(moments) == [(one, two), (other,)]
