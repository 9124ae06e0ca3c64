"""A disk that misbehaves below one folder: a quota that is used up, bytes that flip or are lost, sizes that lie.

`bad_disk.c` is compiled once and loaded (LD_PRELOAD) into the processes that shall see such a disk: those of an SSH login
by `server_options`, a process of ours by `environment`. The rest of the machine sees the real one.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.services.processes import PartMissing
from tests.services.sshd import SFTP_SERVERS

SOURCE = Path(__file__).with_suffix(".c")


@functools.cache
def library() -> Path:
    """Raises PartMissing where no C compiler is."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise PartMissing("no C compiler on this machine; apt-get install gcc")
    made = Path(tempfile.mkdtemp(prefix="tidemark-bad-disk-")) / "bad_disk.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl"], check=True)
    return made


def environment(folder: Path, **troubles: object) -> Mapping[str, str]:
    """What a process needs to see a bad disk below `folder`: `quota`, `lie` (bytes), `flip` (part of a name), `unsynced`."""
    asked = {f"BAD_DISK_{name.upper()}": str(value) for name, value in troubles.items()}
    return {"LD_PRELOAD": str(library()), "BAD_DISK_IN": f"{folder}/", **asked}


def server_options(script: Path, folder: Path, sftp_only: bool = False, **troubles: object) -> dict[str, str]:
    """Options of an sshd (`sshd.start`) whose logins see a bad disk below `folder`. `script`: a file to make."""
    login_script(script, environment(folder, **troubles), sftp_only)
    server = next((path for path in SFTP_SERVERS if Path(path).exists()), "internal-sftp")
    return {"ForceCommand": str(script), "Subsystem": f"sftp {server}"}


def login_script(script: Path, environment: Mapping[str, str], sftp_only: bool = False) -> None:
    """What logins run, from now on; without an `environment` they see the disk as it is."""
    lines = ["#!/bin/sh", *(f"export {name}='{value}'" for name, value in environment.items())]
    if sftp_only:
        lines.append('case "$SSH_ORIGINAL_COMMAND" in *sftp-server) ;; *) exit 1;; esac')
    script.write_text("\n".join([*lines, 'exec sh -c "${SSH_ORIGINAL_COMMAND:-sh}"']) + "\n")
    script.chmod(0o755)
