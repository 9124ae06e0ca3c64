"""Files that were damaged at the site, before their digest was made: it agrees, so only what is in them can tell.

Each is quarantined with what is wrong, or loaded with the series that cannot be right named at every read and kept out of
merges; what is sound in the same landing, in the same file even, is read as ever.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.expected import SITES
from tests.small_files import column_of, deletion, file_of, sealed, source
from tests.unit.tsfiles.handmade import PLAIN, TIME, VALUE, Chunk, HandmadeFile, string
from tidemark.errors import CorruptionError, PartialError
from tidemark.formats.landing import decode_receipt
from tidemark.operations.decisions import quarantine_list
from tidemark.tsfiles.names import parse_source_path
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.statistics import describe_file

DATA = ("data/sequence", "data/unsequence")


def real(site: str, part: str = "", aligned: bool = False) -> Path:
    """The smallest real file of a kind."""
    files = sorted((p for p in SITES[site].root.rglob("*.tsfile") if part in str(p)), key=lambda p: p.stat().st_size)
    return next(p for p in files if not aligned or describe_file(p).devices[0].aligned)


REAL = {
    "V3": (real("0.12.0"), "root.plant1"),
    "V4 tree": (real("2.0.1-beta", "root.plant1/3"), "root.plant1"),
    "V4 aligned": (real("2.0.1-beta", "root.plant", aligned=True), "root.plant1"),
    "V4 table": (real("2.0.1-beta", "works"), "works"),
}
EACH = pytest.mark.parametrize("kind", REAL)


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def land_damaged(centre: Centre, kind: str, contents: list[bytes]) -> list[str]:
    """Land the real file, and each content under a path of its own; the paths of those. All were sent as they are."""
    whole, database = REAL[kind]
    paths = [source(number, database=database) for number in range(2, len(contents) + 2)]
    files = {path: {"": content} for path, content in zip(paths, contents, strict=True)}
    centre.sender().land({source(1, database=database): {"": whole.read_bytes()}, **files})
    return paths


def check_all_quarantined(centre: Centre, paths: list[str], words: Mapping[str, str] | None = None) -> None:
    """Everything but the whole file, each with a reason; none is asked for again: that would bring the same bytes."""
    result = centre.load()
    assert (result.loaded, result.quarantined, result.exit_code) == (1, len(paths), CorruptionError.kind)
    [receipt] = centre.root.rglob("receipt.json")
    answers = {answer.path: answer for answer in decode_receipt(receipt.read_bytes()).answers if answer.path in paths}
    assert {(answer.outcome, answer.resend) for answer in answers.values()} == {("quarantined", False)}
    assert set(answers) == set(paths)
    for path, word in (words or {}).items():
        assert word in answers[path].reason
    held = quarantine_list(centre.app, centre.receiver).as_json()["quarantine"]
    assert {one["path"] for one in held} == set(paths) and all(one["reason"] for one in held)
    read, rows = centre.read()
    assert read.exit_code == 0 and len(rows) == sum(p for (p,) in centre.sql("SELECT points FROM catalog_file"))


@pytest.mark.full_after(1)
@EACH
def test_a_file_cut_at_any_two_hundredth_is_quarantined(centre: Centre, kind: str) -> None:
    data = REAL[kind][0].read_bytes()
    cuts = [data[: len(data) * part // 200] for part in range(200)]
    check_all_quarantined(centre, land_damaged(centre, kind, cuts))


@pytest.mark.full_after(1)
@EACH
def test_a_wrong_version_byte_is_quarantined(centre: Centre, kind: str) -> None:
    data = REAL[kind][0].read_bytes()
    wrong = [version for version in range(256) if version != data[6]]
    paths = land_damaged(centre, kind, [data[:6] + bytes([version]) + data[7:] for version in wrong])
    words = {path: f"TsFile V{n} is not read" for path, n in zip(paths, wrong, strict=True) if n not in (3, 4)}
    check_all_quarantined(centre, paths, words)


def test_an_encrypted_file_is_quarantined(centre: Centre) -> None:
    data = REAL["V4 tree"][0].read_bytes()
    at = data.rindex(b"encryptLevel") + len("encryptLevel") + 1
    paths = land_damaged(centre, "V4 tree", [data[:at] + level + data[at + 1 :] for level in (b"1", b"2")])
    check_all_quarantined(centre, paths, dict.fromkeys(paths, "the file is encrypted (level"))


def test_a_file_lies_where_its_points_are_whatever_its_name_says(centre: Centre) -> None:
    """A name says partition 0 of a database; statistics and points say another week. Points decide."""
    week = 604_800_000
    path = source(1)
    named = parse_source_path(path, DATA)
    assert named is not None and named.partition == 0
    centre.sender().land({path: sealed({"root.sg.d1": {"s": [(3 * week, 1), (4 * week, 2)]}})})
    assert centre.load().troubles == ()
    assert centre.sql("SELECT partition_from, partition_to, location LIKE 'data/root.sg/3/%' FROM catalog_file") == [
        (3, 4, 1)
    ]
    assert [row[2] for row in centre.rows()] == [3 * week, 4 * week]


def test_a_time_that_follows_itself_is_named_before_a_merge_and_after(centre: Centre) -> None:
    trouble = [Chunk("bad", PLAIN, [([10, 20, 20, 40], [1, 2, 3, 4])]), Chunk("good", PLAIN, [([1, 2], [1, 2])])]
    check_named(centre, HandmadeFile("root.sg.d1", [trouble]).data(), "the times do not ascend")


def test_times_that_begin_anew_are_read_before_a_merge_and_after(centre: Centre) -> None:
    """As IoTDB 0.12 merges a late file in: its points come first, and win."""
    anew = Chunk("s", PLAIN, [([30, 40, 10, 30], [1, 2, 3, 4])])
    parts = {source(1): {"": HandmadeFile("root.sg.d1", [[anew]]).data()}}
    centre.sender().land({**parts, source(2): sealed({"root.sg.d1": {"s": [(5, 5), (40, 9)]}})})
    assert centre.load().troubles == ()
    expected = [("root.sg.d1", "s", *point) for point in ((5, 5), (10, 3), (30, 1), (40, 9))]
    assert [(row[0], row[1], row[2], int(row[4])) for row in centre.rows()] == expected
    centre.merge()
    assert [(row[0], row[1], row[2], int(row[4])) for row in centre.rows()] == expected
    assert centre.sql("SELECT COUNT(*) FROM catalog_file WHERE visible = 1 AND role = 'merged'") == [(1,)]


def test_unsorted_times_of_an_aligned_device_are_named_and_never_merged(centre: Centre) -> None:
    times = [1, 3, 2, 4]
    groups = [[Chunk("", TIME, [(times, None)]), Chunk("bad", VALUE, [(times, [1, 2, 3, 4])])]]
    centre.sender().land({source(1): {"": HandmadeFile("root.sg.d1", groups).data()}, source(2): {"": older()}})
    assert centre.load().troubles == ()
    read, rows = centre.read()
    assert read.exit_code == PartialError.kind and "do not ascend" in read.undecodable["root.sg.d1.bad"]
    assert rows == [("root.sg.d1", "good", time, "INT64", "7") for time in (2, 3)]


def test_statistics_that_promise_other_points_are_named_before_a_merge_and_after(centre: Centre) -> None:
    """The index says 3 points from 10 to 30, the page has 2."""
    chunks = [Chunk("bad", PLAIN, [([10, 30], [1, 3])]), Chunk("good", PLAIN, [([1, 2], [1, 2])])]
    data = HandmadeFile("root.sg.d1", [chunks]).data()
    extent = struct.pack(">qq", 10, 30)
    assert data.count(b"\x02" + extent) == 1
    check_named(centre, data.replace(b"\x02" + extent, b"\x03" + extent), "root.sg.d1.bad")


def test_statistics_that_promise_other_times_are_named_before_a_merge_and_after(centre: Centre) -> None:
    chunks = [Chunk("bad", PLAIN, [([10, 30], [1, 3])]), Chunk("good", PLAIN, [([1, 2], [1, 2])])]
    data = HandmadeFile("root.sg.d1", [chunks]).data()
    lying = data.replace(b"\x02" + struct.pack(">qq", 10, 30), b"\x02" + struct.pack(">qq", 10, 31))
    check_named(centre, lying, "root.sg.d1.bad")


def older() -> bytes:
    """A sound file that overlaps with the damaged ones."""
    return file_of({("root.sg", "d1"): {"good": column_of(DataType.INT64, {2: 7, 3: 7})}})[""]


def check_named(centre: Centre, damaged: bytes, word: str) -> None:
    """`root.sg.d1.bad` of a file cannot be read: it is named, `good` of the same file is read. So it stays after merges,
    which copy such a chunk as it stands where nothing else overlaps it, or leave the file alone: no value is lost."""
    centre.sender().land({source(1): {"": older()}, source(2): {"": damaged}})
    assert centre.load().troubles == ()
    expected = [("root.sg.d1", "good", time, "INT64", str(value)) for time, value in ((1, 1), (2, 2), (3, 7))]
    for _ in range(3):
        read, rows = centre.read()
        assert rows == expected
        assert list(read.undecodable) == ["root.sg.d1.bad"] and word in str(dict(read.undecodable))
        assert read.exit_code == PartialError.kind
        assert centre.merge().failed == ()


def entries(form: str, device: str) -> tuple[bytes, bytes]:
    """Two deletions of `device.s`: the point at 1, those from 3 to 4."""
    spans = ((1, 1), (3, 4))
    if form == ".mods":
        first, second = (deletion(f"{device}.s", *span).encode() for span in spans)
    else:
        first, second = (b"\1" + struct.pack(">qq", *span) + string(f"{device}.s") for span in spans)
    return first, second


@pytest.mark.parametrize("form", [".mods", ".mods2"])
def test_a_torn_entry_of_mods_is_not_yet_a_deletion(centre: Centre, form: str) -> None:
    """Cut anywhere, as a crash of the site leaves it: whole entries count, and nothing is quarantined for the rest."""
    length = len(b"".join(entries(form, "root.sg.d000")))
    files, expected = {}, []
    for cut in range(length + 1):
        device = f"root.sg.d{cut:03}"
        first, second = entries(form, device)
        files[source(cut + 1)] = {
            **sealed({device: {"s": [(time, time) for time in range(5)]}}),
            form: (first + second)[:cut],
        }
        gone = {1} if cut >= len(first) else set()
        gone |= {3, 4} if cut == length else set()
        expected += [(device, "s", time, "INT64", str(time)) for time in range(5) if time not in gone]
    centre.sender().land(files)
    assert centre.load().troubles == ()
    assert centre.rows() == expected
