"""The compiled decoders and the encoder of differences (`kernels.c`), built once with the machine's C compiler.

They buy speed alone: what numpy cannot do as arrays (GORILLA, CHIMP, varints) is 50 to 100 times quicker, TS_2DIFF and RLE
three to ten times. Everything works without them, in numpy and Python; `TIDEMARK_PURE=1` asks for that. Built at the first
page that is coded (a second, once a machine) into the user's cache, under the digest of the source.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.machine_code import library
from tidemark.tsfiles.compression import BadPageError

_PROBLEMS = {1: "ends in the middle of a value", 2: "does not hold the values announced", 3: "no writer makes this"}

_PAGE = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
_ARRAY = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "tm_deltas_32": _PAGE,
    "tm_deltas_64": _PAGE,
    "tm_encode_deltas_32": _ARRAY,
    "tm_encode_deltas_64": _ARRAY,
    "tm_gorilla_32": (*_PAGE, ctypes.c_void_p),
    "tm_gorilla_64": (*_PAGE, ctypes.c_void_p),
    "tm_chimp_32": (*_PAGE, ctypes.c_void_p),
    "tm_chimp_64": (*_PAGE, ctypes.c_void_p),
    "tm_runs": (*_PAGE, ctypes.c_uint32),
    "tm_varints_32": _PAGE,
    "tm_zigzag": (*_PAGE, ctypes.c_uint32),
    "tm_ascend": (ctypes.c_void_p, ctypes.c_uint64),
}


class Kernels:
    """The functions of `kernels.c` on numpy arrays. Each raises BadPageError as the decoder in Python does."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_uint64 if arguments == _ARRAY else ctypes.c_int
            self._functions[name] = function

    def deltas(self, data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        out = np.empty(count, dtype)
        self._check("TS_2DIFF", self._functions[f"tm_deltas_{dtype.itemsize * 8}"](data, len(data), count, out.ctypes.data))
        return out

    def encode_deltas(self, values: NDArray[Any], block: int) -> bytes:
        """TS_2DIFF of int32 or int64 values (contiguous): `block` differences a block."""
        size = values.dtype.itemsize
        blocks = len(values) // (block + 1) + 1
        out = np.empty(blocks * (8 + 2 * size) + len(values) * size, np.uint8)
        written = self._functions[f"tm_encode_deltas_{size * 8}"](values.ctypes.data, len(values), block, out.ctypes.data)
        return out[:written].tobytes()

    def gorilla(self, data: bytes, count: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The values, and the one after the last: the end mark."""
        return self._with_end("GORILLA", "tm_gorilla", data, count, dtype)

    def chimp(self, data: bytes, count: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._with_end("CHIMP", "tm_chimp", data, count, dtype)

    def runs(self, data: bytes, count: int, size: int) -> NDArray[np.uint64]:
        out = np.empty(count, np.uint64)
        self._check("RLE", self._functions["tm_runs"](data, len(data), count, out.ctypes.data, size))
        return out

    def varints(self, data: bytes, count: int) -> NDArray[np.int32]:
        out = np.empty(count, np.int32)
        self._check("PLAIN", self._functions["tm_varints_32"](data, len(data), count, out.ctypes.data))
        return out

    def zigzag(self, data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        out = np.empty(count, np.uint64)
        width = dtype.itemsize * 8
        self._check("ZIGZAG", self._functions["tm_zigzag"](data, len(data), count, out.ctypes.data, width))
        return out.view(np.int64) if width == 64 else out.astype(np.uint32).view(np.int32)

    def ascend(self, times: NDArray[np.int64]) -> bool:
        """Whether times (contiguous) ascend strictly."""
        return not self._functions["tm_ascend"](times.ctypes.data, len(times))

    def _with_end(
        self, coding: str, name: str, data: bytes, count: int, dtype: np.dtype[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        out, end = np.empty(count, dtype), np.empty(1, dtype)
        function = self._functions[f"{name}_{dtype.itemsize * 8}"]
        self._check(coding, function(data, len(data), count, out.ctypes.data, end.ctypes.data))
        return out, end

    @staticmethod
    def _check(coding: str, code: int) -> None:
        if code:
            raise BadPageError(f"{coding}: {_PROBLEMS[code]}")


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The compiled decoders; None without a C compiler, without a place for them, or with TIDEMARK_PURE=1."""
    made = library("tidemark.tsfiles", "kernels.c")
    return None if made is None else Kernels(made)
