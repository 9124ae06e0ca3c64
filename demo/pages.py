"""Start Airflow as a user would (`./tidemark up`), trigger DAGs by its REST interface, and wait for them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from demo.command import StoryBroke
from demo.stage import REPOSITORY

START_SECONDS = 600  # on a machine that does much else; a quiet one takes 15 s
RUN_SECONDS = 600


class Pages:
    """A running Airflow of the demo's deployment; `address` is what a browser opens."""

    def __init__(self, settings: Path) -> None:
        self.settings = settings
        self.port = _free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.log = settings.parent / "up.log"
        self._token = ""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemark.cli", "--config", str(settings), "up", "--port", str(self.port)],
                cwd=REPOSITORY,
                env=os.environ | {"PYTHONPATH": str(REPOSITORY / "plugins")},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise StoryBroke(f"Airflow ended before it was up:\n{self.log.read_text()[-2000:]}")
            try:
                health = self._call("GET", "/api/v2/monitor/health", anonymous=True)
                if all(
                    (health.get(p) or {}).get("status") == "healthy" for p in ("metadatabase", "scheduler", "dag_processor")
                ):
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.3)
        raise StoryBroke(f"Airflow was not up after {START_SECONDS} s; see {self.log}")

    def wait_for_dags(self, *dags: str) -> None:
        """Wait until Airflow knows each DAG and none is paused. An asset event triggers no DAG that is read after it."""
        for dag in dags:
            self._wait_for_dag(dag)

    def trigger(self, dag: str) -> None:
        self._call("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None})

    def wait_for_a_run(self, dag: str) -> None:
        """Wait for the newest run of a DAG, which may be triggered later (by an asset), and for its end.

        Raises StoryBroke with the last lines of a failed task's log."""
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            runs = self._call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
            if runs:
                return self._wait_success(dag, runs[0]["dag_run_id"])
            time.sleep(0.3)
        raise StoryBroke(f"nothing triggered {dag} within {RUN_SECONDS} s")

    def begin_stop(self) -> None:
        """Tell Airflow to end. It takes some seconds."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.begin_stop()
            try:
                self.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def _wait_for_dag(self, dag: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                if not self._call("GET", f"/api/v2/dags/{dag}")["is_paused"]:
                    return
                self._call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})
            except urllib.error.HTTPError as missing:
                if missing.code != 404:
                    raise
            time.sleep(0.3)
        raise StoryBroke(f"Airflow does not know {dag}")

    def _wait_success(self, dag: str, run_id: str) -> None:
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            state = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{run_id}")["state"]
            if state == "success":
                return
            if state == "failed":
                raise StoryBroke(f"{dag} {run_id} failed\n{self._last_log_lines(dag)}")
            time.sleep(0.2)
        raise StoryBroke(f"{dag} {run_id} did not end within {RUN_SECONDS} s")

    def _last_log_lines(self, dag: str) -> str:
        """The end of the newest log file of a DAG's tasks."""
        logs = (self.settings.parent / "var" / "airflow" / "logs" / f"dag_id={dag}").rglob("*.log")
        newest = max(logs, key=lambda log: log.stat().st_mtime, default=None)
        return f"{newest}:\n{newest.read_text(errors='replace')[-2000:]}" if newest else "no task wrote a log"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, anonymous: bool = False) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if not anonymous:
            headers["Authorization"] = f"Bearer {self._login()}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.address + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return dict(json.load(answer))

    def _login(self) -> str:
        if not self._token:
            users = json.loads((self.settings.parent / "var" / "airflow" / "passwords.json").read_text())
            user, password = next(iter(users.items()))
            made = self._call("POST", "/auth/token", {"username": user, "password": password}, anonymous=True)
            self._token = str(made["access_token"])
        return self._token


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
