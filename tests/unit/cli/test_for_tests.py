"""What `./tidemark test` hands to pytest beside the words it was given."""

from __future__ import annotations

import pytest

from tidemark.cli.verbs.checkout import MOST_PROCESSES, side_by_side


@pytest.mark.parametrize(("cores", "processes"), [(2, 2), (64, MOST_PROCESSES)])
def test_all_tests_run_in_a_process_a_core(cores: int, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)), raising=False)
    for words in ([], ["--durations=30", "-q"]):
        assert side_by_side(words)[:2] == ["--numprocesses", str(processes)]
    assert side_by_side([], everything=True)[:2] == ["--numprocesses", str(min(processes + 1, MOST_PROCESSES))]


def test_one_core_and_chosen_tests_need_no_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1}, raising=False)
    assert side_by_side(["tests/unit"]) == []
    assert side_by_side(["-k", "sshd"]) == []
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0}, raising=False)
    assert side_by_side([]) == []
