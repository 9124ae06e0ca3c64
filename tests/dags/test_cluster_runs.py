"""Whole runs of `tidemark_cluster_scale` without a scheduler: nodes that are folders; what the cluster is afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dags.conftest import Centre
from tests.dags.notifiers import Remember
from tests.dags.test_parsing import CLUSTER
from tests.services.processes import descendants_named
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.health.operator import recover_members
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster
from tidemark.cluster.replicas.core.segment import MARK_BYTES
from tidemark.cluster.replicas.deliver import late_members
from tidemark.engines.java import java_home
from tidemark.engines.spark import close_sessions
from tidemark.errors import NotFoundError, PermanentError, UsageError
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Identity, Leases
from tidemark.orchestration.tasks import cluster as cluster_tasks
from tidemark.orchestration.tasks import replicas as replica_tasks
from tidemark.proof.cluster.show import show_cluster, table_of
from tidemark.sync.run import Options, run_sync

DAG_ID = "tidemark_cluster_scale"


class Scale:
    """One DAG run, its tasks called one by one as an executor does."""

    def __init__(self, run_id: str = "manual__1", **params: Any) -> None:
        self.facts: dict[str, Any] = {"params": params, "dag_run": SimpleNamespace(dag_id=DAG_ID, run_id=run_id)}

    def plan(self) -> dict[str, Any]:
        return cluster_tasks.plan("centre", **self.facts)

    def phase_one(self) -> list[dict[str, Any]]:
        return cluster_tasks.phase_one("centre", **self.facts)

    def finish(self) -> dict[str, Any]:
        return cluster_tasks.finish("centre", **self.facts)

    def whole(self) -> dict[str, Any]:
        self.plan()
        for batch in self.phase_one():
            cluster_tasks.migrate("centre", batch)
        return self.finish()


@pytest.fixture
def nodes(centre: Centre) -> Centre:
    """A receiver with files and three nodes that hold them; a folder for a fourth."""
    for name in ("n1", "n2", "n3", "n4", "n5"):
        (centre.root / name).mkdir()
    centre.write(CLUSTER)
    app = centre.app()
    run_sync(app, "plant1", Options())
    init_cluster(app, app.receiver_settings("centre"))
    return centre


def url(centre: Centre, name: str) -> str:
    return f"file://{centre.root / name}"


def sound(centre: Centre) -> bool:
    app = centre.app()
    return not check_cluster(app, app.receiver_settings("centre")).problems


def looked(centre: Centre) -> Any:
    app = centre.app()
    return show_cluster(app, app.receiver_settings("centre"))


@pytest.mark.full
def test_a_node_joins_by_tasks_that_are_each_done_twice(nodes: Centre) -> None:
    scale = Scale(kind="add", node="n4", url=url(nodes, "n4"), dry_run=False)
    plan = scale.plan()
    assert plan["epoch"] == 2 and plan["slots"] > 0 and "slots move" in plan["said"]
    batches = scale.phase_one()
    assert batches and scale.phase_one() == batches
    assert scale.plan()["state"] in ("swapped", "migrating"), "a plan cleared later does not fail"
    for batch in (*batches, batches[0]):
        assert cluster_tasks.migrate("centre", batch)["epoch"] == 2
    assert scale.finish()["state"] == "done" == scale.finish()["state"]
    assert scale.phase_one() == [] and sound(nodes)
    view = looked(nodes)
    assert view.epoch == 2 and not view.moving and len(view.nodes) == 4


@pytest.mark.full
def test_tasks_of_an_earlier_change_that_wake_up_do_nothing(nodes: Centre) -> None:
    first = Scale(kind="add", node="n4", url=url(nodes, "n4"))
    batches = first.phase_one()
    first.finish()
    second = Scale("manual__2", kind="remove", node="n1")
    second.phase_one()
    moving = looked(nodes).moving_slots
    assert cluster_tasks.migrate("centre", batches[0])["slots"] == 0
    assert first.phase_one() == [] and first.finish()["state"] == "done" and first.plan()["state"] == "done"
    assert looked(nodes).moving_slots == moving > 0
    assert second.finish()["state"] == "done" and sound(nodes)


def test_a_run_goes_on_with_what_the_command_began(nodes: Centre) -> None:
    app = nodes.app()
    change_nodes(app, app.receiver_settings("centre"), Wanted("add", "n4", url(nodes, "n4")), wait=False)
    assert Scale(kind="add", node="n4", url=url(nodes, "n4")).whole()["state"] == "done" and sound(nodes)


def test_a_round_of_the_watch_names_who_lacks_files_and_each_is_recovered_by_a_task(nodes: Centre) -> None:
    assert replica_tasks.watch("centre")["groups"] == 3
    app = nodes.app()
    with app.ledger.write() as connection:  # a node that missed what was loaded
        connection.exec_driver_sql("DELETE FROM node_copy WHERE node = 'n1'")
        connection.exec_driver_sql("UPDATE group_member SET applied = 0 WHERE node = 'n1'")
        lacks = late_members(connection, "centre", table_of(connection, "centre")).get("n1", ())
    assert replica_tasks.find("centre") == (["n1"] if lacks else [])
    assert replica_tasks.watch("centre")["waiting"] == (1 if lacks else 0)
    replica_tasks.recover("centre", "n1")
    assert replica_tasks.find("centre") == [] and sound(nodes)


@pytest.mark.full
def test_a_node_that_stays_away_is_replaced_by_a_task(nodes: Centre) -> None:
    assert replica_tasks.replace("centre") == {}, "it is off by default"
    nodes.write(CLUSTER.replace("[cluster]", "[cluster]\nreplace_hours = 1"))
    assert replica_tasks.replace("centre") == {}, "nobody is away"
    with nodes.app().ledger.write() as connection:  # n1 is a folder here, and answers: who is away stands in the ledger
        connection.exec_driver_sql("DELETE FROM node_watch")
        sql, now = "INSERT INTO node_watch VALUES ('centre', '{}', {}, {}, {}, '', {})", database_time(connection)
        for node, misses, since in (("n1", 9, now - 9000), ("n2", 0, 0), ("n3", 0, 0)):
            connection.exec_driver_sql(sql.format(node, misses, misses, since, now))
    told = replica_tasks.replace("centre")
    assert (told["node"], told["did"]) == ("n1", "")
    assert told["why"].startswith("group n1: the group has no master; with a quorum of all 2 replicas nobody replaces n1")


def break_log(centre: Centre) -> str:
    """A byte in the middle of a member's log rots; whose."""
    log = next(
        file for file in sorted(centre.root.glob("n1/.tidemark/log/of-*/*.log")) if file.stat().st_size > 3 * MARK_BYTES
    )
    data = log.read_bytes()
    log.write_bytes(data[:MARK_BYTES] + bytes([data[MARK_BYTES] ^ 1]) + data[MARK_BYTES + 1 :])
    return log.parent.name.removeprefix("of-")


@pytest.mark.full
@pytest.mark.usefixtures("airflow_database")
def test_members_that_differ_make_the_nightly_proof_red_and_somebody_is_told(
    nodes: Centre, run: Callable[..., dict[str, list[str]]]
) -> None:
    text = "{{ tidemark.message }}"
    notify = f'[airflow]\nnotify = [{{call = "tests.dags.notifiers.Remember", text = "{text}"}}]\n'
    nodes.write(notify + CLUSTER.replace("quorum = 2", "quorum = 1"))  # so that a member is not needed, and may come anew
    Remember.said.clear()
    sound_run = run("tidemark_verify")
    assert (sound_run["run"], sound_run["replica_verify"], Remember.said) == (["success"], ["success"], [])

    header = break_log(nodes)
    red = run("tidemark_verify")
    assert (red["run"], red["cluster_check"], red["replica_verify"]) == (["failed"], ["success"], ["failed"])
    (said,) = Remember.said
    assert said.startswith(f"tidemark_verify.replica_verify failed: node n1 of group {header}: ")
    assert said.endswith(f"is damaged at byte {MARK_BYTES}. Next: ./tidemark replica recover n1")

    app = nodes.app()
    assert recover_members(app, app.receiver_settings("centre"), "n1").exit_code == 0
    assert run("tidemark_verify")["run"] == ["success"]


def test_a_rotten_copy_is_told_with_what_brings_it_again(nodes: Centre) -> None:
    """Also of a node that joined by its address alone: the settings do not have it."""
    app = nodes.app()
    change_nodes(app, app.receiver_settings("centre"), Wanted("add", "n4", url(nodes, "n4")))
    assert replica_tasks.verify("centre")["groups"] == 4
    victim = next(iter(sorted((nodes.root / "n4" / "data").rglob("*.tsfile"))))
    victim.write_bytes(b"rotten")
    with pytest.raises(PermanentError, match=rf"^node n4 of group \S+: \S+{victim.name} has 6 bytes") as red:
        replica_tasks.verify("centre")
    assert red.value.hint == "./tidemark cluster check --repair"


def test_of_two_rounds_at_once_one_is_not_needed(nodes: Centre) -> None:
    leases = Leases(nodes.app().ledger, Identity("elsewhere", "boot", 1, "start"))
    leases.acquire_lease("watch:centre", "watch-other")
    assert replica_tasks.watch("centre") == {}


@pytest.mark.full
def test_what_cannot_be_is_red_with_its_reason(nodes: Centre) -> None:
    for params in ({"kind": "remove", "node": "n9"}, {"kind": "add", "node": "n9"}, {"kind": "add", "node": "n1"}):
        with pytest.raises((UsageError, NotFoundError)):
            Scale(**params).plan()
    assert looked(nodes).epoch == 1


def test_many_batches_are_few_tasks() -> None:
    from tidemark.cluster.migration.plan import Batch

    many = [Batch(3, (2 * slot, 2 * slot + 1), ("a",), ("b",)) for slot in range(500)]
    told = cluster_tasks.batches_of(many, most=100)
    assert len(told) == 100 and {one["epoch"] for one in told} == {3}
    slots = [slot for one in told for first, last in one["ranges"] for slot in range(first, last + 1)]
    assert sorted(slots) == list(range(1000)) and cluster_tasks.batches_of([]) == []


@pytest.fixture
def go(run: Callable[..., dict[str, list[str]]], airflow_database: None) -> Callable[..., dict[str, list[str]]]:
    """Run the DAG to its end; {task id: [state a map index]} with the run's own state as "run"."""

    return lambda **conf: run(DAG_ID, **conf)


@pytest.mark.full
def test_whole_runs_of_the_dag(nodes: Centre, go: Callable[..., dict[str, list[str]]]) -> None:
    dry = go(kind="add", node="n4", url=url(nodes, "n4"))
    assert dry["plan"] == ["success"] and dry["approval"] == ["skipped"] and dry["run"] == ["success"]
    assert dry["phase_one"] == ["skipped"] and dry["finish"] == ["skipped"] and looked(nodes).epoch == 1

    done = go(kind="add", node="n4", url=url(nodes, "n4"), dry_run=False, approval=False)
    assert done["run"] == ["success"] and set(done["migrate"]) == {"success"} and done["finish"] == ["success"]
    assert looked(nodes).epoch == 2 and sound(nodes)

    left = go(kind="remove", node="n1", dry_run=False, approval=False)
    assert left["run"] == ["success"] and looked(nodes).epoch == 3 and sound(nodes)


@pytest.fixture
def java() -> Iterator[Path]:
    try:
        yield java_home()
    except UsageError as missing:
        pytest.skip(missing.message)
    close_sessions()


@pytest.mark.full
@pytest.mark.real("spark")
@pytest.mark.timeout(400)
def test_a_run_whose_files_spark_carries(nodes: Centre, go: Callable[..., dict[str, list[str]]], java: Path) -> None:
    nodes.config.write_text(nodes.config.read_text().replace('engine = "pool"', 'engine = "spark"\nmaster = "local[2]"'))
    assert slot_migrations() == 0

    done = go(kind="add", node="n4", url=url(nodes, "n4"), dry_run=False, approval=False)

    assert done["run"] == ["success"] and set(done["migrate"]) == {"success"} and done["finish"] == ["success"]
    assert slot_migrations() == 1, "one session carried all batches"
    assert list((nodes.root / "n4" / "data").rglob("*.tsfile")) and sound(nodes)
    assert looked(nodes).epoch == 2 and not looked(nodes).moving


def slot_migrations() -> int:
    """Drivers of the Spark job that this process started and that still live."""
    return len(descendants_named(os.getpid(), "slot_migrate.py"))
