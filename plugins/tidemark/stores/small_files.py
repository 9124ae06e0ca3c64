"""Many small files of a pull at a time: their parts written and hashed, their names given, in C where it can be built.

Twice as fast as file by file, since threads then do not fight for the interpreter's lock (`small_files.c`); what C did not
do, for whatever reason, is done by `part_file` and `durable`, which say what is wrong. The results are the same.
"""

from __future__ import annotations

import ctypes
import hashlib
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tidemark.machine_code import libcrypto, library
from tidemark.stores import durable
from tidemark.stores.part_file import write_small

WORTH_IT = 200  # files from which on a transfer asks for the library: loading it takes as long as they do
_FIELDS = 5  # of what C tells of a file


class Arrived(NamedTuple):
    """A small file in a frame: where its part goes, and its bytes there."""

    part: bytes
    data: memoryview


class Written(NamedTuple):
    """`proof` of the part (see `durable.Proof`), or the error that kept it from being written. `digest`: SHA-256."""

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
            return [_written(file) for file in files]
        begin = _address(frame)
        at = array("Q", [_address(file.data) - begin if file.data else 0 for file in files])
        sizes = array("Q", [len(file.data) for file in files])
        digests, seen = bytearray(32 * len(files)), array("q", bytes(8 * _FIELDS * len(files)))
        places = b"".join(file.part + b"\0" for file in files)
        into = (ctypes.c_char * len(digests)).from_buffer(digests)
        sha256 = _sha256()
        code.tm_write_parts(len(files), places, begin, _at(at), _at(sizes), sha256, into, _at(seen))
        found = []
        for number, file in enumerate(files):
            done, *proof = seen[_FIELDS * number : _FIELDS * (number + 1)]
            if not done:
                found.append(_written(file))
            else:
                digest = bytes(digests[32 * number : 32 * (number + 1)]) if sha256 else hashlib.sha256(file.data).digest()
                found.append(Written(digest, durable.Proof(*proof)))
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


def _written(file: Arrived) -> Written:
    digest = hashlib.sha256(file.data).digest()
    try:
        return Written(digest, write_small(file.part, file.data))
    except OSError as error:
        return Written(digest, None, error)


def _at(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]


def _address(data: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


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
