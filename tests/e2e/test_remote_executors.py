"""The wheel's DAGs where no task is a fork of the scheduler: a Celery worker, and the command of a Kubernetes pod.

The worker is Airflow's own, beside a scheduler that only queues; the broker is a folder. Kubernetes itself is not here: its
pod's command is run in an interpreter of its own (`services.pod_executor`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.installed_wheel import ROOT, Installed, build_wheel
from tests.services.postgres import Postgres
from tests.services.processes import PartMissing
from tests.services.running_airflow import DATA
from tests.services.standard_airflow import PACKAGE, StandardAirflow

pytestmark = [pytest.mark.soak, pytest.mark.real("uv"), pytest.mark.timeout(1200)]
SETTINGS = """
[airflow]
load_schedule = ""
verify_schedule = ""
housekeep_schedule = ""
default_args = {retries = 0}

[receivers.centre]
store = "centre"

[sites.plant1]
id = "5d0f6a1e-7c5b-4f0e-9a57-2f6f3a1c7e01"
store = "site"
data = ["data/sequence", "data/unsequence"]
schema = "system/schema"

[links.plant1]
site = "plant1"
schedule = ""
"""
SYNC = "tidemark_sync__plant1"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("executors")
    try:
        wheel = build_wheel(place / "wheel")
    except PartMissing as missing:
        pytest.skip(str(missing))
    return Installed(wheel, place, f"{wheel}[airflow]", PACKAGE.replace("[", "[celery,"))


def celery(home: Path) -> dict[str, str]:
    """CeleryExecutor, with a folder as broker: nobody listens on a port for it."""
    (home / "broker").mkdir()
    (home / "control").mkdir()
    folders = {"DATA_FOLDER_IN": "broker", "DATA_FOLDER_OUT": "broker", "CONTROL_FOLDER": "control"}
    options = {f"AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__{name}": str(home / at) for name, at in folders.items()}
    return options | {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": "filesystem://",
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{home / 'results.db'}",
        "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
    }


def pod(home: Path) -> dict[str, str]:
    (home / "modules").mkdir()
    shutil.copy(ROOT / "tests" / "services" / "pod_executor.py", home / "modules")
    return {"AIRFLOW__CORE__EXECUTOR": "pod_executor.PodExecutor", "PYTHONPATH": str(home / "modules")}


@pytest.fixture(scope="module", params=[celery, pod])
def airflow(
    request: pytest.FixtureRequest, installed: Installed, tmp_path_factory: pytest.TempPathFactory, postgres: Postgres
) -> Iterator[StandardAirflow]:
    place = tmp_path_factory.mktemp(request.param.__name__)
    home, config = place / "airflow", place / "settings" / "tidemark.toml"
    home.mkdir()
    config.parent.mkdir()
    config.write_text(SETTINGS)
    for part in ("data", "system"):
        shutil.copytree(DATA / part, config.parent / "site" / part)
    workers = {"celery": ("worker", "--skip-serve-logs", "--without-mingle", "--without-gossip")}
    parts = workers if request.param is celery else {}
    with StandardAirflow(installed, home, config, postgres.new_database(), parts, **request.param(home)) as running:
        for dag in (SYNC, "tidemark_load", "tidemark_verify", "tidemark_housekeep"):
            running.wait_for_dag(dag)
        yield running


def test_a_sync_a_load_a_check_and_a_cleaning(airflow: StandardAirflow) -> None:
    for dag in (SYNC, "tidemark_load", "tidemark_verify", "tidemark_housekeep"):
        run = airflow.trigger(dag)
        assert airflow.wait_for_run(dag, run) == "success", airflow.states(dag, run)
    [link] = airflow.tidemark("status")["links"]
    sealed = len(list((airflow.config.parent / "site" / "data").rglob("*.tsfile")))
    assert (link["state"], link["backlog_files"]) == ("idle", 0)
    assert airflow.tidemark("verify", "--deep")["checked"] >= sealed
    catalog = list((airflow.config.parent / "centre" / "data").rglob("*.tsfile"))
    assert len(catalog) >= sealed


def test_a_failure_is_told_as_with_any_executor(airflow: StandardAirflow) -> None:
    site = airflow.config.parent / "site"
    site.rename(site.with_name("away"))
    site.write_text("a file in the place of the disk")
    run = airflow.trigger(SYNC)
    assert airflow.wait_for_run(SYNC, run) == "failed"
    [red] = [task for task, state in airflow.states(SYNC, run).items() if state == "failed"]
    said = [line["event"] for line in json.loads(airflow.log(SYNC, run, red))["content"]]
    assert any("Next: " in line for line in said), said
    assert airflow.tidemark("status", expect=(23,))["links"][0]["state"] == "failed"
    site.unlink()
    site.with_name("away").rename(site)
