"""The bandwidth cap, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tidemark.errors import RetryableError
from tidemark.transfer.limits import TokenBucket


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
        bucket.consume_tokens(piece)
    assert clock.now - 100.0 == pytest.approx(10.0, rel=0.05)


def test_a_pause_buys_a_quarter_of_a_second_at_most() -> None:
    clock = Clock()
    bucket = TokenBucket(1_000_000, clock, clock.sleep)
    clock.now += 3600
    for _ in range(100):
        bucket.consume_tokens(10_000)
    assert clock.now - 3700.0 == pytest.approx(0.75)


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    TokenBucket(0, clock, clock.sleep).consume_tokens(1 << 40)
    assert clock.now == 100.0


@dataclass
class Share:
    """A place on a line of 1 MB/s: what is ours of it, by the clock."""

    ours: Callable[[], float]
    lost: bool = False
    cap: float = 1_000_000.0
    sent: int = 0

    @property
    def rate(self) -> float:
        return self.ours()

    def count_used(self, count: int) -> None:
        self.sent += count

    def assert_share_known(self) -> None:
        if self.lost:
            raise RetryableError("nobody knows")


@pytest.mark.parametrize("piece", [1_000, 50_000])
def test_a_share_that_changes_is_kept(piece: int) -> None:
    """Nothing for two seconds, then all of it for four, then a fifth."""
    clock = Clock()
    share = Share(lambda: 0.0 if clock.now < 102 else 1e6 if clock.now < 106 else 2e5)
    bucket = TokenBucket(0.0, clock, clock.sleep, share)
    sent_at: list[float] = []
    while clock.now < 116:
        bucket.consume_tokens(piece)
        sent_at.append(clock.now)
    assert share.sent == len(sent_at) * piece
    for begin, end, wanted in ((102, 106, 4e6), (106, 116, 2e6)):
        assert sum(piece for at in sent_at if begin <= at < end) == pytest.approx(wanted, rel=0.08)
    assert sum(at < 102 for at in sent_at) == 0


def test_the_lesser_of_two_caps_counts() -> None:
    clock = Clock()
    share = Share(lambda: 5e5)
    own = TokenBucket(2e5, clock, clock.sleep, share)
    assert (own.most_rate, own.rate, own.pace_bytes) == (2e5, 2e5, 25_000)
    shared = TokenBucket(8e5, clock, clock.sleep, share)
    assert (shared.most_rate, shared.rate, shared.least_rate) == (8e5, 5e5, 2e4)


def test_a_share_that_nobody_knows_ends_the_wait() -> None:
    clock = Clock()
    with pytest.raises(RetryableError, match="nobody knows"):
        TokenBucket(0.0, clock, clock.sleep, Share(lambda: 0.0, lost=True)).consume_tokens(1000)
