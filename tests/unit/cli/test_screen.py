"""Tables of a result, as wide as they are shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tidemark.cli.screen import Screen

COLUMNS = ["link", "last run", "files>", "oldest unsent", "why"]
RUN = "20261123T055650Z-2dc241"


Printed = Callable[[int], list[str]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Printed:
    """The lines of a table of two links on a terminal of so many columns; 0: on none."""

    def run(columns: int) -> list[str]:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns or 28))
        monkeypatch.setattr("sys.stdout.isatty", lambda: columns > 0)
        Screen().print_table(COLUMNS, [["plant1", RUN, 2, None, None], ["plant2", RUN, 0, None, None]])
        return re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()

    return run


def words(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


@pytest.mark.parametrize("columns", [0, 80])
def test_a_table_as_wide_as_it_needs(printed: Printed, columns: int) -> None:
    head = ["link", "last", "run", "files", "oldest", "unsent", "why"]
    assert words(printed(columns)) == [head, ["plant1", RUN, "2"], ["plant2", RUN, "0"]]


def test_where_a_terminal_is_too_narrow_columns_that_say_nothing_are_left_out(printed: Printed) -> None:
    assert words(printed(42)) == [["link", "last", "run", "files"], ["plant1", RUN, "2"], ["plant2", RUN, "0"]]


def test_where_it_is_far_too_narrow_each_row_is_told_in_lines(printed: Printed) -> None:
    first = ["link      plant1", f"last run  {RUN}", "files     2"]
    assert printed(28) == [*first, "", "link      plant2", f"last run  {RUN}", "files     0"]


def test_no_word_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last column is folded between words; where a word is wider than what is left, rows become lines."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    path = "data/sequence/root.plant1/1/2818/1795252019270-1-0-0.tsfile"
    for why, head in (
        ("the disk is full and stays so, whatever is done about it " * 2, "link"),
        (f"{path} {path}", "link  "),
    ):
        Screen().print_table(["link", "last run", "why"], [["工場", RUN, why.strip()]])
        lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
        assert lines[0].startswith(head) and set(why.split()) <= set(" ".join(lines).split())
        assert all(len(line) <= 80 for line in lines if path not in line)


def test_a_wide_letter_takes_two_cells(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().print_table(["site", "files>"], [["工場", 1], ["plant", 22]])
    assert capsys.readouterr().out.splitlines() == ["site   files", "工場       1", "plant     22"]
