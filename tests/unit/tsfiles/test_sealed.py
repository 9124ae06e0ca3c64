"""What of a listing is sealed, and what a person is told of the rest (DESIGN §1)."""

from __future__ import annotations

import pytest

from tidemark.stores.protocol import Entry
from tidemark.tsfiles.sealed import (
    COMPACTING,
    COMPANION_BYTES,
    Classified,
    candidates_for_lone_mods,
    classify_listing,
    is_hidden,
    shows_compaction,
    with_named_mods,
)

FOLDER = "data/sequence/root.a/0/7"
FOLDERS = ("data/sequence", "data/unsequence")
FILE = f"{FOLDER}/100-1-0-0.tsfile"


def listing(*paths: str, **sizes: int) -> list[Entry]:
    return [Entry(path, sizes.get("size", 1000), 1_700_000_000, number) for number, path in enumerate(paths, 1)]


def reasons(result: Classified) -> dict[str, str]:
    return dict(result.skipped)


def test_a_file_with_its_resource_is_sealed() -> None:
    result = classify_listing(listing(FILE, FILE + ".resource"), FOLDERS)
    assert [(f.entry.path, f.resource.path, f.mods) for f in result.sealed] == [(FILE, FILE + ".resource", None)]
    assert result.skipped == []
    name = result.sealed[0].name
    assert (name.database, name.region, name.partition, name.unsequence) == ("root.a", "0", 7, False)


@pytest.mark.parametrize("form", [".mods", ".mods2"])
def test_deletions_travel_with_their_file(form: str) -> None:
    sealed = classify_listing(listing(FILE, FILE + ".resource", FILE + form), FOLDERS).sealed
    assert [f.mods.path for f in sealed if f.mods] == [FILE + form]


def test_where_an_upgrade_left_both_forms_the_newer_counts() -> None:
    sealed = classify_listing(listing(FILE, FILE + ".resource", FILE + ".mods", FILE + ".mods2"), FOLDERS).sealed
    assert [f.mods.path for f in sealed if f.mods] == [FILE + ".mods2"]


def test_a_file_without_resource_is_still_open() -> None:
    result = classify_listing(listing(FILE), FOLDERS)
    assert result.sealed == []
    assert reasons(result) == {FILE: "still open (no .resource yet)"}


@pytest.mark.parametrize(
    ("companion", "reason"),
    [
        (".resource.temp", "its .resource is being written (.resource.temp)"),
        (".merge", "being merged (.merge)"),
        (".settle", "being settled (.settle)"),
        (".mods2.settle", "its deletions are being rewritten (.mods2.settle)"),
        (".broken", "marked broken by IoTDB (.broken)"),
    ],
)
def test_a_file_in_work_waits(companion: str, reason: str) -> None:
    result = classify_listing(listing(FILE, FILE + ".resource", FILE + companion), FOLDERS)
    assert result.sealed == []
    assert reasons(result) == {FILE: reason}


@pytest.mark.parametrize("companion", [".compaction.mods", ".compaction.mods2"])
def test_deletions_during_a_compaction_stand_in_its_own_mods_too(companion: str) -> None:
    """A living 2.0.1-beta left such a file beside a compaction's only output, which was passed over."""
    result = classify_listing(listing(FILE, FILE + ".resource", FILE + companion), FOLDERS)
    assert [file.entry.path for file in result.sealed] == [FILE] and result.skipped == []


@pytest.mark.parametrize(("size", "reason"), [(0, "zero length"), (17, "too short to be a TsFile (17 bytes)")])
def test_a_file_too_short_is_told_so(size: int, reason: str) -> None:
    entries = [Entry(FILE, size, 1, 1), Entry(FILE + ".resource", 80, 1, 2)]
    assert reasons(classify_listing(entries, FOLDERS)) == {FILE: reason}


def test_an_empty_resource_does_not_seal() -> None:
    entries = [Entry(FILE, 1000, 1, 1), Entry(FILE + ".resource", 0, 1, 2)]
    assert reasons(classify_listing(entries, FOLDERS)) == {FILE: "its .resource is empty"}


def test_names_and_places_that_are_not_iotdbs_are_named() -> None:
    odd, misplaced = f"{FOLDER}/copy of 1.tsfile", "data/sequence/root.a/0/7/upgrade/100-1-0-0.tsfile"
    result = classify_listing(listing(odd, odd + ".resource", misplaced, misplaced + ".resource"), FOLDERS)
    assert result.sealed == []
    assert reasons(result)[odd].startswith("its name is not a TsFile's")
    assert reasons(result)[misplaced].startswith("not where IoTDB keeps TsFiles")


def test_leftovers_are_named_but_do_not_hold_up_their_file() -> None:
    unknown = FILE + ".backup"
    orphan = f"{FOLDER}/99-1-0-0.tsfile.resource"
    output = f"{FOLDER}/100-1-1-0.inner"
    result = classify_listing(listing(FILE, FILE + ".resource", unknown, orphan, output), FOLDERS)
    assert [f.entry.path for f in result.sealed] == [FILE]
    assert reasons(result) == {
        unknown: "not known beside a TsFile",
        orphan: "its TsFile is not there",
        output: "unfinished output of a compaction",
    }


def test_what_has_nothing_to_do_with_tsfiles_is_passed_over() -> None:
    paths = ["data/sequence/.tidemark/x/100-1-0-0.tsfile", ".tidemark/100-1-0-0.tsfile", f"{FOLDER}/compaction.log",
             "system/schema/mlog.bin", f"{FOLDER}/100-1-0-0.tsfile.part"]  # fmt: skip
    assert classify_listing(listing(*paths), FOLDERS) == Classified([], [])


@pytest.mark.parametrize(
    "name",
    [
        "100-1-1-0.inner.inner-compaction.log",
        "100-1-0-1.cross.cross-compaction.log",
        "100-1-0-0.tsfile.insertion-compaction.log",
        "100-1-0-0.tsfile.settle-compaction.log",
        "100-1-1-0.tsfile.compaction.log",
    ],
)
def test_a_log_of_a_compaction_is_told(name: str) -> None:
    log = f"{FOLDER}/{name}"
    beside = [FILE, FILE + ".resource"]
    assert shows_compaction(log)
    result = classify_listing(listing(log, *beside), FOLDERS)
    assert ([f.entry.path for f in result.sealed], reasons(result)) == ([FILE], {log: COMPACTING})
    assert reasons(classify_listing(listing(log), FOLDERS)) == {log: COMPACTING}


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("100-1-1-0.inner", True),
        ("100-1-0-1.cross", True),
        ("100-1-1-0.target", True),
        ("100-1-0-0.tsfile.merge", True),
        ("100-1-1-0.settle", True),
        ("100-1-0-0.tsfile.mods2.settle", False),  # its deletions alone
        ("100-1-0-0.tsfile.resource.temp", False),
        ("100-1-0-0.tsfile.broken", False),
        ("100-1-0-0.tsfile.vm", False),  # 0.11: while the file is written
        ("100-1-1-0.tsfile", False),
        ("notes.merge", False),
    ],
)
def test_what_stands_only_while_files_are_compacted(name: str, shows: bool) -> None:
    assert shows_compaction(f"{FOLDER}/{name}") is shows


def test_the_order_of_the_listing_and_names_between_do_not_matter() -> None:
    between = f"{FOLDER}/100-1-0-0.tsfile-old"  # sorts between the file and its companions
    paths = [FILE + ".resource", between, FILE + ".mods", FILE]
    sealed = classify_listing(listing(*paths), FOLDERS).sealed
    assert [(f.entry.path, f.mods is not None) for f in sealed] == [(FILE, True)]


@pytest.mark.parametrize("above", [".iotdb", "/srv/edge/.iotdb", "lost+found"])
def test_what_is_hidden_is_hidden_below_the_data_folder(above: str) -> None:
    """A server may live in a hidden folder; what is hidden among its data is not its data."""
    data = f"{above}/data/sequence"
    mine, other = f"{data}/root.a/0/7/100-1-0-0.tsfile", f"{data}/.snapshot/root.a/0/7/100-1-0-0.tsfile"
    lost = f"{data}/lost+found/0/7/100-1-0-0.tsfile"
    result = classify_listing(
        listing(mine, mine + ".resource", other, other + ".resource", lost, lost + ".resource"), [data]
    )
    assert [f.entry.path for f in result.sealed] == [mine]
    assert result.skipped == []
    assert classify_listing(listing(mine), [data]).skipped == [(mine, "still open (no .resource yet)")]
    assert [is_hidden(path, [data]) for path in (data, mine, other, lost)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("path", "hidden"),
    [
        ("data/snapshot/root.a-0/3_7/sequence/root.a/0/7/100-1-0-0.tsfile", True),
        ("data/snapshot/root.a-0/3_7/unsequence/root.a/0/7/100-1-0-0.tsfile", True),
        ("data/pipe/tsfile/sequence-root.a-0-7-100-1-0-0.tsfile", True),
        ("data/sequence/snapshot/0/7/100-1-0-0.tsfile", False),  # a database of that name
        ("data/unsequence/pipe/0/7/100-1-0-0.tsfile", False),
        ("data/sequence/root.snapshot/0/7/100-1-0-0.tsfile", False),
        ("data/snapshots/sequence/root.a/0/7/100-1-0-0.tsfile", False),
        ("data/snapshot/plant1/data/sequence/root.a/0/7/100-1-0-0.tsfile", False),  # of a disk, by the operator
    ],
)
def test_links_that_a_server_makes_of_its_files_are_none_of_them(path: str, hidden: bool) -> None:
    result = classify_listing(listing(path, path + ".resource"), ["data"])
    assert ([f.entry.path for f in result.sealed], result.skipped) == ([] if hidden else [path], [])
    assert not is_hidden("snapshot/sequence/root.a/0/7/100-1-0-0.tsfile", ["snapshot"]), "a data folder may have that name"


RENAMED, OTHER = f"{FOLDER}/100-1-2-2.tsfile", f"{FOLDER}/200-2-2-2.tsfile"


def lone(*paths: str) -> Classified:
    pairs = [path for tsfile in (RENAMED, OTHER) for path in (tsfile, tsfile + ".resource")]
    return classify_listing(listing(*pairs, *paths), FOLDERS)


def test_deletions_without_a_tsfile_are_those_of_the_renamed_file_that_names_them() -> None:
    mods = f"{FOLDER}/100-1-2-1.tsfile.mods"
    found = lone(mods)
    assert [file.entry.path for file in candidates_for_lone_mods(found)] == [RENAMED]
    result = with_named_mods(found, {RENAMED: "100-1-2-1.tsfile.mods"})
    assert [file.mods and file.mods.path for file in result.sealed] == [mods, None]
    assert (result.skipped, result.lone_mods) == ([], [])
    assert with_named_mods(found, {RENAMED: ""}) == with_named_mods(found, {}) == found


@pytest.mark.parametrize(
    "name", ["100-1-2-3.tsfile.mods", "200-2-2-1.tsfile.mods", "101-1-2-1.tsfile.mods", "100-1-2-1.tsfile.mods2", "x.mods"]
)
def test_no_other_deletions_can_be_named(name: str) -> None:
    found = lone(f"{FOLDER}/{name}")
    assert with_named_mods(found, {RENAMED: name}) == found


def test_its_own_deletions_give_way_to_those_that_are_named() -> None:
    result = with_named_mods(lone(RENAMED + ".mods", f"{FOLDER}/100-1-2-1.tsfile.mods"), {RENAMED: "100-1-2-1.tsfile.mods"})
    assert [file.mods and file.mods.path for file in result.sealed] == [f"{FOLDER}/100-1-2-1.tsfile.mods", None]
    assert reasons(result) == {RENAMED + ".mods": "its .resource names other deletions (100-1-2-1.tsfile.mods)"}


def test_named_deletions_that_are_too_large_count_as_missing() -> None:
    mods = Entry(f"{FOLDER}/100-1-2-1.tsfile.mods", COMPANION_BYTES + 1, 1, 1)
    found = classify_listing([*listing(RENAMED, RENAMED + ".resource"), mods], FOLDERS)
    result = with_named_mods(found, {RENAMED: "100-1-2-1.tsfile.mods"})
    assert [file.mods for file in result.sealed] == [None] and "counts as missing" in reasons(result)[mods.path]
