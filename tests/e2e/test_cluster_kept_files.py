"""Compacted files, and dropped ones that are kept, at a receiver with nodes: every report says what it says without nodes.

Two worlds have the same site, and do the same. One has data nodes, which come, even out, lose a disk and are filled again.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tests.small_files import sealed

MADE = "data/sequence/root.sg/0/0/1600000000004-4-1-0.tsfile"


@dataclass
class Nodes(Commanded):
    """Its receiver keeps its files at nodes that are folders beside it."""

    names: Sequence[str] = ("n1", "n2", "n3")

    def write_settings(self) -> None:
        super().write_settings()
        with (self.folder / "tidemark.toml").open("a") as settings:
            settings.write("[cluster]\nreplicas = 2\nquorum = 1\nslots = 12\n")
            settings.writelines(f'[nodes.{name}]\nstore = "{name}"\n' for name in self.names)


def drop(world: Commanded, path: str) -> None:
    for end in world.sealed.pop(path):
        (world.site / (path + end)).unlink()


def change_site(world: Commanded) -> list[str]:
    """Two files of a device are dropped below a third one, and two of another device become one. Return the dropped ones."""
    older = [world.seal(1, points=5, device="root.sg.d"), world.seal(2, points=7, device="root.sg.d")]
    world.seal(3, points=3, device="root.sg.d")
    inner = [world.seal(4, device="root.sg.e"), world.seal(5, points=4, device="root.sg.e")]
    world.seal(6, database="root.tw")
    assert world.sync().code == 0
    for path in (*older, *inner):
        drop(world, path)
    world.put(MADE, sealed({"root.sg.e": {"s": [(t, 500 + t) for t in range(1, 5)]}}))
    assert world.sync().code == 0
    return older


def told(world: Commanded) -> dict[str, Any]:
    """What every report says of points and of kept files."""
    found: dict[str, Any] = {}
    for words in ((), ("--live-only",)):
        out = world.folder / "out.csv"
        read = world.run("read", "--tall", "--out", str(out), *words).json
        proof = world.run("verify", "--deep", *words)
        with out.open(newline="") as file:
            found["rows", *words] = list(csv.reader(file))
        found["read", *words] = [read[key] for key in ("rows", "kept_rows", "kept_mixed", "undecodable")]
        found["verify", *words] = [proof.code, *(proof.json[key] for key in ("differences", "kept", "pending", "held"))]
    (link,) = world.run("status").json["links"]
    found["status"] = [link[key] for key in ("state", "kept", "notes")]
    covered = world.run("coverage").json
    found["coverage"] = [covered[key] for key in ("complete", "red", "kept")]
    return found


def check_nodes(world: Commanded) -> None:
    checked = world.run("cluster", "check")
    assert (checked.code, checked.json["problems"]) == (0, [])


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_report_says_what_it_says_without_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plain", "clustered"):
        (tmp_path / name).mkdir()
    plain, world = Commanded(tmp_path / "plain", monkeypatch), Nodes(tmp_path / "clustered", monkeypatch)
    began = world.run("cluster", "init", "--yes")
    assert began.code == 0, began
    kept = change_site(plain)
    assert change_site(world) == kept

    before = told(plain)
    assert before["read",][1:] == [4, 0, {}] and [one["path"] for one in before["status"][1]] == kept
    assert {d["what"] for d in before["verify",][1]} == {"kept points"} and before["verify", "--live-only"][1] == []
    assert told(world) == before

    assert [w.run("merge").json["groups"] for w in (plain, world)] == [1, 1]
    merged = told(plain)
    assert merged["rows",] == before["rows",] and told(world) == merged
    check_nodes(world)

    for words in (("add", f"n4=file://{world.folder / 'n4'}"), ("remove", "n1"), ("rebalance",)):
        (world.folder / "n4").mkdir(exist_ok=True)
        assert world.run("cluster", *words, "--yes").json["state"] == "done"
    shutil.rmtree(world.root / "data")
    assert told(world) == merged, "by what lies at the nodes alone"

    shutil.rmtree(world.folder / "n2")
    assert world.run("cluster", "check", "--repair", "--lost", "n2", "--yes").code == 0
    check_nodes(world)
    assert told(world) == merged

    world.names = ("n2", "n3", "n4")  # a rebuild asks the nodes of the settings
    world.write_settings()
    for one in (plain, world):
        assert one.run("ledger", "rebuild", "--replace", "--yes").code in (0, 23)
    rebuilt = told(plain)
    assert rebuilt["rows",] == before["rows",] and told(world) == rebuilt
    assert world.run("cluster", "check", "--repair", "--yes").code == 0, (
        "of merged files that had not settled copies are left"
    )
    check_nodes(world)
