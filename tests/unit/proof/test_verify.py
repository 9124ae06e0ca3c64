"""verify: every byte, every point; what differs is named, and put right on demand."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from tests.unit.proof.conftest import Deployment
from tidemark.errors import UnreachableError
from tidemark.proof.prove import coverage
from tidemark.proof.verify.deep import LIVE, Compared, Origin, compare_columns, newest_wins
from tidemark.proof.verify.verify import verify
from tidemark.receiver.merge.merge import merge
from tidemark.receiver.read import Query, read
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column


def _flip(file: Path, at: int | None = None) -> None:
    """Another byte under the same size and time."""
    stat = file.stat()
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _read(d: Deployment) -> bytes:
    out = d.app.settings.root / "read.csv"
    read(d.app, d.receiver, Query(tall=True), out)
    return out.read_bytes()


def _whats(d: Deployment, **options: bool) -> list[str]:
    return sorted(x.what for x in verify(d.app, d.receiver, **options).differences)


def test_what_was_synced_and_loaded_has_no_difference(deploy) -> None:
    d = deploy(None)
    d.sync()
    report = verify(d.app, d.receiver, deep=True)
    assert report.differences == ()
    assert report.exit_code == 0
    assert report.checked > 2 * len(d.files())
    assert report.series >= 100
    assert report.not_read == ()


@pytest.mark.full
def test_after_a_merge_every_point_is_still_there(deploy) -> None:
    d = deploy(None)
    d.sync()
    assert merge(d.app, d.receiver, engine="pool").groups > 0
    assert verify(d.app, d.receiver, deep=True).differences == ()
    assert coverage(d.app, d.receiver).is_complete


def test_a_damaged_data_file_is_found_though_size_and_time_are_unchanged(deploy) -> None:
    d = deploy()
    d.sync()
    before = _read(d)
    assert coverage(d.app, d.receiver).is_complete  # remembers the digests
    victim = sorted(d.centre.glob("data/**/*.tsfile"))[0]
    _flip(victim, 40)
    (found,) = verify(d.app, d.receiver).differences
    assert (found.what, found.site, found.where) == ("damaged", "plant1", "catalog")
    assert "was recorded" in found.detail
    assert found.next == "./tidemark verify --repair"
    report = verify(d.app, d.receiver, repair=True)
    assert report.exit_code == 0
    assert report.differences[0].repaired
    assert verify(d.app, d.receiver, deep=True).differences == ()
    assert _read(d) == before


def test_coverage_knows_what_verify_found_where_the_disk_rotted_silently(deploy) -> None:
    d = deploy()
    d.sync()
    assert coverage(d.app, d.receiver).is_complete
    victim = next(iter(sorted(d.centre.glob("data/**/*.tsfile"))))
    _flip(victim)
    assert not coverage(d.app, d.receiver).is_complete, "a time set back hides nothing"
    with d.app.ledger.write() as connection:  # rot below the file system: the inode looks as it did when it was checked
        connection.execute(
            sa.text(
                "UPDATE file_check SET ctime_ns = :ctime, sha256 = (SELECT sha256 FROM catalog_file c"
                " WHERE c.location = file_check.location) WHERE location = :location"
            ),
            {"ctime": victim.stat().st_ctime_ns, "location": victim.relative_to(d.centre).as_posix()},
        )
    assert coverage(d.app, d.receiver).is_complete, "nobody has read it since"
    assert _whats(d) == ["damaged"]
    assert not coverage(d.app, d.receiver).is_complete
    verify(d.app, d.receiver, repair=True)
    assert coverage(d.app, d.receiver).is_complete


def test_a_missing_data_file_is_fetched_again(deploy) -> None:
    d = deploy()
    d.sync()
    before = _read(d)
    shutil.rmtree(d.centre / "data")
    report = verify(d.app, d.receiver)
    assert {x.what for x in report.differences} == {"damaged"}
    assert report.exit_code == 20
    assert verify(d.app, d.receiver, repair=True).exit_code == 0
    assert _read(d) == before


def test_a_file_that_rotted_in_the_catalog_is_healed_by_sending_it_again(deploy) -> None:
    d = deploy()
    d.sync()
    before = _read(d)
    victim = sorted(d.centre.glob("data/**/*.tsfile"))[0]
    _flip(victim)
    d.sync(send_all_again=True)
    d.load()
    assert verify(d.app, d.receiver).differences == ()
    assert _read(d) == before


def test_a_damaged_mods_file_is_fetched_again(deploy) -> None:
    d = deploy(None)
    d.sync()
    victim = sorted(d.centre.glob("data/**/*.mods2"))[0]
    _flip(victim)
    assert _whats(d) == ["damaged"]
    assert verify(d.app, d.receiver, repair=True).exit_code == 0
    assert _whats(d) == []


@pytest.mark.full
def test_a_damaged_merged_file_is_derived_again(deploy) -> None:
    d = deploy(None)
    d.sync()
    merge(d.app, d.receiver, engine="pool")
    before = _read(d)
    merged = [p for p in d.centre.glob("data/**/*.tsfile") if "merged" in p.name]
    assert merged
    _flip(merged[0])
    assert _whats(d) == ["damaged"]
    report = verify(d.app, d.receiver, repair=True)
    assert report.exit_code == 0
    assert "derived again" in report.differences[0].repaired
    assert verify(d.app, d.receiver, deep=True).differences == ()
    assert _read(d) == before


@pytest.mark.full
def test_files_that_were_not_merged_for_one_that_rotted_are_merged_after_its_repair(deploy) -> None:
    d = deploy(None)
    d.sync()
    with d.app.ledger.read() as connection:
        query = "SELECT location FROM catalog_file WHERE path LIKE '%/unsequence/%' ORDER BY path"
        location = connection.execute(sa.text(query)).scalars().first()
    _flip(d.centre / location)
    failed = merge(d.app, d.receiver, engine="pool")
    assert failed.exit_code == 7 and len(failed.kept) == 1
    assert verify(d.app, d.receiver, repair=True).exit_code == 0
    again = merge(d.app, d.receiver, engine="pool")
    assert (again.groups, again.kept, again.exit_code) == (1, (), 0)


def test_bit_rot_at_the_site_is_named_and_never_copied(deploy) -> None:
    d = deploy()
    d.sync()
    before = _read(d)
    _flip(d.files()[0])
    for repair in (False, True):
        (found,) = verify(d.app, d.receiver, repair=repair).differences
        assert found.what == "source differs"
        assert found.path == d.path(d.files()[0])
        assert not found.repaired
    d.sync()
    assert _read(d) == before


def test_both_ends_rotten_cannot_be_repaired_from_each_other(deploy) -> None:
    d = deploy()
    d.sync()
    site = d.files()[0]
    centre = next(p for p in d.centre.glob("data/**/*.tsfile") if p.name.endswith(site.name))
    _flip(site, 40)
    _flip(centre, 50)
    report = verify(d.app, d.receiver, repair=True)
    assert sorted(x.what for x in report.differences) == ["damaged", "source differs"]
    assert report.exit_code == 20


def test_a_landed_file_that_rots_before_it_is_loaded_is_fetched_again(deploy) -> None:
    d = deploy()
    d.sync(no_load=True)
    victim = sorted(d.centre.glob("landing/**/*.tsfile"))[0]
    _flip(victim, 40)
    (found,) = verify(d.app, d.receiver).differences
    assert (found.what, found.where) == ("damaged", "landing")
    assert verify(d.app, d.receiver, repair=True).exit_code == 0
    d.load()
    assert verify(d.app, d.receiver, deep=True).differences == ()
    assert coverage(d.app, d.receiver).is_complete


@pytest.mark.full
def test_what_the_catalog_lost_is_sent_again(deploy) -> None:
    d = deploy()
    d.sync()
    before = _read(d)
    path = d.path(d.files()[0])
    with d.app.ledger.write() as connection:
        connection.execute(sa.text("UPDATE catalog_file SET state = 'retired', visible = 0 WHERE path = :p"), {"p": path})
    (found,) = verify(d.app, d.receiver, deep=True).differences
    assert (found.what, found.path) == ("missing", path)
    assert "sends it again" in verify(d.app, d.receiver, repair=True).differences[0].repaired
    d.sync()
    assert verify(d.app, d.receiver, deep=True).differences == ()
    assert _read(d) == before


def test_files_that_are_not_sent_yet_are_pending_not_different(deploy) -> None:
    d = deploy(3)
    d.sync()
    first, second, _ = d.files()
    for ending in ("", ".resource"):
        shutil.copy2(str(first) + ending, str(first.with_name("1795251705999-9-0-0.tsfile")) + ending)
    second.unlink()
    report = verify(d.app, d.receiver)
    assert report.exit_code == 0
    assert report.pending == 2


@pytest.mark.full
def test_dropped_files_that_the_centre_keeps_are_a_kind_of_their_own(deploy) -> None:
    d = deploy(None)
    d.sync()
    for file in d.files()[::3]:
        for companion in file.parent.glob(file.name + "*"):
            companion.unlink()
    d.sync()
    report = verify(d.app, d.receiver, deep=True)
    assert {x.what for x in report.differences} == {"kept points"} and report.exit_code == 20
    assert verify(d.app, d.receiver, deep=True, live_only=True).differences == ()


def test_a_quarantined_file_is_held_and_sent_again_on_demand(deploy) -> None:
    d = deploy(3)
    d.sync(no_load=True)
    victim = sorted(d.centre.glob("landing/**/*.tsfile"))[0]
    _flip(victim, 40)
    d.load()
    report = verify(d.app, d.receiver)
    assert report.differences == ()
    assert [path for path, _ in report.held] == [d.path(d.files()[0])]
    report = verify(d.app, d.receiver, repair=True)
    assert "sends it again" in report.held[0][1]
    d.sync()
    assert verify(d.app, d.receiver, deep=True).held == ()
    assert coverage(d.app, d.receiver).is_complete


def test_a_site_that_does_not_answer_is_not_called_verified(deploy) -> None:
    d = deploy(3)
    d.sync()
    opener = d.app.opener

    def away(address: StoreAddress) -> Store:
        if address.url.endswith("site"):
            raise UnreachableError("no route to plant1")
        return opener(address)

    d.app.opener = away
    report = verify(d.app, d.receiver)
    assert report.unreachable == (("plant1", "no route to plant1"),)
    assert report.exit_code == 5
    _flip(sorted(d.centre.glob("data/**/*.tsfile"))[0])
    report = verify(d.app, d.receiver)
    assert [x.what for x in report.differences] == ["damaged"]  # what lies here is verified all the same
    assert report.exit_code == 20


def _column(kind: DataType, times: list[int], values: list[object]) -> Column:
    dtype = {DataType.INT64: np.int64, DataType.DOUBLE: np.float64}[kind]
    return Column(kind, np.array(times, np.int64), np.array(values, dtype))


def test_the_newest_value_counts_and_nan_equals_itself() -> None:
    old, new = _column(DataType.INT64, [1, 2, 3], [1, 1, 1]), _column(DataType.INT64, [2, 4], [9, 9])
    series = newest_wins([old, new])
    assert series.times.tolist() == [1, 2, 3, 4]
    assert series.texts.tolist() == ["INT64 1", "INT64 9", "INT64 1", "INT64 9"]
    assert compare_columns([old, new], [_column(DataType.INT64, [1, 2, 3, 4], [1, 9, 1, 9])]).trouble == ""
    nan = _column(DataType.DOUBLE, [1], [float("nan")])
    assert compare_columns([nan], [nan]).trouble == ""
    assert (
        compare_columns([nan], [_column(DataType.DOUBLE, [1], [float("nan")]), _column(DataType.DOUBLE, [], [])]).trouble
        == ""
    )


@pytest.mark.parametrize(
    ("centre", "told"),
    [
        ([(1, 1)], "1 point is missing in the catalog, the first at 2"),
        ([(1, 1), (2, 3)], "1 point differs, the first at 2: 'INT64 2' at the site, 'INT64 3' in the catalog"),
        ([(1, 1), (2, 2), (5, 5)], "1 point of the catalog is not at the site, the first at 5"),
        ([(1, 1), (2, 2)], ""),
    ],
)
def test_what_differs_is_told_with_its_first_point(centre: list[tuple[int, int]], told: str) -> None:
    site = _column(DataType.INT64, [1, 2], [1, 2])
    other = _column(DataType.INT64, [t for t, _ in centre], [v for _, v in centre])
    assert compare_columns([site], [other]) == Compared(told)


def test_nothing_is_said_of_values_where_a_file_reaches_that_changed_since() -> None:
    site, other = _column(DataType.INT64, [1, 2], [1, 2]), _column(DataType.INT64, [1, 2, 3], [7, 8, 9])
    assert compare_columns([site], [other], [Origin(((0, 1), (2, 9)))]) == Compared("")
    told = compare_columns([site], [other], [Origin(((0, 1),))]).trouble
    assert "1 point differs, the first at 2" in told and "1 point of the catalog is not at the site" in told
    assert "1 point is missing" in compare_columns([site], [_column(DataType.INT64, [1], [1])], [Origin(((0, 9),))]).trouble


def test_points_that_only_a_gone_file_has_are_counted_and_its_values_never_win() -> None:
    site = _column(DataType.INT64, [1, 2], [1, 2])
    gone, gap = Origin(gone={"old": ((0, 9),)}), _column(DataType.INT64, [2, 3, 4], [0, 3, 4])
    assert compare_columns([site], [gap, site], [gone, LIVE]) == Compared("", {"old": 2})
    above = compare_columns([site], [site, gap], [LIVE, gone])
    assert above.kept == {"old": 2} and "1 point differs, the first at 2" in above.trouble
    assert compare_columns([], [gap], [gone]) == Compared("", {"old": 3})


def test_a_type_that_differs_is_a_difference() -> None:
    told = compare_columns([_column(DataType.INT64, [1], [1])], [_column(DataType.DOUBLE, [1], [1.0])]).trouble
    assert "'INT64 1' at the site, 'DOUBLE 1.0' in the catalog" in told
