"""Storage points in the store that they are of, in another one, and where retention was there before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.delivery_worlds import LIMITS, SERVER, World, fill_store, gtids_at, make_transaction
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.storage_points import (
    Place,
    Places,
    add_gtids,
    in_order,
    locate,
    point_at,
    point_fields,
    read_point_fields,
)
from tidemark.changes.delivery.stream import Options
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.read import Reader, Stretch
from tidemark.changes.store.write import Writer
from tidemark.errors import PermanentError
from tidemark.ledger.delivery import StoragePoint


def store_of(folder: Path, order: list[int], change_id: int) -> Disk:
    """A store of another server that committed the same transactions in some order, in logs of its own."""
    disk, known = Disk(folder), ""
    with Writer(disk, 1, LIMITS) as writer:
        for place, number in enumerate(order, 1):
            transaction = make_transaction(number, 3)
            info = transaction.info._replace(change_id=change_id, file=9, offset=place * 10)
            known = add_gtids(known, [transaction.gtid])
            writer.append(transaction._replace(info=info, gtid_offset=place), known)
    return disk


@pytest.mark.parametrize("seq", [1, 2, 37, 60, 61])
def test_in_its_own_store(tmp_path: Path, seq: int) -> None:
    disk = fill_store(tmp_path, 1, 60)
    point = point_at(Reader(disk), seq, 1)
    assert point.gtids == gtids_at(seq - 1)
    start = locate(disk, point, "a task")
    assert (start.seq, start.index, start.known) == (seq, 0, "")


ORDERS_OF_COMMIT = [
    [*range(1, 31)],
    [*range(1, 21), *range(30, 20, -1)],
    [*range(1, 19), 23, 22, 21, 20, 19, *range(24, 31)],
    [*range(30, 0, -1)],
]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("order", ORDERS_OF_COMMIT)
def test_in_a_store_of_another_server_nothing_is_lost(tmp_path: Path, order: list[int], rows: int) -> None:
    """A consumer that changes the store after every batch, or after every second one of a half transaction."""
    world = World(tmp_path, 1)
    disks = [store_of(tmp_path / "one", [*range(1, 31)], 1), store_of(tmp_path / "two", order, 1)]
    seen: list[str] = []

    def note(batch: Batch) -> bool:
        seen.extend(f"{row['gtid']} {row['i']}" for row in batch.to_pylist())
        return batch.done()

    for turn in range(200):
        world.disk = disks[turn % 2]
        with world.member(Options(rows=rows, follow=False), shards=1) as stream:
            batches = [batch for _ in range(4 - rows) if (batch := stream.next_batch()) is not None and note(batch)]
            if not batches:
                break
    every = sorted(f"{SERVER}:{number} {row}" for number in range(1, 31) for row in range(3))
    assert set(seen) == set(every)
    assert rows == 2 or sorted(seen) == every  # of a half transaction some may come again, where others are before it
    world.ledger.close()


def swap_neighbours(seed: int, last: int) -> list[int]:
    """Numbers 1 to `last`, of which those of each ten are in any order."""
    choice = Random(seed)
    return [number for ten in range(1, last + 1, 10) for number in choice.sample(range(ten, min(ten + 10, last + 1)), 10)]


@pytest.mark.parametrize("order", [[*range(1, 301)], swap_neighbours(1, 300)], ids=["own", "another server's"])
def test_many_points_are_found_as_each_alone_and_a_block_is_read_once(
    tmp_path: Path, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun, in the middle of a transaction, behind the last one, and several of one place."""
    one, disk = (store_of(tmp_path / name, numbers, 1) for name, numbers in (("one", [*range(1, 301)]), ("two", order)))
    reader, choice = Reader(one), Random(2)
    points = {0: StoragePoint(), 1: point_at(reader, 301, 1)}
    for shard in range(2, 200):
        seq = choice.randrange(1, 301)
        points[shard] = Place(seq, choice.choice([0, 0, 1]), next(reader.read_stretches(seq))).as_point(1)
    alone = {shard: (locate(disk, point, "a task"), Places(disk).settle(point, "a task")) for shard, point in points.items()}
    blocks: list[int] = []

    class Counted(Reader):
        def read_stretches(self, *asked: Any, **more: Any) -> Iterator[Stretch]:
            for stretch in super().read_stretches(*asked, **more):
                blocks.append(stretch.before.seq)
                yield stretch

    there = {stretch.before.seq for stretch in Reader(disk).read_stretches(1)}
    monkeypatch.setattr("tidemark.changes.delivery.storage_points.Reader", Counted)
    places = Places(disk)
    found = {shard: (places.locate(point, "a task"), places.settle(point, "a task")) for shard, point in in_order(points)}
    assert found == alone
    assert len({start.seq for start, _ in found.values()}) > 50 and any(start.half for start, _ in found.values())
    assert set(blocks) <= there and len(there) > 10
    assert len(blocks) <= 2 * len(there), "a block is read once, and once more where a half done transaction was looked for"


def test_a_store_that_lacks_what_is_done_is_refused(tmp_path: Path) -> None:
    point = point_at(Reader(fill_store(tmp_path / "one", 1, 30)), 21, 1)
    with pytest.raises(PermanentError, match="ahead of the store"):
        locate(store_of(tmp_path / "two", [*range(1, 10)], 1), point, "a task")


def test_without_gtids_another_store_is_refused(tmp_path: Path) -> None:
    point = replace(point_at(Reader(fill_store(tmp_path / "one", 1, 30)), 21, 1), gtids="")
    with pytest.raises(PermanentError, match="no GTIDs"):
        locate(store_of(tmp_path / "two", [*range(1, 25)], 1), point, "a task")


def test_sets_of_both_kinds_grow() -> None:
    assert add_gtids("", ["", ""]) == ""
    assert add_gtids(f"{SERVER}:1-3", ["", f"{SERVER}:4", f"{SERVER}:6"]) == f"{SERVER}:1-4:6"
    assert add_gtids("0-1-5,1-1-7", ["0-1-6", "1-2-8", "0-2-7"]) == "0-2-7,1-2-8"


def test_fields_that_no_ledger_holds_are_no_point() -> None:
    fields = point_fields(StoragePoint(version_ts=7))
    assert read_point_fields(fields) == StoragePoint(version_ts=7)
    for name, value in [("versionTs", -1), ("versionTs", 1 << 62), ("transactionId", 10**30), ("binlogOffset", -(1 << 63))]:
        with pytest.raises(ValueError, match="range"):
            read_point_fields({**fields, name: value})
