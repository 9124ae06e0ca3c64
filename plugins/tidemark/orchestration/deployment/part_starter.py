"""The process behind a running Airflow: imports it once, forks its parts, ends them when its owner closes the pipe.

Each of Airflow's commands imports for two seconds of CPU before it does anything; five of them on two cores is most of the
time of `./tidemark up`. Here they are forks of one process that has imported already, and share its memory.

    stdin      the order, one line of JSON: {"migrate": bool, "parts": {name: [words]}, "logs": {name: path}}; its end,
               which also comes when the owner is killed with -9, means: end all parts
    stdout     the answer, one line: {"parts": {name: pid}}, or {"failed": "migrate"}

Each part leads a session, so that all its forks can be found (orchestration.deployment.sessions).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tidemark.orchestration.deployment import sessions

MIGRATE = ("db", "migrate")


def main() -> int:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of importing Airflow is no answer
    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return 0
    # FastAPI makes millions of objects that stay: with Python's default threshold the collector uses a third of a start.
    gc.set_threshold(50_000, 50, 100)
    import airflow.__main__
    import airflow.cli.cli_parser
    import airflow.providers_manager  # noqa: F401

    children: dict[str, int] = {}
    if order["migrate"]:
        child = os.fork()
        if child == 0:
            return _run_airflow(MIGRATE, order["logs"]["migrate"])
        if os.waitpid(child, 0)[1] != 0:
            print(json.dumps({"failed": "migrate"}), file=answers, flush=True)
            return 1
    gc.freeze()  # these objects stay: no fork's collector touches them, so their pages stay shared
    for part, words in order["parts"].items():
        # CRASH WINDOW: killed in this loop, the parts forked so far go on; they hold their port and the next `up` says so.
        child = os.fork()
        if child == 0:
            answers.close()
            return _run_airflow(words, order["logs"][part])
        children[part] = child
    with contextlib.suppress(BrokenPipeError):  # the owner died meanwhile: the end of stdin comes next
        print(json.dumps({"parts": children}), file=answers, flush=True)
    _ignore_signals()
    while sys.stdin.readline():
        pass
    sessions.end_parts(children, reap=_reap_children)
    return 0


def _run_airflow(words: Sequence[str], log: str) -> int:
    """Run `airflow WORDS…` in the forked child, as the command itself would; return its exit code."""
    from setproctitle import setproctitle

    os.setsid()
    with Path(os.devnull).open("rb") as nothing, Path(log).open("ab") as out:
        os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv = ["airflow", *words]
    setproctitle(" ".join(sys.argv))
    from airflow.__main__ import main as airflow_main

    airflow_main()
    return 0


def _ignore_signals() -> None:
    """Ignore signals: the parts have their own handlers by now, and Ctrl-C of the terminal is for the owner."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main())
