"""The command in processes of their own, without a second of imports each: forks of one process that has imported it.

    process = start_command(["--config", config, "sync", "plant1", "--json"], environment)
    out, err = process.communicate(timeout=5)

A fork runs what `python -m tidemark.cli` runs, in a session of its own, and can be killed as any process. It ends with the
one that it is a fork of, and that ends with the test process. For tests of the start itself this is nothing.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from demo.command import import_command
from tests.services.processes import die_with_parent

ROOT = Path(__file__).parents[2]
_LONGEST_ORDER = 1 << 20  # bytes
_ONE_AT_A_TIME = threading.Lock()


class Forked:
    """A running command. What tests use of `subprocess.Popen`; its output lies in files, and is whole after its end."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], program: str) -> None:
        self.args = list(words)
        self._files = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 closed with this object
        self.returncode: int | None = None
        ours, its = os.pipe()
        order = json.dumps({"words": list(words), "environment": dict(environment), "program": program}).encode()
        with _ONE_AT_A_TIME:
            socket.send_fds(_start_starter(), [order], [*(file.fileno() for file in self._files), its])
        os.close(its)
        self._answers = os.fdopen(ours, "rb", buffering=0)
        self.pid = self._read_answer()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self._take_end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._take_end()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        self.wait(timeout)
        return _read(self._files[0]), _read(self._files[1])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _take_end(self) -> None:
        self.returncode = self._read_answer()
        self._answers.close()

    def _read_answer(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            byte = self._answers.read(1)
            if not byte:
                raise RuntimeError("the process that forks the command has ended")
            line += byte
        return int(line)


def start_command(words: Sequence[str], environment: Mapping[str, str], program: str = "") -> Forked:
    """Start the command with these words. `program`: a function `module:name` that is run instead; it returns the code."""
    return Forked(words, environment, program)


@functools.cache
def _start_starter() -> socket.socket:
    """Start the process that forks. It ends when this process has ended, because nobody else has the other end."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(its.fileno())],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "plugins"), str(ROOT)])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
        start_new_session=True,
    )
    its.close()
    return ours


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def main() -> None:
    """Fork for each order, tell the pid and, at its end, the code."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    import_command()
    gc.freeze()  # the forks share these objects
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}  # pid → where its end is told
    while True:
        ready, _, _ = select.select([orders.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
        if orders.fileno() in ready:
            order, descriptors, _, _ = socket.recv_fds(orders, _LONGEST_ORDER, 3)
            if not order:
                return
            child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (orders.detach(), woken, wakes, *running.values()):
                    os.close(descriptor)
                _become_command(json.loads(order), descriptors)
            running[child] = descriptors[2]
            for descriptor in descriptors[:2]:
                os.close(descriptor)


def _tell_ends(running: dict[int, int]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            answers = running.pop(pid)
            os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))
            os.close(answers)


def _become_command(order: dict[str, Any], descriptors: Sequence[int]) -> None:
    code = 1
    try:
        os.setsid()
        die_with_parent(signal.SIGKILL)()
        for number, descriptor in enumerate(descriptors[:2], start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.write(descriptors[2], b"%d\n" % os.getpid())
        os.close(descriptors[2])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = ["tidemark/cli/__main__.py", *order["words"]]
        module, name = (order["program"] or "tidemark.cli.__main__:run").split(":")
        code = getattr(__import__(module, fromlist=[name]), name)()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
