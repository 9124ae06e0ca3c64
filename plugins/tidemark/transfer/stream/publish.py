"""Make complete parts durable and give them their final names, in batches on a thread, while more bytes come.

All parts that wait form the next batch: one sync of the disk for many small files, then the names, then the folders. So
a slow disk makes batches large, and a fast one adds no delay. A file waits until its companions are complete
(`NamesInOrder`), since its name shows others that it is complete. Before a part gets its name, it is checked that it is
still the file that was verified.

Many small files of a pull come at once. Their parts are written, hashed and named in C if it can be built
(`small_files.c`, class `SmallFiles`), so that threads do not compete for the interpreter's lock. C is used from 200
files on, because loading it takes as long as they do. Files that C could not do are done by `stores.agent.part_file` and
`stores.agent.durable`, which report the error. The results are the same.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import queue
import struct
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from tidemark.errors import CorruptionError, TidemarkError
from tidemark.native import load_libcrypto, load_library
from tidemark.stores.agent import durable
from tidemark.stores.agent.block_journal import journal_at, journal_of, part_at
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.part_file import PartFile, is_proven_after_rename, is_proven_file, write_small
from tidemark.stores.agent.publisher import BATCH, GATHER_SECONDS
from tidemark.stores.os_errors import Where, os_error
from tidemark.stores.protocol import Range
from tidemark.stores.retrying import SOON
from tidemark.transfer.existing import part_taken_error
from tidemark.transfer.items import Failed, SendItem, Sent, TryAgain, Wire, source_changed_error

Outcome = Sent | Failed | tuple[SendItem, TryAgain]


class Whole(NamedTuple):
    """A part whose bytes were checked. `confirm`: its source is digested again before it is named."""

    item: SendItem
    place: bytes  # of the final name, on the disk
    sha256: str
    large: bool
    confirm: bool = False
    proof: durable.Proof | None = None  # the stat of its part as long as its bytes are these
    syncs_failed: int = 0  # `Publisher.syncs_failed` before its first byte was written
    number: int = 0

    @property
    def has_journal(self) -> bool:
        return self.large or self.item.may_have_an_old_journal

    def part_and_name(self) -> tuple[bytes, bytes]:
        """Return the paths of its part and of its final name."""
        return part_at(self.place), self.place


@dataclass
class NamesInOrder:
    """Complete files in the order of their naming: a file comes behind those whose names extend its own (`x.resource`
    before `x`)."""

    ready: list[Whole] = field(default_factory=list)
    _above: dict[int, int] = field(default_factory=dict)  # incomplete companions: the file they belong to
    _behind: Counter[int] = field(default_factory=Counter)  # files with incomplete companions: how many
    _held: dict[int, Whole] = field(default_factory=dict)  # complete, but its companions are not

    @classmethod
    def order_files(cls, files: Sequence[SendItem]) -> NamesInOrder:
        order = cls()
        numbers = {item.target_path: number for number, item in enumerate(files)}
        for number, item in enumerate(files):
            base = numbers.get(item.target_path.rpartition(".")[0])
            if base is not None:
                order._above[number] = base
                order._behind[base] += 1
        return order

    def add_complete(self, number: int, whole: Whole) -> None:
        if self._behind and self._behind[number]:
            self._held[number] = whole
            return
        self.ready.append(whole)
        if self._above:
            self.release_next(number)

    def release_next(self, number: int) -> None:
        """Note that a file is ready or failed, so that the file it belongs to may follow."""
        above = self._above.pop(number, None)
        if above is None:
            return
        self._behind[above] -= 1
        if not self._behind[above] and above in self._held:
            self.add_complete(above, self._held.pop(above))

    def pop_ready(self) -> list[Whole]:
        ready, self.ready = self.ready, []
        return ready


class Publisher:
    """The thread that names files. One thread calls `queue_files`; outcomes go to `tell`. They keep the order of the queue
    unless a file is to be confirmed or fails."""

    def __init__(
        self, wire: Wire, disk: Disk, where: Where, tell: Callable[[list[Outcome]], None], small: SmallFiles | None = None
    ) -> None:
        self._small = small or SmallFiles(quick=False)
        self._wire = wire
        self._disk = disk
        self._where = where
        self._report = tell
        self.syncs_failed = 0  # of the disk; files written before one are sent again, and later ones are synced singly
        self.disks = durable.DiskHandles()
        self._lost: dict[bytes, OSError] = {}  # parts of which the disk lost bytes, by path
        self._bug: BaseException | None = None
        self._queue: queue.SimpleQueue[list[Whole] | tuple[int, PartFile] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_batches, name="tidemark-seal", daemon=True)
        self._thread.start()

    def queue_files(self, wholes: list[Whole]) -> None:
        self._queue.put(wholes)

    def queue_sync(self, handle: int, part: PartFile) -> None:
        """Queue an fsync and close of `handle`, of a large file that is incomplete."""
        self._queue.put((handle, part))

    def finish_publishing(self) -> None:
        """Wait until all queued files are named or failed. Raises an unexpected error of the thread."""
        self._queue.put(None)
        self._thread.join()
        self.disks.close()
        if self._bug is not None:
            raise self._bug

    def _run_batches(self) -> None:
        try:
            over = False
            while not over:
                batch, over = self._next_batch()
                if batch:
                    self._publish_all(batch)
        except BaseException as bug:
            self._bug = bug

    def _next_batch(self) -> tuple[list[Whole], bool]:
        batch: list[Whole] = []
        got, deadline = self._queue.get(), 0.0
        while True:
            if got is None:
                return batch, True
            if isinstance(got, tuple):
                self._sync_handle(*got)
            else:
                batch += got
            if len(batch) >= BATCH:
                return batch, False
            deadline = deadline or time.monotonic() + GATHER_SECONDS
            try:
                got = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return batch, False

    def _sync_handle(self, handle: int, part: PartFile) -> None:
        try:
            os.fsync(handle)
        except OSError as error:
            part.mark_lost(error)
            self._lost[part.place] = error
        finally:
            os.close(handle)

    def _publish_all(self, batch: Sequence[Whole]) -> None:
        kept = [whole for whole in batch if not self._in_doubt(whole)]
        sure = [whole for whole in kept if not whole.confirm or self._is_confirmed(whole)]
        if not sure:
            return
        try:
            self._report(self._publish_batch(sure))
        except durable.SyncFailed as error:
            self._not_durable(sure, error)
        except OSError as error:
            if len(sure) > 1:  # one of them caused it: try each alone
                for whole in sure:
                    self._publish_all([whole._replace(confirm=False)])
            else:
                item = sure[0].item
                if error.errno in (errno.ENOENT, errno.ESTALE):
                    self._report([(item, TryAgain(part_taken_error(item)))])
                else:
                    self._report([self._wire.make_failed(item, os_error(error, self._where, item.target_path))])

    def _publish_batch(self, batch: Sequence[Whole]) -> list[Outcome]:
        # CRASH WINDOW: complete parts without final names, or some with; the rerun names them or finds them there.
        pairs = [whole.part_and_name() for whole in batch]
        durable.make_durable(pairs, self.syncs_failed > 0, self.disks)
        at_once = self._small.name_parts(pairs, [whole.proof for whole in batch])
        same = [whole for whole, pair in zip(batch[at_once:], pairs[at_once:], strict=True) if _is_unchanged(whole, pair)]
        others = durable.give_names(
            [whole.part_and_name() for whole in same], lambda number: _has_its_name(same[number]), self.disks
        )
        for number in reversed(others):
            del same[number]
        durable.sync_names(pairs[:at_once], self.disks)
        same = [*batch[:at_once], *same]
        # CRASH WINDOW: final names there, journals left over; `find_already_there` of the rerun removes them.
        self._disk.remove([journal_of(whole.item.target_path) for whole in same if whole.has_journal])
        outcomes: list[Outcome] = [*self._wire.make_all_sent((whole.item, whole.sha256) for whole in same)]
        if len(same) < len(batch):
            outcomes += [(whole.item, TryAgain(_touched_error(whole.item))) for whole in batch if whole not in same]
        return outcomes

    def _in_doubt(self, whole: Whole) -> bool:
        """Whether the disk may have lost bytes of the file. If so, removes its part and reports it as TryAgain."""
        error = self._lost.get(whole.place)
        if error is None and whole.syncs_failed == self.syncs_failed:
            return False
        for place in (part_at(whole.place), journal_at(whole.place)):
            durable.remove_quietly(place)
        lost = error or OSError(errno.EIO, "the disk lost bytes that were written at that time")
        self._report([(whole.item, TryAgain(os_error(lost, self._where, whole.item.target_path)))])
        return True

    def _not_durable(self, batch: Sequence[Whole], error: durable.SyncFailed) -> None:
        """Send `error.parts` again. After a failed sync of the whole disk, send everything written before it again."""
        self.syncs_failed += error.disk
        self._lost.update((whole.place, error) for whole in batch if part_at(whole.place) in error.parts)
        self._publish_all([whole._replace(confirm=False) for whole in batch])

    def _is_confirmed(self, whole: Whole) -> bool:
        """Whether the source still has these bytes. If not, or if it cannot be read, reports the file's outcome."""
        item = whole.item
        try:
            if self._wire.source.digest_ranges([Range(item.source_path, 0, item.size)]) == [whole.sha256]:
                return True
            outcome: Outcome = (item, source_changed_error(item))
        except SOON as soon:
            outcome = (item, TryAgain(soon))
        except TidemarkError as error:
            outcome = self._wire.make_failed(item, error)
        self._report([outcome])
        return False


def _is_unchanged(whole: Whole, pair: tuple[bytes, bytes]) -> bool:
    """Whether the part is the file that was verified, or has its final name from a try that failed after the rename."""
    return whole.proof is None or is_proven_file(pair, whole.proof, bytes.fromhex(whole.sha256))


def _has_its_name(whole: Whole) -> bool:
    return whole.proof is None or is_proven_after_rename(whole.place, whole.proof, bytes.fromhex(whole.sha256))


def _touched_error(item: SendItem) -> CorruptionError:
    return CorruptionError(
        f"{item.target_path}: somebody else wrote to its part, or put another one there, before it got its name",
        hint="does another process bring files to this folder? The next try brings it again",
        subject=item.target_path,
    )


WORTH_IT = 200  # files from which on a transfer uses the library: loading it takes as long as they do
_SEEN = struct.Struct("=5q")  # the C code's result for a file: whether it is done, and its proof


class Arrived(NamedTuple):
    """A small file in a frame: the path of its part, and the offset and size of its bytes in the frame."""

    part: bytes
    at: int
    size: int


class Written(NamedTuple):
    """A written part: its `proof` (`stores.agent.durable.Proof`) or the error of writing it, and its SHA-256."""

    digest: bytes
    proof: durable.Proof | None
    error: OSError | None = None


class SmallFiles:
    """Writes and names many small files. `quick`: use the C library if it can be built, else Python alone."""

    def __init__(self, quick: bool) -> None:
        self._code = _load_library() if quick else None

    def write_parts(self, frame: memoryview, files: Sequence[Arrived]) -> list[Written]:
        """Write the part of each file from its bytes in `frame`. Does not make them durable."""
        code = self._code
        if code is None or frame.readonly or not files:
            return [_write_in_python(frame, file) for file in files]
        places = b"".join([file.part + b"\0" for file in files])
        at, sizes = (array("Q", column) for column in zip(*[(file.at, file.size) for file in files], strict=True))
        digests, seen = bytearray(32 * len(files)), bytearray(_SEEN.size * len(files))
        sha256 = _sha256_function()
        code.tm_write_parts(
            len(files),
            places,
            _buffer_address(frame),
            _array_address(at),
            _array_address(sizes),
            sha256,
            _buffer_address(digests),
            _buffer_address(seen),
        )
        made = bytes(digests)
        found = []
        for number, (done, *proof) in enumerate(_SEEN.iter_unpack(seen)):
            if done:
                digest = made[32 * number : 32 * number + 32] if sha256 else _sha256_of(frame, files[number])
                found.append(Written(digest, durable.Proof(*proof)))
            else:
                found.append(_write_in_python(frame, files[number]))
        return found

    def name_parts(self, pairs: Sequence[tuple[bytes, bytes]], proofs: Sequence[durable.Proof | None]) -> int:
        """Rename (part, final name) pairs that match their proofs before and after. Returns how many, from the first on. The
        state of the next pair is unknown: the caller must check it. Does not sync the folders."""
        if self._code is None:
            return 0
        known = array("q")
        for proof in proofs:
            known.extend((1, *(proof or (0, -1, 0, 0))))
        words = b"".join(part + b"\0" + final + b"\0" for part, final in pairs)
        return int(self._code.tm_give_names(len(pairs), words, _array_address(known)))


def _write_in_python(frame: memoryview, file: Arrived) -> Written:
    digest = _sha256_of(frame, file)
    try:
        return Written(digest, write_small(file.part, frame[file.at : file.at + file.size]))
    except OSError as error:
        return Written(digest, None, error)


def _sha256_of(frame: memoryview, file: Arrived) -> bytes:
    return hashlib.sha256(frame[file.at : file.at + file.size]).digest()


def _array_address(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]


def _buffer_address(data: memoryview | bytearray) -> int:
    """Return the address of its first byte; 0 if it is empty. Valid while the caller holds `data`."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0


@lru_cache(maxsize=1)
def _load_library() -> ctypes.CDLL | None:
    made = load_library("tidemark.transfer.stream", "small_files.c")
    if made is not None:
        address, number = ctypes.c_void_p, ctypes.c_uint64
        made.tm_write_parts.argtypes = (number, ctypes.c_char_p, *[address] * 6)
        made.tm_give_names.argtypes = (number, ctypes.c_char_p, address)
        made.tm_write_parts.restype, made.tm_give_names.restype = None, number
    return made


def _sha256_function() -> Any:
    crypto = load_libcrypto()
    return None if crypto is None else ctypes.cast(crypto.SHA256, ctypes.c_void_p)
