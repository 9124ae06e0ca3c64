"""up, down: the embedded Airflow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tidemark.cli.call import Call
from tidemark.cli.screen import Screen
from tidemark.cli.verb import Answer, Verb

if TYPE_CHECKING:
    from tidemark.orchestration.deployment import Deployment


def _up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=int, default=8080, metavar="N", help="of Airflow's pages on 127.0.0.1 (default 8080; 0: a free one)"
    )
    parser.add_argument("--detach", action="store_true", help="return when Airflow answers; ./tidemark down stops it")


def _up(call: Call) -> Answer:
    from tidemark.orchestration import deployment as orchestration_deployment

    settings, asked = call.settings, call.arguments
    if found := orchestration_deployment.running_at(settings, asked.port):
        call.screen.tell("it runs already")
        return Answer(_json(found), lambda screen: _show(screen, found))
    if asked.detach:
        call.screen.tell("starting Airflow …")
        started = orchestration_deployment.start(settings, asked.port)
        return Answer(_json(started), lambda screen: _show(screen, started))

    def ready(running: Deployment) -> None:
        if call.screen.as_json:
            call.screen.result({"ok": True, **_json(running)})
        else:
            _show(call.screen, running)
            call.screen.tell("Ctrl-C stops it")

    call.screen.tell("starting Airflow …")
    orchestration_deployment.up(settings, asked.port, ready)
    call.screen.tell("stopped")
    return Answer({}, lambda _screen: None, said=True)


def _down(call: Call) -> Answer:
    from tidemark.orchestration import deployment as orchestration_deployment

    stopped = orchestration_deployment.down(call.settings)
    if stopped is None:
        return Answer({"ui": "", "pid": 0}, lambda screen: screen.line("no Airflow of these settings is running"))
    return Answer(_json(stopped), lambda screen: screen.line(f"stopped {stopped.ui} (pid {stopped.pid})"))


def _json(running: Deployment) -> dict[str, Any]:
    return {"ui": running.ui, "pid": running.pid, "user": running.user, "password_file": running.password_file}


def _show(screen: Screen, running: Deployment) -> None:
    screen.line(running.ui)
    screen.tell(f"log in as {running.user}; the password stands in {running.password_file}")


VERBS = (
    Verb("up", "start Airflow with a DAG per link; stays until Ctrl-C", "./tidemark up --port 8080", _up, _up_arguments),
    Verb("down", "stop the Airflow of these settings", "./tidemark down", _down),
)
