"""An Airflow as its users run it: the package of its project in an environment of its own, its own parts, its own settings.

`./tidemark up` has no part in it. Tidemark is a wheel in that environment, with one bundle line (docs/own-airflow.md).
Its database is PostgreSQL: on SQLite a busy Airflow answers 500 where its parts write for over five seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.services.installed_wheel import Installed
from tests.services.processes import die_with_parent, free_port
from tests.services.running_airflow import START_SECONDS, RunningAirflow, wait

PACKAGE = "apache-airflow[postgres]==3.3.2"
PARTS = {"api-server": (), "scheduler": ("--skip-serve-logs",), "dag-processor": (), "triggerer": ("--skip-serve-logs",)}


class StandardAirflow(RunningAirflow):
    """The four parts, each a session of its own, and `more` (command: its words). `home`: AIRFLOW_HOME, where dags/ and
    plugins/ are the user's. `database`: an empty one on PostgreSQL, as SQLAlchemy addresses it."""

    def __init__(
        self,
        installed: Installed,
        home: Path,
        config: Path,
        database: str,
        more: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        **environ: str,
    ) -> None:
        self.installed, self.home, self.config = installed, home, config
        port = free_port()
        self.ui = f"http://127.0.0.1:{port}"
        self.user, self.password, self._token = "admin", "admin", ""
        (home / "passwords.json").write_text(json.dumps({self.user: self.password}))
        self.environment = installed.environment | {
            "AIRFLOW_HOME": str(home),
            "TIDEMARK_CONFIG": str(config),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.replace("+psycopg:", "+psycopg2:"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.ui,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.ui}/execution/",
            "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of this test, of sixty-four characters and some more ....",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # the machine is busy
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([_bundle("dags-folder"), self._our_bundle()]),
            **environ,
        }
        self.run("db", "migrate")
        self.parts = {name: self._start(name, words) for name, words in {**PARTS, **more}.items()}
        try:
            wait(self._is_up, "Airflow", START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def _our_bundle(self) -> Mapping[str, Any]:
        code, dags, trouble = self.installed.run("version", "--dags")
        assert code == 0, trouble
        return _bundle("tidemark", path=dags.strip())

    def _start(self, name: str, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(self.installed.folder / "bin" / "airflow"), name, *words],
                env=self.environment,
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )

    def _is_up(self) -> bool:
        assert all(part.poll() is None for part in self.parts.values()), self.home
        try:
            health = self.call("GET", "/api/v2/monitor/health", token="")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return all(
            (health[part] or {}).get("status") == "healthy" for part in ("metadatabase", "scheduler", "dag_processor")
        )

    def run(self, *words: str) -> str:
        """A command of Airflow's, which must end well; what it prints."""
        command = [str(self.installed.folder / "bin" / "airflow"), *words]
        done = subprocess.run(command, env=self.environment, cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def tidemark(self, *words: str, expect: tuple[int, ...] = (0,)) -> dict[str, Any]:
        command = [str(self.installed.folder / "bin" / "tidemark"), *words, "--json"]
        done = subprocess.run(command, env=self.environment, cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode in expect, done.stderr + done.stdout
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        for part in self.parts.values():
            if part.poll() is None:
                part.send_signal(number)
        for part in self.parts.values():
            try:
                part.wait(timeout=20)
            except subprocess.TimeoutExpired:
                part.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(part.pid, signal.SIGKILL)  # its workers and their tasks
            part.wait()
        return 0


def _bundle(name: str, **arguments: str) -> Mapping[str, Any]:
    return {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": arguments}
