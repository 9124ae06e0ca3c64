"""The far end's program is our own modules, in words that an old python3 knows, too."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.stores.agent.frames import ASK, DONE, HEAD
from tidemark.stores.python import bundle as far_source


@pytest.mark.parametrize("name", far_source.MODULES)
def test_each_module_is_python_3_6_of_the_standard_library(name: str) -> None:
    tree = ast.parse(far_source._strip_module(name), feature_version=(3, 6))
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert all(module.split(".")[0] in sys.stdlib_module_names | {"tidemark"} for module in imported)
    assert not imported & {"typing", "__future__", "dataclasses", "collections.abc"}
    names = {module.rpartition(".")[2] for module in imported if module.startswith("tidemark.stores")} - {"agent"}
    assert names <= set(far_source.MODULES)


def test_it_starts_answers_and_ends_with_its_input(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    question = json.dumps(["stat", [["x", "y"]]]).encode()
    said = subprocess.run(
        ["sh", "-c", far_source.start_command()],
        input=b"".join(far_source.encode_program(str(tmp_path))) + HEAD.pack(ASK, len(question), 0) + question,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    greeting, _, answer = said.partition(b"\n")
    assert greeting == b"tidemark python3 ready"
    stream = io.BytesIO(answer)
    kind, words, _ = HEAD.unpack(stream.read(HEAD.size))
    there, gone = json.loads(stream.read(words))
    assert (kind, there[0], gone) == (DONE, 3, None)
