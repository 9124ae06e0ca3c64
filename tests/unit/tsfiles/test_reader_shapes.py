"""Shapes of files that the real folders do not hold: several chunks, pages without values, columns that came later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.tsfiles.handmade import PLAIN, TIME, VALUE, Chunk, HandmadeFile
from tidemark.errors import CorruptionError
from tidemark.tsfiles.companions.mods import Deletion, Deletions
from tidemark.tsfiles.layout.structure import check_structure
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import describe_file
from tidemark.tsfiles.write.writer import TsFileWriter

DEVICE = "root.lab.d1"


def write(tmp_path: Path, *groups: list[Chunk]) -> Path:
    path = tmp_path / "1-1-0-0.tsfile"
    path.write_bytes(HandmadeFile(DEVICE, list(groups)).data())
    assert check_structure(path) == 3
    return path


def read(path: Path, name: str, **options: object) -> dict[int, int]:
    with TsFile(path) as tsfile:
        column = tsfile.read_column(DEVICE, name, **options)
    return dict(zip(column.times.tolist(), column.values.tolist(), strict=True))


def test_chunks_of_an_unsequence_file_overlap_and_the_later_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [Chunk("s", PLAIN, [([10, 20, 30], [1, 2, 3])])],
        [Chunk("s", PLAIN, [([5, 20], [50, 200])])],
        [Chunk("s", PLAIN, [([30, 40], [300, 400])])],
    )
    assert read(path, "s") == {5: 50, 10: 1, 20: 200, 30: 300, 40: 400}
    assert read(path, "s", start=20, end=40) == {20: 200, 30: 300}


def test_a_deletion_of_the_newer_chunk_uncovers_the_older(tmp_path: Path) -> None:
    """As in IoTDB: by offset the second chunk was written before the deletion, so both values at 20 are gone; a deletion
    between the two spares the second."""
    older, newer = Chunk("s", PLAIN, [([10, 20], [1, 2])]), Chunk("s", PLAIN, [([20, 30], [20, 30])])
    path = write(tmp_path, [older], [newer])
    between = Deletion(0, 100, path=f"{DEVICE}.s", before=newer.offset)
    after = Deletion(20, 20, path=f"{DEVICE}.s", before=newer.offset + 1)
    assert read(path, "s", deletions=Deletions([between])) == {20: 20, 30: 30}
    assert read(path, "s", deletions=Deletions([after])) == {10: 1, 30: 30}


def test_pages_outside_of_the_span_are_left_out(tmp_path: Path) -> None:
    pages = [([n * 10, n * 10 + 5], [n, -n]) for n in range(1, 6)]
    path = write(tmp_path, [Chunk("s", PLAIN, pages)])
    assert read(path, "s", start=25, end=41) == {25: -2, 30: 3, 35: -3, 40: 4}
    assert read(path, "s", start=56) == {}


def test_aligned_pages_with_nulls_and_without_values(tmp_path: Path) -> None:
    times = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14]]
    values = [[1, None, 3], None, [6, *[None] * 7, 14]]
    path = write(
        tmp_path,
        [
            Chunk("", TIME, [(rows, None) for rows in times]),
            Chunk("a", VALUE, list(zip(times, values, strict=True))),
            Chunk("b", VALUE, [(rows, list(rows)) for rows in times]),
        ],
    )
    assert read(path, "a") == {1: 1, 3: 3, 6: 6, 14: 14}
    assert read(path, "a", start=2, end=14) == {3: 3, 6: 6}
    assert read(path, "b", start=4, end=6) == {4: 4, 5: 5}
    (facts,) = describe_file(path).devices
    assert (facts.aligned, facts.start, facts.end, facts.points) == (True, 1, 14, 4 + 14)


def test_a_column_that_came_later_finds_its_times(tmp_path: Path) -> None:
    """The second group alone has `late`: its one chunk does not belong to the first chunk of times."""
    path = write(
        tmp_path,
        [Chunk("", TIME, [([1, 2], None)]), Chunk("a", VALUE, [([1, 2], [10, 20])])],
        [Chunk("", TIME, [([3, 4, 5], None)]), Chunk("late", VALUE, [([3, 4, 5], [30, None, 50])])],
        [Chunk("", TIME, [([6], None)]), Chunk("a", VALUE, [([6], [60])])],
    )
    assert read(path, "late") == {3: 30, 5: 50}
    assert read(path, "a") == {1: 10, 2: 20, 6: 60}


def test_value_columns_of_a_later_batch_lie_behind_all_times(tmp_path: Path) -> None:
    """A compaction of wide devices writes the columns in batches: one for one by order, not by place."""
    path = write(
        tmp_path,
        [Chunk("", TIME, [([1, 2], None)]), Chunk("a", VALUE, [([1, 2], [10, 20])]),
         Chunk("", TIME, [([3, 4], None)]), Chunk("a", VALUE, [([3, 4], [30, 40])]),
         Chunk("z", VALUE, [([1, 2], [1, None])]), Chunk("z", VALUE, [([3, 4], [None, 4])])],
    )  # fmt: skip
    assert read(path, "z") == {1: 1, 4: 4}


def test_times_that_do_not_fit_the_values_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [Chunk("", TIME, [([1, 2, 3], None)]), Chunk("a", VALUE, [([1, 2], [1, 2])])])
    with TsFile(path) as tsfile, pytest.raises(CorruptionError, match="2 rows where there are 3 times"):
        tsfile.read_column(DEVICE, "a")


def test_pages_without_the_points_that_the_index_promises_are_refused(tmp_path: Path) -> None:
    """A page whose length became 0 reads as one without values: never silently so."""
    path = write(
        tmp_path, [Chunk("", TIME, [([1, 2], None), ([3], None)]), Chunk("a", VALUE, [([1, 2], [1, 2]), ([3], None)])]
    )
    data = path.read_bytes()
    count = data.rindex(b"\x02" + (1).to_bytes(8, "big") + (2).to_bytes(8, "big"))  # of the series, in the index
    path.write_bytes(data[:count] + b"\x03" + data[count + 1 :])
    with TsFile(path) as tsfile, pytest.raises(CorruptionError, match="pages of 2 points where the index says 3"):
        tsfile.read_column(DEVICE, "a")


def test_a_bitmap_that_lost_a_value_is_refused(tmp_path: Path) -> None:
    """The value stays in the page, in an encoding that would not miss it; the statistics do."""
    rows = list(range(1, 5))
    values = Chunk("a", VALUE, [(rows, [1, 2, 3, 4])])
    path = write(tmp_path, [Chunk("", TIME, [(rows, None)]), values])
    data = path.read_bytes()
    at = data.index(bytes([0, 0, 0, 4, 0xF0]), values.offset) + 4
    path.write_bytes(data[:at] + b"\xe0" + data[at + 1 :])
    with TsFile(path) as tsfile, pytest.raises(CorruptionError, match="3 values where the statistics say 4"):
        tsfile.read_column(DEVICE, "a")


def test_a_time_that_follows_itself_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [Chunk("s", PLAIN, [([10, 20, 20, 40], [1, 2, 3, 4])])])
    with TsFile(path) as tsfile, pytest.raises(CorruptionError, match="do not ascend"):
        tsfile.read_column(DEVICE, "s")


@pytest.mark.parametrize(
    "pages",
    [
        [([30, 40, 50, 10, 20, 30, 40, 60], [1, 2, 3, 4, 5, 6, 7, 8])],
        [([30, 40, 50, 10], [1, 2, 3, 4]), ([20, 30, 40, 60], [5, 6, 7, 8])],
        [([30, 40, 50], [1, 2, 3]), ([10, 20, 30, 40, 60], [4, 5, 6, 7, 8])],
    ],
    ids=["in a page", "in a page, then the next", "with a page"],
)
def test_of_times_that_begin_anew_the_first_point_counts(tmp_path: Path, pages: list[tuple[list[int], list[int]]]) -> None:
    """As IoTDB 0.12 writes them: a late file's points, then those of the file that it is merged into."""
    path = write(tmp_path, [Chunk("s", PLAIN, pages)])
    with TsFile(path) as tsfile:
        column = tsfile.read_column(DEVICE, "s")
        assert list(zip(column.times.tolist(), column.values.tolist(), strict=True)) == [
            (10, 4), (20, 5), (30, 1), (40, 2), (50, 3), (60, 8)
        ]  # fmt: skip
        assert tsfile.read_column(DEVICE, "s", 20, 50).values.tolist() == [5, 1, 2]


def test_a_series_without_points_is_empty(tmp_path: Path) -> None:
    path = write(tmp_path, [Chunk("", TIME, [([1, 2], None)]), Chunk("a", VALUE, [([1, 2], None)])])
    assert read(path, "a") == {}
    assert describe_file(path).devices[0].points == 0


@pytest.mark.parametrize(
    "devices",
    [
        {("root.lab", "d1"): ["s", "`s`"]},
        {("root.lab", "`d1`"): ["s"], ("root.lab", "d1"): ["s"]},
    ],
    ids=["measurement", "device"],
)
@pytest.mark.parametrize("aligned", [False, True])
def test_two_series_of_one_name_are_no_file_to_read(
    tmp_path: Path, devices: dict[tuple[str, ...], list[str]], aligned: bool
) -> None:
    """Back-quotes that are not needed name the same series: the points of one of them would be lost without a word."""
    path = tmp_path / "1-1-0-0.tsfile"
    column = Column(DataType.INT64, np.array([1, 2], np.int64), np.array([1, 2], np.int64))
    with TsFileWriter(path) as writer:
        for segments, names in devices.items():
            writer.write_device(segments, dict.fromkeys(names, column), aligned)
    with pytest.raises(CorruptionError, match=r"root\.lab\.d1 has two series that are called"):
        describe_file(path)
    with TsFile(path) as file, pytest.raises(CorruptionError, match=r"root\.lab\.d1 has two series that are called"):
        file.list_measurements(DEVICE)
