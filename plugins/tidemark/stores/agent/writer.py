"""The far end of a push, first stage: check incoming frames and write their bytes into parts, without a round trip a file.

`frames` describes a frame's words: WORDS, FILEs with their paths, RECORDs. PIECES are written into parts. Each is
answered by its RECORD; a small file's has this end's digest. SEALS request the final names of whole files. `publisher`
reads pieces back and renames files in other threads. `begin_parts` makes the parts of large files. So a late piece for a
file that was renamed or begun anew finds no part and makes none. Runs at the far end (see `server`): the standard library
alone, Python 3.6.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from tidemark.stores.agent import durable
from tidemark.stores.agent.block_journal import Identity, copy_at, part_at
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import (
    ANSWERS,
    BARE,
    COPY,
    DIFFERS,
    FILE,
    LARGE,
    NOTHING,
    RECORD,
    SEALED,
    SEALS,
    SHARED,
    WORDS,
)
from tidemark.stores.agent.part_file import HeadRoom, PartFile, begin_part, claims_of, digest_of, whole_blocks, write_small
from tidemark.stores.agent.publisher import PartPublisher, Seal, trouble_of


class _File:
    def __init__(self, path: str, identity: Identity, flags: int) -> None:
        self.path = path
        self.identity = identity
        self.large = bool(flags & LARGE)
        self.part_at, other = (copy_at, part_at) if flags & COPY else (part_at, copy_at)
        self.other_at = other if flags & SHARED else None  # where another connection may have left a part of it
        self.proof: Any = None  # durable.Proof of a small file's part, once this session has written it
        self.syncs_failed = -1  # `PartPublisher.syncs_failed` before its first byte was written; -1: no byte came here


class FrameReceiver:
    """Receives the frames of one push. `send(records)` is called with the answers, from any thread. `resumed`: what
    `begin_parts` found in parts, by path. `reserve`: bytes of the disk that stay free."""

    def __init__(self, disk: Disk, send: Callable[[bytes], None], resumed: dict[str, Any], reserve: int = 0) -> None:
        self.disk = disk
        self.reserve = reserve
        self.room: Any = None  # HeadRoom of the disk that the first file goes to
        self.resumed = resumed
        self.files: dict[int, _File] = {}
        self.parts: dict[int, PartFile] = {}
        self.folders: dict[str, bytes] = {}  # folders made → their places, with a slash
        self._send = send
        self._door = threading.Lock()
        self._sealing = PartPublisher(disk, self._send_answers)

    def receive_frame(self, words: bytes, data: memoryview) -> None:
        """Handle one frame: its words and bytes."""
        asked, files = WORDS.unpack_from(words)
        self._note_files(words[WORDS.size : WORDS.size + files])
        answers: list[bytes] = []
        seals: list[Seal] = []
        at = 0
        for number, offset, length, _, kind, _, digest in RECORD.iter_unpack(words[WORDS.size + files :]):
            try:
                if asked == SEALS:
                    seals.append(self._to_seal(number, digest if kind != BARE else NOTHING))
                    continue
                piece = data[at : at + length]
                at += length
                if self.files[number].large:
                    self._write_piece(number, offset, piece, (kind, digest))
                else:
                    answers.append(self._write_small_file(number, piece, kind, digest))
            except OSError as error:
                span = (0, 0) if asked == SEALS else (offset, length)
                answers.append(trouble_of(number, error, SEALED if asked == SEALS else BARE, span))
        self._send_answers(answers)
        if seals:
            self._sealing.queue_seals(seals)

    def finish_files(self) -> None:
        """Wait until all requested files are sealed."""
        self._sealing.finish_sealing()
        for part in self.parts.values():
            part.close()

    def send_alive(self) -> None:
        """Send an empty answer, as a sign of life."""
        self._send_answers([b""])

    def _send_answers(self, answers: list[bytes]) -> None:
        with self._door:
            for start in range(0, len(answers), ANSWERS):
                try:
                    self._send(b"".join(answers[start : start + ANSWERS]))
                except OSError:  # the near end has disconnected; what came is still verified, journaled, renamed
                    return

    def _note_files(self, files: bytes) -> None:
        at = 0
        while at < len(files):
            number, size, mtime, inode, flags, name = FILE.unpack_from(files, at)
            at += FILE.size + name
            if number not in self.files:
                path = files[at - name : at].decode()
                self.files[number] = _File(path, Identity(size, mtime, inode), flags)

    def _write_piece(self, number: int, offset: int, data: memoryview, claim: tuple[int, bytes]) -> None:
        """Write a piece of a large file. It is answered once it is read back."""
        self._take_room(number, len(data))
        part = self._open_part(number)
        part.write_piece(offset, data)
        handle = part.sync_due()
        if handle >= 0:
            self._sealing.queue_sync(handle, part)
        self._sealing.queue_piece(number, part, (offset, len(data)), claim)

    def _write_small_file(self, number: int, data: memoryview, kind: int, digest: bytes) -> bytes:
        """Write a small file. Returns its answer, with this end's digest."""
        file, found = self.files[number], sha256(data).digest()
        if kind != BARE and found != digest:
            return RECORD.pack(number, 0, len(data), DIFFERS, BARE, 0, NOTHING)
        self._take_room(number, len(data))
        place = self._prepare_place(file.path)
        # Skipped where another copy was renamed while this one was under way.
        if file.other_at is None or not _has_digest(place, found):
            file.syncs_failed = self._sealing.syncs_failed
            file.proof = write_small(file.part_at(place), data)
        return RECORD.pack(number, 0, len(data), 0, BARE, 0, found)

    def _take_room(self, number: int, size: int) -> None:
        if self.room is None:
            self.room = HeadRoom(self.disk, os.path.dirname(self.files[number].path), self.reserve)
        self.room.claim_room(size)

    def _open_part(self, number: int) -> PartFile:
        part = self.parts.get(number)
        if part is None:
            file = self.files[number]
            self.disk.forget_folders()
            self._prepare_place(file.path)
            part = PartFile(self.disk, file.path, file.identity, self.resumed.pop(file.path, None))
            self.parts[number] = part
            if file.syncs_failed < 0:
                file.syncs_failed = self._sealing.syncs_failed
        return part

    def _prepare_place(self, path: str) -> bytes:
        """Return a file's place. Makes its folder and checks that no symlink leads there."""
        folder, _, name = path.rpartition("/")
        above = self.folders.get(folder)
        if above is None:
            self.disk.forget_folders()
            place = self.disk.locate(path)
            above = place[: len(place) - len(name.encode())]
            durable.make_folder(above.rstrip(b"/") or b"/")
            self._sealing.disks.watch_disk(above)
            self.folders[folder] = above
        return above + name.encode()

    def _to_seal(self, number: int, wanted: bytes) -> Seal:
        file = self.files[number]
        seal = Seal(number, file.path, self._prepare_place(file.path), wanted)
        if file.large:
            seal.identity = file.identity
            try:
                seal.part = self._open_part(number)
                del self.parts[number]
            except FileNotFoundError:  # sealed by a connection that broke before its answer: its digest decides
                pass
        else:
            seal.part_place, seal.proof = file.part_at(seal.place), file.proof
            seal.other_place = file.other_at(seal.place) if file.other_at else b""
        seal.syncs_failed = self._sealing.syncs_failed if file.syncs_failed < 0 else file.syncs_failed
        return seal


def begin_parts(disk: Disk, files: list[Any], resumed: dict[str, Any]) -> list[Any]:
    """Make the parts of large files, each [path, bytes, mtime, inode, whether an old part may be resumed].

    Returns for each [0, claims about the verified bytes of an earlier try] (see `part_file`), or [errno, words]. A file
    without such bytes gets a new part: a process that still writes to the old one does no harm.
    """
    disk.forget_folders()
    found = []
    for path, size, mtime, inode, keep in files:
        try:
            durable.make_folder(os.path.dirname(disk.locate(path)))
            identity = Identity(size, mtime, inode)
            kept = whole_blocks(disk, path, identity if keep else None)
            begin_part(disk, path, identity, kept.known_blocks())
            resumed.pop(path, None)
            if kept.known_blocks():  # else not stored: another process may receive the file (`forward`)
                resumed[path] = kept
            found.append([0, claims_of(kept)])
        except OSError as error:
            found.append([error.errno or errno.EIO, error.strerror or ""])
    return found


def _has_digest(place: bytes, digest: bytes) -> bool:
    try:
        found = digest_of(place)
    except OSError:
        return False
    return found is not None and found[0] == digest
