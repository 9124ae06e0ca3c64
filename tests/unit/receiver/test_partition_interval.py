"""`partition_interval_ms` of a receiver stays: which files may overlap is looked up by the partitions that it gave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.small_files import sealed, source
from tests.unit.sync.test_moved_files import housekeep_after

D, START, DAY = "root.sg.d", 1_700_000_000_000, 86_400_000


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A settled file of a sequence file and a late one above it. A late file between the two has come since."""
    world = Commanded(tmp_path, monkeypatch)
    world.put(source(1), points(100, range(10)))
    world.put(source(3, unsequence=True), points(300, range(5)))
    assert world.sync().code == 0
    assert world.run("merge").code == 0
    housekeep_after(world, 15, 17)
    world.put(source(2, unsequence=True), points(200, (7, 8)))
    return world


def points(value: int, days: range | tuple[int, ...]) -> dict[str, bytes]:
    return sealed({D: {"s": [(START + day * DAY, value + day) for day in days]}})


def test_another_one_is_refused_before_anything_is_loaded(world: Commanded) -> None:
    world.receiver_keys = {"partition_interval_ms": DAY}
    world.write_settings()
    for words in (["sync", "plant1"], ["load"], ["merge"]):
        world.run(*words).refused(6, "another partition_interval_ms than 86400000")
    doctor = world.run("doctor")
    assert doctor.code == 6 and "as it was" in doctor.json["hint"]
    world.receiver_keys = {}
    world.write_settings()
    for _ in range(2):
        assert world.sync().code == 0
    assert [int(row[4]) for row in world.rows()] == [300, 301, 302, 303, 304, 105, 106, 207, 208, 109]
    assert world.run("verify", "--deep").code == 0
    assert world.run("doctor").code == 0


def test_a_unit_of_time_that_was_mended_since_is_no_other_interval(world: Commanded) -> None:
    world.site_keys = {"time_unit": "us"}
    world.write_settings()
    assert world.sync().code == 0
    assert world.sync().code == 0
