"""A file's bytes by position, every range checked against its length."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType

from tidemark.errors import NotFoundError
from tidemark.tsfiles.wire import corrupt
from tidemark.untrusted_files import UntrustedFile

_WHOLE = 4 << 20  # bytes that are cheaper read at once than in the many small pieces of an index
_TAIL = 1 << 20  # of an index that stays in memory while its file is open: a merge has many open at once


class FileBytes:
    """A local file opened for reading at any position; a context manager. `size` is its length when it was opened.

    A `path` is one that the user named, links and all; what others may have put there comes as an UntrustedFile.
    `all_of_it`: the caller will look at every part, so a file that is not large is read at once.
    """

    def __init__(self, path: Path | str | UntrustedFile, all_of_it: bool = False) -> None:
        self.path = str(path)
        try:
            self._descriptor = path.handle() if isinstance(path, UntrustedFile) else _opened(self.path)
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.path}: no such file", subject=self.path) from error
        self.size = os.fstat(self._descriptor).st_size
        self._kept, self._kept_from = b"", self.size
        if all_of_it:
            self.keep(0, _WHOLE)

    def keep(self, start: int, most: int = _TAIL) -> None:
        """Read all from byte `start` on at once, where that is not more than `most`: many small pieces will be asked for."""
        if 0 < self.size - start <= most:
            kept = os.pread(self._descriptor, self.size - start, start)
            if len(kept) == self.size - start:  # else piece by piece, which says what is wrong
                self._kept, self._kept_from = kept, start

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; CorruptionError where the file does not have them."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise corrupt(self.path, f"{length} bytes wanted from byte {offset} of a file of {self.size} bytes")
        if offset >= self._kept_from:
            return self._kept[offset - self._kept_from : offset - self._kept_from + length]
        pieces = []
        while length > 0:
            piece = os.pread(self._descriptor, length, offset)
            if not piece:
                raise corrupt(self.path, "the file became shorter while it was read", offset)
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def read_up_to(self, offset: int, length: int, end: int) -> bytes:
        """At most `length` bytes from `offset`, none at or after `end`."""
        return self.read(offset, max(0, min(length, end - offset)))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileBytes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _opened(path: str) -> int:
    """NONBLOCK: a FIFO must not hang us."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise corrupt(path, "it is no regular file")
