"""Give final names while more comes: a thread that makes arrived parts durable in batches and says so.

What waits when it looks is one batch: one sync of the disk for many small files, then the names, then the folders. So a
slow disk makes batches large, and a fast one adds no delay.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemark.errors import TidemarkError
from tidemark.stores import durable
from tidemark.stores.block_journal import journal_of, part_at
from tidemark.stores.disk import Disk
from tidemark.stores.transfer_items import Failed, SendItem, Sent, TryAgain, Wire
from tidemark.stores.translation import Where, os_error

BATCH = 2000
GATHER_SECONDS = 0.05  # for which a batch waits to grow
Outcome = Sent | Failed | tuple[SendItem, TryAgain]


class Whole(NamedTuple):
    """A part whose bytes were checked. `confirm` is asked before it is sealed and raises TryAgain, or another error."""

    item: SendItem
    place: bytes  # of the final name, on the disk
    sha256: str
    large: bool
    confirm: Callable[[], None] | None = None
    number: int = 0


@dataclass
class NamesInOrder:
    """Whole files on their way to be sealed: one whose name others go on from (`….tsfile.resource`) comes behind those."""

    ready: list[Whole] = field(default_factory=list)
    _above: dict[int, int] = field(default_factory=dict)  # companions under way: the file they belong to
    _behind: Counter[int] = field(default_factory=Counter)  # files with companions under way: how many
    _held: dict[int, Whole] = field(default_factory=dict)  # whole, but its companions are not

    @classmethod
    def of(cls, files: Sequence[SendItem]) -> NamesInOrder:
        order = cls()
        numbers = {item.target_path: number for number, item in enumerate(files)}
        for number, item in enumerate(files):
            base = numbers.get(item.target_path.rpartition(".")[0])
            if base is not None:
                order._above[number] = base
                order._behind[base] += 1
        return order

    def whole(self, number: int, whole: Whole) -> None:
        if self._behind and self._behind[number]:
            self._held[number] = whole
            return
        self.ready.append(whole)
        if self._above:
            self.settled(number)

    def settled(self, number: int) -> None:
        """The file is ready or failed: what is behind it may follow."""
        above = self._above.pop(number, None)
        if above is None:
            return
        self._behind[above] -= 1
        if not self._behind[above] and above in self._held:
            self.whole(above, self._held.pop(above))

    def take(self) -> list[Whole]:
        ready, self.ready = self.ready, []
        return ready


class Sealer:
    """`put` from one thread; outcomes go to `tell`, in the order put."""

    def __init__(self, wire: Wire, disk: Disk, where: Where, tell: Callable[[list[Outcome]], None]) -> None:
        self._wire = wire
        self._disk = disk
        self._where = where
        self._tell = tell
        self._queue: queue.SimpleQueue[list[Whole] | int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tidemark-seal", daemon=True)
        self._thread.start()

    def put(self, wholes: list[Whole]) -> None:
        self._queue.put(wholes)

    def sync(self, handle: int) -> None:
        """fsync and close `handle`: bytes of a large file under way."""
        self._queue.put(handle)

    def finish(self) -> None:
        """Returns when all that was put is sealed or failed."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch, handles, over = self._next_batch()
            for handle in handles:
                self._sync(handle)
            if batch:
                self._seal_all(batch)
            if over:
                return

    def _next_batch(self) -> tuple[list[Whole], list[int], bool]:
        batch: list[Whole] = []
        handles: list[int] = []
        got, deadline = self._queue.get(), 0.0
        while True:
            if got is None:
                return batch, handles, True
            if isinstance(got, int):
                handles.append(got)
            else:
                batch += got
            if len(batch) >= BATCH:
                return batch, handles, False
            deadline = deadline or time.monotonic() + GATHER_SECONDS
            try:
                got = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return batch, handles, False

    def _sync(self, handle: int) -> None:
        try:
            os.fsync(handle)
        except OSError:
            return  # what the disk lost shows when the part is sealed: its fsync fails too
        finally:
            os.close(handle)

    def _seal_all(self, batch: Sequence[Whole]) -> None:
        sure = [whole for whole in batch if whole.confirm is None or self._confirmed(whole, whole.confirm)]
        try:
            self._seal(sure)
        except OSError as error:
            if len(sure) > 1:  # one of them is the trouble: each alone
                for whole in sure:
                    self._seal_all([whole._replace(confirm=None)])
            else:
                item = sure[0].item
                self._tell([self._wire.failed(item, os_error(error, self._where, item.target_path))])
            return
        self._tell([self._wire.sent(whole.item, whole.sha256) for whole in sure])

    def _seal(self, batch: Sequence[Whole]) -> None:
        if not batch:
            return
        # CRASH WINDOW: whole parts without final names, or some with; the rerun seals them or finds them there.
        durable.seal([(part_at(whole.place), whole.place) for whole in batch])
        # CRASH WINDOW: final names there, journals left over; `already_there` of the rerun removes them.
        self._disk.remove([journal_of(whole.item.target_path) for whole in batch if whole.large])

    def _confirmed(self, whole: Whole, confirm: Callable[[], None]) -> bool:
        try:
            confirm()
        except TryAgain as again:
            self._tell([(whole.item, again)])
            return False
        except TidemarkError as error:
            self._tell([(whole.item, TryAgain(error))])
            return False
        return True
