"""A pipe to the agent in a child process on this machine, with the methods of `stores.ssh.connection.Pipe` it needs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

_CHILD = "import sys; sys.path[:0] = sys.argv[1:2]; from tidemark.stores.agent.server import serve; serve(sys.argv[2])"
_PACKAGES = str(Path(__file__).resolve().parents[3])


class ChildPipe:
    """Bytes to and from `stores.agent.server` in a child process. It ends when its pipes close, or with this process."""

    host = "this machine"

    def __init__(self, root: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, _PACKAGES, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        )
        assert self._process.stdin is not None and self._process.stdout is not None  # both are pipes
        self._to, self._from = self._process.stdin, self._process.stdout

    @property
    def is_open(self) -> bool:
        return self._process.poll() is None

    def write(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # the child died: reading reports it
            self._to.write(data)
            self._to.flush()

    def read(self, size: int, *, patient: bool = False) -> bytes:
        return self._from.read(size)

    def read_line(self) -> bytes:
        return self._from.readline()

    def read_errors(self) -> str:
        return ""

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._from.close()
        with contextlib.suppress(BrokenPipeError):  # flushes bytes that the child never read
            self._to.close()
