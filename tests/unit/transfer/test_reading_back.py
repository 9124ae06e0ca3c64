"""Digests for which the bytes must cross: under the link's cap, and not long after the wish to stop."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from tests.memory_store import MemoryStore
from tidemark.errors import UnreachableError
from tidemark.stores.protocol import Range, StoreProperties, Tier
from tidemark.transfer.existing import read_digests
from tidemark.transfer.items import SendOptions, Wire
from tidemark.transfer.limits import TokenBucket

RATE = 80_000.0


class OverSftp(MemoryStore):
    @property
    def properties(self) -> StoreProperties:
        return replace(super().properties, tier=Tier.SFTP)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.longest = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.longest = max(self.longest, seconds)


def paced(store: MemoryStore, options: SendOptions) -> tuple[Wire, Clock]:
    wire, clock = Wire(MemoryStore(), store, options, lambda _count: None), Clock()
    wire.bucket = TokenBucket(RATE, lambda: clock.now, clock.sleep)
    return wire, clock


def test_it_takes_the_time_of_the_cap_in_short_sleeps_and_the_digests_are_right() -> None:
    store = OverSftp()
    data: dict[str, bytes] = {"large": bytes(range(256)) * 2000, "small": b"small", "empty": b""}
    for name, content in data.items():
        store.publish(name, content)
    wire, clock = paced(store, SendOptions(bandwidth=RATE))
    asked = [Range("large"), Range("gone"), Range("small"), Range("empty"), Range("large", 7, 300_000), Range("small", 0, 9)]

    found = read_digests(wire, store, asked)

    wanted: list[Any] = [data["large"], None, data["small"], data["empty"], data["large"][7:300_007], None]
    assert found == [None if part is None else hashlib.sha256(part).hexdigest() for part in wanted]
    assert clock.now == pytest.approx(812_005 / RATE, rel=0.03) and clock.longest < 0.5


def test_after_the_wish_to_stop_no_more_than_a_block_crosses() -> None:
    store = OverSftp()
    store.publish("large", bytes(1 << 20))
    wire, clock = paced(store, SendOptions(bandwidth=RATE, block_bytes=100_000, should_stop=lambda: clock.now > 2.0))
    with pytest.raises(UnreachableError) as stopped:
        read_digests(wire, store, [Range("large")])
    assert 2.0 < clock.now <= 2.0 + 100_000 / RATE + 0.2
    assert "large" in stopped.value.message and stopped.value.hint
