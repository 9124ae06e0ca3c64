"""Bring files from a far end that has python3 to a disk of this machine, as fast as the wire.

The hand (`transfer_round`) checks and writes what comes (`part_file`), another thread gives final names (`sealing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from tidemark.errors import TidemarkError
from tidemark.stores.block_journal import Identity, journal_of, part_at
from tidemark.stores.carrier import Carrier
from tidemark.stores.durable import make_folder, make_folders
from tidemark.stores.far_stream import BARE, RECORD
from tidemark.stores.line import Line
from tidemark.stores.local import LocalStore
from tidemark.stores.looking import same_at
from tidemark.stores.packets import Frame
from tidemark.stores.part_file import Differs, PartFile, Resumed, begin_part, write_small
from tidemark.stores.protocol import Entry, Range
from tidemark.stores.python_store import PythonStore
from tidemark.stores.resuming import claims, whole_blocks
from tidemark.stores.schedule import complement
from tidemark.stores.sealing import Sealer, Whole
from tidemark.stores.transfer_items import SendItem, TryAgain, Wire, changed
from tidemark.stores.transfer_proof import differs, identity, unsure
from tidemark.stores.transfer_round import Round
from tidemark.stores.translation import os_error


@dataclass
class _Large:
    """A file of more than one piece."""

    identity: Identity
    resumed: Resumed  # what its part begins with
    confirm: bool  # its times cannot show a change: digested again at the source before it is sealed
    part: PartFile | None = None  # once its first piece came


class Pull(Round):
    def __init__(self, wire: Wire, source: PythonStore, target: LocalStore, items: Sequence[SendItem]) -> None:
        super().__init__(wire, items, source.where, target.where)
        self.source = source
        self.target = target
        self.line = Line(source, self.schedule, self.asking, wire.bucket)
        self._large: dict[int, _Large] = {}  # under way
        self._folders: dict[str, bytes] = {}  # made; their places, with a slash
        self._beside: dict[str, dict[str, None]] = {}  # folder → those in it that files go to; until one of them is made
        for item in items:
            folder = item.target_path.rpartition("/")[0]
            self._beside.setdefault(folder.rpartition("/")[0], {})[folder] = None
        self._sealer = Sealer(wire, target.disk, target.where, self._told.put)

    def take(self, carrier: Carrier, frame: Frame) -> None:
        carrier.bytes += len(frame.data)
        at, large, data = 0, self._large, frame.data
        for number, offset, length, trouble, kind, size, digest in RECORD.iter_unpack(frame.words):
            piece = data[at : at + length]
            at += length
            if trouble:
                if self.schedule.waits_for(number):
                    self._source_trouble(number, trouble, size)
            elif number in large:
                self._piece(carrier, (number, offset), piece, (kind, digest))
            else:
                self._small(carrier, number, piece, (kind, digest))
        self._told.put(len(data))
        if self._order.ready:
            self._sealer.put(self._order.take())

    def close(self) -> None:
        for large in self._large.values():
            _close(large)
        self._sealer.put(self._order.take())
        self._sealer.finish()

    def _small(self, carrier: Carrier, number: int, data: memoryview, proof: tuple[int, bytes]) -> None:
        """A whole file."""
        size = len(data)
        if not self.schedule.arrived(carrier.number, number, 0, size):
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
        self._whole(number, Whole(item, place, own.hexdigest(), False))

    def _piece(self, carrier: Carrier, place: tuple[int, int], data: memoryview, proof: tuple[int, bytes]) -> None:
        (number, offset), (kind, digest) = place, proof
        item, large = self._files[number], self._large[number]
        self.wire.spent[item.target_path] = self.wire.spent.get(item.target_path, 0) + len(data)
        self.schedule.arrived(carrier.number, number, offset, len(data))
        try:
            part = self._part(item, large)
            part.take(offset, data, kind, digest)
            self.arrived_bytes += len(data)
            handle = part.sync_due()
            if handle >= 0:
                self._sealer.sync(handle)
            if part.complete:
                self.schedule.complete(number)
                self._whole_large(number, part.digest())
        except Differs as other:
            self._lose(number, TryAgain(differs(item, "target", other.offset, other.length)))
        except OSError as error:
            self._fail(number, os_error(error, self.target.where, item.target_path))

    def _part(self, item: SendItem, large: _Large) -> PartFile:
        if large.part is None:
            self._place(item.target_path)
            disk, path = self.target.disk, item.target_path
            begin_part(disk, path, large.identity, large.resumed)
            large.part = PartFile(disk, path, large.identity, large.resumed)
        return large.part

    def _place(self, path: str) -> bytes:
        """Where a file goes; its folder is there, and no symlink."""
        folder, _, name = path.rpartition("/")
        above = self._folders.get(folder)
        if above is None:
            self._make_beside(folder)
            place = self.target.disk.locate(path)
            above = place[: len(place) - len(name.encode())]
            make_folder(above.rstrip(b"/") or b"/")
            self._folders[folder] = above
        return above + name.encode()

    def _make_beside(self, folder: str) -> None:
        """Make it together with those beside it that files go to, so that what lies above is synced once for all of them.

        What is in the way of another one is the trouble of the files that go there.
        """
        places = []
        for other in self._beside.pop(folder.rpartition("/")[0], {}):
            with suppress(OSError):  # a symlink is on the way
                places.append(self.target.disk.locate(other))
        with suppress(FileExistsError, NotADirectoryError):
            make_folders(places)

    def _whole_large(self, number: int, digest: str) -> None:
        item, large = self._files[number], self._large.pop(number)
        _close(large)
        confirm = self._confirming(item, digest) if large.confirm else None
        self._whole(number, Whole(item, self._place(item.target_path), digest, True, confirm))

    def _confirming(self, item: SendItem, digest: str) -> Callable[[], None]:
        def confirm() -> None:
            if self.source.digests([Range(item.source_path, 0, item.size)]) != [digest]:
                raise changed(item)

        return confirm

    def _lose(self, number: int, again: TryAgain) -> None:
        """What lies in its part is not what the source has: no journal for it."""
        self.target.disk.remove([journal_of(self._files[number].target_path)])
        super()._lose(number, again)

    def _drop(self, number: int) -> None:
        super()._drop(number)
        if number in self._large:
            _close(self._large.pop(number))

    # before the first byte

    def look_at(self, files: dict[int, Entry]) -> dict[int, list[tuple[int, int]]]:
        started = time.time()
        gaps: dict[int, list[tuple[int, int]]] = {}
        for number, entry in files.items():
            item = self._files[number]
            known = identity(item, entry)
            try:
                resumed = whole_blocks(self.target.disk, item.target_path, known)
                if not same_at(self.source, item.source_path, claims(resumed)):
                    resumed = Resumed()
            except TidemarkError as error:
                self._fail(number, error)
            except OSError as error:
                self._fail(number, os_error(error, self.target.where, item.target_path))
            else:
                confirm = self.wire.options.digest_at_source and unsure(item, entry, started)
                self._large[number] = _Large(known, resumed, confirm)
                gaps[number] = complement(item.size, resumed.spans())
        return gaps

    def ready(self, number: int) -> None:
        large = self._large[number]
        if not self.schedule.waits_for(number):
            self._whole_large(number, self._part(self._files[number], large).digest())


def _close(large: _Large) -> None:
    if large.part is not None:
        large.part.close()
