"""What we run at a site steps back for the site's own work, where its settings say so: CPU and disk."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.engine_world import every_line_is_long
from tests.e2e.store_ends import QUICK, address
from tests.services.processes import descendants
from tests.services.sshd import FarEnd, Sshd
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import SendItem, SendOptions, send_files

pytestmark = pytest.mark.real("sshd")


def niceness(pid: int | str) -> int:
    """Field 19 of /proc/PID/stat, by proc(5)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


@pytest.mark.parametrize("nice", [0, 11])
def test_the_far_program_runs_as_nice_as_the_site_wants_it(start_sshd: Callable[..., Sshd], nice: int) -> None:
    sshd = start_sshd()
    store = open_sftp(address(sshd, sshd.new_folder(), nice=nice), limits=QUICK)
    (program,) = [process for process in descendants(sshd.pid) if process.name().startswith("python")]
    assert niceness(program.pid) == (nice or niceness(sshd.pid))
    if nice:
        assert program.ionice() == (psutil.IOPRIO_CLASS_BE, 7)
    store.close()


@pytest.mark.full
def test_further_connections_are_as_nice(
    start_sshd: Callable[..., Sshd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd = start_sshd()
    every_line_is_long(monkeypatch)
    far = sshd.new_folder()
    for number in range(4):
        (far / f"{number}").write_bytes(bytes(4 << 20))
    store = open_sftp(address(sshd, far, nice=7), limits=QUICK)
    seen: list[list[int]] = []

    def look(_count: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # a connection ends meanwhile
            programs = [process for process in descendants(sshd.pid) if process.name().startswith("python")]
            seen.append([niceness(program.pid) for program in programs])

    items = [SendItem(f"{number}", f"l/{number}", 4 << 20) for number in range(4)]
    options = SendOptions(bandwidth=1e6, connections=2, should_stop=lambda: [7, 7] in seen)
    list(send_files(store, LocalStore(str(tmp_path)), items, options, look))
    assert [7, 7] in seen and all(set(found) <= {7} for found in seen)
    store.close()


@pytest.mark.parametrize("tools", ["renice ionice", ""])
def test_the_tools_of_a_far_end_without_python_are_as_nice_and_work_without_nice_too(
    start_sshd: Callable[..., Sshd], tools: str
) -> None:
    server = start_sshd(FarEnd.POSIX)
    for tool in ("renice", "ionice"):
        if tool not in tools:
            (server.folder / "tools" / tool).unlink()
    digester = server.folder / "tools" / "sha256sum"
    real = digester.resolve()
    digester.unlink()
    digester.write_text(f'#!/bin/sh\ncat /proc/$$/stat > {server.folder}/seen\nexec {real} "$@"\n')
    digester.chmod(0o755)
    (server.files / "f").write_bytes(b"x")
    store = open_sftp(address(server, nice=9), Tier.POSIX, QUICK)
    assert store.sha256("f") == hashlib.sha256(b"x").hexdigest()
    seen = int((server.folder / "seen").read_text().rpartition(")")[2].split()[16])
    assert seen == (9 if tools else niceness(server.pid))
    store.close()
