"""The compiled decoders and those in Python are one: on sound pages, damaged ones and garbage the same, or both refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import CorruptionError
from tidemark.tsfiles.decode import integers as decode_deltas
from tidemark.tsfiles.decode import integers as decode_runs
from tidemark.tsfiles.decode import pages
from tidemark.tsfiles.decode import xor as decode_xor
from tidemark.tsfiles.decode.compression import can_decode
from tidemark.tsfiles.points import kernels as compiled
from tidemark.tsfiles.points.codes import BadPageError, DataType, Encoding
from tidemark.tsfiles.write import values as writer_values
from tidemark.tsfiles.write.values import encode_values

pytestmark = pytest.mark.skipif(compiled.kernels() is None, reason="no C compiler")
CODED = sorted(
    (kind, encoding)
    for kind in (DataType.INT32, DataType.INT64, DataType.FLOAT, DataType.DOUBLE, DataType.BOOLEAN)
    for encoding in (Encoding.PLAIN, Encoding.RLE, Encoding.TS_2DIFF, Encoding.GORILLA, Encoding.CHIMP, Encoding.ZIGZAG)
    if can_decode(kind, encoding)
)


@contextmanager
def in_python() -> Iterator[None]:
    with mock.patch.multiple(decode_deltas, kernels=lambda: None), mock.patch.multiple(decode_runs, kernels=lambda: None):
        with mock.patch.multiple(decode_xor, kernels=lambda: None), mock.patch.multiple(pages, kernels=lambda: None):
            with mock.patch.multiple(writer_values, kernels=lambda: None):
                yield


def outcome(kind: DataType, encoding: Encoding, data: bytes, count: int) -> bytes | None:
    """The values' bytes, None where the page is refused."""
    try:
        return pages.decode_values(kind, encoding, data, count).tobytes()
    except (BadPageError, CorruptionError, IndexError, OverflowError):
        return None


def both(kind: DataType, encoding: Encoding, data: bytes, count: int) -> bytes | None:
    quick = outcome(kind, encoding, data, count)
    with in_python():
        assert outcome(kind, encoding, data, count) == quick
    return quick


@given(coded=st.sampled_from(CODED), data=st.binary(max_size=120), count=st.integers(0, 60))
def test_garbage(coded: tuple[DataType, Encoding], data: bytes, count: int) -> None:
    both(*coded, data, count)


@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), min_size=1, max_size=400),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=2),
    cut=st.integers(0, 3),
    of_ints=st.booleans(),
)
def test_sound_and_damaged_differences(values: list[int], flips: list[tuple[int, int]], cut: int, of_ints: bool) -> None:
    kind = DataType.INT32 if of_ints else DataType.INT64
    array = np.array(values, np.int64).astype(np.int32) if of_ints else np.array(values, np.int64)
    data = bytearray(encode_values(kind, array))
    with in_python():
        assert encode_values(kind, array) == bytes(data)
    for place, bit in flips:
        data[place % len(data)] ^= 1 << bit
    read = both(kind, Encoding.TS_2DIFF, bytes(data[: len(data) - cut]), len(array))
    assert flips or cut or read == array.tobytes()
