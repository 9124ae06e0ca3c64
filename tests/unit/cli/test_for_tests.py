"""What `./tidemark test` hands to pytest beside the words it was given."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tidemark.cli.verbs.checkout import MOST_PROCESSES, keep_files_in_memory, side_by_side


@pytest.mark.parametrize(("cores", "all_", "processes"), [(2, False, 4), (2, True, 3), (64, True, MOST_PROCESSES)])
def test_all_tests_run_in_more_processes_than_cores(
    cores: int, all_: bool, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)), raising=False)
    for words in ([], ["--durations=30", "-q"]):
        assert side_by_side(words, all_)[:2] == ["--numprocesses", str(processes)]


def test_one_core_and_chosen_tests_need_no_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1}, raising=False)
    assert side_by_side(["tests/unit"], False) == []
    assert side_by_side(["-k", "sshd"], False) == []
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0}, raising=False)
    assert side_by_side([], False) == []


def test_files_lie_in_memory_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT", raising=False)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1 << 30))
    assert keep_files_in_memory(everything=False) == []
    assert "PYTEST_DEBUG_TEMPROOT" not in os.environ
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=1 << 50))
    monkeypatch.setattr("pathlib.Path.read_text", lambda _path: "MemTotal: 9 kB\nMemAvailable: 16777216 kB\n")
    assert "tmp_path_retention_policy=failed" in keep_files_in_memory(everything=True)
    assert os.environ["PYTEST_DEBUG_TEMPROOT"] == "/dev/shm"
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT")
    monkeypatch.setattr("pathlib.Path.read_text", lambda _path: "MemTotal: 9 kB\nMemAvailable: 8388608 kB\n")
    assert keep_files_in_memory(everything=True) == []
    assert keep_files_in_memory(everything=False)
