"""What the connections of a transfer carry, and when their line counts as one that loses packets."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidemark.transfer.stream.connection import Connection
from tidemark.transfer.stream.connections import LOSSY_STEPS, STEP_SECONDS, LineSpeed


class Carrying:
    """A connection with so many bytes and lost packets behind it."""

    def __init__(self, number: int) -> None:
        self.number, self.bytes, self.lost = number, 0, 0
        self.connection: Any = self

    def measure_connection(self) -> tuple[float, int]:
        return 0.05, self.lost


def steps(speed: LineSpeed, carriers: list[Carrying], lost: list[int]) -> None:
    now = speed._stepped
    for more in lost:
        carriers[0].lost += more
        now += STEP_SECONDS
        speed.measure_step(now, cast("list[Connection]", carriers))


def test_the_rate_of_each_is_smoothed_and_the_total_is_of_the_last_step() -> None:
    speed, one, other = LineSpeed(), Carrying(1), Carrying(2)
    carriers = [one, other]
    one.bytes, other.bytes = 1000, 3000
    steps(speed, carriers, [0])
    assert speed.total == pytest.approx(4000 / STEP_SECONDS)
    one.bytes += 2000
    steps(speed, carriers, [0])
    assert speed.total == pytest.approx(2000 / STEP_SECONDS)
    assert speed.rate == pytest.approx({1: 1500 / STEP_SECONDS, 2: 1500 / STEP_SECONDS})


@pytest.mark.parametrize(
    ("lost", "loses"),
    [
        ([5] * (LOSSY_STEPS - 1), False),
        ([5, 0] * LOSSY_STEPS, False),
        ([1] * LOSSY_STEPS, True),
        ([0, *[1] * LOSSY_STEPS], True),
    ],
)
def test_losses_step_after_step_are_the_lines_and_one_now_and_then_a_queue_that_ran_over(
    lost: list[int], loses: bool
) -> None:
    speed = LineSpeed()
    steps(speed, [Carrying(1)], lost)
    assert speed.loses_packets is loses and speed.lossy is (lost[-1] > 0)


def test_a_connection_that_is_gone_takes_its_losses_with_it() -> None:
    speed, first, other = LineSpeed(), Carrying(1), Carrying(2)
    steps(speed, [first, other], [7])
    steps(speed, [other], [0])
    assert not speed.lossy and not speed.loses_packets
    steps(speed, [other], [1])
    assert speed.lossy  # though fewer are lost than the one that is gone had lost
