"""A cap on bytes a second: a token bucket that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PACES = 8  # a second: how often a capped link asks for more


@dataclass
class TokenBucket:
    """`rate` bytes a second, 0: no cap. It holds a quarter of a second's bytes at most, so a pause buys no burst."""

    rate: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _tokens: float = field(default=0.0, init=False)
    _at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._at = self.clock()

    @property
    def pace(self) -> int:
        """Bytes that may be asked for at once; 0 where there is no cap."""
        return max(1, int(self.rate / PACES)) if self.rate > 0 else 0

    def take(self, count: int) -> None:
        """Return when `count` bytes may go; a debt is slept off before the next ones."""
        if self.rate <= 0:
            return
        now = self.clock()
        self._tokens = min(self._tokens + (now - self._at) * self.rate, self.rate / 4) - count
        self._at = now
        if self._tokens < 0:
            self.sleep(-self._tokens / self.rate)
