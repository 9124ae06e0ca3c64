"""A time for each whole file: what trickles for ever, or gets on by a block between two cuts, ends too.

A file has ten minutes and what its size takes at the slowest rate that is still worth waiting for, from the moment its first
byte is asked for, over all tries. One that is over it fails alone; the next run goes on from its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import UnreachableError

LEAST_SECONDS = 600.0


@dataclass
class FileDeadlines:
    """Of one transfer. `slowest`: bytes a second, 0: files have all the time there is. Paths as the asker names them."""

    slowest: float
    _began: dict[str, float] = field(default_factory=dict)

    def begin(self, path: str, now: float) -> None:
        self._began.setdefault(path, now)

    def end(self, path: str) -> None:
        self._began.pop(path, None)

    def over(self, path: str, size: int, now: float, sharing: int = 1) -> UnreachableError | None:
        """The error of a file that has had its time, where so many files share what the line carries."""
        seconds = now - self._began.get(path, now)
        if not self.slowest or seconds <= LEAST_SECONDS + size * sharing / self.slowest:
            return None
        return UnreachableError(
            f"{path} ({size} bytes) is not there after {seconds:.0f} s: less than {self.slowest:.0f} bytes a second",
            hint="check the line; the next run goes on from here. So slow a line needs a lower `slowest` in its link",
            subject=path,
        )
