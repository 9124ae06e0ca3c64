"""What the connections of a transfer carry, and whether packets are lost on the way: measured once a step."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tidemark.stores.carrier import Carrier

STEP_SECONDS = 0.25  # between two decisions about the number of connections
LOSSY_STEPS = 3  # one after another are a line that loses packets; a queue that runs over does so once in a while


class LineSpeed:
    """`rate`: of each connection's number, bytes a second. `total`: of all, in the last step."""

    def __init__(self) -> None:
        self.rate: dict[int, float] = {}
        self.total = 0.0
        self.lossy = False  # packets were lost in the last step
        self._lossy_steps = 0  # one after another
        self._marks: dict[int, int] = {}  # a connection's bytes at the last step
        self._losses: dict[int, int] = {}  # and its lost packets
        self._stepped = time.monotonic()

    @property
    def loses_packets(self) -> bool:
        """Again and again."""
        return self._lossy_steps >= LOSSY_STEPS

    def due(self, now: float, round_trip: float) -> bool:
        return now - self._stepped >= max(STEP_SECONDS, 2 * round_trip)

    def step(self, now: float, carriers: Sequence[Carrier]) -> None:
        seconds, self._stepped = now - self._stepped, now
        self.total = 0.0
        for carrier in carriers:
            came = (carrier.bytes - self._marks.get(carrier.number, 0)) / seconds
            self._marks[carrier.number] = carrier.bytes
            self.total += came
            self.rate[carrier.number] = (self.rate.get(carrier.number, came) + came) / 2
        before, self._losses = self._losses, {carrier.number: carrier.connection.line()[1] for carrier in carriers}
        self.lossy = any(lost > before.get(number, 0) for number, lost in self._losses.items())
        self._lossy_steps = self._lossy_steps + 1 if self.lossy else 0
