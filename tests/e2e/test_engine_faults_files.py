"""Files that are odd: names that are hard to write, a folder of 100,000, one of nothing, one of five gigabytes."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.engine_world import LONG_AGO, MB, World
from tests.e2e.store_ends import FASTEST_FIRST, TIERS
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.errors import PermanentError, TidemarkError
from tidemark.stores.agent.block_journal import journal_of
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Range, Store, Tier
from tidemark.stores.python.store import PythonStore
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]
WAYS = pytest.mark.parametrize("way", ["pull", "push"])
GB = 1 << 30


ODD_NAMES = [
    "with  spaces ",
    "-rf",
    "line\nbreak\r",
    "carriage\rreturn",
    "tab\t",
    "'single' \"double\" `back` $HOME $(id) \\n",
    "*?[a]{b,c}~#;&|<>!",
    "üñí 日本 🜁",
    "é",  # composed
    "e\u0301",  # and decomposed are two names
    "n" * 255,
    "日" * 85,  # 255 bytes
    "x" * 248 + ".tsfile",
    "x" * 248 + ".tsfilf",
    "\x01\x7f",
]


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("tier", "size"),
    [
        *((Tier.PYTHON, size) for size in (0, 700, 3 * MB)),
        *(pytest.param(tier, 700, marks=pytest.mark.full) for tier in (Tier.POSIX, Tier.SFTP)),
    ],
)
@WAYS
def test_names_that_are_hard_to_write(sshd: Sshd, tmp_path: Path, way: str, tier: Tier, size: int) -> None:
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put(f"d{n}/{name}", size) for n, name in enumerate(ODD_NAMES)]
    beside = [world.put(f"all/{name}", size and size - n) for n, name in enumerate(ODD_NAMES)]
    below = [world.put(f"{'f' * 255}/{'日' * 85}/{name}", size) for name in ODD_NAMES[:3]]
    assert world.arrived(world.move([*items, *beside, *below]))
    again = world.move([*items, *beside, *below])
    assert world.arrived(again)
    if way == "push" or tier is not Tier.SFTP:  # what such a source has is only known once it is read
        assert not any(one.wire_bytes for one in again.values())


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", TIERS)
@WAYS
def test_names_whose_digests_a_tool_tells_in_lines_of_another_form(sshd: Sshd, tmp_path: Path, way: str, tier: Tier) -> None:
    world = World.of(sshd, tmp_path, way, tier)
    names = ["carriage\rreturn", "back\\slash", "new\nline", "plain"]
    items = [world.put(f"{size}/{name}", size) for name in names for size in (700, MB + 1)]
    assert world.arrived(world.move(items, SendOptions(retries=0)))
    with world.ends() as (source, _):
        assert source.digest_ranges([Range("700/gone\rfor good"), Range(items[0].source_path)])[0] is None


@pytest.mark.full_after(1)
@WAYS
def test_a_file_with_the_longest_name_goes_on_from_its_blocks(sshd: Sshd, tmp_path: Path, way: str) -> None:
    world = World.of(sshd, tmp_path, way)
    item = world.put("n" * 255, 32 * MB)
    crossed: list[int] = []
    stopped = threading.Event()

    def stop() -> bool:
        if sum(crossed):
            stopped.set()
        return stopped.is_set()

    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.once_at(8 * MB, lambda: stopped.wait(15))
        world.port = wire.port
        with world.ends() as (source, target):
            assert list(send_files(source, target, [item], SendOptions(should_stop=stop), crossed.append)) == []
    world.port = 0
    assert all(name.startswith("landing/") and name.endswith((".part", ".part.blocks")) for name in world.names())
    outcomes = world.move([item])
    assert world.arrived(outcomes)
    assert outcomes[item].wire_bytes == 32 * MB - sum(crossed)


@pytest.mark.full_after(2)
@pytest.mark.parametrize("tier", FASTEST_FIRST)
@WAYS
@pytest.mark.parametrize("name", ["half \udcff name", "n" * 256, "a/../b", "nul\0l"])
def test_a_name_that_is_none_fails_alone_and_is_named(sshd: Sshd, tmp_path: Path, way: str, tier: Tier, name: str) -> None:
    world = World.of(sshd, tmp_path, way, tier)
    good = [world.put("good.small", 1000), world.put("good.large", 3 * MB)]
    for item in (SendItem(name, f"landing/{name}", 1000), SendItem(name, f"landing/{name}", 3 * MB)):
        outcomes = world.move([good[0], item, good[1]], SendOptions(retries=1))
        assert all(isinstance(outcomes[one], Sent) and world.is_whole(one) for one in good)
        failed = outcomes[item]
        assert isinstance(failed, Failed) and isinstance(failed.error, TidemarkError)
        assert any(word in failed.error.message for word in (name, repr(name)[1:-1]))
        for one in good:
            (world.centre / one.target_path).unlink()


@pytest.mark.full_after(2)
@pytest.mark.parametrize("size", [1000, 3 * MB])
@pytest.mark.parametrize("end", ["source", "target", "final name"])
@WAYS
def test_a_path_that_cannot_be_taken_fails_alone(sshd: Sshd, tmp_path: Path, way: str, end: str, size: int) -> None:
    """A folder of it lies below a symlink, or a folder has its name."""
    world = World.of(sshd, tmp_path, way)
    good = [world.put("good.small", 1000), world.put("good.large", 3 * MB)]
    bad = world.put("bad", size)
    if end == "source":
        (world.site / "real" / "y").mkdir(parents=True)
        (world.site / "bad").rename(world.site / "real" / "y" / "bad")
        (world.site / "x").symlink_to(world.site / "real")
        bad = SendItem("x/y/bad", "landing/bad", size)
    elif end == "target":
        (world.centre / "real").mkdir()
        (world.centre / "x").symlink_to(world.centre / "real")
        bad = SendItem("bad", "x/y/bad", size)
    else:
        (world.centre / "landing" / "bad").mkdir(parents=True)
    outcomes = world.move([bad, *good], SendOptions(retries=1))
    assert all(isinstance(outcomes[one], Sent) and world.is_whole(one) for one in good)
    failed = outcomes[bad]
    assert isinstance(failed, Failed) and "bad" in failed.error.message and failed.error.hint
    assert not list((world.centre / "real").rglob("bad*")) if end == "target" else True


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", TIERS)
@WAYS
@pytest.mark.parametrize("what", ["pipe", "symlink"])
def test_what_lies_in_the_place_of_a_journal_makes_room_for_it(
    sshd: Sshd, tmp_path: Path, way: str, tier: Tier, what: str
) -> None:
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put("large", 3 * MB), world.put("small", 500)]
    place, elsewhere = world.centre / journal_of(items[0].target_path), tmp_path / "elsewhere"
    place.parent.mkdir()
    elsewhere.write_text("of somebody else")
    os.mkfifo(place) if what == "pipe" else place.symlink_to(elsewhere)
    assert world.arrived(world.move(items))
    assert elsewhere.read_text() == "of somebody else"


@pytest.mark.full_after(1)
@pytest.mark.parametrize("end", ["source", "target"])
@WAYS
def test_a_file_whose_digest_cannot_be_had_is_its_own_trouble(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, end: str
) -> None:
    """Files that are there already are digested before the first byte; the disk cannot read one of them."""
    world = World.of(sshd, tmp_path, way)
    items = [world.put(f"{n}", 1000 + n) for n in range(9)]
    assert world.arrived(world.move(items))
    store = PythonStore if (end == "source") == (way == "pull") else LocalStore
    digests = store.digest_ranges

    def broken(self: Store, ranges: Sequence[Range]) -> Sequence[str | None]:
        if any(path.endswith("4") for path, _, _ in ranges):
            raise PermanentError("4: Input/output error", hint="look at the disk")
        return digests(self, ranges)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "digest_ranges", broken)
    outcomes = world.move(items)
    assert world.arrived(outcomes), "it is sent again"
    assert [item.source_path for item in items if outcomes[item].wire_bytes] == ["4"]


@pytest.mark.parametrize("way", [pytest.param("pull", marks=pytest.mark.full), pytest.param("push", marks=pytest.mark.soak)])
def test_a_hundred_thousand_files_in_one_folder(sshd: Sshd, in_memory: Path, way: str) -> None:
    world = World(sshd, way, in_memory / "site", in_memory / "centre")
    world.centre.mkdir()
    folder = world.site / "one"
    folder.mkdir(parents=True)
    count = 100_000
    for number in range(count):
        handle = os.open(folder / f"{number}.tsfile", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(handle, b"%d" % number)
        os.close(handle)
    items = [SendItem(f"one/{n}.tsfile", f"landing/one/{n}.tsfile", len(str(n))) for n in range(count)]
    with world.ends() as (source, target):
        listed = source.list_files(["one"]).entries
        assert sum(1 for _ in listed) == count
        sent = [one for one in send_files(source, target, items) if isinstance(one, Sent)]
    assert len({one.item for one in sent}) == len(sent) == count
    assert sum(one.wire_bytes for one in sent) == sum(item.size for item in items)
    found = {entry.name: Path(entry.path).read_bytes() for entry in os.scandir(world.centre / "landing" / "one")}
    assert found == {f"{number}.tsfile": b"%d" % number for number in range(count)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.soak
def test_five_gigabytes_with_holes_cut_in_the_middle(sshd: Sshd, tmp_path: Path, way: str) -> None:
    world = World.of(sshd, tmp_path, way)
    place, size = world.site / "large.tsfile", 5 * GB + 3
    with place.open("wb") as file:
        file.truncate(size)
        for at in (0, GB - 1, 2 * GB, (1 << 32) - 2, size - 5):
            file.seek(at)
            file.write(b"bytes")
        file.truncate(size)
    os.utime(place, (LONG_AGO, LONG_AGO))
    item = SendItem("large.tsfile", "landing/large.tsfile", size)
    options = SendOptions()
    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.cut_after(size // 2)
        world.port = wire.port
        (one,) = world.move([item], options).values()
        assert wire.cuts == 1
    assert isinstance(one, Sent), one
    assert size <= one.wire_bytes <= size + options.block_bytes
    target = world.centre / item.target_path
    assert target.stat().st_size == size and world.names() == [item.target_path]
    assert one.sha256 == _digest(target)  # which is the source's, as that is told
    target.unlink()


def _digest(place: Path) -> str:
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
