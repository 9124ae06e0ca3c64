"""Files that are not verified at the source: a state of its own, shown wherever the link is, ended by `verify`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.e2e.edges import large_file, pulling
from tests.services.sshd import Sshd
from tidemark.formats.layout import MANIFEST

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_limits")]


def verified_in_manifests(edge: Commanded) -> dict[str, str]:
    papers = [json.loads(place.read_bytes()) for place in (edge.root / "landing").rglob(MANIFEST)]
    return {file["path"]: file["verified"] for paper in papers for file in paper["files"]}


def shown(edge: Commanded) -> int:
    """How many files `status`, `sync` and `coverage` say are not verified at the source; all say the same."""
    (link,) = edge.run("status").json["links"]
    count = int(link["not_verified_at_source"])
    notes = [*link["notes"], *edge.sync().json["notes"], *edge.run("coverage").json["notes"]]
    told = [note for note in notes if "not verified at the source" in note]
    assert len(told) == (3 if count else 0) and all("./tidemark verify --site plant1" in note for note in told)
    return count


def is_not_verified(edge: Commanded, path: str) -> bool:
    return any("not verified at the source" in line for line in edge.run("why", path).json["evidence"])


@pytest.mark.full_after(1)
@pytest.mark.parametrize("why", ["the setting", "an SFTP-only site", "two folders here"])
def test_what_has_a_digest_at_the_target_only_is_shown_until_verify_proves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshd: Sshd, sshd_sftp_only: Sshd, why: str
) -> None:
    if why == "two folders here":
        edge = Commanded(tmp_path, monkeypatch, link_keys={"digest": "target"})
    elif why == "the setting":
        edge = pulling(tmp_path, monkeypatch, sshd, digest="target")
    else:
        edge = pulling(tmp_path, monkeypatch, sshd_sftp_only)
    paths = [edge.seal(number) for number in range(1, 4)]
    large_file(edge, 4)

    said = edge.sync()

    assert (said.code, said.json["files"], said.json["not_verified_at_source"]) == (0, 4, 4)
    assert set(verified_in_manifests(edge).values()) == {"target"}
    assert shown(edge) == 4 and is_not_verified(edge, paths[0])
    proof = edge.run("verify")
    assert (proof.code, proof.json["proved"], proof.json["not_verified_at_source"]) == (0, 4, 0)
    assert shown(edge) == 0 and not is_not_verified(edge, paths[0])
    assert edge.run("verify").json["proved"] == 0
    edge.assert_in_step()


@pytest.mark.full
def test_what_was_verified_is_not_told_and_what_comes_anew_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Commanded(tmp_path, monkeypatch)
    paths = [edge.seal(number) for number in range(1, 4)]
    assert edge.sync().json["not_verified_at_source"] == 0
    assert set(verified_in_manifests(edge).values()) == {"source"}
    edge.link_keys = {"digest": "target"}
    edge.write_settings()
    edge.seal(1, points=5)
    assert edge.sync().json["not_verified_at_source"] == 1
    assert shown(edge) == 1 and is_not_verified(edge, paths[0]) and not is_not_verified(edge, paths[1])
    edge.link_keys = {}
    edge.write_settings()
    edge.seal(1, points=7)
    assert edge.sync().json["not_verified_at_source"] == 0
    assert shown(edge) == 0


def test_a_site_that_differs_is_not_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Commanded(tmp_path, monkeypatch, link_keys={"digest": "target"})
    paths = [edge.seal(number) for number in range(1, 4)]
    edge.sync()
    rotten = edge.site / paths[1]
    times = rotten.stat()
    data = bytearray(rotten.read_bytes())
    data[40] ^= 1
    rotten.write_bytes(data)
    os.utime(rotten, ns=(times.st_atime_ns, times.st_mtime_ns))
    proof = edge.run("verify")
    assert (proof.code, proof.json["proved"], proof.json["not_verified_at_source"]) == (20, 2, 1)
    assert is_not_verified(edge, paths[1]) and not is_not_verified(edge, paths[0])


def test_a_ledger_that_is_made_anew_knows_what_is_not_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = Commanded(tmp_path, monkeypatch, link_keys={"digest": "target"})
    edge.seal(1)
    edge.seal(2)
    edge.sync()
    edge.link_keys = {}
    edge.write_settings()
    edge.seal(3)
    edge.sync()
    assert shown(edge) == 2
    assert edge.run("ledger", "rebuild", "--replace", "--yes").code == 0
    assert shown(edge) == 2


@pytest.mark.full
@pytest.mark.real("sshd")
def test_a_site_that_refuses_needs_somebody_and_one_that_is_away_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_sshd: Callable[..., Sshd]
) -> None:
    server = start_sshd()
    keys = {"host_key": server.host_key, "key": str(server.key)}
    edge = Commanded(tmp_path, monkeypatch, store=server.url(tmp_path / "site"), site_keys=keys)
    edge.seal(1)
    assert edge.sync().code == 0
    edge.site_keys = {**keys, "host_key": "SHA256:" + "A" * 43}
    edge.write_settings()
    said = edge.run("verify")
    said.refused(6, "site plant1 was not verified", "the host key of")
    assert "compare its key there" in said.json["hint"] and said.json["checked"], "what can be verified is"
    edge.site_keys = keys
    edge.write_settings()
    assert edge.run("verify").code == 0
    server.close()
    edge.run("verify").refused(5, "site plant1 was not verified")
