"""A deployment of one small site, and the command run in this process as a user would run it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_world import Asked, ClusterWorld, last_json
from tidemark.cli.main import main

REAL = Path(__file__).resolve().parents[2] / "data" / "iotdb" / "2.0.1-beta" / "data" / "datanode" / "data"
SETTINGS = """
[receivers.centre]
store = "centre"
[sites.plant1]
id = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
store = "site"
[links.plant1]
site = "plant1"
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        answer: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return answer


Command = Callable[..., Said]


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A folder with settings and a site that has two sealed files of a real server."""
    (tmp_path / "tidemark.toml").write_text(SETTINGS)
    for kind in ("sequence", "unsequence"):
        (tmp_path / "site" / "data" / kind).mkdir(parents=True)
    shutil.copytree(REAL / "sequence" / "root.plant2" / "4", tmp_path / "site" / "data" / "sequence" / "root.plant2" / "4")
    return tmp_path


@pytest.fixture
def tidemark(deployment: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`tidemark("sync", "plant1")` in the deployment's folder."""
    monkeypatch.chdir(deployment)

    def run(*words: str) -> Said:
        try:
            code = main(list(words))
        except SystemExit as exited:
            code = int(exited.code or 0)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return run


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    """A receiver whose nodes are local folders, with its first table in force."""
    made = ClusterWorld(tmp_path)
    made.begin()
    return made


@pytest.fixture
def ask(world: ClusterWorld, capsys: pytest.CaptureFixture[str]) -> Asked:
    """`ask("cluster", "show")`: its exit code and the object of `--json`."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = world.run(*words, "--json", "--quiet")
        return code, last_json(capsys.readouterr().out)

    return run
