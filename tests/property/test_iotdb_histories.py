"""Whatever comes, in whatever order, through whatever troubles of the server: in the end it has the catalog's points."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.centre import Centre, d1
from tests.landing_maker import Sender
from tests.small_files import deletion, source
from tests.small_iotdb import SmallIoTDB
from tests.unit.receiver.test_load_iotdb import Pair


class History:
    """Random deeds of a site and of the server between loads."""

    def __init__(self, pair: Pair, sender: Sender, chance: random.Random) -> None:
        self.pair, self.sender, self.chance = pair, sender, chance
        sender.deletes = "apply"
        self.free = chance.sample(range(1, 60), 40)
        self.mods: dict[str, str] = {}
        self.live: dict[str, dict[int, int]] = {}

    def new_files(self) -> None:
        files = {}
        for number in (self.free.pop() for _ in range(self.chance.randint(1, 3))):
            path = source(number, unsequence=self.chance.random() < 0.5)
            times = sorted(self.chance.sample(range(30), self.chance.randint(1, 10)))
            self.live[path] = {t: 1000 * number + t for t in times}
            files[path] = d1(*self.live[path].items())
        self.sender.land(files)

    def deletions(self) -> None:
        path = self.chance.choice(list(self.live))
        start = self.chance.randrange(30)
        self.mods[path] = self.mods.get(path, "") + deletion("root.sg.d1.s", start, start + self.chance.randint(0, 8))
        self.sender.land({path: {".mods": self.mods[path].encode()}}, added=())

    def drop(self) -> None:
        path = self.chance.choice(list(self.live))
        del self.live[path]
        self.sender.land(dropped=(self.sender.drop(path),), removed=(path,))

    def step(self) -> None:
        deeds = [self.new_files] if len(self.live) < 3 else [self.new_files, self.new_files, self.deletions, self.drop]
        if len(self.free) < 4:
            deeds = [self.deletions]
        self.chance.choice(deeds)()
        server = self.pair.server
        server.down = self.chance.random() < 0.1
        server.lose_answers = self.chance.random() < 0.2
        refused = self.chance.randint(1, 8) if self.chance.random() < 0.2 else 0
        server.refuse = lambda path: "1100 not now" if refused and path.name.split("-")[1].endswith(str(refused)) else ""


@pytest.mark.full_after(1)
@pytest.mark.parametrize("seed", range(12))
def test_the_server_follows_any_history(seed: int, tmp_path: Path) -> None:
    centre: Centre = Centre(tmp_path)
    pair = Pair(centre)
    history = History(pair, centre.sender(), random.Random(seed))
    for _ in range(10):
        history.step()
        pair.load()
    server: SmallIoTDB = pair.server
    server.down, server.lose_answers, server.refuse = False, 0, lambda _: ""
    assert pair.load().exit_code == 0
    assert server.rows() == centre.rows()
    assert pair.partitions() == {"equal"} and pair.states() <= {"given", "gone"}
