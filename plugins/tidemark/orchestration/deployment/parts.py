"""The parts of a running Airflow, as their owner handles them: start them, check that they answer, end them.

The API server is two parts: one for people and scripts, one for tasks. In one process a click and a task's report can block
each other: the click's log entry waits, on the event loop, for SQLite's write lock, and the report that has the lock waits
for the event loop to commit. Both wait until SQLite gives up after 5 s, and the click gets a 500.

The servers, scheduler, DAG processor and triggerer are forks of one process (`part_starter`), which ends them when its owner
closes the pipe or is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import select
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from tidemark.errors import PermanentError
from tidemark.orchestration.deployment import sessions
from tidemark.orchestration.deployment.home import AirflowHome

EXECUTION_API = "AIRFLOW__CORE__EXECUTION_API_SERVER_URL"
START_SECONDS = 180.0
STOP_SECONDS = 30.0
HEALTHY = ("metadatabase", "scheduler", "dag_processor")


@dataclass(frozen=True)
class Parts:
    """The starter and the parts' process ids by name; no parts if the start was interrupted."""

    starter: subprocess.Popen[bytes]
    leaders: Mapping[str, int]


@contextlib.contextmanager
def running_parts(
    home: AirflowHome, values: Mapping[str, str], triggerer: bool, stopped: Callable[[], bool]
) -> Iterator[Parts]:
    """Run the parts in the block; all their processes end when it is left. PermanentError if they do not start."""
    starter = _launch_starter(home, values)
    leaders: Mapping[str, int] = {}
    try:
        order = {"migrate": _must_migrate(home, values), "parts": _list_commands(values, triggerer)}
        answer = _order_start(starter, home, order, stopped)
        if "failed" in answer:
            log = home.part_log("migrate")
            raise PermanentError(
                f"Airflow's database could not be prepared: see {log}", hint=f"tail {log}", subject=str(log)
            )
        if answer:
            _mark_migrated(home, values)
        leaders = answer.get("parts", {})
        yield Parts(starter, leaders)
    finally:
        assert starter.stdin is not None
        starter.stdin.close()  # this ends the parts, then the starter
        try:
            starter.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            starter.kill()
            starter.wait()
        sessions.kill_sessions({starter.pid, *leaders.values()})


def _list_commands(values: Mapping[str, str], triggerer: bool) -> dict[str, tuple[str, ...]]:
    """Return each part's command, after the word `airflow`."""
    tasks = urllib.parse.urlsplit(values[EXECUTION_API]).port
    words: dict[str, tuple[str, ...]] = {
        "api-server": ("api-server", "--apps", "core"),
        "execution-api": ("api-server", "--apps", "execution", "--port", str(tasks)),
        # Without --skip-serve-logs scheduler and triggerer each open a log server on 0.0.0.0.
        "scheduler": ("scheduler", "--skip-serve-logs"),
        "dag-processor": ("dag-processor",),
    }
    if triggerer:
        words["triggerer"] = ("triggerer", "--skip-serve-logs")
    return words


def _launch_starter(home: AirflowHome, values: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with home.part_log("starter").open("ab") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "tidemark.orchestration.deployment.part_starter",
            ],  # -P: no module of the working folder
            env=dict(values),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _order_start(
    starter: subprocess.Popen[bytes], home: AirflowHome, order: Mapping[str, Any], stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Send the starter its order; return its answer, or {} if `stopped` came first."""
    assert starter.stdin is not None
    assert starter.stdout is not None
    logs = {part: str(home.part_log(part)) for part in ("migrate", *order["parts"])}
    starter.stdin.write(json.dumps({**order, "logs": logs}).encode() + b"\n")
    starter.stdin.flush()
    while not stopped():
        if select.select([starter.stdout], [], [], 0.1)[0]:
            line = starter.stdout.readline()
            if not line:
                raise part_died_error("starter", home)
            return dict(json.loads(line))
    return {}


def _must_migrate(home: AirflowHome, values: Mapping[str, str]) -> bool:
    """Return whether Airflow's database must be migrated before the parts: once for each version and address."""
    address = values["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    if address.startswith("sqlite") and not (home.folder / "airflow.db").exists():
        return True
    return not home.migration_mark.exists() or home.migration_mark.read_text() != _encode_migration(values)


def _mark_migrated(home: AirflowHome, values: Mapping[str, str]) -> None:
    home.migration_mark.write_text(_encode_migration(values))


def _encode_migration(values: Mapping[str, str]) -> str:
    digest = hashlib.sha256(values["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].encode()).hexdigest()  # it may contain a password
    return json.dumps({"airflow": version("apache-airflow-core"), "database": digest})


def wait_healthy(values: Mapping[str, str], parts: Parts, home: AirflowHome, stopped: Callable[[], bool]) -> bool:
    """Return True when Airflow answers people and tasks, and its scheduler and DAG processor report healthy; False if
    `stopped` came first. `values` is the parts' environment."""
    deadline = time.monotonic() + START_SECONDS
    tasks_served = False
    while not stopped():
        check_alive(parts, home)
        # It builds the tasks' interface at its first request, for seconds; the first sync should not wait for it.
        tasks_served = tasks_served or bool(_ask_json(f"{values[EXECUTION_API]}health"))
        health = _ask_json(f"{values['AIRFLOW__API__BASE_URL']}/api/v2/monitor/health")
        if tasks_served and all((health.get(part) or {}).get("status") == "healthy" for part in HEALTHY):
            return True
        if time.monotonic() > deadline:
            raise no_answer_error(home)
        time.sleep(0.2)
    return False


def _ask_json(address: str) -> dict[str, Any]:
    """Return the answer of a part of Airflow; {} as long as there is none."""
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            return dict(json.load(reply))
    except (urllib.error.URLError, OSError, ValueError):
        return {}


def check_alive(parts: Parts, home: AirflowHome) -> None:
    """Raise PermanentError naming a part that ended by itself."""
    if parts.starter.poll() is not None:
        raise part_died_error("starter", home)
    for part, leader in parts.leaders.items():
        if not sessions.is_live(leader):
            raise part_died_error(part, home)


def part_died_error(part: str, home: AirflowHome) -> PermanentError:
    """Make the error of a part that ended by itself, with its last lines."""
    log = home.part_log(part)
    last = log.read_text(errors="replace").strip().splitlines()[-8:] if log.exists() else []
    return PermanentError(
        f"{part} of Airflow ended by itself; its last lines:\n  " + "\n  ".join(last), hint=f"less {log}", subject=str(log)
    )


def no_answer_error(home: AirflowHome) -> PermanentError:
    """Make the error of an Airflow that does not answer in time."""
    where = home.folder / "parts"
    told = f"Airflow does not answer after {START_SECONDS:.0f} s"
    return PermanentError(told, hint=f"tail {where}/*.log", subject=str(where))
