"""Verbs that destroy or decide ask a person, or take `--yes` for the answer; without either they do nothing."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command, Said
from tidemark.cli.main import VERBS, parse_words

ASKING = [
    ("approve", "R1"),
    ("quarantine", "drop", "7"),
    ("owners", "transfer", "root.x y", "--to", "plant1"),
    ("ledger", "rebuild", "--replace"),
    ("cluster", "remove", "n1"),
    ("cluster", "check", "--repair", "--lost", "n1"),
]
NOT_ASKING = [
    ("quarantine", "list"),
    ("quarantine", "release", "7"),
    ("owners", "list"),
    ("ledger", "rebuild"),
    ("ledger", "backup"),
    ("cluster", "show"),
    ("cluster", "plan", "remove", "n1"),
    ("cluster", "check", "--repair"),
    ("sync", "plant1"),
]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_off_a_terminal_nothing_is_done_without_yes(tidemark: Command, words: tuple[str, ...]) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    for options in ((), ("--json",), ("--quiet",)):
        said = tidemark(*words, *options)
        assert said.code == 2 and "nothing was done" in said.err, said.err
        again = said.err.splitlines()[-1].removeprefix("  next: ")
        assert shlex.split(again) == ["./tidemark", *words, *options, "--yes"]  # can be pasted
        if options == ("--json",):
            assert (said.json["kind"], said.json["hint"]) == (2, again)
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_a_person_is_asked(tidemark: Command, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(answer: str) -> Said:
        monkeypatch.setattr("sys.stdin", _Terminal(answer))
        return tidemark(*words, "--json")

    for answer in ("n\n", "\n", ""):
        said = answered(answer)
        assert (said.code, said.json["error"]) == (2, "not done") and "[y/N]" in said.err
    agreed, yes = answered("y\n"), tidemark(*words, "--json", "--yes")
    assert "not done" not in agreed.out and "[y/N]" not in yes.err
    assert agreed.code == yes.code
    assert (agreed.code == 0) == (words[0] == "ledger")  # there is no run R1, no ID 7, no cluster


@pytest.mark.parametrize("words", NOT_ASKING, ids=" ".join)
def test_what_can_be_taken_back_asks_nothing(words: tuple[str, ...]) -> None:
    arguments, _ = parse_words(words)
    assert VERBS[arguments.verb].asks(arguments) == ""


def test_a_ledger_stays_until_somebody_says_yes(tidemark: Command) -> None:
    assert tidemark("sync", "plant1").code == 0
    assert tidemark("ledger", "rebuild", "--replace", "--json").code == 2
    assert not Path("var/backup").exists()
    assert tidemark("ledger", "rebuild", "--replace", "--json", "--yes").code == 0
    assert len(list(Path("var/backup").iterdir())) == 1
