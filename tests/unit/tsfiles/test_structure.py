"""Whole, damaged and foreign files: each gets the error that names what is wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.expected import SITES
from tidemark.errors import CorruptionError, NotFoundError, UnsupportedError
from tidemark.tsfiles.layout.bytes import FileBytes
from tidemark.tsfiles.layout.footer import read_footer
from tidemark.tsfiles.layout.structure import check_structure, walk_chunks
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import check_and_describe, describe_file

V3 = sorted(SITES["0.12.0"].root.rglob("*.tsfile"))[0]
V4 = sorted(SITES["2.0.1-beta"].root.rglob("*.tsfile"))[0]
BOTH = pytest.mark.parametrize("source", [V3, V4], ids=["V3", "V4"])


def changed(tmp_path: Path, source: Path, changes: dict[int, bytes]) -> Path:
    data = bytearray(source.read_bytes())
    for at, new in changes.items():
        start = at % len(data)
        data[start : start + len(new)] = new
    path = tmp_path / source.name
    path.write_bytes(data)
    return path


@BOTH
def test_the_ends_of_a_file_are_looked_at(tmp_path: Path, source: Path) -> None:
    for changes, problem in [
        ({0: b"X"}, "the first 6 bytes are not `TsFile`"),
        ({-1: b"X"}, "the last 6 bytes are not `TsFile`: not sealed or cut off"),
        ({-10: b"\x7f\xff\xff\xff"}, "a file metadata of 2147483647 bytes does not fit"),
        ({-10: b"\x00\x00\x00\x00"}, "a file metadata of 0 bytes does not fit"),
    ]:
        with pytest.raises(CorruptionError, match=problem):
            check_structure(changed(tmp_path, source, changes))


@BOTH
def test_a_cut_file_is_not_whole(tmp_path: Path, source: Path) -> None:
    data = source.read_bytes()
    path = tmp_path / source.name
    for length in (0, 5, 13, 17, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptionError, match=str(path)):
            check_structure(path)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"TsFile000002", r"V2 \(IoTDB 0.10, 0.11\)"),
        (b"TsFile000001", r"V1 \(IoTDB 0.9\)"),
        (b"TsFilev0.8.0", "of IoTDB 0.8"),
        (b"TsFile\x05", "V5"),
    ],
)
def test_other_versions_are_named(tmp_path: Path, head: bytes, name: str) -> None:
    for call in (check_structure, describe_file, check_and_describe, TsFile):
        with pytest.raises(UnsupportedError, match=f"TsFile {name} is not read"):
            call(changed(tmp_path, V4, {0: head}))


def test_an_encrypted_file_is_named(tmp_path: Path) -> None:
    at = V4.read_bytes().index(b"encryptLevel") + len("encryptLevel") + 1
    path = changed(tmp_path, V4, {at: b"1"})
    for call in (check_structure, describe_file, check_and_describe, TsFile):
        with pytest.raises(UnsupportedError, match="the file is encrypted"):
            call(path)


@BOTH
def test_a_chunk_that_is_not_where_the_index_says_is_named(tmp_path: Path, source: Path) -> None:
    with FileBytes(source) as file:
        _, series, header = next(walk_chunks(file, read_footer(file)))
    for changes, problem in [
        ({header.offset: b"\x09"}, f"no chunk of '{series.name}' begins here"),
        ({header.offset + 2: b"X"}, "where the index has"),
        ({header.data_offset - 1: b"\x63"}, "unknown encoding 99"),
        ({header.data_offset - 2: b"\x63"}, "unknown compression 99"),
    ]:
        with pytest.raises(CorruptionError, match=problem):
            check_structure(changed(tmp_path, source, changes))


@BOTH
def test_two_series_may_not_share_a_chunk(tmp_path: Path, source: Path) -> None:
    """An index whose entry points to another chunk of the same name is found by the overlap."""
    with FileBytes(source) as file:
        first, second = list(walk_chunks(file, read_footer(file)))[:2]
    data = source.read_bytes()
    at = data.rindex(struct.pack(">q", second[2].offset))
    with pytest.raises(CorruptionError):
        check_structure(changed(tmp_path, source, {at: struct.pack(">q", first[2].offset)}))


@BOTH
def test_a_series_in_an_encoding_we_do_not_decode_is_told_and_the_rest_is_read(tmp_path: Path, source: Path) -> None:
    """The file stays sound: only that series is refused, by name."""
    with FileBytes(source) as file:
        segments, series, header = next(
            found
            for found in walk_chunks(file, read_footer(file))
            if not found[1].is_time and found[1].type.name == "DOUBLE"
        )
    device = ".".join(segment or "" for segment in segments)
    path = changed(tmp_path, source, {header.data_offset - 1: bytes([10])})
    assert check_structure(path) in (3, 4)
    assert describe_file(path).undecodable == (f"{device}.{series.name}: FREQ",)
    with TsFile(path) as tsfile:
        with pytest.raises(UnsupportedError, match=f"{device}.{series.name} is DOUBLE FREQ"):
            tsfile.read_column(device, series.name)
        others = [name for name in tsfile.list_measurements(device) if name != series.name]
        assert all(len(tsfile.read_column(device, name)) for name in others)
    path = changed(tmp_path, source, {header.data_offset - 2: bytes([3])})
    assert describe_file(path).undecodable == (f"{device}.{series.name}: {header.encoding.name}/LZO",)


@BOTH
def test_a_device_that_the_index_calls_by_another_name_is_noticed(tmp_path: Path, source: Path) -> None:
    """One bit of its name in the index: no digest shows it where the site's own disk flipped it, the chunk group does."""
    with FileBytes(source) as file:
        segments, _, _ = next(walk_chunks(file, read_footer(file)))
    name = (segments[-1] or "").encode()
    data = source.read_bytes()
    at = data.rindex(name) + len(name) - 1
    path = changed(tmp_path, source, {at: bytes([data[at] ^ 1])})
    for call in (check_structure, check_and_describe):
        with pytest.raises(CorruptionError, match="index and chunk group name one device"):
            call(path)


@pytest.mark.parametrize(
    ("word", "offset", "problem"),
    [
        (b"line", 14, "where the file declares 1 tags"),  # the category of a tag column: a field now
        (b"press", 15, "'press' is a tag of 'sensors', and a series of"),
        (b"\x0esensors\x0c", 1, "where the file declares no such table"),
    ],
)
def test_tables_that_do_not_fit_the_devices_are_noticed(tmp_path: Path, word: bytes, offset: int, problem: str) -> None:
    works = min((p for p in SITES["2.0.1-beta"].root.rglob("*.tsfile") if "works" in str(p)), key=lambda p: p.stat().st_size)
    data = works.read_bytes()
    at = data.rindex(word) + offset
    path = changed(tmp_path, works, {at: bytes([data[at] ^ 1])})
    with pytest.raises(CorruptionError, match=problem):
        check_and_describe(path, "works")


def test_a_damaged_page_names_series_and_byte(tmp_path: Path) -> None:
    with FileBytes(V3) as file:
        (device,), series, header = next(walk_chunks(file, read_footer(file)))
    path = changed(tmp_path, V3, {header.data_offset + 4: b"\xff" * 8})
    assert check_structure(path) == 3
    with (
        TsFile(path) as tsfile,
        pytest.raises(CorruptionError, match=rf"{device}.{series.name}.*\(byte {header.data_offset}\)"),
    ):
        tsfile.read_column(device, series.name)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        check_structure(tmp_path / "gone.tsfile")
    with TsFile(V3) as tsfile:
        with pytest.raises(NotFoundError, match=r"no device root\.x"):
            tsfile.list_measurements("root.x")
        with pytest.raises(NotFoundError, match="has no measurement x"):
            tsfile.read_column(tsfile.list_devices()[0], "x")
