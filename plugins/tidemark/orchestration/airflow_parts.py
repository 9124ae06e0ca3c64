"""The parts of a running Airflow: start them, ask whether they answer, end every process of them.

API server, scheduler, DAG processor and triggerer each lead a session; a watcher ends them when their owner is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from tidemark.errors import PermanentError
from tidemark.orchestration import sessions
from tidemark.orchestration.airflow_home import AirflowHome

Parts = Mapping[str, subprocess.Popen[bytes]]

PARTS: Mapping[str, tuple[str, ...]] = {
    # Without --skip-serve-logs scheduler and triggerer each open a log server on 0.0.0.0.
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}
START_SECONDS = 180.0
HEALTHY = ("metadatabase", "scheduler", "dag_processor")


@contextlib.contextmanager
def running_parts(home: AirflowHome, values: Mapping[str, str], triggerer: bool) -> Iterator[Parts]:
    """The parts, each leading its session, with a watcher; every process of them is gone when the block is left."""
    parts: dict[str, subprocess.Popen[bytes]] = {}
    watcher = subprocess.Popen([sys.executable, sessions.__file__], stdin=subprocess.PIPE, start_new_session=True, text=True)
    assert watcher.stdin is not None
    try:
        for part, options in PARTS.items():
            if part != "triggerer" or triggerer:
                # CRASH WINDOW: killed between these two lines one part stays; it holds its port and the next `up` says so.
                parts[part] = _launch([part, *options], home.part_log(part), values)
                watcher.stdin.write(f"{parts[part].pid}\n")
                watcher.stdin.flush()
        yield parts
    finally:
        sessions.end_sessions({p.pid for p in parts.values()}, reap=lambda: [p.poll() for p in parts.values()])
        for process in parts.values():
            process.wait()
        watcher.stdin.close()
        watcher.wait()


def _launch(words: list[str], log: Path, values: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", *words],
            env=dict(values),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def migrate(home: AirflowHome, values: Mapping[str, str]) -> None:
    """Bring Airflow's own database up once per Airflow version and address: it costs 3 s and must precede the parts."""
    marker = home.folder / "migrated.json"
    address = values["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    digest = hashlib.sha256(address.encode()).hexdigest()  # the address may carry a password
    wanted = json.dumps({"airflow": version("apache-airflow-core"), "database": digest})
    fresh_sqlite = address.startswith("sqlite") and not (home.folder / "airflow.db").exists()
    if not fresh_sqlite and marker.exists() and marker.read_text() == wanted:
        return
    log = home.part_log("migrate")
    process = _launch(["db", "migrate"], log, values)
    if process.wait() != 0:
        raise PermanentError(f"Airflow's database could not be prepared: see {log}", hint=f"tail {log}", subject=str(log))
    marker.write_text(wanted)


def wait_healthy(ui: str, parts: Parts, home: AirflowHome, stopped: Callable[[], bool]) -> bool:
    """True when Airflow answers and its scheduler and DAG processor report healthy, False when `stopped` came first."""
    deadline = time.monotonic() + START_SECONDS
    while not stopped():
        check_alive(parts, home)
        if _healthy(ui):
            _wake_execution_api(ui)
            return True
        if time.monotonic() > deadline:
            raise silent(home)
        time.sleep(0.2)
    return False


def _healthy(ui: str) -> bool:
    try:
        with urllib.request.urlopen(f"{ui}/api/v2/monitor/health", timeout=2) as reply:
            health = json.load(reply)
    except (urllib.error.URLError, OSError, ValueError):
        return False
    return all((health.get(part) or {}).get("status") == "healthy" for part in HEALTHY)


def _wake_execution_api(ui: str) -> None:
    """The API server builds what tasks talk to at its first request, for 3 s; the first sync should not wait for it."""
    with contextlib.suppress(urllib.error.URLError, OSError):
        urllib.request.urlopen(f"{ui}/execution/health", timeout=30).close()


def check_alive(parts: Parts, home: AirflowHome) -> None:
    for part, process in parts.items():
        if process.poll() is not None:
            raise died(part, home)


def died(part: str, home: AirflowHome) -> PermanentError:
    log = home.part_log(part)
    last = log.read_text(errors="replace").strip().splitlines()[-8:] if log.exists() else []
    return PermanentError(
        f"{part} of Airflow ended by itself; its last lines:\n  " + "\n  ".join(last), hint=f"less {log}", subject=str(log)
    )


def silent(home: AirflowHome) -> PermanentError:
    where = home.folder / "parts"
    told = f"Airflow does not answer after {START_SECONDS:.0f} s"
    return PermanentError(told, hint=f"tail {where}/*.log", subject=str(where))
