"""The far end of a push, second stage: verify pieces by reading them back; make whole files durable and rename them.

Two threads, so that neither a slow disk nor a large file delays incoming bytes. One reads every piece of a large file
back from its part and answers it. So a file's digest is that of the bytes in the part. The other works in batches: it
makes the parts durable, checks that each is still the verified one, and renames it. Runs at the far end (see `server`):
the standard library alone, Python 3.6.
"""

from __future__ import annotations

import errno
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tidemark.stores.agent import durable
from tidemark.stores.agent.block_journal import Identity, copy_at, journal_at, part_at
from tidemark.stores.agent.disk import Disk
from tidemark.stores.agent.frames import BARE, DIFFERS, LOST, NOTHING, RECORD, SEALED
from tidemark.stores.agent.part_file import Differs, PartFile, digest_of, first_bad, is_proven_after_rename, is_proven_file

BATCH = 2000
GATHER_SECONDS = 0.05  # for which a batch waits to grow


class Seal:
    """A file that is complete here and is to be renamed. `wanted`: the digest it must have, or NOTHING."""

    def __init__(self, number: int, path: str, place: bytes, wanted: bytes) -> None:
        self.number = number
        self.path = path
        self.place = place
        self.wanted = wanted
        self.digest = wanted
        self.identity: Identity | None = None  # of a large file
        self.part: Any = None  # PartFile of a large one whose pieces came over this connection
        self.part_place = part_at(place)
        self.other_place = b""  # where another connection may have left a copy of a small one
        self.proof: Any = None  # durable.Proof of the part, once its bytes are verified
        self.syncs_failed = 0  # `PartPublisher.syncs_failed` before its first byte was written


class PartPublisher:
    """The two threads and their queues. `answer(records)` is called with the answers, from any thread. The requests of one
    thread are done in their order."""

    def __init__(self, disk: Disk, answer: Callable[[list[bytes]], None]) -> None:
        self.disk = disk
        self.syncs_failed = 0  # syncs of a disk: files written before must come again, later ones are synced singly
        self.disks = durable.DiskHandles()
        self._answer = answer
        self._lost: dict[bytes, OSError] = {}  # by place of a file: the disk lost bytes of its part
        self._proving: Any = queue.Queue()
        self._naming: Any = queue.Queue()
        self._threads = [
            threading.Thread(target=self._run_thread, args=(act,)) for act in (self._prove_next, self._name_next)
        ]
        for thread in self._threads:
            thread.start()

    def queue_piece(self, number: int, part: PartFile, span: tuple[int, int], claim: tuple[int, bytes]) -> None:
        """Verify and answer a written piece of a large file. `span`: (offset, length); `claim`: (kind, digest)."""
        self._proving.put((number, part, span, claim))

    def queue_sync(self, handle: int, part: PartFile) -> None:
        """fsync and close `handle`, which has new bytes of the incomplete `part`."""
        self._naming.put((handle, part))

    def queue_seals(self, seals: list[Seal]) -> None:
        self._proving.put(seals)

    def finish_sealing(self) -> None:
        """Wait until all requests are verified, sealed and answered."""
        self._proving.put(None)
        for thread in self._threads:
            thread.join()
        self.disks.close()

    def _run_thread(self, act: Callable[[], bool]) -> None:
        try:
            while act():
                continue
        except BaseException:  # a bug: end the process, else the near end would wait for answers forever
            try:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
            finally:
                os._exit(1)

    # the thread that verifies

    def _prove_next(self) -> bool:
        """Do the next job. Returns False after the last one."""
        job = self._proving.get()
        if isinstance(job, tuple):
            self._answer([_proven_piece(*job)])
        elif job is None:
            self._naming.put(None)
        else:
            answers: list[bytes] = []
            self._naming.put([seal for seal in job if seal.proof is not None or self._prove_file(seal, answers)])
            self._answer(answers)
        return job is not None

    def _prove_file(self, seal: Seal, answers: list[bytes]) -> bool:
        """Whether the whole file has the digest it must have, in its part or elsewhere. Adds an answer where it has not."""
        try:
            found = self._finish_part(seal) if seal.part is not None else _find_elsewhere(seal)
            offset, length = first_bad(self.disk, seal.path) if not found and seal.part is not None else (0, 0)
        except OSError as error:
            answers.append(_lost_of(seal) if _is_lost(seal) else trouble_of(seal.number, error, SEALED))
            return False
        if not found:
            answers.append(RECORD.pack(seal.number, offset, length, DIFFERS, SEALED, 0, seal.digest))
        return found

    def _finish_part(self, seal: Seal) -> bool:
        try:
            seal.digest = seal.part.digest_whole()
            seal.proof = seal.part.proof
        finally:
            seal.part.close()
        return seal.wanted in (NOTHING, seal.digest)

    # the thread that renames

    def _name_next(self) -> bool:
        batch: list[Seal] = []
        job, deadline = self._naming.get(), 0.0
        while job is not None:
            if isinstance(job, tuple):
                self._sync_part(*job)
            else:
                batch += job
            if len(batch) >= BATCH:
                break
            deadline = deadline or time.monotonic() + GATHER_SECONDS
            try:
                job = self._naming.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
        self._name_batch(batch)
        return job is not None

    def _sync_part(self, handle: int, part: PartFile) -> None:
        try:
            os.fsync(handle)
        except OSError as error:
            part.mark_lost(error)
        finally:
            os.close(handle)

    def _name_batch(self, batch: list[Seal]) -> None:
        answers: list[bytes] = []
        kept = [seal for seal in batch if not self._in_doubt(seal, answers)]
        try:
            answers += self._name_proven(kept)
        except durable.SyncFailed as error:
            self.syncs_failed += error.disk
            self._lost.update((seal.place, error) for seal in kept if seal.part_place in error.parts)
            self._name_batch(kept)
        except OSError as error:
            if len(kept) > 1:  # one of them fails: do each alone
                for seal in kept:
                    self._name_batch([seal])
            else:
                answers += [trouble_of(seal.number, error, SEALED) for seal in kept]
        self._answer(answers)

    def _name_proven(self, batch: list[Seal]) -> list[bytes]:
        # CRASH WINDOW: whole parts, some of them renamed; the rerun seals the rest and finds the others there.
        durable.make_durable([(seal.part_place, seal.place) for seal in batch], self.syncs_failed > 0, self.disks)
        same = [seal for seal in batch if _is_part_proven(seal)]
        pairs = [(seal.part_place, seal.place) for seal in same]
        for number in reversed(durable.give_names(pairs, lambda number: _is_name_proven(same[number]), self.disks)):
            del same[number]
        # CRASH WINDOW: final names there, journals left over; `find_already_there` of the rerun removes them.
        for seal in same:
            if seal.identity is not None:
                durable.remove_quietly(journal_at(seal.place))
            elif seal.other_place:
                durable.remove_quietly(seal.other_place)
        others = [RECORD.pack(seal.number, 0, 0, errno.ESTALE, SEALED, 0, NOTHING) for seal in batch if seal not in same]
        return [RECORD.pack(seal.number, 0, 0, 0, SEALED, 0, seal.digest) for seal in same] + others

    def _in_doubt(self, seal: Seal, answers: list[bytes]) -> bool:
        """Whether the disk may have lost bytes of the file. Then removes its part, so that all bytes come again."""
        if not _is_lost(seal) and seal.place not in self._lost and seal.syncs_failed == self.syncs_failed:
            return False
        for place in (seal.part_place, journal_at(seal.place)):
            durable.remove_quietly(place)
        answers.append(_lost_of(seal))
        return True


def _proven_piece(number: int, part: PartFile, span: tuple[int, int], claim: tuple[int, bytes]) -> bytes:
    """Verify a written piece. Returns its answer."""
    if part.lost is not None:
        return RECORD.pack(number, span[0], span[1], LOST, BARE, 0, NOTHING)
    try:
        part.verify_piece(span[0], span[1], claim[0], claim[1])
    except Differs:
        return RECORD.pack(number, span[0], span[1], DIFFERS, BARE, 0, NOTHING)
    except OSError as error:
        return trouble_of(number, error, BARE, span)
    return RECORD.pack(number, span[0], span[1], 0, BARE, 0, NOTHING)


def _find_elsewhere(seal: Seal) -> bool:
    """Find a file that came over another connection: under its final name, if that connection broke before its answer, or
    in a part. Returns False where another file has the name. Raises ESTALE where there is none."""
    copies = () if seal.identity is not None else (part_at(seal.place), copy_at(seal.place))
    another = False
    for place in (seal.place, *copies):
        try:
            found = digest_of(place)
        except FileNotFoundError:
            continue
        if found is not None and found[0] == seal.wanted:
            seal.proof = found[1]
            # ".named": a name that no part has, so the rename is taken for done before
            seal.part_place = part_at(seal.place) + b".named" if place == seal.place else place
            return True
        if found is not None and place == seal.place:
            seal.digest, another = found[0], True
    if another and seal.wanted != NOTHING:
        return False
    raise OSError(errno.ESTALE, "is not here any more")


def _is_part_proven(seal: Seal) -> bool:
    return is_proven_file((seal.part_place, seal.place), seal.proof, seal.digest)


def _is_name_proven(seal: Seal) -> bool:
    return is_proven_after_rename(seal.place, seal.proof, seal.digest)


def _is_lost(seal: Seal) -> bool:
    return seal.part is not None and seal.part.lost is not None


def _lost_of(seal: Seal) -> bytes:
    return RECORD.pack(seal.number, 0, 0, LOST, SEALED, 0, NOTHING)


def trouble_of(number: int, error: OSError, kind: int, span: tuple[int, int] = (0, 0)) -> bytes:
    """Encode a failure of a piece or of a rename as an answer. For ENOSPC it has the free bytes, if known."""
    free = getattr(error, "free", 0)
    return RECORD.pack(number, span[0], span[1], error.errno or errno.EIO, kind, free, NOTHING)
