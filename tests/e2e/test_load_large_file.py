"""A file of 5 GB whose second half lies beyond what 32 bits can say: loaded, read and merged in little memory.

It is sparse: two chunks with nothing between them, so it needs no disk to speak of; its digest is of all 5 GB.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.landing_maker import Sender
from tests.small_files import sealed, source
from tests.unit.tsfiles.handmade import PLAIN, Chunk, HandmadeFile, string, uvarint
from tidemark.engines.choose import PoolEngine
from tidemark.engines.task import Limits
from tidemark.formats.landing import Part
from tidemark.formats.layout import landed_path

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
SIZE = 5 << 30
DEVICE = "root.sg.d1"


def write_large(place: Path) -> None:
    """V3: the points at 1 and 2 at the head, those at 3 and 4 behind 5 GB of nothing."""
    group = b"\x00" + string(DEVICE)
    first, second = Chunk("s", PLAIN, [([1, 2], [10, 20])]), Chunk("s", PLAIN, [([3, 4], [30, 40])])
    first.offset, second.offset = 7 + len(group), SIZE + len(group)
    end = second.offset + len(second.data())
    series = HandmadeFile._series("s", [first, second])
    node = HandmadeFile._node([("s", end + 1)], end + 1 + len(series), 3)
    metadata = HandmadeFile._node([(DEVICE, end + 1 + len(series))], end + 1 + len(series) + len(node), 1)
    metadata += struct.pack(">q", end) + uvarint(0)
    with place.open("wb") as file:
        file.write(b"TsFile\x03" + group + first.data())
        file.seek(SIZE)
        file.write(group + second.data() + b"\x02" + series + node + metadata + struct.pack(">i", len(metadata)) + b"TsFile")


class SenderOfLarge(Sender):
    """`large`: the file that the content `LARGE` stands for."""

    LARGE = b"large"
    large: Path

    def _write(self, folder: Path, path: str, data: bytes) -> Part:  # type: ignore[override]
        if data != self.LARGE:
            return Sender._write(folder, path, data)
        place = folder / landed_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.large.rename(place)
        with place.open("rb") as file:
            return Part(path, place.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def test_a_file_of_five_gigabytes(tmp_path: Path) -> None:
    centre = Centre(tmp_path, engine=PoolEngine(limits=Limits(memory_bytes=1 << 30)))
    sender = SenderOfLarge(centre.root)
    sender.large = tmp_path / "large"
    write_large(sender.large)
    sender.land({source(1): {"": sender.LARGE}, source(2): sealed({DEVICE: {"s": [(2, 21), (4, 41)]}})})
    assert centre.load().troubles == ()
    assert centre.sql("SELECT max(size) > 5000000000 FROM catalog_file") == [(1,)]
    expected = [(DEVICE, "s", time, "INT64", str(value)) for time, value in ((1, 10), (2, 21), (3, 30), (4, 41))]
    assert centre.rows() == expected
    result = centre.merge()
    assert (result.groups, result.rows, result.failed) == (1, 4, ())
    assert centre.rows() == expected
