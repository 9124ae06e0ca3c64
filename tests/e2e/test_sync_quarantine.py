"""Files whose bytes do not arrive as they are, however often they are sent: the link's quarantine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.e2e.edges import large_file
from tests.services import bad_disk
from tests.services.sshd import FarEnd, Sshd
from tidemark.formats.layout import MANIFEST

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_limits")]


class Pushing:
    """A site here, a receiver behind a server whose disk flips each file of number 2, until it is mended."""

    def __init__(self, start: Callable[..., Sshd], folder: Path, monkeypatch: pytest.MonkeyPatch, sftp: bool) -> None:
        self.sftp = sftp
        self.script = folder / "login"
        self.centre = folder / "centre"
        options = bad_disk.server_options(self.script, self.centre, sftp, flip="1600000000002-2-0-0.tsfile")
        server = start(FarEnd.SHELL, options)
        keys = {"host_key": server.host_key, "key": str(server.key)}
        link = {"retries": 2, "block_bytes": 65_536}
        self.edge = Commanded(folder, monkeypatch, centre=server.url(self.centre), receiver_keys=keys, link_keys=link)

    def mend(self) -> None:
        bad_disk.login_script(self.script, {}, self.sftp)

    def landed(self) -> set[str]:
        papers = [json.loads(place.read_bytes()) for place in (self.centre / "landing").rglob(MANIFEST)]
        return {file["path"] for paper in papers for file in paper["files"]}


@pytest.fixture(params=["python3", pytest.param("sftp", marks=pytest.mark.full)])
def pushing(
    request: pytest.FixtureRequest,
    start_sshd: Callable[..., Sshd],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiler: None,
) -> Pushing:
    made = Pushing(start_sshd, tmp_path, monkeypatch, request.param == "sftp")
    made.edge.seal(1)
    large_file(made.edge, 2, 200_000)
    made.edge.seal(3)
    return made


BAD = "data/sequence/root.sg/0/0/1600000000002-2-0-0.tsfile"


@pytest.mark.full
def test_a_file_that_never_arrives_as_it_is_goes_into_quarantine_and_the_others_carry_on(pushing: Pushing) -> None:
    edge = pushing.edge

    said = edge.sync()

    said.refused(23, BAD, "in quarantine as s1", "block of ", " bytes at ")
    assert (said.json["files"], said.json["quarantined"]) == (2, 1) and "quarantine list" in said.json["hint"]
    assert BAD not in pushing.landed() and len(pushing.landed()) == 2
    edge.assert_no_half_file()
    again = edge.sync()
    assert (again.code, again.json["state"], again.json["sent_bytes"]) == (0, "nothing", 0)  # it costs no run anything
    assert any("quarantine list" in note for note in again.json["notes"])
    (link,) = edge.run("status").json["links"]
    assert (link["state"], link["quarantined"], link["next"]) == ("partial", 1, "./tidemark quarantine list")
    (held,) = edge.run("quarantine", "list").json["quarantine"]
    assert (held["id"], held["path"], held["site"]) == ("s1", BAD, "plant1") and " bytes at " in held["reason"]
    why = edge.run("why", BAD).json
    assert why["state"] == "in quarantine" and why["next"] == "./tidemark quarantine release s1"


@pytest.mark.full
def test_a_released_file_is_tried_again_and_arrives_once_the_disk_is_mended(pushing: Pushing) -> None:
    edge = pushing.edge
    edge.sync()
    assert edge.run("quarantine", "release", "s1").json["next"] == "./tidemark sync plant1"
    assert edge.sync().code == 23  # as bad as before
    (held,) = edge.run("quarantine", "list").json["quarantine"]
    assert held["id"] == "s2"
    edge.run("quarantine", "release", "s1").refused(3, "s1", "over")
    pushing.mend()
    assert edge.run("quarantine", "release", "s2").code == 0
    assert edge.sync().code == 0
    assert BAD in pushing.landed() and edge.run("quarantine", "list").json["quarantine"] == []
    edge.assert_no_half_file()


@pytest.mark.full
def test_another_content_of_the_file_is_sent_without_a_decision(pushing: Pushing) -> None:
    edge = pushing.edge
    edge.sync()
    pushing.mend()
    edge.seal(2)
    assert edge.sync().code == 0
    assert BAD in pushing.landed() and edge.run("quarantine", "list").json["quarantine"] == []


@pytest.mark.full
def test_a_file_that_is_given_up_is_sent_only_with_another_content(pushing: Pushing) -> None:
    edge = pushing.edge
    edge.sync()
    pushing.mend()
    assert edge.run("quarantine", "drop", "s1", "--yes").code == 0
    assert edge.sync().json["state"] == "nothing" and edge.run("quarantine", "list").json["quarantine"] == []
    edge.seal(2)
    assert edge.sync().code == 0 and BAD in pushing.landed()
