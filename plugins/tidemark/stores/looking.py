"""Look at what earlier tries left before a push's first byte; who is to stop does not wait for gigabytes to be digested."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

from tidemark.errors import SourceVanishedError
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Range, Store
from tidemark.stores.transfer_items import SendItem

_BYTES = 256 << 20  # of files that may be there: looked at between two looks at the wish to stop
_PIECE = 4 << 20  # and of one at this end


def same_at(
    source: Store, path: str, claims: Sequence[tuple[int, int, str]], stopping: Callable[[], bool] = lambda: False
) -> bool:
    """The source still has the bytes that an earlier try left (`agent.part_file.claims`). False, too, when it is to stop."""
    if not isinstance(source, LocalStore):
        digests = source.digests([Range(path, offset, length) for offset, length, _ in claims])
        return list(digests) == [sha256 for _, _, sha256 in claims]
    for offset, length, digest in claims:
        total = sha256()
        try:
            for piece in source.chunks(path, offset, length, _PIECE):
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
