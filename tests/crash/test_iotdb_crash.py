"""A load into an IoTDB that dies before or after any of its effects, a LOAD among them, and is started again: the server
ends with the points of the catalog, no LOADed file is LOADed again, at no time is a newer value overwritten."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import Centre, d1
from tests.crash.dying_centre import dying
from tests.crash.explorer import Effects, explore, explore_double
from tests.small_files import deletion, source
from tests.small_iotdb import SmallIoTDB
from tidemark.receiver.iotdb.load import load_iotdb

URL = "iotdb://root@127.0.0.1:6667"


def build(centre: Centre) -> SmallIoTDB:
    """A server that has some files, and a catalog with every kind of news for it."""
    centre.receiver = replace(centre.receiver, iotdb=URL)
    centre.reopen()
    server = SmallIoTDB()
    sender = centre.sender()
    sender.land({source(2): d1((1, 12), (2, 22)), source(3): d1((7, 73)), source(4): d1((9, 94))})
    centre.load()
    load_iotdb(centre.app, centre.receiver, connect=server.connect)
    sender.land({source(1): d1((0, 1), (1, 11)), source(5): d1((11, 115)), source(6): d1((11, 116), (12, 126))})
    sender.land({source(3): {".mods": deletion("root.sg.d1.s", 7, 7).encode()}}, added=())
    centre.load()
    return server


class IotdbWorld:
    """A life is a load into the server, whose memory outlives it."""

    def __init__(self, folder: Path, made: Path, server: SmallIoTDB) -> None:
        shutil.copytree(made, folder)
        self.centre = Centre(folder)
        self.centre.receiver = replace(self.centre.receiver, iotdb=URL)
        self.centre.reopen()
        self.server = SmallIoTDB(
            {key: dict(points) for key, points in server.series.items()},
            dict(server.types),
            set(server.databases),
            [list(names) for names in server.loads],
        )

    def live(self, effects: Effects) -> None:
        def around(name: str, act: Callable[[], None]) -> None:
            effects.around(name, act)
            assert self.server.series["root.sg.d1", "s"][1] == 12, "a newer value was overwritten"

        self.server.around = around
        with dying(self.centre, effects):
            load_iotdb(self.centre.app, self.centre.receiver, connect=self.server.connect)

    def check(self) -> None:
        centre = self.centre
        centre.reopen()
        assert self.server.rows() == centre.rows()
        names = [name for names in self.server.loads for name in names if name != "1-1-0-0.tsfile"]
        assert len(names) == len(set(names)), f"LOADed twice: {sorted(names)}"
        live = (
            "SELECT DISTINCT i.state FROM iotdb_file i JOIN catalog_file f ON f.file_id = i.file_id WHERE f.state = 'live'"
        )
        assert centre.sql(live) == [("given",)]
        assert centre.sql("SELECT DISTINCT state FROM iotdb_partition") == [("equal",)]
        assert not (centre.root / "staging" / "iotdb").exists() or not list((centre.root / "staging" / "iotdb").iterdir())

    def lose_power(self) -> None:
        pass

    def close(self) -> None:
        self.centre.app.ledger.close()


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[[], IotdbWorld]:
    made = tmp_path / "made"
    made.mkdir()
    server = build(Centre(made))
    count = iter(range(100_000))
    return lambda: IotdbWorld(tmp_path / f"world{next(count)}", made, server)


@pytest.mark.timeout(300)
def test_every_crash_is_recovered(worlds: Callable[[], IotdbWorld], when: str) -> None:
    explored = explore(worlds, when=when)
    assert explored.all_died
    assert any("after LOAD" in name for name in explored.names) and any("before delete" in name for name in explored.names)


@pytest.mark.timeout(600)
def test_crashes_while_recovering_are_recovered(worlds: Callable[[], IotdbWorld]) -> None:
    assert explore_double(worlds, pairs=24).crashes > 24
