"""Verbs that destroy or decide ask a person, or take `--yes` for the answer; without either they do nothing."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path

import pytest

from tests.cluster_world import Asked, ClusterWorld
from tests.commanded import Commanded
from tests.unit.cli.conftest import Command, Said
from tidemark.cli.call import Call
from tidemark.cli.main import VERBS, parse_words
from tidemark.cli.screen import Screen

ASKING = [
    ("approve", "R1"),
    ("quarantine", "drop", "7"),
    ("owners", "transfer", "root.x y", "--to", "plant1"),
    ("owners", "dismiss", "plant9"),
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
    ("replica", "show"),
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


@pytest.mark.full_after(1)
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
    assert VERBS[arguments.verb].asks(Call(arguments, Screen())) == ""


def test_the_question_names_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Commanded(tmp_path, monkeypatch, link_keys={"deletes": "apply", "delete_limit_files": 1})
    for number in (1, 2, 3):
        edge.seal(number)
    assert edge.sync().code == 0
    for path in [*edge.site.rglob("*-1-0-0.tsfile*"), *edge.site.rglob("*-2-0-0.tsfile*")]:
        path.unlink()
    held = edge.sync()
    assert held.code == 22, held
    asked = edge.run("approve", held.json["run"]).json["error"]
    assert "2 files are gone" in asked and "readers lose them" in asked
    edge.run("owners", "transfer", "root.sg.d3", "--to", "plant1").refused(2, "plant1 owns it; 0 refused files")
    edge.run("owners", "transfer", "root.sg.*", "--to", "plant1").refused(
        2, "3 devices: 3 of plant1; 0 refused files of plant1"
    )
    edge.run("ledger", "rebuild", "--replace").refused(2, "3 files that readers see", "runs of 1 link;")


def test_the_question_before_a_node_leaves_names_what_moves(ask: Asked) -> None:
    code, said = ask("cluster", "remove", "n1")
    assert code == 2 and re.search(r"n1 and let it leave\? \([1-9]\d* slots and .* move\)", said["error"]), said


@pytest.mark.full
def test_a_ledger_stays_until_somebody_says_yes(tidemark: Command) -> None:
    assert tidemark("sync", "plant1").code == 0
    assert tidemark("ledger", "rebuild", "--replace", "--json").code == 2
    assert not Path("var/backup").exists()
    assert tidemark("ledger", "rebuild", "--replace", "--json", "--yes").code == 0
    assert len(list(Path("var/backup").iterdir())) == 1


def test_a_rebuild_from_nodes_asks_only_where_there_is_a_ledger(world: ClusterWorld, ask: Asked) -> None:
    code, said = ask("ledger", "rebuild", "--from-nodes")
    assert code == 2 and "nothing was done" in said["error"], said
    world.app.ledger.close()
    for path in (world.folder / "var").glob("ledger.db*"):
        path.unlink()
    code, said = ask("ledger", "rebuild", "--from-nodes")
    assert code == 0, said
    assert ask("ledger", "rebuild", "--from-nodes")[0] == 2
    assert ask("ledger", "rebuild", "--from-nodes", "--yes")[0] == 0


def test_a_rebuild_from_nodes_needs_nodes(tidemark: Command) -> None:
    said = tidemark("ledger", "rebuild", "--from-nodes", "--yes")
    assert said.code == 2 and "the settings have no [nodes]" in said.err
