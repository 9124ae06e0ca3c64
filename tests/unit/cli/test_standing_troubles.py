"""What a receiver keeps out is told by every sync while it stands, and `why` advises nothing that a run does by itself."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from tests.commanded import Commanded
from tests.small_files import sealed, source
from tests.unit.cli.conftest import SETTINGS, Command
from tidemark.errors import UnreachableError
from tidemark.ledger.sender import links
from tidemark.sync.select import select_files

TWIN = """
[sites.plant2]
id = "2b4e28ba-2fa1-41d2-883f-0016d3cca428"
store = "site2"
[links.plant2]
site = "plant2"
"""


def add_twin(tidemark: Command, deployment: Path) -> None:
    """plant2 has sent a file of its own; then it has all devices of plant1, too. The first sync would be refused whole."""
    (deployment / "tidemark.toml").write_text(SETTINGS + TWIN)
    for end, data in sealed({"root.own.d1": {"s": [(1, 1)]}}).items():
        place = deployment / "site2" / (source(1) + end)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    assert tidemark("sync", "plant1").code == tidemark("sync", "plant2").code == 0
    shutil.copytree(deployment / "site", deployment / "site2", dirs_exist_ok=True)


@pytest.mark.full
def test_refused_files_are_told_by_every_sync(tidemark: Command, deployment: Path) -> None:
    add_twin(tidemark, deployment)
    first = tidemark("sync", "plant2", "--json")
    assert first.code == 21 and (refused := first.json["refused"]) > 1
    for words in (("sync", "plant2"), ("sync", "plant2", "--no-load")):  # the rest is done, and nothing new was refused
        again = tidemark(*words, "--json")
        assert (again.code, again.json["refused"], again.json["files"]) == (23, refused, 0)
        assert {one["path"] for one in again.json["troubles"]} == {one["path"] for one in first.json["troubles"]}
        assert "belongs to" in again.json["error"] and "owners list" in again.json["hint"]
    (link,) = (one for one in tidemark("status", "--json").json["links"] if one["name"] == "plant2")
    assert (link["state"], link["next"]) == ("partial", "./tidemark owners list")
    assert tidemark("sync", "plant1").code == 0  # the other link has nothing to do with it
    shown = tidemark("owners", "list").out
    assert f"refused ({refused:,})" in shown and "2b4e28ba" not in shown, "sites by their names"
    given = tidemark("owners", "transfer", "root.**", "--to", "plant2", "--yes")
    assert given.code == 0 and "plant1, plant2" not in given.out
    assert [line.split() for line in given.out.splitlines()[1:3]] == [["from", "plant1"], ["to", "plant2"]]
    assert tidemark("sync", "plant2", "--json").json["refused"] == 0
    assert tidemark("sync", "plant2").code == 0


@pytest.mark.full
def test_refused_files_that_are_dismissed_are_told_no_more(tidemark: Command, deployment: Path) -> None:
    add_twin(tidemark, deployment)
    refused = [one["path"] for one in tidemark("sync", "plant2", "--json").json["troubles"]]
    assert f"{len(refused)} files" in tidemark("owners", "dismiss", "plant2").err
    assert tidemark("owners", "dismiss", "plant2", "--yes", "--json").json["dismissed"] == refused
    assert not [place for place in (deployment / "centre" / "refused").rglob("*") if place.is_file()]
    for _ in range(2):
        again = tidemark("sync", "plant2", "--json")
        assert (again.code, again.json["refused"], again.json["files"]) == (0, 0, 0)
    (link,) = (one for one in tidemark("status", "--json").json["links"] if one["name"] == "plant2")
    assert (link["state"], link["receipt"]["refused"]) == ("idle", 0)
    assert tidemark("owners", "list", "--json").json["refused"] == []
    assert tidemark("owners", "dismiss", "plant2", "--yes", "--json").json["dismissed"] == []


@pytest.mark.full
def test_a_quarantined_file_that_comes_again_by_itself(tidemark: Command, deployment: Path) -> None:
    assert tidemark("sync", "plant1", "--no-load").code == 0
    place = sorted((deployment / "centre" / "landing").rglob("*.tsfile"))[0]
    place.write_bytes(b"x" * 5)
    path = str(place.relative_to(deployment / "centre")).split("/", 3)[3]
    assert tidemark("load").code == 7
    unread = tidemark("why", path, "--json").json
    assert unread["state"] == "in quarantine"
    assert unread["next"].startswith("./tidemark sync plant1") and "drop" not in unread["next"]
    assert tidemark("sync", "plant1", "--no-load", "--json").code == 7  # it is held while nothing took its place
    sent = tidemark("why", path, "--json").json
    assert (sent["state"], sent["next"]) == ("in quarantine", "./tidemark load")
    assert tidemark("sync", "plant1").code == 0
    assert tidemark("why", path, "--json").json["state"] == "in the catalog"
    assert tidemark("quarantine", "list", "--json").json["quarantine"] == []


def test_a_list_of_what_is_held_says_each_path_once(tidemark: Command, deployment: Path) -> None:
    assert tidemark("sync", "plant1", "--no-load").code == 0
    place = sorted((deployment / "centre" / "landing").rglob("*.tsfile"))[0]
    place.write_bytes(place.read_bytes()[:-1] + b"x")
    told = tidemark("load")
    path = tidemark("quarantine", "list", "--json").json["quarantine"][0]["path"]
    head, row = tidemark("quarantine", "list").out.splitlines()
    assert head.split() == ["id", "site", "path", "at", "reason"]
    assert row.count(path) == 1 and told.err.splitlines()[-2].count(path) == 1


@pytest.mark.full
def test_a_quarantined_file_of_which_the_answer_is_read(tidemark: Command, deployment: Path) -> None:
    assert tidemark("sync", "plant1", "--no-load").code == 0
    place = sorted((deployment / "centre" / "landing").rglob("*.tsfile"))[0]
    place.write_bytes(b"x" * 5)
    path = str(place.relative_to(deployment / "centre")).split("/", 3)[3]
    assert tidemark("sync", "plant1").code == 7
    told = tidemark("why", path, "--json").json
    assert told["next"].startswith("nothing: the next run sends it again") and "drop" not in told["next"]
    assert tidemark("sync", "plant1").code == 0


def test_a_file_that_is_broken_at_the_site_stands(tidemark: Command, deployment: Path) -> None:
    broken = sorted((deployment / "site").rglob("*.tsfile"))[0]
    broken.write_bytes(broken.read_bytes()[:-20])
    for _ in range(3):
        said = tidemark("sync", "plant1", "--json")
        assert (said.code, said.json["quarantined"]) == (7, 1)
    path = str(broken.relative_to(deployment / "site"))
    assert "quarantine drop" in tidemark("why", path, "--json").json["next"]
    (held,) = tidemark("quarantine", "list", "--json").json["quarantine"]
    assert tidemark("quarantine", "drop", str(held["id"]), "--yes").code == 0
    assert tidemark("sync", "plant1").code == 0


@pytest.mark.full_after(1)
@pytest.mark.parametrize("data", ["data/sequence/root.sg", "data/sequence/root.sg/0", "flat"])
def test_a_data_folder_below_sequence_is_refused_with_the_one_to_write(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Commanded(tmp_path, monkeypatch, site_keys={"data": [data]})
    edge.seal(1)
    (edge.site / "flat").mkdir()
    (edge.site / "flat" / "1600000000001-1-0-0.tsfile").write_bytes(bytes(100))
    for words in (["plan", "plant1"], ["sync", "plant1"], ["doctor"]):
        said = edge.run(*words)
        hint = 'write data = ["data/sequence"] in [sites.plant1]' if data != "flat" else "sequence and unsequence"
        assert said.code == 6 and hint in f"{said.json}", said
    assert not edge.root.exists() or edge.rows() == []


def test_what_a_database_s_folder_holds_in_a_folder_named_sequence_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Commanded(tmp_path, monkeypatch, site_keys={"data": ["copied/sequence"]})
    sealed = edge.site / edge.seal(1)
    shutil.copytree(sealed.parents[2], edge.site / "copied" / "sequence")
    for words in (["plan", "plant1"], ["sync", "plant1"], ["doctor"]):
        said = edge.run(*words)
        assert said.code == 6 and "such as sequence/root.plant1" in said.json["hint"], said
    assert not edge.root.exists() or edge.rows() == []
    (edge.site / "copied" / "held").mkdir()
    (edge.site / "copied" / "sequence").rename(edge.site / "copied" / "held" / "root.sg")
    (edge.site / "copied" / "held").rename(edge.site / "copied" / "sequence")
    assert edge.sync().code == 0 and len(edge.rows()) == 3


def test_a_stray_file_beside_sealed_ones_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Commanded(tmp_path, monkeypatch)
    sealed = edge.site / edge.seal(1)
    (edge.site / "data" / "sequence" / sealed.name).write_bytes(bytes(100))
    assert edge.sync().code == 0 and len(edge.rows()) == 3
    assert edge.sync().code == 0


def test_a_listing_that_fails_while_the_ledger_is_read_is_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = Commanded(tmp_path, monkeypatch)
    edge.seal(1)
    assert edge.sync().code == 0
    failed, stream = threading.Event(), links.stream_files
    closed: list[bool] = []

    def read_late(connection: Connection, link: str) -> Iterator[Any]:
        assert failed.wait(30)
        time.sleep(0.3)  # the run's next transaction would meet the one that this reader begins
        closed.append(connection.closed)
        yield from stream(connection, link)

    def fail(*_asked: object) -> None:
        failed.set()
        raise UnreachableError("the line is cut", hint="look at the line")

    with monkeypatch.context() as cut:
        cut.setattr(links, "stream_files", read_late)
        cut.setattr(select_files, "list_names", fail)
        edge.sync().refused(5, "the line is cut")
    assert closed == [False], "the connection is the reader's until it has ended"
    assert edge.run("status").json["links"][0]["state"] == "failed"
    assert edge.sync().code == 0
