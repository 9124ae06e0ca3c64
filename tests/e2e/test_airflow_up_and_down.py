"""`./tidemark up` and `down`: loopback only, one at a time, and nobody left behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.services.running_airflow import Deployment, RunningAirflow, wait
from tidemark.orchestration import sessions

pytestmark = [pytest.mark.full, pytest.mark.real("airflow")]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path)
    made.make()
    return made


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_nobody_is_left_behind(deployment: Deployment, how: signal.Signals) -> None:
    airflow = RunningAirflow(deployment)
    leaders = airflow.sessions()
    assert len(sessions.members(leaders)) >= 6
    code = airflow.stop(how)
    if how is not signal.SIGKILL:
        assert code == 0
    wait(lambda: sessions.members(leaders) == [], "the end of all parts", 40)
    assert "airflow" not in " ".join(" ".join(p.cmdline()) for p in _processes() if str(deployment.root) in _environment(p))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(airflow.ui, timeout=2)
    assert deployment.tidemark("down", expect=(3,))["hint"] == "./tidemark up"


def test_it_listens_on_loopback_only_asks_for_a_login_and_refuses_a_second(deployment: Deployment) -> None:
    airflow = RunningAirflow(deployment)
    try:
        listening = {c.laddr for p in _family(airflow) for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        assert {address.ip for address in listening} == {"127.0.0.1"}
        assert {address.port for address in listening} == {int(airflow.ui.rsplit(":", 1)[1])}

        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{airflow.ui}/api/v2/dags", timeout=10)
        assert refused.value.code == 401
        wrong = RunningAirflow.__new__(RunningAirflow)
        wrong.ui, wrong.user, wrong.password, wrong._token = airflow.ui, airflow.user, "guess", ""
        with pytest.raises(urllib.error.HTTPError) as refused:
            wrong.call("GET", "/api/v2/dags")
        assert refused.value.code == 401

        second = deployment.tidemark("up", "--port", "0", expect=(2,))
        assert airflow.ui in second["error"]
        home = deployment.root / "var" / "airflow"
        for private in ("passwords.json", "secrets.json", "airflow.cfg"):
            assert stat.S_IMODE((home / private).stat().st_mode) == 0o600, private
        assert deployment.tidemark("down")["ui"] == airflow.ui
        assert airflow.process.wait(timeout=5) == 0
    finally:
        airflow.stop()


def test_a_part_that_dies_takes_the_rest_down_and_is_named(deployment: Deployment) -> None:
    airflow = RunningAirflow(deployment)
    leaders = airflow.sessions()
    scheduler = next(p for p in _family(airflow) if "scheduler" in p.cmdline())
    os.kill(scheduler.pid, signal.SIGKILL)
    assert airflow.process.wait(timeout=60) == 6
    assert airflow.process.stdout is not None
    assert "scheduler of Airflow ended by itself" in airflow.process.stdout.read()
    assert sessions.members(leaders) == []


def test_detached_it_outlives_its_command_until_down(deployment: Deployment) -> None:
    started = deployment.tidemark("up", "--detach", "--port", "0")
    try:
        with urllib.request.urlopen(f"{started['ui']}/api/v2/monitor/health", timeout=10) as health:
            assert health.status == 200
    finally:
        deployment.tidemark("down")
    assert not sessions.members({started["pid"]})


@pytest.mark.real("postgresql")
def test_airflow_s_own_database_may_be_postgresql(deployment: Deployment, postgres_url: str) -> None:
    url = re.sub(r"^postgresql(\+\w+)?:", "postgresql+psycopg:", postgres_url)
    airflow = RunningAirflow(deployment, AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=url)
    try:
        airflow.wait_for_dag("tidemark_sync__plant1")
        run = airflow.trigger("tidemark_sync__plant1")
        assert airflow.wait_for_run("tidemark_sync__plant1", run) == "success"
        assert deployment.landed("plant1") == deployment.sealed("plant1")
        assert not (deployment.root / "var" / "airflow" / "airflow.db").exists()
    finally:
        airflow.stop()


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


def _processes() -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if p.pid != os.getpid()]


def _environment(process: psutil.Process) -> str:
    try:
        return " ".join(process.environ().values())
    except (psutil.Error, OSError, subprocess.SubprocessError):
        return ""
