"""The blocks that a writer closed last, decoded, for readers in its process: they spare themselves reading and decoding.

A reader asks with the header that it found on the disk. So memory never says which blocks count: what a replaced holder
keeps here, or what was cut from a bucket, has a header that no reader finds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tidemark.changes.store.block import Header
from tidemark.changes.store.model import Transaction


class Recent:
    """Blocks of one source, up to `most_bytes`. The oldest go first. Of many threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._blocks: dict[Header, tuple[int, Sequence[Transaction]]] = {}  # in the order of keeping
        self._lock = threading.Lock()

    def keep(self, header: Header, size: int, transactions: Sequence[Transaction]) -> None:
        """Keep a block that takes `size` bytes of memory. One larger than the limit is not kept."""
        if size > self._most:
            return
        with self._lock:
            self._blocks[header] = size, transactions
            self._bytes += size
            while self._bytes > self._most:
                oldest, _ = self._blocks.pop(next(iter(self._blocks)))
                self._bytes -= oldest

    def get(self, header: Header) -> Sequence[Transaction] | None:
        """The transactions of a block, as `decode_transactions` has them; None: read it."""
        with self._lock:
            found = self._blocks.get(header)
        return found and found[1]
