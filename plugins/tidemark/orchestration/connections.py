"""Ask Airflow for a Connection: in a task by the task's own way, elsewhere in a child process.

A task asks Airflow's supervisor, which knows the secrets backends. The command line has no supervisor. It asks a child
process, in which Airflow finds connections as its servers do: backends, environment, database. Airflow sets up logging and
database engines where it is imported, so it stays out of the command's process. The child lives as long as the command
and answers line by line, through pipes alone.

A backend that hangs cannot be interrupted, so each question has a limit of time.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidemark import connections
from tidemark.errors import PermanentError, PermissionDeniedError, RetryableError, UsageError
from tidemark.orchestration.deployment.home import Ports, home_of, make_environment
from tidemark.settings.load import load_settings

PATIENCE_SECONDS = 60.0  # for Airflow's import, and its secrets backend
_CHILD = "from tidemark.orchestration.connections import answer_questions; answer_questions()"
_lock = threading.Lock()
_child: subprocess.Popen[str] | None = None


def ask_airflow(connection_id: str) -> Mapping[str, Any] | None:
    """Return conn_type, login, password, port and extra of a connection; None if Airflow finds none.

    Raises RetryableError if there is no answer in time, PermissionDeniedError if Airflow denies it, PermanentError
    if Airflow does not start.
    """
    answer = _ask_here(connection_id) if _is_in_task() else _ask_child(connection_id)
    if "denied" in answer:
        raise PermissionDeniedError(
            f"Airflow denies connection {connection_id!r}", hint="let its backend grant it", subject=connection_id
        )
    if "failed" in answer:
        raise RetryableError(
            f"Airflow could not be asked for connection {connection_id!r}: {answer['failed']}",
            hint=f"`airflow connections get {connection_id}` shows what is wrong; then ./tidemark doctor",
            subject=connection_id,
        )
    found: Mapping[str, Any] | None = answer["found"]
    return found


def _is_in_task() -> bool:
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return getattr(runner, "SUPERVISOR_COMMS", None) is not None


def _find(connection_id: str) -> dict[str, Any]:
    """Ask Airflow in this process. Its own texts are left out: a backend's may hold what is secret."""
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found = Connection.get(connection_id)
        keys = ("conn_type", "login", "password", "port", "extra")
        return {"found": {key: getattr(found, key) for key in keys}}
    except AirflowNotFoundException:
        return {"found": None}
    except Exception as trouble:
        name = type(trouble).__name__
        return {"denied": name} if "AccessDenied" in name else {"failed": name}


def _ask_here(connection_id: str) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(_find(connection_id)), daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    if not answers:
        raise _too_late(connection_id)
    return answers[0]


def _ask_child(connection_id: str) -> dict[str, Any]:
    global _child
    with _lock:
        child = _child = _child if _child is not None and _child.poll() is None else _start_child()
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(connection_id) + "\n")
            child.stdin.flush()
            ready, _, _ = select.select([child.stdout], [], [], PATIENCE_SECONDS)
            line = child.stdout.readline() if ready else ""
        except OSError:  # it died before it read
            ready, line = [child.stdout], ""
        if not line:
            child.kill()
            child.communicate()
    if not ready:
        raise _too_late(connection_id)
    if not line:
        raise PermanentError(
            f"Airflow does not start here, so it cannot be asked for connection {connection_id!r}",
            hint=f"`airflow connections get {connection_id}` shows why",
            subject=connection_id,
        )
    answer: dict[str, Any] = json.loads(line)
    return answer


def _start_child() -> subprocess.Popen[str]:
    environ = _airflow_environment()
    paths = [str(Path(__file__).parents[2]), *filter(None, [environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Airflow's log, which nobody asked for
        text=True,
        env={**environ, "PYTHONPATH": os.pathsep.join(paths), "_AIRFLOW_PROCESS_CONTEXT": "server"},
    )


def _airflow_environment() -> dict[str, str]:
    """Return this process's environment. If it names no Airflow, add that of the one that `./tidemark up` made beside the
    settings."""
    inherited = dict(os.environ)
    if "AIRFLOW_HOME" not in inherited:
        with suppress(UsageError):
            settings = load_settings(connections.config, os.environ)
            if home_of(settings).secrets.exists():
                return make_environment(settings, Ports(0, 0), inherited)
    return inherited


def answer_questions() -> None:
    """Answer each line of standard input, until it ends. What Airflow prints goes to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        os.write(answers, (json.dumps(_find(json.loads(line))) + "\n").encode())


def _too_late(connection_id: str) -> RetryableError:
    return RetryableError(
        f"Airflow did not say within {PATIENCE_SECONDS:.0f} s what connection {connection_id!r} is",
        hint=f"does its secrets backend answer? `airflow connections get {connection_id}`; then ./tidemark doctor",
        subject=connection_id,
    )
