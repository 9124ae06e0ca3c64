"""One bit of a file flipped: what a load and a read notice, with the site's digest and without one.

With the digest, everything: made before the file is sent, it differs. Where the site's own disk flipped the bit before
that, only the file can tell, and TsFiles have no checksum: a value or a time inside a page may then read as another one.
Nothing else may: every bit outside the pages is refused, named, or of no consequence. No bit hangs, crashes or grows a
process beyond its limits: all this runs in the children that loads and merges run in.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.e2e.test_load_damaged_files import REAL
from tests.reading_tasks import Found, ReadTask, read_points
from tests.small_files import source
from tidemark.engines.choose import PoolEngine
from tidemark.engines.pool import run_in_children
from tidemark.engines.task import Limits
from tidemark.errors import CorruptionError
from tidemark.formats.landing import decode_receipt
from tidemark.receiver.read import Query
from tidemark.tsfiles.layout.bytes import FileBytes
from tidemark.tsfiles.layout.footer import read_footer
from tidemark.tsfiles.layout.structure import walk_chunks

ROOT = Path(__file__).parents[2]
EACH = pytest.mark.parametrize("kind", REAL)
AMPLE = Limits(cpu_seconds=10, wall_seconds=60, memory_bytes=2 << 30)  # for files of some kilobytes


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Centre:
    """A receiver that checks files in child processes, under limits that a file of this size is far from."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'plugins'}")
    return Centre(tmp_path, engine=PoolEngine(limits=AMPLE))


def flip(data: bytes, bit: int) -> bytes:
    return data[: bit >> 3] + bytes([data[bit >> 3] ^ 1 << (bit & 7)]) + data[(bit >> 3) + 1 :]


def bits_of(kind: str, count: int) -> list[int]:
    """Bits to flip: half of them anywhere, half in what is not pages, where a wrong number leads furthest."""
    chance = random.Random(kind)
    size = 8 * REAL[kind][0].stat().st_size
    pages = inside_pages(REAL[kind][0])
    elsewhere = [bit for bit in range(size) if not pages(bit >> 3)]
    return [*chance.sample(range(size), count // 2), *chance.choices(elsewhere, k=count - count // 2)]


def inside_pages(path: Path) -> Callable[[int], bool]:
    """Whether a byte of a file lies in the pages of a chunk."""
    with FileBytes(path) as file:
        spans = [(header.data_offset, header.end) for _, _, header in walk_chunks(file, read_footer(file))]
    return lambda at: any(start <= at < end for start, end in spans)


def check_flips(centre: Centre, kind: str, bits: Sequence[int]) -> Counter[str]:
    """Land a file a bit, flipped before the site made its digest; how many were what. All but page contents is noticed."""
    whole, database = REAL[kind]
    data = whole.read_bytes()
    paths = [source(number, database=database) for number in range(1, len(bits) + 1)]
    centre.sender().land({path: {"": flip(data, bit)} for path, bit in zip(paths, bits, strict=True)})
    result = centre.load()
    assert result.loaded + result.quarantined == len(bits)
    sound = read_points(ReadTask(str(whole), database))
    pages = inside_pages(whole)
    outcome: Counter[str] = Counter(quarantined=result.quarantined)
    bit_of = dict(zip(paths, bits, strict=True))
    for path, found in read_loaded(centre, database):
        bit = bit_of[path]
        untrue = {series for series in found.points if found.points[series] != sound.points.get(series)}
        lost = {series for series in sound.points if series not in found.points}
        named = bool(found.named)
        assert not lost or named, f"bit {bit} of {whole.name}: {lost} is gone without a word"
        assert not untrue or pages(bit >> 3), f"bit {bit} of {whole.name} is not in a page, and changes {untrue}"
        outcome["named" if named else "other values of a page" if untrue else "of no consequence"] += 1
    assert outcome.total() == len(bits)
    return outcome


def read_loaded(centre: Centre, database: str) -> Iterator[tuple[str, Found]]:
    """(source path, what a child reads) of every file that the catalog took; a child that dies fails the test."""
    rows = centre.sql("SELECT path, location FROM catalog_file WHERE state = 'live'")
    tasks = [ReadTask(str(centre.root / location), database) for _, location in rows]
    for answer in run_in_children("tests.reading_tasks:read_points", tasks, len(os.sched_getaffinity(0)), AMPLE):
        assert answer.error is None, answer.error
        yield rows[answer.index][0], answer.value


@pytest.mark.full_after(1)
@EACH
def test_a_flipped_bit_is_noticed_or_changes_a_page_alone(centre: Centre, kind: str) -> None:
    outcome = check_flips(centre, kind, bits_of(kind, 24))
    assert outcome["quarantined"]


@pytest.mark.full
@EACH
def test_three_hundred_flipped_bits(centre: Centre, kind: str) -> None:
    outcome = check_flips(centre, kind, bits_of(kind, 300))
    assert min(outcome["quarantined"], outcome["named"], outcome["of no consequence"]) > 10, outcome
    read, _ = centre.read(Query(tall=True))  # all of them laid over each other: ends, and names what it cannot read
    assert len(read.undecodable) > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@EACH
def test_ten_thousand_flipped_bits(centre: Centre, kind: str) -> None:
    check_flips(centre, kind, bits_of(kind, 10_000))


@pytest.mark.full
@EACH
def test_with_the_sites_digest_every_flipped_bit_is_noticed(centre: Centre, kind: str) -> None:
    """The same bits, flipped on the way: quarantined each, and asked for again."""
    whole, database = REAL[kind]
    data = whole.read_bytes()
    bits = bits_of(kind, 300)
    paths = [source(number, database=database) for number in range(1, len(bits) + 1)]
    folder = centre.sender().land({path: {"": data} for path in paths})
    for path, bit in zip(paths, bits, strict=True):
        (folder / path).write_bytes(flip(data, bit))
    result = centre.load()
    assert (result.loaded, result.quarantined, result.exit_code) == (0, len(bits), CorruptionError.kind)
    [receipt] = centre.root.rglob("receipt.json")
    answers = decode_receipt(receipt.read_bytes()).answers
    assert {(answer.outcome, answer.resend) for answer in answers} == {("quarantined", True)}
    digest = hashlib.sha256(data).hexdigest()
    assert all(digest[:16] in answer.reason for answer in answers)
    assert centre.rows() == []
