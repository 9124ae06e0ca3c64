"""Give the word to another program of the checkout: pytest, the demo, a benchmark."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tidemark.cli.call import ROOT, Call
from tidemark.cli.verb import Answer

STOP_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1


def hand_over(call: Call, module: str, words: Sequence[str]) -> Answer:
    """Become `python -m module words`; its exit code is ours. With `--json` it is a child, so that an object comes last
    on stdout even where the program died without one; the child ends when we do."""
    command = [sys.executable, "-m", module, *words]
    os.chdir(ROOT)
    if not call.screen.as_json:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(command[0], command, _environment())
    last, code = _run(call, command)
    return Answer(_object(last, module, code), lambda _screen: None, code)


def _run(call: Call, command: Sequence[str]) -> tuple[str, int]:
    """Run a child, its stdout passed on but for the last line; returns that line and the exit code."""
    libc = ctypes.CDLL(None, use_errno=True)
    child = subprocess.Popen(
        command,
        env=_environment(),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)),  # noqa: PLW1509 one call, no locks
    )
    assert child.stdout is not None
    last = ""
    try:
        for line in child.stdout:
            if last:
                call.screen.line(last)
            last = line.rstrip("\n")
        return last, child.wait()
    except BaseException:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
        raise


def _object(last: str, module: str, code: int) -> dict[str, Any]:
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    if not code:
        return {"said": last}
    return {"error": f"{module} ended with {code}", "hint": "its words are above", "said": last}


def _environment() -> dict[str, str]:
    paths = [str(ROOT / "plugins"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
