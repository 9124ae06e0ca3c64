"""A machine of holders, deaths, reboots and time against a small model: never two with a good fence.

The model keeps, a lease, who was given it last. Whatever the holders do, only that one may record an effect, its fence
is higher than every one before, and nobody waits longer than the time to live once a holder is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tidemark.errors import LeaseHeldError, LeaseLostError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import PARKED_SECONDS, TTL_SECONDS, Identity, Lease, Leases, assert_held
from tidemark.ledger.migrations import migrate_ledger

HOSTS = ("alpha", "beta")
RUNS = ("run-1", "run-2", "run-3")
NAME = "link:plant1"


@dataclass
class Process:
    identity: Identity
    lease: Lease | None = None


@dataclass
class Given:
    """What the model knows of the lease."""

    fence: int = 0
    holder: str = ""
    process: Identity | None = None  # None: parked
    ends: float = 0.0


class LeaseMachine(RuleBasedStateMachine):
    ledger: Ledger

    @initialize()
    def begin(self) -> None:
        with self.ledger.write() as connection:
            connection.exec_driver_sql("DELETE FROM lease")
        self.clock = 1000.0
        self.pids = 0
        self.boots = dict.fromkeys(HOSTS, 0)
        self.given = Given()
        self.dead: set[Identity] = set()
        self.processes: list[Process] = []
        for host in HOSTS:
            self.start(host)

    def leases(self, process: Process) -> Leases:
        return Leases(
            self.ledger, process.identity, alive=lambda i: i not in self.dead, clock=lambda _connection: self.clock
        )

    def expected(self, run: str, me: Identity) -> bool:
        given = self.given
        if not given.holder or given.ends <= self.clock:
            return True
        if given.holder == run and given.process in (None, me):
            return True
        return given.process is not None and given.process.host == me.host and given.process in self.dead

    @rule(host=st.sampled_from(HOSTS))
    def start(self, host: str) -> None:
        self.pids += 1
        self.processes.append(Process(Identity(host, f"boot-{self.boots[host]}", self.pids, str(self.pids))))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), run=st.sampled_from(RUNS))
    def take(self, data: st.DataObject, run: str) -> None:
        process = data.draw(st.sampled_from(self.processes))
        expected = self.expected(run, process.identity)
        try:
            lease = self.leases(process).acquire_lease(NAME, run)
        except LeaseHeldError as held:
            assert not expected
            assert self.given.holder in held.message
            return
        assert expected
        assert lease.fence > self.given.fence
        process.lease = lease
        self.given = Given(lease.fence, run, process.identity, self.clock + TTL_SECONDS)

    @precondition(lambda self: any(p.lease for p in self.processes))
    @rule(data=st.data(), what=st.sampled_from(["renew", "park", "release"]))
    def use(self, data: st.DataObject, what: str) -> None:
        process = data.draw(st.sampled_from([p for p in self.processes if p.lease]))
        lease = process.lease
        assert lease is not None
        ours = lease.fence == self.given.fence
        if what == "renew":
            self.leases(process).renew([lease])
            if ours and self.given.holder:
                self.given.ends = self.clock + TTL_SECONDS
            return
        getattr(self.leases(process), what)(lease)
        process.lease = None
        if ours and what == "park":
            self.given.process, self.given.ends = None, self.clock + PARKED_SECONDS
        elif ours:
            self.given.holder, self.given.process, self.given.ends = "", None, 0.0

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(self.processes))
        self.processes.remove(process)
        self.dead.add(process.identity)

    @rule(host=st.sampled_from(HOSTS))
    def reboot(self, host: str) -> None:
        for process in [p for p in self.processes if p.identity.host == host]:
            self.processes.remove(process)
            self.dead.add(process.identity)
        self.boots[host] += 1
        self.start(host)

    @rule(seconds=st.sampled_from([1.0, 30.0, 59.0, 60.0, 61.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @invariant()
    def only_the_last_taker_records(self) -> None:
        for process in self.processes:
            if process.lease is None:
                continue
            with self.ledger.write() as connection:
                try:
                    assert_held(connection, process.lease)
                    assert process.lease.fence == self.given.fence
                except LeaseLostError:
                    assert process.lease.fence != self.given.fence


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.real("postgresql"))])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'ledger.db'}"
    return str(request.getfixturevalue("postgres_ledger_url"))


@pytest.mark.full_after(1)
def test_leases_against_the_model(url: str) -> None:
    ledger = Ledger(url)
    migrate_ledger(ledger)

    class Bound(LeaseMachine):
        pass

    Bound.ledger = ledger
    run_state_machine_as_test(Bound, settings=settings(deadline=None))
    ledger.close()
