"""A reading larger than the cache: files come as it goes, the cache keeps its bound, the first rows need not all of them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clustered import Clustered, everything_is_held
from tests.small_files import deletion, sealed, source
from tidemark.cluster.replicas import cache as cluster_feed
from tidemark.cluster.replicas.cache import FOLDER, give_back, recall_files
from tidemark.errors import RetryableError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.progress import Tick
from tidemark.receiver.read import Query, ReadResult, read

DEVICES = [f"root.sg.d{number}" for number in range(6)]


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clustered:
    """Six devices, each with two files of its own, one with deletions; nothing of them at the receiver any more."""
    monkeypatch.setattr(cluster_feed, "AHEAD", 1)
    centre = Clustered(tmp_path)
    centre.begin("n1", "n2", "n3")
    files = {source(number): sealed({name: {"s": [(1, number)]}}) for number, name in enumerate(DEVICES, 1)}
    files |= {source(number): sealed({name: {"s": [(2, 0)]}}) for number, name in enumerate(DEVICES, 11)}
    files[source(3)] = sealed({DEVICES[2]: {"s": [(1, 3), (5, 5)]}}, deletion(f"{DEVICES[2]}.s", 5, 5))
    centre.sender().land(files)
    centre.load()
    centre.empty_cache()
    return centre


@dataclass
class Watched:
    """A reading, and what lies at the receiver each time that a device is through."""

    centre: Clustered
    cached: list[int] = field(default_factory=list)  # files in the cache
    aside: list[int] = field(default_factory=list)  # files of the reading's own

    def read(self, tall: bool = True) -> ReadResult:
        return read(self.centre.app, self.centre.receiver, Query(tall=tall), self.centre.folder / "out.parquet", self.look)

    def look(self, tick: Tick) -> None:
        if tick.phase == "read":
            self.cached.append(len(self.centre.files("data")))
            self.aside.append(len(self.centre.files(FOLDER)))


def cache_for(centre: Clustered, files: int) -> None:
    largest = max(path.stat().st_size for path in (centre.node("n1") / "data").rglob("*.tsfile"))
    centre.cache_bytes = files * largest
    centre.reopen()


def test_files_come_as_the_reading_goes(centre: Clustered) -> None:
    watched = Watched(centre)
    assert watched.read().rows == 12
    assert watched.cached == [2, 4, 7, 9, 11, 13], "of each device its files, and one has deletions"
    assert set(watched.aside) == {0}


def test_files_without_points_between_the_bounds_stay_where_they_are(centre: Clustered) -> None:
    assert [row[2:] for row in centre.rows(Query(tall=True, start="2", end="5"))] == [(2, "INT64", "0")] * 6
    assert len(centre.files("data")) == 8, "of each device the second file, and one whose deletion was at 5"


@pytest.mark.parametrize("tall", [True, False])
def test_what_the_cache_has_no_room_for_stays_while_it_is_read(centre: Clustered, tall: bool) -> None:
    expected = centre.rows()
    centre.empty_cache()
    cache_for(centre, 5)
    watched = Watched(centre)
    assert watched.read(tall).rows == 12
    assert max(watched.cached) <= 6, "the files that there is room for, and deletions"
    assert max(watched.aside) <= 2
    assert centre.files(FOLDER) == []
    assert centre.rows() == expected


def test_many_small_files_come_together(centre: Clustered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_feed, "AHEAD", 1 << 20)
    watched = Watched(centre)
    watched.read()
    assert watched.cached == [13] * 6


def test_what_is_there_counts_for_the_cache_and_is_not_fetched(centre: Clustered) -> None:
    expected = centre.rows()
    centre.away = {"n1", "n2", "n3"}
    cache_for(centre, 1)
    assert centre.rows() == expected


def test_a_reading_that_ends_early_leaves_nothing_of_its_own(centre: Clustered) -> None:
    cache_for(centre, 3)

    def disks_die(tick: Tick) -> None:
        if tick.done == 3:
            shutil.rmtree(centre.folder / "nodes")

    with pytest.raises(RetryableError, match="no node that has it gives it"):
        read(centre.app, centre.receiver, Query(tall=True), centre.folder / "out.parquet", disks_die)
    assert centre.files(FOLDER) == []


def test_a_file_of_its_own_that_was_swept_is_fetched_again(centre: Clustered) -> None:
    expected = centre.rows()
    centre.empty_cache()
    cache_for(centre, 1)
    with centre.cluster() as cluster, cluster_feed.open_feed(cluster, centre.root) as feed:
        assert feed is not None
        feed.bring_files(_files(centre))
        kept = next(iter(feed.own.values()))
        (centre.root / feed.place / kept.location).unlink()
        folder = feed(kept)
        assert folder is not None and (folder / kept.location).is_file()
    assert centre.rows() == expected


@pytest.mark.full_after(1)
@pytest.mark.parametrize("room", [0, 1])
def test_a_merge_of_more_than_the_cache_goes_by_portions(tmp_path: Path, room: int) -> None:
    """Without a bound all files stay; else those of what was merged make room for the next."""
    centre = Clustered(tmp_path)
    centre.begin("n1", "n2", "n3")
    files = {}
    for database in ("root.a", "root.b", "root.c"):
        for version in (1, 2):
            files[source(version, database=database)] = sealed({f"{database}.d": {"s": [(1, version), (version + 1, 0)]}})
    centre.sender().land(files)
    centre.load()
    expected = centre.rows()
    centre.empty_cache()
    centre.cache_bytes = room
    centre.reopen()
    at_hand: list[int] = []

    result = centre.merge(progress=lambda _tick: at_hand.append(len(centre.files("data"))))

    assert (result.groups, result.failed) == (3, ())
    assert max(at_hand) == (6 + 2 if room == 0 else 2 + 2), "sources of what is merged at a time, and what was made before"
    assert centre.rows() == expected
    assert len(centre.files("data")) == (9 if room == 0 else 3)
    everything_is_held(centre)


def test_a_merge_leaves_what_somebody_asked_for_meanwhile(centre: Clustered) -> None:
    first, second, third = _files(centre)[:3]
    with centre.cluster() as cluster, centre.app.receiver_store(centre.receiver) as store:
        assert cluster is not None
        at = centre.app.clock()
        fetched = dict.fromkeys(recall_files(cluster, [first, second, third], at=at), at)
        recall_files(cluster, [second], at=at + 1)
        with centre.app.ledger.write() as connection:
            for node in ("n1", "n2", "n3"):
                copy_rows.forget_copies(connection, "centre", node, [third.location])
        give_back(cluster, store, fetched)
    assert not (centre.root / first.location).exists()
    assert (centre.root / second.location).is_file()
    assert (centre.root / third.location).is_file(), "no node has it any more"


def _files(centre: Clustered) -> list[CatalogFile]:
    with centre.app.ledger.read() as connection:
        return catalog_rows.live_files(connection, "centre")
