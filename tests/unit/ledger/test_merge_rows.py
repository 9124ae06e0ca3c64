"""Merged files come and go with their sources, whatever order things happen in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.ledger.database import Ledger
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.ledger.receiver import settled as standing_rows
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile, add_file, files_by_id, retire_files, visible_files
from tidemark.ledger.receiver.merges import Account, Kept, MergedFile, Withdrawn

SITE = "0f8e0000-0000-0000-0000-000000000001"


def a_file(name: str, version: int, site: str = SITE, role: str = "source") -> CatalogFile:
    return CatalogFile(
        receiver="centre",
        site_id=site,
        role=role,
        path="" if role == "merged" else f"data/sequence/root.a/1/0/{name}",
        generation=0 if role == "merged" else 1,
        database="root.a",
        model="tree",
        format=4,
        partition_from=0,
        partition_to=0,
        location=f"data/root.a/0/{name}",
        sha256=name,
        size=1,
        mods_location="",
        mods_sha256="",
        points=10,
        rank=(0, version, 0, 0, 0),
        created=1.0,
    )


def devices(start: int, end: int, device: str = "root.a.d1") -> tuple[CatalogDevice, ...]:
    return (CatalogDevice(device, start, end, 10),)


def add(ledger: Ledger, name: str, version: int, start: int, end: int, **more: str) -> int:
    with ledger.write() as connection:
        return add_file(connection, a_file(name, version, **more), devices(start, end))


def publish(ledger: Ledger, sources: list[int], name: str, start: int, end: int) -> tuple[int, ...] | None:
    with ledger.write() as connection:
        rows = files_by_id(connection, sources)
        file = replace(a_file(name, 0, role="merged"), rank=max(r.rank for r in rows))
        made = MergedFile(file, devices(start, end), Account(20, 15, 4, 1))
        return merge_rows.publish_merged(connection, "centre", rows, [made], f"batch-{name}", 5.0)


def unmerge(ledger: Ledger, *file_ids: int) -> Withdrawn:
    with ledger.write() as connection:
        return merge_rows.unmerge_files(connection, "centre", file_ids, 9.0)


def seen(ledger: Ledger) -> set[int]:
    with ledger.read() as connection:
        return {f.file_id for f in visible_files(connection, "centre")}


def test_a_published_merge_stands_for_its_sources(ledger: Ledger) -> None:
    a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
    (merged,) = publish(ledger, [a, b], "m", 0, 15) or ()
    assert seen(ledger) == {merged}
    with ledger.read() as connection:
        assert {f.state for f in files_by_id(connection, [a, b])} == {"live"}
        assert [f.file_id for f in merge_rows.mergeable_files(connection, "centre")] == [a, b]


@pytest.mark.full_after(1)
def test_a_source_that_leaves_takes_the_merge_with_it_whether_retired_before_or_after(ledger: Ledger) -> None:
    for retire_first in (True, False):
        a, b = add(ledger, f"a{retire_first}", 1, 0, 9), add(ledger, f"b{retire_first}", 2, 5, 15)
        (merged,) = publish(ledger, [a, b], f"m{retire_first}", 0, 15) or ()
        with ledger.write() as connection:
            if retire_first:
                retire_files(connection, [a], 8.0)
            done = merge_rows.unmerge_files(connection, "centre", [a], 9.0)
            if not retire_first:
                retire_files(connection, [a], 8.0)
        assert done.retired == (merged,)
        assert seen(ledger) == {b}
        assert unmerge(ledger, a) == Withdrawn()
        with ledger.write() as connection:
            retire_files(connection, [b], 9.0)


def test_merged_files_that_share_sources_leave_together(ledger: Ledger) -> None:
    a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
    with ledger.write() as connection:
        rows = files_by_id(connection, [a, b])
        outputs = [
            MergedFile(a_file(name, 2, role="merged"), devices(0, 15, device), Account(10, 10, 0, 0))
            for name, device in (("m1", "root.a.d1"), ("m2", "root.a.d2"))
        ]
        made = merge_rows.publish_merged(connection, "centre", rows, outputs, "batch", 5.0)
    assert made is not None and seen(ledger) == set(made)
    assert set(unmerge(ledger, b).retired) == set(made)
    assert seen(ledger) == {a, b}


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("version", "start", "end", "withdrawn"),
    [(1, 8, 8, True), (9, 8, 8, False), (1, 16, 20, False)],
    ids=["older and overlapping", "newer and overlapping", "older and elsewhere"],
)
def test_a_late_file_withdraws_a_merge_only_when_it_ranks_below_and_overlaps(
    ledger: Ledger, version: int, start: int, end: int, withdrawn: bool
) -> None:
    a, b = add(ledger, "a", 2, 0, 9), add(ledger, "b", 3, 5, 15)
    (merged,) = publish(ledger, [a, b], "m", 0, 15) or ()
    late = add(ledger, "late", version, start, end)
    unmerge(ledger, late)
    assert seen(ledger) == ({a, b, late} if withdrawn else {merged, late})


def test_another_sites_file_withdraws_nothing(ledger: Ledger) -> None:
    a, b = add(ledger, "a", 2, 0, 9), add(ledger, "b", 3, 5, 15)
    (merged,) = publish(ledger, [a, b], "m", 0, 15) or ()
    other = add(ledger, "other", 1, 0, 9, site="another-site")
    assert unmerge(ledger, other) == Withdrawn()
    assert seen(ledger) == {merged, other}


def test_nothing_is_published_when_a_source_left_or_a_lower_file_came_meanwhile(ledger: Ledger) -> None:
    a, b = add(ledger, "a", 2, 0, 9), add(ledger, "b", 3, 5, 15)
    late = add(ledger, "late", 1, 0, 3)
    assert publish(ledger, [a, b], "m", 0, 15) is None
    assert seen(ledger) == {a, b, late}
    with ledger.write() as connection:
        retire_files(connection, [late, a], 4.0)
    assert publish(ledger, [a, b], "m", 0, 15) is None
    assert seen(ledger) == {b}


def test_a_merge_with_one_more_source_replaces_the_merge_before(ledger: Ledger) -> None:
    a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
    (first,) = publish(ledger, [a, b], "m1", 0, 15) or ()
    c = add(ledger, "c", 3, 14, 20)
    (second,) = publish(ledger, [a, b, c], "m2", 0, 20) or ()
    assert seen(ledger) == {second}
    with ledger.read() as connection:
        assert files_by_id(connection, [first])[0].state == "retired"


def test_a_settled_merge_stands_alone_and_is_a_source_itself(ledger: Ledger) -> None:
    a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
    (merged,) = publish(ledger, [a, b], "m1", 0, 15) or ()
    with ledger.write() as connection:
        assert merge_rows.settle_due(connection, "centre", before=5.0) == ()
        assert merge_rows.settle_due(connection, "centre", before=6.0) == (merged,)
        assert merge_rows.mark_settled(connection, [merged], 20.0) == (a, b)
        assert merge_rows.settle_due(connection, "centre", before=6.0) == ()
    assert seen(ledger) == {merged}
    assert unmerge(ledger, a) == Withdrawn(alone=(merged,))
    c = add(ledger, "c", 3, 14, 20)
    (second,) = publish(ledger, [merged, c], "m2", 0, 20) or ()
    assert seen(ledger) == {second}
    unmerge(ledger, c)
    assert seen(ledger) == {merged, c}


@pytest.mark.full_after(1)
def test_sources_that_cannot_be_merged_are_remembered_until_they_are(ledger: Ledger) -> None:
    a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
    kept = Kept((a, b), "root.a.d1.s", "INT32 in a, TEXT in b")
    with ledger.write() as connection:
        merge_rows.remember_unmerged(connection, "centre", kept, "digest", 3.0)
        merge_rows.remember_unmerged(connection, "centre", kept, "digest", 4.0)
        assert merge_rows.kept_groups(connection, "centre") == {"digest": kept}
    publish(ledger, [a, b], "m", 0, 15)
    with ledger.read() as connection:
        assert merge_rows.kept_groups(connection, "centre") == {}


class TestStands:
    """Merged files that stand alone, and what they stand for to the very sources."""

    @staticmethod
    def settle(ledger: Ledger, *merged: int) -> None:
        with ledger.write() as connection:
            assert set(merge_rows.settle_due(connection, "centre", 1e9)) == set(merged)
            merge_rows.mark_settled(connection, merged, 10.0)

    def test_settled_twice_it_stands_for_the_first_sources_too(self, ledger: Ledger) -> None:
        a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
        (first,) = publish(ledger, [a, b], "m1", 0, 15) or ()
        self.settle(ledger, first)
        late = add(ledger, "c", 3, 8, 20)
        (second,) = publish(ledger, [first, late], "m2", 0, 20) or ()
        self.settle(ledger, second)
        with ledger.read() as connection:
            assert standing_rows.made_from(connection, [a]) == {second}
            [stand] = standing_rows.settled_sets(connection, [second])
        assert [file.file_id for file in stand.merged] == [second]
        assert {root.file_id for root in stand.roots} == {a, b, late}

    @pytest.mark.full_after(1)
    def test_what_waits_to_be_replaced_is_neither_merged_nor_settled_into_anything(self, ledger: Ledger) -> None:
        a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
        (first,) = publish(ledger, [a, b], "m1", 0, 15) or ()
        self.settle(ledger, first)
        late = add(ledger, "c", 3, 8, 20)
        (second,) = publish(ledger, [first, late], "m2", 0, 20) or ()
        with ledger.write() as connection:
            standing_rows.set_waits(connection, [first], {"data/a": "its deletion"})
            assert standing_rows.waiting_for_sources(connection, "centre") == {first: {"data/a": "its deletion"}}
            assert merge_rows.settle_due(connection, "centre", 1e9) == ()
        assert unmerge(ledger, first).retired == (second,)
        assert publish(ledger, [first, late], "m3", 0, 20) is None
        with ledger.write() as connection:
            standing_rows.set_waits(connection, [first], {})
            assert standing_rows.waiting_for_sources(connection, "centre") == {}
        assert publish(ledger, [first, late], "m4", 0, 20) is not None

    @pytest.mark.full_after(1)
    def test_merged_files_of_the_same_sources_are_one_stand(self, ledger: Ledger) -> None:
        a, b = add(ledger, "a", 1, 0, 9), add(ledger, "b", 2, 5, 15)
        with ledger.write() as connection:
            rows = files_by_id(connection, [a, b])
            outputs = [
                MergedFile(a_file(name, 2, role="merged"), devices(start, start + 9), Account(10, 10, 0, 0))
                for name, start in (("m1", 0), ("m2", 10))
            ]
            made = merge_rows.publish_merged(connection, "centre", rows, outputs, "batch", 5.0) or ()
        self.settle(ledger, *made)
        late = add(ledger, "c", 3, 12, 20)
        (above,) = publish(ledger, [made[1], late], "m3", 10, 20) or ()
        self.settle(ledger, above)
        with ledger.read() as connection:
            [stand] = standing_rows.settled_sets(connection, [made[0], above])
        assert {file.file_id for file in stand.merged} == {made[0], above}
        assert {root.file_id for root in stand.roots} == {a, b, late}
