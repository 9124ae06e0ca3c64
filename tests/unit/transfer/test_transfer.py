"""What a transfer promises, on stores in memory and on disk: verified, once, resumed, every failure named."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.memory_store import EndlessStore, MemoryStore
from tidemark.errors import (
    CorruptionError,
    DiskFullError,
    PermissionDeniedError,
    SourceVanishedError,
    TidemarkError,
    UnreachableError,
)
from tidemark.stores import retrying
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Range, Tier
from tidemark.stores.retrying import RetryingStore
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files

BLOCK = 1000
OPTIONS = SendOptions(block_bytes=BLOCK, retries=3)
OLD = 1_600_000_000
ENDS = (Tier.LOCAL, Tier.PYTHON, Tier.POSIX, Tier.SFTP)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(retrying, "LONGEST_PAUSE", 0.0)


@dataclass
class Faulty(MemoryStore):
    """Breaks on cue: `fail` maps a method to the errors it raises before it works again; `bend` changes bytes read."""

    fail: dict[str, list[TidemarkError]] = field(default_factory=dict)
    bend_reads: list[int] = field(default_factory=list)  # offsets of bytes to flip, one for each read of that byte
    calls: list[str] = field(default_factory=list)

    def _cue(self, method: str) -> None:
        self.calls.append(method)
        if self.fail.get(method):
            raise self.fail[method].pop(0)

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        self._cue("chunks")
        at = offset
        for piece in super().read_chunks(path, offset, length, size):
            yield self._bent(piece, at)
            at += len(piece)

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        self._cue("read_many")
        for path, data in super().read_many(paths, lengths):
            yield path, None if data is None else self._bent(data, 0)

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        self._cue("write_parts")
        super().write_parts(files)

    def write_part(self, path, offset, pieces, sync=False):  # type: ignore[no-untyped-def]
        self._cue("write_part")
        return super().write_part(path, offset, pieces, sync)

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        self._cue("seal_parts")
        super().seal_parts(renames)

    def _bent(self, data: bytes, at: int) -> bytes:
        for place in list(self.bend_reads):
            if at <= place < at + len(data):
                self.bend_reads.remove(place)
                bent = bytearray(data)
                bent[place - at] ^= 1
                data = bytes(bent)
        return data


def content(size: int, seed: int = 1) -> bytes:
    return (hashlib.sha512(str(seed).encode()).digest() * (size // 64 + 1))[:size]


def site(*sizes: int, tier: Tier = Tier.LOCAL) -> tuple[Faulty, list[SendItem]]:
    source = Faulty("site", tier)
    items = []
    for number, size in enumerate(sizes):
        source.put(f"data/{number}.tsfile", content(size, number), mtime=OLD)
        items.append(SendItem(f"data/{number}.tsfile", f"landing/{number}.tsfile", size))
    return source, items


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def names(store: MemoryStore) -> list[str]:
    return [entry.path for entry in store.list_files([""]).entries]


@pytest.mark.parametrize("tier", ENDS)
def test_every_file_arrives_with_the_digest_of_its_source(tier: Tier) -> None:
    source, items = site(0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 7, tier=tier)
    target = Faulty("centre")
    crossed: list[int] = []

    sent = list(send_files(source, target, items, OPTIONS, crossed.append))

    assert [type(one) for one in sent] == [Sent] * len(items)
    assert {one.item: one.sha256 for one in sent} == {item: sha(source.read(item.source_path)) for item in items}
    assert {one.verified for one in sent} == {"target" if tier is Tier.SFTP else "source"}
    assert [one.wire_bytes for one in sent] == [item.size for item in items]
    assert sum(crossed) == sum(item.size for item in items)
    assert names(target) == sorted(item.target_path for item in items)
    assert all(target.read(item.target_path) == source.read(item.source_path) for item in items)


@pytest.mark.parametrize("tier", ENDS)
def test_what_is_there_already_is_not_sent_again(tier: Tier) -> None:
    source, items = site(10, 3 * BLOCK, tier=tier)
    target = Faulty("centre")
    first = {one.item: one.sha256 for one in send_files(source, target, items, OPTIONS) if isinstance(one, Sent)}
    known = [SendItem(i.source_path, i.target_path, i.size, first[i]) for i in items]
    target.write_part("landing/1.tsfile.part.blocks", 0, [b"left over by a killed sender"])

    again = list(send_files(source, target, known if tier is Tier.SFTP else items, OPTIONS))

    assert [(one.wire_bytes, one.sha256) for one in again] == [(0, first[i]) for i in items]
    assert names(target) == ["landing/0.tsfile", "landing/1.tsfile"]


def test_other_content_under_the_final_name_is_replaced() -> None:
    source, items = site(10, 3 * BLOCK)
    target = Faulty("centre")
    target.put("landing/0.tsfile", content(10, 99))
    target.put("landing/1.tsfile", content(3 * BLOCK, 99))

    assert [one.wire_bytes for one in send_files(source, target, items, OPTIONS)] == [10, 3 * BLOCK]
    assert [target.read(i.target_path) for i in items] == [source.read(i.source_path) for i in items]


@pytest.mark.parametrize("tier", ENDS)
@pytest.mark.parametrize("died_at", range(14))
def test_a_killed_sender_resends_one_block_at_most(tier: Tier, died_at: int) -> None:
    """The process dies before any change at the target; what lies there survives (no power loss)."""
    source, items = site(5 * BLOCK + 3, tier=tier)
    left = [died_at]

    def die(_effect: str, _path: str) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1

    target = Faulty("centre", on_effect=die)
    crossed: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        list(send_files(source, target, items, OPTIONS, crossed.append))
        raise KeyboardInterrupt  # it was done before it could die
    target.on_effect = lambda _effect, _path: None
    unproven = tier is Tier.SFTP and target.stat(items[0].target_path) is not None  # whole, but nobody recorded its digest

    (sent,) = send_files(source, target, items, OPTIONS, crossed.append)

    assert isinstance(sent, Sent)
    assert target.read(items[0].target_path) == source.read(items[0].source_path)
    assert sum(crossed) <= items[0].size + (items[0].size if unproven else BLOCK)
    assert names(target) == [items[0].target_path]


@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_resumed_block_that_rotted_at_the_target_is_sent_again(bad: int) -> None:
    source, items = site(5 * BLOCK + 1)
    target = stopped_in_the_middle(source, items, blocks=5)
    part = bytearray(target.read("landing/0.tsfile.part"))
    part[bad * BLOCK + 17] ^= 1
    target.put("landing/0.tsfile.part", bytes(part))

    (sent,) = send_files(source, target, items, OPTIONS)

    assert isinstance(sent, Sent) and sent.wire_bytes == (5 - bad) * BLOCK + 1
    assert target.read("landing/0.tsfile") == source.read("data/0.tsfile")


@pytest.mark.parametrize("tier", ENDS)
def test_a_source_that_changed_between_two_tries_starts_over(tier: Tier) -> None:
    source, items = site(5 * BLOCK, tier=tier)
    target = stopped_in_the_middle(source, items, blocks=3)
    source.put("data/0.tsfile", content(5 * BLOCK, 77), mtime=OLD + 1)

    (sent,) = send_files(source, target, items, OPTIONS)

    assert isinstance(sent, Sent) and sent.wire_bytes == 5 * BLOCK
    assert target.read("landing/0.tsfile") == content(5 * BLOCK, 77)


def test_a_source_that_changed_without_a_trace_in_its_mtime_is_never_mixed() -> None:
    source, items = site(5 * BLOCK)
    target = stopped_in_the_middle(source, items, blocks=3)
    node = source._names["data/0.tsfile"]
    node.data = content(5 * BLOCK, 77)  # same size, mtime and inode

    (sent,) = send_files(source, target, items, OPTIONS)

    assert isinstance(sent, Sent)
    assert target.read("landing/0.tsfile") == content(5 * BLOCK, 77)


@pytest.mark.parametrize("tier", ENDS)
@pytest.mark.parametrize("journal", [b"", b"garbage", b'tidemark-blocks 1 {"wanted": 5000', b"tidemark-blocks 9 {}\n"])
def test_a_torn_or_foreign_journal_costs_bytes_not_truth(tier: Tier, journal: bytes) -> None:
    source, items = site(5 * BLOCK, tier=tier)
    target = Faulty("centre")
    target.put("landing/0.tsfile.part", content(2 * BLOCK, 5))
    target.put("landing/0.tsfile.part.blocks", journal)

    (sent,) = send_files(source, target, items, OPTIONS)

    assert isinstance(sent, Sent)
    assert target.read("landing/0.tsfile") == source.read("data/0.tsfile")


@pytest.mark.parametrize("tier", ENDS)
def test_a_journal_without_an_end_is_none(tier: Tier) -> None:
    source, items = site(5 * BLOCK, tier=tier)
    target = EndlessStore("centre")
    target.endless = ".blocks"
    target.put("landing/0.tsfile.part", content(2 * BLOCK, 5))

    (sent,) = send_files(source, target, items, OPTIONS)

    assert isinstance(sent, Sent)
    assert target.read("landing/0.tsfile") == source.read("data/0.tsfile")


def stopped_in_the_middle(source: Faulty, items: list[SendItem], blocks: int) -> Faulty:
    target = Faulty("centre")
    seen: list[int] = []
    stop = SendOptions(BLOCK, 3, should_stop=lambda: sum(seen) >= blocks * BLOCK)
    assert list(send_files(source, target, items, stop, seen.append)) == []
    assert target.stat(items[0].target_path) is None
    return target


def test_asked_to_stop_it_ends_between_two_files_without_a_word() -> None:
    source, items = site(*[2 * BLOCK] * 3)
    target = Faulty("centre")
    sent: list[Sent | Failed] = []
    for one in send_files(source, target, items, SendOptions(BLOCK, should_stop=lambda: bool(sent))):
        sent.append(one)
    assert len(sent) == 1


@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.POSIX])
@pytest.mark.parametrize("size", [500, 5 * BLOCK])
def test_a_bit_flipped_on_the_way_is_found_and_sent_again(tier: Tier, size: int) -> None:
    source, items = site(size, tier=tier)
    source.bend_reads = [size - 100]
    target = Faulty("centre")

    (sent,) = send_files(source, target, items, OPTIONS)

    assert isinstance(sent, Sent) and sent.wire_bytes > size
    assert target.read("landing/0.tsfile") == source.read("data/0.tsfile")
    assert sent.sha256 == sha(source.read("data/0.tsfile"))


@pytest.mark.parametrize("tier", [Tier.PYTHON, Tier.SFTP])
def test_bytes_that_never_agree_fail_and_name_the_block(tier: Tier) -> None:
    class Rotting(Faulty):
        def write_part(self, path, offset, pieces, sync=False):  # type: ignore[no-untyped-def]
            bent = (p[:-1] + bytes([p[-1] ^ 1]) if offset == 2 * BLOCK else p for p in pieces)
            return super().write_part(path, offset, bent, sync)

    source, items = site(5 * BLOCK, tier=tier)
    target = Rotting("centre")

    (failed,) = send_files(source, target, items, OPTIONS)

    assert isinstance(failed, Failed) and isinstance(failed.error, CorruptionError)
    assert "data/0.tsfile" in failed.error.message and f"at {2 * BLOCK}" in failed.error.message
    assert failed.wire_bytes > 5 * BLOCK
    assert target.stat("landing/0.tsfile") is None


def test_a_small_file_that_never_agrees_does_not_stop_its_bundle() -> None:
    class Rotting(Faulty):
        def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
            super().write_parts([(path, b"rot" if "/3." in path else data) for path, data in files])

    source, items = site(*range(10, 20))
    target = Rotting("centre")

    outcomes = {one.item.source_path: one for one in send_files(source, target, items, OPTIONS)}

    assert [path for path, one in outcomes.items() if isinstance(one, Failed)] == ["data/3.tsfile"]
    assert [n for n in names(target) if not n.endswith(".part")] == [f"landing/{n}.tsfile" for n in range(10) if n != 3]


@pytest.mark.parametrize("size", [500, 5 * BLOCK])
def test_an_expected_digest_is_enforced(size: int) -> None:
    source, items = site(size)
    item = SendItem(items[0].source_path, items[0].target_path, size, sha(b"something else"))
    target = Faulty("centre")

    (failed,) = send_files(source, target, [item], OPTIONS)

    assert isinstance(failed, Failed) and isinstance(failed.error, CorruptionError)
    assert target.stat(item.target_path) is None


@pytest.mark.parametrize("size", [500, 5 * BLOCK])
def test_a_prefix_of_a_growing_file_is_sent_and_nothing_more(size: int) -> None:
    source = Faulty("site")
    source.put("data/1.tsfile.mods", content(size) + b"grown since", mtime=OLD)
    item = SendItem("data/1.tsfile.mods", "landing/1.tsfile.mods", size)
    target = Faulty("centre")

    (sent,) = send_files(source, target, [item], OPTIONS)

    assert isinstance(sent, Sent) and sent.sha256 == sha(content(size))
    assert target.read("landing/1.tsfile.mods") == content(size)


def test_vanished_and_shrunk_sources_fail_by_name_and_the_rest_arrives() -> None:
    source, items = site(10, 20, 3 * BLOCK, 4 * BLOCK, 30)
    source.remove(["data/0.tsfile", "data/2.tsfile"])
    source.put("data/1.tsfile", b"short", mtime=OLD)
    source.put("data/3.tsfile", b"short", mtime=OLD)

    outcomes = {one.item.source_path: one for one in send_files(source, Faulty("centre"), items, OPTIONS)}

    for path in ("data/0.tsfile", "data/1.tsfile", "data/2.tsfile", "data/3.tsfile"):
        failed = outcomes[path]
        assert isinstance(failed, Failed) and isinstance(failed.error, SourceVanishedError), path
        assert path in failed.error.message and failed.wire_bytes == 0
    assert isinstance(outcomes["data/4.tsfile"], Sent)
    assert source.calls.count("chunks") == 0  # a gone file is not tried again and again


@pytest.mark.parametrize("size", [500, 5 * BLOCK])
def test_a_source_that_changes_while_it_is_read_is_read_again(size: int) -> None:
    class Restless(Faulty):
        changes = 1

        def read_chunks(self, path: str, offset: int, length: int, piece: int) -> Iterator[bytes]:
            came = list(super().read_chunks(path, offset, length, piece))
            self.change(path)
            yield from came

        def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None):  # type: ignore[no-untyped-def]
            came = list(super().read_many(paths, lengths))
            self.change(paths[0])
            yield from came

        def change(self, path: str) -> None:
            if self.changes:
                self.changes -= 1
                self.put(path, content(size, 88), mtime=OLD + 5)

    source = Restless("site")
    source.put("f", content(size), mtime=OLD)
    target = Faulty("centre")

    (sent,) = send_files(source, target, [SendItem("f", "t", size)], OPTIONS)

    assert isinstance(sent, Sent) and target.read("t") == content(size, 88)

    source.changes = 1000
    (failed,) = send_files(source, target, [SendItem("f", "t2", size)], OPTIONS)
    assert isinstance(failed, Failed) and isinstance(failed.error, SourceVanishedError)
    assert target.stat("t2") is None


@pytest.mark.parametrize("method", ["chunks", "read_many"])
@pytest.mark.parametrize("size", [500, 5 * BLOCK])
def test_a_source_that_drops_is_tried_again(method: str, size: int) -> None:
    source, items = site(size)
    source.fail = {method: [UnreachableError("dropped")] * 3}
    (sent,) = send_files(source, Faulty("centre"), items, OPTIONS)
    assert isinstance(sent, Sent)


@pytest.mark.parametrize("method", ["write_part", "write_parts", "seal_parts"])
@pytest.mark.parametrize("size", [500, 5 * BLOCK])
def test_a_target_that_drops_is_tried_again(method: str, size: int) -> None:
    source, items = site(size)
    target = Faulty("centre", fail={method: [UnreachableError("dropped")] * 3})
    (sent,) = send_files(source, target, items, OPTIONS)
    assert isinstance(sent, Sent)
    assert target.read(items[0].target_path) == source.read(items[0].source_path)


def test_a_lost_reply_to_the_seal_is_read_back() -> None:
    class ReplyLost(Faulty):
        lost = 0

        def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
            super().seal_parts(renames)
            if not self.lost:
                self.lost = 1
                raise UnreachableError("the reply was lost")

    source, items = site(500, 5 * BLOCK)
    outcomes = list(send_files(source, ReplyLost("centre"), items, OPTIONS))
    assert [type(one) for one in outcomes] == [Sent, Sent]
    assert [one.wire_bytes for one in outcomes] == [500, 5 * BLOCK]


def test_an_end_that_stays_away_fails_the_rest_at_once() -> None:
    source, items = site(*[10] * 5, *[2 * BLOCK] * 20)
    down = UnreachableError("down")
    target = Faulty("centre", fail={"write_parts": [down] * 1000, "write_part": [down] * 1000})

    outcomes = list(send_files(source, target, items, OPTIONS))

    assert [type(one) for one in outcomes] == [Failed] * 25
    assert {type(one.error) for one in outcomes if isinstance(one, Failed)} == {UnreachableError}
    assert target.calls.count("write_parts") + target.calls.count("write_part") == OPTIONS.retries + 1


def test_a_permanent_error_is_not_tried_again_and_hits_its_file_alone() -> None:
    bundles: list[int] = []

    class Closed(Faulty):
        def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
            bundles.append(len(files))
            if any("/2." in path for path, _ in files):
                raise PermissionDeniedError("not yours", subject="landing/2.tsfile")
            super().write_parts(files)

    source, items = site(10, 11, 12, 13)
    target = Closed("centre")

    outcomes = {one.item.source_path: one for one in send_files(source, target, items, OPTIONS)}

    assert [path for path, one in outcomes.items() if isinstance(one, Failed)] == ["data/2.tsfile"]
    assert bundles == [4, 2, 2, 1, 1]  # by halves, until it is known whose trouble it is


def test_no_space_is_seen_before_a_byte_is_sent() -> None:
    source, items = site(5 * BLOCK, 10)
    target = Faulty("centre", free=4 * BLOCK)

    outcomes = {one.item.size: one for one in send_files(source, target, items, OPTIONS)}

    failed = outcomes[5 * BLOCK]
    assert isinstance(failed, Failed) and isinstance(failed.error, DiskFullError) and failed.wire_bytes == 0
    assert isinstance(outcomes[10], Sent)


def test_retries_do_not_multiply_with_those_of_the_store() -> None:
    source, items = site(10)
    target = Faulty("centre", fail={"write_parts": [UnreachableError("down")] * 1000})
    list(send_files(source, RetryingStore(target), items, OPTIONS))
    assert target.calls.count("write_parts") == OPTIONS.retries + 1


def test_on_real_disks_with_a_thousand_files(tmp_path: Path) -> None:
    sizes = [*range(0, 3000, 3), 1 << 20, (1 << 20) + 1, 3 << 20]
    (tmp_path / "site").mkdir()
    for number, size in enumerate(sizes):
        (tmp_path / "site" / f"{number}").write_bytes(os.urandom(size))
    source, target = LocalStore(str(tmp_path / "site")), LocalStore(str(tmp_path / "centre"))
    items = [SendItem(str(number), f"l/{number}", size) for number, size in enumerate(sizes)]

    sent = list(send_files(source, target, items, SendOptions(block_bytes=1 << 20)))

    assert all(isinstance(one, Sent) for one in sent) and len(sent) == len(sizes)
    assert source.digest_ranges([Range(i.source_path) for i in items]) == target.digest_ranges(
        [Range(i.target_path) for i in items]
    )
    assert [one.item for one in sent] == items
    assert len(target.list_files(["l"]).entries) == len(sizes)


@pytest.mark.full
def test_on_a_slow_line_files_are_named_long_before_the_last_has_come(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    for number in range(50):
        (tmp_path / "site" / f"{number}").write_bytes(bytes(10_000))
    items = [SendItem(str(number), f"l/{number}", 10_000) for number in range(50)]
    source, target, crossed = LocalStore(str(tmp_path / "site")), LocalStore(str(tmp_path / "centre")), list[int]()

    slowly = SendOptions(bandwidth=100_000)
    told = [(one.item, sum(crossed)) for one in send_files(source, target, items, slowly, crossed.append)]

    assert [item for item, _ in told] == items
    assert told[0][1] < 400_000, "the first file waited for the others"
