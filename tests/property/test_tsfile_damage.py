"""Whatever bytes come: a right answer or a Tidemark error. Never another exception, an endless loop, a huge allocation."""

from __future__ import annotations

import resource as process_limits
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.expected import SITES
from tidemark.errors import CorruptionError
from tidemark.tsfiles.companions.mods import parse_mods
from tidemark.tsfiles.companions.resource import read_extent, read_mods_name
from tidemark.tsfiles.companions.schema_log import decode_log
from tidemark.tsfiles.decode.compression import can_decode, can_decompress, decompress_page
from tidemark.tsfiles.decode.pages import decode_values
from tidemark.tsfiles.layout.structure import check_structure
from tidemark.tsfiles.points.codes import BadPageError, Compression, DataType, Encoding
from tidemark.tsfiles.points.column import VALUE_DTYPES
from tidemark.tsfiles.reader import TsFile, aligned_stretches, series_stretches, stored_chunks
from tidemark.tsfiles.statistics import FileFacts, check_and_describe, describe_file
from tidemark.tsfiles.write.copy_devices import Terms


def smallest(site: str, part: str = "") -> Path:
    found = [path for path in SITES[site].root.rglob("*.tsfile") if part in str(path)]
    return min(found, key=lambda path: path.stat().st_size)


FILES = {
    "V3": smallest("0.12.0"),
    "V4 tree": smallest("2.0.1-beta", "root.plant1/3"),
    "V4 aligned": next(p for p in sorted(SITES["2.0.1-beta"].root.rglob("*.tsfile")) if describe_file(p).devices[0].aligned),
    "V4 table": smallest("2.0.1-beta", "works"),
}
EACH_FILE = pytest.mark.parametrize("name", FILES)
pytestmark = pytest.mark.timeout(180)  # an endless loop fails, soak included


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """An allocation beyond any sense fails instead of being granted lazily."""
    before = process_limits.getrlimit(process_limits.RLIMIT_AS)
    process_limits.setrlimit(process_limits.RLIMIT_AS, (12 << 30, before[1]))
    yield
    process_limits.setrlimit(process_limits.RLIMIT_AS, before)


def use_all(path: Path) -> None:
    """All that Tidemark does with a file it received; each step may refuse, none may do anything else."""
    for step in (check_structure, lambda file: describe_file(file, "works"), _read_all, _copy_all):
        try:
            step(path)
        except CorruptionError as error:
            assert error.message
    quick = _verdict(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.tsfiles.layout.series._short_series", lambda cursor: None)
        patch.setattr("tidemark.tsfiles.layout.chunks._plain_header", lambda *header: None)
        assert _verdict(path) == quick  # the quick way through an index takes nothing that the long way does not


def _verdict(path: Path) -> FileFacts | str:
    try:
        return check_and_describe(path, "works")
    except CorruptionError as error:
        return error.message


def _read_all(path: Path) -> None:
    with TsFile(path, "works") as tsfile:
        for device in tsfile.list_devices():
            for measurement in tsfile.list_measurements(device):
                try:
                    column = tsfile.read_column(device, measurement)
                except CorruptionError:
                    continue
                assert len(column.times) == len(column.values)
                assert column.values.dtype == VALUE_DTYPES[column.type]
                assert bool((column.times[1:] > column.times[:-1]).all())


def _copy_all(path: Path) -> None:
    """What would be copied whole is what the index promises, chunk by chunk, to those who look at each."""
    with TsFile(path, "works") as tsfile:
        for device in tsfile.list_devices():
            try:
                whole = tsfile.find_whole_device(device, Terms(rows=0, interval=1 << 62))
                copied = tsfile.read_whole_device(whole) if whole else None
            except CorruptionError:
                continue
            if whole is None or copied is None:
                continue
            time, series = tsfile.series_of(device)
            assert {name: one.type for name, one in series.items()} == dict(whole.types)
            assert sum(one.statistics.count for one in series.values()) == whole.points
            stretches = [one for name, own in series.items() for one in series_stretches(name, own)]
            if time is not None:
                stretches = aligned_stretches(str(path), time, series)
            assert stretches and all(stored_chunks(tsfile, one) is not None for one in stretches)


@EACH_FILE
def test_a_file_cut_anywhere_is_refused(name: str, tmp_path: Path) -> None:
    data = FILES[name].read_bytes()
    path = tmp_path / "cut.tsfile"
    for length in range(0, len(data), max(1, len(data) // 150)):
        path.write_bytes(data[:length])
        for call in (check_structure, describe_file, check_and_describe, TsFile):
            with pytest.raises(CorruptionError):
                call(path)


@pytest.mark.full_after(1)
@EACH_FILE
@given(draw=st.data())
def test_flipped_bits(name: str, draw: st.DataObject) -> None:
    data = bytearray(FILES[name].read_bytes())
    for at in draw.draw(st.lists(st.integers(0, len(data) * 8 - 1), min_size=1, max_size=4)):
        data[at >> 3] ^= 1 << (at & 7)
    _use_bytes(bytes(data))


@pytest.mark.full_after(1)
@EACH_FILE
@given(draw=st.data())
def test_garbage_in_the_index(name: str, draw: st.DataObject) -> None:
    """The index is where a wrong number leads furthest."""
    data = FILES[name].read_bytes()
    start = draw.draw(st.integers(len(data) * 3 // 4, len(data) - 11))
    garbage = draw.draw(st.binary(min_size=1, max_size=24))
    _use_bytes((data[:start] + garbage + data[start + len(garbage) :])[: len(data)])


@pytest.mark.full_after(1)
@EACH_FILE
@given(draw=st.data())
def test_parts_moved_about(name: str, draw: st.DataObject) -> None:
    """Bytes left out, doubled or exchanged: what a bad copy makes."""
    data = FILES[name].read_bytes()
    at, length, to = (draw.draw(st.integers(0, len(data) - 1)) for _ in range(3))
    piece = data[at : at + length % 4096]
    _use_bytes(draw.draw(st.sampled_from([data[:at] + data[at + len(piece) :], data[:to] + piece + data[to:]])))


def _use_bytes(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.tsfile"
        path.write_bytes(data)
        use_all(path)


@given(data=st.binary(max_size=200))
def test_companions_of_garbage(data: bytes) -> None:
    for call in (
        lambda: read_extent(data),
        lambda: read_extent(b"\x01\x03" + data),
        lambda: read_mods_name(data),
        lambda: read_mods_name(b"\x01\x01" + data),
        lambda: parse_mods(data, "mods"),
        lambda: parse_mods(b"\x00" + data, "mods2"),
        lambda: parse_mods(b"DELETION," + data + b"\n", "mods"),
        lambda: decode_log(data, "binary"),
        lambda: decode_log(len(data).to_bytes(4, "big") + data + bytes(8), "binary"),
        lambda: decode_log(data + b"\n", "text"),
    ):
        try:
            call()
        except CorruptionError as error:
            assert error.message


@given(draw=st.data(), data=st.binary(max_size=120), count=st.integers(0, 300))
def test_pages_of_garbage(draw: st.DataObject, data: bytes, count: int) -> None:
    data_type = draw.draw(st.sampled_from(list(DataType)))
    encoding = draw.draw(st.sampled_from(list(Encoding)))
    if can_decode(data_type, encoding):
        try:
            values = decode_values(data_type, encoding, data, count)
        except (BadPageError, CorruptionError, IndexError):
            return
        assert (len(values), values.dtype) == (count, VALUE_DTYPES[data_type])


@given(data=st.binary(max_size=120), size=st.integers(0, 1 << 40), kind=st.sampled_from(list(Compression)))
def test_compressed_garbage(data: bytes, size: int, kind: Compression) -> None:
    if can_decompress(kind):
        try:
            assert len(decompress_page(kind, data, size)) == size
        except BadPageError:
            return
