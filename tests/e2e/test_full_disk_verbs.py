"""Every verb that writes says of a full disk that it is full (6) and what to do; nothing half-made stays, and the same
command after room was made succeeds."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tests.services import bad_disk
from tests.services.processes import PartMissing
from tests.small_files import sealed
from tidemark.stores.agent import durable

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """Two loaded files that overlap, each large enough for more than one write."""
    try:
        bad_disk.library()
    except PartMissing as missing:
        pytest.skip(str(missing))
    world = Commanded(tmp_path, monkeypatch)
    for number in (1, 2):
        points = [(t, t * 7919 % 100_003) for t in range(number, 4000, number)]
        path = f"data/sequence/root.sg/0/0/{1_600_000_000_000 + number}-{number}-0-0.tsfile"
        world.put(path, sealed({f"root.sg.d{device}": {"s": points} for device in range(4)}))
    assert world.sync().code == 0
    return world


def command(world: Commanded, *words: str, env: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any], str]:
    """`./tidemark WORDS --json` in a process of its own: code, answer, stderr."""
    run = [sys.executable, "-m", "tidemark.cli", "--config", str(world.folder / "tidemark.toml"), *words, "--json"]
    env = {**os.environ, "PYTHONPATH": str(PLUGINS), **(env or {})}
    done = subprocess.run(run, env=env, cwd=world.folder, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stderr


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("quota", [3_000, *(pytest.param(quota, marks=pytest.mark.full) for quota in (1, 6_000))])
def test_a_merge_on_a_full_disk(world: Commanded, quota: int) -> None:
    before, rows = files_below(world.root), world.rows()
    code, answer, said = command(world, "merge", env=bad_disk.environment(world.root, quota=quota))
    assert code == 6, (answer, said)
    assert "free" in answer["hint"] and "./tidemark merge" in answer["hint"], answer
    assert "Traceback" not in said + answer["error"] and "\n" not in answer["error"], answer
    assert files_below(world.root) == before
    assert world.rows() == rows
    assert world.run("merge").json["groups"] == 1
    assert world.rows() == rows


@pytest.mark.parametrize("call", ["publish", "seal"])
def test_a_merge_whose_outputs_find_no_room_for_their_names(
    world: Commanded, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before, rows = files_below(world.root), world.rows()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(durable, call, full)
        said = world.run("merge")
    said.refused(6, "no space")
    assert files_below(world.root) == before
    assert world.rows() == rows
    assert world.run("merge").json["groups"] == 1


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    "words",
    [
        ("read", "--out", "full/out.csv"),
        ("read", "--out", "full/out.parquet"),
        ("coverage", "--html", "full/page.html"),
        ("ledger", "backup", "full/backup.db"),
        ("plan", "plant1", "--out", "full/plan.json"),
    ],
    ids=" ".join,
)
def test_a_verb_whose_output_finds_no_room(
    world: Commanded, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    full = world.folder / "full"
    full.mkdir()
    code, answer, said = command(world, *words, env=bad_disk.environment(full, quota=100))
    assert code == 6, (answer, said)
    assert str(full) in answer["error"] and answer["hint"], answer
    assert "Traceback" not in said
    assert files_below(full) == []
    monkeypatch.chdir(world.folder)
    assert world.run(*words).code in (0, 20) and files_below(full)


@pytest.mark.full
def test_a_load_on_a_full_disk(world: Commanded) -> None:
    path = "data/sequence/root.sg/0/0/1600000000003-3-0-0.tsfile"
    world.put(path, sealed({"root.sg.d9": {"s": [(1, 1)]}}))
    assert world.sync("--no-load").code == 0
    code, answer, said = command(world, "load", env=bad_disk.environment(world.root, quota=1))
    assert code == 6 and answer["hint"] and "Traceback" not in said, (answer, said)
    assert world.run("load").json["loaded"] == 1
