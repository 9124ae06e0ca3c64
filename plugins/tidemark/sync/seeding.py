"""Copies that lie at the receiver already take their place in a landing without crossing the wire.

The transfer finds a whole file under the final name, compares its digest with the source's and counts it as sent. Only
copies whose digest was compared before come here, so that no final name ever holds something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidemark.stores.agent.block_journal import part_of
from tidemark.stores.protocol import Store
from tidemark.transfer.engine import SendItem

_PIECE = 1 << 20


@dataclass(frozen=True)
class Copies:
    """`places`: source path → path in `store` of a copy with the source's digest."""

    store: Store | None = None
    places: Mapping[str, str] = field(default_factory=dict)


def seed(copies: Copies, target: Store, wanted: Iterable[tuple[str, SendItem]]) -> None:
    """Put the copy of each (source path, item) under the item's final name, where nothing lies there yet."""
    if copies.store is None:
        return
    for path, item in wanted:
        place = copies.places.get(path)
        if place is None or target.stat(item.target_path) is not None:
            continue
        part = part_of(item.target_path)
        target.write_part(part, 0, copies.store.chunks(place, 0, item.size, _PIECE))
        target.seal_parts([(part, item.target_path)])
