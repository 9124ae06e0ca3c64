"""Leases: one holder at a time, fenced, replaced at once when it is known dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import sqlalchemy as sa

from tests.services.processes import soon
from tidemark.errors import LeaseHeldError, LeaseLostError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity, Leases, assert_held, is_alive, lease_clock, this_process

HERE = Identity("here", "boot-1", 100, "1000")
NEIGHBOUR = Identity("here", "boot-1", 200, "2000")
ELSEWHERE = Identity("elsewhere", "boot-9", 300, "3000")


class World:
    """Which processes live, and what the lease clock says."""

    def __init__(self) -> None:
        self.dead: set[Identity] = set()
        self.clock = 1000.0

    def leases(self, ledger: Ledger, me: Identity) -> Leases:
        return Leases(ledger, me, alive=lambda i: i not in self.dead, clock=lambda _c: self.clock)


@pytest.fixture
def world() -> World:
    return World()


def test_a_second_holder_is_told_who_has_it(ledger: Ledger, world: World) -> None:
    world.leases(ledger, HERE).acquire_lease("link:plant1", "run-1")
    with pytest.raises(LeaseHeldError) as refused:
        world.leases(ledger, NEIGHBOUR).acquire_lease("link:plant1", "run-2")
    told = refused.value.message
    assert "run-1" in told
    assert "here" in told
    assert "process 100" in told
    assert "60 s" in told
    assert refused.value.hint.endswith("./tidemark why run-1")
    assert refused.value.kind == 5


def test_leases_of_other_names_do_not_meet(ledger: Ledger, world: World) -> None:
    world.leases(ledger, HERE).acquire_lease("link:plant1", "run-1")
    assert world.leases(ledger, NEIGHBOUR).acquire_lease("link:plant2", "run-2").fence == 1


def test_a_released_lease_is_free_and_its_fence_rises(ledger: Ledger, world: World) -> None:
    leases = world.leases(ledger, HERE)
    lease = leases.acquire_lease("load:centre", "batch-1")
    leases.release(lease)
    assert leases.list_held() == []
    assert world.leases(ledger, ELSEWHERE).acquire_lease("load:centre", "batch-2").fence == lease.fence + 1


def test_a_dead_process_of_this_host_is_replaced_at_once(ledger: Ledger, world: World) -> None:
    old = world.leases(ledger, NEIGHBOUR).acquire_lease("link:plant1", "run-1")
    world.dead.add(NEIGHBOUR)
    assert world.leases(ledger, HERE).acquire_lease("link:plant1", "run-2").fence == old.fence + 1


def test_a_process_of_another_host_is_replaced_only_after_it_expired(ledger: Ledger, world: World) -> None:
    world.leases(ledger, ELSEWHERE).acquire_lease("link:plant1", "run-1")
    world.dead.add(ELSEWHERE)  # true, but nobody here can know
    mine = world.leases(ledger, HERE)
    world.clock += 59.0
    with pytest.raises(LeaseHeldError):
        mine.acquire_lease("link:plant1", "run-2")
    world.clock += 1.0
    assert mine.acquire_lease("link:plant1", "run-2").fence == 2


def test_renewing_keeps_it(ledger: Ledger, world: World) -> None:
    theirs = world.leases(ledger, ELSEWHERE)
    lease = theirs.acquire_lease("link:plant1", "run-1")
    world.clock += 59.0
    theirs.renew([lease])
    world.clock += 59.0
    with pytest.raises(LeaseHeldError):
        world.leases(ledger, HERE).acquire_lease("link:plant1", "run-2")


@pytest.mark.full_after(1)
def test_a_run_keeps_its_lease_between_its_tasks(ledger: Ledger, world: World) -> None:
    first = world.leases(ledger, ELSEWHERE)
    lease = first.acquire_lease("link:plant1", "run-1")
    first.park(lease)
    world.clock += 300.0
    with pytest.raises(LeaseHeldError, match="between two tasks"):
        world.leases(ledger, NEIGHBOUR).acquire_lease("link:plant1", "run-2")
    assert world.leases(ledger, HERE).acquire_lease("link:plant1", "run-1").fence == lease.fence + 1


def test_a_parked_lease_ends_when_nobody_comes_back(ledger: Ledger, world: World) -> None:
    mine = world.leases(ledger, HERE)
    mine.park(mine.acquire_lease("link:plant1", "run-1"))
    world.clock += 901.0
    assert world.leases(ledger, NEIGHBOUR).acquire_lease("link:plant1", "run-2").fence == 2


def test_a_lease_of_before_the_clock_began_anew_holds_nobody_up(ledger: Ledger, world: World) -> None:
    """The boot clock of SQLite's machine: a lease parked after a month is not held for a month after a restart."""
    world.clock = 30 * 86_400.0
    mine = world.leases(ledger, ELSEWHERE)
    mine.park(mine.acquire_lease("link:plant1", "run-1"))
    world.clock = 20.0
    assert world.leases(ledger, HERE).acquire_lease("link:plant1", "run-2").fence == 2


def test_the_same_run_in_a_living_process_is_not_joined(ledger: Ledger, world: World) -> None:
    world.leases(ledger, NEIGHBOUR).acquire_lease("link:plant1", "run-1")
    with pytest.raises(LeaseHeldError):
        world.leases(ledger, HERE).acquire_lease("link:plant1", "run-1")
    assert world.leases(ledger, NEIGHBOUR).acquire_lease("link:plant1", "run-1").fence == 2  # a retry in its own process


def test_a_replaced_holder_records_nothing(ledger: Ledger, world: World) -> None:
    old = world.leases(ledger, ELSEWHERE).acquire_lease("link:plant1", "run-1")
    world.clock += 61.0
    new = world.leases(ledger, HERE).acquire_lease("link:plant1", "run-2")
    with pytest.raises(LeaseLostError, match="run-1 lost link:plant1"):
        with ledger.write() as connection:
            connection.execute(sa.text("INSERT INTO run_alias VALUES ('x', 'stale')"))
            assert_held(connection, old)
    with ledger.write() as connection:
        assert_held(connection, new)
        connection.execute(sa.text("INSERT INTO run_alias VALUES ('y', 'fresh')"))
    with ledger.read() as connection:
        assert connection.execute(sa.text("SELECT run_id FROM run_alias")).scalars().all() == ["fresh"]
    stale = world.leases(ledger, ELSEWHERE)
    stale.renew([old])
    with pytest.raises(LeaseLostError), ledger.write() as connection:
        assert_held(connection, old)


def test_giving_back_a_lost_lease_does_not_hurt_the_newer_holder(ledger: Ledger, world: World) -> None:
    theirs = world.leases(ledger, ELSEWHERE)
    old = theirs.acquire_lease("link:plant1", "run-1")
    world.clock += 61.0
    mine = world.leases(ledger, HERE)
    new = mine.acquire_lease("link:plant1", "run-2")
    theirs.release(old)
    theirs.park(old)
    theirs.renew([old])
    with ledger.write() as connection:
        assert_held(connection, new)
    assert [r.holder for r in mine.list_held()] == ["run-2"]


@pytest.mark.full_after(1)
def test_the_heartbeat_renews_until_the_block_ends(ledger: Ledger, world: World) -> None:
    leases = Leases(ledger, this_process(), ttl=0.6, clock=lambda _c: world.clock)
    lease = leases.acquire_lease("link:plant1", "run-1")
    with leases.keep_alive(lease):
        for _ in range(3):
            world.clock += 0.5  # longer than its time to live, together
            assert soon(lambda: leases.list_held()[0].expires == world.clock + 0.6)
        with pytest.raises(LeaseHeldError):
            world.leases(ledger, ELSEWHERE).acquire_lease("link:plant1", "run-2")
    world.clock += 0.7
    assert world.leases(ledger, ELSEWHERE).acquire_lease("link:plant1", "run-2").fence == 2


def test_hold_gives_it_back_after_an_error(ledger: Ledger) -> None:
    leases = Leases(ledger, this_process())
    with pytest.raises(ZeroDivisionError), leases.hold_lease("load:centre", "batch"):
        raise ZeroDivisionError
    assert leases.list_held() == []


def test_of_many_that_ask_at_once_one_gets_it(ledger: Ledger) -> None:
    won: list[int] = []
    start = threading.Barrier(6)

    def ask(number: int) -> None:
        mine = Ledger(ledger.url)
        start.wait()
        try:
            won.append(Leases(mine, replace(ELSEWHERE, pid=number)).acquire_lease("link:plant1", f"run-{number}").fence)
        except LeaseHeldError:
            pass
        finally:
            mine.close()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [1]


@pytest.mark.full_after(1)
def test_the_lease_clock_runs_and_is_the_same_for_all(ledger: Ledger) -> None:
    other = Ledger(ledger.url)
    with ledger.read() as one, other.read() as two:
        first = lease_clock(one)
        second = lease_clock(two)
        third = lease_clock(one)
    other.close()
    assert first <= second <= third < first + 60.0


@pytest.mark.full_after(1)
def test_the_wall_clock_of_this_host_decides_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    Leases(ledger, ELSEWHERE).acquire_lease("link:plant1", "run-1")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    with pytest.raises(LeaseHeldError):
        Leases(ledger, this_process()).acquire_lease("link:plant1", "run-2")


def test_a_process_is_alive_until_it_is_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    me = this_process()
    fields = open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()  # noqa: PTH123, SIM115
    identity = replace(me, pid=child.pid, process_start=fields[19])
    assert is_alive(me)
    assert is_alive(identity)
    assert not is_alive(replace(identity, process_start="1"))  # the pid was given to somebody else
    os.kill(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while is_alive(identity) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(identity)  # a zombie holds nothing
    child.wait()
    assert not is_alive(identity)


def test_what_another_machine_runs_counts_as_alive_and_an_earlier_boot_as_dead() -> None:
    me = this_process()
    assert is_alive(replace(me, host="elsewhere", boot_id="x", pid=1))
    assert not is_alive(replace(me, boot_id="an earlier boot"))
