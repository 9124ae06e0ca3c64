"""The terminal closes under a run, as when the line to the operator drops: it ends as by Ctrl-C, and tells nobody."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.e2e.edges import large_file
from tests.services.deployed import ROOT


@pytest.mark.full
def test_a_run_whose_terminal_goes_lets_its_lease_go_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Commanded(tmp_path, monkeypatch, link_keys={"bandwidth": "150 KB/s", "block_bytes": 65_536})
    large_file(edge, 1)
    ours, its = os.openpty()

    def at_a_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup we ignore it

    run = subprocess.Popen(
        [sys.executable, "-m", "tidemark.cli", "--config", str(edge.folder / "tidemark.toml"), "sync", "plant1"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "plugins"), "TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=at_a_terminal,
    )
    os.close(its)
    shown = b""
    while b"transfer_files" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)

    assert run.wait(60) == 129
    assert not (edge.folder / "var" / "errors").exists()
    edge.link_keys = {}
    edge.write_settings()
    assert edge.sync().code == 0
    edge.assert_in_step()
