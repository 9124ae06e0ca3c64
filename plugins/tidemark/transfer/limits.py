"""Limits of a transfer: bytes a second, the time of a file, the end of a link's window.

`TokenBucket` caps bytes a second by sleeping: for a cap of its own, and for a share of a cap that other processes use
too (`LineShare`, see `ledger.sender.bandwidth`). It holds a quarter of a second's bytes at most, so a pause buys no burst. A
capped link asks eight times a second for more.

`FileDeadlines` limits the time of each file, so that a file ends that trickles or gains one block between two cuts. A
file has ten minutes, plus the time its size takes at the slowest accepted rate. Its time starts with its first request
and covers all tries. A file that is late fails alone; the next run resumes from its blocks.

`WindowEdge`: once the caller asked to stop, at most one block more is accepted, of all files over all connections.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.errors import UnreachableError

PACES = 8  # a second: how often a capped link asks for more
LOOK_AGAIN = 0.25  # seconds; a share may have changed
LEAST = 1 / 50  # of a shared cap: the rate that a transfer assumes while its share is smaller or unknown


class LineShare(Protocol):
    """This process's share of a cap that other processes use too (`ledger.sender.bandwidth`)."""

    @property
    def cap(self) -> float:
        """Bytes a second of all processes together."""

    @property
    def rate(self) -> float:
        """Bytes a second that this process may use now; 0.0: it has no share."""

    def count_used(self, count: int) -> None:
        """Record that `count` bytes are sent."""

    def assert_share_known(self) -> None:
        """Raise RetryableError if `rate` is 0.0 because the share cannot be read."""


@dataclass
class TokenBucket:
    """A cap of `cap` bytes a second, 0: none of its own; `line` may limit it further."""

    cap: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    line: LineShare | None = None
    _tokens: float = field(default=0.0, init=False)
    _at: float = field(default=0.0, init=False)
    _earned: float = field(default=0.0, init=False)  # bytes a second at the last update

    def __post_init__(self) -> None:
        self._at, self._earned = self.clock(), self._current_rate()

    @property
    def most_rate(self) -> float:
        """Bytes a second if no other process used the line; 0: no cap."""
        if self.line is None:
            return self.cap
        return min(self.cap, self.line.cap) if self.cap else self.line.cap

    @property
    def least_rate(self) -> float:
        """Bytes a second to expect however many processes share the line; 0: no cap."""
        return self.cap if self.line is None else min(self.most_rate, self.line.cap * LEAST)

    @property
    def rate(self) -> float:
        """Bytes a second to expect now; 0: no cap."""
        return max(self._current_rate(), self.least_rate)

    @property
    def pace_bytes(self) -> int:
        """Bytes to ask for at once, constant for a whole transfer; 0: no cap."""
        return max(1, int(self.most_rate / PACES)) if self.most_rate > 0 else 0

    def consume_tokens(self, count: int) -> None:
        """Sleep until `count` bytes may be sent. Raises as `LineShare.assert_share_known`."""
        if self.most_rate <= 0:
            return
        if self.line is not None:
            self.line.count_used(count)
        self._earn_tokens()
        self._tokens -= count
        while self._tokens < -0.5:  # less than a byte is what rounding leaves
            if self.line is not None:
                self.line.assert_share_known()
            rate = self._earned
            self.sleep(min(-self._tokens / rate, LOOK_AGAIN) if rate else LOOK_AGAIN)
            self._earn_tokens()

    def _earn_tokens(self) -> None:
        """Add tokens for the time since the last update, at the smaller of the old and the new rate."""
        now, rate = self.clock(), self._current_rate()
        earned = (now - self._at) * min(rate, self._earned)
        self._tokens = min(self._tokens + earned, rate / 4)
        self._at, self._earned = now, rate

    def _current_rate(self) -> float:
        return self.most_rate if self.line is None else min(self.most_rate, self.line.rate)


LEAST_SECONDS = 600.0


@dataclass
class FileDeadlines:
    """The time limits of one transfer's files. `slowest`: bytes a second, 0: no limit. Any path may be the key."""

    slowest: float
    _began: dict[str, float] = field(default_factory=dict)

    def begin_file(self, path: str, now: float) -> None:
        self._began.setdefault(path, now)

    def end_file(self, path: str) -> None:
        self._began.pop(path, None)

    def overdue_error(self, path: str, size: int, now: float, sharing: int = 1) -> UnreachableError | None:
        """Return the error of a file that is late, else None. `sharing`: how many files share the line."""
        seconds = now - self._began.get(path, now)
        if not self.slowest or seconds <= LEAST_SECONDS + size * sharing / self.slowest:
            return None
        return UnreachableError(
            f"{path} ({size} bytes) is not there after {seconds:.0f} s: less than {self.slowest:.0f} bytes a second",
            hint="check the line; the next run goes on from here. So slow a line needs a lower `slowest` in its link",
            subject=path,
        )


class WindowEdge:
    """The last block that may pass after the wish to stop. Any thread may call it."""

    def __init__(self, block_bytes: int) -> None:
        self._left = block_bytes
        self._reached = threading.Event()
        self._door = threading.Lock()

    def mark_reached(self) -> None:
        self._reached.set()

    def admit_bytes(self, size: int) -> bool:
        """Count `size` bytes that pass. Returns whether they are within the last block."""
        if not self._reached.is_set():
            return True
        with self._door:
            self._left -= size
            return self._left >= 0

    def may_admit(self, size: int) -> bool:
        """Whether `size` more bytes might pass."""
        return not self._reached.is_set() or self._left >= size
