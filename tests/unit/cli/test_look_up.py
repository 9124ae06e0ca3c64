"""help, version, completion, the man page: made from the parser, and what a real shell and a real `man` make of them."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command
from tidemark import __version__
from tidemark.cli.main import VERBS, parse_words

ROOT = Path(__file__).resolve().parents[3]


def actions(parser: argparse.ArgumentParser, words: str) -> Iterator[str]:
    for action in parser._actions:
        if not action.option_strings and isinstance(action.choices, dict):
            for name, inner in action.choices.items():
                yield f"{words} {name}"
                yield from actions(inner, f"{words} {name}")


def all_actions() -> list[str]:
    found = []
    for verb in VERBS.values():
        parser = argparse.ArgumentParser()
        verb.arguments(parser)
        found += list(actions(parser, verb.name))
    return found


def test_help_is_the_verbs_own(tidemark: Command) -> None:
    assert tidemark("help").out == tidemark("--help").out
    for words in (["sync"], ["cluster", "plan", "add"]):
        said = tidemark("help", *words)
        assert said.code == 0 and said.out == tidemark(*words, "--help").out


@pytest.mark.full_after(1)
@pytest.mark.parametrize("words", all_actions())
def test_every_verb_of_a_verb_has_an_example_that_the_parser_takes(tidemark: Command, words: str) -> None:
    said = tidemark(*words.split(), "--help")
    example = said.out.split("example:\n  ./tidemark ")[1].strip()
    assert example.startswith(words)
    if words != "cluster plan":  # its example is one of its own verbs'
        assert len(said.out.splitlines()[0]) < 100
    parse_words(example.split())


def test_the_version_says_where_it_runs(tidemark: Command) -> None:
    said = tidemark("version", "--json")
    assert (said.json["version"], said.json["place"]) == (__version__, str(ROOT))
    assert __version__ in tidemark("version").out


def test_a_dry_run_is_called_plan(tidemark: Command) -> None:
    assert "./tidemark plan" in tidemark("sync", "plant1", "--dry-run").err


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["sy"], ["sync"]),
        (["sync", ""], ["plant1"]),
        (["sync", "--a"], ["--all", "--again"]),
        (["--json", "sync", "--pl"], ["--plan"]),
        (["sync", "plant1", "--fail"], ["--fail-if-nothing"]),
        (["sync", "--plan", ""], []),
        (["cluster", "pl"], ["plan"]),
        (["cluster", "plan", "r"], ["remove", "rebalance"]),
        (["read", "--format", ""], ["csv", "jsonl", "parquet"]),
        (["read", "--site", "p"], ["plant1"]),
        (["coverage", "--receiver", ""], ["centre"]),
        (["--config", "no.toml", "sync", ""], []),
        (["nonsense", ""], []),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_what_may_stand_there(tidemark: Command, typed: list[str], offered: list[str]) -> None:
    said = tidemark("completion", "suggest", "--", *typed)
    assert (said.code, [line.split("\t")[0] for line in said.out.splitlines()]) == (0, offered)
    assert not Path("var").exists()


def test_all_verbs_are_offered(tidemark: Command) -> None:
    said = tidemark("completion", "suggest", "--", "")
    assert {line.split("\t")[0] for line in said.out.splitlines()} == set(VERBS)


@pytest.fixture
def command(deployment: Path) -> Path:
    place = deployment / "bin" / "tidemark"
    place.parent.mkdir()
    place.write_text(f'#!/bin/sh\nexec env PYTHONPATH="{ROOT / "plugins"}" "{sys.executable}" -P -m tidemark.cli "$@"\n')
    place.chmod(0o755)
    return place


TYPED = {
    "bash": (
        'eval "$(tidemark completion bash)"; COMP_WORDS=(tidemark sync pl) COMP_CWORD=2; _tidemark; echo "${COMPREPLY[@]}"'
    ),
    "zsh": (
        'compdef() { :; }; _describe() { print -l "${(@)found}"; }; eval "$(tidemark completion zsh)"; '
        "words=(tidemark sync pl) CURRENT=3; _tidemark"
    ),
    "fish": "tidemark completion fish | source; complete -C 'tidemark sync pl'",
}


@pytest.mark.parametrize("shell", TYPED)
def test_a_shell_completes_a_link(command: Path, deployment: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [shell, "-c", TYPED[shell]], cwd=deployment, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["plant1"], done


def test_the_man_page_has_every_verb_and_option(tidemark: Command) -> None:
    page = tidemark("help", "--man").out
    for words in [*VERBS, *all_actions()]:
        assert f"\n.SS {words}\n".replace("-", "\\-") in page
    assert "\n\\-\\-fail\\-if\\-nothing\n" in page and ".SH EXIT STATUS" in page
    assert page.count("\\-\\-log\\-json\n") == 1, "common options stand once"
    if tool := shutil.which("groff") or shutil.which("mandoc"):
        words = [tool, "-man", "-Tutf8", "-ww"] if tool.endswith("groff") else [tool, "-Tlint"]
        done = subprocess.run(words, input=page, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "") and "fail" in done.stdout
