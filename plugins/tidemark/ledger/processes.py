"""The identity of a process, and whether it still runs. For leases.

A pid alone is not enough: it is reused, and not valid after a restart of the machine. With the kernel's boot id and the
process's start time the answer is exact on the same host. Processes of another host, or of another pid namespace (a
container), count as alive until their lease expires.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

_FIRST_NAMESPACE = "pid:[4026531836]"  # the kernel's number for the namespace of its first process


@dataclass(frozen=True)
class Identity:
    """A process. `host` includes the pid namespace if it is not the machine's first; `pid` 0: no process."""

    host: str
    boot_id: str
    pid: int
    process_start: str


def this_process() -> Identity:
    """Return the identity of this process."""
    pid = os.getpid()
    return Identity(_host_name(), _boot_id(), pid, _start_time(pid) or "")


def is_alive(identity: Identity) -> bool:
    """Return False only if the process is known dead: see above."""
    if identity.host != _host_name():
        return True
    if identity.boot_id != _boot_id():
        return False
    return _start_time(identity.pid) == identity.process_start


@functools.cache
def _host_name() -> str:
    name = socket.gethostname()
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return name  # not Linux
    return name if namespace == _FIRST_NAMESPACE else f"{name}/{namespace}"


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        done = subprocess.run(["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False)
        return done.stdout.strip()


def _start_time(pid: int) -> str | None:
    """Return the process's start time as the system reports it; None if it does not run (a zombie does not)."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else fields[19]  # field 22 of proc(5): clock ticks after boot
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
