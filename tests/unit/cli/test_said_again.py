"""Every verb that a person, or Airflow, may say again: the second saying ends with 0 and changes nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tidemark
from tests.commanded import Commanded, Said
from tidemark.cli.main import VERBS

OTHER_SITE = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
PASSING = {
    "sqlite_sequence",
    "lease",
    "line_place",
    "event",
    "run",
    "link",
    "file_check",
}  # who did what when, and looked at what
CLUSTER = """
[cluster]
receiver = "centre"
replicas = 2
quorum = 1
slots = 8
grace_hours = 0
[nodes.n1]
store = "n1"
[nodes.n2]
store = "n2"
[nodes.n3]
store = "n3"
"""

Prepare = Callable[[Commanded], list[str]]
"""What comes before; the words that are said twice."""


def synced(edge: Commanded, *words: str) -> Commanded:
    for number in (1, 2, 3):
        edge.seal(number)
    said = edge.sync(*words)
    assert said.code == 0, said
    return edge


def clustered(edge: Commanded) -> Commanded:
    with (edge.folder / "tidemark.toml").open("a") as settings:
        settings.write(CLUSTER)
    said = synced(edge).run("cluster", "init")
    assert said.code == 0, said
    return edge


def n4(edge: Commanded) -> str:
    return f"n4=file://{edge.folder}/n4"


def _init(edge: Commanded) -> list[str]:
    return ["init", str(edge.folder / "new")]


def _merge(edge: Commanded) -> list[str]:
    edge.seal(5, device="root.sg.d1", points=9)
    synced(edge)
    return ["merge"]


def _sync_plan(edge: Commanded) -> list[str]:
    """It sends two files, and tells of one that is gone."""
    synced(edge)
    gone = edge.seal(1)
    (edge.site / gone).unlink()
    edge.seal(8)
    edge.seal(9)
    paper = str(edge.folder / "plan.json")
    assert edge.run("plan", "plant1", "--out", paper).json["drop"]
    return ["sync", "plant1", "--plan", paper]


def _load(edge: Commanded) -> list[str]:
    synced(edge, "--no-load")
    return ["load"]


def _adopt(edge: Commanded) -> list[str]:
    path = edge.seal(1)
    folder = edge.folder / "sync-sender"
    folder.mkdir()
    (folder / "last_local_files.txt").write_text(f"/x/{path}\n")
    return ["adopt", "plant1", str(folder)]


def _approve(edge: Commanded) -> list[str]:
    edge.link_keys = {"deletes": "apply", "delete_limit_files": 0}
    edge.write_settings()
    synced(edge)
    for place in (edge.site / "data/sequence/root.sg/0/0").glob("1600000000001-*"):
        place.unlink()
    said = edge.sync()
    assert said.code == 22, said
    return ["approve", said.json["run"], "--yes"]


def held(edge: Commanded, heal: bool) -> str:
    """The ID of a file in quarantine; with `heal` its bytes are good by now."""
    path = edge.seal(1)
    assert edge.sync("--no-load").code == 0
    (landed,) = (edge.root / "landing").rglob("*.tsfile")
    whole = landed.read_bytes()
    landed.write_bytes(b"x" * 5)
    assert edge.run("load").code == 7
    (one,) = edge.run("quarantine", "list").json["quarantine"]
    if heal:
        (place,) = (edge.root / "quarantine").rglob("*" + Path(path).name)
        place.write_bytes(whole)
    return str(one["id"])


def _transfer(edge: Commanded) -> list[str]:
    with (edge.folder / "tidemark.toml").open("a") as settings:
        settings.write(f'[sites.plant2]\nid = "{OTHER_SITE}"\nstore = "other"\n')
    synced(edge)
    return ["owners", "transfer", "root.sg.d1", "--to", "plant2", "--yes"]


def _dismiss(edge: Commanded) -> list[str]:
    synced(edge)
    with (edge.folder / "tidemark.toml").open("a") as settings:
        settings.write(f'[sites.twin]\nid = "{OTHER_SITE}"\nstore = "{edge.site}"\n[links.twin]\nsite = "twin"\n')
    assert edge.run("sync", "twin").code == 21
    return ["owners", "dismiss", "twin", "--yes"]


def _rebuild(edge: Commanded) -> list[str]:
    synced(edge)
    for place in (edge.folder / "var").glob("ledger.db*"):
        place.unlink()
    return ["ledger", "rebuild"]


def _cluster_init(edge: Commanded) -> list[str]:
    with (edge.folder / "tidemark.toml").open("a") as settings:
        settings.write(CLUSTER)
    synced(edge)
    return ["cluster", "init"]


def _cluster_lost(edge: Commanded) -> list[str]:
    shutil.rmtree(clustered(edge).folder / "n3")
    return ["cluster", "check", "--repair", "--lost", "n3", "--yes"]


SAID: dict[str, Prepare] = {
    "init": _init,
    "doctor": lambda edge: synced(edge) and ["doctor"],
    "plan": lambda edge: synced(edge) and ["plan", "plant1", "--out", str(edge.folder / "plan.json")],
    "sync": lambda edge: edge.seal(1) and ["sync", "plant1"],
    "sync --plan": _sync_plan,
    "load": _load,
    "merge": _merge,
    "adopt": _adopt,
    "read": lambda edge: synced(edge) and ["read", "--out", str(edge.folder / "points.csv")],
    "status": lambda edge: synced(edge) and ["status"],
    "runs": lambda edge: synced(edge) and ["runs"],
    "coverage": lambda edge: synced(edge) and ["coverage", "--html", str(edge.folder / "c.html")],
    "verify": lambda edge: synced(edge) and ["verify", "--deep"],
    "verify --repair": lambda edge: synced(edge) and ["verify", "--repair"],
    "why": lambda edge: synced(edge) and ["why", "plant1"],
    "approve": _approve,
    "quarantine release": lambda edge: ["quarantine", "release", held(edge, heal=True)],
    "quarantine drop": lambda edge: ["quarantine", "drop", held(edge, heal=False), "--yes"],
    "owners transfer": _transfer,
    "owners dismiss": _dismiss,
    "ledger backup": lambda edge: synced(edge) and ["ledger", "backup", str(edge.folder / "copy.db")],
    "ledger upgrade": lambda edge: ["ledger", "upgrade"],
    "ledger rebuild": _rebuild,
    "ledger rebuild --replace": lambda edge: synced(edge) and ["ledger", "rebuild", "--replace", "--yes"],
    "cluster init": _cluster_init,
    "cluster add": lambda edge: ["cluster", "add", n4(clustered(edge))],
    "cluster remove": lambda edge: clustered(edge) and ["cluster", "remove", "n3", "--yes"],
    "cluster rebalance": lambda edge: clustered(edge) and ["cluster", "rebalance"],
    "cluster check": lambda edge: clustered(edge) and ["cluster", "check", "--repair"],
    "cluster check --lost": _cluster_lost,
    "replica show": lambda edge: clustered(edge) and ["replica", "show"],
    "down": lambda edge: ["down"],
    "version": lambda edge: ["version"],
    "completion": lambda edge: ["completion", "bash"],
}
ELSEWHERE = {
    "up",
    "demo",
    "test",
    "bench",
    "help",
    "changes",
}  # test_deployment.py; other programs; no settings; unit/changes
ACT_AGAIN = {"ledger rebuild --replace"}  # by their very words


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    return Commanded(tmp_path, monkeypatch)


@pytest.mark.full_after(2)
@pytest.mark.parametrize("verb", SAID)
def test_a_verb_said_again_has_nothing_to_do(edge: Commanded, verb: str) -> None:
    words = SAID[verb](edge)
    first = edge.run(*words)
    assert first.code == 0, first
    before = dict(state(edge))
    second = edge.run(*words)
    assert second.code == 0, second
    if verb in ACT_AGAIN:
        return
    after = dict(state(edge))
    assert {key: (before.get(key), after.get(key)) for key in before | after if before.get(key) != after.get(key)} == {}


def test_every_verb_is_said_twice() -> None:
    assert {words.split()[0] for words in SAID} | ELSEWHERE >= set(VERBS)


def state(edge: Commanded) -> Iterator[tuple[str, object]]:
    """Files and rows by name, but for those that any run adds to (who did what when), and copies of a ledger."""
    for place in sorted(edge.folder.rglob("*")):
        name = place.relative_to(edge.folder).as_posix()
        if place.is_file() and not name.startswith("var/") and name not in ("copy.db", "c.html"):
            yield name, hashlib.sha256(place.read_bytes()).hexdigest()
    ledger = edge.folder / "var/ledger.db"
    if ledger.exists():
        with closing(sqlite3.connect(ledger)) as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for name in sorted(set(names) - PASSING):
                yield f"table {name}", sorted(map(repr, connection.execute(f"SELECT * FROM {name}")))


def test_a_node_of_another_address_is_another_node(edge: Commanded) -> None:
    clustered(edge)
    assert edge.run("cluster", "add", n4(edge)).code == 0
    said = edge.run("cluster", "add", f"n4=file://{edge.folder}/elsewhere")
    said.refused(2, "n4 is a node of the cluster already, at file://")


def test_a_decision_is_not_undone_by_the_other_one(edge: Commanded) -> None:
    released: Said = edge.run("quarantine", "release", name := held(edge, heal=True))
    assert released.code == 0
    edge.run("quarantine", "drop", name, "--yes").refused(3, "it is released")


def test_a_ledger_with_rows_of_its_own_is_not_rebuilt_by_the_way(edge: Commanded) -> None:
    words = _rebuild(edge)
    assert edge.run(*words).code == 0
    edge.seal(7)
    assert edge.sync().code == 0
    edge.run(*words).refused(6, "has rows already")


HOLDER = """
import sys, time
from pathlib import Path
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Leases, this_process
Leases(Ledger(sys.argv[1], Path()), this_process()).acquire_lease("load:centre", "somebody")
print("held", flush=True)
time.sleep(60)
"""


def test_a_rebuild_takes_over_the_lease_of_a_process_that_was_killed_and_of_no_other(edge: Commanded) -> None:
    synced(edge)
    ledger = f"sqlite:///{edge.folder}/var/ledger.db"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, ledger],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(tidemark.__file__).parents[1])},
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        edge.run("ledger", "rebuild", "--replace", "--yes").refused(5, "load:centre is held by somebody")
    finally:
        holder.kill()
        holder.wait()
    assert edge.run("ledger", "rebuild", "--replace", "--yes").code == 0


def test_a_run_that_a_newer_one_took_over_from_names_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule runs on while somebody thinks: what waits then is the newest run's."""
    monkeypatch.chdir(tmp_path)
    edge = Commanded(tmp_path, monkeypatch)
    first = _approve(edge)
    newest = edge.sync()
    assert newest.code == 22 and newest.json["run"] not in first
    said = edge.run(*first)
    said.refused(22, newest.json["run"])
    assert f"./tidemark approve {newest.json['run']}" in said.json["hint"]
    approve = ["approve", newest.json["run"], "--yes"]
    for words in (approve, ["sync", "plant1"], approve, first):
        said = edge.run(*words)
        assert said.code == 0, (words, said)


def test_what_is_to_be_edited_after_a_change_of_nodes_is_said(edge: Commanded) -> None:
    said = edge.run("cluster", "add", n4(clustered(edge)))
    assert "write [nodes.n4] into" in said.json["edit"] and said.json["edit"] in said.err
    assert "take [nodes.n3] out of" in edge.run("cluster", "remove", "n3", "--yes").json["edit"]
