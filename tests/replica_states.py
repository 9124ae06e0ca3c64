"""What members of a group have in a model of it (`replica_model.py`): logs by their records, folders, the ledger's row."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tidemark.cluster.replicas.core.continuity import Log, Record
from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.quorum import find_committed
from tidemark.cluster.replicas.core.roles import ORIGIN, LogEnd, Position

NAMES = ("A", "B", "C")
QUORUM = 2
ALL = (0, 1, 2)
SUBSETS = ((0, 1), (0, 2), (1, 2), (0, 1, 2))


class Token(NamedTuple):
    """A record by what it does: "b" barrier, "o" an operation, "t" takes an operation back. `of`: the operation."""

    kind: str
    epoch: int
    of: int = -1


Tokens = tuple[Token, ...]


class Node(NamedTuple):
    """A member's folder. `fence`: (epoch, master), None without a log. `filling`: it was emptied, and has not all again."""

    fence: tuple[int, int] | None = None
    log: Tokens = ()
    filling: bool = False


class Row(NamedTuple):
    """The group's row of the ledger; `seen`: the operations that its catalog has."""

    epoch: int = 0
    master: int = -1
    active: bool = False
    settled: tuple[int, int] = (0, 0)
    operation: int = -1
    in_step: tuple[int, ...] = ()
    seen: frozenset[int] = frozenset()


class Worker(NamedTuple):
    """A process. `phase` says what it has sent last, `marks` what became of it at each member: "w" on the way, "y" yes,
    "g" the member is behind, "." nothing, or refused."""

    phase: str = "idle"
    alive: bool = True
    row: Row = Row()
    base: Tokens = ()
    records: Tokens = ()
    marks: str = "..."
    votes: tuple[Tokens | None, ...] = (None, None, None)
    intact: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """How much happens at most. `fresh`: the group has no log yet; else all members have the barrier of the first epoch."""

    workers: int = 2
    operations: int = 2
    losses: int = 1
    copies: int = 1  # the ledger is restored from a copy that was made before
    rebuilds: int = 1  # the ledger is made from what the nodes tell
    recoveries: int = 1
    fresh: bool = False
    underway: bool = False  # the first worker has noted its operation, and sent it
    states: int = 10_000_000


@dataclass(frozen=True)
class Rules:
    """The rules as they are. False seeds a bug: a promotion that does without."""

    votes: bool = True  # enough members vote before the barrier is written
    barrier: bool = True  # the barrier is at a quorum before the master is active
    forgetful: bool = True  # a member that was seen without its vote is not in step from then on
    counted: bool = True  # a member that was brought up has a record if its log goes so far
    held: bool = True  # an empty log is brought up under the lease alone: it has forgotten for whom it voted
    silent: bool = True  # without a ledger a log that was emptied, and has not all again, is an answer that was not heard
    unmarked: bool = True  # a copy of the ledger says of no operation that it is at work
    inactive: bool = True  # nor that its group has a master: the restored one gives a newer epoch first
    filling: bool = True  # a log that was emptied says so until it has all again


ALL_RULES = Rules()


class State(NamedTuple):
    nodes: tuple[Node, ...]
    row: Row
    workers: tuple[Worker, ...]
    lease: int = -1
    copy: Row | None = None
    acknowledged: frozenset[int] = frozenset()
    begun: frozenset[tuple[int, int]] = frozenset()  # (epoch, its master)
    lost: int = -1  # the member that lost its disk and has not been recovered
    losses: int = 0
    copies: int = 0
    rebuilds: int = 0
    recoveries: int = 0
    operations: int = 0
    older: bool = False  # the ledger is older than what it knew once
    wrong: str = ""


@cache
def log_of(tokens: Tokens) -> Log:
    """The log that these records are, each chained to the one before."""
    end, records = ORIGIN, []
    for token in tokens:
        position = Position(token.epoch, end.position.version + 1)
        crc = zlib.crc32(f"{end.crc} {position} {token}".encode())
        records.append(Record(position, crc, end.crc, f"{token.kind}{token.of}"))
        end = records[-1].end
    return Log(ORIGIN, tuple(records))


@cache
def operations_of(tokens: Tokens) -> frozenset[int]:
    """What a log tells, its last word on each operation."""
    told: set[int] = set()
    for token in tokens:
        if token.kind == "o":
            told.add(token.of)
        elif token.kind == "t":
            told.discard(token.of)
    return frozenset(told)


def end_of(tokens: Tokens) -> LogEnd:
    return log_of(tokens).end


def position_of(tokens: Tokens) -> tuple[int, int]:
    position = end_of(tokens).position
    return position.epoch, position.version


def fence_of(held: tuple[int, int] | None) -> Fence | None:
    return None if held is None else Fence("c", held[0], NAMES[held[1]])


@cache
def tell_from_nodes(nodes: tuple[Node, ...], members: tuple[int, ...], silent: bool = True) -> Tokens | None:
    """What `--from-nodes` reads of these members: the records that count; None where nobody knows."""
    heard = {
        m: nodes[m].log
        for m in members
        if nodes[m].fence is not None and (not silent or (nodes[m].log and not nodes[m].filling))
    }
    if not heard:
        return () if len(members) == len(nodes) else None
    longest = max(heard.values(), key=lambda log: end_of(log).position)
    held = [len(log) for log in heard.values() if longest[: len(log)] == log]
    version, sure = find_committed(held, len(nodes) - len(held), QUORUM)
    return longest[:version] if sure else None


@cache
def judge_logs(nodes: tuple[Node, ...]) -> str:
    for one in nodes:
        for other in nodes:
            for mine, theirs in zip(log_of(one.log).records, log_of(other.log).records, strict=False):
                if mine.position == theirs.position and mine.end != theirs.end:
                    return "equal positions have different content"
    return ""


@cache
def judge_told(nodes: tuple[Node, ...], acknowledged: frozenset[int], silent: bool) -> str:
    for members in ((0,), (1,), (2,), *SUBSETS):
        told = tell_from_nodes(nodes, members, silent)
        if told is not None and not acknowledged <= operations_of(told):
            return f"{'/'.join(NAMES[m] for m in members)} alone tell an older catalog"
    return ""


def rebuilt_row(nodes: tuple[Node, ...], told: Tokens) -> Row:
    """What `ledger rebuild` notes: an epoch that nobody knows, the end of what counts, who has that, what is in doubt."""
    epoch = max((node.fence[0] for node in nodes if node.fence), default=0)
    holders = tuple(m for m in ALL if nodes[m].log[: len(told)] == told and nodes[m].log and not nodes[m].filling)
    behind = max((node.log for node in nodes), key=lambda log: end_of(log).position)[len(told) :]
    doubtful = next((token.of for token in reversed(behind) if token.kind != "b"), -1)
    return Row(epoch + 1, -1, False, position_of(told), doubtful, holders, operations_of(told))


def put(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
