"""Every command that is said to people works when it is pasted: the program as it was called, its settings, its receiver."""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemark
from tests.commanded import Commanded
from tidemark.cli.main import VERBS, _make_parser, main
from tidemark.spelling import WITHOUT_SETTINGS, Spelling, find_program

CODE = Path(tidemark.__file__).parent
MENTION = re.compile(r"(?<![\w./])\./tidemark((?: [a-z][a-z-]*)*)")
HERE = Spelling("/opt/tidemark/bin/tidemark", "/etc/tide mark.toml", "centre")


def said_by_code() -> Iterator[tuple[str, str]]:
    """(where, words behind `./tidemark`) of every text in the package that is no docstring."""
    for path in sorted(CODE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in loose:
                for found in MENTION.finditer(node.value):
                    yield f"{path.relative_to(CODE)}:{node.lineno}", found[1].strip()


def verb_paths(parser: argparse.ArgumentParser, before: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """(words of a verb, whether it takes --receiver), for every verb and every verb's own verbs."""
    yield " ".join(before), any("--receiver" in action.option_strings for action in parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from verb_paths(inner, (*before, name))


PATHS = dict(verb_paths(_make_parser(VERBS.values())))
LEAVES = [path for path in PATHS if path and not any(other.startswith(f"{path} ") for other in PATHS)]
SAID = sorted(set(said_by_code()))


def test_every_command_that_the_code_names_is_one() -> None:
    assert len(SAID) > 200
    assert not [(where, words) for where, words in SAID if words and words.split()[0] not in VERBS]
    nested = {name for name in VERBS if any(path.startswith(f"{name} ") for path in PATHS)}
    wrong = [
        (where, words)
        for where, words in SAID
        if len(words.split()) > 1 and words.split()[0] in nested and " ".join(words.split()[:2]) not in PATHS
    ]
    assert not wrong


@pytest.mark.parametrize("path", LEAVES)
def test_each_verb_gets_what_it_takes(path: str) -> None:
    words = HERE.spell(f"./tidemark {path}, then look").removesuffix(", then look")
    expected = "/opt/tidemark/bin/tidemark"
    expected += "" if path.split(maxsplit=1)[0] in WITHOUT_SETTINGS else " --config '/etc/tide mark.toml'"
    expected += f" {path}" + (" --receiver centre" if PATHS[path] else "")
    assert words == expected


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("./tidemark load, then ./tidemark verify --receiver b", "{0} load --receiver centre, then {0} verify --receiver b"),
        ("run ./tidemark --config a.toml sync x --yes", "run /opt/tidemark/bin/tidemark --config a.toml sync x --yes"),
        ("else ./tidemark.toml; a/./tidemark load", "else ./tidemark.toml; a/./tidemark load"),
        ("./tidemark cluster show tells how far it is", "{0} cluster show --receiver centre tells how far it is"),
        ("./tidemark --help", "/opt/tidemark/bin/tidemark --help"),
        ("./tidemark init writes one", "/opt/tidemark/bin/tidemark init writes one"),
        ("nothing to spell", "nothing to spell"),
    ],
)
def test_commands_within_a_sentence(text: str, spelled: str) -> None:
    assert HERE.spell(text) == spelled.format("/opt/tidemark/bin/tidemark --config '/etc/tide mark.toml'")


def test_data_in_json_stays_as_it_is() -> None:
    answer = {"path": "./tidemark load", "rows": [{"hint": "./tidemark load", "device": "./tidemark load"}]}
    spelled = Spelling("tidemark").spell_answer(answer)
    assert spelled == {"path": "./tidemark load", "rows": [{"hint": "tidemark load", "device": "./tidemark load"}]}


def test_the_name_alone_where_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "tidemark"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program(str(program)) == str(program)
    monkeypatch.setenv("PATH", str(program.parent))
    assert find_program(str(program)) == "tidemark"
    assert find_program("./a b/tidemark") == "'./a b/tidemark'"


def test_what_a_command_says_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two receivers, a damaged file, wrong words: every command that is named then runs, from another folder."""
    edge = Commanded(tmp_path, monkeypatch, link_keys={"receiver": "centre"})
    with (tmp_path / "tidemark.toml").open("a") as settings:
        settings.write('[receivers.other]\nstore = "other"\n')
    edge.seal(1)
    assert edge.sync().code == 0
    program = tmp_path / "tide mark"
    run = f"exec '{sys.executable}' -P -m tidemark.cli \"$@\"\n"
    program.write_text(f"#!/bin/sh\nexport PYTHONPATH='{CODE.parent}' TIDEMARK_CALLED=\"$0\"\n{run}")
    program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "TIDEMARK_CONFIG"}

    def say(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), "--config", str(tmp_path / "tidemark.toml"), *words]
        return subprocess.run(
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    damaged = edge.site / edge.seal(2)
    damaged.write_bytes(b"\0" * 40 + damaged.read_bytes()[40:])
    seen = 0
    for words in (
        ["sync", "plant1"],
        ["status"],
        ["why", "plant1"],
        ["quarantine", "list"],
        ["sync", "plant9"],
        ["load", "-x"],
    ):
        for line in (text := say(*words)).stdout.splitlines() + text.stderr.splitlines():
            assert "./tidemark" not in line
            for found in re.finditer(rf"'{re.escape(str(program))}'[^,;()…]*", line):
                pasted = subprocess.run(
                    ["bash", "-c", found[0].split(" tells ")[0].split(" lists ")[0]],
                    cwd="/",
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert pasted.returncode != 2 or "--yes" in pasted.stderr, (line, pasted.stderr)
                seen += 1
    assert seen >= 4


def test_without_a_caller_commands_stay_as_the_code_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "next: ./tidemark --help" in capsys.readouterr().err
    assert main(["nonsense"], program="tidemark") == 2
    assert "next: tidemark --help" in capsys.readouterr().err
