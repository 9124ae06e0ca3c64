"""The far end of a push: what comes is checked, written into parts, made durable and named, no round trip a file.

A frame's words are a HEAD (what it asks, bytes of the FILEs), a FILE and its path for each file in it, and RECORDs as in
`far_stream`, whose bytes follow. PIECES are kept in parts; each is answered by its RECORD, with this end's digest of a whole
small file. SEALS give whole files their names, in batches and in a thread of their own, so that a slow disk holds up no
bytes. Parts of large files were made by `begin`: what comes late, for a file that has its name or was begun anew, finds
none and leaves none. Runs at the far end (see `far_program`): the standard library alone, Python 3.6.
"""

from __future__ import annotations

import errno
import os
import queue
import struct
import sys
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from tidemark.stores import durable
from tidemark.stores.block_journal import Identity, copy_at, journal_at, part_at
from tidemark.stores.disk import Disk
from tidemark.stores.far_stream import BARE, NOTHING, RECORD
from tidemark.stores.head_room import HeadRoom
from tidemark.stores.part_file import Differs, PartFile, begin_part, write_small
from tidemark.stores.resuming import claims, whole_blocks

WORDS = struct.Struct(">BI")  # PIECES or SEALS, bytes of the FILEs with their paths
FILE = struct.Struct(">IQqQBH")  # number, bytes, mtime, inode, flags, bytes of the path
LARGE, COPY, SHARED = 1, 2, 4  # flags: comes in pieces; another connection was asked for it before; one may be asked
PIECES, SEALS = 1, 2
SEALED, SOURCE = 4, 5  # kinds of answers: about its name; trouble at the near end (which this module never says)
DIFFERS = 252  # a trouble beside those of `far_stream`: not the bytes whose digest came with them
BATCH = 2000
ANSWERS = 1000  # RECORDs a frame: the near end has room for no more
GATHER_SECONDS = 0.05  # for which a batch waits to grow


class _File:
    def __init__(self, path: str, identity: Identity, flags: int) -> None:
        self.path = path
        self.identity = identity
        self.large = bool(flags & LARGE)
        self.part_at, other = (copy_at, part_at) if flags & COPY else (part_at, copy_at)
        self.other_at = other if flags & SHARED else None  # where another connection may have left a part of it


class _Seal:
    def __init__(self, number: int, file: _File, place: bytes, part: Any, wanted: bytes) -> None:
        self.number = number
        self.place = place
        self.part_place = file.part_at(place)
        self.other_place = file.other_at(place) if file.other_at else b""
        self.part = part
        self.large = file.large
        self.wanted = wanted  # the digest it must have, or NOTHING
        self.digest = wanted
        self.proven = not file.large  # a small file was proven when it came


class Receiver:
    """`send(records)` takes the answers. `resumed`: what `begin` found in parts, by path. `reserve`: bytes to stay free."""

    def __init__(self, disk: Disk, send: Callable[[bytes], None], resumed: dict[str, Any], reserve: int = 0) -> None:
        self.disk = disk
        self.reserve = reserve
        self.room: Any = None  # HeadRoom of the disk that the first file goes to
        self.resumed = resumed
        self.files: dict[int, _File] = {}
        self.parts: dict[int, PartFile] = {}
        self.folders: dict[str, bytes] = {}  # made; their places, with a slash
        self.jobs: Any = queue.Queue()
        self._send = send
        self._door = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def take(self, words: bytes, data: memoryview) -> None:
        """One frame."""
        asked, files = WORDS.unpack_from(words)
        self._learn(words[WORDS.size : WORDS.size + files])
        answers = []
        at = 0
        for number, offset, length, _, kind, _, digest in RECORD.iter_unpack(words[WORDS.size + files :]):
            if asked == SEALS:
                answers += self._to_seal(number, digest if kind != BARE else NOTHING)
            else:
                answers.append(self._piece(number, offset, data[at : at + length], kind, digest))
                at += length
        self._answer(answers)

    def finish(self) -> None:
        """Returns when what was asked is sealed."""
        self.jobs.put(None)
        self._thread.join()
        for part in self.parts.values():
            part.close()

    def _answer(self, answers: list[bytes]) -> None:
        for start in range(0, len(answers), ANSWERS):
            with self._door:
                self._send(b"".join(answers[start : start + ANSWERS]))

    def _learn(self, files: bytes) -> None:
        at = 0
        while at < len(files):
            number, size, mtime, inode, flags, name = FILE.unpack_from(files, at)
            at += FILE.size + name
            if number not in self.files:
                path = files[at - name : at].decode()
                self.files[number] = _File(path, Identity(size, mtime, inode), flags)

    def _piece(self, number: int, offset: int, data: memoryview, kind: int, digest: bytes) -> bytes:
        file = self.files[number]
        found = NOTHING
        try:
            if self.room is None:
                self.room = HeadRoom(self.disk, os.path.dirname(file.path), self.reserve)
            self.room.take(len(data))
            if file.large:
                part = self._part(number)
                part.take(offset, data, kind, digest)
                handle = part.sync_due()
                if handle >= 0:
                    self.jobs.put(handle)
            else:
                found = sha256(data).digest()
                if kind != BARE and found != digest:
                    raise Differs(offset, len(data))
                place = self._place(file.path)
                if not _there(place, found):  # else another copy got the name while this one was on its way
                    write_small(file.part_at(place), data)
        except Differs as other:
            return RECORD.pack(number, other.offset, other.length, DIFFERS, BARE, 0, NOTHING)
        except OSError as error:
            return _trouble(number, error, BARE, (offset, len(data)))
        return RECORD.pack(number, offset, len(data), 0, BARE, 0, found)

    def _part(self, number: int) -> PartFile:
        part = self.parts.get(number)
        if part is None:
            file = self.files[number]
            self.disk.forget()
            part = PartFile(self.disk, file.path, file.identity, self.resumed.pop(file.path, None))
            self.parts[number] = part
        return part

    def _place(self, path: str) -> bytes:
        """Where a file goes; its folder is there, and no symlink."""
        folder, _, name = path.rpartition("/")
        above = self.folders.get(folder)
        if above is None:
            self.disk.forget()
            place = self.disk.locate(path)
            above = place[: len(place) - len(name.encode())]
            durable.make_folder(above.rstrip(b"/") or b"/")
            self.folders[folder] = above
        return above + name.encode()

    def _to_seal(self, number: int, wanted: bytes) -> list[bytes]:
        file = self.files[number]
        part = None
        try:
            place = self._place(file.path)
            if file.large:
                try:
                    part = self._part(number)
                    del self.parts[number]
                except FileNotFoundError:
                    part = None  # sealed before, by a connection that did not live to say so: its digest will tell
        except OSError as error:
            return [_trouble(number, error, SEALED)]
        self.jobs.put(_Seal(number, file, place, part, wanted))
        return []

    # the thread that seals

    def _run(self) -> None:
        try:
            while self._next_batch():
                continue
        except BaseException:  # a bug; the near end must not wait for answers that never come
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)

    def _next_batch(self) -> bool:
        """False when it was the last one."""
        batch: list[_Seal] = []
        job, deadline = self.jobs.get(), 0.0
        while job is not None:
            if isinstance(job, int):
                _sync(job)
            else:
                batch.append(job)
            if len(batch) >= BATCH:
                break
            deadline = deadline or time.monotonic() + GATHER_SECONDS
            try:
                job = self.jobs.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        self._seal(batch)
        return job is not None

    def _seal(self, batch: list[_Seal]) -> None:
        answers: list[bytes] = []
        whole = [seal for seal in batch if seal.proven or self._proven(seal, answers)]
        try:
            # CRASH WINDOW: whole parts without final names, or some with; the rerun seals them or finds them there.
            durable.seal([(seal.part_place, seal.place) for seal in whole])
            # CRASH WINDOW: final names there, journals left over; `already_there` of the rerun removes them.
            for seal in whole:
                if seal.large:
                    durable.remove_quietly(journal_at(seal.place))
                elif seal.other_place:
                    durable.remove_quietly(seal.other_place)
                answers.append(RECORD.pack(seal.number, 0, 0, 0, SEALED, 0, seal.digest))
        except OSError as error:
            if len(whole) > 1 and not isinstance(error, durable.SyncFailed):  # one of them is the trouble: each alone
                for seal in whole:
                    self._seal([seal])
            else:
                answers += [_trouble(seal.number, error, SEALED) for seal in whole]
        self._answer(answers)

    def _proven(self, seal: _Seal, answers: list[bytes]) -> bool:
        """The whole file has the digest it must have; what other connections wrote of it is read back."""
        try:
            seal.digest = seal.part.finish() if seal.part is not None else _digest(seal.place)
        except OSError as error:
            answers.append(_trouble(seal.number, error, SEALED))
            return False
        finally:
            if seal.part is not None:
                seal.part.close()
        if seal.wanted not in (NOTHING, seal.digest):
            answers.append(RECORD.pack(seal.number, 0, 0, DIFFERS, SEALED, 0, seal.digest))
            return False
        seal.proven = True
        return True


def begin(disk: Disk, files: list[Any], resumed: dict[str, Any]) -> list[Any]:
    """Make the parts of large files, each [path, bytes, mtime, inode, whether what lies there may be gone on from].

    For each [0, claims] of what an earlier try left and is whole (see `resuming`), or [errno, words]. A file without such
    gets a new part: who still writes to an old one writes into nothing.
    """
    disk.forget()
    found = []
    for path, size, mtime, inode, keep in files:
        try:
            durable.make_folder(os.path.dirname(disk.locate(path)))
            identity = Identity(size, mtime, inode)
            kept = whole_blocks(disk, path, identity if keep else None)
            begin_part(disk, path, identity, kept)
            resumed[path] = kept
            found.append([0, claims(kept)])
        except OSError as error:
            found.append([error.errno or errno.EIO, error.strerror or ""])
    return found


def _there(place: bytes, digest: bytes) -> bool:
    try:
        return os.path.lexists(place) and _digest(place) == digest
    except OSError:
        return False


def _digest(place: bytes) -> bytes:
    total = sha256()
    with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        while True:
            piece = file.read(1 << 20)
            if not piece:
                return total.digest()
            total.update(piece)


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError:
        return  # what the disk lost shows when the part is sealed: its fsync fails too
    finally:
        os.close(handle)


def _trouble(number: int, error: OSError, kind: int, span: tuple[int, int] = (0, 0)) -> bytes:
    """Of a piece, or a name. With ENOSPC comes how many bytes are free, where that is known."""
    free = getattr(error, "free", 0)
    return RECORD.pack(number, span[0], span[1], error.errno or errno.EIO, kind, free, NOTHING)
