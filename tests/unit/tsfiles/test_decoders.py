"""Decoders on bytes made here, for what neither the real folders nor the official writer hold."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

from tidemark.errors import CorruptionError
from tidemark.tsfiles.decode.compression import can_decode
from tidemark.tsfiles.decode.pages import decode_values
from tidemark.tsfiles.points.codes import BadPageError, DataType, Encoding

pytestmark = pytest.mark.usefixtures("decoding")
NAN32, NAN64 = 0x7FC00000, 0x7FF8000000000000


class Bits:
    """Collects bits, most significant first."""

    def __init__(self) -> None:
        self.text = ""

    def put(self, value: int, width: int) -> Bits:
        self.text += format(value, f"0{width}b") if width else ""
        return self

    def data(self) -> bytes:
        padded = self.text + "0" * (-len(self.text) % 8)
        return int(padded, 2).to_bytes(len(padded) // 8, "big")


def gorilla_doubles(patterns: list[int]) -> bytes:
    """Each value with all its bits changed from the one before it told (control 11, no zeros left out)."""
    bits = Bits().put(patterns[0], 64)
    for before, pattern in zip(patterns, [*patterns[1:], NAN64], strict=True):
        xor = before ^ pattern
        if xor == 0:
            bits.put(0, 1)
        else:
            bits.put(3, 2).put(0, 6).put(63, 6).put(xor, 64)
    return bits.data()


def patterns_of(values: list[float]) -> list[int]:
    return [int.from_bytes(struct.pack(">d", value), "big") for value in values]


def test_nan_inside_of_gorilla_is_a_value() -> None:
    """Java's reader takes it for the end of the page; the number of points says otherwise."""
    values = [1.5, float("nan"), float("nan"), -0.0, float("inf"), 2.25]
    decoded = decode_values(DataType.DOUBLE, Encoding.GORILLA, gorilla_doubles(patterns_of(values)), len(values))
    assert decoded.tobytes() == np.array(values).tobytes()


def test_gorilla_must_end_where_its_values_do() -> None:
    data = gorilla_doubles(patterns_of([1.0, 2.0, 3.0]))
    with pytest.raises(BadPageError, match="does not end"):
        decode_values(DataType.DOUBLE, Encoding.GORILLA, data, 2)
    with pytest.raises(BadPageError):
        decode_values(DataType.DOUBLE, Encoding.GORILLA, data, 50)


def test_gorilla_v1_as_08_wrote_it() -> None:
    """First value little-endian; then 0: same; 10: as wide as the value before; 11: leading, length, bits."""
    first, second, third = 0x41200000, 0x41300000, 0x41380000  # 10.0, 11.0, 11.5
    xor = second ^ third  # 0x00080000: 12 leading zeros, 1 bit
    bits = Bits().put(0, 1)  # 10.0 again
    bits.put(3, 2).put(11, 5).put(1, 6).put(1, 1)  # 10.0 -> 11.0: one bit behind 11 zeros
    width = 32 - 1 - 20  # of 0x41300000: 1 leading zero, 20 trailing zeros
    bits.put(2, 2).put((second ^ 0x41700000) >> 20, width)  # 11.0 -> 15.0 within the width of 11.0
    bits.put(3, 2).put(0, 5).put(32, 6).put(0x41700000 ^ third, 32)
    bits.put(3, 2).put(0, 5).put(32, 6).put(third ^ NAN32, 32)
    data = first.to_bytes(4, "little") + bits.data()
    assert xor == 0x00080000
    assert decode_values(DataType.FLOAT, Encoding.GORILLA_V1, data, 5).tolist() == [10.0, 10.0, 11.0, 15.0, 11.5]


def rle_block(width: int, body: bytes) -> bytes:
    return bytes([len(body) + 1, width]) + body


def test_rle_of_runs_and_groups() -> None:
    groups = bytes([(2 << 1) | 1, 3]) + Bits().put(0b001010011100101110111000, 24).put(0b001010011, 24).data()
    data = rle_block(3, bytes([6 << 1, 5]) + groups)
    with pytest.raises(BadPageError):
        decode_values(DataType.INT32, Encoding.RLE, data, 16)
    groups = bytes([(2 << 1) | 1, 3]) + Bits().put(0b001010011100101110111000, 24).put(0b001010011 << 15, 24).data()
    data = rle_block(3, bytes([6 << 1, 5]) + groups)
    assert decode_values(DataType.INT32, Encoding.RLE, data, 17).tolist() == [5] * 6 + [1, 2, 3, 4, 5, 6, 7, 0] + [1, 2, 3]


def test_rle_runs_of_long_numbers_have_the_highest_byte_first() -> None:
    """Those of ints the lowest: so the library writes them (`writeLongLittleEndianPaddedOnBitWidth` is not what it says)."""
    longs = rle_block(17, bytes([9 << 1]) + (70_000).to_bytes(3, "big"))
    assert decode_values(DataType.INT64, Encoding.RLE, longs, 9).tolist() == [70_000] * 9
    ints = rle_block(17, bytes([9 << 1]) + (70_000).to_bytes(3, "little"))
    assert decode_values(DataType.INT32, Encoding.RLE, ints, 9).tolist() == [70_000] * 9
    floats = bytes([2]) + rle_block(17, bytes([9 << 1]) + (70_000).to_bytes(3, "big"))
    assert decode_values(DataType.DOUBLE, Encoding.RLE, floats, 9).tolist() == [700.0] * 9


def test_negative_numbers_in_rle_and_plain() -> None:
    data = rle_block(32, bytes([3 << 1]) + (-7).to_bytes(4, "little", signed=True))
    assert decode_values(DataType.INT32, Encoding.RLE, data, 3).tolist() == [-7, -7, -7]
    plain = bytes([0, 1, 2, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0xFE, 0xFF, 0xFF, 0xFF, 0x0F])
    assert decode_values(DataType.INT32, Encoding.PLAIN, plain, 5).tolist() == [0, -1, 1, -(2**31), 2**31 - 1]


def ts_2diff(values: list[int], letter: str) -> bytes:
    """One pack with differences of full width."""
    width = 32 if letter == "i" else 64
    steps = [(b - a) % (1 << width) for a, b in itertools.pairwise(values)]
    bits = Bits()
    for step in steps:
        bits.put(step, width)
    return struct.pack(f">ii{letter}{letter}", len(steps), width, 0, values[0]) + (bits.data() if steps else b"")


def test_differences_wrap_as_in_java() -> None:
    longs = [2**63 - 1, -(2**63), 0, -1, 2**62]
    ints = [2**31 - 1, -(2**31), 0, -1, 7]
    assert decode_values(DataType.INT64, Encoding.TS_2DIFF, ts_2diff(longs, "q"), 5).tolist() == longs
    assert decode_values(DataType.INT32, Encoding.TS_2DIFF, ts_2diff(ints, "i"), 5).tolist() == ints
    assert decode_values(DataType.DATE, Encoding.TS_2DIFF, ts_2diff([20240229], "i"), 1).tolist() == [20240229]
    two_packs = ts_2diff([1, 2, 3], "q") + ts_2diff([10, 9], "q")
    assert decode_values(DataType.INT64, Encoding.TS_2DIFF, two_packs, 5).tolist() == [1, 2, 3, 10, 9]


def test_floats_that_could_not_be_scaled() -> None:
    """Newer writers mark values that are kept as they are, and values kept as raw bits (least significant bit first)."""
    raw = int.from_bytes(struct.pack(">f", float("inf")), "big", signed=True)
    integers = ts_2diff([2050, 2_000_000_000, raw, -125], "i")
    scaled, kept_raw = bytes([0b1001]), bytes([0b0100])
    plain_head = bytes([2])
    assert decode_values(DataType.FLOAT, Encoding.TS_2DIFF, plain_head + ts_2diff([2050, -125], "i"), 2).tolist() == [
        20.5,
        -1.25,
    ]
    unscaled_head = b"\xff\xff\xff\xff\x07" + bytes([2]) + bytes([0b01]) + bytes([2])
    decoded = decode_values(DataType.FLOAT, Encoding.TS_2DIFF, unscaled_head + ts_2diff([2050, 2_000_000_000], "i"), 2)
    assert decoded.tolist() == [20.5, 2e9]
    both_head = b"\xfe\xff\xff\xff\x07" + bytes([4]) + scaled + kept_raw + bytes([2])
    assert decode_values(DataType.FLOAT, Encoding.TS_2DIFF, both_head + integers, 4).tolist() == [
        20.5,
        2e9,
        float("inf"),
        -1.25,
    ]


@pytest.mark.parametrize("encoding", [Encoding.DIFF, Encoding.BITMAP, Encoding.FREQ, Encoding.CAMEL])
def test_what_is_not_decoded_exactly_is_not_decoded(encoding: Encoding) -> None:
    assert not any(can_decode(data_type, encoding) for data_type in DataType)


def test_what_is_said_to_be_decodable_has_a_decoder_and_nothing_else() -> None:
    for data_type, encoding in itertools.product(DataType, Encoding):
        try:
            decode_values(data_type, encoding, b"", 0)
        except KeyError:
            assert not can_decode(data_type, encoding)
        except (BadPageError, CorruptionError, IndexError):
            assert can_decode(data_type, encoding)
        else:
            assert can_decode(data_type, encoding)
