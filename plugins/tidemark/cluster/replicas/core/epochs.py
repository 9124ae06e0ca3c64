"""Epochs: how a member becomes the only master, and what a node's log refuses whoever is not. Pure.

The seed says that versions suffice. They do not: a master that was cut off writes versions that nobody acknowledged,
and they beat acknowledged ones of its successor. So each promotion begins an epoch, in this order:

1. the ledger gives the epoch to one candidate, by compare-and-swap. So it is the arbitrator of an even group, too: the
   original's has no memory, and two members that see it and not each other both become master
2. members vote for the epoch (`judge_fence`) and say where their logs end; from then on they refuse older epochs
3. enough have voted and nobody is ahead of the candidate (`judge_promotion`): its barrier record is appended to their logs
4. the barrier is at its quorum (`quorum.has_barrier_quorum`): the master is active, and takes back what is in doubt

A candidate that is behind a member that voted writes no barrier: the barrier would give it the higher position, and the
longer log would lose. Source: seed 003 "Master election flow", "The Split Brain problem", "Similarities to and
differences from RAFT".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.cluster.replicas.core.continuity import Log, Record, is_continued
from tidemark.cluster.replicas.core.quorum import has_fence_quorum
from tidemark.cluster.replicas.core.roles import Group, LogEnd


@dataclass(frozen=True, slots=True)
class Fence:
    """Who may append: the master of this epoch, told so by this coordinator. Kept durably at each node of the group."""

    coordinator: str
    epoch: int
    master: str


class Verdict(enum.StrEnum):
    """A node's answer to a fence or to an append. Only ACCEPT and DUPLICATE count as yes."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"  # it has this very record: acknowledged again
    FOREIGN = "foreign"  # another coordinator than the node's
    STALE = "stale"  # an older epoch than the node's
    RIVAL = "rival"  # another master of the same epoch
    UNFENCED = "unfenced"  # the node has lost what it voted for: it is recovered first
    GAP = "gap"  # records between the node's last one and this are missing: it is recovered
    CONFLICT = "conflict"  # it has another record there, or the chain does not fit


def judge_fence(held: Fence | None, asked: Fence) -> Verdict:
    """Tell whether a node votes for `asked`. It votes for one master an epoch, so two masters never share one.

    A node without a fence is new or was emptied. It accepts, but may have forgotten a vote: its answer is not `intact`.
    """
    if held is None or held == asked:
        return Verdict.ACCEPT
    if held.coordinator != asked.coordinator:
        return Verdict.FOREIGN
    if asked.epoch == held.epoch:
        return Verdict.RIVAL
    return Verdict.ACCEPT if asked.epoch > held.epoch else Verdict.STALE


def judge_append(held: Fence | None, log: Log, writer: Fence, record: Record) -> Verdict:
    """Tell whether a node appends the record. If it does, `writer` becomes its fence in the same atomic act.

    A forward has records of the writer's own epoch; a recovery brings older ones as they were. A worker that wakes
    up after an hour is STALE, or CONFLICT where the barrier lies in its slot.
    """
    if held is None:
        return Verdict.UNFENCED
    voted = judge_fence(held, writer)
    if voted is not Verdict.ACCEPT:
        return voted
    version, end = record.position.version, log.end.position
    if version > end.version + 1:
        return Verdict.GAP
    if version <= end.version:
        kept = version > log.base.position.version
        return Verdict.DUPLICATE if kept and log.end_at(version) == record.end else Verdict.CONFLICT
    fits = record.position.epoch <= writer.epoch and is_continued(log.end, record)
    return Verdict.ACCEPT if fits else Verdict.CONFLICT


def judge_batch(held: Fence | None, log: Log, writer: Fence, records: Sequence[Record]) -> tuple[Verdict, int]:
    """Judge records in a row, which a node appends all or none. Return the verdict, and how many the node has already."""
    known = 0
    for record in records:
        verdict = judge_append(held, log, writer, record)
        if verdict is Verdict.ACCEPT:
            log = Log(record.end)
        elif verdict is Verdict.DUPLICATE:
            known += 1
        else:
            return verdict, known
    return Verdict.DUPLICATE if known == len(records) else Verdict.ACCEPT, known


@dataclass(frozen=True, slots=True)
class Vote:
    """A member that has voted for an epoch, and the end of its log then.

    `intact`: it had a fence before, and no recovery of it is unfinished since it was emptied. A recovery is finished in the
    ledger, by the master of the newest epoch that the ledger gave: an older one does not know what was voted since.
    """

    member: str
    end: LogEnd
    intact: bool = True


class Promotion(enum.StrEnum):
    """What the candidate does next."""

    WAIT = "wait"  # too few have voted
    GIVE_UP = "give up"  # a member that voted is ahead or diverged: elect anew, in a new epoch
    WRITE_BARRIER = "write barrier"


def judge_promotion(group: Group, candidate: str, votes: Iterable[Vote], *, granted: bool = False) -> Promotion:
    """Decide on a promotion by the votes to its epoch, the candidate's own among them. The barrier continues that one's end.

    Members that are not intact prove nothing about older epochs, unless all members have voted: then there is nobody
    else who could know.
    """
    voted = {vote.member: vote for vote in votes}
    mine = voted.get(candidate)
    if mine is None:
        return Promotion.WAIT
    if any(_is_beyond(vote.end, mine.end) for vote in voted.values()):
        return Promotion.GIVE_UP
    intact = sum(vote.intact for vote in voted.values())
    enough = len(voted) == len(group.members) or has_fence_quorum(intact, group, granted)
    return Promotion.WRITE_BARRIER if enough else Promotion.WAIT


def _is_beyond(other: LogEnd, mine: LogEnd) -> bool:
    return other.position > mine.position or (other.position == mine.position and other.crc != mine.crc)
