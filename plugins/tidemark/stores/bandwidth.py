"""Caps on bytes a second: a token bucket that sleeps, for a cap of its own and for the share of one that others have too."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

PACES = 8  # a second: how often a capped link asks for more
LOOK_AGAIN = 0.25  # seconds; a share may have changed
LEAST = 1 / 50  # of a shared cap: what a sending reckons with while its share is smaller, or not there yet


class LineShare(Protocol):
    """A place under a cap that other processes share (`ledger.line_places`)."""

    @property
    def cap(self) -> float:
        """Bytes a second of all together."""

    @property
    def rate(self) -> float:
        """Bytes a second that are ours now; 0.0: nothing yet, or nothing any more."""

    def used(self, count: int) -> None:
        """So many bytes go."""

    def check(self) -> None:
        """Raises RetryableError where `rate` is 0.0 because nobody can say what is ours."""


@dataclass
class TokenBucket:
    """`cap` bytes a second, 0: none of its own. It holds a quarter of a second's bytes at most, so a pause buys no burst."""

    cap: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    line: LineShare | None = None
    _tokens: float = field(default=0.0, init=False)
    _at: float = field(default=0.0, init=False)
    _earned: float = field(default=0.0, init=False)  # bytes a second when somebody last looked

    def __post_init__(self) -> None:
        self._at, self._earned = self.clock(), self._now()

    @property
    def most(self) -> float:
        """Bytes a second if nobody else were there; 0 where there is no cap."""
        if self.line is None:
            return self.cap
        return min(self.cap, self.line.cap) if self.cap else self.line.cap

    @property
    def least(self) -> float:
        """Bytes a second to reckon with however many are there; 0 where there is no cap."""
        return self.cap if self.line is None else min(self.most, self.line.cap * LEAST)

    @property
    def rate(self) -> float:
        """Bytes a second to reckon with as things are; 0 where there is no cap."""
        return max(self._now(), self.least)

    @property
    def pace(self) -> int:
        """Bytes that may be asked for at once, the same for a whole sending; 0 where there is no cap."""
        return max(1, int(self.most / PACES)) if self.most > 0 else 0

    def take(self, count: int) -> None:
        """Return when `count` bytes may go; a debt is slept off before the next ones. Raises as `LineShare.check`."""
        if self.most <= 0:
            return
        if self.line is not None:
            self.line.used(count)
        self._earn()
        self._tokens -= count
        while self._tokens < -0.5:  # less than a byte is what rounding leaves
            if self.line is not None:
                self.line.check()
            rate = self._earned
            self.sleep(min(-self._tokens / rate, LOOK_AGAIN) if rate else LOOK_AGAIN)
            self._earn()

    def _earn(self) -> None:
        """What a share that changed meanwhile has earned is the lesser of the two."""
        now, rate = self.clock(), self._now()
        earned = (now - self._at) * min(rate, self._earned)
        self._tokens = min(self._tokens + earned, rate / 4)
        self._at, self._earned = now, rate

    def _now(self) -> float:
        return self.most if self.line is None else min(self.most, self.line.rate)
