"""A store that a capture takes over, or that one died of taking over: its end is not known, and nobody takes it for less."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.bootstrap_worlds import read, write_settings
from tests.commanded import run_here
from tests.delivery_worlds import World, changes_of, expected_changes, fill_store
from tests.services import mariadb
from tidemark.changes.delivery.storage_points import locate, point_at
from tidemark.changes.delivery.stream import Options
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader, open_whole
from tidemark.errors import RetryableError


def claim(root: Path, fence: int = 9) -> Path:
    """As a capture leaves it that died between its claim and its record."""
    path = root / "holders" / f"{fence}.claim"
    path.write_bytes(b"")
    return path


def test_a_point_behind_what_is_certain_is_not_taken_for_one_of_another_store(tmp_path: Path) -> None:
    disk = fill_store(tmp_path, 1, 20)
    point = point_at(Reader(disk), 21, 1)
    claim(tmp_path)
    with pytest.raises(RetryableError, match="taken over by a capture"):
        locate(disk, point, "task billing, shard 0")
    with pytest.raises(RetryableError, match=r"the end of the change store .* is not known"):
        open_whole(disk, patience=0)


def test_who_wants_the_end_waits_for_the_next_holder(tmp_path: Path) -> None:
    disk = fill_store(tmp_path, 1, 20)
    claim(tmp_path)
    capture = threading.Timer(0.3, lambda: fill_store(tmp_path, 21, 25, fence=10))
    capture.start()
    assert open_whole(disk).view.end.seq >= 20
    capture.join()
    assert open_whole(disk).view.end.seq == 25


def test_a_member_that_begins_meanwhile_gets_every_row(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.member(Options(follow=False, beat_seconds=0.05)) as stream:
        first = [change for batch in stream for change in changes_of(batch) if batch.done()]
    left = claim(tmp_path / "store")
    with world.member(Options(beat_seconds=0.05)) as stream:
        assert stream.next_batch(patience=0.5) is None
        left.unlink()
        fill_store(tmp_path / "store", world.last + 1, world.last + 5, fence=10)
        second: list[tuple[int, int]] = []
        while (batch := stream.next_batch(patience=3.0)) is not None:
            second += changes_of(batch)
            batch.done()
    assert sorted([*first, *second]) == sorted(expected_changes(1, world.last + 5))
    world.ledger.close()


@pytest.mark.full
@pytest.mark.real("mariadb")
def test_the_next_capture_does_not_begin_anew(tmp_path: Path) -> None:
    with closing(mariadb.start()) as server:
        server.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
        server.run("FLUSH BINARY LOGS")
        config = write_settings(tmp_path, server)
        assert run_here(config, "changes", "capture", "orders").code == 0
        server.run("INSERT INTO d.t VALUES (3)", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (4)")
        before = run_here(config, "changes", "show", "orders").json["sources"][0]
        claim(tmp_path / "store", 50)
        claimed = run_here(config, "changes", "show", "orders").json["sources"][0]
        assert before["newest"] == "seq:1" and {**claimed, "lag_seconds": 0} == {**before, "lag_seconds": 0}
        run_here(config, "changes", "capture", "orders", "--from", "earliest").refused(2, "has changes already")
        assert run_here(config, "changes", "capture", "orders").code == 0
        rows = [(line["op"], *line["after"]) for line in read(config) if line["k"] == "row"]
        assert rows == [("R", 1), ("R", 2), ("I", 3), ("I", 4)]
        assert run_here(config, "changes", "verify", "orders", "--deep").json["differences"] == []
        assert Reader(Disk(tmp_path / "store")).view.is_claimed is False
