"""Read a TsFile's bytes with every bound checked: garbage raises a CorruptionError that says what and where.

`Cursor` reads numbers and strings out of bytes. `FileBytes` reads a file's bytes by position and checks every range
against its length. Integers are big-endian. `read_uvarint` is LEB128 of 32 bits, `read_varint` its zigzag form. Strings
have their length in bytes before them.
"""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from types import TracebackType

from tidemark.errors import CorruptionError, NotFoundError
from tidemark.untrusted_files import UntrustedFile

_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PAIR = struct.Struct(">qq")


class EndsEarlyError(CorruptionError):
    """The bytes end before the announced length: they are garbage, or were cut off."""


class Cursor:
    """A position in `data`. `base` is where `data` begins in its file, `what` names the thing in errors."""

    __slots__ = ("base", "data", "end", "position", "what")

    def __init__(self, data: bytes, what: str, base: int = 0) -> None:
        self.data = data
        self.end = len(data)
        self.position = 0
        self.base = base
        self.what = what

    def corruption_error(self, problem: str, at: int | None = None) -> CorruptionError:
        """The error to raise: `what`, the problem, and the byte of the file."""
        return corruption_error(self.what, problem, self.base + (self.position if at is None else at))

    def ends_early_error(self, problem: str) -> EndsEarlyError:
        """The error to raise if the missing bytes lie beyond the end."""
        told = self.corruption_error(problem)
        return EndsEarlyError(told.message, hint=told.hint, subject=told.subject)

    def bytes_left(self) -> int:
        return self.end - self.position

    def read_exactly(self, length: int) -> bytes:
        start = self.position
        self.skip_bytes(length)
        return self.data[start : self.position]

    def skip_bytes(self, length: int) -> None:
        if length > self.end - self.position:
            raise self.ends_early_error(f"{length} bytes announced where {self.bytes_left()} are left")
        if length < 0:
            raise self.corruption_error(f"{length} bytes announced")
        self.position += length

    def read_u8(self) -> int:
        at = self.position
        if at >= self.end:
            raise self.ends_early_error("ends in the middle of a field")
        self.position = at + 1
        return self.data[at]

    def read_i32(self) -> int:
        value: int = _I32.unpack(self.read_exactly(4))[0]
        return value

    def read_i64(self) -> int:
        start = self.position
        self.skip_bytes(8)
        value: int = _I64.unpack_from(self.data, start)[0]
        return value

    def read_i64_pair(self) -> tuple[int, int]:
        first, second = _PAIR.unpack(self.read_exactly(16))
        return first, second

    def read_uvarint(self) -> int:
        data, at, end = self.data, self.position, self.end
        result = shift = 0
        while at < end and shift < 35:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = at
                return result
            shift += 7
        raise (
            self.ends_early_error("a variable-length integer does not end")
            if at == end
            else self.corruption_error("no variable-length integer")
        )

    def read_varint(self) -> int:
        value = self.read_uvarint()
        return (value >> 1) ^ -(value & 1)

    def read_count(self, least: int) -> int:
        """Read a number of items of at least `least` bytes each. Raises if the remaining bytes cannot hold them."""
        value = self.read_uvarint()
        if value * least > self.bytes_left():
            raise self.ends_early_error(f"{value} items announced where {self.bytes_left()} bytes are left")
        return value

    def read_var_string(self) -> str | None:
        """Read a string with its length as varint, -1 for null."""
        start = self.position + 1
        if start <= self.end and not (twice := self.data[start - 1]) & 0x81:  # a short one, like most
            end = start + (twice >> 1)
            if end <= self.end and (text := self.data[start:end]).isascii():
                self.position = end
                return text.decode("ascii")
        length = self.read_varint()
        return None if length == -1 else self._read_text(length)

    def read_var_name(self) -> str:
        """Read a string with its length as varint. Raises CorruptionError for null."""
        value = self.read_var_string()
        if value is None:
            raise self.corruption_error("a name is missing")
        return value

    def read_int_string(self) -> str | None:
        """Read a string with its length as int32, -1 for null."""
        length = self.read_i32()
        return None if length == -1 else self._read_text(length)

    def _read_text(self, length: int) -> str:
        at = self.position
        try:
            return self.read_exactly(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corruption_error("a name is not UTF-8", at) from error


def corruption_error(what: str, problem: str, at: int | None = None) -> CorruptionError:
    """A CorruptionError of a file. `what` is its path (and the part concerned), `at` the byte."""
    where = "" if at is None else f" (byte {at})"
    return CorruptionError(
        f"{what}: {problem}{where}",
        hint="compare the digest with the site's; ./tidemark verify --repair fetches it again",
        subject=what,
    )


_WHOLE = 4 << 20  # up to this size one read is cheaper than the many small ones of an index
_TAIL = 1 << 20  # largest index that is kept in memory: a merge has many files open at once


class FileBytes:
    """A local file opened for reading at any position; a context manager. `size` is its length when it was opened.

    A plain `path` may lead over symlinks: a user named it. Files that others can write must be given as UntrustedFile.
    `all_of_it`: the caller reads every part, so a file that is not large is read at once.
    """

    def __init__(self, path: Path | str | UntrustedFile, all_of_it: bool = False) -> None:
        self.path = str(path)
        try:
            self._descriptor = path.open_handle() if isinstance(path, UntrustedFile) else _open_regular_file(self.path)
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.path}: no such file", subject=self.path) from error
        self.size = os.fstat(self._descriptor).st_size
        self._kept, self._kept_from = b"", self.size
        if all_of_it:
            self.cache_from(0, _WHOLE)

    def cache_from(self, start: int, most: int = _TAIL) -> None:
        """Cache everything from byte `start` on, unless it is more than `most`. For callers that read many small pieces."""
        if 0 < self.size - start <= most:
            kept = os.pread(self._descriptor, self.size - start, start)
            if len(kept) == self.size - start:  # else `read` finds that the file became shorter
                self._kept, self._kept_from = kept, start

    def read(self, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`. Raises CorruptionError if the file does not have them."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise corruption_error(self.path, f"{length} bytes wanted from byte {offset} of a file of {self.size} bytes")
        if offset >= self._kept_from:
            return self._kept[offset - self._kept_from : offset - self._kept_from + length]
        pieces = []
        while length > 0:
            piece = os.pread(self._descriptor, length, offset)
            if not piece:
                raise corruption_error(self.path, "the file became shorter while it was read", offset)
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def read_up_to(self, offset: int, length: int, end: int) -> bytes:
        """Read at most `length` bytes from `offset`, none at or after `end`."""
        return self.read(offset, max(0, min(length, end - offset)))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FileBytes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _open_regular_file(path: str) -> int:
    """Open a regular file; returns its descriptor. O_NONBLOCK, so that a FIFO does not block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise corruption_error(path, "it is no regular file")
