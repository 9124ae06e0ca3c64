"""Append, seal and retain may die at any effect, and the disk lose power: nothing acknowledged is lost, nothing forks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from tests.crash.explorer import Effects, explore, explore_double
from tests.group_logs import fence_of, records_behind
from tests.memory_store import MemoryStore
from tidemark.cluster.replicas.core.record import StoredRecord
from tidemark.cluster.replicas.core.roles import ORIGIN
from tidemark.cluster.replicas.log import GroupLog, Tail
from tidemark.errors import NotFoundError
from tidemark.stores.protocol import Tier

RECORDS = records_behind(ORIGIN, 1, 8)
RETAINED = 5


class LogWorld:
    """A worker brings eight records to a member, two by two, seals and retains. `power`: what the disk keeps of a death."""

    def __init__(self, tier: Tier, power: Random | None, block: Callable[[int], None]) -> None:
        block(2)
        self.store = MemoryStore(tier=tier)
        self.power = power
        self.acknowledged = 0

    def live(self, effects: Effects) -> None:
        self.store.on_effect = lambda effect, path: effects.point(f"{effect} {path}")
        log = GroupLog(self.store, "log", segment_bytes=1600)
        assert log.vote(fence_of(1)).is_yes
        for start in range(0, len(RECORDS), 2):
            if self.acknowledged < start + 2:
                assert log.append(RECORDS[start : start + 2], fence_of(1)).is_yes
                self.acknowledged = start + 2
            log.seal()
            log.retain(RETAINED if start else 0)

    def lose_power(self) -> None:
        self.store.on_effect = lambda _effect, _path: None
        if self.power is not None:
            self.store.crash(self.power)
        gone, kept = self._read()
        assert kept == RECORDS[gone : gone + len(kept)]
        assert gone + len(kept) >= self.acknowledged
        assert gone <= RETAINED

    def check(self) -> None:
        assert self.acknowledged == len(RECORDS)
        gone, kept = self._read()
        assert (0 < gone <= RETAINED, kept) == (True, RECORDS[gone:])
        ranges = [name.removesuffix(".log") for name in self.store.list_folder("log") if name.endswith(".log")]
        covered = [n for name in ranges for n in range(int(name[:10]), int(name[-10:]) + 1)]
        assert sorted(covered) == sorted(set(covered))

    def close(self) -> None:
        """Nothing is held open."""

    def _read(self) -> tuple[int, list[StoredRecord]]:
        """How many records were retained away, and those that are kept."""
        for gone in range(len(RECORDS)):
            with suppress(NotFoundError):
                return gone, list(GroupLog(self.store, "log").read(gone + 1))
        raise AssertionError("nothing is kept")


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr("tidemark.cluster.replicas.log.BLOCK", size)


@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.SFTP])
def test_the_log_may_die_at_any_effect(tier: Tier, block: Callable[[int], None]) -> None:
    explore(lambda: LogWorld(tier, None, block))


@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.SFTP])
@pytest.mark.parametrize("seed", range(4))
def test_a_member_may_lose_power_at_any_effect(tier: Tier, seed: int, block: Callable[[int], None]) -> None:
    explore(lambda: LogWorld(tier, Random(seed), block))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.SFTP])
def test_recovery_may_die_too(tier: Tier, block: Callable[[int], None]) -> None:
    explore_double(lambda: LogWorld(tier, Random(7) if tier is Tier.PYTHON else None, block), pairs=200)


class AsideWorld:
    """A log of eight records in several files is set aside."""

    def __init__(self, tier: Tier) -> None:
        self.store = MemoryStore(tier=tier)
        log = GroupLog(self.store, "log/1", segment_bytes=1600)
        assert log.vote(fence_of(1)).is_yes
        for start in range(0, len(RECORDS), 2):
            assert log.append(RECORDS[start : start + 2], fence_of(1)).is_yes
        self.before = {self.content(path) for path in self.paths()}

    def live(self, effects: Effects) -> None:
        self.store.on_effect = lambda effect, path: effects.point(f"{effect} {path}")
        GroupLog(self.store, "log/1").set_aside()

    def lose_power(self) -> None:
        self.store.on_effect = lambda _effect, _path: None
        kept = list(GroupLog(self.store, "log/1").read(1))
        assert kept == RECORDS[: len(kept)]

    def check(self) -> None:
        self.store.on_effect = lambda _effect, _path: None
        assert GroupLog(self.store, "log/1").read_tail() == Tail()
        assert {self.content(path) for path in self.paths()} == self.before

    def close(self) -> None:
        """Nothing is held open."""

    def paths(self) -> list[str]:
        return [entry.path for entry in self.store.list_files(["log"]).entries]

    def content(self, path: str) -> bytes:
        (entry,) = (entry for entry in self.store.list_files(["log"]).entries if entry.path == path)
        return self.store.read(path, 0, entry.size)


@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.SFTP])
def test_a_log_may_be_set_aside_in_several_goes(tier: Tier) -> None:
    explore(lambda: AsideWorld(tier))
