"""How many connections a server lets a transfer have: as many as there are once it refuses one, one more after a pause.

sshd refuses what is too much (`MaxStartups`, limits of the account), and what is too much may be less a moment later.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Allowance:
    """`most`: of the link's settings. Times are seconds of any clock that does not go back."""

    most: int
    failures: int = 0  # refusals in a row
    _now: int = field(init=False)
    _again: float = 0.0  # when one more may be tried

    def __post_init__(self) -> None:
        self._now = self.most

    def at(self, now: float) -> int:
        """How many may be open or opening."""
        return self._now if self._now == self.most or now < self._again else self._now + 1

    def refused(self, there: int, again: float) -> None:
        """One was refused while `there` were open or opening; nobody asks for more before `again`."""
        self.failures += 1
        self._now = max(1, min(self._now, there))
        self._again = again

    def let_in(self, there: int, again: float) -> None:
        """One more was opened: the next may be tried at `again`."""
        self.failures = 0
        if there > self._now:
            self._now, self._again = min(there, self.most), again
