"""Names and places of TsFiles of every IoTDB (research/iotdb.md §1.10)."""

from __future__ import annotations

import pytest

from tidemark.tsfiles.names import TsFileName, parse_name, parse_source_path, rank_of_source

SEQUENCE = ("data/sequence", "data/unsequence")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("1575813520203-101-0.tsfile", (1575813520203, 101, 0, 0)),
        ("1575813520203-101-3.tsfile", (1575813520203, 101, 3, 0)),
        ("1647485319012-7-2-1.tsfile", (1647485319012, 7, 2, 1)),
    ],
)
def test_a_name_tells_creation_version_and_compactions(name: str, parts: tuple[int, ...]) -> None:
    assert parse_name(name) == TsFileName(*parts)


@pytest.mark.parametrize(
    "name",
    ["1-2.tsfile", "1-2-3-4-5.tsfile", "a-1-0-0.tsfile", "1-1-0-0.tsfile.resource", "1-1-0-0.TSFILE", "-1-1-0-0.tsfile",
     "1-1-0-0.tsfile\n", "1-1-0-0.inner", "", "١-1-0-0.tsfile"],
)  # fmt: skip
def test_other_names_are_no_tsfiles(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize(
    ("path", "database", "region", "partition"),
    [
        ("data/sequence/root.a/1-1-0.tsfile", "root.a", "", 0),  # 0.9
        ("data/sequence/root.a/2818/1-1-0.tsfile", "root.a", "", 2818),  # 0.10, 0.11
        ("data/sequence/root.a/3/2818/1-1-0-0.tsfile", "root.a", "3", 2818),  # 0.12 … 2.x
        ("data/sequence/root.a/3/-2/1-1-0-0.tsfile", "root.a", "3", -2),  # before 1970
        ("data/sequence/works/3/0/1-1-0-0.tsfile", "works", "3", 0),  # a table-model database
        ("data/sequence/sequence/3/0/1-1-0-0.tsfile", "sequence", "3", 0),  # a database of an unlucky name
    ],
)
def test_the_folders_tell_database_region_and_partition(path: str, database: str, region: str, partition: int) -> None:
    source = parse_source_path(path, SEQUENCE)
    assert source is not None
    assert (source.database, source.region, source.partition, source.unsequence) == (database, region, partition, False)
    assert source.path == path


@pytest.mark.parametrize(
    "folders",
    [("data/unsequence",), ("data",), ("",), (".",), ("./data/",), ("data/unsequence/", "data/sequence")],
)
def test_a_data_folder_names_sequence_itself_or_a_folder_above(folders: tuple[str, ...]) -> None:
    source = parse_source_path("data/unsequence/root.a/0/7/1-1-0-0.tsfile", folders)
    assert source is not None
    assert source.unsequence
    assert (source.database, source.partition) == ("root.a", 7)


def test_data_folders_may_lie_on_several_disks() -> None:
    folders = ("/disk1/iotdb", "/disk2/iotdb/sequence")
    first = parse_source_path("/disk1/iotdb/unsequence/root.a/0/7/1-1-0-0.tsfile", folders)
    second = parse_source_path("/disk2/iotdb/sequence/root.b/0/7/1-1-0-0.tsfile", folders)
    assert first is not None
    assert second is not None
    assert (first.unsequence, first.database) == (True, "root.a")
    assert (second.unsequence, second.database) == (False, "root.b")


@pytest.mark.parametrize(
    "path",
    [
        "elsewhere/root.a/0/7/1-1-0-0.tsfile",
        "data/sequence2/root.a/0/7/1-1-0-0.tsfile",
        "data/sequence/1-1-0-0.tsfile",
        "data/sequence/root.a/0/7/upgrade/1-1-0-0.tsfile",
        "data/sequence/root.a/upgrade/1-1-0-0.tsfile",
        "data/sequence/root.a/0/x/1-1-0-0.tsfile",
        "data/sequence/root.a/0/7/notes.txt",
        "data/sequence/0/2818/1-1-0-0.tsfile",  # what the folder of a database holds
        "data/sequence/2818/1-1-0-0.tsfile",
    ],
)
def test_what_lies_elsewhere_is_no_source(path: str) -> None:
    assert parse_source_path(path, SEQUENCE) is None


def test_unsequence_then_version_then_compactions_win() -> None:
    paths = [  # lowest rank first
        "data/sequence/root.a/0/7/900-1-0-0.tsfile",
        "data/sequence/root.a/0/7/800-2-0-0.tsfile",
        "data/sequence/root.a/0/7/800-2-0-3.tsfile",
        "data/sequence/root.a/0/7/800-2-1-0.tsfile",
        "data/sequence/root.a/0/7/801-2-1-0.tsfile",
        "data/sequence/root.a/0/7/700-30-0-0.tsfile",
        "data/unsequence/root.a/0/7/100-1-0-0.tsfile",
    ]
    sources = [parse_source_path(path, SEQUENCE) for path in paths]
    assert [s.path for s in sorted((s for s in reversed(sources) if s), key=rank_of_source)] == paths
