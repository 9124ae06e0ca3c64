"""The receiver's copies are a cache: what is read and not there comes back by digest, what nobody asked for goes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.centre import d1, rows
from tests.clustered import Clustered, everything_is_held
from tests.small_files import deletion, source
from tidemark.cluster.replicas.cache import FOLDER, evict_cache, recall_files
from tidemark.errors import NotFoundError, RetryableError
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.proof.prove import coverage
from tidemark.receiver.proved_files import sha256_of

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> Clustered:
    """Three files, one with mods, at three nodes."""
    centre = Clustered(tmp_path)
    centre.begin(*NODES)
    files = {source(n): d1((n, n)) for n in (1, 2)}
    centre.sender().land({**files, source(3): d1((3, 3), (4, 4), mods=deletion("root.sg.d1.s", 4, 4))})
    centre.load()
    return centre


def files_of(centre: Clustered) -> list[CatalogFile]:
    with centre.app.ledger.read() as connection:
        return catalog_rows.live_files(connection, "centre")


def test_reading_with_an_empty_cache_gives_the_same(centre: Clustered) -> None:
    before = centre.rows()
    assert before == rows((1, 1), (2, 2), (3, 3))
    centre.empty_cache()
    assert centre.rows() == before
    for file in files_of(centre):
        assert sha256_of(centre.root, file.location) == file.sha256
    assert not (centre.root / FOLDER).exists() or not list((centre.root / FOLDER).iterdir())


def test_nothing_is_fetched_while_it_is_there(centre: Clustered) -> None:
    with centre.cluster() as cluster:
        centre.away = set(NODES)
        assert recall_files(cluster, files_of(centre)) == ()


def test_another_node_gives_it_where_one_is_away_or_its_copy_rotted(centre: Clustered) -> None:
    centre.empty_cache()
    for path in (centre.node("n1") / "data").rglob("*.tsfile"):
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    centre.away = {"n2"}
    for _ in range(3):  # whoever's turn it is to be asked first
        centre.empty_cache()
        assert centre.rows() == rows((1, 1), (2, 2), (3, 3))


def test_a_file_that_nobody_gives_names_the_nodes(centre: Clustered) -> None:
    centre.empty_cache()
    centre.away = set(NODES)
    with centre.cluster() as cluster, pytest.raises(RetryableError) as away:
        recall_files(cluster, files_of(centre)[:1])
    assert all(node in away.value.message for node in NODES)
    assert away.value.subject == files_of(centre)[0].location
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql("DELETE FROM node_copy")
    with centre.cluster() as cluster, pytest.raises(NotFoundError, match="nor at any of its nodes"):
        recall_files(cluster, files_of(centre)[:1])
    with centre.cluster() as cluster:
        assert recall_files(cluster, files_of(centre)[:1], if_any=True)


def test_two_readers_at_once_do_not_meet(centre: Clustered) -> None:
    centre.empty_cache()
    failed: list[BaseException] = []

    def reader() -> None:
        try:
            with centre.cluster() as cluster:
                recall_files(cluster, files_of(centre))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=reader) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for file in files_of(centre):
        assert sha256_of(centre.root, file.location) == file.sha256


def give_up(centre: Clustered, keep: int, days: float = 0.0) -> tuple[int, int]:
    centre.app.clock = lambda: time.time() + days * DAY
    with centre.cluster() as cluster, centre.app.receiver_store(centre.receiver) as store:
        return evict_cache(cluster, store, keep)


def test_what_was_not_used_within_the_grace_goes_oldest_first(centre: Clustered) -> None:
    assert give_up(centre, 1) == (0, 0)  # it came just now
    one, two, _ = files_of(centre)
    with centre.cluster() as cluster:
        centre.app.clock = lambda: time.time() + 1.5 * DAY
        recall_files(cluster, [one])
    count, size = give_up(centre, one.size, days=2)
    assert (centre.root / one.location).exists()
    assert not (centre.root / two.location).exists()
    assert (count, size >= 2 * two.size) == (3, True)
    assert centre.rows() == rows((1, 1), (2, 2), (3, 3))


def test_only_as_much_goes_as_is_too_many_and_nothing_without_a_bound(centre: Clustered) -> None:
    assert give_up(centre, 0, days=2) == (0, 0)
    total = sum(path.stat().st_size for path in (centre.root / "data").rglob("*") if path.is_file())
    assert give_up(centre, total - 1, days=2)[0] == 1


def test_what_a_wanted_member_lacks_stays(centre: Clustered) -> None:
    one = files_of(centre)[0]
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql(f"DELETE FROM node_copy WHERE node = 'n2' AND location = '{one.location}'")
    give_up(centre, 1, days=2)
    assert (centre.root / one.location).exists()
    assert len(centre.files("data")) == 1


def test_housekeeping_keeps_the_cache_in_its_bounds(centre: Clustered) -> None:
    centre.cache_bytes = 1
    centre.reopen()
    centre.app.clock = lambda: time.time() + 2 * DAY
    done = housekeep(centre.app, centre.receiver)
    assert done.evicted == 4
    assert centre.files("data") == []
    assert centre.rows() == rows((1, 1), (2, 2), (3, 3))
    everything_is_held(centre, None)


@pytest.mark.parametrize("left", ["1-1-0-0.tsfile", "1-1-0-0.tsfile.part"])
def test_what_a_dead_fetch_left_is_in_nobodys_way_and_goes_with_housekeeping(centre: Clustered, left: str) -> None:
    place = centre.root / FOLDER / "0123456789ab" / "data" / left
    place.parent.mkdir(parents=True)
    place.write_bytes(b"half of it")
    centre.empty_cache()
    assert centre.rows() == rows((1, 1), (2, 2), (3, 3))
    housekeep(centre.app, centre.receiver)
    assert centre.files(FOLDER) == [f"0123456789ab/data/{left}"], "its process may be at work still"
    centre.app.clock = lambda: time.time() + 2 * DAY
    housekeep(centre.app, centre.receiver)
    assert centre.files(FOLDER) == []


def test_coverage_does_not_call_missing_what_nodes_hold(centre: Clustered) -> None:
    before = coverage(centre.app, centre.receiver).as_json()
    centre.empty_cache()
    after = coverage(centre.app, centre.receiver).as_json()
    before.pop("at", None), after.pop("at", None)
    assert after == before


def test_grown_mods_of_a_file_that_was_given_up_load(tmp_path: Path, centre: Clustered) -> None:
    (tmp_path / "other").mkdir()
    centre = Clustered(tmp_path / "other")
    table, sender = centre.begin(*NODES), centre.sender()
    sender.land({source(1): d1((1, 1), (2, 2))})
    centre.load()
    centre.empty_cache()
    with centre.app.ledger.write() as connection:  # and one member lost it
        connection.exec_driver_sql("DELETE FROM node_copy WHERE node = 'n1'")
    for path in (centre.node("n1") / "data").rglob("*.tsfile"):
        path.unlink()
    sender.land({source(1): {".mods": deletion("root.sg.d1.s", 1, 1).encode()}})
    assert centre.load().exit_code == 0
    assert centre.rows() == rows((2, 2))
    everything_is_held(centre, table)
