"""Members, late workers and lost disks in any order: a master has every committed operation and is alone in its epoch.

The machine elects whom it likes. So it proves the promotion and the fence, and not the election, which is only a good guess.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidemark.cluster.replicas.core.continuity import Log, Record, is_continued
from tidemark.cluster.replicas.core.epochs import (
    Fence,
    Promotion,
    Verdict,
    Vote,
    judge_append,
    judge_fence,
    judge_promotion,
)
from tidemark.cluster.replicas.core.quorum import has_barrier_quorum
from tidemark.cluster.replicas.core.roles import ORIGIN, Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.core.status import evaluate

pytestmark = pytest.mark.timeout(1200)  # thousands of long lives in the soak
SIZES = [(2, 2), (3, 2), (3, 3), (4, 2), (4, 3), (5, 2), (5, 3)]  # members, quorum
EMPTY = Log(ORIGIN)
picks = st.integers(0, 999)
some = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@dataclass
class Node:
    fence: Fence | None
    log: Log = EMPTY
    intact: bool = True  # False from the loss of its disk, or of a log that parted, to the end of its recovery


@dataclass
class Worker:
    """Whoever acts for the master of an epoch, however late. `log`: what it believes the master's log to be."""

    fence: Fence
    votes: list[Vote] = field(default_factory=list)
    log: Log | None = None  # once the promotion is decided; it begins with the barrier
    barrier: int = 0
    holders: dict[int, set[str]] = field(default_factory=dict)  # version → members that acknowledged
    committed: int = 0


def next_record(end: LogEnd, epoch: int, operation: str) -> Record:
    position = Position(epoch, end.position.version + 1)
    return Record(position, hash((end.crc, position, operation)), end.crc, operation)


class ReplicaMachine(RuleBasedStateMachine):
    @initialize(size=st.sampled_from(SIZES))
    def begin(self, size: tuple[int, int]) -> None:
        count, quorum = size
        names = "ABCDE"[:count]
        self.group = Group(tuple(Member(name, Role.UNSYNCED) for name in names), quorum)
        self.nodes = {name: Node(Fence("c", 0, "")) for name in names}
        self.workers: list[Worker] = []
        self.committed: dict[int, Record] = {}
        self.operations = 0

    def node(self, pick: int) -> tuple[str, Node]:
        name = sorted(self.nodes)[pick % len(self.nodes)]
        return name, self.nodes[name]

    def worker(self, pick: int) -> Worker:
        """The newest one mostly, the others now and then."""
        return self.workers[-1] if pick % 3 else self.workers[pick // 3 % len(self.workers)]

    def in_force(self) -> Worker | None:
        return next((worker for worker in reversed(self.workers) if worker.log), None)

    @rule(candidate=picks, where=some)
    def stand(self, candidate: int, where: list[int]) -> None:
        """A new epoch, for whom whoever likes; the first members are asked."""
        self.workers.append(Worker(Fence("c", len(self.workers) + 1, self.node(candidate)[0])))
        self.vote(len(self.workers) * 3 - 3, [candidate, *where])

    @precondition(lambda self: self.workers)
    @rule(who=picks, where=some)
    def vote(self, who: int, where: list[int]) -> None:
        worker = self.worker(who)
        for name, node in map(self.node, where):
            if worker.log is None and judge_fence(node.fence, worker.fence) is Verdict.ACCEPT:
                node.fence = worker.fence
                worker.votes = [vote for vote in worker.votes if vote.member != name]
                worker.votes.append(Vote(name, node.log.end, node.intact))
        self.promote(worker)

    def promote(self, worker: Worker) -> None:
        master = worker.fence.master
        if worker.log or judge_promotion(self.group, master, worker.votes) is not Promotion.WRITE_BARRIER:
            return
        node = self.nodes[master]
        voted = next(vote.end for vote in worker.votes if vote.member == master)
        barrier = next_record(voted, worker.fence.epoch, f"barrier {worker.fence.epoch}")
        if judge_append(node.fence, node.log, worker.fence, barrier) is Verdict.ACCEPT:
            node.log = worker.log = Log(ORIGIN, (*node.log.records, barrier))
            worker.barrier = barrier.position.version
            worker.holders[worker.barrier] = {master} if node.intact else set()
            self.has_all(worker, self.committed.values())

    def has_all(self, worker: Worker, committed: Iterable[Record]) -> None:
        assert worker.log
        mine = worker.log.records
        for record in committed:
            at = record.position.version
            assert at <= len(mine) and mine[at - 1] == record, f"{worker.fence} lacks {record}"

    @precondition(lambda self: any(worker.log for worker in self.workers))
    @rule(who=picks, where=some)
    def operate(self, who: int, where: list[int]) -> None:
        worker = self.worker(who)
        node = self.nodes[worker.fence.master]
        if worker.log is None:
            return
        self.operations += 1
        record = next_record(worker.log.end, worker.fence.epoch, f"op {self.operations}")
        if judge_append(node.fence if node.intact else None, node.log, worker.fence, record) is Verdict.ACCEPT:
            node.log = worker.log = Log(ORIGIN, (*worker.log.records, record))
            worker.holders[record.position.version] = {worker.fence.master}
            self.bring(who, where, 9)

    @precondition(lambda self: any(worker.log for worker in self.workers))
    @rule(who=picks, where=some, steps=st.integers(1, 9))
    def bring(self, who: int, where: list[int], steps: int) -> None:
        """Forward, or recover first: a log that is no beginning of the worker's is set aside, and comes anew."""
        worker = self.worker(who)
        for name, node in map(self.node, where):
            if worker.log is None or judge_fence(node.fence, worker.fence) is not Verdict.ACCEPT:
                continue
            if node.log.records != worker.log.records[: len(node.log.records)]:
                node.log, node.intact = EMPTY, False  # it is marked as filling, and has no vote until it has all again
            if not node.log.records or not node.intact:
                node.fence = worker.fence
            for record in worker.log.records[len(node.log.records) :][:steps]:
                assert judge_append(node.fence, node.log, worker.fence, record) is Verdict.ACCEPT
                node.fence = worker.fence
                node.log = Log(ORIGIN, (*node.log.records, record))
            if node.log.end == worker.log.end and worker is self.workers[-1]:
                node.intact = True  # the ledger makes it a slave, while it gave no newer epoch
            if node.intact:
                for version in range(worker.barrier, node.log.end.position.version + 1):
                    worker.holders[version].add(name)
            self.commit(worker)

    def commit(self, worker: Worker) -> None:
        """What lies at a quorum in the worker's own epoch is committed, and with it all before it."""
        assert worker.log
        if not has_barrier_quorum(len(worker.holders[worker.barrier]), self.group, granted=False):
            return
        enough = [version for version, names in worker.holders.items() if len(names) >= self.group.quorum]
        committed = worker.log.records[worker.committed : max(enough)]
        for record in committed:
            assert self.committed.setdefault(record.position.version, record) == record
        worker.committed = max(worker.committed, *enough)
        for later in self.workers:
            if later.log and later.fence.epoch > worker.fence.epoch:
                self.has_all(later, committed)

    @rule(where=picks)
    def lose_disk(self, where: int) -> None:
        """Fewer holders than the quorum are lost at a time."""
        _, node = self.node(where)
        if sum(not other.intact for other in self.nodes.values()) < self.group.quorum - 1 or not node.intact:
            node.log, node.intact, node.fence = EMPTY, False, None

    def teardown(self) -> None:
        """Whatever was: once all members are back, an election succeeds, and all end alike with all that is committed."""
        if not hasattr(self, "nodes"):
            return
        there = tuple(Member(name, Role.UNSYNCED, node.log.end) for name, node in sorted(self.nodes.items()))
        elected = evaluate(replace(self.group, members=there), consistent=True).master
        assert elected is not None
        everybody = list(range(len(there)))
        self.stand(sorted(self.nodes).index(elected), everybody)
        worker = self.workers[-1]
        self.bring(len(self.workers) * 3 - 3, everybody, 999)
        assert worker.log and {node.log.end for node in self.nodes.values()} == {worker.log.end}
        assert worker.committed == worker.barrier and all(node.intact for node in self.nodes.values())

    @invariant()
    def logs_are_chains_that_agree(self) -> None:
        seen: dict[Position, LogEnd] = {}
        for node in getattr(self, "nodes", {}).values():
            end = ORIGIN
            for record in node.log.records:
                assert is_continued(end, record)
                end = record.end
                assert seen.setdefault(record.position, record.end) == record.end

    @invariant()
    def what_is_committed_is_below_the_barrier_of_the_newest_master(self) -> None:
        """So an operation in doubt is committed if it is in the master's log, and never will be if it is not."""
        worker = self.in_force() if hasattr(self, "nodes") else None
        if worker and worker.log and has_barrier_quorum(len(worker.holders[worker.barrier]), self.group, granted=False):
            self.has_all(worker, self.committed.values())


TestReplicas = ReplicaMachine.TestCase


votes = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(0, 4)), max_size=40)


@given(st.sampled_from([*SIZES, (3, 1), (5, 1)]), votes)
def test_no_epoch_ever_has_two_masters(size: tuple[int, int], votes: list[tuple[int, int, int]]) -> None:
    """Any member may be asked for any epoch and any candidate at any time, without a ledger that gives epochs."""
    count, quorum = size
    group = Group(tuple(Member(name, Role.UNSYNCED) for name in "ABCDE"[:count]), quorum)
    fences = {name: Fence("c", 0, "") for name in "ABCDE"[:count]}
    votes: dict[Fence, list[Vote]] = {}
    for who, epoch, candidate in votes:
        name, asked = "ABCDE"[who % count], Fence("c", epoch, "ABCDE"[candidate % count])
        if judge_fence(fences[name], asked) is Verdict.ACCEPT:
            fences[name] = asked
            votes.setdefault(asked, []).append(Vote(name, ORIGIN))
    won = [f for f, given in votes.items() if judge_promotion(group, f.master, given) is Promotion.WRITE_BARRIER]
    assert len({fence.epoch for fence in won}) == len(won)
