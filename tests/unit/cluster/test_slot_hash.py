"""The slot of a database and a partition: the original's, bit for bit, and ours over every byte."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tidemark.cluster.slots.hash_ring import SlotHash, data_slot, murmur3, schema_slot

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "slot_vectors.json").read_text())


def test_the_hash_is_murmur3() -> None:
    told = VECTORS["self_check"]
    assert [f"{half:016x}" for half in murmur3(b"hello", 0)] == [told["h1"], told["h2"]]


@pytest.mark.parametrize("row", VECTORS["slots"], ids=lambda row: f"{row['storage_group']}-{row['partition']}")
def test_compat_gives_the_slots_of_the_original(row: dict[str, Any]) -> None:
    assert data_slot(row["storage_group"], row["partition"], 10_000, SlotHash.COMPAT) == row["slot"]


def test_compat_routes_a_schema_as_data_of_time_0() -> None:
    assert schema_slot("root.sg", 10_000, SlotHash.COMPAT) == data_slot("root.sg", 0, 10_000, SlotHash.COMPAT) == 5806


def test_full_spreads_the_partitions_of_every_name() -> None:
    """Those of a name beyond ASCII share slots in the original."""
    for name in ("root.sg", "root.电", "root.Ω" * 9, ""):
        slots = {data_slot(name, partition, 10_000) for partition in range(-50, 50)}
        assert len(slots) > 95 and all(0 <= slot < 10_000 for slot in slots)
    assert len({data_slot("root.电", partition, 10_000, SlotHash.COMPAT) for partition in range(50)}) < 3


def test_full_fills_all_slots_alike() -> None:
    counts = Counter(data_slot(f"root.sg{number}", 2_700 + number % 7, 100) for number in range(20_000))
    assert len(counts) == 100 and min(counts.values()) > 130 and max(counts.values()) < 280


def test_full_routes_a_schema_by_the_name_alone() -> None:
    assert schema_slot("root.sg", 10_000) == schema_slot("root.sg", 10_000) != schema_slot("root.sg1", 10_000)
