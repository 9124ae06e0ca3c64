"""What a kept shell answers, with a real `sh` of this machine at the other end of a pipe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tidemark.errors import UnreachableError
from tidemark.stores.posix.shell import FarShell

LOGIN_SCRIPT = "echo welcome; echo; printf 'no newline at its end'\n"


class Pipe:
    """A shell of this machine where `ssh.Pipe` has one of the far end's. Its output comes a few bytes at a time."""

    host = "here"

    def __init__(self) -> None:
        self._process = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.write(LOGIN_SCRIPT.encode())

    def write(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def read_some(self, most: int) -> bytes:
        return os.read(self._out.fileno(), min(most, 7))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()


@pytest.fixture
def shell() -> Iterator[FarShell]:
    pipe: Any = Pipe()
    far = FarShell(pipe)
    yield far
    far.close()


def test_each_command_gives_its_own_output_and_no_other(shell: FarShell) -> None:
    assert shell.run_command("printf 'a\\nb'") == b"a\nb"
    assert shell.run_command(":") == b""
    assert shell.run_command("echo lost >&2; cat; no_such_tool") == b"", "no errors, and no input that it could take"
    assert shell.run_command("head -c 3000 /dev/zero") == bytes(3000)


def test_a_shell_that_ends_is_an_end_that_is_gone(shell: FarShell) -> None:
    with pytest.raises(UnreachableError):
        shell.run_command("exit")
