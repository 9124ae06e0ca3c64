"""Deletions of both forms; on real files they are proved in test_real_folders."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.unit.tsfiles.handmade import string
from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.tsfiles.companions.mods import Deletion, mask_deleted_points, parse_mods

LOWEST, HIGHEST = -(2**63), 2**63 - 1
TIMES = np.array([-1, 0, 10, 20, 30], np.int64)


def tree(path: str, start: int, end: int) -> bytes:
    return b"\x01" + struct.pack(">qq", start, end) + string(path)


def table(name: str, start: int, end: int, rule: bytes = b"\x00", columns: tuple[str, ...] = ()) -> bytes:
    head = b"\x00" + struct.pack(">qq", start, end) + string(name) + rule
    return head + bytes([2 * len(columns)]) + b"".join(string(column) for column in columns)


def affected(data: bytes, *devices: str, measurement: str = "temp") -> list[str]:
    (entry,) = parse_mods(data, "mods2")
    return [device for device in devices if entry.affects_series(device, measurement)]


def test_text_form_of_012_and_later() -> None:
    data = b"DELETION,root.a.d1.*,4872,10,20\nDELETION,root.a.`x,y`.s,99,-5,7\n"
    assert parse_mods(data, "mods") == (
        Deletion(10, 20, path="root.a.d1.*", before=4872),
        Deletion(-5, 7, path="root.a.`x,y`.s", before=99),
    )


def test_text_form_up_to_011_has_no_first_time() -> None:
    assert parse_mods(b"DELETION,root.a.d1.s1,111,300\n", "mods") == (
        Deletion(LOWEST, 300, path="root.a.d1.s1", before=111),
    )


def test_the_interval_includes_both_ends() -> None:
    entries = parse_mods(tree("root.a.d1.s", 0, 20), "mods2")
    assert mask_deleted_points(entries.of_series("root.a.d1", "s"), TIMES).tolist() == [False, True, True, True, False]
    everything = parse_mods(tree("root.a.**", LOWEST, HIGHEST), "mods2")
    assert mask_deleted_points(everything.of_series("root.a.d1", "s"), TIMES).all()
    assert not mask_deleted_points(everything.of_series("root.b.d1", "s"), TIMES).any()


def test_the_text_form_spares_chunks_written_after_the_deletion() -> None:
    entries = parse_mods(b"DELETION,root.a.d1.s,1000,0,20\n", "mods")
    assert mask_deleted_points(entries.of_series("root.a.d1", "s"), TIMES, chunk_offset=999).any()
    assert not mask_deleted_points(entries.of_series("root.a.d1", "s"), TIMES, chunk_offset=1000).any()


def test_many_deletions_of_one_series_are_one_mask() -> None:
    entries = parse_mods(
        b"".join(tree("root.a.d1.s", *span) for span in [(30, 40), (-5, -1), (0, 10), (5, 10), (9, 3)]), "mods2"
    )
    assert mask_deleted_points(entries, TIMES).tolist() == [True, True, True, False, True]
    assert not mask_deleted_points((), TIMES).any()


def test_tree_patterns() -> None:
    devices = ("root.a.d1", "root.a.d2", "root.a.x.d1", "root.ab.d1")
    assert affected(tree("root.a.d1.temp", 0, 1), *devices) == ["root.a.d1"]
    assert affected(tree("root.a.*.temp", 0, 1), *devices) == ["root.a.d1", "root.a.d2"]
    assert affected(tree("root.a.**", 0, 1), *devices) == ["root.a.d1", "root.a.d2", "root.a.x.d1"]
    assert affected(tree("root.**.d1.*", 0, 1), *devices) == ["root.a.d1", "root.a.x.d1", "root.ab.d1"]


def test_table_entries_by_table_column_and_tags() -> None:
    devices = ("works.sensors.r0.l0", "works.sensors.r0.l1", "works.sensors.\\N.l0", "works.sensors.r1", "works.other.r0.l0")
    first_tag = b"\x02" + string("r0") + b"\x02"
    assert affected(table("sensors", 0, 1), *devices) == list(devices[:4])
    assert affected(table("sensors", 0, 1, first_tag), *devices) == list(devices[:2])
    assert affected(table("sensors", 0, 1, columns=("temp",)), *devices) == list(devices[:4])
    assert affected(table("sensors", 0, 1, columns=("press",)), *devices) == []
    null_tag = b"\x02" + string(None) + b"\x02"
    assert affected(table("sensors", 0, 1, null_tag), *devices) == ["works.sensors.\\N.l0"]
    null_at_the_end = b"\x02" + string(None) + b"\x04"
    assert affected(table("sensors", 0, 1, null_at_the_end), *devices) == ["works.sensors.r1"]
    present = b"\x05\x04"
    assert affected(table("sensors", 0, 1, present), *devices) == list(devices[:3])


def test_table_entries_by_whole_devices_and_several_rules() -> None:
    devices = ("works.sensors.r0.l0", "works.sensors.r0.l1", "works.sensors.r0")
    one = b"\x03" + b"".join(map(string, ("sensors", "r0", "l1")))
    short = b"\x03" + b"".join(map(string, ("sensors", "r0", None)))
    assert affected(table("sensors", 0, 1, b"\x01" + one), *devices) == ["works.sensors.r0.l1"]
    assert affected(table("sensors", 0, 1, b"\x01" + short), *devices) == ["works.sensors.r0"]
    assert affected(table("sensors", 0, 1, b"\x04\x04" + one + short), *devices) == list(devices[1:])
    both = b"\x03\x04" + b"\x02" + string("r0") + b"\x02" + b"\x02" + string("l0") + b"\x04"
    assert affected(table("sensors", 0, 1, both), *devices) == ["works.sensors.r0.l0"]


@pytest.mark.parametrize("form", ["mods", "mods2"])
def test_a_torn_last_entry_is_not_yet_a_deletion(form: str) -> None:
    whole = b"DELETION,root.a.d1.*,4872,10,20\n" if form == "mods" else tree("root.a.d1.*", 10, 20)
    for cut in range(len(whole)):
        assert len(parse_mods(whole + whole[:cut], form)) == 1, cut
    assert len(parse_mods(whole + whole, form)) == 2
    assert parse_mods(b"", form) == ()


def test_what_is_no_deletion_is_refused() -> None:
    with pytest.raises(CorruptionError, match=r"x\.mods line 2: not a deletion"):
        parse_mods(b"DELETION,root.a.s,1,2,3\nINSERTION,root.a.s,1,2,3\n", "mods", "x.mods")
    with pytest.raises(CorruptionError, match="without numbers"):
        parse_mods(b"DELETION,root.a.s,x,y\n", "mods", "x.mods")
    with pytest.raises(CorruptionError, match="no deletion is of type 9"):
        parse_mods(tree("root.a.s", 1, 2) + b"\x09", "mods2", "x.mods2")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (b"\x01" + struct.pack(">qq", 1, 2) + b"\x04\xff\xfe", "not UTF-8"),
        (b"\x01" + struct.pack(">qq", 1, 2) + b"\x01", "a name is missing"),
        (b"\x01" + struct.pack(">qq", 1, 2) + b"\x07abc", "-4 bytes announced"),
        (b"\x01" + struct.pack(">qq", 1, 2) + b"\xff" * 6, "no variable-length integer"),
        (table("sensors", 1, 2, b"\x03\x03"), "-2 items announced"),
    ],
)
def test_garbage_in_the_middle_is_not_a_torn_end(entry: bytes, words: str) -> None:
    """What comes behind it is deleted at the site: those points must not come back without a word."""
    with pytest.raises(CorruptionError, match=words):
        parse_mods(tree("root.a.s", 1, 2) + entry + tree("root.a.t", 1, 2), "mods2", "x.mods2")


def test_times_that_no_point_has_are_refused() -> None:
    with pytest.raises(CorruptionError, match="a time that no point has"):
        parse_mods(b"DELETION,root.a.s,1,2,9223372036854775808\n", "mods", "x.mods")


def test_many_deletions_are_applied_as_one_by_one() -> None:
    random = np.random.default_rng(7)
    times = np.unique(random.integers(-500, 500, 300))
    spans = [(low, low + more) for low, more in random.integers((-600, -3), (600, 9), (40, 2)).tolist()]
    entries = parse_mods(b"".join(tree("root.a.d1.s", *span) for span in [*spans, (HIGHEST, HIGHEST)]), "mods2")
    wanted = [any(low <= time <= high for low, high in spans) for time in times.tolist()]
    assert mask_deleted_points(entries.of_series("root.a.d1", "s"), times).tolist() == wanted


def test_a_rule_of_a_newer_iotdb_is_not_passed_over() -> None:
    with pytest.raises(UnsupportedError, match="unknown rule on tags"):
        parse_mods(table("sensors", 0, 1, b"\x09"), "mods2")
