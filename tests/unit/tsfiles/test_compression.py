"""Pages decompress to the bytes that they announce, or not at all: never to what the memory held before."""

from __future__ import annotations

import gzip
import lzma
import random
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tidemark.tsfiles.decode.codecs import load_codec
from tidemark.tsfiles.decode.compression import decompress_page
from tidemark.tsfiles.points import kernels as compiled
from tidemark.tsfiles.points.codes import BadPageError, Compression
from tidemark.tsfiles.write.pages import make_compressor

ARROW = {Compression.SNAPPY: "snappy", Compression.LZ4: "lz4_raw", Compression.ZSTD: "zstd"}
KINDS = [Compression.GZIP, Compression.LZMA2, *ARROW]
CONTENTS = {
    "nothing": b"",
    "a byte": b"x",
    "literals": bytes(range(200)),
    "long literals": random.Random(1).randbytes(1000),
    "copies": b"abc" * 500,
    "both": b"".join(bytes([n % 7]) * n for n in range(1, 90)),
}


@pytest.fixture(params=["pyarrow", "cramjam"], autouse=True)
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package that has the codecs: the bare wheel is without pyarrow."""
    load_codec.cache_clear()
    if request.param == "cramjam":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    yield
    load_codec.cache_clear()


@pytest.fixture(params=["compiled", "in Python"], autouse=True)
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in Python":
        monkeypatch.setattr(compiled, "kernels", lambda: None)
    elif compiled.kernels() is None:
        pytest.skip("no C compiler")


def compressed(kind: Compression, content: bytes) -> bytes:
    if kind is Compression.GZIP:
        return gzip.compress(content)
    if kind is Compression.LZMA2:
        return lzma.compress(content)
    data: bytes = pa.Codec(ARROW[kind]).compress(content, asbytes=True)
    return data


@pytest.mark.full_after(1)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("content", CONTENTS.values(), ids=list(CONTENTS))
def test_a_page_of_another_size_is_refused(kind: Compression, content: bytes) -> None:
    data = compressed(kind, content)
    assert decompress_page(kind, data, len(content)) == content
    for size in (len(content) + 1, len(content) + 100, len(content) - 1):
        if size >= 0:
            with pytest.raises(BadPageError):
                decompress_page(kind, data, size)


@pytest.mark.parametrize("kind", ARROW, ids=lambda kind: kind.name)
@pytest.mark.parametrize("content", CONTENTS.values(), ids=list(CONTENTS))
def test_what_is_compressed_is_what_pyarrow_reads(kind: Compression, content: bytes) -> None:
    data = make_compressor(kind)(content)
    assert pa.Codec(ARROW[kind]).decompress(data, len(content), asbytes=True) == content


@pytest.mark.parametrize("kind", ARROW, ids=lambda kind: kind.name)
def test_a_page_with_a_flipped_bit_is_refused_or_has_its_size(kind: Compression) -> None:
    content, chance = CONTENTS["both"], random.Random(7)
    data = compressed(kind, content)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            assert len(decompress_page(kind, bytes(damaged), len(content))) == len(content)
        except BadPageError:
            continue
