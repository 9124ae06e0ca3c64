"""A node's folder on a disk and in memory; what a power loss and a kill at every effect leave of it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.explorer import Died
from tests.memory_store import MemoryStore
from tests.unit.cluster.node_folder_conformance import NodeFolderConformance
from tests.unit.stores.store_conformance import FolderPlace, Place
from tests.unit.stores.test_memory import MemoryPlace
from tidemark.cluster.nodes.folder import NodeFolder
from tidemark.errors import DiskFullError
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Store


class TestOnDisk(NodeFolderConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(str(tmp_path / "node"))

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return FolderPlace(tmp_path / "node")

    def test_a_snapshot_costs_no_bytes(self, store: Store, place: Place, tmp_path: Path) -> None:
        place.put("data/a", b"a" * 100_000)
        taken = NodeFolder(store, "n1").create_snapshot(["data/a"], "move")
        root = tmp_path / "node"
        assert (root / taken.paths["data/a"]).stat().st_ino == (root / "data/a").stat().st_ino


class TestInMemory(NodeFolderConformance):
    @pytest.fixture
    def memory(self) -> MemoryStore:
        return MemoryStore()

    @pytest.fixture
    def store(self, memory: MemoryStore) -> Store:
        return memory

    @pytest.fixture
    def place(self, memory: MemoryStore) -> Place:
        return MemoryPlace(memory)


LOCATIONS = ["data/a", "data/b", "data/c"]


def life(folder: NodeFolder) -> None:
    """A node joins, gets tables and a schema, gives a slot away and leaves."""
    folder.claim_folder("c1")
    known = folder.read_table()
    for epoch in (1, 2, 3):
        if known is None or known[0] < epoch:
            folder.put_table(epoch, f"table {epoch}".encode())
            assert folder.read_table() == (epoch, f"table {epoch}".encode())
    folder.put_schema("root.a", b"schema")
    taken = folder.create_snapshot(LOCATIONS, "move")
    assert [folder.store.read(path) for path in taken.paths.values()] == [b"data/a", b"data/b", b"data/c"]
    folder.drop_snapshot("move")
    assert folder.read_table() == (3, b"table 3")
    assert folder.read_schema("root.a") == b"schema"


def a_node() -> MemoryStore:
    store = MemoryStore()
    NodeFolder(store, "n1").claim_folder("c1")
    store.crash()  # nothing but what is durable: the claim is
    for location in LOCATIONS:
        store.put(location, location.encode())
    return store


def effects_of_a_life() -> int:
    effects: list[str] = []
    store = a_node()
    store.on_effect = lambda effect, _path: effects.append(effect)
    life(NodeFolder(store, "n1"))
    return len(effects)


@pytest.mark.parametrize("power_too", [False, True])
def test_a_life_that_dies_anywhere_is_lived_again(power_too: bool) -> None:
    total = effects_of_a_life()
    assert total > 20
    for die_at in range(1, total + 1):
        store, count = a_node(), 0

        def dying(effect: str, _path: str) -> None:
            nonlocal count
            count += 1
            if count >= die_at:  # noqa: B023 - it is called in this round alone
                raise Died(effect)

        store.on_effect = dying
        with pytest.raises(Died):
            life(NodeFolder(store, "n1"))
        store.on_effect = lambda _effect, _path: None
        if power_too:
            store.crash(Random(die_at))
        NodeFolder(store, "n1").require_owner("c1")

        life(NodeFolder(store, "n1"))

        assert NodeFolder(store, "n1").list_leftovers(LOCATIONS) == []
        assert NodeFolder(store, "n1").list_snapshots() == []


def test_what_was_put_survives_a_power_loss() -> None:
    store = MemoryStore()
    folder = NodeFolder(store, "n1")
    folder.claim_folder("c1")
    folder.put_table(1, b"one")
    folder.put_schema("root.a", b"schema")

    store.crash()

    folder.require_owner("c1")
    assert folder.read_table() == (1, b"one")
    assert folder.read_schema("root.a") == b"schema"


def test_a_full_node_can_still_be_read_from() -> None:
    """It is what an operator adds nodes for: no link is to be had there, the files are."""
    store = a_node()

    def full(effect: str, path: str) -> None:
        if effect == "link":
            raise DiskFullError(f"no space at {path}")

    store.on_effect = full
    taken = NodeFolder(store, "n1").create_snapshot(LOCATIONS, "move")
    assert not taken.linked
    assert dict(taken.paths) == {location: location for location in LOCATIONS}
