"""Whether the target of a relay has room: before the first byte, and again and again while bytes come (`head_room`)."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.errors import DiskFullError
from tidemark.stores.head_room import HeadRoom, NoRoom
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Store
from tidemark.stores.transfer_items import SendItem, Wire

FAR_LOOKS = 10  # `rarely` of a far disk: a look waits for an answer


class TargetRoom:
    """Of the disk that the files below `folder` of the target go to. Where nobody can say, all have room."""

    def __init__(self, wire: Wire, folder: str) -> None:
        self._target, self._reserve = wire.target, wire.options.reserve
        free = self._target.free_bytes(folder)
        self._left = None if free is None else max(0, free - self._reserve)  # not promised to a file yet
        rarely = 1 if isinstance(self._target, LocalStore) else FAR_LOOKS
        self._head = None if free is None else HeadRoom(_Free(self._target), folder, self._reserve, rarely)

    def promise(self, item: SendItem, missing: int) -> None:
        """`missing` bytes of a file are to come. Raises DiskFullError where it has no room."""
        if self._left is None:
            return
        if missing > self._left:
            raise DiskFullError(
                f"{self._target.url} has room for {self._left} bytes, {item.target_path} needs {missing}",
                hint="free space there, then run again",
                subject=item.target_path,
            )
        self._left -= missing

    def take(self, size: int, missing: Callable[[], int]) -> None:
        """`size` bytes are to be written, of the `missing` ones. Raises DiskFullError before the disk is full."""
        if self._head is None:
            return
        try:
            self._head.take(size)
        except NoRoom as none:
            raise DiskFullError(
                f"{self._target.url} has {none.free} bytes free, {missing()} are still to come"
                + (f" and {self._reserve} are to stay free" if self._reserve else ""),
                hint="free space there, then run again: it goes on from what is there",
                subject=self._target.url,
            ) from none


class _Free:
    """What `HeadRoom` asks a disk, of any store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def free_bytes(self, folder: str) -> int:
        free = self._store.free_bytes(folder)
        return 1 << 62 if free is None else free
