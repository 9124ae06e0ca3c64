"""Three nodes behind SSH servers whose lines are cut: what was acknowledged is read, and all come into step again."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.centre import rows
from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog, watch_at_once
from tests.e2e.chaos_proxy import ChaosProxy, chaos
from tests.e2e.test_group_disks import small_disk, spoil_disk
from tests.services.sshd import FarEnd, Sshd
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.health.watch import watch_groups
from tidemark.errors import TidemarkError
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.operations.replicas import verify_replicas
from tidemark.receiver.load.load import load
from tidemark.settings.model import NodeSettings
from tidemark.stores import open_sftp as sftp
from tidemark.stores.ssh.login import Limits

BASE_SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
NODES = ("n1", "n2", "n3")
CUT = (FarEnd.SHELL, FarEnd.POSIX, FarEnd.SFTP)
CUT_IN_ALL = [FarEnd.SHELL, *(pytest.param(end, marks=pytest.mark.soak) for end in CUT[1:])]
HOW = ("drop", "drop", "refuse", "stall")
FILES = 7

pytestmark = [pytest.mark.full, pytest.mark.real("sshd"), pytest.mark.timeout(900)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, short_pauses: None) -> None:
    monkeypatch.setattr(sftp, "Limits", functools.partial(Limits, 10, 20, 2))


def group(centre: LoadedCentre) -> GroupLogRow:
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


@contextmanager
def behind_proxies(centre: LoadedCentre, servers: dict[str, Sshd]) -> Iterator[dict[str, ChaosProxy]]:
    """Each node is reached through a proxy of its own; settings name its port."""
    with ExitStack() as stack:
        proxies = {name: stack.enter_context(chaos(server.port)) for name, server in servers.items()}
        for name, server in servers.items():
            url = server.url(centre.node(name)).replace(f":{server.port}/", f":{proxies[name].port}/")
            at = NodeSettings(name, url, host_key=server.host_key, key=str(server.key))
            centre.app.settings.nodes[name] = at
        yield proxies


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("far_end", CUT_IN_ALL)
def test_what_was_acknowledged_is_there_whatever_lines_were_cut(
    tmp_path: Path, start_sshd: Callable[..., Sshd], far_end: FarEnd
) -> None:
    live(tmp_path, {name: start_sshd(far_end) for name in NODES}, f"{far_end.value}{BASE_SEED}")


@pytest.mark.soak
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("far_end", list(CUT))
def test_what_was_acknowledged_is_there_whatever_lines_were_cut_ten_times(
    tmp_path: Path, start_sshd: Callable[..., Sshd], far_end: FarEnd, seed: int
) -> None:
    live(tmp_path, {name: start_sshd(far_end) for name in NODES}, f"{far_end.value}{seed + BASE_SEED}")


def live(folder: Path, servers: dict[str, Sshd], seed: str) -> None:
    """Loads and rounds of the watch while connections are dropped, refused or stall after so many bytes."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    centre = LoadedCentre(folder)
    acknowledged: set[int] = set()
    broken = 0
    with behind_proxies(centre, servers) as proxies:
        for number in range(1, FILES):
            broken += break_some(proxies, chance)
            centre.land(number)
            with told():
                if load(centre.app, centre.receiver).exit_code == 0:
                    acknowledged = set(range(1, number + 1))
            if chance.random() < 0.4:
                broken += break_some(proxies, chance)
                with told():
                    watch_groups(centre.app, centre.receiver)
            broken -= mend(proxies)
            if acknowledged:
                assert {int(time) for _, _, time, *_ in centre.rows()} >= acknowledged
        assert broken >= 3, "lines were cut"
        come_into_step(centre, FILES)


def come_into_step(centre: LoadedCentre, last: int) -> None:
    """With sound lines one load and some rounds are enough: members are equal, and have what was landed."""
    centre.land(last)
    assert load(centre.app, centre.receiver).exit_code == 0
    for _ in range(4):
        watched = watch_groups(centre.app, centre.receiver)
    assert (watched.exit_code, watched.waiting, group(centre).in_step) == (0, {}, NODES)
    assert centre.rows() == rows(*[(number, number * 10) for number in range(1, last + 1)])
    assert verify_replicas(centre.app, centre.receiver).wrong == ()
    assert check_cluster(centre.app, centre.receiver).exit_code == 0
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


@contextmanager
def told() -> Iterator[None]:
    """What is refused or waited for is an error of ours."""
    try:
        yield
    except TidemarkError as error:
        print(f"{type(error).__name__}: {error.message}")


def break_some(proxies: dict[str, ChaosProxy], chance: random.Random) -> int:
    """Break the next connections of some nodes; return how many."""
    planned = 0
    for proxy in proxies.values():
        many = chance.choice([0, 0, 1, 2, 9])
        planned += many
        proxy.breaks += [(chance.choice(HOW), chance.randrange(3_000, 40_000)) for _ in range(many)]
    return planned


def mend(proxies: dict[str, ChaosProxy]) -> int:
    """Break no further connection; return how many of those that were to break did not come."""
    left = sum(len(proxy.breaks) for proxy in proxies.values())
    for proxy in proxies.values():
        proxy.breaks.clear()
    return left


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("far_end", CUT_IN_ALL)
@pytest.mark.parametrize("how", ["full", pytest.param("read-only", marks=pytest.mark.soak)])
def test_a_disk_behind_a_server_that_is_full_or_can_only_be_read(
    tmp_path: Path, start_sshd: Callable[..., Sshd], far_end: FarEnd, how: str
) -> None:
    """It fills up byte by byte, so that some append finds room for a part of its record only."""
    node = "n2"
    with small_disk(tmp_path / "nodes" / node):
        place = tmp_path / "nodes" / node
        centre = LoadedCentre(tmp_path)
        server = start_sshd(far_end)
        for name in NODES:
            at = NodeSettings(name, server.url(centre.node(name)), host_key=server.host_key, key=str(server.key))
            centre.app.settings.nodes[name] = at
        centre.land(1)
        assert load(centre.app, centre.receiver).exit_code == 0
        spoil_disk(place, how)
        for number in (2, 3):
            centre.land(number)
            assert load(centre.app, centre.receiver).exit_code == 0
            watch_groups(centre.app, centre.receiver)
            if how == "full":  # a little room, as when something else was deleted
                os.truncate(place / "in-the-way", (place / "in-the-way").stat().st_size - 4096 * (number - 1))
        assert group(centre).master != node
        assert centre.rows() == rows((1, 10), (2, 20), (3, 30))
        if how == "full":
            (place / "in-the-way").unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
        come_into_step(centre, 4)
        centre.app.ledger.close()


@pytest.mark.usefixtures("short_limits")
def test_two_watches_and_two_loads_at_once_over_lines_that_are_cut(tmp_path: Path, start_sshd: Callable[..., Sshd]) -> None:
    """Two processes on one ledger; lines are dropped while they work."""
    centre = LoadedCentre(tmp_path)
    chance = random.Random(BASE_SEED)
    server = start_sshd()
    for name in NODES:
        at = NodeSettings(name, server.url(centre.node(name)), host_key=server.host_key, key=str(server.key))
        centre.app.settings.nodes[name] = at
    over = threading.Event()

    def cut() -> None:
        while not over.wait(chance.uniform(0.2, 1.5)):
            server.drop_connections()

    def loads() -> None:
        while not over.is_set():
            with contextlib.suppress(TidemarkError):
                load(centre.app, centre.receiver)

    with ThreadPoolExecutor(3) as pool:
        works = [pool.submit(cut), pool.submit(loads)]
        for number in range(1, 8):
            centre.land(number)
            with contextlib.suppress(TidemarkError):
                load(centre.app, centre.receiver)
            with contextlib.suppress(TidemarkError):
                watch_at_once(centre)
        over.set()
        for work in works:
            work.result()
    come_into_step(centre, 8)
