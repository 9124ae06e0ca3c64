"""What tells that a file is the one that was asked for: its identity, its digests at both ends, that it was sent before.

Every tier's sender asks the same questions here, so that a file means the same whatever carried it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.errors import CorruptionError, UnreachableError
from tidemark.stores.block_journal import Identity, copy_of, journal_of, part_of
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.transfer_items import SendItem, Wire

RACY_SECONDS = 2  # a file this young may change without a change of its mtime in whole seconds


def identity(item: SendItem, entry: Entry) -> Identity:
    growing = entry.size != item.size
    return Identity(item.size, -1 if growing else entry.mtime, entry.inode)


def unsure(item: SendItem, entry: Entry, started: float) -> bool:
    """Size and mtime cannot show a change: a prefix of a growing file, or a file changed within the last seconds."""
    return entry.size != item.size or entry.mtime >= started - RACY_SECONDS


def already_there(wire: Wire, items: Sequence[SendItem]) -> dict[SendItem, str]:
    """Items whose target has the right size and digest, sent by a run that did not live to say so; durable now."""
    found = wire.target.stat_many([item.target_path for item in items])
    there = [item for item, entry in zip(items, found, strict=True) if entry is not None and entry.size == item.size]
    if not wire.proven_at_source:
        there = [item for item in there if item.sha256]  # a digest would cost what sending costs
    if not there:
        return {}
    unknown = [item for item in there if not item.sha256]
    wanted: dict[SendItem, str | None] = {item: item.sha256 for item in there}
    digests = wire.source.digests([Range(item.source_path, 0, item.size) for item in unknown])
    wanted.update(zip(unknown, digests, strict=True))
    actual = wire.target.digests([Range(item.target_path) for item in there])
    arrived = {item: digest for item, digest in zip(there, actual, strict=True) if digest and digest == wanted[item]}
    if arrived:  # whoever renamed them may have died before the folder was synced, or the journal removed
        paths = [item.target_path for item in arrived]
        wire.target.remove([of(path) for path in paths for of in (part_of, copy_of, journal_of)])
        wire.target.seal_parts([(part_of(path), path) for path in paths])
    return arrived


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
