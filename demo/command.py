"""Run verbs of the command in processes of their own and read their JSON answers.

Each verb is a fork of this process, which has imported the command once: a start costs no second of imports. The fork runs
what `./tidemark` runs, with the same words, in a session of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from demo.stage import REPOSITORY

IMPORTED = (  # what most verbs need; `pandas`: pyarrow imports it where it is installed
    "tidemark.cli.__main__",
    "tidemark.cli.main",
    "tidemark.app",
    "tidemark.sync.run",
    "tidemark.stores.open_sftp",
    "tidemark.receiver.load.load",
    "tidemark.receiver.merge.merge",
    "tidemark.receiver.read",
    "tidemark.proof.verify.verify",
    "tidemark.operations.rebuild",
    "tidemark.transfer.stream.session",
    "tidemark.changes.sources.source",
    "tidemark.changes.consume",
    "pymysql",
    "sqlalchemy.dialects.sqlite",
    "encodings.idna",
    "pandas",
)
LONGEST_WAIT = 30.0  # for the middle of a verb


class StoryBroke(Exception):
    """A step of the demo failed. The message holds what the command printed."""


def import_command() -> None:
    """Import the command before the first fork."""
    for name in IMPORTED:
        importlib.import_module(name)


class Verb:
    """A running verb with `--json`. It has a process group of its own."""

    def __init__(self, settings: Path, words: tuple[str, ...], environ: dict[str, str]) -> None:
        self.words = words
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 closed with this object
        self.code: int | None = None
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _become_command(settings, words, environ, (self.out, self.err))

    def is_over(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, allow: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """The object that it printed. Raises StoryBroke for an exit code that is not in `allow`."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        out, err = (_read(file) for file in (self.out, self.err))
        if self.code not in allow or not out.strip():
            raise StoryBroke(f"tidemark {' '.join(self.words)} ended with {self.code}\n{out[-1500:]}\n{err[-1500:]}")
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return answer


def tidemark(settings: Path, *words: str, allow: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Run one verb; returns its object. Raises StoryBroke for an exit code that is not in `allow`."""
    return Verb(settings, words, {}).wait(allow)


def run_beside(settings: Path, *lines: tuple[str, ...], allow: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """Run verbs at the same time; returns their objects in the order of the lines."""
    return [verb.wait(allow) for verb in [Verb(settings, words, {}) for words in lines]]


def kill_in_the_middle(settings: Path, words: tuple[str, ...], underway: Callable[[], bool], **environ: str) -> bool:
    """Start a verb, wait until `underway`, kill -9 its whole process group. False if it ended before the kill."""
    return strike_in_the_middle(settings, words, underway, lambda pid: os.killpg(pid, signal.SIGKILL), **environ)


def strike_in_the_middle(
    settings: Path, words: tuple[str, ...], underway: Callable[[], bool], strike: Callable[[int], None], **environ: str
) -> bool:
    """Start a verb, wait until `underway`, strike and wait for its end. False if it ended before. `strike` gets its pid."""
    verb = Verb(settings, words, environ)
    deadline = time.monotonic() + LONGEST_WAIT
    while not verb.is_over() and not underway() and time.monotonic() < deadline:
        time.sleep(0.01)
    struck = not verb.is_over()
    if struck:
        strike(verb.pid)
        os.waitpid(verb.pid, 0)
    return struck


def _become_command(settings: Path, words: tuple[str, ...], environ: dict[str, str], files: tuple[IO[bytes], ...]) -> None:
    """In the fork: run the command line, and end."""
    code = 1
    try:
        os.setsid()
        for number, file in enumerate(files, start=1):
            os.dup2(file.fileno(), number)
        os.chdir(REPOSITORY)
        os.environ.update(environ)
        sys.argv = ["./tidemark", "--config", str(settings), *words, "--json"]
        from tidemark.cli.__main__ import run

        code = run()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    with file:
        return file.read().decode(errors="replace")
