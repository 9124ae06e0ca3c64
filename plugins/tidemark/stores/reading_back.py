"""Digests of what lies at an end of a link. Where nobody digests there the bytes cross for it, under the link's cap."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from tidemark.errors import SourceVanishedError, UnreachableError
from tidemark.stores.protocol import Range, Store, Tier, Want, flow
from tidemark.stores.transfer_items import Wire


def digests(wire: Wire, store: Store, ranges: Sequence[Range]) -> Sequence[str | None]:
    """As `store.digests`. Raises UnreachableError once more than a block would cross for it after the wish to stop."""
    if not wire.bucket.pace or store.properties.tier is not Tier.SFTP or not ranges:
        return store.digests(ranges)
    wants = []
    entries = store.stat_many([path for path, _, _ in ranges])
    for number, ((path, offset, length), entry) in enumerate(zip(ranges, entries, strict=True)):
        if entry is not None and entry.size >= offset + (length or 0):
            wants.append(Want(number, path, offset, entry.size - offset if length is None else length))
    totals = {want.number: hashlib.sha256() for want in wants}
    for number, data, trouble in flow(store, _paced(wire, store, wants), 2 * wire.bucket.pace):
        if isinstance(trouble, SourceVanishedError):
            totals.pop(number, None)
        elif trouble is not None:
            raise trouble
        elif number in totals:
            totals[number].update(data)
    return [totals[number].hexdigest() if number in totals else None for number in range(len(ranges))]


def _paced(wire: Wire, store: Store, wants: Sequence[Want]) -> Iterator[Want]:
    late = 0
    for want in wants:
        at, end = want.offset, want.offset + want.length
        while True:
            length = min(end - at, wire.bucket.pace)
            late += length if wire.stopped() else 0
            if late > wire.options.block_bytes:
                raise UnreachableError(
                    f"{want.path} at {store.url} was not read back before the transfer had to stop",
                    hint="the next run reads it back; nothing of it is sent again",
                    subject=want.path,
                )
            wire.bucket.take(length)
            yield want._replace(offset=at, length=length)
            at += length
            if at >= end:
                break
