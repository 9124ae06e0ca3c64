"""Folders of this machine whose names look like parts of an address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commanded import Commanded, row


@pytest.mark.parametrize("name", ["100%41", "a%20b", "a b", "x#y?z", "é;&"])
def test_a_site_and_a_receiver_lie_in_such_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    world = Commanded(folder, monkeypatch)
    world.seal(1)
    assert world.sync().code == 0
    assert world.rows() == [row("root.sg", 1, time) for time in (1, 2, 3)]
    assert world.run("verify", "--deep").code == 0
    assert world.run("doctor").code == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    world.store, world.centre = f"file://{folder}/site", f"file://{folder}/centre"
    world.write_settings()
    world.assert_in_step()
