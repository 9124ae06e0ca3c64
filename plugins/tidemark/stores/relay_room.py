"""Whether the target of a relay has room: before the first byte, and again and again while bytes come
(`agent.part_file`)."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.stores.agent.part_file import HeadRoom, NoRoom
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Store
from tidemark.stores.transfer_items import SendItem, Wire, no_room_for, no_room_left

FAR_LOOKS = 10  # `rarely` of a far disk: a look waits for an answer


class TargetRoom:
    """Of the disk that the files below `folder` of the target go to. Where nobody can say, all have room."""

    def __init__(self, wire: Wire, folder: str) -> None:
        self._wire = wire
        target, reserve = wire.target, wire.options.reserve
        free = target.free_bytes(folder)
        self._left = None if free is None else max(0, free - reserve)  # not promised to a file yet
        rarely = 1 if isinstance(target, LocalStore) else FAR_LOOKS
        self._head = None if free is None else HeadRoom(_Free(target), folder, reserve, rarely)

    def promise(self, item: SendItem, missing: int) -> None:
        """`missing` bytes of a file are to come. Raises DiskFullError where it has no room."""
        if self._left is None:
            return
        if missing > self._left:
            raise no_room_for(self._wire, item, missing, self._left)
        self._left -= missing

    def take(self, size: int, missing: Callable[[], int]) -> None:
        """`size` bytes are to be written, of the `missing` ones. Raises DiskFullError before the disk is full."""
        if self._head is None:
            return
        try:
            self._head.take(size)
        except NoRoom as none:
            raise no_room_left(self._wire, none.free, missing()) from none


class _Free:
    """What `HeadRoom` asks a disk, of any store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def free_bytes(self, folder: str) -> int:
        free = self._store.free_bytes(folder)
        return 1 << 62 if free is None else free
