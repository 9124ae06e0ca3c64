"""Decoders against plain encoders written here from the format's description, on any values."""

from __future__ import annotations

import itertools
import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tsfiles.handmade import uvarint
from tidemark.tsfiles.decode.integers import unpack_integers
from tidemark.tsfiles.decode.pages import decode_values
from tidemark.tsfiles.points.codes import DataType, Encoding

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def packed(values: list[int], width: int) -> bytes:
    bits = "".join(format(value, f"0{width}b") for value in values) if width else ""
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""


@given(width=st.integers(0, 64), data=st.data())
def test_bit_packed_integers(width: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, (1 << width) - 1), max_size=70))
    assert unpack_integers(packed(values, width), width, len(values)).tolist() == values


def ts_2diff(values: list[int], bits: int) -> bytes:
    """One pack with the smallest width that holds the differences (which wrap at the type's width)."""
    half, modulus = 1 << (bits - 1), 1 << bits
    steps = [((b - a + half) % modulus) - half for a, b in itertools.pairwise(values)]
    smallest = min(steps, default=0)
    rest = [(step - smallest) % modulus for step in steps]
    width = max((value.bit_length() for value in rest), default=0)
    letter = "i" if bits == 32 else "q"
    return struct.pack(f">ii{letter}{letter}", len(rest), width, smallest, values[0]) + packed(rest, width)


@given(packs=st.lists(st.lists(INT64, min_size=1, max_size=40), max_size=6))
def test_long_differences(packs: list[list[int]]) -> None:
    values = [value for pack in packs for value in pack]
    data = b"".join(ts_2diff(pack, 64) for pack in packs)
    assert decode_values(DataType.INT64, Encoding.TS_2DIFF, data, len(values)).tolist() == values


@given(packs=st.lists(st.lists(INT32, min_size=1, max_size=40), max_size=6))
def test_int_differences(packs: list[list[int]]) -> None:
    values = [value for pack in packs for value in pack]
    data = b"".join(ts_2diff(pack, 32) for pack in packs)
    assert decode_values(DataType.INT32, Encoding.TS_2DIFF, data, len(values)).tolist() == values


def rle(values: list[int], bits: int, data: st.DataObject) -> bytes:
    """Runs and groups as they come; widths of whole blocks."""
    out = b""
    at = 0
    modulus = 1 << bits
    while at < len(values):
        size = data.draw(st.integers(1, 30))
        block = [value % modulus for value in values[at : at + size]]
        at += size
        width = max(value.bit_length() for value in block)
        body = bytes([width])
        if len(set(block)) == 1:
            body += uvarint(len(block) << 1) + block[0].to_bytes((width + 7) // 8, "little" if bits == 32 else "big")
        else:
            groups = -(-len(block) // 8)
            filled = [*block, *[0] * (groups * 8 - len(block))]
            body += uvarint(groups << 1 | 1) + bytes([len(block) - (groups - 1) * 8]) + packed(filled, width)
        out += uvarint(len(body)) + body
    return out


@given(values=st.lists(INT64 | st.sampled_from([0, 1, 7]), max_size=60), data=st.data())
def test_long_runs(values: list[int], data: st.DataObject) -> None:
    assert decode_values(DataType.INT64, Encoding.RLE, rle(values, 64, data), len(values)).tolist() == values


@given(values=st.lists(INT32 | st.sampled_from([0, 1, 7]), max_size=60), data=st.data())
def test_int_runs(values: list[int], data: st.DataObject) -> None:
    assert decode_values(DataType.INT32, Encoding.RLE, rle(values, 32, data), len(values)).tolist() == values


def gorilla(patterns: list[int], bits: int, end: int) -> bytes:
    """As the writer does: the window of changed bits is kept while the next change fits into it."""
    length_bits = 6 if bits == 64 else 5
    text = format(patterns[0], f"0{bits}b")
    window: tuple[int, int] | None = None
    for before, pattern in zip(patterns, [*patterns[1:], end], strict=True):
        xor = before ^ pattern
        if xor == 0:
            text += "0"
            continue
        leading = min(bits - xor.bit_length(), (1 << length_bits) - 1)
        trailing = (xor & -xor).bit_length() - 1
        if window and window[0] <= leading and window[1] <= trailing:
            leading, trailing = window
            text += "10"
        else:
            window = (leading, trailing)
            text += "11" + format(leading, f"0{length_bits}b") + format(bits - leading - trailing - 1, f"0{length_bits}b")
        text += format(xor >> trailing, f"0{bits - leading - trailing}b")
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


@given(values=st.lists(st.floats() | st.sampled_from([0.0, 1.5]), min_size=1, max_size=50))
def test_any_doubles_in_gorilla(values: list[float]) -> None:
    """NaN and infinities included, bit for bit."""
    array = np.array(values, np.float64)
    data = gorilla(array.view(np.uint64).tolist(), 64, 0x7FF8000000000000)
    assert decode_values(DataType.DOUBLE, Encoding.GORILLA, data, len(values)).tobytes() == array.tobytes()


@given(values=st.lists(INT32 | st.sampled_from([0, 7]), min_size=1, max_size=50))
def test_any_ints_in_gorilla(values: list[int]) -> None:
    """The smallest int, which ends a page for Java's reader, included."""
    data = gorilla([value % (1 << 32) for value in values], 32, 1 << 31)
    assert decode_values(DataType.INT32, Encoding.GORILLA, data, len(values)).tolist() == values


@given(values=st.lists(INT32, max_size=60))
def test_int_varints(values: list[int]) -> None:
    data = b"".join(uvarint(((value << 1) ^ (value >> 31)) & 0xFFFFFFFF) for value in values)
    assert decode_values(DataType.INT32, Encoding.PLAIN, data, len(values)).tolist() == values


@given(values=st.lists(st.binary(max_size=200), max_size=30), data=st.data())
def test_texts(values: list[bytes], data: st.DataObject) -> None:
    plain = b"".join(uvarint(len(value) << 1) + value for value in values)
    assert decode_values(DataType.TEXT, Encoding.PLAIN, plain, len(values)).tolist() == values
    words = sorted(set(values))
    book = uvarint(len(words) << 1) + b"".join(uvarint(len(word) << 1) + word for word in words)
    numbers = rle([words.index(value) for value in values], 32, data)
    assert decode_values(DataType.TEXT, Encoding.DICTIONARY, book + numbers, len(values)).tolist() == values
