"""What tells that a file is the one that was asked for: its identity, its digests at both ends, that it was sent before.

Every tier's sender asks the same questions here, so that a file means the same whatever carried it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tidemark.errors import CorruptionError, DiskFullError, TidemarkError, UnreachableError
from tidemark.stores.agent.block_journal import Identity, copy_of, journal_of, part_of
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.reading_back import digests
from tidemark.stores.retrying import SOON
from tidemark.stores.transfer_items import SendItem, Wire

T = TypeVar("T")
R = TypeVar("R")
MOST_TROUBLES = 64  # of single files; with more of them it is no single file's
RACY_SECONDS = 2  # a file this young may change without a change of its mtime in whole seconds


def identity(item: SendItem, entry: Entry) -> Identity:
    growing = entry.size != item.size
    return Identity(item.size, -1 if growing else entry.mtime, entry.inode)


def unsure(item: SendItem, entry: Entry, started: float) -> bool:
    """Size and mtime cannot show a change: a prefix of a growing file, or a file changed within the last seconds."""
    return entry.size != item.size or entry.mtime >= started - RACY_SECONDS


def of_each(ask: Callable[[Sequence[T]], Sequence[R]], things: Sequence[T]) -> list[R | TidemarkError]:
    """`ask` of all at once; where an error ends that which may be one file's alone, by halves: the error for that one."""
    troubles = 0

    def answers(some: Sequence[T]) -> list[R | TidemarkError]:
        nonlocal troubles
        try:
            return list(ask(some))
        except (*SOON, DiskFullError, CorruptionError):  # of the line, of the disk; a path that is none must go nowhere
            raise
        except TidemarkError as error:
            if len(some) == 1 and troubles < MOST_TROUBLES:
                troubles += 1
                return [error]
            if troubles >= MOST_TROUBLES:
                raise
        half = len(some) // 2
        return answers(some[:half]) + answers(some[half:])

    return answers(things) if things else []


def already_there(wire: Wire, items: Sequence[SendItem]) -> dict[SendItem, str]:
    """Items whose target has the right size and digest, sent by a run that did not live to say so; durable now.

    One that cannot be looked at counts as not there: what is wrong with it shows when it is sent, and is its own trouble.
    """
    found = of_each(wire.target.stat_many, [item.target_path for item in items])
    there = [item for item, entry in zip(items, found, strict=True) if isinstance(entry, Entry) and entry.size == item.size]
    if not wire.proven_at_source:
        there = [item for item in there if item.sha256]  # a digest would cost what sending costs
    if not there:
        return {}
    unknown = [item for item in there if not item.sha256]
    wanted: dict[SendItem, str | TidemarkError | None] = {item: item.sha256 for item in there}
    sources = of_each(wire.source.digests, [Range(item.source_path, 0, item.size) for item in unknown])
    wanted.update(zip(unknown, sources, strict=True))
    actual = of_each(lambda ranges: digests(wire, wire.target, ranges), [Range(item.target_path) for item in there])
    arrived = {
        item: digest
        for item, digest in zip(there, actual, strict=True)
        if isinstance(digest, str) and digest == wanted[item]
    }

    def made_durable(some: Sequence[SendItem]) -> Sequence[SendItem]:
        paths = [item.target_path for item in some]
        wire.target.remove([of(path) for path in paths for of in (part_of, copy_of, journal_of)])
        wire.target.seal_parts([(part_of(path), path) for path in paths])
        return some

    # Whoever renamed them may have died before the folder was synced, or the journal removed.
    durable = of_each(made_durable, list(arrived))
    return {item: arrived[item] for item in durable if isinstance(item, SendItem)}


def differs(item: SendItem, end: str, offset: int, length: int) -> CorruptionError:
    return CorruptionError(
        f"{item.source_path}: block of {length} bytes at {offset} arrived with another digest (checked at the {end})",
        hint="check the disk at both ends; the next run sends the file again",
        subject=item.source_path,
    )


def taken_away(item: SendItem) -> UnreachableError:
    return UnreachableError(
        f"{item.target_path}: its part was taken away or written to by somebody else",
        hint="run again; is another Tidemark sending the same files?",
        subject=item.target_path,
    )


def other_digest(item: SendItem, actual: str, expected: str) -> CorruptionError:
    return CorruptionError(
        f"{item.source_path} arrived with digest {actual}, {expected} was expected",
        hint="check the disk at both ends; the next run sends the file again",
        subject=item.source_path,
    )
