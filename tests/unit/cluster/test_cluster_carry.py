"""Moving by tasks: what was proved is recorded by the flow alone, what was lost is done again, the rest is as without."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_world import ClusterWorld
from tidemark.cluster.migration import pull as cluster_carry
from tidemark.cluster.migration import send_task as move_task
from tidemark.cluster.migration.migrate import MigrateResult, migrate_slots
from tidemark.cluster.migration.pull import CarrierLostError
from tidemark.cluster.migration.send_task import MoveTask, run_move
from tidemark.engines.task import Outcome
from tidemark.errors import RetryableError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.proof.overview import status
from tidemark.receiver.remote_tasks import reached_by
from tidemark.settings.model import SparkSettings
from tidemark.stores.protocol import StoreAddress


@dataclass
class Losing:
    """An engine that does its tasks and then loses the answers of some: the process died behind its last file."""

    lose: list[int] = field(default_factory=list)  # by number of the task, over all runs
    broken: int = 0  # runs that fail whole
    ran: list[MoveTask] = field(default_factory=list)
    name: str = "losing"

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        assert kind == "slot_migrate"
        if self.broken:
            self.broken -= 1
            raise RetryableError("the cluster is gone")
        for index, task in enumerate(tasks):
            self.ran.append(task)
            made = run_move(task)
            lost = len(self.ran) - 1 in self.lose
            yield Outcome(index, error=RetryableError("killed")) if lost else Outcome(index, made)


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    made = ClusterWorld(tmp_path, slots=12)
    made.begin()
    for partition in range(30):
        made.put("root.db", partition, b"points of %d" % partition)
    made.join("n4")
    return made


def moved(world: ClusterWorld, engine: Losing) -> MigrateResult:
    return migrate_slots(world.app, world.receiver, engine=engine)


def held(world: ClusterWorld) -> set[str]:
    with world.app.ledger.read() as connection:
        return {row.location for row in copy_rows.copies_at(connection, "centre", "n4") if row.state == "held"}


def there(world: ClusterWorld) -> set[str]:
    return set(world.node("n4").list_sizes())


def test_tasks_move_what_a_new_node_lacks(world: ClusterWorld) -> None:
    engine = Losing()
    result = moved(world, engine)
    assert result.state == "done" and result.bytes > 0
    assert held(world) == there(world) != set()
    assert "n4" in {task.target.node for task in engine.ran}
    assert all(task.source.node and task.label in task.items[0].source_path for task in engine.ran)
    assert world.run("cluster", "check") == 0
    assert world.node("n1").list_snapshots() == []


def test_a_lost_task_is_run_again_and_sends_nothing_twice(world: ClusterWorld) -> None:
    engine = Losing(lose=[0, 1])
    assert moved(world, engine).state == "done"
    assert engine.ran[0] == engine.ran[1] == engine.ran[2], "the very same task"
    assert held(world) == there(world)
    assert world.run("cluster", "check") == 0


def test_a_task_that_is_lost_for_good_marks_no_copy(world: ClusterWorld) -> None:
    with pytest.raises(RetryableError, match="slots still move"):
        moved(world, Losing(lose=list(range(1000))))
    assert held(world) == set() and there(world) != set()
    assert moved(world, Losing()).state == "done"
    assert held(world) == there(world)


def test_an_engine_that_breaks_is_tried_again_then_named(world: ClusterWorld) -> None:
    with pytest.raises(CarrierLostError, match="the cluster is gone"):
        moved(world, Losing(broken=1000))
    assert held(world) == there(world) == set()
    assert moved(world, Losing(broken=2)).state == "done"
    assert held(world) == there(world) != set()


def test_many_files_go_in_waves(world: ClusterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_task, "SMALLEST", 1)
    engine = Losing(lose=[2])
    assert moved(world, engine).state == "done"
    assert len(engine.ran) > 3 and held(world) == there(world)


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("word", "little", "tasks"), [("auto", True, 0), ("auto", False, 1), ("pool", False, 0)])
def test_little_is_not_worth_an_engine_and_the_settings_have_the_last_word(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch, word: str, little: bool, tasks: int
) -> None:
    engine = Losing()
    monkeypatch.setattr("tidemark.engines.choose._open_spark_engine", lambda _settings: engine)
    world.app.settings = dataclasses.replace(world.app.settings, spark=SparkSettings(engine=word))
    if not little:
        monkeypatch.setattr(cluster_carry, "LITTLE", 1)
    assert migrate_slots(world.app, world.receiver, engine="spark").state == "done"
    assert bool(engine.ran) == bool(tasks) and held(world) == there(world)


def test_the_command_line_moves_by_itself_unless_the_settings_say_spark(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Losing()
    monkeypatch.setattr("tidemark.engines.choose._open_spark_engine", lambda _settings: engine)
    monkeypatch.setattr(cluster_carry, "LITTLE", 1)
    migrate_slots(world.app, world.receiver, slots=range(4))
    assert engine.ran == []
    world.app.settings = dataclasses.replace(world.app.settings, spark=SparkSettings(engine="spark"))
    assert migrate_slots(world.app, world.receiver).state == "done" and engine.ran


def test_executors_elsewhere_reach_this_machines_folders_over_sftp(tmp_path: Path) -> None:
    files = StoreAddress("sftp://u@here:22/", "SHA256:files", "~/.ssh/files")
    near = move_task.End(StoreAddress("file:///srv/centre"))
    far = move_task.End(StoreAddress("sftp://u@n1:22/srv/n1", "SHA256:n1", "~/.ssh/n1"), "n1")
    task = reached_by(files, MoveTask("first", near, far, ()))
    assert task.source.address == dataclasses.replace(files, url="sftp://u@here:22/srv/centre") and task.target == far


def test_under_a_shared_cap_this_process_sends(world: ClusterWorld) -> None:
    """It hears every second what is left of the cap; tasks could not."""
    engine = Losing()
    world.app.settings = dataclasses.replace(
        world.app.settings, receivers={"centre": dataclasses.replace(world.receiver, bandwidth=50e6)}
    )
    assert migrate_slots(world.app, world.app.receiver_settings(), engine=engine).state == "done"
    assert engine.ran == [] and held(world) == there(world) != set()
    (line,) = status(world.app).as_json()["lines"]
    assert line == {"receiver": "centre", "bytes_per_second": 50_000_000, "holders": []}, "its place is free again"
