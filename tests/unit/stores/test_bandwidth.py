"""The bandwidth cap, on a clock of its own."""

from __future__ import annotations

import pytest

from tidemark.stores.bandwidth import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("piece", [1_000, 100_000, 5_000_000])
def test_over_time_the_rate_is_kept(piece: int) -> None:
    clock = Clock()
    bucket = TokenBucket(1_000_000, clock, clock.sleep)
    for _ in range(10_000_000 // piece):
        bucket.take(piece)
    assert clock.now - 100.0 == pytest.approx(10.0, rel=0.05)


def test_a_pause_buys_a_quarter_of_a_second_at_most() -> None:
    clock = Clock()
    bucket = TokenBucket(1_000_000, clock, clock.sleep)
    clock.now += 3600
    for _ in range(100):
        bucket.take(10_000)
    assert clock.now - 3700.0 == pytest.approx(0.75)


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    TokenBucket(0, clock, clock.sleep).take(1 << 40)
    assert clock.now == 100.0
