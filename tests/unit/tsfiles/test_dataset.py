"""Which files a path stands for, and folders that change all at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.expected import SITES
from tidemark.errors import CorruptionError, NotFoundError, UsageError
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.spark.dataset import DATASET_MANIFEST, find_files, read_dataset_manifest
from tidemark.tsfiles.spark.sink import StagedFile, check_target, commit_staged, discard_staged, staging_folder
from tidemark.tsfiles.write.writer import TsFileWriter


def write(place: Path, value: int = 1) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    with TsFileWriter(place) as writer:
        writer.write_device(("root.a", "d"), {"s": Column(DataType.INT32, np.array([1]), np.array([value], np.int32))}, True)
    return place


def test_a_real_folder_in_the_order_in_which_files_win() -> None:
    site = SITES["2.0.1-beta"]
    files = find_files([str(site.root / "data")])
    assert len(files) == len(list(site.root.rglob("*.tsfile")))
    unsequence = ["/unsequence/" in file.path for file in files]
    assert unsequence == sorted(unsequence)
    versions = [file.rank[1] for file in files if "/unsequence/" not in file.path]
    assert versions == sorted(versions)
    assert sum(bool(file.mods) for file in files) == len(list(site.root.rglob("*.mods2")))
    assert {file.database for file in files} >= {"root.plant1", "works"}


def test_files_of_any_name_rank_as_they_are_given(tmp_path: Path) -> None:
    one, two = write(tmp_path / "z.tsfile"), write(tmp_path / "more" / "a.tsfile")
    assert [file.path for file in find_files([str(one), f"file://{two}"])] == [str(one), str(two)]
    assert [file.path for file in find_files([str(two), str(one)])] == [str(two), str(one)]
    assert [file.path for file in find_files([str(tmp_path / "*.tsfile")])] == [str(one)]
    assert {file.path for file in find_files([str(tmp_path)])} == {str(one), str(two)}


def test_what_iotdb_still_writes_is_left_out(tmp_path: Path) -> None:
    sealed = write(tmp_path / "sequence" / "root.a" / "1" / "0" / "1-1-0-0.tsfile")
    growing = sealed.with_name("2-2-0-0.tsfile")
    growing.write_bytes(sealed.read_bytes()[:-20])
    assert [file.path for file in find_files([str(tmp_path)])] == [str(sealed)]


def test_links_for_a_snapshot_or_a_pipe_are_no_files_of_the_server(tmp_path: Path) -> None:
    sealed = write(tmp_path / "sequence" / "root.a" / "1" / "0" / "1-1-0-0.tsfile")
    link = tmp_path / "snapshot" / "root.a-1" / "3_7" / sealed.relative_to(tmp_path)
    link.parent.mkdir(parents=True)
    link.hardlink_to(sealed)
    piped = tmp_path / "pipe" / "tsfile" / "sequence-root.a-1-0-1-1-0-0.tsfile"
    piped.parent.mkdir(parents=True)
    piped.hardlink_to(sealed)
    assert [file.path for file in find_files([str(tmp_path)])] == [str(sealed)]
    assert [file.path for file in find_files([str(link.parent)])] == [str(link)], "asked for by name"


def test_a_path_that_names_nothing_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(NotFoundError, match="no "):
            find_files([str(path)])
    with pytest.raises(UsageError, match="only local and shared paths"):
        find_files(["hdfs://name/folder"])


def stage(folder: Path, job: str, value: int) -> StagedFile:
    place = write(staging_folder(folder, job) / "0.tsfile", value)
    return StagedFile(place.name, place.stat().st_size, {"points": 1})


def test_a_commit_adds_or_replaces_all_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    check_target(folder)
    commit_staged(folder, "one", [stage(folder, "one", 1)], overwrite=False, grace=0)
    commit_staged(folder, "two", [stage(folder, "two", 2)], overwrite=False, grace=0)
    names = read_dataset_manifest(folder).names
    assert [Path(file.path).name for file in find_files([str(folder)])] == names
    assert len(names) == 2
    after = commit_staged(folder, "three", [stage(folder, "three", 3)], overwrite=True, grace=900)
    assert len(after.names) == 1 and set(after.retired) == set(names)
    assert all((folder / name).exists() for name in names)  # readers that have begun may end
    assert [file.path for file in find_files([str(folder)])] == [str(folder / after.names[0])]
    last = commit_staged(folder, "four", [], overwrite=False, grace=0)
    assert last.names == after.names and not any((folder / name).exists() for name in names)


def test_before_the_paper_is_replaced_nothing_has_changed(tmp_path: Path) -> None:
    """A driver that died in the middle: its files are nobody's, and the next commit sweeps them."""
    commit_staged(tmp_path, "one", [stage(tmp_path, "one", 1)], overwrite=False, grace=0)
    before = [file.path for file in find_files([str(tmp_path)])]
    stage(tmp_path, "dead", 5)
    (staging_folder(tmp_path, "dead") / "0.tsfile").rename(tmp_path / "9-9-0-0.tsfile")
    (tmp_path / f"{DATASET_MANIFEST}.tmp").write_text("{")
    assert [file.path for file in find_files([str(tmp_path)])] == before
    commit_staged(tmp_path, "two", [stage(tmp_path, "two", 2)], overwrite=False, grace=0)
    assert not (tmp_path / "9-9-0-0.tsfile").exists()
    discard_staged(tmp_path, "dead")
    assert not staging_folder(tmp_path, "dead").exists()


def test_a_staged_file_that_is_not_whole_stops_the_commit(tmp_path: Path) -> None:
    commit_staged(tmp_path, "one", [stage(tmp_path, "one", 1)], overwrite=False, grace=0)
    before = (tmp_path / DATASET_MANIFEST).read_bytes()
    file = stage(tmp_path, "two", 2)
    with (staging_folder(tmp_path, "two") / file.name).open("ab") as place:
        place.truncate(20)
    with pytest.raises(CorruptionError, match="is not the"):
        commit_staged(tmp_path, "two", [file], overwrite=True, grace=0)
    assert (tmp_path / DATASET_MANIFEST).read_bytes() == before


@pytest.mark.parametrize(
    "content", ["", "[]", '{"format": 9}', '{"format": 1, "files": {"../x": {}}, "retired": {}, "version": 1, "created": 1}']
)
def test_a_paper_that_says_nothing_sure_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / DATASET_MANIFEST).write_text(content)
    with pytest.raises(CorruptionError, match=DATASET_MANIFEST):
        read_dataset_manifest(tmp_path)
    (tmp_path / DATASET_MANIFEST).write_text(
        json.dumps({"format": 1, "files": {}, "retired": {}, "version": 3, "created": 4})
    )
    assert read_dataset_manifest(tmp_path).version == 3
