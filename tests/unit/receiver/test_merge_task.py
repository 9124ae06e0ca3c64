"""One merge task: what it refuses, what it checks, what it makes of devices that differ from file to file."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tidemark.errors import CorruptionError, RetryableError
from tidemark.receiver import windows as merge_pieces
from tidemark.receiver.merge import device as merge_device
from tidemark.receiver.merge.task import MergeTask, TaskSource, run_merge_task
from tidemark.tsfiles.decode import pages
from tidemark.tsfiles.devices import file_device
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES, Column
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.write import pages as writer_pages
from tidemark.tsfiles.write.writer import TsFileWriter, device_order

Segments = tuple[str | None, ...]
D1: Segments = ("root.db.a", "d1")


def column(points: Mapping[int, object], data_type: DataType = DataType.INT64) -> Column:
    values = np.empty(len(points), VALUE_DTYPES[data_type])
    values[:] = [points[time] for time in sorted(points)]
    return Column(data_type, np.array(sorted(points), np.int64), values)


class Case:
    """Files in a folder, in rank order, and the task that merges all their devices."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources: list[TaskSource] = []
        self.devices: set[str] = set()

    def add(
        self,
        devices: Mapping[Segments, Mapping[str, Column]],
        aligned: bool = False,
        tables: Mapping[str, Sequence[str]] | None = None,
        mods: str = "",
    ) -> Path:
        location = f"{len(self.sources)}.tsfile"
        with TsFileWriter(self.root / location, tables) as writer:
            for segments in sorted(devices, key=device_order):
                writer.write_device(segments, devices[segments], aligned)
        if mods:
            (self.root / f"{location}.mods").write_text(mods)
        self.sources.append(TaskSource(location, f"{location}.mods" if mods else ""))
        self.devices |= {file_device(segments, "db") for segments in devices}
        return self.root / location

    @property
    def task(self) -> MergeTask:
        devices = tuple(sorted(self.devices))
        return MergeTask(0, 0, str(self.root), "staging/b", "db", 1000, tuple(self.sources), devices)

    def only_output(self) -> TsFile:
        (staged,) = run_merge_task(self.task).staged
        return TsFile(self.root / staged.location, "db")


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_one_series_of_two_types_is_refused_by_name_and_nothing_is_written(case: Case) -> None:
    case.add({D1: {"s": column({1: 1}), "ok": column({1: 1})}})
    case.add({D1: {"s": column({2: b"one"}, DataType.TEXT), "ok": column({2: 1})}})
    outcome = run_merge_task(case.task)
    assert outcome.refused == ("root.db.a.d1.s", "INT64 in 0.tsfile, TEXT in 1.tsfile")
    assert outcome.staged == () and not (case.root / "staging").exists()


def test_one_column_of_a_table_has_one_type_over_all_its_devices(case: Case) -> None:
    case.add({("t", "x"): {"s": column({1: 1})}}, tables={"t": ["tag"]})
    case.add({("t", "y"): {"s": column({1: 1.5}, DataType.DOUBLE)}}, tables={"t": ["tag"]})
    assert run_merge_task(case.task).refused == ("db.t.y.s", "INT64 in 0.tsfile, DOUBLE in 1.tsfile")


def test_two_devices_of_the_tree_may_differ(case: Case) -> None:
    case.add({D1: {"s": column({1: 1})}})
    case.add({("root.db.a", "d2"): {"s": column({1: 1.5}, DataType.DOUBLE)}})
    assert case.only_output().list_devices() == ["root.db.a.d1", "root.db.a.d2"]


def test_a_table_that_gained_a_tag_keeps_the_longer_list(case: Case) -> None:
    case.add({("t", "x"): {"s": column({1: 1})}}, tables={"t": ["tag"]})
    case.add({("t", "x", "y"): {"s": column({1: 2})}, ("t", "x"): {"s": column({1: 3})}}, tables={"t": ["tag", "new"]})
    with case.only_output() as file:
        assert dict(file.tag_columns) == {"t": ("tag", "new")}
        assert file.list_devices() == ["db.t.x", "db.t.x.y"]
        assert file.read_column("db.t.x", "s").values.tolist() == [3]


def test_tables_whose_tags_differ_are_refused(case: Case) -> None:
    case.add({("t", "x"): {"s": column({1: 1})}}, tables={"t": ["tag"]})
    case.add({("t", "x"): {"s": column({1: 2})}}, tables={"t": ["other"]})
    subject, reason = run_merge_task(case.task).refused or ("", "")
    assert subject == "t" and "tag" in reason and "other" in reason


@pytest.mark.parametrize("newest", [True, False])
def test_a_device_is_aligned_as_its_newest_file_has_it(case: Case, newest: bool) -> None:
    case.add({D1: {"s": column({1: 1, 2: 2})}}, aligned=not newest)
    case.add({D1: {"t": column({2: 3})}}, aligned=newest)
    with case.only_output() as file:
        assert file.is_aligned("root.db.a.d1") is newest
        assert file.read_column("root.db.a.d1", "s").times.tolist() == [1, 2]
        assert file.read_column("root.db.a.d1", "t").times.tolist() == [2]


def test_deletions_touch_their_own_file_only(case: Case) -> None:
    case.add({D1: {"s": column({1: 10, 2: 20, 3: 30})}}, mods=f"DELETION,root.db.a.d1.s,{1 << 40},1,2\n")
    case.add({D1: {"s": column({2: 21})}})
    (staged,) = run_merge_task(case.task).staged
    assert (staged.counts.points_in, staged.counts.deleted, staged.counts.overwritten) == (4, 2, 0)
    with TsFile(case.root / staged.location, "db") as file:
        found = file.read_column("root.db.a.d1", "s")
        assert dict(zip(found.times.tolist(), found.values.tolist(), strict=True)) == {2: 21, 3: 30}


def test_nothing_is_left_where_everything_was_deleted(case: Case) -> None:
    for _ in range(2):
        case.add({D1: {"s": column({1: 10})}}, mods=f"DELETION,root.db.a.d1.s,{1 << 40},1,1\n")
    outcome = run_merge_task(case.task)
    assert outcome.staged == () and outcome.unplaced.deleted == outcome.unplaced.points_in == 2


@pytest.mark.parametrize("aligned", [True, False])
def test_a_point_that_no_window_gave_is_no_overwritten_point(
    case: Case, monkeypatch: pytest.MonkeyPatch, aligned: bool
) -> None:
    for _ in range(2):
        case.add({D1: {"s": column({n: n for n in range(100)})}}, aligned)
    monkeypatch.setattr(merge_pieces, "windows_of", lambda *_: [(0, 49), (51, 99)])
    with pytest.raises(CorruptionError, match=r"0\.tsfile: root\.db\.a\.d1\.s: 99 points were read where 100 are told"):
        run_merge_task(case.task)


def test_a_device_of_many_columns_is_not_decoded_again_and_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of so many points would hold a few rows of it, and each of them decodes the pages that it touches."""
    monkeypatch.setattr(merge_pieces, "WINDOW_POINTS", 400)
    monkeypatch.setattr(merge_pieces, "WINDOW_ROWS", 100)
    monkeypatch.setattr(writer_pages, "PAGE_ROWS", 100)
    decoded: list[int] = []
    real = pages.decode_values
    monkeypatch.setattr(pages, "decode_values", lambda *given: (decoded.append(1), real(*given))[1])
    columns = {f"s{number:02}": column({n: n for n in range(200)}) for number in range(40)}
    for _ in range(2):
        case.add({D1: columns}, aligned=True)
    run_merge_task(case.task)
    in_files = 2 * 2 * 41  # two files of two pages of 40 columns and the times
    assert in_files <= len(decoded) <= 3 * in_files


def test_a_source_that_cannot_be_read_is_named_and_leaves_no_output(case: Case) -> None:
    case.add({D1: {"s": column({n: n for n in range(100)})}})
    broken = case.add({D1: {"s": column({n: n for n in range(50, 150)})}})
    data = bytearray(broken.read_bytes())
    data[60:90] = b"\xff" * 30
    broken.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"1\.tsfile"):
        run_merge_task(case.task)
    assert [p for p in case.root.glob("staging/**/*") if p.is_file()] == []


def test_a_source_that_is_not_what_was_loaded_is_named_and_leaves_no_output(case: Case) -> None:
    """A chunk that is copied is not decoded, and a page has no checksum: only the digest tells."""
    place = case.add({D1: {"s": column({1: 1})}})
    case.add({D1: {"s": column({2: 2})}})
    sound = dataclasses.replace(case.task, prove=(("0.tsfile", hashlib.sha256(place.read_bytes()).hexdigest(), 1 << 20),))
    assert run_merge_task(sound).staged
    with pytest.raises(CorruptionError, match=r"0\.tsfile is not what was loaded"):
        run_merge_task(dataclasses.replace(case.task, staging="other", prove=(("0.tsfile", "0" * 64, 1 << 20),)))
    assert [p for p in case.root.glob("other/**/*") if p.is_file()] == []


def test_a_source_that_is_gone_is_tried_again_later(case: Case) -> None:
    case.add({D1: {"s": column({1: 1})}}).unlink()
    with pytest.raises(RetryableError, match=r"is gone: .*0\.tsfile"):
        run_merge_task(case.task)


def test_an_output_that_does_not_hold_what_was_written_is_not_handed_on(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.add({D1: {"s": column({1: 1, 2: 2})}})
    case.add({D1: {"s": column({2: 3})}})
    real = merge_device.cut_by_partition

    def lose_one(column: Column, interval: int) -> dict[int, Column]:
        return real(Column(column.type, column.times[1:], column.values[1:]), interval)

    monkeypatch.setattr(merge_device, "cut_by_partition", lose_one)
    with pytest.raises(CorruptionError, match="do not account for"):
        run_merge_task(case.task)


def test_the_same_task_makes_the_same_bytes_under_a_name_of_each_try(case: Case) -> None:
    """A worker that was given up for lost may still write while another does its task again."""
    case.add({D1: {"s": column({1: 1, 1500: 2})}})
    case.add({D1: {"s": column({1500: 3})}}, aligned=True)
    first, second = run_merge_task(case.task), run_merge_task(case.task)
    assert [replace(s, location="") for s in first.staged] == [replace(s, location="") for s in second.staged]
    assert len({s.location for s in (*first.staged, *second.staged)}) == 4
    for staged in (*first.staged, *second.staged):
        assert hashlib.sha256((case.root / staged.location).read_bytes()).hexdigest() == staged.sha256
    assert [s.partition for s in first.staged] == [0, 1]


def test_a_series_that_its_encoding_has_changed_is_refused_by_name(tmp_path: Path) -> None:
    """SPRINTZ loses values: nothing is merged from such a file, it stays as it came."""
    folder = Path(__file__).parents[2] / "data" / "encodings" / "2.0.1-beta"
    for place in sorted(folder.rglob("*.tsfile")):
        with TsFile(place) as file:
            if "root.wild.of_double" in file.list_devices():
                break
    shutil.copy(place, tmp_path / "a.tsfile")
    sources = (TaskSource("a.tsfile", ""),)
    task = MergeTask(0, 0, str(tmp_path), "staging", "root.wild", 604_800_000, sources, ("root.wild.of_double",))
    subject, reason = run_merge_task(task).refused or ("", "")
    assert subject == "root.wild.of_double.SPRINTZ"
    assert "other values than its statistics say" in reason
    assert not list((tmp_path / "staging").rglob("*.tsfile*"))
