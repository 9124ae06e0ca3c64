"""Transfers that die anywhere, lose power, meet rot and changing sources: what was acknowledged stays, nothing is half."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.memory_store import MemoryStore
from tidemark.stores import retrying
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files

BLOCK = 64
OPTIONS = SendOptions(block_bytes=BLOCK, retries=2)

sizes = st.lists(st.integers(0, 5 * BLOCK), min_size=1, max_size=6)
deaths = st.lists(st.tuples(st.integers(0, 40), st.one_of(st.none(), st.integers(0, 10_000))), max_size=5)


class Died(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True, scope="module")
def no_pauses() -> Iterator[None]:
    before = retrying.FIRST_PAUSE, retrying.LONGEST_PAUSE
    retrying.FIRST_PAUSE = retrying.LONGEST_PAUSE = 0.0
    yield
    retrying.FIRST_PAUSE, retrying.LONGEST_PAUSE = before


@contextmanager
def dying(target: MemoryStore, after: int) -> Iterator[None]:
    left = [after]

    def on_effect(_effect: str, _path: str) -> None:
        if left[0] == 0:
            raise Died
        left[0] -= 1

    target.on_effect = on_effect
    try:
        yield
    except Died:
        event("died")
    finally:
        target.on_effect = lambda _effect, _path: None


def bytes_of(seed: int, size: int) -> bytes:
    return Random(seed).randbytes(size)


def finals(target: MemoryStore) -> dict[str, bytes]:
    paths = [entry.path for entry in target.list_files([""]).entries]
    return {path: target.read(path) for path in paths if not path.endswith((".part", ".part.blocks"))}


@given(sizes, st.sampled_from(Tier), deaths, st.booleans())
def test_killed_and_powerless_senders_end_with_every_file_once_and_whole(
    sizes: list[int], tier: Tier, deaths: list[tuple[int, int | None]], power: bool
) -> None:
    source, target = MemoryStore("site", tier), MemoryStore("centre")
    for number, size in enumerate(sizes):
        source.put(f"f{number}", bytes_of(number, size), mtime=1_600_000_000)
    wanted = {f"t{number % 2}/f{number}": bytes_of(number, size) for number, size in enumerate(sizes)}
    items = [SendItem(path.partition("/")[2], path, len(data)) for path, data in wanted.items()]
    acknowledged: set[str] = set()

    for after, seed in deaths:
        with dying(target, after):
            for one in send_files(source, target, items, OPTIONS):
                assert isinstance(one, Sent)
                acknowledged.add(one.item.target_path)
        if power:
            target.crash(None if seed is None else Random(seed))
        assert finals(target).items() <= wanted.items()
        assert acknowledged <= finals(target).keys()

    assert all(isinstance(one, Sent) for one in send_files(source, target, items, OPTIONS))
    assert finals(target) == wanted
    target.crash()
    assert finals(target) == wanted


@given(
    st.integers(BLOCK + 1, 6 * BLOCK),
    st.sampled_from(Tier),
    st.integers(0, 30),
    st.integers(0, 6 * BLOCK),
    st.booleans(),
    st.booleans(),
)
def test_rot_in_a_part_and_change_at_the_source_never_reach_a_final_name(
    size: int, tier: Tier, after: int, where: int, rot: bool, change: bool
) -> None:
    source, target = MemoryStore("site", tier), MemoryStore("centre")
    source.put("f", bytes_of(1, size), mtime=1_600_000_000)
    item = SendItem("f", "t", size)
    with dying(target, after):
        list(send_files(source, target, [item], OPTIONS))
    part = bytearray(target.read("t.part")) if target.stat("t.part") else bytearray()
    if rot and part:
        part[where % len(part)] ^= 0x40
        target.put("t.part", bytes(part))
    if change:
        source.put("f", bytes_of(2, size), mtime=1_600_000_007)

    (sent,) = send_files(source, target, [item], OPTIONS)

    assert isinstance(sent, Sent)
    assert finals(target) == {"t": bytes_of(2 if change else 1, size)}
