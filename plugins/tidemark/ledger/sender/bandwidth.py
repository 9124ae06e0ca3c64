"""Share a receiver's `[receivers.NAME] bandwidth` among all sending processes.

Each sender has a row (`line_place`) with its wish and its rate. Every second it reads all rows with one query. It writes if
its own share changes or its row would expire, and deletes rows of dead processes. A sender that could not renew its row in
time sends nothing until it can: the others then count on its share (docs/decisions/0017). `place_on` holds a place while a
block runs.

`fair_shares` computes the shares. Pure; rates and wishes are bytes a second. All rates are in the rows, and nobody takes
more than the others leave. So together they never exceed the cap, even if one joins, leaves or reads late. A sender with too
much gives it up at its next reading, and another takes it at its own. Functions on rows work in the caller's transaction.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.errors import RetryableError, TidemarkError
from tidemark.ledger import sql
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import boot_clock, has_expired, lease_clock
from tidemark.ledger.processes import Identity, is_alive
from tidemark.ledger.sql import write_rows

BEAT_SECONDS = 1.0
BEATS = 3  # the largest of the last ones counts
_SAME = 1 / 1000  # of the cap: a smaller change is ignored


@dataclass(frozen=True)
class SharedLine:
    """A receiver's line. `cap`: bytes a second of all its senders, 0: no limit."""

    ledger: Ledger
    receiver: str
    cap: float
    alive: Callable[[Identity], bool] = is_alive
    clock: Callable[[Connection], float] = lease_clock

    def working_places(self, connection: Connection, host: str) -> tuple[list[PlaceRow], list[PlaceRow]]:
        """Return this line's rows as `split_working`, seen from `host`."""
        rows = read_places(connection, self.receiver)
        return split_working(rows, self.clock(connection), host, self.alive) if rows else ([], [])


class LinePlace:
    """A sender's place on the line: `holder` in process `me`. `most`: its own limit in bytes a second, 0: none."""

    def __init__(self, line: SharedLine, holder: str, me: Identity, most: float = 0.0) -> None:
        self.cap = line.cap
        self._line = line
        self._holder = holder
        self._me = me
        self._most = min(most or line.cap, line.cap)
        self._name = uuid.uuid4().hex
        self._wish, self._rate = self._most, 0.0
        self._until = 0.0  # when our row expires, by `boot_clock`
        self._written = 0.0
        self._sent = 0
        self._beaten = boot_clock()
        self._used: deque[float] = deque(maxlen=BEATS)
        self._trouble: Exception | None = None

    @property
    def rate(self) -> float:
        """Bytes a second that we may send now; 0.0 also while our row may have expired."""
        return self._rate if boot_clock() < self._until else 0.0

    def count_used(self, count: int) -> None:
        """Count bytes that are sent."""
        self._sent += count

    def assert_share_known(self) -> None:
        """Raise RetryableError if `rate` is 0.0 because the ledger does not answer."""
        if self._trouble is not None and boot_clock() >= self._until:
            raise RetryableError(
                f"the share of the line of receiver {self._line.receiver} is not known: {self._trouble}",
                hint="./tidemark doctor",
                subject=self._line.receiver,
            ) from self._trouble

    def update_share(self) -> None:
        """Read the others' rows and update our share. Raises what the ledger raises."""
        began = boot_clock()
        wish = self._next_wish(began)
        with self._line.ledger.read() as connection:
            there, dead = self._line.working_places(connection, self._me.host)
        same = abs(self._next_rate(there, wish) - self._rate) + abs(wish - self._wish) < self.cap * _SAME
        if dead or not same or began - self._written > TTL_SECONDS / 3:
            self._write_place(began, wish)

    def leave_line(self) -> None:
        """Delete our row. If the ledger is away, the row expires instead."""
        with contextlib.suppress(TidemarkError), self._line.ledger.write() as connection:
            forget_places(connection, [self._place_row(0.0)])

    def _write_place(self, began: float, wish: float) -> None:
        with self._line.ledger.write() as connection:
            sql.hold_locks(connection, f"line:{self._line.receiver}")
            there, dead = self._line.working_places(connection, self._me.host)
            forget_places(connection, dead)
            rate, before = self._next_rate(there, wish), self.rate
            self._wish, self._rate = wish, min(rate, before)  # give up a share before another may use it
            put_place(connection, self._place_row(self._line.clock(connection) + TTL_SECONDS, rate))
        # CRASH WINDOW: a row without a process: its share is free once the process is known dead, or the row has expired.
        self._rate, self._written, self._until = rate, began, began + TTL_SECONDS

    def _next_wish(self, now: float) -> float:
        sent, self._sent = self._sent, 0
        self._used.append(sent / max(now - self._beaten, BEAT_SECONDS / 10))
        self._beaten = now
        return next_wish(self._wish, self._most, self.cap, self._rate, max(self._used))

    def _next_rate(self, there: list[PlaceRow], wish: float) -> float:
        wishes = {row.place: row.wish for row in there} | {self._name: wish}
        return next_rate(self.cap, self._name, wishes, {row.place: row.rate for row in there})

    def _place_row(self, expires: float, rate: float = 0.0) -> PlaceRow:
        return PlaceRow(self._name, self._line.receiver, self._holder, self._me, self._wish, rate, expires)

    def keep_updating(self, over: threading.Event) -> None:
        """Update the share every second until `over` is set. A ledger that is away is asked again."""
        while not over.wait(BEAT_SECONDS):
            try:
                self.update_share()
                self._trouble = None
            except Exception as away:  # `assert_share_known` reports any error
                self._trouble = away


@contextmanager
def place_on(line: SharedLine, holder: str, me: Identity, most: float = 0.0) -> Iterator[LinePlace | None]:
    """Hold a place while the block runs; None if the line has no cap. Raises what the ledger raises."""
    if not line.cap:
        yield None
        return
    place, over = LinePlace(line, holder, me, most), threading.Event()
    place.update_share()
    keeping = threading.Thread(target=place.keep_updating, args=(over,), name="tidemark-line", daemon=True)
    keeping.start()
    try:
        yield place
    finally:
        over.set()
        keeping.join()
        place.leave_line()


TTL_SECONDS = 20.0
"""A row that nobody renewed for so long is nobody's."""
_COLUMNS = ("place", "receiver", "holder", "host", "boot_id", "pid", "process_start", "wish", "rate", "expires")


@dataclass(frozen=True)
class PlaceRow:
    """A row of `line_place`. `wish`, `rate`: bytes a second. `expires`: by the lease clock."""

    place: str
    receiver: str
    holder: str
    identity: Identity
    wish: float
    rate: float
    expires: float


def read_places(connection: Connection, receiver: str) -> list[PlaceRow]:
    """Return all rows of a receiver, also of dead processes."""
    found = connection.execute(
        sa.text(f"SELECT {', '.join(_COLUMNS)} FROM line_place WHERE receiver = :receiver ORDER BY holder, place"),
        {"receiver": receiver},
    )
    return [
        PlaceRow(r.place, r.receiver, r.holder, Identity(r.host, r.boot_id, int(r.pid), r.process_start), *r[7:])
        for r in found
    ]


def split_working(
    rows: Sequence[PlaceRow], clock: float, host: str, alive: Callable[[Identity], bool]
) -> tuple[list[PlaceRow], list[PlaceRow]]:
    """Return the rows of running processes, and the others: expired, or of a process of this `host` that is known dead."""
    there = [
        row
        for row in rows
        if not has_expired(row.expires, clock, TTL_SECONDS) and (row.identity.host != host or alive(row.identity))
    ]
    return there, [row for row in rows if row not in there]


def put_place(connection: Connection, row: PlaceRow) -> None:
    who = row.identity
    values = (row.place, row.receiver, row.holder, who.host, who.boot_id, who.pid, who.process_start)
    connection.execute(
        sa.text(
            f"INSERT INTO line_place ({', '.join(_COLUMNS)}) VALUES ({', '.join(':' + name for name in _COLUMNS)})"
            " ON CONFLICT (place) DO UPDATE SET wish = excluded.wish, rate = excluded.rate, expires = excluded.expires"
        ),
        dict(zip(_COLUMNS, (*values, row.wish, row.rate, row.expires), strict=True)),
    )


def forget_places(connection: Connection, rows: Sequence[PlaceRow]) -> None:
    """Delete these rows: their shares are free."""
    write_rows(connection, "DELETE FROM line_place WHERE place = :place", [{"place": row.place} for row in rows])


IDLE = 1 / 50  # of the cap: the share that an idle sender keeps
BUSY = 0.8  # of a sender's share: using that much, it wants more
EASY = 0.33  # of a sender's share: using less, it gives up some


def fair_shares(cap: float, wishes: Mapping[str, float]) -> dict[str, float]:
    """Compute equal shares; the others share what one does not wish for. The sum never exceeds `cap`."""
    found: dict[str, float] = {}
    left = cap
    for number, (name, wish) in enumerate(sorted(wishes.items(), key=lambda one: (one[1], one[0]))):
        found[name] = max(0.0, min(wish, left / (len(wishes) - number)))
        left -= found[name]
    return found


def next_rate(cap: float, name: str, wishes: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """Compute the new rate of `name`: its fair share, as far as the others' `rates` leave it."""
    free = cap - sum(rate for other, rate in rates.items() if other != name)
    return max(0.0, min(fair_shares(cap, wishes)[name], free))


def next_wish(wish: float, most: float, cap: float, rate: float, used: float) -> float:
    """Compute the next wish: `most` if the share is used, twice the use if little of it is, else the same."""
    if used >= BUSY * rate:
        return most
    return min(most, max(2 * used, cap * IDLE)) if used < EASY * rate else wish
