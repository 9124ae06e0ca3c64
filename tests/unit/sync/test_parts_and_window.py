"""Batches and parts end on partition borders; a window may cross midnight and a change of clocks."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import UsageError, WindowOverError
from tidemark.settings.model import LinkSettings
from tidemark.settings.window import is_open, next_opening, require_window
from tidemark.sync.send.batches import Weighed, cut_batches, part_is_full
from tidemark.sync.session import PartLimits, partition_of

DATA = ("data/sequence", "data/unsequence")


def path(partition: int, number: int, kind: str = "sequence") -> str:
    return f"data/{kind}/root.sg/0/{partition}/{number}-{number}-0-0.tsfile"


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 50)), unique_by=lambda f: f[:2]),
    st.integers(1, 100),
    st.integers(1, 5),
)
def test_no_partition_is_in_two_batches(files: list[tuple[int, int, int]], size: int, count: int) -> None:
    asked = [Weighed(path(p, n), w) for p, n, w in files]
    cut = list(cut_batches(asked, lambda f: partition_of(f, DATA), PartLimits(batch_bytes=size, batch_files=count)))
    assert sorted(f for batch in cut for f in batch) == sorted(asked)
    seen: set[object] = set()
    for batch in cut:
        here = {partition_of(f.path, DATA) for f in batch}
        assert not here & seen
        seen |= here


def test_sequence_and_unsequence_of_a_partition_go_together() -> None:
    assert partition_of(path(3, 1), DATA) == partition_of(path(3, 2, "unsequence"), DATA)


def test_a_part_closes_by_bytes_or_by_time() -> None:
    limits = PartLimits(part_bytes=10, part_seconds=60)
    assert part_is_full(10, 0, limits) and part_is_full(1, 60, limits) and not part_is_full(9, 59, limits)


def at(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("window", "moment", "open_"),
    [
        ("22:00-06:00", "2026-01-01T23:00", True),
        ("22:00-06:00", "2026-01-01T05:59", True),
        ("22:00-06:00", "2026-01-01T06:00", False),
        ("08:00-12:00", "2026-01-01T08:00", True),
        ("08:00-12:00", "2026-01-01T12:00", False),
        ("", "2026-01-01T12:00", True),
        ("01:00-04:00", "2026-03-29T03:30", True),  # the night the clocks go forward
    ],
)
def test_window(window: str, moment: str, open_: bool) -> None:
    assert is_open(window, "Europe/Berlin", at(moment)) is open_


@pytest.mark.parametrize("wrong", ["22:00", "22:00-25:00", "a-b", "06:00-06:00"])
def test_a_wrong_window_names_itself(wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong[:2]):
        is_open(wrong, "UTC", 0)


@pytest.mark.parametrize(("schedule", "by_itself"), [("", False), ("0 * * * *", True)])
def test_outside_is_an_error_that_says_who_goes_on(schedule: str, by_itself: bool) -> None:
    link = LinkSettings("l", "s", "r", window="08:00-12:00", timezone="UTC", schedule=schedule)
    with pytest.raises(WindowOverError) as caught:
        require_window(link, at("2026-01-01T13:00", "UTC"))
    assert "./tidemark sync l" in caught.value.hint and ("schedule" in caught.value.hint) is by_itself


@pytest.mark.parametrize(
    ("window", "hours", "then"),
    [("", 7, 7), ("22:00-06:00", 7, 22), ("22:00-06:00", 23, 23), ("02:00-06:00", 7, 26), ("02:00-06:00", 3, 3)],
)
def test_when_a_window_opens(window: str, hours: int, then: int) -> None:
    assert next_opening(window, "UTC", 86_400.0 * 10 + hours * 3600) == 86_400.0 * 10 + then * 3600
