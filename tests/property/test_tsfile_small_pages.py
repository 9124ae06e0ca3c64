"""A chunk of many small pages is read at once, or page by page: the same points, the same refusals in the same words."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.tsfiles.handmade import string, uvarint
from tidemark.errors import TidemarkError
from tidemark.tsfiles.decode import pages
from tidemark.tsfiles.decode import pages as small_pages
from tidemark.tsfiles.layout.bytes import FileBytes
from tidemark.tsfiles.layout.series import ChunkPlace, Series, Statistics
from tidemark.tsfiles.points import kernels as compiled
from tidemark.tsfiles.points.codes import Compression, DataType, Encoding
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column, overlay_columns
from tidemark.tsfiles.write.pages import make_compressor
from tidemark.tsfiles.write.values import encode_times, encode_values

pytestmark = pytest.mark.skipif(compiled.kernels() is None, reason="no C compiler")
CODED = sorted(small_pages._CODINGS)
STATISTICS = {DataType.BOOLEAN: 10, DataType.INT32: 24, DataType.DATE: 24, DataType.FLOAT: 24}  # bytes; of all others 40
COMPRESSIONS = (Compression.UNCOMPRESSED, Compression.LZ4, Compression.SNAPPY, Compression.ZSTD)

Points = list[tuple[int, int]]  # of a page: time, value


@st.composite
def chunks(draw: st.DrawFn) -> list[Points]:
    """Pages one after another, now and then one that begins before the last one's end."""
    time = draw(st.integers(-(2**62), 2**62) | st.integers(-5, 5))
    found = []
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=30)):
        page = []
        for _ in range(size):
            time += draw(st.integers(1, 9))
            page.append((time, draw(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3))))
        found.append(page)
        time -= draw(st.sampled_from([0] * 60 + [4]))
    return found


def values_of(kind: DataType, page: Points) -> np.ndarray:
    """Any bits as values; those of dates and truths, too."""
    dtype = VALUE_DTYPES[kind]
    if kind is DataType.BOOLEAN:
        return np.array([value & 1 for _, value in page], np.bool_)
    return np.array([value for _, value in page], np.int64).astype(f"i{dtype.itemsize}").view(dtype)


def coded(kind: DataType, encoding: Encoding, values: np.ndarray) -> bytes:
    """A page's values, by the plainest writer of each encoding."""
    size = values.dtype.itemsize
    if encoding is Encoding.RLE:
        width, order = (8, "big") if size == 8 else (4, "little")
        numbers = [int(value) & (1 << 8 * width) - 1 for value in values.tolist()]
        runs = b"".join(uvarint(2) + number.to_bytes(width, order) for number in numbers)
        return uvarint(len(runs) + 1) + bytes([8 * width]) + runs
    if encoding is Encoding.GORILLA:
        return gorilla(values, size * 8)
    if encoding is Encoding.TS_2DIFF:
        return encode_values(DataType.INT64 if size == 8 else DataType.INT32, values)
    if size == 4 and kind is not DataType.FLOAT:
        return b"".join(uvarint((value << 1 ^ value >> 31) & 0xFFFFFFFF) for value in values.tolist())
    return values.astype(values.dtype.newbyteorder(">")).tobytes()


def gorilla(values: np.ndarray, width: int) -> bytes:
    """Every value after the first as a new window of all its bits; the end mark last."""
    end = np.array([np.nan if values.dtype.kind == "f" else np.iinfo(values.dtype).min], values.dtype)
    patterns = np.concatenate([values, end]).view(f"u{width // 8}").tolist()
    bits = f"{patterns[0]:0{width}b}"
    for before, value in itertools.pairwise(patterns):
        length = 6 if width == 64 else 5
        bits += "11" + "0" * length + f"{width - 1:0{length}b}" + f"{before ^ value:0{width}b}"
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def chunk_of(kind: DataType, encoding: Encoding, compression: Compression, content: Sequence[Points], plain: bool) -> bytes:
    """`plain`: times in PLAIN."""
    body = b""
    for page in content:
        times = np.array([time for time, _ in page], np.int64)
        of_times = times.astype(">i8").tobytes() if plain else encode_times(times)
        data = uvarint(len(of_times)) + of_times + coded(kind, encoding, values_of(kind, page))
        packed = make_compressor(compression)(data)
        told = uvarint(len(page)) + struct.pack(">qq", page[0][0], page[-1][0]) + bytes(STATISTICS.get(kind, 40))
        body += uvarint(len(data)) + uvarint(len(packed)) + told + packed
    return bytes([1]) + string("s") + uvarint(len(body)) + bytes([kind, compression, encoding]) + body


def told_of(content: Sequence[Points]) -> Statistics:
    """What the index says of a chunk of these pages."""
    times = [time for page in content for time, _ in page]
    return Statistics(len(times), min(times), max(times))


def read(place: Path, kind: DataType, statistics: Statistics, span: pages.Span) -> tuple[bytes, bytes] | str:
    """Times and values within the span, or why there are none."""
    series = Series("s", kind, False, statistics, (ChunkPlace(0, statistics),))
    with FileBytes(place) as file:
        try:
            found = list(pages.ChunkReader(file, file.size).read_plain_chunk(series, series.chunks[0], span, "root.d.s"))
        except TidemarkError as broken:
            return broken.message
    column = overlay_columns(found or [Column.empty(kind)]).slice_between(span.start, span.end)
    return column.times.tobytes(), column.values.tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=chunks(),
    coding=st.sampled_from(CODED),
    compression=st.sampled_from(COMPRESSIONS),
    plain=st.booleans(),
    ends=st.tuples(st.none() | st.integers(0, 130), st.none() | st.integers(0, 130)),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 7)), max_size=2),
)
def test_at_once_or_page_by_page(
    tmp_path: Path,
    content: list[Points],
    coding: tuple[DataType, Encoding],
    compression: Compression,
    plain: bool,
    ends: tuple[int | None, int | None],
    flips: list[tuple[int, int]],
) -> None:
    data = bytearray(chunk_of(*coding, compression, content, plain))
    for byte, bit in flips:
        data[8 + byte % (len(data) - 8)] ^= 1 << bit
    (tmp_path / "chunk").write_bytes(data)
    start, end = (None if end is None else content[0][0][0] + end for end in ends)
    asked = tmp_path / "chunk", coding[0], told_of(content), pages.Span(start, end)
    with mock.patch.object(pages, "decode_small_pages", lambda *_: None):
        by_page = read(*asked)
    with mock.patch.object(small_pages, "_FEWEST_PAGES", 1):
        assert read(*asked) == by_page
    assert flips or not isinstance(by_page, str)


@pytest.mark.parametrize("coding", CODED, ids=lambda coding: f"{coding[0].name}-{coding[1].name}")
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda kind: kind.name)
def test_sound_pages_are_read_at_once(
    tmp_path: Path, coding: tuple[DataType, Encoding], compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not page by page: that would cost what this is for."""
    content = [[(number, number % 7), (number + 1, 1)] for number in range(0, 200, 2)]
    (tmp_path / "chunk").write_bytes(chunk_of(*coding, compression, content, plain=False))
    monkeypatch.setattr(pages, "parse_pages", None)
    times, values = read(tmp_path / "chunk", coding[0], told_of(content), pages.Span(None, 2**70))
    expected = np.concatenate([values_of(coding[0], page) for page in content])
    assert np.frombuffer(times, np.int64).tolist() == list(range(200)) and values == expected.tobytes()
