"""A member's log against a list: workers of any age, two coordinators, torn appends, sealing and retention, in any order."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.group_logs import COORDINATOR, fence_of, records_behind
from tests.memory_store import MemoryStore
from tidemark.cluster.replicas.core.continuity import Log
from tidemark.cluster.replicas.core.epochs import Fence, Verdict, judge_batch, judge_fence
from tidemark.cluster.replicas.core.record import StoredRecord, encode_body
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd
from tidemark.cluster.replicas.log import GroupLog, Tail
from tidemark.errors import NotFoundError
from tidemark.stores.protocol import Tier

picks = st.integers(0, 999)


class GroupLogMachine(RuleBasedStateMachine):
    """`records` and `fence`: what the member has to have, by the rules of `core.epochs` alone."""

    @initialize(tier=st.sampled_from([Tier.PYTHON, Tier.SFTP]), size=st.sampled_from([1, 900, 4 << 20]))
    def begin(self, tier: Tier, size: int) -> None:
        self.store = MemoryStore(tier=tier)
        self.log = GroupLog(self.store, "log", segment_bytes=size)
        self.records: list[StoredRecord] = []
        self.fence: Fence | None = None
        self.tails = [Tail()]
        self.proposed: list[list[StoredRecord]] = []
        self.retained = 0
        self.count = 0

    def end(self) -> LogEnd:
        return self.records[-1].head.end if self.records else ORIGIN

    @rule(epoch=st.integers(1, 4), master=st.sampled_from("ab"), coordinator=st.sampled_from([COORDINATOR] * 4 + ["other"]))
    def vote(self, epoch: int, master: str, coordinator: str) -> None:
        asked = Fence(coordinator, epoch, master)
        expected = judge_fence(self.fence, asked)
        answer = self.log.vote(asked)
        assert answer.verdict is expected
        if expected is Verdict.ACCEPT:
            self.fence = asked
        self.tails.append(answer.tail)

    @rule(pick=picks, epoch=st.integers(1, 4), count=st.integers(1, 3))
    def propose(self, pick: int, epoch: int, count: int) -> None:
        """Records behind an end that somebody read once."""
        self.count += 1
        end = self.tails[-1 - pick % min(4, len(self.tails))].end
        self.proposed.append(records_behind(end, epoch, count, encode_body({"n": self.count})))

    @precondition(lambda self: self.proposed)
    @rule(pick=picks, hint=picks, hinted=st.booleans(), own=st.booleans(), epoch=st.integers(1, 4))
    def append(self, pick: int, hint: int, hinted: bool, own: bool, epoch: int) -> None:
        batch = self.proposed[-1 - pick % min(6, len(self.proposed))]
        writer = self.fence if own and self.fence is not None else fence_of(epoch, "a")
        base = self.records[self.retained - 1].head.end if self.retained else ORIGIN
        log = Log(base, tuple(stored.head for stored in self.records[self.retained :]))
        expected, known = judge_batch(self.fence, log, writer, [stored.head for stored in batch])
        tail = self.tails[-1 - hint % len(self.tails)] if hinted else None
        answer = self.log.append(batch, writer, expect=tail)
        assert answer.verdict is expected
        if expected is Verdict.ACCEPT:
            self.records += batch[known:]
            self.fence = writer
        self.tails.append(answer.tail)

    @precondition(lambda self: self.fence is not None)
    @rule(count=st.integers(1, 3), cut=picks)
    def tear(self, count: int, cut: int) -> None:
        """A worker dies in its append, or the disk loses the end of it: nobody was told, and it is absent."""
        assert self.fence is not None
        end = self.log.read_tail().file
        self.count += 1
        torn = records_behind(self.end(), self.fence.epoch, count, encode_body({"n": self.count}))
        assert self.log.append(torn, self.fence).is_yes
        path = max(entry.path for entry in self.store.list_files(["log"]).entries if entry.path.endswith(".log"))
        data, kept = self.store.read(path), end.offset if end is not None else 0
        self.store.put(path, data[: kept + cut % (len(data) - kept)])

    @rule()
    def seal(self) -> None:
        self.log.seal()

    @precondition(lambda self: self.records)
    @rule(pick=picks)
    def retain(self, pick: int) -> None:
        self.log.retain(pick % (len(self.records) + 1))
        for gone in range(self.retained, len(self.records) + 1):
            try:
                list(self.log.read(gone + 1))
            except NotFoundError:
                continue
            self.retained = gone
            return
        pytest.fail("nothing is kept")

    @invariant()
    def the_log_is_the_list(self) -> None:
        if hasattr(self, "log"):
            tail = self.log.read_tail()
            assert (tail.end, tail.fence) == (self.end(), self.fence)
            assert list(self.log.read(self.retained + 1)) == self.records[self.retained :]


test_a_log_is_what_its_rules_say = GroupLogMachine.TestCase
