"""Whole runs of the DAGs over real files, without a scheduler: what is at the receiver afterwards, whatever was rerun."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from tests.commanded import run_here
from tests.dags.conftest import Centre
from tidemark.errors import CorruptionError, GuardError, LeaseHeldError, NotFoundError, PartialError, PermanentError
from tidemark.orchestration.tasks import receivers as receiver_tasks
from tidemark.orchestration.tasks import sync as sync_tasks

pytestmark = pytest.mark.usefixtures("airflow_database")
RED_END = {"announce": ["success"], "done": ["upstream_failed"]}
STEPS = ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup")
CLOSED = '"00:00-00:01"'  # a window that is closed but for one minute a day


class Dag:
    """One DAG run of the link, its tasks called one by one as an executor does; `external` names the DAG run."""

    def __init__(self, external: str = "manual__1", **params: Any) -> None:
        self.dag_run = SimpleNamespace(dag_id="tidemark_sync__plant1", run_id=external)
        self.params = params
        self.news: list[dict[str, Any]] = []
        self.page = _Page()

    def recover(self) -> str:
        return sync_tasks.recover(
            "plant1",
            "centre",
            params=self.params,
            dag_run=self.dag_run,
            outlet_events=_Outlets(self.news),
            task_state_store=self.page,
        )

    def transfer(self, run: str) -> list[dict[str, Any]]:
        batches = sync_tasks.select_files("plant1", run, params=self.params)
        sync_tasks.sync_schema(run)
        sync_tasks.transfer_deletes(run)
        return [sync_tasks.transfer_files(run, batch) for batch in batches]

    def finish(self, run: str) -> dict[str, Any]:
        return sync_tasks.finish(run, "centre", outlet_events=_Outlets(self.news))

    def whole(self) -> str:
        run = self.recover()
        self.transfer(run)
        self.finish(run)
        sync_tasks.cleanup(run)
        return run


class _Page(dict[str, str]):
    """Stands where Airflow puts a task's state store, which the task's page shows."""

    set = dict.__setitem__


class _Outlets:
    """Stands where Airflow puts its outlet events: it keeps what the task told."""

    def __init__(self, news: list[dict[str, Any]]) -> None:
        self.news = news

    def __getitem__(self, alias: Any) -> _Outlets:
        assert alias.name == "tidemark://centre/landed"
        return self

    def add(self, asset: Any, extra: dict[str, Any]) -> None:
        self.news.append({"uri": asset.uri, **extra})


def state_of(centre: Centre, table: str = "file") -> list[tuple[Any, ...]]:
    """The ledger's rows that a rerun must not change."""
    import sqlalchemy as sa

    app = centre.app()
    with app.ledger.read() as connection:
        rows = connection.execute(sa.text(f"SELECT * FROM {table}")).all()
    app.ledger.close()
    return sorted(tuple(row) for row in rows)


def test_a_run_lands_loads_and_proves_every_sealed_file_once(centre: Centre, run: Callable[..., Any]) -> None:
    states = run("tidemark_sync__plant1")
    assert states == {"run": ["success"]} | {step: ["success"] for step in STEPS}
    assert centre.landed() == centre.sealed()
    assert len(centre.landed()) == 32

    assert run("tidemark_load") == {part: ["success"] for part in ("run", "load", "merge", "announce", "done")}
    receipts = [json.loads(path.read_bytes()) for path in centre.receiver.glob("landing/*/*/receipt.json")]
    assert {answer["outcome"] for receipt in receipts for answer in receipt["answers"]} == {"loaded"}

    states = run("tidemark_sync__plant1")
    assert states["run"] == ["success"], "a run with nothing new"
    assert states["transfer_files"] == ["skipped"]


@pytest.mark.full
def test_a_run_with_nothing_new_tells_nobody(centre: Centre) -> None:
    first, idle = Dag("manual__1"), Dag("manual__2")
    assert first.whole() != idle.whole()
    assert (len(first.news), idle.news) == (1, [])
    assert centre.landed() == centre.sealed()


@pytest.mark.full
def test_a_run_is_found_by_either_name_and_named_on_the_page_of_its_task(centre: Centre) -> None:
    dag = Dag("manual__1")
    run = dag.whole()
    assert dag.page["run"] == run
    assert [row["airflow_run"] for row in run_here(centre.config, "runs").json["runs"]] == [
        "tidemark_sync__plant1/manual__1"
    ]
    found = run_here(centre.config, "why", "tidemark_sync__plant1/manual__1").json
    assert found["subject"] == run and "Airflow's run tidemark_sync__plant1/manual__1" in found["evidence"]


@pytest.mark.full
def test_a_dry_run_changes_nothing(centre: Centre, run: Callable[..., Any]) -> None:
    states = run("tidemark_sync__plant1", dry_run=True)
    assert states["run"] == ["success"]
    assert [states[step] for step in ("recover", "select_files")] == [["success"], ["success"]]
    assert [states[step] for step in STEPS[2:]] == [["skipped"]] * 5
    assert not centre.receiver.exists()
    assert state_of(centre) == state_of(centre, "run") == []


@pytest.mark.full
def test_only_the_asked_paths_travel_and_the_rest_goes_with_the_next_run(centre: Centre) -> None:
    Dag("manual__1", only_paths=["data/unsequence/**"]).whole()
    assert centre.landed() == [path for path in centre.sealed() if path.startswith("data/unsequence/")]
    Dag("manual__2").whole()
    assert centre.landed() == centre.sealed()


@pytest.mark.full
def test_send_all_again_sends_all_again(centre: Centre) -> None:
    Dag("manual__1").whole()
    Dag("manual__2", send_all_again=True).whole()
    assert centre.landed() == sorted(centre.sealed() * 2)


@pytest.mark.full
def test_a_cleared_run_that_sent_all_again_does_not_send_it_once_more(centre: Centre) -> None:
    Dag("manual__1").whole()
    again = Dag("manual__2", send_all_again=True)
    assert again.whole() == again.whole()
    assert centre.landed() == sorted(centre.sealed() * 2)


@pytest.mark.full
def test_a_second_trigger_while_a_run_is_open_ends_that_run_and_makes_its_own(centre: Centre) -> None:
    first, second = Dag("manual__1"), Dag("manual__2")
    run = first.recover()
    sync_tasks.select_files("plant1", run, params={})
    late = centre.seal_late()
    own = second.recover()
    assert own != run
    assert late not in centre.landed(), "the first run ends with what it had planned"
    first.transfer(run)
    second.transfer(own)
    for dag, its in ((second, own), (first, run)):
        dag.finish(its)
        sync_tasks.cleanup(its)
    assert centre.landed() == centre.sealed()


@pytest.mark.full
def test_any_task_of_a_finished_run_may_be_cleared(centre: Centre) -> None:
    dag = Dag()
    finished = dag.whole()
    assert dag.news == [{"uri": "tidemark://centre/landed", "run": finished, "landings": 1}]
    before = (centre.landed(), state_of(centre), state_of(centre, "run"), state_of(centre, "sent_landing"))
    assert dag.whole() == finished, "a cleared run is the same run"
    for _ in range(2):
        dag.recover()
        dag.transfer(finished)
        dag.finish(finished)
        sync_tasks.cleanup(finished)
    assert (centre.landed(), state_of(centre), state_of(centre, "run"), state_of(centre, "sent_landing")) == before
    assert centre.landed() == centre.sealed()


@pytest.mark.full
def test_clearing_an_old_run_does_not_touch_a_newer_one(centre: Centre) -> None:
    old = Dag("manual__old")
    old.whole()
    centre.seal_late()
    new = Dag("manual__new")
    running = new.recover()
    assert old.whole() != running
    new.transfer(running)
    new.finish(running)
    sync_tasks.cleanup(running)
    assert centre.landed() == centre.sealed()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("done", range(5))
def test_the_next_dag_run_ends_what_was_left_and_sends_what_was_sealed_since(centre: Centre, done: int) -> None:
    left = Dag("manual__left")
    run = left.recover()
    steps = [
        lambda: sync_tasks.select_files("plant1", run, params={}),
        lambda: sync_tasks.sync_schema(run),
        lambda: sync_tasks.transfer_deletes(run),
        lambda: [sync_tasks.transfer_files(run, batch) for batch in sync_tasks.select_files("plant1", run, params={})],
    ]
    for step in steps[:done]:
        step()
    centre.seal_late()
    follower = Dag("scheduled__next")
    own = follower.whole()
    assert centre.landed() == centre.sealed()
    told = {"uri": "tidemark://centre/landed", "run": run, "landings": 1}
    assert told in follower.news, "what the run that was left has landed is loaded too"
    assert [news["run"] for news in follower.news] in ([run], [run, own])
    assert left.whole() == run, "and clearing the one that was left finds it finished"
    assert centre.landed() == centre.sealed()


@pytest.mark.full
def test_outside_its_window_a_run_is_skipped_and_not_red(centre: Centre, run: Callable[..., Any]) -> None:
    centre.write(window=CLOSED)
    states = run("tidemark_sync__plant1")
    assert states["recover"] == ["skipped"]
    assert states.pop("run") == ["success"]
    assert {tuple(instances) for instances in states.values()} == {("skipped",)}
    assert state_of(centre, "run") == []


@pytest.mark.full
def test_a_window_that_closes_in_the_middle_leaves_the_rest_to_the_next_run(centre: Centre) -> None:
    first = Dag("manual__evening")
    run = first.recover()
    batches = sync_tasks.select_files("plant1", run, params={})
    centre.write(window=CLOSED)
    for batch in batches:
        with pytest.raises(AirflowSkipException, match="window"):
            sync_tasks.transfer_files(run, batch)
    with pytest.raises(AirflowSkipException, match="32 files unsent"):
        first.finish(run)
    assert centre.landed() == []
    centre.write(window='""')
    assert Dag("manual__next_night").whole() != run
    assert centre.landed() == centre.sealed()


@pytest.mark.full
def test_a_lease_that_another_process_holds_is_waited_for(centre: Centre) -> None:
    from tidemark.ledger.leases import Leases

    app = centre.app()
    Dag().whole()
    with Leases(app.ledger, app.identity).hold_lease("link:plant1", "somebody-else"), pytest.raises(LeaseHeldError):
        Dag("manual__2").recover()
    app.ledger.close()
    Dag("manual__2").whole()


@pytest.mark.full
def test_drops_that_wait_make_cleanup_red_and_name_the_command(centre: Centre, run: Callable[..., Any]) -> None:
    Dag().whole()
    (centre.site / "data").rename(centre.root / "unmounted")
    states = run("tidemark_sync__plant1")
    assert (states["run"], states["finish"], states["cleanup"]) == (["failed"], ["success"], ["failed"])
    held = Dag("manual__2")
    with pytest.raises(GuardError) as waiting:
        held.whole()
    assert f"./tidemark approve {held.recover()}" in waiting.value.hint
    (centre.root / "unmounted").rename(centre.site / "data")
    Dag("manual__3").whole()
    assert centre.landed() == centre.sealed()


def test_an_unknown_link_fails_at_once_with_its_class(centre: Centre) -> None:
    with pytest.raises(NotFoundError, match="plant9"):
        sync_tasks.recover("plant9", "centre", params={}, dag_run=SimpleNamespace(dag_id="d", run_id="r"))


def test_files_left_out_make_cleanup_red(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = next(path for path in sorted((centre.site / "data").rglob("*.tsfile")))
    centre.write(**{"retries": "0"})
    dag = Dag()
    opened = dag.recover()
    batches = sync_tasks.select_files("plant1", opened, params={})
    for linked in (centre.site / "data").parent.rglob(victim.name):
        linked.unlink()
    for batch in batches:
        sync_tasks.transfer_files(opened, batch)
    dag.finish(opened)
    with pytest.raises(PartialError, match=victim.name):
        sync_tasks.cleanup(opened)


@pytest.mark.full
def test_a_load_that_leaves_a_file_is_red_and_what_it_loaded_is_merged(centre: Centre, run: Callable[..., Any]) -> None:
    Dag().whole()
    victim = next(iter(sorted(centre.receiver.rglob("landing/**/*.tsfile"))))
    victim.write_bytes(victim.read_bytes()[:-1])
    states = run("tidemark_load")
    assert states == {"run": ["failed"], "load": ["failed"], "merge": ["success"], **RED_END}
    receipts = [json.loads(path.read_bytes()) for path in centre.receiver.glob("landing/*/*/receipt.json")]
    outcomes = sorted(answer["outcome"] for receipt in receipts for answer in receipt["answers"])
    assert outcomes == ["loaded"] * 31 + ["quarantined"]
    assert run("tidemark_load")["run"] == ["success"], "again it finds only what is still open"


@pytest.mark.full
def test_a_file_in_quarantine_makes_verify_red_with_its_name(centre: Centre) -> None:
    Dag().whole()
    victim = next(iter(sorted(centre.receiver.rglob("landing/**/*.tsfile"))))
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CorruptionError):
        receiver_tasks.load("centre")
    with pytest.raises(PartialError, match=f"{victim.name} is held back: in quarantine") as red:
        receiver_tasks.verify("centre", {})
    assert red.value.hint.startswith("./tidemark why ") and red.value.hint.endswith(victim.name)


@pytest.mark.full
def test_a_damaged_catalog_makes_verify_red_with_the_command_that_mends_it(centre: Centre) -> None:
    Dag().whole()
    receiver_tasks.load("centre")
    victim = next(iter(sorted(centre.receiver.rglob("data/**/*.tsfile"))))
    victim.write_bytes(b"rotten")
    with pytest.raises(PermanentError, match="has 6 bytes") as red:
        receiver_tasks.verify("centre", {})
    assert red.value.hint == "./tidemark verify --repair"


@pytest.mark.full
def test_a_load_announces_the_catalog_once_with_databases_and_interval(centre: Centre, run: Callable[..., Any]) -> None:
    def announced() -> list[dict[str, Any]]:
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            mine = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            found = session.scalars(mine.where(AssetModel.uri == "tidemark://centre/catalog").order_by(AssetEvent.id))
            return [dict(event.extra) for event in found][before:]

    before = 0
    before = len(announced())
    Dag("manual__1").whole()
    run("tidemark_load")
    (first,) = announced()
    assert (first["files"], first["removed"]) == (32, 0)
    assert first["databases"] == ["root.plant1", "root.plant2", "works"]
    assert first["from"] == "2024-01-04T00:05:38.959Z" and first["to"] > first["from"]
    run("tidemark_load")
    assert len(announced()) == 1, "nothing new, nobody is told"
    centre.seal_late()
    Dag("manual__2").whole()
    victim = next(iter(sorted(centre.receiver.rglob("landing/**/1999*.tsfile"))))
    victim.write_bytes(victim.read_bytes()[:-1])
    assert run("tidemark_load")["load"] == ["failed"]
    assert len(announced()) == 1, "a file in quarantine changes no catalog"


@pytest.mark.full
def test_a_merge_changes_no_catalog_and_a_dropped_file_does(centre: Centre) -> None:
    from tidemark.ledger.receiver.catalog import Mark, find_changes

    def changes() -> list[Any]:
        nonlocal mark
        app = centre.app()
        with app.ledger.read() as connection:
            mark, found = find_changes(connection, "centre", mark)
        app.ledger.close()
        return found

    mark = Mark()
    centre.write(deletes='"apply"')
    Dag("manual__1").whole()
    receiver_tasks.load("centre")
    assert sum(change.added for change in changes()) == len(centre.sealed())
    assert receiver_tasks.merge("centre")["files_out"] > 0
    assert changes() == []
    dropped = centre.sealed()[0]
    (centre.site / dropped).unlink()
    (centre.site / f"{dropped}.resource").unlink()
    Dag("manual__2").whole()
    receiver_tasks.load("centre")
    (change,) = changes()
    assert (change.added, change.removed) == (0, 1) and change.first <= change.last
    assert changes() == []
