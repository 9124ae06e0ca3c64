"""L1 and L2: sorted entries of one size, a state and the place whose first transaction comes after it.

L1 (`index.l1`) has an entry for each bucket, L2 one for each 64 KiB of a bucket. Both are derived from the blocks, and
neither is trusted: each entry has a checksum, and what an index lacks is read from the blocks.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from mmap import mmap

from tidemark.changes.store.layout import STATE_BYTES, BucketFile, DataPosition, State

_ENTRY = struct.Struct(f"<{STATE_BYTES}sQQI")
ENTRY_BYTES = _ENTRY.size
L1_PATH = "index.l1"


@dataclass(frozen=True)
class Entry:
    """`before` is the state before the first transaction at `position`, in the bucket file of `fence`."""

    before: State
    position: DataPosition
    fence: int

    def encode(self) -> bytes:
        body = _ENTRY.pack(self.before.pack(), self.position.pack(), self.fence, 0)[:-4]
        return body + struct.pack("<I", zlib.crc32(body))


class Index:
    """An index as it lies on the disk, mapped. A damaged entry is None."""

    def __init__(self, data: mmap | bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // ENTRY_BYTES

    def __getitem__(self, number: int) -> Entry | None:
        data = self._data[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES]
        state, position, fence, check = _ENTRY.unpack(data)
        if check != zlib.crc32(data[:-4]):
            return None
        return Entry(State.unpack(state), DataPosition.unpack(position), fence)

    def find_bucket(self, file: BucketFile) -> Entry | None:
        """The entry of a bucket, or None."""
        wanted = DataPosition(file.id, 0), file.fence
        number = bisect_left(range(len(self)), wanted, key=lambda number: _place_of(self[number]))
        entry = self[number] if number < len(self) else None
        return entry if entry is not None and _place_of(entry) == wanted else None


def encode_index(entries: Iterable[Entry]) -> bytes:
    return b"".join(entry.encode() for entry in entries)


def _place_of(entry: Entry | None) -> tuple[DataPosition, int]:
    """A damaged entry sorts first: at worst an entry is not found, and its bucket is asked."""
    return (DataPosition.unpack(0), 0) if entry is None else (entry.position, entry.fence)
