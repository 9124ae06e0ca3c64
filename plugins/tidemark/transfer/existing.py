"""What is there already, and what tells that a file is the one that was asked for: identity, digests at both ends.

Every tier's sender asks the same questions here, so that a file means the same whatever carried it. `identity_of` is
size, mtime in whole seconds and inode; a growing file has no mtime. `may_have_changed` says that size and mtime cannot show
a change: a prefix of a growing file, or a file that changed within the last two seconds.

`find_already_there` finds items whose target has the right size and digest, sent by a run that did not live to say so,
and makes their names durable. One that cannot be read counts as not there. A batch that fails is asked again by
halves, so that the trouble of one file is that file's alone; with more than 64 troubles it is no single file's.

A push checks before its first byte what earlier tries left (`same_at`). Who is asked to stop does not wait for
gigabytes to be digested: after at most 256 MB of files it may stop (`by_weight`).

`digests` gives digests of what lies at an end of a link. Where nobody digests there (tier sftp), the bytes cross for
it, under the link's cap. Once more than a block would cross after the wish to stop, it raises UnreachableError, and
the next run reads it back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import TypeVar

from tidemark.errors import CorruptionError, DiskFullError, SourceVanishedError, TidemarkError, UnreachableError
from tidemark.stores.agent.block_journal import Identity, copy_of, journal_of, part_of
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Entry, Range, Store, Tier, Want, read_stream
from tidemark.stores.retrying import SOON
from tidemark.transfer.items import SendItem, Wire

T = TypeVar("T")
R = TypeVar("R")
MOST_TROUBLES = 64  # of single files; with more of them it is no single file's
RACY_SECONDS = 2  # a file this young may change without a change of its mtime in whole seconds


def identity_of(item: SendItem, entry: Entry) -> Identity:
    growing = entry.size != item.size
    return Identity(item.size, -1 if growing else entry.mtime, entry.inode)


def may_have_changed(item: SendItem, entry: Entry, started: float) -> bool:
    """Size and mtime cannot show a change: a prefix of a growing file, or a file changed within the last seconds."""
    return entry.size != item.size or entry.mtime >= started - RACY_SECONDS


def ask_by_halves(ask: Callable[[Sequence[T]], Sequence[R]], things: Sequence[T]) -> list[R | TidemarkError]:
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


def find_already_there(wire: Wire, items: Sequence[SendItem]) -> dict[SendItem, str]:
    """Items whose target has the right size and digest, sent by a run that did not live to say so; durable now.

    One that cannot be looked at counts as not there: what is wrong with it shows when it is sent, and is its own trouble.
    """
    found = ask_by_halves(wire.target.stat_many, [item.target_path for item in items])
    there = [item for item, entry in zip(items, found, strict=True) if isinstance(entry, Entry) and entry.size == item.size]
    if not wire.proven_at_source:
        there = [item for item in there if item.sha256]  # a digest would cost what sending costs
    if not there:
        return {}
    unknown = [item for item in there if not item.sha256]
    wanted: dict[SendItem, str | TidemarkError | None] = {item: item.sha256 for item in there}
    sources = ask_by_halves(wire.source.digest_ranges, [Range(item.source_path, 0, item.size) for item in unknown])
    wanted.update(zip(unknown, sources, strict=True))
    actual = ask_by_halves(
        lambda ranges: read_digests(wire, wire.target, ranges), [Range(item.target_path) for item in there]
    )
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
    durable = ask_by_halves(made_durable, list(arrived))
    return {item: arrived[item] for item in durable if isinstance(item, SendItem)}


def block_differs_error(item: SendItem, end: str, offset: int, length: int) -> CorruptionError:
    return CorruptionError(
        f"{item.source_path}: block of {length} bytes at {offset} arrived with another digest (checked at the {end})",
        hint="check the disk at both ends; the next run sends the file again",
        subject=item.source_path,
    )


def part_taken_error(item: SendItem) -> UnreachableError:
    return UnreachableError(
        f"{item.target_path}: its part was taken away or written to by somebody else",
        hint="run again; is another Tidemark sending the same files?",
        subject=item.target_path,
    )


def digest_differs_error(item: SendItem, actual: str, expected: str) -> CorruptionError:
    return CorruptionError(
        f"{item.source_path} arrived with digest {actual}, {expected} was expected",
        hint="check the disk at both ends; the next run sends the file again",
        subject=item.source_path,
    )


_BYTES = 256 << 20  # of files that may be there: looked at between two looks at the wish to stop
_PIECE = 4 << 20  # and of one at this end


def same_at(
    source: Store, path: str, claims: Sequence[tuple[int, int, str]], stopping: Callable[[], bool] = lambda: False
) -> bool:
    """The source still has the bytes that an earlier try left (`stores.agent.part_file.claims`). False, too, when it is to
    stop."""
    if not isinstance(source, LocalStore):
        digests = source.digest_ranges([Range(path, offset, length) for offset, length, _ in claims])
        return list(digests) == [sha256 for _, _, sha256 in claims]
    for offset, length, digest in claims:
        total = sha256()
        try:
            for piece in source.read_chunks(path, offset, length, _PIECE):
                total.update(piece)
                if stopping():
                    return False
        except SourceVanishedError:
            return False
        if total.hexdigest() != digest:
            return False
    return True


def by_weight(items: Sequence[SendItem]) -> Iterator[Sequence[SendItem]]:
    """Cut where it would take more than a moment to digest them."""
    start = weight = 0
    for at, item in enumerate(items):
        if weight and weight + item.size > _BYTES:
            yield items[start:at]
            start, weight = at, 0
        weight += item.size
    if items:
        yield items[start:]


def read_digests(wire: Wire, store: Store, ranges: Sequence[Range]) -> Sequence[str | None]:
    """As `store.digests`. Raises UnreachableError once more than a block would cross for it after the wish to stop."""
    if not wire.bucket.pace_bytes or store.properties.tier is not Tier.SFTP or not ranges:
        return store.digest_ranges(ranges)
    wants = []
    entries = store.stat_many([path for path, _, _ in ranges])
    for number, ((path, offset, length), entry) in enumerate(zip(ranges, entries, strict=True)):
        if entry is not None and entry.size >= offset + (length or 0):
            wants.append(Want(number, path, offset, entry.size - offset if length is None else length))
    totals = {want.number: hashlib.sha256() for want in wants}
    for number, data, trouble in read_stream(store, _pace_wants(wire, store, wants), 2 * wire.bucket.pace_bytes):
        if isinstance(trouble, SourceVanishedError):
            totals.pop(number, None)
        elif trouble is not None:
            raise trouble
        elif number in totals:
            totals[number].update(data)
    return [totals[number].hexdigest() if number in totals else None for number in range(len(ranges))]


def _pace_wants(wire: Wire, store: Store, wants: Sequence[Want]) -> Iterator[Want]:
    late = 0
    for want in wants:
        at, end = want.offset, want.offset + want.length
        while True:
            length = min(end - at, wire.bucket.pace_bytes)
            late += length if wire.is_stopped() else 0
            if late > wire.options.block_bytes:
                raise UnreachableError(
                    f"{want.path} at {store.url} was not read back before the transfer had to stop",
                    hint="the next run reads it back; nothing of it is sent again",
                    subject=want.path,
                )
            wire.bucket.consume_tokens(length)
            yield want._replace(offset=at, length=length)
            at += length
            if at >= end:
                break
