"""`up` and `down` before Airflow itself starts: ports, second starts, what is left by a killed one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tidemark.errors import UsageError
from tidemark.ledger.processes import Identity, this_process
from tidemark.orchestration.deployment import deployment
from tidemark.orchestration.deployment.home import home_of
from tidemark.settings.model import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(path=tmp_path / "tidemark.toml")


def leave_mark(settings: Settings, owner: Identity) -> None:
    home = home_of(settings)
    home.folder.mkdir(parents=True)
    home.pid_file.write_text(json.dumps({"owner": asdict(owner), "ui": "http://127.0.0.1:8080", "ready": True}))


def test_a_taken_port_is_named_and_nothing_is_written(settings: Settings) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} cannot be used") as refused:
            deployment.up(settings, port=port)
    assert refused.value.hint == f"./tidemark up --port {port + 1}"
    assert not home_of(settings).folder.exists()


def test_a_second_up_names_the_first(settings: Settings) -> None:
    leave_mark(settings, this_process())
    for begin, port in ((deployment.up, 0), (deployment.up, 8080), (deployment.start, 8081)):
        with pytest.raises(UsageError, match=f"runs already: http://127.0.0.1:8080 .pid {os.getpid()}") as refused:
            begin(settings, port=port)
        assert refused.value.hint == "./tidemark down"
    assert deployment.start(settings, port=8080) == deployment.start(settings, port=0) == deployment.running_at(settings, 0)
    running = deployment.running_at(settings, 0)
    assert running is not None
    assert running.pid == os.getpid()


def test_down_without_up_has_nothing_to_do(settings: Settings) -> None:
    assert deployment.running_at(settings, 0) is None
    assert deployment.down(settings) is None
    assert not home_of(settings).folder.exists()


def test_a_mark_whose_process_is_gone_stands_for_nothing(settings: Settings) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    leave_mark(settings, replace(this_process(), pid=gone.pid))
    assert deployment.down(settings) is None


def test_a_pid_that_was_used_again_is_not_ours_to_stop(settings: Settings) -> None:
    leave_mark(settings, replace(this_process(), process_start="1"))
    assert deployment.down(settings) is None


def test_down_does_not_kill_by_the_pid_of_another_machine(settings: Settings) -> None:
    leave_mark(settings, replace(this_process(), host="elsewhere"))
    with pytest.raises(UsageError, match="runs on elsewhere"):
        deployment.down(settings)


def test_a_torn_mark_stands_for_nothing(settings: Settings) -> None:
    home = home_of(settings)
    home.folder.mkdir(parents=True)
    home.pid_file.write_text('{"owner": {"ho')
    assert deployment.running_at(settings, 0) is None
