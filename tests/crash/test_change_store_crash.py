"""The change store's writer dies at every effect: what was told as durable stays, and nothing stands twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.change_worlds import HOUR, SMALL, START, DyingDisk, Power, gtids_at, make_transaction, read_all, without_records
from tests.crash.explorer import Effects, explore, explore_double
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Transaction
from tidemark.changes.store.read import Reader
from tidemark.changes.store.retain import Rules, retain
from tidemark.changes.store.verify import verify_store
from tidemark.changes.store.view import read_first
from tidemark.changes.store.write import Writer

LARGE = 9


def make_source() -> list[Transaction]:
    """Two blocks, an hour that turns, a bucket that is full, and a transaction that is larger than a block."""
    times = [START + (HOUR if number > 6 else 0) + number for number in range(1, 15)]
    source = [make_transaction(number, time) for number, time in enumerate(times, 1)]
    many = tuple(record for number in range(1, 25) for record in make_transaction(number).records)
    source[LARGE - 1] = make_transaction(LARGE, times[LARGE - 1], many)
    return source


SOURCE = make_source()


class StoreWorld:
    """A store that is filled from `SOURCE`, by as many holders as it takes."""

    def __init__(self, root: Path, choice: Random | None = None) -> None:
        self.root = root
        self.choice = choice  # the power goes with each death
        self.fence = 0
        self.told = 0  # transactions that somebody was told of as durable
        self.power = Power()

    def live(self, effects: Effects) -> None:
        self.fence += 1
        with Writer(DyingDisk(self.root, effects, self.power), self.fence, SMALL) as writer:
            assert writer.state.seq >= self.told
            assert writer.gtids == gtids_at(writer.state.seq)
            for number, transaction in enumerate(SOURCE[writer.state.seq :], writer.state.seq + 1):
                if number == LARGE:
                    writer.append_large(without_records(transaction), transaction.records, gtids_at(number))
                else:
                    writer.append(transaction, gtids_at(number))
                if number % 2:
                    writer.sync()
                self.told = max(self.told, writer.durable.seq)

    def lose_power(self) -> None:
        if self.choice:
            self.power.lose(self.root, self.choice)
        seen = read_all(Disk(self.root))
        assert seen == SOURCE[: len(seen)]

    def check(self) -> None:
        assert read_all(Disk(self.root)) == SOURCE
        found = verify_store(Disk(self.root))
        assert (found.transactions, found.problems, found.indexes) == (len(SOURCE), (), ())
        assert len(list((self.root / "tail").iterdir())) == 1
        assert [path.name for path in (self.root / "holders").iterdir()] == [f"{self.fence}.json"]

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class RetainingWorld:
    """A store of six hours, of which retention removes three, and compresses two of what is left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with Writer(Disk(root), 1, SMALL) as writer:
            for number in range(1, 7):
                writer.append(make_transaction(number, START + number * HOUR), gtids_at(number))

    def live(self, effects: Effects) -> None:
        disk = DyingDisk(self.root, effects)
        now = START / 1_000_000 + 30 * 3600
        for seconds in (0, 60):
            retain(disk, Rules(hours=26, grace_seconds=60, compress_hours=1), now + seconds)

    def lose_power(self) -> None:
        found = [seq for seq, _ in Reader(Disk(self.root)).read_whole()]
        assert found == list(range(found[0], 7))
        assert found[0] <= 4

    def check(self) -> None:
        reader = Reader(Disk(self.root))
        assert [seq for seq, _ in reader.read_whole()] == [4, 5, 6]
        assert [read_first(reader.disk, one.file)[0].is_dense for one in reader.view.buckets] == [True, True, False]
        assert list((self.root / "expired").iterdir()) == []

    def close(self) -> None:
        shutil.rmtree(self.root)


def test_retention_that_dies(tmp_path: Path) -> None:
    explore(lambda: RetainingWorld(tmp_path / "s"))


def test_a_killed_process(tmp_path: Path) -> None:
    explored = explore(lambda: StoreWorld(tmp_path / "s"))
    assert explored.all_died
    for effect in (
        "before publish holders/1.claim",
        "before publish holders/1.json",
        "after half of append data/",
        "before index ",
    ):
        assert any(name.startswith(effect) for name in explored.names), effect


@pytest.mark.full
def test_a_power_loss(tmp_path: Path) -> None:
    explore(lambda: StoreWorld(tmp_path / "s", Random(1)))


@pytest.mark.full
def test_two_deaths_one_after_the_other(tmp_path: Path) -> None:
    explore_double(lambda: StoreWorld(tmp_path / "s", Random(2)), 100)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_deaths_one_after_the_other(tmp_path: Path) -> None:
    explore_double(lambda: StoreWorld(tmp_path / "s", Random(2)), 2000)
