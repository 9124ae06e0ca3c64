"""A change store beside a plain list: append, die, take over, find, read; a holder that was replaced goes on writing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.change_worlds import (
    HOUR,
    SMALL,
    START,
    DyingDisk,
    Power,
    gtids_at,
    has_gtid,
    make_transaction,
    read_all,
    without_records,
)
from tests.crash.explorer import Died, Effects
from tidemark.changes.store import read
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Transaction
from tidemark.changes.store.read import Reader
from tidemark.changes.store.verify import verify_store
from tidemark.changes.store.write import Writer
from tidemark.errors import LeaseLostError, PermanentError


class ChangeStores(RuleBasedStateMachine):
    """`source` is what the source committed. Every writer copies it from where the store ends."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.source: list[Transaction] = []
        self.fence = self.told = self.seen = 0
        self.zombies: list[Writer] = []
        self.power = Power()
        self.now = START

    @initialize()
    def begin(self) -> None:
        self.take_over()

    def teardown(self) -> None:
        assert read_all(Disk(self.root)) == self.source[: self.seen]
        shutil.rmtree(self.root)

    @rule()
    def take_over(self) -> None:
        """A new holder. The former one does not know, and lives."""
        if self.fence:
            self.zombies.append(self.writer)
        self.open_writer()

    def open_writer(self) -> None:
        self.fence += 1
        self.effects = Effects()
        disk = DyingDisk(self.root, self.effects, self.power)
        self.writer = Writer(disk, self.fence, SMALL)
        assert self.writer.state.seq >= self.told
        assert self.writer.gtids == gtids_at(self.writer.state.seq)

    @rule(count=st.integers(1, 12), minutes=st.sampled_from([-50, 0, 0, 1, 59, 61]))
    def append(self, count: int, minutes: int) -> None:
        self.now += minutes * HOUR // 60
        for _ in range(count):
            number = self.writer.state.seq + 1
            if number > len(self.source):
                self.source.append(make_transaction(number, self.now))
            self.writer.append(self.source[number - 1], gtids_at(number))

    @rule(size=st.integers(1, 40), fails=st.booleans())
    def append_large(self, size: int, fails: bool) -> None:
        number = self.writer.state.seq + 1
        if number > len(self.source):
            records = [record for each in range(1, size) for record in make_transaction(each).records]
            self.source.append(make_transaction(number, self.now, records))
        whole = self.source[number - 1]

        def failing():  # type: ignore[no-untyped-def]
            yield from whole.records
            raise KeyError("the source is gone")

        if fails:
            try:
                self.writer.append_large(without_records(whole), failing(), gtids_at(number))
            except KeyError:
                assert self.writer.state.seq == number - 1
        else:
            self.writer.append_large(without_records(whole), whole.records, gtids_at(number))

    @rule()
    def sync(self) -> None:
        assert self.writer.sync() == self.writer.state
        self.told = self.writer.durable.seq

    @rule()
    def close(self) -> None:
        self.writer.close()
        self.told = self.writer.durable.seq
        self.open_writer()

    @rule(effect=st.integers(1, 12), power=st.booleans(), seed=st.integers(0, 99))
    def die(self, effect: int, power: bool, seed: int) -> None:
        """Die at one of the next effects, and take over."""
        self.effects.die_at = self.effects.count + effect
        try:
            for _ in range(8):
                self.append(2, 20)
                self.sync()
        except Died:
            if power:
                self.power.lose(self.root, Random(seed))
                self.zombies.clear()
        self.open_writer()

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), close=st.booleans())
    def zombie_writes(self, data: st.DataObject, close: bool) -> None:
        """Another transaction than the one that the holder has or will have under its number."""
        zombie = data.draw(st.sampled_from(self.zombies))
        state = zombie.state
        try:
            zombie.append(make_transaction(10_000 + state.seq, state.newest), "u:1-10000")
            zombie.close() if close else zombie.sync()
        except (LeaseLostError, PermanentError):
            return
        raise AssertionError("a replaced holder was told that its bytes are durable")

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), names=st.booleans())
    def zombie_finishes_its_last_effect(self, data: st.DataObject, names: bool) -> None:
        """It looked before the new holder came, and its bytes reach the disk now."""
        zombie = data.draw(st.sampled_from(self.zombies))
        disk = Disk(self.root)
        if zombie._tail is not None and names:
            disk.append(zombie._tail.path, 0, b"")
        elif zombie._bucket is not None and (self.root / zombie._bucket.path).exists():
            at = (self.root / zombie._bucket.path).stat().st_size
            disk.append(zombie._bucket.path, at, (self.root / zombie._bucket.path).read_bytes())

    @invariant()
    def readers_see_what_is_durable(self) -> None:
        if self.fence:
            found = read_all(Disk(self.root))
            assert found == self.source[: len(found)]
            assert len(found) >= max(self.told, self.seen)
            self.seen = len(found)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), indexes=st.booleans())
    def find(self, data: st.DataObject, indexes: bool) -> None:
        number = data.draw(st.integers(1, self.seen))
        if not indexes:  # they can be lost
            for place in [self.root / "index.l1", *self.root.glob("data/*/*.l2")]:
                place.write_bytes(place.read_bytes()[: number * 37]) if place.exists() else None
        reader = Reader(Disk(self.root))
        info = self.source[number - 1].info
        times = [t.info.timestamp for t in self.source[: self.seen]]
        later = [index for index, time in enumerate(times, 1) if time >= info.timestamp]
        gtid = f"u:{number}"
        wanted = [
            (read.at_seq(number), number),
            (read.at_position(info.order), number),
            (read.at_gtid_offset(number), number),
            (read.at_time(info.timestamp), later[0]),
            (read.at_gtid(gtid, has_gtid), number),
            (read.at_first_outside(lambda gtids: has_gtid(gtids, gtid), lambda other: int(other[2:]) < number), number),
        ]
        for target, seq in wanted:
            found = reader.find(target)
            assert found is not None
            assert found.seq == seq
        reader = Reader(Disk(self.root))
        assert [t for _, t in reader.read_whole(number)] == self.source[number - 1 : self.seen]
        assert reader.find(read.at_seq(self.seen + 1)) is None

    @rule()
    def verify(self) -> None:
        assert verify_store(Disk(self.root)).problems == ()


def test_any_history_of_holders() -> None:
    run_state_machine_as_test(ChangeStores, settings=settings(max_examples=12, stateful_step_count=20, deadline=None))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_many_histories_of_holders() -> None:
    run_state_machine_as_test(ChangeStores, settings=settings(max_examples=400, stateful_step_count=40, deadline=None))
