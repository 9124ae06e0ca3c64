"""Leases: the right to work on a link, a receiver's load, a merge (DESIGN §4).

A lease is one row with a **fence**, a number that rises with every acquisition and never falls. Code that records an effect
calls `assert_held` in the same transaction. A holder that was replaced meanwhile (a suspended process, a lost network) has a
stale fence and records nothing.

Words: the **holder** is the run or batch, not the process; a run keeps its lease across its tasks. A **parked** lease is
between two tasks: it has a holder but no process. The **lease clock** is the server's on PostgreSQL. On SQLite, where all
processes share one machine, it is that machine's boot clock, which nobody can set. The hosts' wall clocks decide nothing.

A lease can be acquired if it is free, expired, held by a process that is *known* dead (same host, and the boot id or the
process's start time says so), or held by the same holder between tasks, in this process or in a dead one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tidemark.errors import LeaseHeldError, LeaseLostError, TidemarkError
from tidemark.ledger.database import Ledger, database_time
from tidemark.ledger.processes import Identity, is_alive, this_process

__all__ = [
    "Identity",
    "Lease",
    "LeaseRow",
    "Leases",
    "assert_held",
    "has_expired",
    "is_alive",
    "lease_clock",
    "this_process",
]

TTL_SECONDS = 60.0
PARKED_SECONDS = 900.0  # a scheduler may need minutes between two tasks; the same holder comes back at any time


def load_lease(receiver: str) -> str:
    """Return the name of the lease that every writer of a receiver's catalog holds."""
    return f"load:{receiver}"


@dataclass(frozen=True)
class Lease:
    """The right to work on `name`, valid while the row has this `fence`."""

    name: str
    fence: int
    holder: str


@dataclass(frozen=True)
class LeaseRow:
    """A lease as stored in the database. `taken` in seconds since 1970, `expires` by the lease clock."""

    name: str
    fence: int
    holder: str
    identity: Identity
    taken: float
    expires: float


def may_acquire(row: LeaseRow, holder: str, me: Identity, clock: float, alive: Callable[[Identity], bool]) -> bool:
    """Return whether `holder`, in process `me`, gets the lease in `row`. Pure but for `alive`, which is asked last."""
    if not row.holder or has_expired(row.expires, clock):
        return True
    if row.holder == holder and (row.identity.pid == 0 or row.identity == me):
        return True
    return row.identity.pid != 0 and row.identity.host == me.host and not alive(row.identity)


def has_expired(expires: float, clock: float, longest: float = PARKED_SECONDS + TTL_SECONDS) -> bool:
    """Return whether a lease has expired. One valid for too long was made before the machine restarted (SQLite)."""
    return not 0 < expires - clock <= longest


def boot_clock() -> float:
    """Return seconds since the machine started, sleep included; only differences have a meaning."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def lease_clock(connection: Connection) -> float:
    """Return seconds by the lease clock (see above); only differences have a meaning."""
    return boot_clock() if connection.dialect.name == "sqlite" else database_time(connection)


def assert_held(connection: Connection, lease: Lease) -> None:
    """Raise LeaseLostError unless `lease` is still ours; nobody can acquire it before this transaction ends."""
    row = _read_row(connection, lease.name, "FOR SHARE")
    if row is None or row.fence != lease.fence:
        raise _lost_error(lease, row)


class Leases:
    """The lease table as seen by one process. `clock` and `alive` are arguments for tests."""

    def __init__(
        self,
        ledger: Ledger,
        identity: Identity,
        alive: Callable[[Identity], bool] = is_alive,
        ttl: float = TTL_SECONDS,
        clock: Callable[[Connection], float] = lease_clock,
    ) -> None:
        self.ledger = ledger
        self.identity = identity
        self.alive = alive
        self.ttl = ttl
        self.clock = clock

    def acquire_lease(self, name: str, holder: str, *, above: int = 0, lasting: bool = True) -> Lease:
        """Acquire the lease for `holder`, with a new fence. LeaseHeldError names the present holder.

        `above`: a fence that was seen elsewhere, which the ledger may have forgotten. `lasting`: False if the fence is told
        to nobody but this ledger; then a loss of power may take it back, with all processes of SQLite's one machine.
        """
        with self.ledger.write(lasting=lasting) as connection:
            return self.acquire_within(connection, name, holder, above)

    def acquire_all(self, names: Collection[str], holder: str) -> dict[str, Lease | LeaseHeldError]:
        """Acquire leases in one transaction; return each name's lease, or its error with the present holder."""
        found: dict[str, Lease | LeaseHeldError] = {}
        if names:
            with self.ledger.write() as connection:
                for name in sorted(names):  # one order of rows, so that two callers do not deadlock
                    try:
                        found[name] = self.acquire_within(connection, name, holder)
                    except LeaseHeldError as held:
                        found[name] = held
        return found

    def acquire_within(self, connection: Connection, name: str, holder: str, above: int = 0) -> Lease:
        """Acquire a lease in the caller's transaction."""
        connection.execute(
            sa.text(
                "INSERT INTO lease (name, fence, holder, host, boot_id, pid, process_start, taken, expires)"
                " VALUES (:name, 0, '', '', '', 0, '', 0, 0) ON CONFLICT (name) DO NOTHING"
            ),
            {"name": name},
        )
        row = _read_row(connection, name, "FOR UPDATE")
        assert row is not None  # inserted above, and lease rows are never deleted: their fence must grow
        clock = self.clock(connection)
        if not may_acquire(row, holder, self.identity, clock, self.alive):
            raise _held_error(row, clock)
        lease = Lease(name, max(row.fence, above) + 1, holder)
        self._write_lease(connection, lease, self.identity, clock + self.ttl)
        return lease

    def renew(self, leases: Sequence[Lease]) -> None:
        """Set the expiries `ttl` ahead, in one transaction. A lease that another acquired stays theirs: `assert_held`
        reports it."""
        if leases:
            with self.ledger.write() as connection:
                self.renew_within(connection, leases)

    def renew_within(self, connection: Connection, leases: Sequence[Lease]) -> None:
        """Renew leases in the caller's transaction."""
        query = "UPDATE lease SET expires = :expires WHERE name = :name AND fence = :fence AND holder = :holder"
        expires = self.clock(connection) + self.ttl
        for one in sorted(leases, key=lambda lease: lease.name):
            ours = {"name": one.name, "fence": one.fence, "holder": one.holder}
            connection.execute(sa.text(query), {**ours, "expires": expires})

    def park(self, lease: Lease) -> None:
        """Keep a lease for its holder without a process, between two tasks. A lost lease is left alone."""
        with self.ledger.write() as connection:
            parked = Identity(self.identity.host, self.identity.boot_id, 0, "")
            self._write_lease(connection, lease, parked, self.clock(connection) + PARKED_SECONDS, only_ours=True)

    def release(self, lease: Lease) -> None:
        """Release a lease. A lost one is left alone."""
        self.release_all([lease])

    def release_all(self, leases: Sequence[Lease]) -> None:
        """Release leases in one transaction."""
        if not leases:
            return
        with self.ledger.write() as connection:
            self.release_within(connection, leases)

    def release_within(self, connection: Connection, leases: Sequence[Lease]) -> None:
        """Release leases in the caller's transaction: whoever gets one sees what it wrote."""
        for lease in sorted(leases, key=lambda one: one.name):
            free = Lease(lease.name, lease.fence, "")
            self._write_lease(connection, free, Identity("", "", 0, ""), 0.0, only_ours=True)

    def list_held(self) -> list[LeaseRow]:
        """Return every lease that has a holder."""
        with self.ledger.read() as connection:
            found = connection.execute(sa.text("SELECT * FROM lease WHERE holder <> '' ORDER BY name"))
            return [_as_row(r) for r in found.mappings()]

    def list_named(self, connection: Connection, prefix: str) -> list[LeaseRow]:
        """Return the leases that a new holder would not get, of names that begin with `prefix`."""
        sql = "SELECT * FROM lease WHERE substr(name, 1, :length) = :prefix AND holder <> '' ORDER BY name"
        found = connection.execute(sa.text(sql), {"prefix": prefix, "length": len(prefix)})
        rows, clock = [_as_row(row) for row in found.mappings()], self.clock(connection)
        return [row for row in rows if not may_acquire(row, "", self.identity, clock, self.alive)]

    def list_busy(self) -> list[LeaseRow]:
        """Return the leases that a new holder would not get: their holders live, or may come back."""
        with self.ledger.read() as connection:
            clock = self.clock(connection)
        return [row for row in self.list_held() if not may_acquire(row, "", self.identity, clock, self.alive)]

    @contextmanager
    def keep_alive(self, lease: Lease) -> Iterator[Lease]:
        """Renew from a daemon thread every third of the time to live, until the block ends.

        A database that is away for a moment is asked again. The next `assert_held` finds a lost lease.
        """
        with self.keep_all_alive(lambda: [lease]):
            yield lease

    @contextmanager
    def keep_all_alive(self, held: Callable[[], Sequence[Lease]]) -> Iterator[None]:
        """Renew, as `keep_alive`, all leases that `held` returns at that time, in one thread and one transaction."""
        stop = threading.Event()

        def beat() -> None:
            wait = self.ttl / 3
            while not stop.wait(wait):
                try:
                    self.renew(held())
                    wait = self.ttl / 3
                except TidemarkError:
                    wait = min(1.0, self.ttl / 10)  # away or busy: they may still be renewed in time

        thread = threading.Thread(target=beat, name="leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @contextmanager
    def hold_lease(self, name: str, holder: str, *, above: int = 0, lasting: bool = True) -> Iterator[Lease]:
        """Acquire a lease (`acquire_lease`), keep it alive, and release it at the end, also after an error."""
        lease = self.acquire_lease(name, holder, above=above, lasting=lasting)
        try:
            with self.keep_alive(lease):
                yield lease
        finally:
            self.release(lease)

    def _write_lease(
        self, connection: Connection, lease: Lease, identity: Identity, expires: float, only_ours: bool = False
    ) -> None:
        ours = " AND fence = :fence AND holder <> ''" if only_ours else ""
        taken = "" if only_ours else ", taken = :taken"
        connection.execute(
            sa.text(
                "UPDATE lease SET fence = :fence, holder = :holder, host = :host, boot_id = :boot_id, pid = :pid,"
                f" process_start = :process_start, expires = :expires{taken} WHERE name = :name{ours}"
            ),
            {
                "name": lease.name,
                "fence": lease.fence,
                "holder": lease.holder,
                "host": identity.host,
                "boot_id": identity.boot_id,
                "pid": identity.pid,
                "process_start": identity.process_start,
                "expires": expires,
                **({} if only_ours else {"taken": database_time(connection)}),
            },
        )


def _read_row(connection: Connection, name: str, lock: str = "") -> LeaseRow | None:
    suffix = f" {lock}" if connection.dialect.name != "sqlite" else ""  # SQLite has one writer at a time
    found = connection.execute(sa.text(f"SELECT * FROM lease WHERE name = :name{suffix}"), {"name": name})
    row = found.mappings().one_or_none()
    return None if row is None else _as_row(row)


def _as_row(row: sa.RowMapping) -> LeaseRow:
    identity = Identity(row["host"], row["boot_id"], int(row["pid"]), row["process_start"])
    return LeaseRow(row["name"], int(row["fence"]), row["holder"], identity, row["taken"], row["expires"])


def _describe_holder(row: LeaseRow) -> str:
    since = datetime.fromtimestamp(row.taken, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    process = f"process {row.identity.pid}" if row.identity.pid else "between two tasks"
    return f"{row.holder} on {row.identity.host} ({process}) since {since}"


def _held_error(row: LeaseRow, clock: float) -> LeaseHeldError:
    return LeaseHeldError(
        f"{row.name} is held by {_describe_holder(row)}; its lease ends in {row.expires - clock:.0f} s unless it is renewed",
        hint=f"wait for it, or see what it does: ./tidemark why {row.holder}",
        subject=row.name,
    )


def _lost_error(lease: Lease, row: LeaseRow | None) -> LeaseLostError:
    now_held = "nobody" if row is None or not row.holder else _describe_holder(row)
    return LeaseLostError(
        f"{lease.holder} lost {lease.name} (fence {lease.fence}); now held by {now_held}",
        hint="nothing to do: the newer holder goes on with the work",
        subject=lease.name,
    )
