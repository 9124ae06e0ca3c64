"""Find what exists at the target already, and identify files: by identity and by digests at both ends.

All tiers use these functions, so that their results mean the same. `identity_of` is size, mtime in whole seconds and
inode; a growing file has no mtime.

`find_already_there` finds items whose target has the right size and digest, sent by a run that died before it recorded
them, and makes their names durable. A batch that fails is asked again by halves, so that the error of one file affects
that file alone. With more than 64 errors the whole call fails.

A push checks before its first byte what earlier tries left (`same_at`). It checks the wish to stop after at most 256 MB
of files (`by_weight`).

`read_digests` returns digests made at one end of a link. If that end cannot digest (tier sftp), the bytes cross the
connection, under the link's cap. Once more than a block would cross after the wish to stop, it raises UnreachableError,
and the next run reads them back.
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
MOST_TROUBLES = 64  # errors of single files; with more of them the cause is not a single file
RACY_SECONDS = 2  # a file this young may change without a change of its mtime in whole seconds


def identity_of(item: SendItem, entry: Entry) -> Identity:
    growing = entry.size != item.size
    return Identity(item.size, -1 if growing else entry.mtime, entry.inode)


def may_have_changed(item: SendItem, entry: Entry, started: float) -> bool:
    """Whether size and mtime cannot show a change: a prefix of a growing file, or a file changed in the last 2 seconds."""
    return entry.size != item.size or entry.mtime >= started - RACY_SECONDS


def ask_by_halves(ask: Callable[[Sequence[T]], Sequence[R]], things: Sequence[T]) -> list[R | TidemarkError]:
    """Call `ask` for all things at once. On an error that may be of one thing, ask by halves and return its error for it.
    Raises errors of the network and the disk, CorruptionError, and any error after `MOST_TROUBLES` of them."""
    troubles = 0

    def answers(some: Sequence[T]) -> list[R | TidemarkError]:
        nonlocal troubles
        try:
            return list(ask(some))
        except (*SOON, DiskFullError, CorruptionError):  # network, disk; an invalid path must not be used at all
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
    """Return {item: digest} of items whose target has the right size and digest, and make their names durable. A target that
    cannot be read counts as missing: its error shows when the item is sent."""
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

    # The run that renamed them may have died before it synced the folder or removed the journal.
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


_BYTES = 256 << 20  # of existing files: checked between two checks of the wish to stop
_PIECE = 4 << 20  # and of one local file


def same_at(
    source: Store, path: str, claims: Sequence[tuple[int, int, str]], stopping: Callable[[], bool] = lambda: False
) -> bool:
    """Whether the source still has the bytes that an earlier try left; False also when asked to stop. `claims`: (offset,
    length, SHA-256) each (`stores.agent.part_file.claims_of`)."""
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
    """Split items into batches of at most 256 MB; a larger item is a batch of its own."""
    start = weight = 0
    for at, item in enumerate(items):
        if weight and weight + item.size > _BYTES:
            yield items[start:at]
            start, weight = at, 0
        weight += item.size
    if items:
        yield items[start:]


def read_digests(wire: Wire, store: Store, ranges: Sequence[Range]) -> Sequence[str | None]:
    """Return digests as `store.digest_ranges`. Bytes read for it over an SFTP connection pass under the link's cap. Raises
    UnreachableError once more than a block would cross after the wish to stop."""
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
