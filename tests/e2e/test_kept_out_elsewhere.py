"""What a receiver with a ledger of its own keeps out, and until when it knows the site: both ends say it while it is so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.services.sshd import Sshd

pytestmark = [pytest.mark.real("sshd")]


class _Receiving(Commanded):
    """The Tidemark beside the receiver's files: it knows no site and no link."""

    def write_settings(self) -> None:
        (self.folder / "tidemark.toml").write_text(f'[receivers.centre]\nstore = "{self.centre}"\n')


@pytest.mark.full
def test_a_push_tells_what_is_held_where_it_went(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = sshd.new_folder("centre")
    keys = {"host_key": sshd.host_key, "key": str(sshd.key)}
    (tmp_path / "edge").mkdir(), (tmp_path / "centre").mkdir()
    edge = Commanded(tmp_path / "edge", monkeypatch, centre=sshd.url(far), receiver_keys=keys)
    centre = _Receiving(tmp_path / "centre", monkeypatch, centre=str(far))
    edge.seal(1)
    broken = edge.seal(2)
    place = edge.site / broken
    place.write_bytes(place.read_bytes()[:-20])
    assert edge.sync().code == 0, "nobody has looked into it yet"
    assert centre.run("load").code == 7
    for _ in range(2):  # the first run reads the answer, the second finds nothing new
        said = edge.sync()
        assert (said.code, said.json["quarantined"], said.json["loaded"]) == (7, 1, 0)
        assert [one["path"] for one in said.json["troubles"]] == [broken]
    assert "quarantine list" in edge.run("why", broken).json["next"]
    covered = centre.run("coverage")
    assert covered.code == 20 and covered.json["stale"] == []
    assert [site["site"] for site in covered.json["sites"]] == ["plant1"] and covered.json["sites"][0]["as_of"]
    (held,) = centre.run("quarantine", "list").json["quarantine"]
    edge.seal(3)
    edge.seal(2, points=5)
    assert edge.sync().code == 0, "another content of it is on its way"
    assert centre.run("load").code == 0
    assert edge.sync().code == 0
    assert centre.run("quarantine", "list").json["quarantine"] == [] and held["path"] == broken
    assert centre.run("coverage").code == 0
