"""A round of the watch, a recovery and an operator's acts that die before or after any of their effects: run again, every
member is in step, and what was loaded is read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tests.crash.explorer import CrashingLedger, CrashingStore, Effects, explore, explore_double, identity
from tidemark.app import App
from tidemark.cluster.health.operator import force_group, recover_members, resync_member, switch_over
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.replicas import commit
from tidemark.cluster.replicas.commit import retain_logs
from tidemark.cluster.replicas.core.segment import MARK_BYTES
from tidemark.cluster.replicas.members import MemberLogs, folder_of
from tidemark.stores.protocol import Store, StoreAddress

NODES = ("n1", "n2", "n3")
EVERY = ("watch", "put back", "put back while away", "recover", "damaged", "resync", "switchover", "force", "retain")


class WatchWorld:
    """A node was away for one load; another one, the master, has lost its log, or its folder was put back from an older
    copy, or that of the node that was away. `on`: what a life does."""

    def __init__(self, folder: Path, on: str) -> None:
        self.on = on
        self.centre = centre = LoadedCentre(folder)
        centre.land(1)
        centre.load()
        self.header, self.master = centre.header, centre.header
        self.late = next(node for node in NODES if node != self.master)
        older = self.late if on == "put back while away" else self.master
        shutil.copytree(centre.node(older), folder / "copy")
        if older == self.late:
            centre.land(4)
            centre.load()
        centre.away = {self.late}
        centre.land(2)
        centre.load()
        centre.away = set()
        self.seen = centre.rows()
        assert len(self.seen) == 2 + (older == self.late)
        if on == "watch":
            shutil.rmtree(centre.node(self.master) / folder_of(self.header))
        elif on in ("put back", "put back while away"):
            shutil.rmtree(centre.node(older))
            shutil.copytree(folder / "copy", centre.node(older))
        elif on != "recover":
            recover_members(centre.app, centre.receiver)
        if on == "damaged":
            with centre.cluster() as cluster:
                MemberLogs(cluster, self.header).seal()
            first, *_ = sorted((centre.node(self.master) / folder_of(self.header)).iterdir())
            data = first.read_bytes()
            first.write_bytes(data[:MARK_BYTES] + bytes([data[MARK_BYTES] ^ 1]) + data[MARK_BYTES + 1 :])
        if on == "force":
            centre.away = {node for node in NODES if node != self.late}

    def live(self, effects: Effects) -> None:
        centre = self.centre
        ledger = CrashingLedger(centre.app.ledger.url, effects)

        def opener(address: StoreAddress) -> Store:
            return CrashingStore(centre.open_store(address), effects, address.url.rpartition("/")[2])

        centre.app = App(centre.app.settings, ledger, identity(), time.time, opener)
        try:
            if self.on in ("watch", "put back", "put back while away"):
                for _ in range(2):
                    assert watch_groups(centre.app, centre.receiver).exit_code == 0
            elif self.on == "recover":
                assert recover_members(centre.app, centre.receiver).exit_code == 0
            elif self.on == "damaged":
                assert recover_members(centre.app, centre.receiver, self.master).exit_code == 0
            elif self.on == "resync":
                assert resync_member(centre.app, centre.receiver, self.late, self.header).exit_code == 0
            elif self.on == "force":
                assert force_group(centre.app, centre.receiver, self.header).exit_code == 0
            elif self.on == "retain":
                for _ in range(3):
                    with centre.cluster() as cluster:
                        retain_logs(cluster)
            else:
                switch_over(centre.app, centre.receiver, self.header, self.late)
        finally:
            ledger.close()

    def lose_power(self) -> None:
        self.centre.reopen()
        assert self.centre.rows() == self.seen

    def check(self) -> None:
        centre = self.centre
        centre.away = set()
        centre.reopen()
        for _ in range(3):
            watched = watch_groups(centre.app, centre.receiver)
        assert (watched.exit_code, watched.masters, watched.recovered, watched.files, watched.waiting) == (0, {}, {}, {}, {})
        logs_tell_the_catalog(centre)
        everything_is_held(centre)
        centre.land(3)
        assert centre.load().exit_code == 0 and len(centre.rows()) == len(self.seen) + 1
        logs_tell_the_catalog(centre)

    def close(self) -> None:
        self.centre.app.ledger.close()
        shutil.rmtree(self.centre.folder)


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[], WatchWorld]]:
    for name in ("LONG_LOG", "_SHRINKS", "SNAPSHOT_SECONDS"):
        monkeypatch.setattr(commit, name, 0)
    made = iter(range(1 << 30))
    return lambda on: lambda: WatchWorld(tmp_path / f"{next(made)}", on)


@pytest.mark.full
@pytest.mark.parametrize("on", ["watch", "put back", "put back while away", "damaged", "resync", "retain"])
def test_what_keeps_groups_in_step_may_die(worlds: Callable[[str], Callable[[], WatchWorld]], on: str) -> None:
    explore(worlds(on), points=range(9, 1000, 22))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "on", ["watch", "put back", "put back while away", "recover", "damaged", "resync", "switchover", "force", "retain"]
)
def test_what_keeps_groups_in_step_may_die_at_any_effect(worlds: Callable[[str], Callable[[], WatchWorld]], on: str) -> None:
    explore(worlds(on))


@pytest.mark.full
def test_the_recovery_of_a_forced_master_may_die_too(worlds: Callable[[str], Callable[[], WatchWorld]]) -> None:
    assert explore_double(worlds("force"), pairs=12).crashes > 12


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "on", ["watch", "put back", "put back while away", "recover", "damaged", "resync", "switchover", "force", "retain"]
)
def test_recovery_may_die_too(worlds: Callable[[str], Callable[[], WatchWorld]], on: str) -> None:
    explore_double(worlds(on), pairs=60)
