"""A machine of a task's members beside a model in dicts: join, leave, die, sleep, done, rewind, reshard, retain, a
ledger that is away or whose answers are lost.

The model knows which rows have to come (again), and which were said to be done by who may say so. Whatever happens, a point
is never ahead of an unbroken run of rows that are done, rows of a shard come in their order, no two members may give out the
same shard at one time, and in the end every row was done, shared evenly by those that are left.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy.engine import Connection

from tests.delivery_worlds import KEYS, ORDERS, START, Change, changes_of, fill_store, keys_of
from tidemark.changes.delivery import tasks
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.shards import Sharding, shard_rows
from tidemark.changes.delivery.stream import LEASE_SECONDS, Options, Stream
from tidemark.changes.delivery.tasks import Wanted
from tidemark.changes.store import retain
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Op, Row, Rows
from tidemark.errors import RetryableError
from tidemark.ledger.database import Ledger
from tidemark.ledger.delivery import read_points, read_task
from tidemark.ledger.leases import Identity, Leases
from tidemark.ledger.migrations import migrate_ledger

NAME = "billing"
MINUTES = 20  # three transactions an hour
FIRST, MOST = 24, 60
OPTIONS = Options(rows=3, follow=False, undone=3, checkpoint_seconds=5)


@cache
def shards_of_keys(shards: int) -> list[int]:
    """The shard of each key."""
    rows = Rows.of(ORDERS, [Row(Op.INSERT, None, (key, 0)) for key in range(KEYS)])
    return [int(shard) for shard in shard_rows(Sharding(shards), rows)]


def everything(_database: str, _table: str) -> bool:
    return True


class TaskMachine(RuleBasedStateMachine):
    template: Path
    folder: Path

    @initialize(shards=st.integers(1, 4))
    def begin(self, shards: int) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder)
        self.disk = Disk(self.folder / "store")
        self.ledger = Ledger(f"sqlite:///{self.folder / 'ledger.db'}")
        self.clock = 1000.0
        self.pids = 0
        self.last, self.fence = FIRST, 1
        self.members: list[Stream] = []
        self.dead: set[Identity] = set()
        self.batches: list[tuple[Stream, Batch, int]] = []
        tasks.open_task(self.ledger, self.disk, Wanted(NAME, "orders", shards), 1.0)
        # the model
        self.done: dict[Change, bool] = {}
        self.version: dict[int, int] = {}
        self.given: dict[tuple[int, int, str], Change] = {}  # by shard, version and member: the last row given out
        self.divide(shards)
        self.note_versions()
        self.join("alpha")
        self.join("beta")

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.drain()
            self.ledger.close()

    # the model

    def divide(self, shards: int) -> None:
        """Which shard has each row."""
        self.shards = shards
        keys = shards_of_keys(shards)
        every = range(1, self.last + 1)
        self.shard_of = {(number, row): keys[key] for number in every for row, key in enumerate(keys_of(number))}
        for change in self.shard_of:
            self.done.setdefault(change, False)

    def note_versions(self) -> None:
        with self.ledger.read() as connection:
            self.version = {shard: point.version_ts for shard, point in read_points(connection, NAME).items()}

    # what happens

    @precondition(lambda self: len(self.members) < 4)
    @rule(host=st.sampled_from(["alpha", "alpha", "beta"]))
    def come(self, host: str) -> None:
        self.join(host)

    def join(self, host: str) -> None:
        self.pids += 1
        me = Identity(host, "boot", self.pids, str(self.pids))
        leases = Leases(self.ledger, me, lambda i: i not in self.dead, LEASE_SECONDS, lambda _connection: self.clock)
        with self.ledger.read() as connection:
            task = read_task(connection, NAME)
        assert task is not None
        member = Stream(leases, self.disk, task, everything, OPTIONS)
        member.clock = lambda: self.clock
        member.join()
        self.members.append(member)

    def choose(self, data: st.DataObject) -> Stream:
        return data.draw(st.sampled_from(self.members))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self.choose(data)
        self.members.remove(member)
        member.close()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        member = self.choose(data)
        self.members.remove(member)
        self.batches = [one for one in self.batches if one[0] is not member]
        self.dead.add(member.leases.identity)

    @rule(seconds=st.sampled_from([5.0, 20.0, 50.0]), sleeps=st.integers(0, 8))
    def wait(self, seconds: float, sleeps: int) -> None:
        """Time passes; one of the members may sleep meanwhile."""
        self.clock += seconds
        for number, member in enumerate(self.members):
            if number != sleeps:
                member.beat()

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.choose(data).beat()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), is_written=st.booleans())
    def beat_while_the_ledger_breaks(self, data: st.DataObject, is_written: bool) -> None:
        """Nothing can be written, or the answer to the first COMMIT is lost."""
        write = self.ledger.write

        @contextmanager
        def write_and_break() -> Iterator[Connection]:
            if is_written:
                with write() as connection:
                    yield connection
            raise RetryableError("the ledger is away")

        member = self.choose(data)
        with pytest.MonkeyPatch.context() as patched, suppress(RetryableError):
            patched.setattr(self.ledger, "write", write_and_break)
            member.beat()

    @precondition(lambda self: self.members)
    @rule(data=st.data(), count=st.integers(1, 6), settled=st.integers(0, 63))
    def work(self, data: st.DataObject, count: int, settled: int) -> None:
        """Take some batches, and say of some that they are done."""
        member = self.choose(data)
        for number in range(count):
            if self.take_one(member) is not None and settled >> number & 1:
                self.settle(*self.batches.pop())

    def take_one(self, member: Stream) -> Batch | None:
        batch = member.next_batch(patience=0)
        if batch is None:
            return None
        held = member._held[batch.shard]
        version = held.saved.version_ts
        rows = changes_of(batch)
        key = (batch.shard, version, held.lease.name + str(held.lease.fence))
        assert rows == sorted(rows)
        assert self.given.get(key, (0, 0)) < rows[0]
        self.given[key] = rows[-1]
        if version == self.version.get(batch.shard):
            assert all(self.shard_of[row] == batch.shard for row in rows)
        self.batches.append((member, batch, version))
        return batch

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), twice=st.booleans())
    def say_done(self, data: st.DataObject, twice: bool) -> None:
        one = data.draw(st.sampled_from(self.batches))
        self.settle(*one)
        if not twice:
            self.batches.remove(one)

    def settle(self, member: Stream, batch: Batch, version: int) -> None:
        batch.done()
        if self.version.get(batch.shard) == version:
            for row in changes_of(batch):
                self.done[row] = True

    @rule(data=st.data(), alone=st.booleans())
    def rewind(self, data: st.DataObject, alone: bool) -> None:
        seq = data.draw(st.integers(tasks.Reader(self.disk).first, self.last + 1))
        shards = [data.draw(st.integers(0, self.shards - 1))] if alone else []
        change = tasks.plan_rewind(self.ledger, self.disk, everything, NAME, f"seq:{seq}", shards, 1.0)
        tasks.apply_change(self.ledger, change, "rewind")
        for row, shard in self.shard_of.items():
            if not shards or shard in shards:
                self.done[row] = row < (seq, 0)
        self.note_versions()

    @rule(shards=st.integers(1, 5))
    def reshard(self, shards: int) -> None:
        with self.ledger.read() as connection:
            earliest = min(point.order for point in read_points(connection, NAME).values())
        change = tasks.plan_reshard(self.ledger, self.disk, everything, NAME, shards, 1.0)
        tasks.apply_change(self.ledger, change, "reshard")
        for row in self.shard_of:
            if row >= earliest:
                self.done[row] = False
        self.divide(shards)
        self.note_versions()

    @precondition(lambda self: self.last < MOST)
    @rule(more=st.integers(1, 5))
    def append(self, more: int) -> None:
        self.fence += 1
        fill_store(self.folder / "store", self.last + 1, self.last + more, fence=self.fence, minutes=MINUTES)
        self.last += more
        self.divide(self.shards)

    @rule()
    def retain(self) -> None:
        needed = tasks.needed_of(self.ledger, "orders")
        assert needed is not None
        now = START / 1e6 + (self.last * MINUTES + 600) * 60
        retain.retain(self.disk, retain.Rules(hours=1, needed=needed), now)
        assert tasks.Reader(self.disk).first <= needed

    # what holds

    @invariant()
    def no_point_is_ahead_of_what_is_done(self) -> None:
        if not hasattr(self, "ledger"):
            return
        with self.ledger.read() as connection:
            points = read_points(connection, NAME)
        assert set(points) == set(range(self.shards))
        for row, is_done in self.done.items():
            shard = self.shard_of.get(row)
            assert is_done or shard is None or row >= points[shard].order, (row, shard, points[shard])

    @invariant()
    def nobody_shares_a_shard(self) -> None:
        held: set[tuple[int, int]] = set()
        for member in getattr(self, "members", []):
            if self.clock < member._valid_until:
                mine = {(member.task.generation, shard) for shard in member.shards}
                assert not mine & held
                held |= mine
        assert len({generation for generation, _ in held}) <= 1

    def drain(self) -> None:
        """In the end all rows come, to members that share evenly."""
        while len(self.members) < 2:
            self.join("alpha")
        for member, batch, version in self.batches:
            self.settle(member, batch, version)
        self.batches = []
        for _ in range(8):
            self.clock += 20
            for member in self.members:
                member.beat()
        counts = [len(member.shards) for member in self.members]
        assert sum(counts) == self.shards
        assert max(counts) - min(counts) <= 1
        self.last += 1
        self.fence += 1
        fill_store(self.folder / "store", self.last, self.last, fence=self.fence, minutes=MINUTES)
        self.divide(self.shards)
        for member in self.members:
            member._until = self.last
            while (batch := self.take_one(member)) is not None:
                self.settle(*self.batches.pop())
        for member in self.members:
            member.close()
        assert all(self.done[row] for row in self.shard_of)
        with self.ledger.read() as connection:
            assert {point.seq for point in read_points(connection, NAME).values()} == {self.last + 1}


@contextmanager
def a_template(folder: Path) -> Iterator[Path]:
    fill_store(folder / "store", 1, FIRST, minutes=MINUTES)
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
    migrate_ledger(ledger)
    ledger.close()
    yield folder


def test_members_of_a_task_against_the_model(tmp_path: Path) -> None:
    with a_template(tmp_path / "template") as template:

        class Bound(TaskMachine):
            pass

        Bound.template, Bound.folder = template, tmp_path / "world"
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
        examples = max(20, settings.default.max_examples // 3)  # each is a store and a ledger on a disk
        run_state_machine_as_test(
            Bound,
            settings=settings(deadline=None, max_examples=examples, stateful_step_count=30, suppress_health_check=checks),
        )
