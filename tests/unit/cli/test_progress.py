"""Progress that people see while a flow works."""

from __future__ import annotations

import pytest

from tidemark.cli import progress
from tidemark.cli.screen import Screen, listed, size
from tidemark.flows.app import Tick


def test_a_tick_in_words() -> None:
    assert progress.describe(Tick("check", 3, 40)) == "check: 3 of 40 files"
    assert progress.describe(Tick("send", 3, 40, 1_200_000, 3_000_000_000)) == "send: 3 of 40 files, 1.2 MB of 3.0 GB"
    assert progress.describe(Tick("list", 12_000)) == "list: 12,000 files"


def test_without_a_terminal_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress.shown(Screen()) as beat:
        beat(Tick("send", 1, 9))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.shown(Screen()) as beat:
        beat(Tick("send", 1, 9))
        beat(Tick("send", 2, 9))
    printed = capsys.readouterr()
    assert printed.err == "send: 1 of 9 files\nsend: 2 of 9 files\n"
    assert printed.out == ""
    with progress.shown(Screen(quiet=True)) as beat:
        beat(Tick("send", 3, 9))
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_bar_with_bytes_and_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with progress.shown(Screen()) as beat:
        beat(Tick("transfer_files", 1, 2, 500_000, 2_000_000))
        beat(Tick("transfer_files", 2, 2, 2_000_000, 2_000_000))
    printed = capsys.readouterr()
    assert "transfer_files" in printed.err
    assert "2/2 files" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (20_500_000, "20.5 MB"), (3e15, "3000.0 TB")]
)
def test_sizes(count: float, shown: str) -> None:
    assert size(count) == shown


def test_lists_in_a_few_words() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([{"a": 1}]) == 1
    assert listed("text") == "text"
