"""`./tidemark up` and `down`: loopback only, one at a time, and nobody left behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.services.running_airflow import Deployment, RunningAirflow, wait
from tidemark.orchestration.deployment import sessions

pytestmark = [pytest.mark.full, pytest.mark.real("airflow")]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """One for all: only the first start has a database to make."""
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    made.make()
    return made


@pytest.fixture
def fresh(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path)
    made.make()
    return made


def nobody_left(airflow: RunningAirflow, leaders: set[int]) -> None:
    wait(lambda: sessions.list_members(leaders) == [], "the end of all parts")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(airflow.ui, timeout=2)
    assert airflow.deployment.tidemark("down") == {"ok": True, "ui": "", "pid": 0}


def listened_at(pid: int) -> set[Any]:
    """The addresses at which descendants of a process listen; a parser may end while it is asked."""
    found = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return found


def test_on_loopback_with_a_login_and_alone_until_ctrl_c(deployment: Deployment) -> None:
    with RunningAirflow(deployment, quick_parsing=False) as airflow:
        leaders = airflow.sessions()
        assert len(leaders) == 6, "the starter, the pages' and the tasks' server, scheduler, DAG processor, triggerer"
        listening = listened_at(airflow.process.pid)
        assert {address.ip for address in listening} == {"127.0.0.1"}
        assert len(listening) == 2
        assert int(airflow.ui.rsplit(":", 1)[1]) in {address.port for address in listening}

        for token in ("", "guess"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                airflow.call("GET", "/api/v2/dags", token=token)
            assert refused.value.code in (401, 403)
        with pytest.raises(urllib.error.HTTPError) as refused:
            airflow.login("guess")
        assert refused.value.code == 401

        assert deployment.tidemark("up", "--port", "0")["ui"] == airflow.ui, "it runs already"
        elsewhere = deployment.tidemark("up", "--port", "9", expect=(2,))
        assert airflow.ui in elsewhere["error"]
        home = deployment.root / "var" / "airflow"
        for private in ("passwords.json", "secrets.json", "airflow.cfg"):
            assert stat.S_IMODE((home / private).stat().st_mode) == 0o600, private
        assert airflow.stop(signal.SIGINT) == 0
        nobody_left(airflow, leaders)


def test_killed_with_9_it_leaves_nobody(deployment: Deployment) -> None:
    with RunningAirflow(deployment, quick_parsing=False) as airflow:
        leaders = airflow.sessions()
        assert airflow.stop(signal.SIGKILL) == -signal.SIGKILL
        nobody_left(airflow, leaders)


@pytest.mark.parametrize("part", ["scheduler", pytest.param("starter", marks=pytest.mark.soak)])
def test_a_part_that_dies_takes_the_rest_down_and_is_named(deployment: Deployment, part: str) -> None:
    with RunningAirflow(deployment, quick_parsing=False) as airflow:
        leaders = airflow.sessions()
        victim = psutil.Process(airflow.process.pid).children()[0].pid if part == "starter" else airflow.part(part)
        os.kill(victim, signal.SIGKILL)
        assert airflow.process.wait(timeout=120) == 6
        assert airflow.process.stdout is not None
        assert f"{part} of Airflow ended by itself" in airflow.process.stdout.read()
        nobody_left(airflow, leaders)


def test_detached_it_outlives_its_command_until_down(deployment: Deployment) -> None:
    started = deployment.tidemark("up", "--detach", "--port", "0")
    try:
        with urllib.request.urlopen(f"{started['ui']}/api/v2/monitor/health", timeout=10) as health:
            assert health.status == 200
        assert deployment.tidemark("up", "--port", "0")["pid"] == started["pid"], "said again"
    finally:
        assert deployment.tidemark("down")["ui"] == started["ui"]
    assert not sessions.is_live(started["pid"])


@pytest.mark.real("postgresql")
def test_stopped_in_the_middle_of_a_sync_the_next_start_goes_on(fresh: Deployment, postgres_url: str) -> None:
    """Airflow's own database is a PostgreSQL here, which it may be as well."""
    dag, url = "tidemark_sync__plant1", re.sub(r"^postgresql(\+\w+)?:", "postgresql+psycopg:", postgres_url)
    fresh.lines["plant1"] = 'bandwidth = "5 KB/s"'
    fresh.write()
    with RunningAirflow(fresh, AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=url) as airflow:
        airflow.wait_for_dag(dag)
        run = airflow.trigger(dag)
        wait(lambda: airflow.states(dag, run).get("transfer_files") == "running", "the transfer")
        assert airflow.stop() == 0
    assert fresh.landed("plant1") == []
    fresh.lines.clear()
    fresh.write()
    with RunningAirflow(fresh, AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=url) as airflow:
        assert airflow.wait_for_run(dag, run) == "success"
        tries = {ti["task_id"]: ti["try_number"] for ti in airflow.instances(dag, run)}
        assert tries == dict.fromkeys(tries, 1) | {"transfer_files": 2}, "the stop was told of, so nothing had to time out"
    assert fresh.landed("plant1") == fresh.sealed("plant1")
    assert not (fresh.root / "var" / "airflow" / "airflow.db").exists()


def test_a_taken_port_is_named(deployment: Deployment) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        answer = deployment.tidemark("up", "--port", str(port), expect=(2,))
    assert str(port) in answer["error"]
    assert answer["hint"] == f"./tidemark up --port {port + 1}"


def _family(airflow: RunningAirflow) -> list[psutil.Process]:
    return psutil.Process(airflow.process.pid).children(recursive=True)
