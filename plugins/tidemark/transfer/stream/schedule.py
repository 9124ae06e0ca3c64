"""Decide which bytes to ask next, of which connection. Pure: its input is what arrived and what was lost.

Large files are asked in chunks. A connection continues with its file, so that the digest runs along (see
`stores.agent.reader`). A connection without a file gets the largest waiting one, or joins another connection's. Small files
are asked in bundles, every fourth turn while large ones wait. When nothing waits, an idle connection asks again for what the
busiest one has not begun to send; the first answer counts. So a slow connection does not delay the end. Every byte is in one
state: waiting, asked of one or two connections, or here. Of bytes that an earlier try left only the digest is asked, every
second turn: the first turn asks for missing bytes, which fill the line meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BUNDLE_FILES = 512  # at most, asked at once
SMALL_TURN = 4  # one of so many requests is a bundle, while both kinds wait
KEPT_AHEAD = 16  # digest requests in flight of a connection: few, since a stop waits for them; enough for a long line
LEAST_CHUNK = 128 << 10
_EVERYTHING = 1 << 62  # bytes: no file is larger


class Span(NamedTuple):
    number: int  # of the file
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def weight(self) -> int:
        """Bytes of the answer; an empty file counts as one."""
        return self.length or 1


class Kept(Span):
    """Bytes that are here, of which the source's digest is asked."""

    __slots__ = ()

    @property
    def weight(self) -> int:
        return 1


@dataclass(eq=False)
class Asked:
    """The spans of one request that have not come yet. `twin`: the same request to another connection, while both live."""

    spans: deque[Span]
    twin: Asked | None = None


_NONE: deque[Asked] = deque()


@dataclass
class _Gaps:
    """The state of a large file."""

    gaps: deque[tuple[int, int]]  # (offset, end) not asked for
    missing: int  # bytes that have not come
    came: list[tuple[int, int]]  # (offset, end) of what is here, in order, joined

    @property
    def waiting_bytes(self) -> int:
        return sum(map(_span_length, self.gaps))


@dataclass
class Schedule:
    """Files by number. `add_small`, `add_large`, then `next_spans` and `record_arrival` until `is_finished`."""

    _small: OrderedDict[int, int] = field(default_factory=OrderedDict)  # not asked for: number, size
    _small_bytes: int = 0  # of those
    _large: dict[int, _Gaps] = field(default_factory=dict)
    _open_small: dict[int, int] = field(default_factory=dict)  # not come yet: number, size
    _asked: dict[int, deque[Asked]] = field(default_factory=dict)  # by connection, oldest first
    _at: dict[int, int] = field(default_factory=dict)  # connection: its current large file
    _turn: int = 0
    _owed: dict[int, int] = field(default_factory=dict)  # bytes outstanding, by connection
    _kept: dict[int, deque[Kept]] = field(default_factory=dict)  # of large files: digests not asked for

    def add_small(self, number: int, size: int) -> None:
        self._small[number] = self._open_small[number] = size
        self._small_bytes += size

    def add_large(self, number: int, gaps: Sequence[tuple[int, int]]) -> None:
        self._large[number] = _Gaps(deque(gaps), sum(map(_span_length, gaps)), uncovered_spans(_EVERYTHING, gaps))

    def add_comparison(self, number: int, spans: Iterable[tuple[int, int]]) -> None:
        """Add spans of a large file that an earlier try left, (offset, end) each, to ask for their digests."""
        self._large.setdefault(number, _Gaps(deque(), 0, [(0, _EVERYTHING)]))
        self._kept[number] = deque(Kept(number, offset, end - offset) for offset, end in spans)

    @property
    def is_finished(self) -> bool:
        return not self._open_small and not self._large

    def waits_for(self, number: int) -> bool:
        return number in self._open_small or number in self._large

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not asked for."""
        return self._small_bytes + sum(large.waiting_bytes for large in self._large.values())

    @property
    def missing_bytes(self) -> int:
        """Bytes that have not come, asked for or not."""
        return sum(self._open_small.values()) + sum(large.missing for large in self._large.values())

    def outstanding_bytes(self, connection: int) -> int:
        """Return the bytes asked of `connection` that have not come; an empty file counts as one."""
        return self._owed.get(connection, 0)

    def outstanding_spans(self, connection: int) -> int:
        return sum(len(asked.spans) for asked in self._asked.get(connection, _NONE))

    def next_spans(self, connection: int, chunk: int, slow: frozenset[int] = frozenset()) -> tuple[Span, ...]:
        """Return about `chunk` bytes to ask of `connection` now; () if there is nothing to ask. Even what a connection in
        `slow` may be sending already is asked again."""
        self._turn += 1
        spans = self._next_comparison(connection) if self._turn % 2 and self._turn > 1 else []
        if not spans and self._small and (self._turn % SMALL_TURN == 0 or not self._waiting_large()):
            spans = self._bundle_small(chunk)
        spans = spans or self._next_chunk(connection, chunk) or self._next_comparison(connection)
        asked = Asked(deque(spans)) if spans else self._ask_twice(connection, slow)
        if asked is None:
            return ()
        self._asked.setdefault(connection, deque()).append(asked)
        self._add_owed(connection, _total_weight(asked.spans))
        return tuple(asked.spans)

    def record_arrival(self, connection: int, number: int, offset: int, length: int) -> bool:
        """Record bytes from `connection`, in the order asked. Returns False if they came before or are not waited for."""
        compared = isinstance(self._pop_span(connection, number, length), Kept)  # it was here, and may have proved bad since
        large = self._large.get(number)
        if compared or large is None:
            return self._open_small.pop(number, None) is not None
        new = add_span(large.came, offset, offset + length)
        large.missing -= new
        return new > 0

    def has_arrived_whole(self, number: int) -> bool:
        """Whether all bytes of a large file came that was neither completed nor given up."""
        return number in self._large and not self._large[number].missing

    def complete_file(self, number: int) -> None:
        """Mark a large file as complete. Bytes that were asked twice may still come."""
        self._large.pop(number, None)

    def record_refusal(self, connection: int, number: int, length: int = 0) -> None:
        """Record an error instead of the file's next `length` bytes (0: its next span). The caller then calls `drop_file`
        if the file is waited for."""
        self._pop_span(connection, number, length)

    def repeat_span(self, number: int, offset: int, end: int) -> None:
        """Ask again for bytes of a large file that came but are bad, even if the file was complete."""
        large = self._large.setdefault(number, _Gaps(deque(), 0, [(0, _EVERYTHING)]))
        good = uncovered_spans(_EVERYTHING, [*uncovered_spans(_EVERYTHING, large.came), (offset, end)])
        large.missing += sum(map(_span_length, large.came)) - sum(map(_span_length, good))
        large.came = good
        large.gaps.appendleft((offset, end))

    def drop_file(self, number: int) -> None:
        """Give the file up. Bytes of it that still come are not waited for."""
        self._large.pop(number, None)
        self._kept.pop(number, None)
        self._open_small.pop(number, None)
        self._small_bytes -= self._small.pop(number, 0)
        for connection, waiting in self._asked.items():
            for asked in waiting:
                kept = deque(span for span in asked.spans if span.number != number)
                if len(kept) < len(asked.spans):
                    self._add_owed(connection, _total_weight(kept) - _total_weight(asked.spans))
                    asked.spans = kept

    def drop_connection(self, connection: int) -> None:
        """Remove a lost connection. Its requests wait again, unless another connection sent or will send the bytes."""
        self._at.pop(connection, None)
        self._owed.pop(connection, None)
        for asked in reversed(self._asked.pop(connection, deque())):
            twin = asked.twin
            if twin is not None:
                twin.twin = asked.twin = None
            under_way = {span.number: span for span in twin.spans} if twin is not None else {}
            for span in reversed(asked.spans):
                if span.number in self._open_small:
                    if span.number not in under_way:
                        self._small[span.number] = span.length
                        self._small.move_to_end(span.number, last=False)
                        self._small_bytes += span.length
                elif isinstance(span, Kept):
                    if span.number in self._large and span.number not in under_way:
                        self._kept.setdefault(span.number, deque()).appendleft(span)
                elif span.number in self._large:
                    large, other = self._large[span.number], under_way.get(span.number, span._replace(length=0))
                    missing = uncovered_spans(span.end, [(0, span.offset), *large.came, (other.offset, other.end)])
                    large.gaps.extendleft(reversed(missing))

    def _add_owed(self, connection: int, size: int) -> None:
        self._owed[connection] = self._owed.get(connection, 0) + size

    def _waiting_large(self) -> bool:
        return any(large.gaps for large in self._large.values())

    def _bundle_small(self, chunk: int) -> list[Span]:
        spans: list[Span] = []
        size = 0
        while self._small and len(spans) < BUNDLE_FILES:
            number, length = self._small.popitem(last=False)
            if spans and size + length > chunk:
                self._small[number] = length
                self._small.move_to_end(number, last=False)
                break
            spans.append(Span(number, 0, length))
            size += length
        self._small_bytes -= size
        return spans

    def _next_chunk(self, connection: int, chunk: int) -> list[Span]:
        number = self._at.get(connection, -1)
        if number not in self._large or not self._large[number].gaps:
            waiting = [n for n, large in self._large.items() if large.gaps]
            if not waiting:
                return []
            taken = {n for other, n in self._at.items() if other != connection}
            number = max(waiting, key=lambda n: (n not in taken, self._large[n].waiting_bytes))
            self._at[connection] = number
        gaps = self._large[number].gaps
        offset, end = gaps.popleft()
        length = min(chunk, end - offset)
        if offset + length < end:
            gaps.appendleft((offset + length, end))
        return [Span(number, offset, length)]

    def _next_comparison(self, connection: int) -> list[Span]:
        for number, waiting in self._kept.items():
            asked = [span for asked in self._asked.get(connection, _NONE) for span in asked.spans if isinstance(span, Kept)]
            if len(asked) >= KEPT_AHEAD:
                break
            span = waiting.popleft()
            if not waiting:
                del self._kept[number]
            return [span]
        return []

    def _ask_twice(self, connection: int, slow: frozenset[int]) -> Asked | None:
        for other in sorted(self._asked, key=self.outstanding_bytes, reverse=True):
            if other == connection:
                continue
            waiting = list(self._asked[other])
            for asked in reversed(waiting if other in slow else waiting[max(1, len(waiting) - 1) :]):
                spans = [span for span in asked.spans if self.waits_for(span.number)]
                if spans and asked.twin is None:
                    asked.twin = Asked(deque(spans), asked)
                    return asked.twin
        return None

    def _pop_span(self, connection: int, number: int, length: int) -> Span | None:
        """Cut `length` bytes (0: all) off the connection's first span of the file, and return that span. Answers come in
        the order of the requests."""
        waiting = self._asked.get(connection, _NONE)
        if waiting and waiting[0].spans and waiting[0].spans[0][0] == number and waiting[0].spans[0][2] == length:
            first = waiting[0].spans.popleft()
            self._owed[connection] -= first.weight
            taken: Span | None = first
        else:
            taken = self._cut_span(connection, number, length)
        while waiting and not waiting[0].spans:
            waiting.popleft()
        return taken

    def _cut_span(self, connection: int, number: int, length: int) -> Span | None:
        for asked in self._asked.get(connection, _NONE):
            for at, span in enumerate(asked.spans):
                if span.number == number:
                    if 0 < length < span.weight:
                        asked.spans[at] = Span(number, span.offset + length, span.length - length)
                        self._add_owed(connection, -length)
                    else:
                        del asked.spans[at]
                        self._add_owed(connection, -span.weight)
                    return span
        return None


def _total_weight(spans: Iterable[Span]) -> int:
    return sum(span.weight for span in spans)


def chunk_bytes(rate: float, connections: int, waiting: int, most: int) -> int:
    """Return how much to ask at once: a quarter second's bytes at `rate` bytes a second, less towards the end."""
    fair = max(LEAST_CHUNK, waiting // (2 * connections)) if connections > 1 else most
    return int(max(LEAST_CHUNK, min(most, rate / 4, fair)))


def next_connections(now: int, most: int, round_trip: float, lossy: bool, window: float, seconds_left: float) -> int:
    """Return how many connections there should be. `window`: bytes a connection has in flight, rate times round trip.

    One stream fills a line with a short round trip, and also a long line without loss. More would only fill queues until
    packets are lost; but one more is kept ready. With packet loss the window of a stream stays small however wide the line
    is, so there are many. The rest of the work must be worth the cost of opening: eight round trips, the start of a
    process, and slow start.
    """
    if now >= most or round_trip < SHORT_ROUND_TRIP or seconds_left < WORTH * round_trip:
        return now
    return max(now, min(most, 4 * now if lossy and window < LOSSY_WINDOW else READY))


LOSSY_WINDOW = 256 << 10  # bytes; cubic keeps about 60 KB at 50 ms and a loss of 0.1 %
READY = 2  # the first, and one that waits until packets are lost
WORTH = 20  # round trips
SHORT_ROUND_TRIP = 0.01  # seconds


def uncovered_spans(size: int, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (offset, end) gaps of 0…size that no span covers."""
    gaps, at = [], 0
    for offset, end in sorted(spans):
        if min(offset, size) > at:
            gaps.append((at, min(offset, size)))
        at = max(at, end)
    if at < size:
        gaps.append((at, size))
    return gaps


def add_span(spans: list[tuple[int, int]], offset: int, end: int) -> int:
    """Add (offset, end) to spans that are sorted and do not touch. Returns how many bytes are new."""
    before = sum(map(_span_length, spans))
    apart = [span for span in spans if span[1] < offset or span[0] > end]
    touching = [span for span in spans if not (span[1] < offset or span[0] > end)]
    joined = (min([offset, *(start for start, _ in touching)]), max([end, *(last for _, last in touching)]))
    spans[:] = sorted([*apart, joined])
    return sum(map(_span_length, spans)) - before


def _span_length(span: tuple[int, int]) -> int:
    return span[1] - span[0]
