"""Schema logs by position: what grew is sent, what began anew is sent from its start under the next epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.crash.edge import path_of
from tests.crash.sync_world import SyncWorld
from tidemark.ledger.sender.links import SchemaPosition
from tidemark.stores.protocol import Entry
from tidemark.sync.schema import Piece, plan_piece

LOG = "system/schema/mlog.bin"


def known(data: bytes, epoch: int = 1) -> SchemaPosition:
    return SchemaPosition(LOG, len(data), 5, hashlib.sha256(data).hexdigest(), epoch)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_pieces() -> None:
    assert plan_piece(Entry(LOG, 5, 1), None, None) == Piece(LOG, 1, 0, 5, 1)
    assert plan_piece(Entry(LOG, 0, 1), None, None) is None
    assert plan_piece(Entry(LOG, 8, 1), known(b"12345"), digest(b"12345")) == Piece(LOG, 1, 5, 8, 1)
    assert plan_piece(Entry(LOG, 5, 1), known(b"12345"), digest(b"12345")) is None
    assert plan_piece(Entry(LOG, 3, 1), known(b"12345"), None) == Piece(LOG, 2, 0, 3, 1, began_anew=True)
    assert plan_piece(Entry(LOG, 9, 1), known(b"12345"), digest(b"abcde")) == Piece(LOG, 2, 0, 9, 1, began_anew=True)


@pytest.fixture
def world() -> Iterator[SyncWorld]:
    world = SyncWorld.in_memory()
    world.edge.seal(path_of(1))
    yield world
    world.close()


def test_a_log_is_put_together_from_its_pieces(world: SyncWorld) -> None:
    for piece in (b"first;", b"second;", b"third;"):
        world.edge.append_schema(LOG, piece)
        assert world.sync().schema == len(piece)
    assert world.sync().state == "nothing"
    assert world.schema() == {LOG: b"first;second;third;"}


@pytest.mark.full_after(1)
@pytest.mark.parametrize("after", [b"", b"new;", b"FIRST;", b"another and longer than before;"])
def test_a_log_that_began_anew(world: SyncWorld, after: bytes) -> None:
    world.edge.append_schema(LOG, b"first;")
    world.sync()
    world.edge.clock += 1
    world.edge.ground.put(LOG, after, world.edge.clock)
    world.sync()
    assert world.schema() == {LOG: after}
    assert world.sync().state == "nothing"


def test_every_log_below_the_schema_folder(world: SyncWorld) -> None:
    logs = {
        f"system/schema/root.a/{n}/{name}": b"x" * n
        for n in (1, 2)
        for name in ("mlog.bin", "tlog.txt", "mtree.snapshot.bin")
    }
    for path, data in logs.items():
        world.edge.append_schema(path, data)
    world.edge.append_schema("system/schema/mtree.snapshot.temp", b"being written")
    world.sync()
    assert world.schema() == logs


def test_schema_comes_in_the_first_landing_of_a_run(world: SyncWorld) -> None:
    world.edge.append_schema(LOG, b"first;")
    world.sync()
    assert [len(m.schema) for m in world.manifests()] == [1]
