"""Call the compiled functions, built if there is a C compiler.

`kernels.c` decodes, `kernels_write.c` serves writing and merging, `kernels_index.c` copying, and `kernels_pages.c` chunks
of many small pages. They are for speed alone. Everything also works in numpy and Python, which `TIDEMARK_PURE=1` selects.
They are built at first use, once a machine, into the user's cache under the digest of the source (`native`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.native import load_library
from tidemark.tsfiles.points.codes import BadPageError

_SOURCES = ("kernels.c", "kernels_write.c", "kernels_index.c", "kernels_pages.c")  # concatenated to one library
_PROBLEMS = {1: "ends in the middle of a value", 2: "does not hold the values announced", 3: "no writer makes this"}

_PAGE = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
_BLOCK = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
_ARRAY = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p)
_RUN = (ctypes.c_void_p, ctypes.c_uint64)
_RUNS = (*_RUN, *_RUN, ctypes.c_void_p, ctypes.c_void_p)
_GATHER = (*_RUN, ctypes.c_void_p, *_RUN, ctypes.c_void_p)
_PRESENT = (*_RUN, *_RUN, ctypes.c_void_p)
_SUMMARY = (*_RUN, ctypes.c_void_p, ctypes.c_void_p)
_SERIES = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
_BYTES_AT = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p)
_CHUNKS = (*_BYTES_AT, *_RUN, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_void_p)
_PAGES = (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint32, *_RUN)
_POINTS = (ctypes.c_char_p, ctypes.c_uint64, *_RUN, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
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
    "tm_lz4_holds": _BLOCK,
    "tm_weave": _RUNS,
    "tm_gather_8": _GATHER,
    "tm_gather_32": _GATHER,
    "tm_gather_64": _GATHER,
    "tm_present": _PRESENT,
    "tm_summary_int32": _SUMMARY,
    "tm_summary_int64": _SUMMARY,
    "tm_summary_float32": _SUMMARY,
    "tm_summary_float64": _SUMMARY,
    "tm_series": _SERIES,
    "tm_chunks": _CHUNKS,
    "tm_pages": _PAGES,
    "tm_points": _POINTS,
}
_COUNTING = (_ARRAY, _RUNS, _PRESENT, _SERIES, _PAGES)  # return a number of bytes or values, the others a code of _PROBLEMS
_SHORT = (_SERIES, _CHUNKS)
_ROW = 9  # numbers in a row of tm_series
_LEAST_ENTRY = 21  # bytes of a series or chunk in the index
_LEAST_PAGE = 19  # bytes of one with statistics


class PageRow(IntEnum):
    """The positions in a row of `tm_pages` that are used."""

    DATA = 2
    DATA_BYTES = 3
    POINTS = 4
    FIRST = 5
    LAST = 6
    PAGE_BYTES = 7


class Kernels:
    """The compiled functions on numpy arrays. Each decoder raises BadPageError as its counterpart in Python does."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = {}
        short = ctypes.PyDLL(library._name)  # keeps the GIL: for calls that are shorter than releasing it
        for name, arguments in _SIGNATURES.items():
            function = getattr(short if arguments in _SHORT else library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_uint64 if arguments in _COUNTING else ctypes.c_int
            self._functions[name] = function

    def decode_deltas(self, data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        out = np.empty(count, dtype)
        self._check_code(
            "TS_2DIFF", self._functions[f"tm_deltas_{dtype.itemsize * 8}"](data, len(data), count, out.ctypes.data)
        )
        return out

    def encode_deltas(self, values: NDArray[Any], block: int) -> bytes:
        """TS_2DIFF of int32 or int64 values (contiguous): `block` differences a block."""
        size = values.dtype.itemsize
        blocks = len(values) // (block + 1) + 1
        out = np.empty(blocks * (8 + 2 * size) + len(values) * size, np.uint8)
        written = self._functions[f"tm_encode_deltas_{size * 8}"](values.ctypes.data, len(values), block, out.ctypes.data)
        return out[:written].tobytes()

    def decode_gorilla(self, data: bytes, count: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(values, the end mark after them)."""
        return self._decode_with_end("GORILLA", "tm_gorilla", data, count, dtype)

    def decode_chimp(self, data: bytes, count: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._decode_with_end("CHIMP", "tm_chimp", data, count, dtype)

    def decode_runs(self, data: bytes, count: int, size: int) -> NDArray[np.uint64]:
        out = np.empty(count, np.uint64)
        self._check_code("RLE", self._functions["tm_runs"](data, len(data), count, out.ctypes.data, size))
        return out

    def decode_varints(self, data: bytes, count: int) -> NDArray[np.int32]:
        out = np.empty(count, np.int32)
        self._check_code("PLAIN", self._functions["tm_varints_32"](data, len(data), count, out.ctypes.data))
        return out

    def decode_zigzag(self, data: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        out = np.empty(count, np.uint64)
        width = dtype.itemsize * 8
        self._check_code("ZIGZAG", self._functions["tm_zigzag"](data, len(data), count, out.ctypes.data, width))
        return out.view(np.int64) if width == 64 else out.astype(np.uint32).view(np.int32)

    def require_lz4(self, data: bytes, size: int) -> None:
        """Raise BadPageError if an LZ4 block does not decompress to `size` bytes."""
        self._check_code("LZ4", self._functions["tm_lz4_holds"](data, len(data), size))

    def overlay_times(
        self, older: NDArray[np.int64], newer: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Merge two ascending runs of times (the newer wins): (times, index of each value in the joined values of both)."""
        older, newer = np.ascontiguousarray(older), np.ascontiguousarray(newer)
        times, take = np.empty(len(older) + len(newer), np.int64), np.empty(len(older) + len(newer), np.uint32)
        ends = (older.ctypes.data, len(older), newer.ctypes.data, len(newer), times.ctypes.data, take.ctypes.data)
        count = self._functions["tm_weave"](*ends)
        return times[:count], take[:count]

    def gather_values(self, older: NDArray[Any], newer: NDArray[Any], take: NDArray[np.uint32]) -> NDArray[Any]:
        """The values that `overlay_times` chose. Both runs have one dtype of 1, 4 or 8 bytes."""
        older, newer = np.ascontiguousarray(older), np.ascontiguousarray(newer)
        out = np.empty(len(take), older.dtype)
        function = self._functions[f"tm_gather_{older.dtype.itemsize * 8}"]
        function(older.ctypes.data, len(older), newer.ctypes.data, take.ctypes.data, len(take), out.ctypes.data)
        return out

    def mark_present(self, rows: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Mark by 1 which of `rows` are among `times` (both ascend, every time is a row), else 0."""
        rows, times = np.ascontiguousarray(rows), np.ascontiguousarray(times)
        out = np.empty(len(rows), np.uint8)
        self._functions["tm_present"](rows.ctypes.data, len(rows), times.ctypes.data, len(times), out.ctypes.data)
        return out

    def summarize_values(self, values: NDArray[Any]) -> tuple[Any, Any, Any]:
        """(smallest, largest, sum) of int32, int64, float32 or float64 values, at least one.

        Smallest and largest are NaN only if all values are. The sum of int32 values is an int, else a float.
        """
        values = np.ascontiguousarray(values)
        ends, total = np.empty(2, values.dtype), np.empty(1, np.int64 if values.dtype == np.int32 else np.float64)
        function = self._functions[f"tm_summary_{values.dtype.name}"]
        function(values.ctypes.data, len(values), ends.ctypes.data, total.ctypes.data)
        smallest, largest = ends.tolist()
        return smallest, largest, total.item()

    def parse_series(self, entries: bytes) -> list[list[int]]:
        """Parse entries of the index to rows of `tm_series`. No rows if the entries have a form that it does not read."""
        most = len(entries) // _LEAST_ENTRY + 1
        rows = np.empty((most, _ROW), np.int64)
        found = self._functions["tm_series"](entries, len(entries), rows.ctypes.data, most)
        return rows[:found].tolist()  # type: ignore[no-any-return]

    def find_chunk_ends(
        self, data: bytes, base: int, entries: bytes, rows: Sequence[Sequence[int]], aligned: bool, sound: bytes
    ) -> list[int]:
        """The ends in `data` of the chunks of `rows`, by `tm_chunks`. Empty if a chunk differs from its entry."""
        table, ends = np.array(rows, np.int64), np.empty(len(rows), np.uint64)
        where = (data, len(data), base, entries, table.ctypes.data, len(rows))
        found = self._functions["tm_chunks"](*where, aligned, sound, ends.ctypes.data)
        return ends.tolist() if found else []

    def parse_pages(self, data: bytes, of_type: int) -> NDArray[np.int64]:
        """Parse a chunk of several pages to rows of `tm_pages`. No rows if a page has no points or an unsupported form."""
        rows = np.empty((len(data) // _LEAST_PAGE + 1, _ROW), np.int64)
        return rows[: self._functions["tm_pages"](data, len(data), of_type, rows.ctypes.data, len(rows))]

    def decode_points(
        self, data: bytes, rows: NDArray[np.int64], coding: int, dtype: np.dtype[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any]] | None:
        """Decode pages to (times, values) by `tm_points`. None if a page differs from its row."""
        rows = np.ascontiguousarray(rows)
        count = int(rows[:, PageRow.POINTS].sum())
        times, values = np.empty(count, np.int64), np.empty(count, dtype)
        where = (data, len(data), rows.ctypes.data, len(rows), coding, dtype.itemsize)
        return (times, values) if self._functions["tm_points"](*where, times.ctypes.data, values.ctypes.data) else None

    def _decode_with_end(
        self, coding: str, name: str, data: bytes, count: int, dtype: np.dtype[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        out, end = np.empty(count, dtype), np.empty(1, dtype)
        function = self._functions[f"{name}_{dtype.itemsize * 8}"]
        self._check_code(coding, function(data, len(data), count, out.ctypes.data, end.ctypes.data))
        return out, end

    @staticmethod
    def _check_code(coding: str, code: int) -> None:
        if code:
            raise BadPageError(f"{coding}: {_PROBLEMS[code]}")


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The compiled functions. None without a C compiler or a safe cache folder, or with TIDEMARK_PURE=1."""
    made = load_library("tidemark.tsfiles.points", *_SOURCES)
    return None if made is None else Kernels(made)
