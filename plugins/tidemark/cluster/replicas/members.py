"""The logs of one group's members, used together: where they end, an append at a quorum, a member that is behind.

    logs = MemberLogs(cluster, header)
    tails = logs.read_tails()
    holders = logs.append(records, fence)       # the members that have them, durably; NoQuorumError

All are asked at once, in one round trip if their logs end as this process saw them last. A member that lacks records gets
them from the master's log then. One whose log parted from the master's stays as it is: it
acknowledges nothing. Errors of a member count as silence; what says that this ledger is not the newest, or not the
nodes' own, is raised. Source: seed 003 "Data forwarding flow"; docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.folder import LOGS
from tidemark.cluster.replicas.core.epochs import Fence, Verdict, judge_fence
from tidemark.cluster.replicas.core.quorum import Outcome, judge_forward
from tidemark.cluster.replicas.core.record import StoredRecord
from tidemark.cluster.replicas.core.roles import Arbitrator, Group, Member, Position, Role
from tidemark.cluster.replicas.deliver import machine_of, members_of_header
from tidemark.cluster.replicas.log import Answer, GroupLog, Tail
from tidemark.errors import NoQuorumError, PermanentError, TidemarkError, UnreachableError

_T = TypeVar("_T", Answer, Tail)
_AT_ONCE = 8  # records in an append to a member that is behind: they have some MiB at most, an append at most 32


class MemberLogs:
    """The members of the header's group by the table in force, with their logs. `silent`: member → why it said nothing."""

    def __init__(self, cluster: Cluster, header: str) -> None:
        self.cluster = cluster
        self.header = header
        self.names = members_of_header(cluster.table, header)
        self.quorum = min(cluster.quorum, len(self.names))
        self.silent: dict[str, TidemarkError] = {}

    def as_group(self, members: Sequence[Member], committed: tuple[int, int] = (0, 0)) -> Group:
        """Return these members as the rules see them. The ledger is the arbitrator: it gives an epoch once."""
        return Group(tuple(members), self.quorum, Arbitrator.ONLINE, Position(*committed))

    def read_tails(self) -> dict[str, Tail]:
        """Return member → the end of its log, of those that answer and whose log is sound."""
        return self._ask_members(self.names, lambda log, _: log.read_tail())

    def read_tail_of(self, name: str) -> Tail | None:
        """Return the end of a member's log; None if it does not answer or its log is damaged."""
        return self._ask_members([name], lambda log, _: log.read_tail()).get(name)

    def last_tail_of(self, name: str) -> Tail | None:
        """Return the end that this process saw last at a member, if any. It may be another by now: an append finds out."""
        kept = self.cluster.kept.get((self.header, name))
        return kept if isinstance(kept, Tail) else None

    def swear(self, names: Sequence[str], fence: Fence) -> dict[str, Answer]:
        """Let members swear to `fence`; return the answers that are yes."""
        answers = self._ask_members(names, lambda log, _: log.swear(fence))
        for name, answer in answers.items():
            self.require_ours(name, answer.verdict)
        return {name: answer for name, answer in answers.items() if answer.is_yes}

    def append(self, records: Sequence[StoredRecord], fence: Fence) -> tuple[str, ...]:
        """Append at all members; return who has the records. NoQuorumError if too few do.

        It is unknown then whether a later master has them: `promote` finds out. PermanentError if the master has others in
        their place.
        """
        answers = self._ask_members(self.names, lambda log, name: log.append(records, fence, expect=self.last_tail_of(name)))
        for name, answer in answers.items():
            self.require_ours(name, answer.verdict)
        master = answers.get(fence.master)
        if master is not None and master.verdict is Verdict.CONFLICT:
            raise self.ahead_error(fence.master)
        if master is not None and master.is_yes:
            behind = [name for name, answer in answers.items() if answer.verdict in (Verdict.GAP, Verdict.UNFENCED)]
            answers |= self._ask_members(behind, lambda log, _: self._bring_up(log, fence))
        have = {name: answer.is_yes for name, answer in answers.items()}
        members = [Member(name, Role.MASTER if name == fence.master else Role.SLAVE) for name in self.names]
        if judge_forward(self.as_group(members), fence.master, have, expired=True) is not Outcome.COMMITTED:
            raise self.quorum_error("the record of this operation", sum(have.values()))
        return tuple(name for name in self.names if have.get(name))

    def read(self, name: str, from_version: int) -> Iterator[StoredRecord]:
        """Yield a member's records from this version on. Raises what the member's store raises."""
        yield from GroupLog(self.cluster.open_store(name), folder_of(self.header)).read(from_version)

    def require_known(self, name: str, tail: Tail, epoch: int) -> None:
        """Raise PermanentError if a member swore to another coordinator, or to an epoch that this ledger has not given."""
        if tail.fence is not None:
            self.require_ours(name, judge_fence(tail.fence, Fence(self.cluster.identity, epoch + 1, name)))

    def require_ours(self, name: str, verdict: Verdict) -> None:
        """Raise PermanentError if the answer says that another coordinator, or a newer state of this one, is at work."""
        if verdict is Verdict.FOREIGN:
            raise PermanentError(
                f"the log of group {self.header} at node {name} belongs to another cluster",
                hint="./tidemark cluster check says whose folder it is",
                subject=name,
            )
        if verdict in (Verdict.STALE, Verdict.RIVAL):
            raise self.ahead_error(name)

    def ahead_error(self, name: str) -> PermanentError:
        return PermanentError(
            f"group {self.header} at node {name} is ahead of this ledger: it was restored from an older copy,"
            " or another installation writes to these nodes",
            hint="./tidemark ledger rebuild makes a ledger of what the nodes have",
            subject=self.header,
        )

    def quorum_error(self, what: str, holders: int) -> NoQuorumError:
        why = "; ".join(f"{name}: {error.message}" for name, error in self.silent.items())
        return NoQuorumError(
            f"{holders} of the {len(self.names)} members of group {self.header} ({', '.join(self.names)}) have {what},"
            f" {self.quorum} are needed: {why or 'the others do not continue the log'}",
            hint="./tidemark cluster check names what is wrong with the nodes; then run it again, nothing is lost",
            subject=self.header,
        )

    def _bring_up(self, log: GroupLog, fence: Fence) -> Answer:
        """Give a member that is behind what the master has more. Its log is the same up to its end, or it refuses."""
        answer = log.swear(fence)
        if not answer.is_yes:
            return answer
        missing = self.read(fence.master, answer.tail.end.position.version + 1)
        # CRASH WINDOW: some of them are there: it is a member that is behind, the next append goes on.
        while answer.is_yes and (records := list(islice(missing, _AT_ONCE))):
            answer = log.append(records, fence, expect=answer.tail)
        return answer

    def _ask_members(self, names: Sequence[str], ask: Callable[[GroupLog, str], _T]) -> dict[str, _T]:
        """Return member → its answer, by the order of names. Different machines work at once. Who fails has no answer."""
        found: dict[str, _T] = {}

        def ask_machine(mine: Sequence[str]) -> None:
            for name in mine:
                try:
                    answer = ask(GroupLog(self.cluster.open_store(name), folder_of(self.header)), name)
                except TidemarkError as broken:
                    self._note(name, broken)
                    continue
                found[name] = answer
                self.cluster.kept[self.header, name] = answer.tail if isinstance(answer, Answer) else answer

        machines: dict[str, list[str]] = {}
        for name in names:
            machines.setdefault(machine_of(self.cluster, name), []).append(name)
        if len(machines) < 2:
            ask_machine(names)
        else:
            with ThreadPoolExecutor(len(machines)) as pool:
                list(pool.map(ask_machine, machines.values()))
        return {name: found[name] for name in names if name in found}

    def _note(self, name: str, error: TidemarkError) -> None:
        if isinstance(error, UnreachableError):
            self.cluster.stores.mark_away(name, error)
        self.cluster.kept.pop((self.header, name), None)
        self.silent[name] = error


def folder_of(header: str) -> str:
    """Return the folder of a group's log in a member's folder."""
    return f"{LOGS}/of-{header}"
