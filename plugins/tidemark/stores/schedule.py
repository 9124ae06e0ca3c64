"""Which bytes to ask next, of which connection. Pure: told what arrived and what was lost, it says what to ask.

Large files go in chunks, each connection going on with the file it is at (its digest then runs along, see `far_stream`);
a connection without a file takes the largest waiting one, or joins another at its. Small files go in bundles, and get every
fourth turn while large ones wait. When nothing waits any more, an idle connection asks again what the busiest one has not
begun to send: what comes first counts. So no connection, however slow, decides when the last byte is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BUNDLE_FILES = 500
SMALL_TURN = 4  # of so many asks one is a bundle, while both kinds wait
LEAST_CHUNK = 128 << 10


class Span(NamedTuple):
    number: int  # of the file
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(eq=False)
class Asked:
    """Spans asked at once, what of them has not come yet, and whether somebody else was asked too."""

    spans: deque[Span]
    doubled: bool = False


_NONE: deque[Asked] = deque()


@dataclass
class _Large:
    gaps: deque[tuple[int, int]]  # (offset, end) nobody was asked for
    missing: int  # bytes that have not come

    @property
    def waiting(self) -> int:
        return sum(end - offset for offset, end in self.gaps)


@dataclass
class Schedule:
    """Files by number. `add_small`, `add_large`, then `next` and `arrived` until `finished`."""

    _small: deque[tuple[int, int]] = field(default_factory=deque)  # (number, size) nobody was asked for
    _large: dict[int, _Large] = field(default_factory=dict)
    _open_small: dict[int, int] = field(default_factory=dict)  # not come yet: number, size
    _asked: dict[int, deque[Asked]] = field(default_factory=dict)  # by connection, oldest first
    _at: dict[int, int] = field(default_factory=dict)  # connection: the large file it is at
    _turn: int = 0
    _owed: dict[int, int] = field(default_factory=dict)  # bytes outstanding, by connection

    def add_small(self, number: int, size: int) -> None:
        self._small.append((number, size))
        self._open_small[number] = size

    def add_large(self, number: int, gaps: Sequence[tuple[int, int]]) -> None:
        self._large[number] = _Large(deque(gaps), sum(end - offset for offset, end in gaps))

    @property
    def finished(self) -> bool:
        return not self._open_small and not self._large

    def waits_for(self, number: int) -> bool:
        return number in self._open_small or number in self._large

    @property
    def waiting_bytes(self) -> int:
        """Of files that nobody was asked for."""
        return sum(size for _, size in self._small) + sum(large.waiting for large in self._large.values())

    def outstanding(self, connection: int) -> int:
        """Bytes asked of `connection` that have not come; an empty file counts as one."""
        return self._owed.get(connection, 0)

    def next(self, connection: int, chunk: int, slow: frozenset[int] = frozenset()) -> tuple[Span, ...]:
        """About `chunk` bytes to ask of `connection` now; () when there is nothing for it.

        Of a connection in `slow` even what it may be sending is asked again.
        """
        self._turn += 1
        if self._small and (self._turn % SMALL_TURN == 0 or not self._waiting_large()):
            spans = self._bundle(chunk)
        else:
            spans = self._chunk(connection, chunk) or self._again(connection, slow)
        if spans:
            self._asked.setdefault(connection, deque()).append(Asked(deque(spans)))
            self._owe(connection, sum(span.length or 1 for span in spans))
        return tuple(spans)

    def arrived(self, connection: int, number: int, offset: int, length: int) -> bool:
        """Bytes came from `connection`, in the order asked. False: they came before from another, or nobody waits."""
        self._take(connection, number, length)
        return self._open_small.pop(number, None) is not None or number in self._large

    def complete(self, number: int) -> None:
        """All bytes of a large file are there."""
        self._large.pop(number, None)

    def repeat(self, number: int, offset: int, end: int) -> None:
        """Bytes of a large file that came are not good: they wait again."""
        large = self._large.setdefault(number, _Large(deque(), 0))
        large.gaps.appendleft((offset, end))
        large.missing += end - offset

    def drop(self, number: int) -> None:
        """The file is given up; what still comes of it is not waited for."""
        self._large.pop(number, None)
        if self._open_small.pop(number, None) is not None:
            self._small = deque(entry for entry in self._small if entry[0] != number)
        for connection, waiting in self._asked.items():
            for asked in waiting:
                kept = deque(span for span in asked.spans if span.number != number)
                if len(kept) < len(asked.spans):
                    self._owe(connection, -sum(span.length or 1 for span in asked.spans if span.number == number))
                    asked.spans = kept

    def lost(self, connection: int) -> None:
        """The connection is gone: what it was asked for waits again."""
        self._at.pop(connection, None)
        self._owed.pop(connection, None)
        for asked in reversed(self._asked.pop(connection, deque())):
            for span in reversed(asked.spans):
                if span.number in self._open_small:
                    if all(number != span.number for number, _ in self._small):
                        self._small.appendleft((span.number, span.length))
                elif span.number in self._large and span.length:
                    self._large[span.number].gaps.appendleft((span.offset, span.end))

    def _owe(self, connection: int, size: int) -> None:
        self._owed[connection] = self._owed.get(connection, 0) + size

    def _waiting_large(self) -> bool:
        return any(large.gaps for large in self._large.values())

    def _bundle(self, chunk: int) -> list[Span]:
        spans: list[Span] = []
        size = 0
        while self._small and len(spans) < BUNDLE_FILES and (not spans or size + self._small[0][1] <= chunk):
            number, length = self._small.popleft()
            if number in self._open_small:
                spans.append(Span(number, 0, length))
                size += length
        return spans

    def _chunk(self, connection: int, chunk: int) -> list[Span]:
        number = self._at.get(connection, -1)
        if number not in self._large or not self._large[number].gaps:
            waiting = [n for n, large in self._large.items() if large.gaps]
            if not waiting:
                return []
            taken = {n for other, n in self._at.items() if other != connection}
            number = max(waiting, key=lambda n: (n not in taken, self._large[n].waiting))
            self._at[connection] = number
        gaps = self._large[number].gaps
        offset, end = gaps.popleft()
        length = min(chunk, end - offset)
        if offset + length < end:
            gaps.appendleft((offset + length, end))
        return [Span(number, offset, length)]

    def _again(self, connection: int, slow: frozenset[int]) -> list[Span]:
        others = {c: w for c, w in self._asked.items() if c != connection and len(w) > (0 if c in slow else 1)}
        for other in sorted(others, key=self.outstanding, reverse=True):
            last = others[other][-1]
            if not last.doubled and last.spans:
                last.doubled = True
                return [span for span in last.spans if span.number in self._open_small or span.number in self._large]
        return []

    def _take(self, connection: int, number: int, length: int) -> None:
        """Answers come in the order of the questions: cut the first span of the file."""
        waiting = self._asked.get(connection, _NONE)
        if waiting and waiting[0].spans and waiting[0].spans[0][0] == number and waiting[0].spans[0][2] == length:
            self._owed[connection] -= length or 1
            waiting[0].spans.popleft()
            if not waiting[0].spans:
                waiting.popleft()
            return
        for asked in waiting:
            for at, span in enumerate(asked.spans):
                if span.number == number:
                    self._owe(connection, -(length or 1))
                    if length < span.length:
                        asked.spans[at] = Span(number, span.offset + length, span.length - length)
                    else:
                        del asked.spans[at]
                    while waiting and not waiting[0].spans:
                        waiting.popleft()
                    return


def chunk_bytes(rate: float, connections: int, waiting: int, most: int) -> int:
    """How much to ask at once: a quarter second's worth for a connection of `rate` bytes a second, less towards the end."""
    fair = max(LEAST_CHUNK, waiting // (2 * connections)) if connections > 1 else most
    return int(max(LEAST_CHUNK, min(most, rate / 4, fair)))


def next_connections(now: int, most: int, round_trip: float, lossy: bool, window: float, seconds_left: float) -> int:
    """How many connections there should be. `window`: bytes a connection has on its way, rate times round trip.

    On a short round trip one stream fills the line. On a long one that loses packets the window of a stream stays small
    however wide the line is, so there are many; where it is large, a few get through the slow start sooner. What is left
    must be worth the round trips that opening takes, eight and the starting of a process, and its own slow start.
    """
    if now >= most or round_trip < SHORT_ROUND_TRIP or seconds_left < WORTH * round_trip:
        return now
    return max(now, min(most, 4 * now if lossy and window < LOSSY_WINDOW else FEW))


LOSSY_WINDOW = 256 << 10  # bytes; cubic keeps about 60 KB at 50 ms and a loss of 0.1 %
FEW = 4
WORTH = 20  # round trips
SHORT_ROUND_TRIP = 0.01  # seconds


def complement(size: int, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of 0…size no (offset, end) of `spans` covers."""
    gaps, at = [], 0
    for offset, end in sorted(spans):
        if min(offset, size) > at:
            gaps.append((at, min(offset, size)))
        at = max(at, end)
    if at < size:
        gaps.append((at, size))
    return gaps


def cover(spans: list[tuple[int, int]], offset: int, end: int) -> None:
    """Add (offset, end) to spans that are in order and do not touch one another."""
    apart = [span for span in spans if span[1] < offset or span[0] > end]
    touching = [span for span in spans if not (span[1] < offset or span[0] > end)]
    joined = (min([offset, *(start for start, _ in touching)]), max([end, *(last for _, last in touching)]))
    spans[:] = sorted([*apart, joined])
