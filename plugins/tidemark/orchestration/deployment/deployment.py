"""Start and stop a whole Airflow next to the settings: `up` in the foreground, `start` detached, `down`.

`airflow standalone` cannot be stopped by SIGTERM and leaves children behind (research "airflow", finding 6). So the parts
are started here: API servers, scheduler, DAG processor, triggerer. They end with this process however it ends: they are
forks of one process that ends them when this one closes its pipe or is killed (`part_starter`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from urllib.parse import urlsplit

from tidemark.errors import UsageError
from tidemark.ledger.processes import Identity, is_alive, this_process
from tidemark.orchestration.deployment import sessions
from tidemark.orchestration.deployment.home import (
    ADMIN,
    AirflowHome,
    Ports,
    home_of,
    make_environment,
    own_environment,
    prepare_home,
)
from tidemark.orchestration.deployment.parts import (
    START_SECONDS,
    STOP_SECONDS,
    check_alive,
    no_answer_error,
    part_died_error,
    running_parts,
    wait_healthy,
)
from tidemark.settings.model import Settings


@dataclass(frozen=True)
class Deployment:
    """A running Airflow: its address, the process that owns it, the file with its admin's password."""

    ui: str
    pid: int
    user: str
    password_file: str
    first_start: bool = False


@dataclass(frozen=True)
class _Mark:
    """The pid file: the process that owns this Airflow, its address, and whether it answers yet."""

    owner: Identity
    ui: str
    ready: bool


def up(
    settings: Settings,
    port: int = 8080,
    on_ready: Callable[[Deployment], None] = lambda _deployment: None,
    triggerer: bool = True,
) -> None:
    """Run Airflow until SIGTERM, SIGINT or SIGHUP; return when all of its processes have ended.

    `port` 0 uses a free one. Raises UsageError if the port is in use or this deployment runs already, PermanentError if a
    part ends by itself or Airflow does not answer within START_SECONDS.
    """
    home = home_of(settings)
    _refuse_second(home)
    port = _free_port(port)
    first = prepare_home(home)
    values = make_environment(settings, Ports(port, _free_port(0)), os.environ)
    mark = _Mark(this_process(), f"http://127.0.0.1:{port}", ready=False)
    _write_mark(home, mark)
    try:
        with _stop_signals() as stopped:
            with running_parts(home, values, triggerer, stopped) as parts:
                if wait_healthy(values, parts, home, stopped):
                    _write_mark(home, replace(mark, ready=True))
                    on_ready(_deployment_of(home, mark, first))
                while not stopped():
                    check_alive(parts, home)
                    time.sleep(0.1)
    finally:
        home.pid_file.unlink(missing_ok=True)


def start(settings: Settings, port: int = 8080, triggerer: bool = True) -> Deployment:
    """Start Airflow detached from this process and return when it answers; a running one is returned at once.

    Raises the errors of `up`, UsageError if it runs already on another port.
    """
    if found := running_at(settings, port):
        return found
    home = home_of(settings)
    port = _free_port(port)
    first = prepare_home(home)
    command = [sys.executable, "-m", "tidemark.orchestration.deployment.deployment", str(port)]
    command += [] if triggerer else ["--no-triggerer"]
    child = {**os.environ, **own_environment(settings, os.environ)}
    with home.part_log("up").open("ab") as log:
        owner = subprocess.Popen(  # `down` ends it
            command, env=child, cwd=settings.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        mark = _read_mark(home)
        if mark and mark.owner.pid == owner.pid and mark.ready:
            return _deployment_of(home, mark, first)
        if owner.poll() is not None:
            raise part_died_error("up", home)
        time.sleep(0.1)
    sessions.end_sessions({owner.pid}, reap=owner.poll)
    raise no_answer_error(home)


def running_at(settings: Settings, port: int) -> Deployment | None:
    """Return the running deployment once it answers, if `port` (0: any) is its port. UsageError if it has another one."""
    home = home_of(settings)
    deadline = time.monotonic() + START_SECONDS
    while mark := _read_mark(home):
        if port not in (0, urlsplit(mark.ui).port):
            _refuse_second(home)
        if mark.ready:
            return _deployment_of(home, mark)
        if time.monotonic() > deadline:
            raise no_answer_error(home)
        time.sleep(0.1)
    return None


def down(settings: Settings) -> Deployment | None:
    """Stop the running Airflow of these settings and wait until it has ended; None if none runs. Raises UsageError if it
    runs on another machine that shares this folder."""
    home = home_of(settings)
    mark = _read_mark(home)
    if mark is None:
        return None
    if mark.owner.host != this_process().host:
        raise UsageError(f"this Airflow runs on {mark.owner.host}", hint="./tidemark down, there", subject=mark.owner.host)
    os.kill(mark.owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS + 5
    while is_alive(mark.owner) and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):  # `start` in this process made it our child: reap it
            os.waitpid(mark.owner.pid, os.WNOHANG)
        time.sleep(0.05)
    if is_alive(mark.owner):
        os.kill(mark.owner.pid, signal.SIGKILL)  # the starter ends the parts
    return _deployment_of(home, mark)


def _refuse_second(home: AirflowHome) -> None:
    mark = _read_mark(home)
    if mark:
        raise UsageError(
            f"Airflow of these settings runs already: {mark.ui} (pid {mark.owner.pid} on {mark.owner.host})",
            hint="./tidemark down",
        )


def _deployment_of(home: AirflowHome, mark: _Mark, first: bool = False) -> Deployment:
    return Deployment(mark.ui, mark.owner.pid, ADMIN, str(home.passwords), first)


def _free_port(port: int) -> int:
    """Return `port` if it is free on loopback (0: a free one). Raises UsageError naming it otherwise."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as taken:
            raise UsageError(
                f"port {port} cannot be used: {taken.strerror}", hint=f"./tidemark up --port {port + 1}", subject=str(port)
            ) from taken
        return int(probe.getsockname()[1])


def _write_mark(home: AirflowHome, mark: _Mark) -> None:
    fresh = home.pid_file.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(mark)))
    fresh.replace(home.pid_file)


def _read_mark(home: AirflowHome) -> _Mark | None:
    """Read the pid file; None if its process does not run."""
    try:
        raw = json.loads(home.pid_file.read_text())
        mark = _Mark(Identity(**raw["owner"]), str(raw["ui"]), bool(raw["ready"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return mark if is_alive(mark.owner) else None


@contextlib.contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Let SIGTERM, SIGINT and SIGHUP only set the flag that `stopped()` returns. nohup's ignored SIGHUP stays ignored."""
    caught: list[int] = []
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _frame: caught.append(n)) for number in numbers}
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _main() -> None:
    from tidemark.settings.load import find_settings

    settings = Settings(
        path=find_settings(None, os.environ)[0]
    )  # Airflow needs their place only; DAGs show what is wrong in them
    up(settings, port=int(sys.argv[1]), triggerer="--no-triggerer" not in sys.argv)


if __name__ == "__main__":
    _main()
