"""`status` and `why` beside Airflow: what a failed, retrying or killed task of a link leaves is told at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time.context import set_current_context

from tests.dags.conftest import Centre
from tests.dags.test_runs import Dag
from tidemark.errors import CorruptionError, PermanentError, UnreachableError
from tidemark.orchestration.tasks import sync as sync_tasks
from tidemark.proof.overview import status
from tidemark.proof.prove import why

pytestmark = pytest.mark.usefixtures("airflow_database", "short_pauses")
AWAY = 'store = "sftp://nobody@127.0.0.1:1/data"\nhost_key = "SHA256:' + "A" * 43 + '"'


def as_task(name: str, act: Callable[[], Any], try_number: int = 1) -> Any:
    """`act` as the task `name` of the link's DAG does it, with 6 tries."""
    instance = SimpleNamespace(dag_id="tidemark_sync__plant1", task_id=name, try_number=try_number, max_tries=5)
    with set_current_context({"ti": instance, "params": {}}):  # type: ignore[typeddict-item]
        return act()


def link_of(centre: Centre) -> dict[str, Any]:
    app = centre.app()
    try:
        report = status(app)
        said = report.as_json()["links"][0]
        told = why(app, said["last_run"] or "plant1")
        assert (told.state, told.cause) == (said["state"], said["reason"]) or told.final or told.kind == "link"
        return {**said, "code": report.exit_code}
    finally:
        app.ledger.close()


def away(centre: Centre) -> None:
    centre.config.write_text(centre.config.read_text().replace('store = "plant1"', AWAY))


@pytest.mark.full
def test_between_two_tries_and_after_the_last_one(centre: Centre) -> None:
    dag = Dag()
    run = as_task("recover", dag.recover)
    as_task("select_files", lambda: sync_tasks.select_files("plant1", run, params={}))
    between = link_of(centre)
    assert between["state"] == "running" and "between two tasks, after select_files" in between["reason"]
    away(centre)
    for number in (1, 6):
        with pytest.raises(UnreachableError):
            as_task("sync_schema", lambda: sync_tasks.sync_schema(run), number)
        said = link_of(centre)
        assert (said["try"], said["tries"]) == (number, 6)
        assert f"task sync_schema, try {number} of 6" in said["reason"]
        if number == 1:
            assert (said["state"], said["code"]) == ("retrying", 0) and said["next_try"]
    assert (said["state"], said["code"], said["next_try"]) == ("failed", 23, None)
    centre.write()
    assert as_task("sync_schema", lambda: sync_tasks.sync_schema(run), 7) is not None
    assert link_of(centre)["state"] == "running"
    dag.whole()
    assert link_of(centre)["code"] == 0


@pytest.mark.full
def test_a_run_that_could_not_even_begin(centre: Centre, caplog: pytest.LogCaptureFixture) -> None:
    Dag("manual__1").whole()
    centre.config.write_text(centre.config.read_text().replace("5d0f6a1e", "6d0f6a1e"))  # the link is another site's
    with pytest.raises(PermanentError) as told:
        as_task("recover", Dag("manual__2").recover)
    assert ". Next: " in str(told.value), "Airflow's page shows the exception's text, and folds what follows it"
    assert [line.startswith("Next: ") for line in caplog.messages[-2:]] == [False, True], "it cuts long lines"
    said = link_of(centre)
    assert (said["state"], said["code"]) == ("failed", 23) and "task recover, try 1 of 6" in said["reason"]
    centre.write()
    from tidemark.sync.run import run_sync

    app = centre.app()
    assert run_sync(app, "plant1").exit_code == 0
    app.ledger.close()
    assert link_of(centre)["code"] == 0, "a command that went on with the link speaks for it"


def test_a_defect_is_told_too(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    run = as_task("recover", Dag().recover)
    monkeypatch.setattr("tidemark.sync.run.select_files", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        as_task("select_files", lambda: sync_tasks.select_files("plant1", run, params={}))
    said = link_of(centre)
    assert (said["state"], said["code"]) == ("failed", 23) and "ZeroDivisionError" in said["reason"]


def _killed(run: str) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    sync_tasks.perform_step = lambda act: _perform(lambda app: (act, die()))  # type: ignore[assignment, misc]
    from tidemark.orchestration.tasks.perform import perform_step as _perform

    as_task("transfer_deletes", lambda: sync_tasks.transfer_deletes(run))


def test_a_killed_worker_is_gone(centre: Centre) -> None:
    run = as_task("recover", Dag().recover)
    worker = multiprocessing.get_context("fork").Process(target=_killed, args=(run,))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    said = link_of(centre)
    assert said["state"] == "interrupted" and "task transfer_deletes, try 1 of 6: its process is gone" in said["reason"]


@pytest.mark.full
def test_a_dry_run_is_no_try(centre: Centre) -> None:
    instance = SimpleNamespace(dag_id="tidemark_sync__plant1", task_id="select_files", try_number=1, max_tries=5)
    away(centre)
    with set_current_context({"ti": instance, "params": {"dry_run": True}}), pytest.raises(UnreachableError):  # type: ignore[typeddict-item]
        sync_tasks.select_files("plant1", "", params={"dry_run": True})
    assert link_of(centre)["state"] == "new"


@pytest.mark.full
def test_a_damaged_ledger_is_told_as_damage(centre: Centre) -> None:
    Dag("manual__1").whole()
    place = centre.root / "ledger.db"
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    sound = place.read_bytes()
    for old, new in ((b"CREATE TABLE run (", b"CREATE TABLE rum ("), (b"first_seen DOUBLE", b"first_sefn DOUBLE")):
        assert old in sound
        place.write_bytes(sound.replace(old, new))
        with pytest.raises(CorruptionError, match=r"the ledger is damaged.*ledger\.db") as told:
            Dag("manual__2").whole()
        assert "./tidemark ledger rebuild" in told.value.hint
