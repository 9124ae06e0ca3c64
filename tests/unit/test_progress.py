"""How far a piece of work is: its pace, and the words for it."""

from __future__ import annotations

import pytest

from tidemark.progress import Figures, Pace, Tick, format_duration, format_figures, format_size


def sending(files: int, done: int) -> Tick:
    return Tick("send", files, 40, done, 100_000_000)


def test_a_beat_in_words() -> None:
    assert format_figures(Figures(Tick("check", 3, 40))) == "check: 3 of 40 files"
    assert format_figures(Figures(Tick("list", 12_000))) == "list: 12,000 files"
    assert format_figures(Figures(Tick("read", 3, 40, things="devices"))) == "read: 3 of 40 devices"
    assert format_figures(Figures(sending(3, 1_200_000))) == "send: 3 of 40 files, 1.2 MB of 100.0 MB"
    full = Figures(sending(3, 10_000_000), rate=1_000_000.0, left=90.0)
    assert format_figures(full) == "send: 3 of 40 files, 10.0 MB of 100.0 MB, 1.0 MB/s, 1:30 left"


def test_the_rate_is_that_of_the_last_seconds_and_tells_what_is_left() -> None:
    pace = Pace()
    assert pace.figures_at(sending(0, 0), 100.0) == Figures(sending(0, 0))
    assert pace.figures_at(sending(1, 20_000_000), 102.0) == Figures(sending(1, 20_000_000), 10_000_000.0, 8.0)
    for second in range(103, 140):  # it goes slowly from here on
        figures = pace.figures_at(sending(1, 20_000_000 + (second - 102) * 1_000_000), float(second))
    assert figures.rate == 1_000_000.0
    assert figures.left == 43.0


def test_another_phase_has_its_own_pace() -> None:
    pace = Pace()
    pace.figures_at(sending(0, 0), 0.0)
    pace.figures_at(sending(9, 90_000_000), 1.0)
    assert pace.figures_at(Tick("load", 1, 9, 5), 2.0) == Figures(Tick("load", 1, 9, 5))


def test_bytes_that_were_taken_back_are_no_rate() -> None:
    pace = Pace()
    pace.figures_at(sending(2, 9_000), 0.0)
    assert pace.figures_at(sending(1, 4_000), 1.0) == Figures(sending(1, 4_000))


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (20_500_000, "20.5 MB"), (3e15, "3000.0 TB")]
)
def test_sizes(count: float, shown: str) -> None:
    assert format_size(count) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (90, "1:30"), (7_380, "2:03:00")])
def test_spans(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown
