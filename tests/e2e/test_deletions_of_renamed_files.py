"""Deletions that stand under the name that their TsFile had before: 0.12 renames a TsFile after a merge, and goes by the
name that its `.resource` tells. Real files, of which that server answers `wide` alone: all of `plain` is deleted."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.expected import FOLDERS, SITES
from tests.services.deployed import Deployed
from tests.services.sshd import Sshd
from tidemark.tsfiles.spark.dataset import find_files

PLACE = "data/data/sequence/root.sg101/0/0"
BEFORE, NOW = "1795503600390-1-2-1.tsfile.mods", "1795503600390-1-2-2.tsfile"
WIDE = {("root.sg101.wide", "x"): 49, ("root.sg101.wide", "y"): 25, ("root.sg101.wide", "z"): 49}
PLAIN = {("root.sg101.plain", "b"): 50, ("root.sg101.plain", "s"): 40}


def deploy(folder: Path, through: Sshd | None = None) -> Deployed:
    shutil.copytree(FOLDERS / "0.12.0-renamed", folder / "site")
    (folder / "site/data/data/unsequence").mkdir(parents=True)
    link = 'deletes = "apply"'
    return Deployed(folder, SITES["0.12.0"], folder / "site", folder / "centre", through, link=link, here=True).write()


def points(deployed: Deployed) -> dict[tuple[str, str], int]:
    return dict(Counter((device, name) for device, name, *_ in deployed.read("points.csv")))


@pytest.fixture(params=["file", "ssh"])
def deployed(request: pytest.FixtureRequest, tmp_path: Path) -> Deployed:
    return deploy(tmp_path, request.getfixturevalue("sshd") if request.param == "ssh" else None)


@pytest.mark.full_after(1)
def test_they_are_shipped_and_applied(deployed: Deployed) -> None:
    assert deployed.run("sync", "plant1")["files"] == 1
    assert points(deployed) == WIDE
    assert deployed.run("verify", "--deep")["differences"] == []
    assert deployed.run("sync", "plant1")["state"] == "nothing"


@pytest.mark.full_after(1)
def test_later_ones_travel_alone(deployed: Deployed) -> None:
    mods = deployed.site_root / PLACE / BEFORE
    told = mods.read_text()
    mods.unlink()
    deployed.run("sync", "plant1")
    assert points(deployed) == PLAIN | WIDE
    mods.write_text(told)
    assert deployed.run("sync", "plant1")["sent_bytes"] == len(told)
    assert points(deployed) == WIDE
    mods.write_text(told + "DELETION,root.sg101.wide.y,1608,0,1000\n")
    assert deployed.run("sync", "plant1")["state"] == "loaded"
    assert points(deployed) == {key: count for key, count in WIDE.items() if key[1] != "y"}
    assert deployed.run("verify", "--deep")["differences"] == []


def test_those_that_the_resource_does_not_name_are_passed_over(tmp_path: Path) -> None:
    deployed = deploy(tmp_path)
    resource = deployed.site_root / PLACE / f"{NOW}.resource"
    resource.write_bytes(resource.read_bytes().replace(BEFORE.encode(), (NOW + ".mods").encode()))
    deployed.run("sync", "plant1")
    assert points(deployed) == PLAIN | WIDE
    assert "its TsFile is not there" in str(deployed.run("why", f"{PLACE}/{BEFORE}"))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("name", [f"../{BEFORE[3:]}", "/etc/passwd".ljust(31, "d"), "\0" * 31])
def test_a_hostile_name_is_no_name(name: str, tmp_path: Path) -> None:
    deployed = deploy(tmp_path)
    resource = deployed.site_root / PLACE / f"{NOW}.resource"
    resource.write_bytes(resource.read_bytes().replace(BEFORE.encode(), name.encode()))
    deployed.run("sync", "plant1")
    assert points(deployed) == PLAIN | WIDE


def test_a_folder_of_such_files_read_without_a_receiver(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(FOLDERS / "0.12.0-renamed", folder)
    for path in (str(folder), os.path.join(folder, PLACE, NOW)):  # noqa: PTH118
        [file] = find_files([path])
        assert Path(file.mods).name == BEFORE
