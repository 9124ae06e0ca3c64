"""The logs of one group's members, used together: where they end, an append at a quorum, a member that is behind.

    logs = MemberLogs(cluster, header)
    tails = logs.read_tails()
    holders = logs.append(records, fence)       # the members that have them, durably; NoQuorumError

All are asked at once, in one round trip if their logs end as this process saw them last. A member that lacks records gets
them from the master's log then. One whose log parted from the master's acknowledges nothing until it is recovered. Errors of
a member count as silence; what says that this ledger is not the newest, or not the nodes' own, is raised. Source: seed 003
"Data forwarding flow"; docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.folder import LOGS
from tidemark.cluster.replicas.core.epochs import Fence, Verdict, judge_fence
from tidemark.cluster.replicas.core.quorum import Outcome, judge_forward
from tidemark.cluster.replicas.core.record import StoredRecord
from tidemark.cluster.replicas.core.roles import Arbitrator, Group, LogEnd, Member, Position, Role
from tidemark.cluster.replicas.deliver import doubt_copies, members_of_header, stop_counting
from tidemark.cluster.replicas.log import Answer, GroupLog, Tail, read_all_tails
from tidemark.errors import CorruptionError, NoQuorumError, NotFoundError, PermanentError, TidemarkError, UnreachableError
from tidemark.ledger.cluster.copies import copies_at
from tidemark.ledger.cluster.group_logs import GroupLogRow, forget_log_readings, read_group_logs
from tidemark.ledger.leases import Lease, assert_held

_T = TypeVar("_T", Answer, Tail)
REBUILD = "./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)"
"""What helps where the ledger is older than the nodes."""
_AT_ONCE = 8  # records in an append to a member that is behind: they have some MiB at most, an append at most 32


class MemberLogs:
    """The members of the header's group by the table in force, with their logs. `silent`: member → why it said nothing.
    `lease`: under which they are changed."""

    def __init__(self, cluster: Cluster, header: str, lease: Lease | None = None) -> None:
        self.cluster = cluster
        self.lease = lease
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

    def vote(self, names: Sequence[str], fence: Fence, *, first: bool = False) -> dict[str, Answer]:
        """Let members vote for `fence`; return the answers that are yes. `first`: the group has no log yet."""
        answers = self._ask_members(names, lambda log, _: log.vote(fence, first=first))
        for name, answer in answers.items():
            self.require_ours(name, answer.verdict)
        return {name: answer for name, answer in answers.items() if answer.is_yes}

    def require_holders(self, without: Collection[str]) -> None:
        """Raise NoQuorumError if too few members are left without these, who lack files that are to be committed."""
        if len(self.names) - len(without) < self.quorum:
            self.silent |= dict.fromkeys(without, NotFoundError("it lacks a file"))
            raise self.quorum_error("the files of this operation", len(self.names) - len(without))

    def append(self, records: Sequence[StoredRecord], fence: Fence, *, without: Collection[str] = ()) -> tuple[str, ...]:
        """Append at all members; return who has the records. NoQuorumError if too few do.

        `without`: members that lack a file that the records name. They get the records, and do not count. After an error it
        is unknown whether a later master has the records: `promote` finds out. PermanentError if the master has others in
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
            self._doubt_files({name: answers[name].tail for name in behind})
            answers |= self._ask_members(behind, lambda log, name: self._bring_up(log, fence, name))
        last = records[-1].head.position  # a member that was brought up lacks them if the master has lost its own log
        have = {name: answer.is_yes and answer.tail.end.position >= last for name, answer in answers.items()}
        counted = {name: yes and name not in without for name, yes in have.items()}
        members = [Member(name, Role.MASTER if name == fence.master else Role.SLAVE) for name in self.names]
        if judge_forward(self.as_group(members), fence.master, counted, expired=True) is not Outcome.COMMITTED:
            raise self.quorum_error("the record of this operation", sum(counted.values()))
        self._note_whole({name: answers[name] for name in self.names if have.get(name)})
        return tuple(name for name in self.names if have.get(name))

    def recover(self, names: Sequence[str], fence: Fence, end: LogEnd) -> tuple[str, ...]:
        """Give members what the master has behind their ends; return those whose logs then end at `end`, as the master's
        does. A log that parted from it or is damaged at its end is set aside before, and comes anew."""

        def recover_one(log: GroupLog, name: str) -> Answer:
            try:
                self._doubt_files({name: log.read_tail()})
            except CorruptionError:
                log.set_aside()
            answer = self._bring_up(log, fence, name)
            beyond = answer.tail.end != end and answer.tail.end.position.version >= end.position.version
            if answer.verdict is Verdict.CONFLICT or (answer.is_yes and beyond):
                log.set_aside()
                answer = self._bring_up(log, fence, name)
            return answer

        answers = self._ask_members(names, recover_one)
        for name, answer in answers.items():
            self.require_ours(name, answer.verdict)
        back = {name: answer for name, answer in answers.items() if answer.tail.end == end}
        self._note_whole(back)
        return tuple(back)

    def doubt_files(self, names: Sequence[str]) -> None:
        """Let files of those of these members count no more whose logs were put back."""
        self._doubt_files(self._ask_members(names, lambda log, _: log.read_tail()))

    def _doubt_files(self, tails: Mapping[str, Tail]) -> None:
        """Doubt the files of those of these members whose logs were put back. That is recorded before their logs come: then
        nothing shows it any more."""
        if not tails:
            return  # nearly every append: it asks the ledger nothing
        row = read_rows(self.cluster).get(self.header)
        names = [name for name, tail in tails.items() if row is not None and is_put_back(row, name, tail)]
        if names:
            self._require_lease()
            with self.cluster.app.ledger.write() as connection:
                doubt_copies(connection, self.cluster, self.header, names)
            # CRASH WINDOW: its files do not count, its log is as it was: the next record or recovery finds it so again.

    def _doubt_gone(self, name: str) -> None:
        """Let files count no more that a member is to have and has not. It was out of step, or has lost its log, so nothing
        tells how far it was: while it was away its folder may have been put back from an older copy."""
        receiver, store = self.cluster.receiver.name, self.cluster.open_store(name)
        if self.cluster.looked.get(name) is store:
            return  # at all its files, for another of its groups
        with self.cluster.app.ledger.read() as connection:
            rows = [row for row in copies_at(connection, receiver, name) if row.state == "held"]
        there = store.stat_many([row.location for row in rows])
        gone = [row.location for row, entry in zip(rows, there, strict=True) if entry is None or entry.size != row.size]
        if gone:
            self._require_lease()
            with self.cluster.app.ledger.write() as connection:
                stop_counting(connection, self.cluster, name, gone)
            # CRASH WINDOW: it lacks them and is unsynced, its log is as it was: the next record or recovery brings both.
        self.cluster.looked[name] = store

    def _note_whole(self, back: Mapping[str, Answer]) -> None:
        """Let members that were emptied, and have all again by these answers, prove it also without a ledger. Each log that
        comes anew passes here, so what the ledger knows of the one before is forgotten here."""
        filling = [name for name, answer in back.items() if answer.tail.filling]
        if filling:
            self._require_lease()
            with self.cluster.app.ledger.write() as connection:
                forget_log_readings(connection, self.cluster.receiver.name, [(self.header, name) for name in filling])
            # CRASH WINDOW: it has all, and its log does not say so: it proves nothing, the next record or recovery notes it.
            self._ask_members(filling, lambda log, name: log.note_whole(back[name].tail))

    def set_aside(self, names: Sequence[str]) -> dict[str, Tail]:
        """Set the logs of members aside; return the ends that they have then, of those that answer."""

        def move(log: GroupLog, _: str) -> Tail:
            log.set_aside()
            return log.read_tail()

        self._require_lease()
        return self._ask_members(names, move)

    def _require_lease(self) -> None:
        if self.lease is not None:
            with self.cluster.app.ledger.read() as connection:
                assert_held(connection, self.lease)

    def read(self, name: str, from_version: int) -> Iterator[StoredRecord]:
        """Yield a member's records from this version on. Raises what the member's store raises."""
        yield from self._open_log(name).read(from_version)

    def require_known(self, name: str, tail: Tail, epoch: int) -> None:
        """Raise PermanentError if a member voted for another coordinator, or for an epoch that this ledger has not given."""
        if tail.fence is not None:
            self.require_ours(name, judge_fence(tail.fence, Fence(self.cluster.identity, epoch + 1, "")))  # of no master yet

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
            hint=REBUILD,
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

    def _bring_up(self, log: GroupLog, fence: Fence, name: str) -> Answer:
        """Give a member that is behind what the master has more. Its log is the same up to its end, or it refuses.

        An empty log has forgotten for whom it voted, so it refuses nobody: only who still holds the lease may fill it.
        """
        if self.lease is not None and not log.read_tail().end.position.version:
            self._require_lease()
        answer = log.vote(fence)
        if not answer.is_yes:
            return answer
        self._doubt_gone(name)
        missing = self.read(fence.master, answer.tail.end.position.version + 1)
        try:
            records = list(islice(missing, _AT_ONCE))
        except NotFoundError:  # it ends before what the master still keeps: it begins there
            base = self._open_log(fence.master).read_base()
            log.set_aside()
            # CRASH WINDOW: it has no log, and its vote is aside: it proves nothing, the next recovery goes on.
            answer = log.begin_at(base, fence)
            missing = self.read(fence.master, base.position.version + 1)
            records = list(islice(missing, _AT_ONCE))
        # CRASH WINDOW: some of them are there: it is a member that is behind, the next append goes on.
        while answer.is_yes and records:
            answer = log.append(records, fence, expect=answer.tail)
            records = list(islice(missing, _AT_ONCE))
        return answer

    def read_kept(self, name: str) -> Iterator[StoredRecord]:
        """Yield all records that a member keeps. Raises what the member's store raises."""
        yield from self._open_log(name).read_kept()

    def count_bytes(self, name: str) -> int:
        """Return the bytes of a member's log. Raises what the member's store raises."""
        return self._open_log(name).count_bytes()

    def seal(self, to_version: int = 0) -> None:
        """Pack the small files of each member's log, remove what died processes left, and give up what is at or below
        `to_version`. Who fails is left out."""

        def tidy(log: GroupLog, _: str) -> Tail:
            log.seal()
            log.retain(to_version)
            return log.read_tail()

        self._ask_members(self.names, tidy)

    def _open_log(self, name: str) -> GroupLog:
        return GroupLog(self.cluster.open_store(name), folder_of(self.header))

    def _ask_members(self, names: Sequence[str], ask: Callable[[GroupLog, str], _T]) -> dict[str, _T]:
        """Return member → its answer, by the order of names. Different machines work at once. Who fails has no answer."""
        found: dict[str, _T] = {}

        def ask_one(name: str) -> None:
            try:
                answer = ask(self._open_log(name), name)
            except TidemarkError as broken:
                self.note_silent(name, broken)
                return
            found[name] = answer
            self.cluster.kept[self.header, name] = answer.tail if isinstance(answer, Answer) else answer

        self.cluster.stores.call_machines(names, ask_one)
        return {name: found[name] for name in names if name in found}

    def note_silent(self, name: str, error: TidemarkError) -> None:
        """Keep why a member says nothing. One that cannot be reached is not asked again by this cluster."""
        if isinstance(error, UnreachableError):
            self.cluster.stores.mark_away(name, error)
        self.cluster.kept.pop((self.header, name), None)
        self.silent[name] = error


def read_rows(cluster: Cluster) -> dict[str, GroupLogRow]:
    """Return header → what the ledger knows of the group's log."""
    with cluster.app.ledger.read() as connection:
        return read_group_logs(connection, cluster.receiver.name)


def read_round(cluster: Cluster, headers: Iterable[str]) -> dict[str, tuple[MemberLogs, dict[str, Tail]]]:
    """Ask all nodes for the ends of all logs: header → its members, with why some say nothing, and member → its end.

    A node is asked once for all its groups, nodes of different machines at once.
    """
    groups = {header: MemberLogs(cluster, header) for header in headers}
    found: dict[str, dict[str, Tail]] = {header: {} for header in groups}

    def ask_node(node: str) -> None:
        mine = {folder_of(header): header for header, logs in groups.items() if node in logs.names}
        try:
            tails = read_all_tails(cluster.open_store(node), list(mine))
        except TidemarkError as broken:
            for header in mine.values():
                groups[header].note_silent(node, broken)
            return
        for folder, tail in tails.items():
            if isinstance(tail, Tail):
                found[mine[folder]][node] = tail
            else:
                groups[mine[folder]].note_silent(node, tail)

    cluster.stores.call_machines({node for logs in groups.values() for node in logs.names}, ask_node)
    return {header: (logs, found[header]) for header, logs in groups.items()}


def is_put_back(row: GroupLogRow, name: str, tail: Tail) -> bool:
    """Tell whether a member's log is an older copy: it ends below what the member acknowledged by the ledger. Pure.

    An emptied log, or one that is filled again, is none: also a node that left and came back has one.
    """
    return bool(tail.end.position.version) and not tail.filling and is_behind(row, name, tail)


def is_behind(row: GroupLogRow, name: str, tail: Tail) -> bool:
    """Tell whether a member's log has less than it acknowledged by the ledger: it is gone, or is an older copy. Pure."""
    return name in row.in_step and (tail.fence is None or tail.end.position.version < row.settled[1])


def folder_of(header: str) -> str:
    """Return the folder of a group's log in a member's folder."""
    return f"{LOGS}/of-{header}"
