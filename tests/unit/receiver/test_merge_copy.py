"""Chunks that nothing overlaps go into the merged file as they stand; what is read is what a full rewrite reads."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.receiver.test_merge_task import Case
from tests.unit.tsfiles.handmade import PLAIN, Chunk, HandmadeFile
from tidemark.errors import CorruptionError
from tidemark.receiver import windows as merge_pieces
from tidemark.receiver.merge import device as merge_device
from tidemark.receiver.merge.task import Staged, TaskSource, run_merge_task
from tidemark.tsfiles import statistics as file_statistics
from tidemark.tsfiles.layout.structure import check_structure
from tidemark.tsfiles.points.codes import BINARY_TYPES, DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.write import copy_devices as whole_devices
from tidemark.tsfiles.write import pages as writer_pages
from tidemark.tsfiles.write.copy_devices import CopiedDevice, WholeDevice

Segments = tuple[str | None, ...]
D1: Segments = ("root.db.a", "d1")
D2: Segments = ("root.db.a", "d2")
TABLE: Segments = ("t", "x")
OFFICIAL = Path(__file__).parents[1] / "tsfiles" / "official_reader.py"


def columns(start: int, rows: int, *names: str) -> dict[str, Column]:
    """A column of each type; `names`: only of these."""
    random = np.random.default_rng(start)
    times = np.arange(start, start + rows, dtype=np.int64)
    found = {}
    for kind, dtype in VALUE_DTYPES.items():
        values = np.empty(rows, dtype)
        if kind in BINARY_TYPES:
            values[:] = [b"%d" % n for n in random.integers(0, 10**6, rows)]
        else:
            values[:] = random.integers(0, 2 if kind == DataType.BOOLEAN else 10**6, rows)
        found[kind.name.lower()] = Column(kind, times, values)
    return {name: found[name] for name in names or found}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Chunks of 50 rows in the sources; 40 are worth a copy; one catalog partition is 1,000 times wide."""
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 25)
    monkeypatch.setattr(writer_pages, "CHUNK_PAGES", 2)
    monkeypatch.setattr(merge_pieces, "COPY_ROWS", 40)
    return Case(tmp_path)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The chunks that were copied, as bytes."""
    seen: list[bytes] = []
    real = merge_device.stored_chunks

    def watched(file: TsFile, stretch: Any) -> Any:
        chunks = real(file, stretch)
        seen.extend(chunk.data for chunk in chunks or ())
        return chunks

    whole = TsFile.read_whole_device

    def watched_whole(file: TsFile, device: WholeDevice) -> CopiedDevice | None:
        copied = whole(file, device)
        seen.extend(_chunks(copied) if copied else ())
        return copied

    monkeypatch.setattr(merge_device, "stored_chunks", watched)
    monkeypatch.setattr(TsFile, "read_whole_device", watched_whole)
    return seen


def _chunks(copied: CopiedDevice) -> Iterator[bytes]:
    for begin, end, _ in copied.pieces:
        places = [row.offset - copied.base for row in copied.device.chunks if begin <= row.offset - copied.base < end]
        yield from (copied.data[a:b] for a, b in itertools.pairwise([*places, end]))


def merged(case: Case) -> list[Staged]:
    outcome = run_merge_task(case.task)
    assert outcome.refused is None
    for staged in outcome.staged:
        assert check_structure(case.root / staged.location) == 4
    return list(outcome.staged)


def points(case: Case, outputs: list[Staged]) -> Iterator[tuple[str, str, str, list[int], list[Any]]]:
    for staged in outputs:
        with TsFile(case.root / staged.location, "db") as file:
            for device in file.list_devices():
                for name in file.list_measurements(device):
                    one = file.read_column(device, name)
                    yield device, name, one.type.name, one.times.tolist(), one.values.tolist()


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("segments", "aligned"), [(D1, False), (D1, True), (TABLE, True)])
def test_the_same_points_as_a_full_rewrite_in_every_layout(
    case: Case, copied: list[bytes], segments: Segments, aligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"t": ["tag"]} if segments is TABLE else None
    case.add({segments: columns(0, 300)}, aligned, tables)
    case.add({segments: columns(120, 20, "double", "text", "boolean")}, aligned, tables)
    outputs = merged(case)
    sources = [(case.root / source.location).read_bytes() for source in case.sources]
    assert len(copied) >= 5 * 10 and all(any(data in source for source in sources) for data in copied)
    (output,) = ((case.root / staged.location).read_bytes() for staged in outputs)
    assert all(data in output for data in copied)
    found = list(points(case, outputs))
    official = subprocess.run(
        [sys.executable, OFFICIAL, case.root / outputs[0].location], capture_output=True, check=False, timeout=120
    )
    assert official.returncode == 0, official.stderr.decode()[-2000:]
    copied.clear()
    monkeypatch.setattr(merge_pieces, "COPY_ROWS", 10**9)
    rewritten = merged(case)
    assert not copied
    assert found == list(points(case, rewritten))
    assert [s.counts for s in outputs] == [s.counts for s in rewritten]
    assert [s.devices for s in outputs] == [s.devices for s in rewritten]


def test_a_device_of_one_file_is_copied_whole(case: Case, copied: list[bytes]) -> None:
    case.add({D1: columns(0, 10, "int32"), D2: columns(0, 100)}, aligned=True)
    case.add({D1: columns(5, 10, "int32")}, aligned=True)
    (staged,) = merged(case)
    assert len(copied) == 2 * (1 + len(VALUE_DTYPES))
    assert staged.counts.overwritten == 5 and staged.points == 15 + 100 * len(VALUE_DTYPES)


def test_a_chunk_that_a_deletion_touches_is_decoded(case: Case, copied: list[bytes]) -> None:
    far = 1 << 40
    case.add({D1: columns(0, 200, "int64")}, mods=f"DELETION,root.db.a.d1.int64,{far},60,60\n")
    case.add({D1: columns(190, 20, "int64")})
    (staged,) = merged(case)
    assert len(copied) == 2  # 0 to 49 and 100 to 149; 50 to 99 has the deletion, 150 to 199 the newer file
    assert staged.counts.deleted == 1 and staged.counts.overwritten == 10


def test_a_chunk_over_a_border_of_partitions_is_cut(case: Case, copied: list[bytes]) -> None:
    case.add({D1: columns(960, 150, "int64")}, aligned=True)
    case.add({D1: columns(900, 5, "int64")}, aligned=True)
    outputs = merged(case)
    assert [staged.partition for staged in outputs] == [0, 1]
    assert [staged.points for staged in outputs] == [45, 110]
    assert len(copied) == 2 * 2  # 1010 to 1059 and 1060 to 1109


def test_a_device_that_becomes_aligned_is_written_anew(case: Case, copied: list[bytes]) -> None:
    case.add({D1: columns(0, 100, "int64")}, aligned=False)
    case.add({D1: columns(100, 50, "double")}, aligned=True)
    (staged,) = merged(case)
    with TsFile(case.root / staged.location) as file:
        assert file.is_aligned("root.db.a.d1")
        assert file.read_column("root.db.a.d1", "int64").times.tolist() == list(range(100))
        assert file.read_column("root.db.a.d1", "double").times.tolist() == list(range(100, 150))
    assert len(copied) == 2  # of the newer file: the times and `double`; `int64` gets its mark


def spread(start: int, rows: int, sparse: str) -> dict[str, Column]:
    """A column of each type; every third row of one of them alone, and nothing of it in the rows 50 to 99."""
    found = columns(start, rows)
    own = found[sparse]
    there = (np.arange(rows) % 3 == 0) & ((np.arange(rows) < 50) | (np.arange(rows) >= 100))
    return found | {sparse: Column(own.type, own.times[there], own.values[there])}


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("segments", "aligned"), [(D2, False), (D2, True), (TABLE, True)])
@pytest.mark.parametrize("sparse", ["", "double", "text"])
def test_a_device_copied_whole_is_what_its_stretches_make(
    case: Case, segments: Segments, aligned: bool, sparse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"t": ["tag"]} if segments is TABLE else None
    other: Segments = ("t", "a") if segments is TABLE else D1
    case.add(
        {other: columns(0, 60, "int64"), segments: spread(0, 200, sparse) if sparse else columns(0, 200)}, aligned, tables
    )
    case.add({other: columns(50, 60, "int64")}, aligned, tables)
    outputs = merged(case)
    found = list(points(case, outputs))
    monkeypatch.setattr(TsFile, "find_whole_device", lambda file, device, terms: None)
    parts = merged(case)
    assert found == list(points(case, parts)) and len(found) == 1 + len(VALUE_DTYPES)
    assert [(s.counts, s.devices, s.points) for s in outputs] == [(s.counts, s.devices, s.points) for s in parts]
    if not sparse:
        assert [s.sha256 for s in outputs] == [s.sha256 for s in parts]  # as this writer makes them: byte for byte


def test_a_header_that_is_not_as_the_index_says_is_found(case: Case) -> None:
    place = case.add({D1: columns(0, 10, "int64"), D2: columns(0, 100, "int64")})
    case.add({D1: columns(5, 10, "int64")})
    with TsFile(place) as file:
        offset = file.series_of("root.db.a.d2")[1]["int64"].chunks[1].offset
    data = bytearray(place.read_bytes())
    data[offset + 2] ^= 1  # the first letter of its name
    place.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"0\.tsfile: a chunk of 'hnt64'"):
        run_merge_task(case.task)


def test_without_a_compiler_the_same_points_are_copied(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.add({D1: columns(0, 60), D2: columns(0, 200)}, aligned=True)
    case.add({D1: columns(50, 60)}, aligned=True)
    outputs = merged(case)
    monkeypatch.setattr(whole_devices, "kernels", lambda: None)
    monkeypatch.setattr(file_statistics, "kernels", lambda: None)
    plain = merged(case)
    assert [s.sha256 for s in outputs] == [s.sha256 for s in plain]
    assert [(s.counts, s.devices) for s in outputs] == [(s.counts, s.devices) for s in plain]


@pytest.mark.parametrize("others", [{}, {D1: columns(250, 1, "int64")}], ids=["device of one file", "series of one file"])
def test_times_that_begin_anew_are_written_in_order(
    case: Case, copied: list[bytes], others: dict[Segments, dict[str, Column]]
) -> None:
    """IoTDB 0.12 writes such chunks into V3; nobody reads them in V4. The sound chunk after it is copied."""
    anew = Chunk("s", PLAIN, [([*range(100, 150), *range(60, 110)], list(range(100)))])
    sound = Chunk("s", PLAIN, [(list(range(200, 250)), list(range(50)))])
    (case.root / "0.tsfile").write_bytes(HandmadeFile("root.db.a.d1", [[anew, sound]]).data())
    case.sources.append(TaskSource("0.tsfile", ""))
    case.devices.add("root.db.a.d1")
    case.add({D2: columns(0, 10, "int64")} | others)
    (staged,) = merged(case)
    assert sound.data() in copied and anew.data() not in copied and staged.counts.overwritten == 10
    [(times, values)] = [(times, values) for _, name, _, times, values in points(case, [staged]) if name == "s"]
    first = {time: at for at, time in reversed([*enumerate([*range(100, 150), *range(60, 110)])])}
    assert dict(zip(times, values, strict=True)) == first | {time: time - 200 for time in range(200, 250)}
    assert times == sorted(times)
