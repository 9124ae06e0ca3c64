"""What changed at a site: the listing merged with the ledger's rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidemark.stores.protocol import Entry
from tidemark.sync.select.diff import OUTSIDE, Changes, Kind, KnownFile, classify_changes, compare_listing, set_outside
from tidemark.tsfiles.sealed import classify_listing

DATA = ("data/sequence", "data/unsequence")
FOLDER = "data/sequence/root.sg/0/0"
A, B, C = (f"{FOLDER}/{n}-{n}-0-0.tsfile" for n in (1, 2, 3))


def listed(path: str, size: int = 100, mtime: int = 5, inode: int = 0, mods: int | None = None) -> list[Entry]:
    entries = [Entry(path, size, mtime, inode), Entry(path + ".resource", 10, mtime)]
    return [*entries, *([Entry(path + ".mods", mods, mtime)] if mods is not None else [])]


def row(path: str, state: str = "acked", **given: int | str) -> KnownFile:
    base = KnownFile(path, 100, 5, 0, 0, state, 1, "d" * 64, None)
    return base._replace(**given)


def difference(entries: Sequence[Entry], rows: Sequence[KnownFile], odd: Sequence[str] = (), left_out: str = "") -> Changes:
    ordered = sorted(entries)
    return classify_changes(compare_listing(ordered, rows, left_out), classify_listing(ordered, DATA), odd)


def kinds(found: Changes) -> dict[str, Kind]:
    return {c.file.entry.path: c.kind for c in found.changed}


def test_an_unchanged_site_keeps_nothing_in_memory() -> None:
    compared = compare_listing(sorted([*listed(A), *listed(B, mods=7)]), [row(A), row(B, mods_size=7)])
    assert (compared.differing, compared.absent, compared.folders) == ({}, [], set())
    assert (compared.listed, compared.known) == (2, 2)


def test_new_changed_grown_and_gone() -> None:
    gone = f"{FOLDER}/9-9-0-0.tsfile"
    found = difference([*listed(A), *listed(B, size=101), *listed(C, mods=9)], [row(B), row(C, mods_size=4), row(gone)])
    assert kinds(found) == {A: Kind.NEW, B: Kind.CONTENT, C: Kind.MODS}
    assert [r.path for r in found.vanished] == [gone]


@pytest.mark.parametrize(("time", "rewritten"), [(5, False), (4, True), (0, False)])
def test_mods_written_anew_at_the_same_length_are_other_deletions(time: int, rewritten: bool) -> None:
    """0: the ledger was made from manifests, which do not tell when mods were written."""
    known = row(A, mods_size=9, mods_mtime=time)
    compared = compare_listing(sorted(listed(A, mods=9)), [known])
    assert set(compared.differing) == ({A} if rewritten else set())
    assert kinds(difference(listed(A, mods=9), [known])) == ({A: Kind.MODS} if rewritten else {})


@pytest.mark.parametrize(
    ("entry", "known", "changed"),
    [
        (listed(A, mtime=6), row(A), True),
        (listed(A, inode=7), row(A, inode=8), True),
        (listed(A, inode=7), row(A, inode=0), False),  # the ledger's listing had no inodes
        (listed(A, inode=0), row(A, inode=8), False),
        (listed(A, mods=3), row(A, mods_size=4), True),  # shrunk deletions: not what was acknowledged
    ],
)
def test_what_counts_as_another_content(entry: list[Entry], known: KnownFile, changed: bool) -> None:
    assert kinds(difference(entry, [known])) == ({A: Kind.CONTENT} if changed else {})


def test_a_file_that_waits_is_chosen_again_whole() -> None:
    assert kinds(difference(listed(A), [row(A, "waiting")])) == {A: Kind.CONTENT}
    assert kinds(difference(listed(A, mods=9), [row(A, "waiting")])) == {A: Kind.CONTENT}
    assert kinds(difference(listed(A), [row(A, "waiting", generation=0)])) == {A: Kind.NEW}


def test_a_file_that_had_gone_and_is_back_is_new() -> None:
    found = difference(listed(A), [row(A, "gone")])
    assert kinds(found) == {A: Kind.NEW}
    assert found.changed[0].row is not None and found.changed[0].row.generation == 1
    assert difference([], [row(A, "gone")]).vanished == ()


def test_an_excluded_file_is_looked_at_again_only_when_the_patterns_changed() -> None:
    known = row(A, "waiting", generation=0, reason="excluded (1)")
    assert kinds(difference(listed(A), [known], left_out="excluded (1)")) == {}
    assert kinds(difference(listed(A), [known], left_out="excluded (2)")) == {A: Kind.NEW}
    assert kinds(difference(listed(A, size=1_000), [known], left_out="excluded (1)")) == {A: Kind.NEW}


def test_a_known_file_that_is_being_compacted_is_neither_changed_nor_vanished() -> None:
    found = difference([*listed(A, size=50), Entry(A + ".settle", 3, 5)], [row(A)])
    assert (kinds(found), found.vanished, found.unjudged) == ({}, (), (A,))
    assert A in dict(found.skipped)


def test_a_known_file_without_its_resource_is_not_judged() -> None:
    found = difference([Entry(A, 100, 5)], [row(A)])
    assert (kinds(found), found.vanished, found.unjudged) == ({}, (), (A,))


def test_what_lies_in_a_folder_that_cannot_be_listed_has_not_vanished() -> None:
    assert difference([], [row(A)], odd=[FOLDER]).vanished == ()
    assert difference([], [row(A)], odd=["data/sequence/root.s"]).vanished != ()


def test_an_open_file_is_skipped_with_its_reason() -> None:
    found = difference([Entry(A, 100, 5)], [])
    assert found.changed == () and "no .resource" in dict(found.skipped)[A]


def test_sending_all_again_chooses_what_is_unchanged() -> None:
    ordered = sorted(listed(A))
    found = classify_changes(
        compare_listing(ordered, [row(A)], everything=True), classify_listing(ordered, DATA), everything=True
    )
    assert kinds(found) == {A: Kind.CONTENT}


def test_unchanged_files_beside_a_vanished_one_are_known_as_live() -> None:
    found = difference(listed(A), [row(A), row(B)])
    assert [f.entry.path for f in found.live] == [A] and [r.path for r in found.vanished] == [B]


def test_order_is_that_of_bytes() -> None:
    names = [f"data/sequence/root.{db}/0/0/1-1-0-0.tsfile" for db in ("Z", "a", "é", "中", "\U0001f600")]
    entries = sorted((e for n in names for e in listed(n)), key=lambda e: e.path.encode())
    compared = compare_listing(entries, sorted((row(n) for n in names), key=lambda r: r.path.encode()))
    assert compared.differing == {} and compared.absent == []


def test_what_lies_below_no_data_folder_any_more_is_named_and_not_judged() -> None:
    elsewhere = "old/sequence/root.sg/0/0/1-1-0-0.tsfile"
    ordered = sorted([*listed(A)])
    compared = compare_listing(ordered, sorted([row(A), row(elsewhere), row(B)]))
    set_outside(compared, DATA)
    found = classify_changes(compared, classify_listing(ordered, DATA))
    assert [r.path for r in found.vanished] == [B]
    assert found.unjudged == (elsewhere,)
    assert found.skipped == ((elsewhere, OUTSIDE),)
    assert compared.known == 3
