"""The centre is put back from last night's backup, its ledger and its folder, and the nodes are as they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import deletion

NODES = ("n1", "n2", "n3")


def test_what_the_site_deletes_after_the_rebuild_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs of the nodes tell of a file's second generation, and the site's landings of it are lost."""
    centre = Commanded(tmp_path, monkeypatch)
    with centre.folder.joinpath("tidemark.toml").open("a") as settings:
        nodes = "".join(f'[nodes.{name}]\nstore = "{name}"\n' for name in NODES)
        settings.write(f"[cluster]\nreplicas = 3\nquorum = 2\nslots = 30\n{nodes}")
    for name in NODES:
        (centre.folder / name).mkdir()
    for number in (1, 2):
        centre.seal(number)
        assert centre.sync().code == 0
    assert centre.run("cluster", "init").code == 0
    assert centre.run("ledger", "backup", str(centre.folder / "copy.db")).code == 0
    shutil.copytree(centre.root, centre.folder / "copy")
    path = centre.seal(4)
    mods = centre.site / (path + ".mods")
    assert centre.sync().code == 0
    for time in (2, 3):
        if time == 3:
            for place in (centre.folder / "var").glob("ledger.db*"):
                place.unlink()
            shutil.copy(centre.folder / "copy.db", centre.folder / "var" / "ledger.db")
            shutil.rmtree(centre.root)
            shutil.copytree(centre.folder / "copy", centre.root)
            centre.sync().refused(6, "ahead of this ledger")
            assert centre.run("ledger", "rebuild", "--replace", "--yes").code == 0
            assert centre.sync().code == 0
        with mods.open("a") as file:
            file.write(deletion("root.sg.d4.s", time, time))
        assert centre.sync().code == 0
    assert [row[2] for row in centre.rows() if row[0] == "root.sg.d4"] == ["1"]
    assert centre.run("coverage").code == 0
    assert centre.run("verify", "--deep").code == 0
    assert centre.run("cluster", "check").code == 0
    assert centre.run("replica", "verify").code == 0
    assert centre.sync().json["state"] == "nothing"
