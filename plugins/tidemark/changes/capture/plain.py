"""Plain transactions, many at a time: rows alone, and XID. Pure.

A transaction of one row costs less than the objects that would tell of it. So a run of them stays in arrays, from the events
of a log to the block of the store. What asks more of a transaction takes them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tidemark.changes.binlog.events import Gtid, MariaGtid
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet, uuid_text
from tidemark.changes.binlog.layout import EventType
from tidemark.changes.binlog.reader import Plain
from tidemark.changes.binlog.rows import Rows
from tidemark.changes.connection.model import Block, RawEvent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Gtids = MysqlGtidSet | MariaGtidPosition | None
LEAST, LEAST_BYTES = 8, 1 << 16
"""Transactions of a run, or bytes of their rows: fewer are read one by one, and decoded together with others."""
_MOST_EVENTS, _MOST_BYTES = 1024, 1 << 20
"""What is put together of events that come one by one."""
_SAFE = 1 << 56
"""Numbers of transactions below it can be added without a thought."""
_MOST_DOMAINS = 16
_MARIA, _ANONYMOUS = int(EventType.MARIA_GTID), int(EventType.ANONYMOUS_GTID)


class Feed:
    """Events of logs, of which those that come next can be seen together before they are taken.

    `waits`: others are waited for to be seen with them. Else only those of a block are seen, once the first of it is taken.
    """

    def __init__(self, found: Iterable[RawEvent | Block], *, waits: bool = True) -> None:
        self._found = iter(found)
        self._waits = waits
        self._block: Block | None = None
        self._first = 0  # the event of the block that is next
        self._events: Iterator[RawEvent] | None = None  # those from there on, where they are taken one by one
        self._behind: list[RawEvent | Block] = []  # taken too early, the next one last
        self._error: BaseException | None = None

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> RawEvent:
        while True:
            if self._block is not None:
                if self._events is None:
                    self._events = self._block.events(self._first)
                raw = next(self._events, None)
                if raw is not None:
                    self._first += 1
                    return raw
            found = self._take()
            if isinstance(found, RawEvent):
                self._block = None
                return found
            self._begin_block(found)

    @property
    def can_look(self) -> bool:
        """Whether it may pay to look ahead."""
        return self._waits or (self._block is not None and self._first < len(self._block.begins))

    def look_ahead(self) -> tuple[Block, int] | None:
        """Events that stand together, and which of them is next; None where the next ones do not."""
        if self._block is not None and self._first < len(self._block.begins):
            return self._block, self._first
        self._block = None
        found = self._gather() if self._waits else None
        if found is None:
            return None
        self._begin_block(found)
        return found, 0

    def extend(self) -> bool:
        """Put what comes behind the block to the events of it that are left: a transaction may end there."""
        block, first = self._block, self._first
        if block is None or first == len(block.begins) or block.ends[-1] - block.begins[first] >= _MOST_BYTES:
            return False
        more = self._gather() if self._waits else None
        if more is None:
            return False
        if (more.file, more.position) != (block.file, block.end):
            self._behind.append(more)
            return False
        self._begin_block(_append(block, first, more))
        return True

    def skip(self, count: int) -> None:
        """Leave out so many of the events that stand together."""
        self._first += count
        self._events = None

    def _begin_block(self, block: Block) -> None:
        self._block, self._first, self._events = block, 0, None

    def _take(self) -> RawEvent | Block:
        if self._behind:
            return self._behind.pop()
        if self._error is not None:
            raise self._error
        return next(self._found)

    def _gather(self) -> Block | None:
        """The next block, or one that is made of events that come one by one."""
        gathered: list[RawEvent] = []
        size = 0
        try:
            while len(gathered) < _MOST_EVENTS and size < _MOST_BYTES:
                found = self._take()
                if isinstance(found, Block):
                    if not gathered:
                        return found
                    self._behind.append(found)
                    break
                if gathered and (found.file, found.position) != (gathered[-1].file, gathered[-1].end):
                    self._behind.append(found)
                    break
                gathered.append(found)
                size += len(found.data)
        except BaseException as error:  # it is raised where its place is
            self._error = error
        return _join(gathered) if gathered else None


def _join(gathered: list[RawEvent]) -> Block:
    import numpy as np

    ends = np.cumsum([len(raw.data) for raw in gathered])
    begins = np.zeros(len(gathered), np.int64)
    begins[1:] = ends[:-1]
    return Block(gathered[0].file, gathered[0].position, b"".join([raw.data for raw in gathered]), begins, ends)


def _append(block: Block, first: int, more: Block) -> Block:
    """The events of a block from the first on, and more."""
    import numpy as np

    begin, end = int(block.begins[first]), int(block.ends[-1])
    sides = (
        (block.begins[first:] - begin, more.begins + (end - begin)),
        (block.ends[first:] - begin, more.ends + (end - begin)),
    )
    begins, ends = (np.concatenate(side) for side in sides)
    position = block.end - int((block.ends[first:] - block.begins[first:]).sum())
    return Block(block.file, position, block.data[begin:end] + more.data, begins, ends)


class Head(NamedTuple):
    """What is known of a transaction when it begins."""

    position: int
    server_id: int
    timestamp: int
    gtid: Gtid | MariaGtid | None


@dataclass(frozen=True)
class Stretch:
    """Plain transactions one behind the other in the log `file`, of events of which the first is at `position`."""

    file: str
    position: int
    plain: Plain
    first: int
    behind: int

    @property
    def count(self) -> int:
        return self.behind - self.first

    @cached_property
    def heads(self) -> NDArray[np.int64]:
        """The numbers of these, as `Plain.transactions` has them."""
        return self.plain.transactions[self.first : self.behind]

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The numbers of their row events."""
        begin = self.plain.transactions[self.first - 1, 2] if self.first else 0
        return self.plain.rows[begin : self.plain.transactions[self.behind - 1, 2]]

    @cached_property
    def row_events(self) -> NDArray[np.int64]:
        """How many row events each has."""
        import numpy as np

        begin = self.plain.transactions[self.first - 1, 2] if self.first else 0
        return np.diff(self.heads[:, 2], prepend=begin)

    @cached_property
    def uuids(self) -> NDArray[np.uint8]:
        """What makes the numbers of their GTIDs their own, 16 bytes each: a server's UUID, a domain of MariaDB."""
        import numpy as np

        kinds, places = self.heads[:, 5], self.heads[:, 7]
        found = np.zeros((self.count, 16), np.uint8)
        maria = kinds == _MARIA
        found[maria, 12:] = places[maria].astype(">u4")[:, None].view(np.uint8)
        named = ~maria & (kinds != _ANONYMOUS)
        found[named] = np.frombuffer(self.plain.data, np.uint8)[places[named][:, None] + np.arange(16)]
        return found

    def each(self) -> Iterator[tuple[Head, list[Rows]]]:
        """They, one by one."""
        data, keys = self.plain.data, self.plain.keys
        rows = [keys[key].make_rows(data[begin:end], flags) for key, begin, end, flags in self.rows.tolist()]
        at = 0
        uuids = self.uuids.tobytes()
        numbers = zip(self.heads.tolist(), self.row_events.tolist(), strict=True)
        for index, ((_, _, _, timestamp, server_id, kind, number, place, offset), own) in enumerate(numbers):
            gtid: Gtid | MariaGtid
            if kind == _MARIA:
                gtid = MariaGtid(place, server_id, number, 0)
            else:
                uuid = "" if kind == _ANONYMOUS else uuid_text(uuids[16 * index : 16 * index + 16])
                gtid = Gtid(uuid, number, immediate_commit_us=timestamp)
            yield Head(self.position + offset, server_id, timestamp, gtid), rows[at : at + own]
            at += own

    def cut(self, count: int) -> Stretch:
        """Those without the first ones."""
        return Stretch(self.file, self.position, self.plain, self.first + count, self.behind)

    def split(self) -> list[Stretch]:
        """Those whose GTIDs follow each other: of MariaDB, or of one server and without a gap."""
        import numpy as np

        kinds, numbers, uuids = self.heads[:, 5], self.heads[:, 6], self.uuids
        step = np.where(kinds[1:] == _ANONYMOUS, 0, 1)
        breaks = (kinds[1:] != kinds[:-1]) | (
            (kinds[1:] != _MARIA) & ((numbers[1:] != numbers[:-1] + step) | (uuids[1:] != uuids[:-1]).any(axis=1))
        )
        borders = [self.first, *(np.flatnonzero(breaks) + self.first + 1).tolist(), self.behind]
        return [Stretch(self.file, self.position, self.plain, first, behind) for first, behind in pairwise(borders)]


@dataclass(frozen=True)
class Run:
    """A stretch whose GTIDs follow each other. `before`, `offset`: GTID set and offset before it."""

    stretch: Stretch
    change_id: int
    before: Gtids
    offset: int

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The GTID offset with each."""
        import numpy as np

        heads, kind = self.stretch.heads, self.stretch.heads[0, 5]
        if kind == _MARIA:
            last = self.before.last if isinstance(self.before, MariaGtidPosition) else {}
            counts = np.zeros(len(heads), np.int64)
            domains, order = heads[:, 7], np.arange(len(heads))
            for domain in {*last, *domains.tolist()}:
                latest = np.maximum.accumulate(np.where(domains == domain, order, -1))
                counts += np.where(latest >= 0, heads[latest, 6], last.get(domain, (0, 0))[1])
        elif kind == _ANONYMOUS:
            counts = np.full(len(heads), self.before.count() if self.before is not None else 0)
        else:
            known = self.before.count() if isinstance(self.before, MysqlGtidSet) else 0
            counts = known + np.arange(1, len(heads) + 1)
        return np.maximum.accumulate(np.maximum(counts, self.offset))

    def gtids_after(self, index: int) -> Gtids:
        """The set with the transactions up to this one."""

        heads, kind = self.stretch.heads[: index + 1], self.stretch.heads[0, 5]
        if kind == _ANONYMOUS:
            return self.before
        if kind != _MARIA:
            uuid = uuid_text(self.stretch.uuids[0].tobytes())
            own = MysqlGtidSet.of([(uuid, "", [(int(heads[0, 6]), int(heads[-1, 6]))])])
            return self.before | own if isinstance(self.before, MysqlGtidSet) else own
        last = dict(self.before.last) if isinstance(self.before, MariaGtidPosition) else {}
        last |= {domain: (server, number) for server, number, domain in heads[:, [4, 6, 7]].tolist()}
        return MariaGtidPosition(last)

    def gtid_texts(self) -> list[str]:
        heads = self.stretch.heads
        kind, numbers = heads[0, 5], heads[:, 6].tolist()
        if kind == _ANONYMOUS:
            return [""] * len(heads)
        if kind != _MARIA:
            uuid = uuid_text(self.stretch.uuids[0].tobytes())
            return [f"{uuid}:{number}" for number in numbers]
        places = zip(heads[:, 7].tolist(), heads[:, 4].tolist(), numbers, strict=True)
        return [f"{domain}-{server}-{number}" for domain, server, number in places]


def make_run(stretch: Stretch, change_id: int, before: Gtids, offset: int) -> Run | None:
    """A run of a stretch whose GTIDs follow each other; None where it is too short, or its GTIDs are out of the common."""

    if not stretch.count:
        return None
    heads = stretch.heads
    kind, first = heads[0, 5], int(heads[0, 6])
    if stretch.count < LEAST and int((stretch.rows[:, 2] - stretch.rows[:, 1]).sum()) < LEAST_BYTES:
        return None
    if int(heads[:, 6].max()) >= _SAFE or offset >= _SAFE:
        return None
    if kind == _MARIA:
        last = before.last if isinstance(before, MariaGtidPosition) else {}
        if len({*last, *heads[:, 7].tolist()}) > _MOST_DOMAINS or any(number >= _SAFE for _, number in last.values()):
            return None
    elif before is not None and before.count() >= _SAFE:
        return None
    elif kind != _ANONYMOUS and isinstance(before, MysqlGtidSet):
        known = before.intervals.get((uuid_text(stretch.uuids[0].tobytes()), ""), ())
        if first < 1 or any(end >= first for _, end in known):
            return None
    return Run(stretch, change_id, before, offset)
