"""Progress that people see while a flow works."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest

from tidemark.cli import progress
from tidemark.cli.screen import Screen, shorten_list
from tidemark.progress import Tick


def draw_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured as stderr is one, and wide."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")


def test_without_a_terminal_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress.show_progress(Screen()) as beat:
        beat(Tick("send", 1, 9))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.show_progress(Screen()) as beat:
        beat(Tick("send", 1, 9))
        beat(Tick("send", 2, 9))
    printed = capsys.readouterr()
    assert printed.err == "send: 1 of 9 files\nsend: 2 of 9 files\n"
    assert printed.out == ""
    with progress.show_progress(Screen(quiet=True)) as beat:
        beat(Tick("send", 3, 9))
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_bar_with_bytes_and_rate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_on_a_terminal(monkeypatch)
    with progress.show_progress(Screen()) as beat:
        beat(Tick("transfer_files", 1, 2, 500_000, 2_000_000))
        beat(Tick("transfer_files", 2, 2, 2_000_000, 2_000_000))
    printed = capsys.readouterr()
    assert "transfer_files" in printed.err
    assert "2/2 files" in printed.err
    assert printed.out == ""


def test_files_that_are_counted_without_their_bytes_are_not_called_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_on_a_terminal(monkeypatch)
    with progress.show_progress(Screen()) as beat:
        beat(Tick("check", 112, 224))
        beat(Tick("check", 224, 224))
        beat(Tick("bootstrap of shop.orders", 1_000, things="rows"))
    printed = capsys.readouterr().err
    assert "1,000 rows" in printed
    assert "224/224 files" in printed and "bytes" not in printed and "B/s" not in printed


def test_on_a_terminal_that_draws_nothing_lines_as_without_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.show_progress(Screen()) as beat:
        beat(Tick("send", 1, 9))
    assert capsys.readouterr().err == "send: 1 of 9 files\n"


class Terminal(io.StringIO):
    """One that may go: a real one does in tests/e2e/test_terminal_gone.py, at a moment of its own."""

    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(text)


def test_a_terminal_that_went_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.show_progress(Screen()) as beat:
        beat(Tick("transfer_files", 1, 2))
        terminal.gone = True
        beat(Tick("finish", 1, 2))  # a line of its own
    assert "transfer_files" in terminal.getvalue() and "finish" not in terminal.getvalue()


def test_lists_in_a_few_words() -> None:
    assert shorten_list(["a", "b"]) == "a, b"
    assert shorten_list([{"a": 1}]) == 1
    assert shorten_list("text") == "text"


def test_several_links_have_a_bar_each_and_a_sum(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_on_a_terminal(monkeypatch)
    with progress.show_progress_of_each(Screen(), 3) as follow:
        with follow("north") as north, follow("south") as south:
            north(Tick("transfer_files", 1, 2, 500_000, 2_000_000))
            south(Tick("recover"))
            south(Tick("check", 3, 4))
        with follow("west"):
            pass
    drawn = capsys.readouterr().err
    for shown in ("north transfer_files", "1/2 files", "0.5/2.0 MB", "south check", "2/3 links"):
        assert shown in drawn, drawn


def test_several_links_off_a_terminal_are_named_in_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with progress.show_progress_of_each(Screen(), 2) as follow, follow("north") as north, follow("south") as south:
        north(Tick("send", 1, 9))
        south(Tick("send", 2, 9))
    assert capsys.readouterr().err == "north send: 1 of 9 files\nsouth send: 2 of 9 files\n"
