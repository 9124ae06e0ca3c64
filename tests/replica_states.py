"""What members of a group have in a model of it (`replica_model.py`): logs by their records, folders, the ledger's row."""

from __future__ import annotations

import zlib
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
    """A member's folder. `fence`: (epoch, master), None without a log."""

    fence: tuple[int, int] | None = None
    log: Tokens = ()


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
    oaths: tuple[Tokens | None, ...] = (None, None, None)
    intact: tuple[int, ...] = ()


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
    heard = {m: nodes[m].log for m in members if nodes[m].log or (not silent and nodes[m].fence is not None)}
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
def judge_told(nodes: tuple[Node, ...], acknowledged: frozenset[int], silent: bool, lost: int) -> str:
    """`lost`: a member that is away beside one that lost its disk makes two that may have all: that is no promise."""
    for members in ((0,), (1,), (2,), *SUBSETS):
        if len(nodes) - len(members) + (lost in members) >= QUORUM:
            continue
        told = tell_from_nodes(nodes, members, silent)
        if told is not None and not acknowledged <= operations_of(told):
            return f"{'/'.join(NAMES[m] for m in members)} alone tell an older catalog"
    return ""


def rebuilt_row(nodes: tuple[Node, ...], told: Tokens) -> Row:
    """What `ledger rebuild` notes: an epoch that nobody knows, the end of what counts, who has that, what is in doubt."""
    epoch = max((node.fence[0] for node in nodes if node.fence), default=0)
    holders = tuple(m for m in ALL if nodes[m].log and nodes[m].log[: len(told)] == told)
    behind = max((node.log for node in nodes), key=lambda log: end_of(log).position)[len(told) :]
    doubtful = next((token.of for token in reversed(behind) if token.kind != "b"), -1)
    return Row(epoch + 1, -1, False, position_of(told), doubtful, holders, operations_of(told))


def put(values: tuple, at: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:at], value, *values[at + 1 :])
