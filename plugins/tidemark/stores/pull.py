"""Bring files from a far end that has python3 to a disk of this machine, as fast as the wire.

One thread, the hand, owns everything: it takes the frames that the connections bring, checks and writes them (`part_file`),
asks for more (`schedule`), and opens connections while that pays. Another gives final names (`sealing`). The caller's thread
hands out what they tell. Nobody waits for a round trip: the far end always has more to send than the line holds.
Source: research/transfer-pull.md; research/transfer.md §5 "Connections by measurement", "Dynamic chunks".
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from tidemark.errors import DiskFullError, PermanentError, TidemarkError
from tidemark.stores.block_journal import Identity, journal_of, part_at
from tidemark.stores.carrier import Asking, Carrier, Opened
from tidemark.stores.durable import make_folder
from tidemark.stores.far_program import DATA
from tidemark.stores.far_stream import BARE, CHANGED, RECORD, SHORT
from tidemark.stores.local import LocalStore
from tidemark.stores.packets import Frame
from tidemark.stores.part_file import Differs, PartFile, Resumed, write_small
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.pull_line import Line
from tidemark.stores.python_store import PythonStore
from tidemark.stores.resuming import resume
from tidemark.stores.schedule import Schedule, complement
from tidemark.stores.sealing import NamesInOrder, Outcome, Sealer, Whole
from tidemark.stores.transfer_items import SendItem, TryAgain, Wire, changed, require, shorter
from tidemark.stores.transfer_large import identity, other_digest
from tidemark.stores.transfer_small import already_there, differs, unsure
from tidemark.stores.translation import os_error

PAUSE = 0.1  # seconds between two looks at stalls, speed and the wish to stop


@dataclass
class _Large:
    """A file of more than one piece."""

    identity: Identity
    resumed: Resumed  # what its part begins with
    confirm: bool  # its times cannot show a change: digested again at the source before it is sealed
    part: PartFile | None = None  # once its first piece came


@dataclass
class Pull:
    """One round over `items`: each is told as Sent, Failed or (item, TryAgain), unless the round ends before."""

    wire: Wire
    source: PythonStore
    target: LocalStore
    items: Sequence[SendItem]
    arrived_bytes: int = 0  # that were checked and kept
    error: TidemarkError | None = None  # that ended the round
    _bug: BaseException | None = None  # what nobody expected; raised to the caller
    _told: queue.SimpleQueue[list[Outcome] | int | None] = field(default_factory=queue.SimpleQueue)
    _stop: threading.Event = field(default_factory=threading.Event)  # ask no more, take what was asked
    _abandon: threading.Event = field(default_factory=threading.Event)
    _files: Sequence[SendItem] = ()  # by number
    _large: dict[int, _Large] = field(default_factory=dict)  # of them, those under way
    _order: NamesInOrder = field(default_factory=NamesInOrder)
    _folders: dict[str, bytes] = field(default_factory=dict)  # made; their places, with a slash
    _asking: dict[int, Asking] = field(default_factory=dict)
    _schedule: Schedule = field(default_factory=Schedule)

    def outcomes(self) -> Iterator[Outcome]:
        """Runs the round. Bytes are told to the wire's `on_bytes`, in the caller's thread as the outcomes."""
        hand = threading.Thread(target=self._hand, name="tidemark-pull", daemon=True)
        hand.start()
        try:
            while True:
                if self.wire.stopped():
                    self._stop.set()
                try:
                    told = self._told.get(timeout=PAUSE)
                except queue.Empty:
                    continue
                if told is None:
                    break
                if isinstance(told, int):
                    self.wire.on_bytes(told)
                else:
                    yield from told
        finally:
            self._abandon.set()
            hand.join()
        if self._bug is not None:
            raise self._bug

    # the hand's thread

    def _hand(self) -> None:
        self._line = Line(self.source, self._schedule, self._asking, self.wire.bucket)
        self._sealer = Sealer(self.wire, self.target.disk, self.target.where, self._told.put)
        try:
            self._prepare()  # asks through the session that the line takes then
            self._line.start(self.wire.options)
            self._work()
            self._line.finish()
        except TidemarkError as error:
            self.error = error
            self._line.abandon()
        except OSError as error:
            self.error = os_error(error, self.target.where, "")
            self._line.abandon()
        except BaseException as bug:
            self._bug = bug
            self._line.abandon()
        finally:
            for large in self._large.values():
                _close(large)
            self._sealer.put(self._order.take())
            self._sealer.finish()
            self._told.put(None)

    def _work(self) -> None:
        line, schedule = self._line, self._schedule
        for carrier in list(line.carriers):
            line.top_up(carrier, self._stop.is_set)
        looked = time.monotonic()
        while not schedule.finished and not self._abandon.is_set():
            if self._stop.is_set() and not any(schedule.outstanding(c.number) for c in line.carriers):
                return
            with contextlib.suppress(queue.Empty):
                came = line.came.get(timeout=PAUSE)
                if isinstance(came, Opened):
                    line.opened(came, self._stop.is_set)
                else:
                    self._came(*came)
            if time.monotonic() - looked >= PAUSE:
                line.tick(self._stop.is_set)
                looked = time.monotonic()

    def _came(self, carrier: Carrier, frame: Frame | None) -> None:
        if carrier.ended:
            return
        if frame is None:
            self._line.lost(carrier)
            self._line.tick(self._stop.is_set)
            return
        if frame.kind != DATA:
            raise PermanentError(f"{self.source.url}: the far end broke off: {bytes(frame.words)!r}", hint="run again")
        carrier.bytes += len(frame.data)
        at, large, data = 0, self._large, frame.data
        for number, offset, length, trouble, kind, size, digest in RECORD.iter_unpack(frame.words):
            piece = data[at : at + length]
            at += length
            if trouble:
                self._trouble(number, trouble, size)
            elif number in large:
                self._piece(carrier, (number, offset), piece, (kind, digest))
            else:
                self._small(carrier, number, piece, (kind, digest))
        self._told.put(len(data))
        if self._order.ready:
            self._sealer.put(self._order.take())
        carrier.give_back(frame)
        self._line.top_up(carrier, self._stop.is_set)

    def _small(self, carrier: Carrier, number: int, data: memoryview, proof: tuple[int, bytes]) -> None:
        """A whole file."""
        size = len(data)
        if not self._schedule.arrived(carrier.number, number, 0, size):
            return  # of a file that has its outcome
        item = self._files[number]
        self.wire.spent[item.target_path] = size
        own = sha256(data)
        if proof[0] != BARE and own.digest() != proof[1]:
            self._lose(number, TryAgain(differs(item, "target", 0, size)))
            return
        try:
            place = self._place(item.target_path)
            write_small(part_at(place), data)
        except OSError as error:
            self._fail(number, os_error(error, self.target.where, item.target_path))
            return
        self.arrived_bytes += size
        self._whole(number, Whole(item, place, own.hexdigest(), False))

    def _piece(self, carrier: Carrier, place: tuple[int, int], data: memoryview, proof: tuple[int, bytes]) -> None:
        (number, offset), (kind, digest) = place, proof
        item, large = self._files[number], self._large[number]
        self.wire.spent[item.target_path] = self.wire.spent.get(item.target_path, 0) + len(data)
        self._schedule.arrived(carrier.number, number, offset, len(data))
        try:
            part = self._part(item, large)
            part.take(offset, data, kind, digest)
            self.arrived_bytes += len(data)
            handle = part.sync_due()
            if handle >= 0:
                self._sealer.sync(handle)
            if part.complete:
                self._schedule.complete(number)
                self._whole_large(number, part.digest())
        except Differs as other:
            self._lose(number, TryAgain(differs(item, "target", other.offset, other.length)))
        except OSError as error:
            self._fail(number, os_error(error, self.target.where, item.target_path))

    def _part(self, item: SendItem, large: _Large) -> PartFile:
        if large.part is None:
            self._place(item.target_path)
            large.part = PartFile(self.target.disk, item, large.identity, large.resumed)
        return large.part

    def _place(self, path: str) -> bytes:
        """Where a file goes; its folder is there, and no symlink."""
        folder, _, name = path.rpartition("/")
        above = self._folders.get(folder)
        if above is None:
            place = self.target.disk.locate(path)
            above = place[: len(place) - len(name.encode())]
            make_folder(above.rstrip(b"/") or b"/")
            self._folders[folder] = above
        return above + name.encode()

    def _whole_large(self, number: int, digest: str) -> None:
        item, large = self._files[number], self._large.pop(number)
        _close(large)
        confirm = self._confirming(item, digest) if large.confirm else None
        self._whole(number, Whole(item, self._place(item.target_path), digest, True, confirm))

    def _whole(self, number: int, whole: Whole) -> None:
        """All bytes are in the part and checked: it goes to be sealed, behind its companions."""
        wanted = whole.item.sha256
        if wanted and wanted != whole.sha256:
            self._lose(number, TryAgain(other_digest(whole.item, whole.sha256, wanted)))
        else:
            self._order.whole(number, whole)

    def _confirming(self, item: SendItem, digest: str) -> Callable[[], None]:
        def confirm() -> None:
            if self.source.digests([Range(item.source_path, 0, item.size)]) != [digest]:
                raise changed(item)

        return confirm

    def _trouble(self, number: int, trouble: int, size: int) -> None:
        item = self._files[number]
        if not self._schedule.waits_for(number):
            return
        if trouble == CHANGED:
            self._lose(number, changed(item))
        elif trouble == SHORT:
            self._fail(number, shorter(item, size))
        else:
            self._fail(number, os_error(OSError(trouble, os.strerror(trouble)), self.source.where, item.source_path))

    def _lose(self, number: int, again: TryAgain) -> None:
        """This try at the file did not get there. What lies in its part is not what the source has: no journal for it."""
        item = self._files[number]
        self._drop(number)
        self.target.disk.remove([journal_of(item.target_path)])
        self._told.put([(item, again)])
        self._order.settled(number)

    def _fail(self, number: int, error: TidemarkError) -> None:
        self._drop(number)
        self._told.put([self.wire.failed(self._files[number], error)])
        self._order.settled(number)
        if isinstance(error, DiskFullError):
            raise error

    def _drop(self, number: int) -> None:
        self._schedule.drop(number)
        if number in self._large:
            _close(self._large.pop(number))

    # before the first byte

    def _prepare(self) -> None:
        """What is there already, what an earlier try left, what does not fit; the rest is scheduled."""
        there = already_there(self.wire, self.items)
        self._told.put([self.wire.sent(item, digest) for item, digest in there.items()])
        limit = self._line.frame
        started = time.time()
        self._files = left = [item for item in self.items if item not in there] if there else self.items
        large = [item for item in left if item.size > limit]
        entries = dict(zip(large, self.source.stat_many([item.source_path for item in large]), strict=True))
        self._order = NamesInOrder.of(left)
        free = self.target.free_bytes(left[0].target_path.rpartition("/")[0]) if left else 0
        for number, item in enumerate(left):
            try:
                _check_room(self.target, item, item.size if item.size <= limit else 0, free)
                if item.size <= limit:
                    self._asking[number] = Asking(item.source_path, item.size)
                    self._schedule.add_small(number, item.size)
                    free -= item.size
                else:
                    free -= self._add(number, require(item, entries[item]), started, free)
            except TidemarkError as error:
                self._told.put([self.wire.failed(item, error)])
                self._order.settled(number)

    def _add(self, number: int, entry: Entry, started: float, free: int) -> int:
        """Schedule a large file; the bytes it will take."""
        item = self._files[number]
        known = identity(item, entry)
        self._asking[number] = Asking(item.source_path, item.size, known.mtime, known.inode)
        resumed = resume(self.target.disk, self.source, item, known)
        gaps = complement(item.size, resumed.spans())
        missing = sum(end - offset for offset, end in gaps)
        _check_room(self.target, item, missing, free)
        large = _Large(known, resumed, self.wire.options.digest_at_source and unsure(item, entry, started))
        self._large[number] = large
        if gaps:
            self._schedule.add_large(number, gaps)
        else:
            self._whole_large(number, self._part(item, large).digest())
        return missing


def _close(large: _Large) -> None:
    if large.part is not None:
        large.part.close()


def _check_room(target: LocalStore, item: SendItem, missing: int, free: int) -> None:
    if missing > free:
        raise DiskFullError(
            f"{target.url} has {free} bytes free, {item.target_path} needs {missing}",
            hint="free space there, then run again",
            subject=item.target_path,
        )
