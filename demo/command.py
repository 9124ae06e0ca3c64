"""Run the command as a user would (`./tidemark`) and read its JSON answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo.stage import REPOSITORY


class StoryBroke(Exception):
    """A step of the demo failed. The message holds what the command printed."""


def tidemark(settings: Path, *words: str, allow: tuple[int, ...] = (0,), **environ: str) -> dict[str, Any]:
    """Run one verb with `--json`; returns its object. Raises StoryBroke for an exit code that is not in `allow`."""
    done = subprocess.run(
        _command(settings, words), cwd=REPOSITORY, env=_environment(environ), capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode not in allow or not lines:
        raise StoryBroke(
            f"tidemark {' '.join(words)} ended with {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        )
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def kill_in_the_middle(settings: Path, words: tuple[str, ...], underway: Callable[[], bool], **environ: str) -> bool:
    """Start a verb, wait until `underway`, kill -9 its whole process group. False if it ended before the kill."""
    return strike_in_the_middle(settings, words, underway, lambda pid: os.killpg(pid, signal.SIGKILL), **environ)


def strike_in_the_middle(
    settings: Path, words: tuple[str, ...], underway: Callable[[], bool], strike: Callable[[int], None], **environ: str
) -> bool:
    """Start a verb, wait until `underway`, strike and wait for its end. False if it ended before. `strike` gets its pid."""
    child = subprocess.Popen(
        _command(settings, words),
        cwd=REPOSITORY,
        env=_environment(environ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while child.poll() is None and not underway() and time.monotonic() < deadline:
        time.sleep(0.01)
    struck = child.poll() is None
    if struck:
        strike(child.pid)
    child.wait()
    return struck


def _command(settings: Path, words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "tidemark.cli", "--config", str(settings), *words, "--json"]


def _environment(extra: dict[str, str]) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY / "plugins")} | extra
