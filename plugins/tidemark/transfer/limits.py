"""What limits a transfer: bytes a second, a file's time, the edge of a link's window.

`TokenBucket` is a cap on bytes a second that sleeps: for a cap of its own, and for the share of one that others have
too (`LineShare`, in `ledger.bandwidth`). It holds a quarter of a second's bytes at most, so a pause buys no burst. A
capped link asks eight times a second for more.

`FileDeadlines` is a time for each whole file, so that what trickles for ever, or gets on by a block between two
cuts, ends too. A file has ten minutes, and what its size takes at the slowest rate that is worth waiting for, from
the moment its first byte is asked for, over all tries. One that is over it fails alone; the next run goes on from
its blocks.

`WindowEdge`: once the caller said so, no more than a block comes, of all files over all connections. Any thread may
ask.
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
LEAST = 1 / 50  # of a shared cap: what a sending reckons with while its share is smaller, or not there yet


class LineShare(Protocol):
    """A place under a cap that other processes share (`ledger.bandwidth`)."""

    @property
    def cap(self) -> float:
        """Bytes a second of all together."""

    @property
    def rate(self) -> float:
        """Bytes a second that are ours now; 0.0: nothing yet, or nothing any more."""

    def count_used(self, count: int) -> None:
        """So many bytes go."""

    def assert_share_known(self) -> None:
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
        self._at, self._earned = self.clock(), self._current_rate()

    @property
    def most_rate(self) -> float:
        """Bytes a second if nobody else were there; 0 where there is no cap."""
        if self.line is None:
            return self.cap
        return min(self.cap, self.line.cap) if self.cap else self.line.cap

    @property
    def least_rate(self) -> float:
        """Bytes a second to reckon with however many are there; 0 where there is no cap."""
        return self.cap if self.line is None else min(self.most_rate, self.line.cap * LEAST)

    @property
    def rate(self) -> float:
        """Bytes a second to reckon with as things are; 0 where there is no cap."""
        return max(self._current_rate(), self.least_rate)

    @property
    def pace_bytes(self) -> int:
        """Bytes that may be asked for at once, the same for a whole sending; 0 where there is no cap."""
        return max(1, int(self.most_rate / PACES)) if self.most_rate > 0 else 0

    def consume_tokens(self, count: int) -> None:
        """Return when `count` bytes may go; a debt is slept off before the next ones. Raises as
        `LineShare.assert_share_known`."""
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
        """What a share that changed meanwhile has earned is the lesser of the two."""
        now, rate = self.clock(), self._current_rate()
        earned = (now - self._at) * min(rate, self._earned)
        self._tokens = min(self._tokens + earned, rate / 4)
        self._at, self._earned = now, rate

    def _current_rate(self) -> float:
        return self.most_rate if self.line is None else min(self.most_rate, self.line.rate)


LEAST_SECONDS = 600.0


@dataclass
class FileDeadlines:
    """Of one transfer. `slowest`: bytes a second, 0: files have all the time there is. Paths as the asker names them."""

    slowest: float
    _began: dict[str, float] = field(default_factory=dict)

    def begin_file(self, path: str, now: float) -> None:
        self._began.setdefault(path, now)

    def end_file(self, path: str) -> None:
        self._began.pop(path, None)

    def overdue_error(self, path: str, size: int, now: float, sharing: int = 1) -> UnreachableError | None:
        """The error of a file that has had its time, where so many files share what the line carries."""
        seconds = now - self._began.get(path, now)
        if not self.slowest or seconds <= LEAST_SECONDS + size * sharing / self.slowest:
            return None
        return UnreachableError(
            f"{path} ({size} bytes) is not there after {seconds:.0f} s: less than {self.slowest:.0f} bytes a second",
            hint="check the line; the next run goes on from here. So slow a line needs a lower `slowest` in its link",
            subject=path,
        )


class WindowEdge:
    """Any thread may ask, and say what passes."""

    def __init__(self, block_bytes: int) -> None:
        self._left = block_bytes
        self._reached = threading.Event()
        self._door = threading.Lock()

    def mark_reached(self) -> None:
        self._reached.set()

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def admit_bytes(self, size: int) -> bool:
        """So many bytes are to pass, or did: whether they are within the block that may."""
        if not self._reached.is_set():
            return True
        with self._door:
            self._left -= size
            return self._left >= 0

    def may_admit(self, size: int) -> bool:
        """Whether so many more might pass."""
        return not self._reached.is_set() or self._left >= size
