"""Pure decisions on copies: which node gets which file, which group lacks a quorum, and which member is late.

A file belongs at all members of the groups of its slots. An operation is settled at a member once its outcome is there, or
once a later operation on the same subject replaced it. A member's `applied` stops before the first unsettled one. Source:
seed 001 "Data group"; docs/decisions/0015.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemark.cluster.slots.routing import home_slot, slots_of
from tidemark.cluster.slots.table import PartitionTable
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.receiver.catalog import CatalogFile


class Piece(NamedTuple):
    """A file (a TsFile or its mods) for nodes. `slots`: those it touches; `home`: the one that counts it."""

    location: str
    sha256: str
    size: int  # bytes; 0 if unknown
    home: int
    slots: tuple[int, ...]
    database: str


Held = Mapping[str, Mapping[str, str]]
"""Location → node → digest of the copy that is proved there."""


def held_of(copies: Mapping[str, Iterable[CopyRow]]) -> dict[str, dict[str, str]]:
    """Return the copies as `Held`, without those that are to be removed."""
    return {at: {row.node: row.sha256 for row in rows if row.state == "held"} for at, rows in copies.items()}


class Shortage(NamedTuple):
    """A group in which too few members have the piece. `holders`: those that have it."""

    header: str
    members: tuple[str, ...]
    holders: tuple[str, ...]
    piece: Piece


def pieces_of(table: PartitionTable, files: Iterable[CatalogFile]) -> tuple[Piece, ...]:
    """Return the files and their mods, each location once. Mods have size 0: the catalog does not know it."""
    found: dict[str, Piece] = {}
    for file in files:
        slots = slots_of(table, file.database, file.partition_from, file.partition_to)
        home = home_slot(table, file)
        found[file.location] = Piece(file.location, file.sha256, file.size, home, slots, file.database)
        if file.mods_location:
            found[file.mods_location] = Piece(file.mods_location, file.mods_sha256, 0, home, slots, file.database)
    return tuple(found.values())


def wanting_nodes(table: PartitionTable, piece: Piece) -> tuple[str, ...]:
    """Return the nodes that must have the piece: all members of its slots' groups, each once."""
    return tuple(dict.fromkeys(name for slot in piece.slots for name in table.group_of(slot)))


def lacking_pieces(table: PartitionTable, pieces: Iterable[Piece], held: Held) -> dict[str, tuple[Piece, ...]]:
    """Return node → pieces it lacks, or has with another digest; nodes that lack nothing are left out."""
    found: dict[str, dict[str, Piece]] = defaultdict(dict)
    for piece in pieces:
        for node in wanting_nodes(table, piece):
            if held.get(piece.location, {}).get(node) != piece.sha256:
                found[node][piece.location] = piece
    return {node: tuple(mine.values()) for node, mine in found.items()}


def put_operations(
    table: PartitionTable, receiver: str, pieces: Iterable[Piece], held: Held, at: float
) -> list[OperationRow]:
    """Make one operation for each group of a piece that some member lacks, with the first slot of that group."""
    made = []
    for piece in pieces:
        groups: dict[str, int] = {}
        for slot in piece.slots:
            groups.setdefault(table.owners[slot], slot)
        for header, slot in groups.items():
            have = held.get(piece.location, {})
            if any(have.get(node) != piece.sha256 for node in table.group_of(slot)):
                row = OperationRow(
                    receiver, header, table.epoch, slot, "put", piece.location, piece.sha256, piece.size, at=at
                )
                made.append(row)
    return made


def find_shortages(table: PartitionTable, pieces: Iterable[Piece], held: Held, quorum: int) -> list[Shortage]:
    """Return groups in which fewer than `quorum` members (all, of a smaller group) have a piece; the first piece of each."""
    found: dict[str, Shortage] = {}
    for piece in pieces:
        have = held.get(piece.location, {})
        for slot in piece.slots:
            members = table.group_of(slot)
            holders = tuple(node for node in members if have.get(node) == piece.sha256)
            if len(holders) < min(quorum, len(members)):
                found.setdefault(members[0], Shortage(members[0], members, holders, piece))
    return list(found.values())


def find_lacking(table: PartitionTable, pieces: Iterable[Piece], held: Held) -> dict[str, set[str]]:
    """Return header → members of its group that lack one of its pieces, or have another."""
    found: dict[str, set[str]] = defaultdict(set)
    for piece in pieces:
        have = held.get(piece.location, {})
        for slot in piece.slots:
            found[table.owners[slot]].update(node for node in table.group_of(slot) if have.get(node) != piece.sha256)
    return found


def find_strangers(table: PartitionTable, pieces: Iterable[Piece], held: Held) -> dict[str, list[str]]:
    """Return node → pieces that it holds and must not: an earlier table brought them there."""
    found: dict[str, list[str]] = defaultdict(list)
    for piece in pieces:
        for node in sorted(held.get(piece.location, {}).keys() - set(wanting_nodes(table, piece))):
            found[node].append(piece.location)
    return dict(found)


def applied_upto(operations: Sequence[OperationRow], applied: int, settled: Callable[[OperationRow], bool]) -> int:
    """Return the version up to which a member has everything: just before its first unsettled operation.

    `operations`: of the group above `applied`, in order. Withdrawn operations do not count, nor those replaced by a later
    committed one. A proposed operation may count as settled too, if its outcome is there.
    """
    last = _last_committed(operations)
    for operation in operations:
        over = operation.state == "withdrawn" or last.get(_subject_key(operation), 0) > operation.version
        if not over and not settled(operation):
            break
        applied = operation.version
    return applied


def due_operations(operations: Sequence[OperationRow]) -> list[OperationRow]:
    """Return the operations a late member must do: the last committed one of each subject, by version."""
    last = _last_committed(operations)
    return [operation for operation in operations if last.get(_subject_key(operation)) == operation.version]


class Cached(NamedTuple):
    """A file in the receiver's cache. `used`: when it was last read or came, seconds since 1970."""

    location: str
    size: int  # bytes
    used: float


def choose_evictable(
    cached: Collection[Cached], safe: Collection[str], keep_bytes: int, before: float
) -> tuple[Cached, ...]:
    """Choose the files to evict so that at most `keep_bytes` stay, the longest unused first.

    Only files that are `safe` (all their nodes have them) and were last used before `before` are chosen: a reader may have
    the others open. So more than `keep_bytes` may stay.
    """
    over = sum(one.size for one in cached) - keep_bytes
    gone = []
    for one in sorted(cached, key=lambda c: (c.used, c.location)):
        if over <= 0:
            break
        if one.used < before and one.location in safe:
            gone.append(one)
            over -= one.size
    return tuple(gone)


def _subject_key(operation: OperationRow) -> tuple[str, str]:
    return ("database" if operation.kind.endswith("_database") else "file", operation.subject)


def _last_committed(operations: Iterable[OperationRow]) -> dict[tuple[str, str], int]:
    """Return the last committed version of each subject. A proposed one replaces nothing: it may be withdrawn."""
    return {_subject_key(operation): operation.version for operation in operations if operation.state == "committed"}
