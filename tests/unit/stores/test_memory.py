"""The store in memory: it conforms, and a power loss leaves exactly what its model says."""

from __future__ import annotations

from random import Random

import pytest

from tests.memory_store import MemoryStore
from tests.unit.stores.store_conformance import Place, StoreConformance
from tidemark.stores.protocol import Store, Tier


class MemoryPlace:
    def __init__(self, store: MemoryStore) -> None:
        self.store = store

    def put(self, path: str, data: bytes, mtime: int = 0) -> None:
        self.store.put(path, data, mtime)

    def get(self, path: str) -> bytes | None:
        return self.store.read(path) if self.store.stat(path) else None

    def names(self) -> list[str]:
        return [entry.path for entry in self.store.list_files([""]).entries]


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def memory(self) -> MemoryStore:
        return MemoryStore()

    @pytest.fixture
    def store(self, memory: MemoryStore) -> Store:
        return memory

    @pytest.fixture
    def place(self, memory: MemoryStore) -> Place:
        return MemoryPlace(memory)


def names(store: MemoryStore) -> list[str]:
    return [entry.path for entry in store.list_files([""]).entries]


def test_a_power_loss_keeps_what_was_published_or_sealed() -> None:
    store = MemoryStore()
    store.publish("a/manifest.json", b"whole")
    store.write_parts([("a/1.part", b"one"), ("a/2.part", b"two")])
    store.seal_parts([("a/1.part", "a/1"), ("a/2.part", "a/2")])
    store.write_part("a/3.part", 0, [b"not sealed"])
    store.crash()
    assert names(store) == ["a/1", "a/2", "a/manifest.json"]
    assert store.read("a/1") == b"one"


def test_a_synced_part_keeps_its_bytes_once_its_name_is_safe() -> None:
    store = MemoryStore()
    store.publish("a/x", b"syncs the folder")
    store.write_part("a/f.part", 0, [b"1234"], sync=True)
    store.publish("a/y", b"again")
    store.write_part("a/f.part", 4, [b"5678"])
    store.crash()
    assert store.read("a/f.part") == b"1234"


def test_with_chance_a_power_loss_keeps_names_in_order_and_may_tear_bytes() -> None:
    contents, orders = set(), set()
    for seed in range(200):
        store = MemoryStore()
        store.write_part("a/first", 0, [b"0123456789"])
        store.write_part("a/second", 0, [b"x"])
        store.crash(Random(seed))
        orders.add(tuple(names(store)))
        if store.stat("a/first"):
            contents.add(store.read("a/first"))
    assert orders == {(), ("a/first",), ("a/first", "a/second")}
    assert b"" in contents and b"0123456789" in contents and len(contents) > 4


def test_every_change_can_be_stopped_before_it_happens() -> None:
    seen: list[tuple[str, str]] = []
    store = MemoryStore(on_effect=lambda effect, path: seen.append((effect, path)))
    store.write_parts([("in/1.part", b"one")])
    store.seal_parts([("in/1.part", "in/1")])
    store.link([("in/1", "snap/1")])
    store.remove(["in/1"])
    assert seen == [
        ("write", "in/1.part"),
        ("sync", "in/1.part"),
        ("rename", "in/1"),
        ("sync_folder", "in"),
        ("link", "snap/1"),
        ("remove", "in/1"),
    ]


def test_it_can_stand_for_any_far_end() -> None:
    assert MemoryStore(tier=Tier.SFTP).properties.tier is Tier.SFTP
