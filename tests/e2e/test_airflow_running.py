"""A running Airflow: trigger, asset, kill -9, clear and rerun. Whatever happens, every file is at the receiver once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.running_airflow import Deployment, RunningAirflow, wait
from tests.services.sshd import Sshd

pytestmark = [pytest.mark.full, pytest.mark.real("airflow")]
STEPS = ("recover", "select_files", "sync_schema", "transfer_deletes", "transfer_files", "finish", "cleanup")
PLANT1, PLANT2 = "tidemark_sync__plant1", "tidemark_sync__plant2"


@pytest.fixture(scope="module")
def airflow(running_airflow: RunningAirflow) -> RunningAirflow:
    for dag in (PLANT1, PLANT2, "tidemark_load", "tidemark_verify", "tidemark_housekeep"):
        running_airflow.wait_for_dag(dag)
    return running_airflow


@pytest.fixture
def deployment(airflow: RunningAirflow) -> Iterator[Deployment]:
    yield airflow.deployment
    airflow.deployment.lines.clear()
    airflow.deployment.stores.clear()
    airflow.deployment.write()


def sync(airflow: RunningAirflow, dag: str, **conf: object) -> str:
    run = airflow.trigger(dag, **conf)
    assert airflow.wait_for_run(dag, run) == "success", airflow.states(dag, run)
    return run


def link_of(deployment: Deployment, link: str, code: int = 0) -> dict[str, Any]:
    """The link in `status`, which ends with `code`."""
    links: dict[str, dict[str, Any]] = {one["name"]: one for one in deployment.tidemark("status", expect=(code,))["links"]}
    return links[link]


def all_loaded(deployment: Deployment, site: str) -> bool:
    landings = deployment.receiver(site).glob("landing/*/*")
    return all((landing / "receipt.json").exists() for landing in landings if (landing / "manifest.json").exists())


def test_a_triggered_sync_lands_every_file_and_its_news_start_a_load(
    airflow: RunningAirflow, deployment: Deployment
) -> None:
    before = {run["dag_run_id"] for run in airflow.runs("tidemark_load")}
    run = sync(airflow, PLANT1)
    assert airflow.states(PLANT1, run) == dict.fromkeys(STEPS, "success")
    assert deployment.landed("plant1") == deployment.sealed("plant1")

    def by_the_asset() -> list[str]:
        new = [r for r in airflow.runs("tidemark_load") if r["dag_run_id"] not in before]
        return [str(r["state"]) for r in new if r["run_type"] == "asset_triggered"]

    wait(lambda: "success" in by_the_asset(), "the load that the asset starts", 120)
    assert all_loaded(deployment, "plant1")
    assert deployment.tidemark("verify", "--receiver", "centre_plant1")["differences"] == []


def test_a_run_without_news_starts_no_load(airflow: RunningAirflow, deployment: Deployment) -> None:
    sync(airflow, PLANT1)
    wait(lambda: all(r["state"] in ("success", "failed") for r in airflow.runs("tidemark_load")), "quiet")
    before = len([r for r in airflow.runs("tidemark_load") if r["run_type"] == "asset_triggered"])
    run = sync(airflow, PLANT1)
    assert airflow.states(PLANT1, run)["transfer_files"] == "skipped"
    sync(airflow, PLANT1)  # the scheduler has looked at the first run's end by now
    assert len([r for r in airflow.runs("tidemark_load") if r["run_type"] == "asset_triggered"]) == before
    assert deployment.landed("plant1") == deployment.sealed("plant1")


def test_a_task_killed_in_the_middle_is_continued(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.lines["plant2"] = 'bandwidth = "40 KB/s"'
    deployment.write()
    run = airflow.trigger(PLANT2)

    def running_pid() -> int:
        transfers = [ti for ti in airflow.instances(PLANT2, run) if ti["task_id"] == "transfer_files"]
        return next((int(ti["pid"]) for ti in transfers if ti["state"] == "running" and ti["pid"]), 0)

    wait(lambda: running_pid() > 1, "the transfer")
    time.sleep(2)  # of the nine that the bandwidth makes it take
    victim = running_pid()
    assert victim > 1, "else we would kill ourselves"
    assert link_of(deployment, "plant2")["state"] == "running"
    os.kill(victim, signal.SIGKILL)
    wait(lambda: link_of(deployment, "plant2")["state"] != "running", "the end of the worker", 10)
    gone = link_of(deployment, "plant2")
    assert gone["state"] == "interrupted" and "transfer_files, try 1 of 6: its process is gone" in gone["reason"]
    assert deployment.landed("plant2") == [], "no landing is whole yet"
    deployment.lines.clear()
    deployment.write()
    assert airflow.wait_for_run(PLANT2, run) == "success"
    tries = {ti["task_id"]: ti["try_number"] for ti in airflow.instances(PLANT2, run)}
    assert tries["transfer_files"] == 2
    assert tries["recover"] == 1
    assert deployment.landed("plant2") == deployment.sealed("plant2")


@pytest.mark.real("sshd")
def test_clear_failed_only_continues_once_the_cause_is_mended(
    airflow: RunningAirflow, deployment: Deployment, sshd: Sshd
) -> None:
    deployment.seal_another("plant2")
    reached = f'store = "{sshd.url(deployment.site("plant2"))}"\nkey = "{sshd.key}"\n'
    deployment.stores["plant2"] = f'{reached}host_key = "SHA256:{"A" * 43}"'
    deployment.write()
    run = airflow.trigger(PLANT2)
    assert airflow.wait_for_run(PLANT2, run) == "failed"
    assert airflow.states(PLANT2, run)["recover"] == "failed", "another host key is nothing that trying again could heal"
    said = airflow.log(PLANT2, run, "recover")
    assert sshd.host_key in said
    assert "Next: " in said
    failed = link_of(deployment, "plant2", code=23)
    assert failed["state"] == "failed" and "recover, try 1 of 6" in failed["reason"] and sshd.host_key in failed["reason"]
    deployment.stores["plant2"] = f'{reached}host_key = "{sshd.host_key}"'
    deployment.write()
    airflow.clear(PLANT2, run, only_failed=True)
    assert airflow.wait_for_run(PLANT2, run) == "success"
    assert deployment.landed("plant2") == deployment.sealed("plant2")
    assert link_of(deployment, "plant2")["state"] in ("landed", "idle")


def test_status_says_that_a_task_waits_for_its_next_try(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.stores["plant2"] = f'store = "sftp://nobody@127.0.0.1:1/data"\nhost_key = "SHA256:{"A" * 43}"'
    deployment.write()
    run = airflow.trigger(PLANT2)
    wait(lambda: link_of(deployment, "plant2")["state"] == "retrying", "the first try's end", 60)
    between = link_of(deployment, "plant2")
    assert (between["try"], between["tries"]) == (1, 6) and between["next_try"] and "127.0.0.1" in between["reason"]
    assert deployment.tidemark("why", "plant2")["state"] == "retrying"
    deployment.stores.clear()
    deployment.write()
    assert airflow.wait_for_run(PLANT2, run) == "success"
    assert link_of(deployment, "plant2")["state"] in ("landed", "idle")


def test_a_finished_run_may_be_cleared_whole_or_in_any_task(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.seal_another("plant1")
    run = sync(airflow, PLANT1)
    before = deployment.landed("plant1")
    assert before == deployment.sealed("plant1")
    airflow.call("POST", f"/api/v2/dags/{PLANT1}/dagRuns/{run}/clear", {"dry_run": False})
    assert airflow.wait_for_run(PLANT1, run) == "success"
    assert deployment.landed("plant1") == before
    for step in STEPS:
        airflow.clear(PLANT1, run, task_ids=[step])
        assert airflow.wait_for_run(PLANT1, run) == "success", step
        assert deployment.landed("plant1") == before, step
    assert all(ti["try_number"] >= 2 for ti in airflow.instances(PLANT1, run))


def test_a_dry_run_shows_its_plan_and_changes_nothing(airflow: RunningAirflow, deployment: Deployment) -> None:
    name = deployment.seal_another("plant1")
    before = deployment.landed("plant1")
    run = sync(airflow, PLANT1, dry_run=True)
    assert name in airflow.log(PLANT1, run, "select_files")
    plan = airflow.call("GET", f"/api/v2/dags/{PLANT1}/dagRuns/{run}/taskInstances/select_files/xcomEntries/plan")
    assert '"files": 1' in str(plan["value"]) or plan["value"]["files"] == 1
    assert deployment.landed("plant1") == before
    sync(airflow, PLANT1)
    assert deployment.landed("plant1") == deployment.sealed("plant1")


def test_wrong_words_in_the_form_are_refused(airflow: RunningAirflow) -> None:
    import urllib.error

    with pytest.raises(urllib.error.HTTPError) as refused:
        airflow.trigger(PLANT1, only_paths="data/**")
    assert refused.value.code == 400


def test_spark_loads_and_merges(airflow: RunningAirflow, deployment: Deployment) -> None:
    deployment.seal_another("plant1")
    deployment.engine = "spark"
    deployment.write()
    states: list[str] = []

    def ended() -> bool:
        """Of all runs at one moment: another one may begin in the next."""
        states[:] = [run["state"] for run in airflow.runs("tidemark_load")]
        return set(states) <= {"success", "failed"}

    try:
        sync(airflow, PLANT1)
        wait(lambda: all_loaded(deployment, "plant1"), "the load", 180)
        wait(ended, "the merge", 180)
    finally:
        deployment.engine = "pool"
        deployment.write()
    assert states[-1] == "success"
    assert deployment.tidemark("verify", "--deep", "--receiver", "centre_plant1")["differences"] == []


def test_a_broken_edit_shows_its_line_and_stops_nobody(airflow: RunningAirflow, deployment: Deployment) -> None:
    line = len(deployment.config.read_text().splitlines()) + 1
    deployment.write(more="shedule = 1\n")

    def errors() -> list[str]:
        return [str(e["stack_trace"]) for e in airflow.call("GET", "/api/v2/importErrors")["import_errors"]]

    wait(lambda: len(errors()) > 0, "the import error")
    assert len(errors()) == 1
    assert f"tidemark.toml:{line}" in errors()[0]
    deployment.seal_another("plant2")
    sync(airflow, PLANT2)
    assert deployment.landed("plant2") == deployment.sealed("plant2")
    deployment.write()
    wait(lambda: errors() == [], "the mended settings")
