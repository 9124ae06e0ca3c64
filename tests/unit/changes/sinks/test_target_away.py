"""A sink whose target is not the one that was written to, as where a disk is not mounted: nothing is written to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sink_worlds import SinkWorld, inserted, read
from tests.unit.changes.sinks.test_catalog import CatalogWorld, row

KINDS = ["delta", "history", "catalog"]


def make(folder: Path, kind: str) -> SinkWorld:
    if kind == "catalog":
        world = CatalogWorld(folder)
        world.read_all([read(*row(1, "m1", 1))])
        return world
    plain = SinkWorld(folder, kind)
    plain.bootstrap(read(1, "a", "1.00"))
    return plain


def change(world: SinkWorld, number: int) -> None:
    if isinstance(world, CatalogWorld):
        world.change([inserted(*row(number, "m1", number))])
    else:
        world.append([inserted(number, "a", "1.00")])


def list_files(world: SinkWorld) -> list[str]:
    return sorted(path.name for path in world.target.rglob("*") if path.suffix in (".parquet", ".tsfile"))


@pytest.mark.parametrize("has_folder", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_not_mounted_gets_no_rows(tmp_path: Path, kind: str, has_folder: bool) -> None:
    world = make(tmp_path, kind)
    world.deliver()
    shutil.move(world.target, tmp_path / "away")
    if has_folder:
        world.target.mkdir()
    change(world, 2)
    said = world.run("deliver", "lake")
    assert (said.code, said.json["hint"]) == (5, "mount it; where it is lost, begin a sink of another name")
    assert world.run("show", "orders").json["tasks"][0]["points"][0]["point"] == "seq:4"
    assert list_files(world) == []
    shutil.rmtree(world.target, ignore_errors=True)
    shutil.move(tmp_path / "away", world.target)
    assert world.run("deliver", "lake").code == 0
    assert len(list_files(world)) == 2


def test_an_older_copy_of_the_files_of_a_catalog_is_told(tmp_path: Path) -> None:
    world = make(tmp_path, "catalog")
    world.deliver()
    shutil.copytree(world.target, tmp_path / "copy")
    change(world, 2)
    world.deliver()
    shutil.rmtree(world.target)
    shutil.move(tmp_path / "copy", world.target)
    change(world, 3)
    assert world.run("deliver", "lake").code == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_that_has_no_row_yet_goes_on(tmp_path: Path, kind: str) -> None:
    world = make(tmp_path, kind)
    world.config.write_text(world.config.read_text().replace("shards = 2\n", 'shards = 2\ntables = ["none.*"]\n'))
    for number in range(2, 4):
        assert world.run("deliver", "lake").code == 0
        change(world, number)
    assert list_files(world) == []
