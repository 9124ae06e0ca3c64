"""Many small files of a pull at a time: their parts written and hashed, their names given, in C where it can be built.

Twice as fast as file by file, since threads then do not fight for the interpreter's lock (`small_files.c`); what C did not
do, for whatever reason, is done by `agent.part_file` and `agent.durable`, which say what is wrong. The results are the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tidemark.native import libcrypto, library
from tidemark.stores.agent import durable
from tidemark.stores.agent.part_file import write_small

WORTH_IT = 200  # files from which on a transfer asks for the library: loading it takes as long as they do
_SEEN = struct.Struct("=5q")  # what C tells of a file: whether it is done, and its proof


class Arrived(NamedTuple):
    """A small file in a frame: where its part goes, and where its bytes are there."""

    part: bytes
    at: int
    size: int


class Written(NamedTuple):
    """`proof` of the part (see `agent.durable.Proof`), or the error that kept it from being written. `digest`: SHA-256."""

    digest: bytes
    proof: durable.Proof | None
    error: OSError | None = None


class SmallFiles:
    """`quick`: there are many; else Python alone does it."""

    def __init__(self, quick: bool) -> None:
        self._code = _library() if quick else None

    def write(self, frame: memoryview, files: Sequence[Arrived]) -> list[Written]:
        """Each file's part, whole; durable only once it is sealed. `frame`: of which their bytes are."""
        code = self._code
        if code is None or frame.readonly or not files:
            return [_written(frame, file) for file in files]
        places = b"".join([file.part + b"\0" for file in files])
        at, sizes = (array("Q", column) for column in zip(*[(file.at, file.size) for file in files], strict=True))
        digests, seen = bytearray(32 * len(files)), bytearray(_SEEN.size * len(files))
        sha256 = _sha256()
        code.tm_write_parts(
            len(files), places, _address(frame), _at(at), _at(sizes), sha256, _address(digests), _address(seen)
        )
        made = bytes(digests)
        found = []
        for number, (done, *proof) in enumerate(_SEEN.iter_unpack(seen)):
            if done:
                digest = made[32 * number : 32 * number + 32] if sha256 else _sha256_of(frame, files[number])
                found.append(Written(digest, durable.Proof(*proof)))
            else:
                found.append(_written(frame, files[number]))
        return found

    def name(self, pairs: Sequence[tuple[bytes, bytes]], proofs: Sequence[durable.Proof | None]) -> int:
        """How many, from the first on, were what their proofs say as parts (first of a pair), have their names now, and are
        the same there. Of the one behind them nothing is known: whoever asks looks. The folders are not synced."""
        if self._code is None:
            return 0
        known = array("q")
        for proof in proofs:
            known.extend((1, *(proof or (0, -1, 0, 0))))
        words = b"".join(part + b"\0" + final + b"\0" for part, final in pairs)
        return int(self._code.tm_give_names(len(pairs), words, _at(known)))


def _written(frame: memoryview, file: Arrived) -> Written:
    digest = _sha256_of(frame, file)
    try:
        return Written(digest, write_small(file.part, frame[file.at : file.at + file.size]))
    except OSError as error:
        return Written(digest, None, error)


def _sha256_of(frame: memoryview, file: Arrived) -> bytes:
    return hashlib.sha256(frame[file.at : file.at + file.size]).digest()


def _at(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]


def _address(data: memoryview | bytearray) -> int:
    """Of its first byte, as long as whoever asks holds it; 0 where there is none."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    made = library("tidemark.stores", "small_files.c")
    if made is not None:
        address, number = ctypes.c_void_p, ctypes.c_uint64
        made.tm_write_parts.argtypes = (number, ctypes.c_char_p, *[address] * 6)
        made.tm_give_names.argtypes = (number, ctypes.c_char_p, address)
        made.tm_write_parts.restype, made.tm_give_names.restype = None, number
    return made


def _sha256() -> Any:
    crypto = libcrypto()
    return None if crypto is None else ctypes.cast(crypto.SHA256, ctypes.c_void_p)
