"""Airflow's home below a deployment: its folders, its secrets made once, and the environment of every part.

`TUNED` is the one list of settings that native runs and docker-compose.yaml share (a test compares them). The figures behind
it: research "airflow" §1.1, §1.3 and §1.4. Nothing here imports Airflow, which would slow `./tidemark up`.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.installation import CODE, IS_INSTALLED, ROOT
from tidemark.settings.model import Settings

ADMIN = "admin"

TUNED: Mapping[str, str] = {
    "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{ADMIN}:admin",
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
    "AIRFLOW__CORE__MAX_CONSECUTIVE_FAILED_DAG_RUNS_PER_DAG": "0",  # a link that was down for a day recovers by itself
    # The default 5 s keeps an executor slot that long after a task's last socket closed; 1 is the smallest that makes sense.
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    # The API server builds the tasks' interface at its first request: on a busy machine a task waits for that.
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
    # This sleep is most of the latency of seven short tasks: 1 s by default.
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.1",
    # A task whose supervisor died is retried after this many seconds; 300 by default.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__CATCHUP_BY_DEFAULT": "False",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
    "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "AIRFLOW__API__EXPOSE_CONFIG": "False",
}


@dataclass(frozen=True)
class AirflowHome:
    """The files of one embedded Airflow: `<settings.root>/var/airflow`."""

    folder: Path

    @property
    def pid_file(self) -> Path:
        return self.folder / "up.json"

    @property
    def passwords(self) -> Path:
        return self.folder / "passwords.json"

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets.json"

    @property
    def migration_mark(self) -> Path:
        """Which Airflow migrated which database."""
        return self.folder / "migrated.json"

    def part_log(self, part: str) -> Path:
        """Return the log of a part of Airflow; the logs of tasks are in `logs/`, as Airflow lays them out."""
        return self.folder / "parts" / f"{part}.log"


def home_of(settings: Settings) -> AirflowHome:
    """Return the Airflow home of these settings."""
    return AirflowHome(settings.root / "var" / "airflow")


def prepare_home(home: AirflowHome) -> bool:
    """Make missing folders, secrets and the admin's password. True if the password is new."""
    for folder in (home.folder, home.folder / "logs", home.folder / "parts"):
        folder.mkdir(parents=True, exist_ok=True)
    home.folder.chmod(0o700)
    if not home.secrets.exists():
        names = ("AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY")
        made = {name: secrets.token_urlsafe(48) for name in names}
        made["AIRFLOW__CORE__FERNET_KEY"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
        _write_private(home.secrets, made)
    if home.passwords.exists():
        return False
    _write_private(home.passwords, {ADMIN: secrets.token_urlsafe(12)})
    return True


@dataclass(frozen=True)
class Ports:
    """The ports of an embedded Airflow on 127.0.0.1: its pages and REST interface, and the server that tasks report to."""

    pages: int
    tasks: int


def make_environment(settings: Settings, ports: Ports, inherited: Mapping[str, str]) -> dict[str, str]:
    """Make the environment of every part and task. AIRFLOW__… in `inherited` overrides the tuning and SQLite (so PostgreSQL
    is set by AIRFLOW__DATABASE__SQL_ALCHEMY_CONN), but never the values that connect the parts."""
    home = home_of(settings)
    tuned = {
        **TUNED,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home.folder}/airflow.db",
        "AIRFLOW__CORE__PARALLELISM": str(max(4, os.cpu_count() or 1)),
        **json.loads(home.secrets.read_text()),
    }
    fixed = {
        "AIRFLOW_HOME": str(home.folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(home.folder / "plugins" if IS_INSTALLED else CODE),  # a wheel names its plugin
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home.passwords),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{ports.tasks}/execution/",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(ports.pages),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{ports.pages}",
        **own_environment(settings, inherited),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), inherited.get("PATH", os.defpath))),
    }
    merged = {**tuned, **inherited, **fixed}
    database = merged["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    if database.startswith("postgresql+psycopg:"):  # one driver serves both; Airflow would use asyncpg
        merged.setdefault("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC", database)
    merged.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode every part imports for 4.5 s instead of 2.2 s
    return merged


def own_environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which any process of ours finds its code and these settings."""
    folders = (str(CODE), inherited.get("PYTHONPATH", ""))
    return {"TIDEMARK_CONFIG": str(settings.path.resolve()), "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def _write_private(path: Path, content: Mapping[str, str]) -> None:
    # CRASH WINDOW: dying before the rename leaves a .new file that the next start replaces; a half file is never read.
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
