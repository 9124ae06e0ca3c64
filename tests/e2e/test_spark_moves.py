"""Slots move by the Spark job `slot_migrate` between real nodes; whatever dies of it, the copies are right and sent once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

from tests.moving_world import put
from tests.services import spark as spark_service
from tests.services.processes import descendants, descendants_named
from tests.services.sshd import Sshd
from tidemark.app import App, open_app
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.membership.change import ChangeResult, Wanted, change_nodes, init_cluster
from tidemark.cluster.migration import send_task as move_task
from tidemark.engines.java import java_home
from tidemark.engines.spark import close_sessions, session_at
from tidemark.errors import UsageError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.settings.load import load_settings

pytestmark = [pytest.mark.full, pytest.mark.real("sshd"), pytest.mark.real("spark"), pytest.mark.timeout(400)]
NODES = ("n1", "n2", "n3", "n4")
FILES, SIZE = 24, 180_000
BANDWIDTH = 4e5  # bytes a second: slow enough that something can die in the middle


@pytest.fixture(scope="module")
def java() -> Path:
    try:
        return java_home()
    except UsageError as missing:
        pytest.skip(missing.message)


@dataclass
class World:
    """A receiver with three nodes and a fourth that may join, each behind a server; all that moves is Spark's."""

    folder: Path
    servers: dict[str, Sshd]
    master: str
    app: App = field(init=False)
    nodes: dict[str, Path] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {name: server.new_folder(name) for name, server in self.servers.items()}
        lines = ['[receivers.centre]\nstore = "centre"\n[cluster]\nreplicas = 1\nquorum = 1\nslots = 60\ngrace_hours = 0']
        lines.append(f'[spark]\nengine = "spark"\nmaster = "{self.master}"')
        (self.folder / "centre").mkdir()
        self.config(lines, NODES[:3])
        self.app = open_app(load_settings(str(self.folder / "tidemark.toml"), {}))
        chance = random.Random(1)
        for number in range(FILES):
            content = chance.randbytes(SIZE // 6).hex()  # `put` writes it three times
            put(self.app, self.app.receiver_settings(), "root.sg", number, number, "", content)
        init_cluster(self.app, self.app.receiver_settings())
        self.config(lines, NODES)
        settings = load_settings(str(self.folder / "tidemark.toml"), {})
        assert settings.cluster is not None
        self.app.settings = replace(settings, cluster=replace(settings.cluster, bandwidth=BANDWIDTH))

    def config(self, lines: list[str], names: tuple[str, ...]) -> None:
        nodes = [
            f'[nodes.{name}]\nstore = "{server.url(self.nodes[name])}"\nhost_key = "{server.host_key}"\nkey = "{server.key}"'
            for name, server in self.servers.items()
            if name in names
        ]
        (self.folder / "tidemark.toml").write_text("\n".join([*lines, *nodes]))

    def add(self, node: str = "n4") -> ChangeResult:
        return change_nodes(self.app, self.app.receiver_settings(), Wanted("add", node))

    def whole(self, node: str = "n4") -> dict[str, int]:
        """Files of the catalog that lie at a node, whole → when they were made."""
        found = {}
        for path in (self.nodes[node] / "data").rglob("*.tsfile"):
            with contextlib.suppress(FileNotFoundError):
                found[path.relative_to(self.nodes[node]).as_posix()] = path.stat().st_mtime_ns
        return found

    def held(self, node: str = "n4") -> set[str]:
        with self.app.ledger.read() as connection:
            return {row.location for row in copy_rows.copies_at(connection, "centre", node) if row.state == "held"}

    def sound(self) -> None:
        assert check_cluster(self.app, self.app.receiver_settings()).problems == ()
        assert self.held() == set(self.whole()) != set()


@pytest.fixture
def world(tmp_path: Path, start_sshd: Callable[..., Sshd], java: Path) -> Iterator[Callable[[str], World]]:
    def build(master: str) -> World:
        near, far = start_sshd(), start_sshd()
        return World(tmp_path, {name: far if name == "n4" else near for name in NODES}, master)

    close_sessions()  # a warm one of other tests was started by another job
    yield build
    close_sessions()


def strike(world: World, victims: Callable[[], list[psutil.Process]], after: int = 2) -> Callable[[], dict[str, int]]:
    """Kill once so many files are at n4; called, what was there then."""
    seen: dict[str, int] = {}

    def watch() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            there = world.whole()
            found = victims() if len(there) >= after else []
            if found:
                seen.update(there)
                for victim in found:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        victim.kill()
                return
            time.sleep(0.01)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()

    def result() -> dict[str, int]:
        thread.join(130)
        return seen

    return result


def test_a_task_that_is_killed_is_done_again(world: Callable[[str], World], java: Path) -> None:
    """What was proved stays as it is; no row came of it before it was answered."""
    moving = world("local[2]")
    first = session_at("slot_migrate", "local[2]", java)
    assert any("slot_migrate.py" in word for word in psutil.Process(first.pid).cmdline()), "the first move started it"
    sent = strike(moving, lambda: descendants_named(first.pid, "tidemark.cluster.migration.send_task:run_move"))
    done = moving.add()
    assert (done.state, {road.road for road in done.roads}) == ("done", {"direct"}), "an executor's nodes send, too"
    before, after = sent(), moving.whole()
    assert 2 <= len(before) < len(after) and before == {at: after[at] for at in before}, "nothing was sent again"
    moving.sound()
    told = (first.folder / "log").read_text(errors="replace")
    assert str(moving.servers["n4"].key) not in told and "PRIVATE KEY" not in told


@pytest.mark.soak
def test_a_driver_that_is_killed_is_started_again(world: Callable[[str], World], java: Path) -> None:
    moving = world("local[2]")
    first = session_at("slot_migrate", "local[2]", java)
    sent = strike(moving, lambda: [psutil.Process(first.pid)])
    assert moving.add().state == "done"
    before, after = sent(), moving.whole()
    assert before and before == {at: after[at] for at in before}
    assert session_at("slot_migrate", "local[2]", java).pid != first.pid
    moving.sound()


@pytest.mark.soak
def test_an_executor_that_dies_is_replaced(
    world: Callable[[str], World], java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a standalone cluster: a worker with its executor; the other one does its tasks."""
    monkeypatch.setattr(move_task, "SMALLEST", SIZE)  # several tasks a wave, on both workers
    (tmp_path / "spark").mkdir()
    with spark_service.cluster(java, tmp_path / "spark") as running:
        moving = world(running.address)
        victim = running.workers[0]
        sent = strike(moving, lambda: [psutil.Process(victim.pid), *descendants(victim.pid)])
        assert moving.add().state == "done"
        before, after = sent(), moving.whole()
        assert 2 <= len(before) < len(after) and before == {at: after[at] for at in before}
        moving.sound()
