"""A pull that goes on from what an earlier try left: it is compared while the missing bytes flow, and nothing is mixed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

import pytest

from tests.e2e.engine_world import LONG_AGO, MB, World, every_line_is_long
from tests.e2e.sending_process import PLUGINS, PROGRAM
from tests.services.sshd import Sshd
from tidemark.errors import SourceVanishedError
from tidemark.stores.agent import part_file
from tidemark.stores.agent.block_journal import Block, Identity, decode_journal, encode_header, journal_at, part_at
from tidemark.stores.agent.disk import Disk
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.limits import FileDeadlines
from tidemark.transfer.stream import connections as line
from tidemark.transfer.stream import pull
from tidemark.transfer.stream import verify as proving
from tidemark.transfer.stream.schedule import Schedule

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]

BLOCK = MB


@pytest.fixture
def world(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(pull, "COMPARED", BLOCK)
    return World.of(sshd, tmp_path, "pull")


def places(world: World, item: SendItem) -> tuple[Path, Path]:
    """Of its part and its journal."""
    place = os.fsencode(world.centre / item.target_path)
    return Path(os.fsdecode(part_at(place))), Path(os.fsdecode(journal_at(place)))


def leave(world: World, item: SendItem, *kept: tuple[int, int], rotten: tuple[int, ...] = ()) -> None:
    """What an earlier try brought of it, (offset, end) each; bytes at `rotten` are others since."""
    content = (world.site / item.source_path).read_bytes()
    part, journal = places(world, item)
    part.parent.mkdir(parents=True, exist_ok=True)
    blocks = [
        Block(start, min(BLOCK, end - start), hashlib.sha256(content[start : min(start + BLOCK, end)]).hexdigest())
        for offset, end in kept
        for start in range(offset, end, BLOCK)
    ]
    data = bytearray(max(end for _, end in kept))
    for offset, end in kept:
        data[offset:end] = content[offset:end]
    for at in rotten:
        data[at] ^= 1
    part.write_bytes(data)
    info = (world.site / item.source_path).stat()
    known = Identity(item.size, int(info.st_mtime), info.st_ino)
    journal.write_bytes(encode_header(known) + b"".join(block.encode_line() for block in blocks))


def options(**others: object) -> SendOptions:
    return SendOptions(**{"block_bytes": BLOCK, "retries": 0, **others})  # type: ignore[arg-type]


def brought(world: World, item: SendItem, asked: SendOptions | None = None) -> int:
    """The bytes that one transfer needs for it to arrive."""
    outcomes = world.move([item], asked or options())
    assert world.arrived(outcomes)
    return outcomes[item].wire_bytes


@pytest.mark.full_after(2)
@pytest.mark.parametrize("long", [False, True], ids=["short line", "long line"])
@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        ([(0, 5 * MB)], 3 * MB),
        ([(2 * MB, 4 * MB), (5 * MB, 8 * MB)], 3 * MB),
        ([(0, 8 * MB)], 0),
        ([(0, 1000), (MB, MB + 7)], 8 * MB - 1007),
    ],
    ids=["a beginning", "some in the middle", "all of it", "odd pieces"],
)
def test_what_is_there_does_not_cross_again(
    world: World, monkeypatch: pytest.MonkeyPatch, kept: list[tuple[int, int]], missing: int, long: bool
) -> None:
    if long:
        every_line_is_long(monkeypatch)
        monkeypatch.setattr(Schedule, "_ask_twice", lambda *_: None)  # what a slow connection owes comes by another one, too
    item = world.put("f", 8 * MB)
    leave(world, item, *kept)
    assert brought(world, item) == missing


def test_where_all_have_journals_bytes_are_asked_for_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [world.put("f", 3 * MB), world.put("g", 2 * MB), world.put("small", 1000)]
    for item in items[:2]:
        leave(world, item, (0, MB))
    with world.ends() as (source, target):
        monkeypatch.setattr(source, "stat_many", None)
        outcomes = {one.item: one for one in send_files(source, target, items, options(retries=1))}
    assert world.arrived(outcomes) and len(outcomes) == 3


def test_a_source_that_is_gone_or_shorter_since_is_its_own_trouble(world: World) -> None:
    items = [world.put("gone", 3 * MB), world.put("short", 3 * MB), world.put("good", 3 * MB)]
    for item in items:
        leave(world, item, (0, MB))
    (world.site / "gone").unlink()
    os.truncate(world.site / "short", 2 * MB)
    os.utime(world.site / "short", (LONG_AGO, LONG_AGO))
    outcomes = world.move(items, options())
    assert world.no_half_file(outcomes) and isinstance(outcomes[items[2]], Sent)
    for item in items[:2]:
        failed = outcomes[item]
        assert isinstance(failed, Failed) and isinstance(failed.error, SourceVanishedError) and failed.error.hint


@pytest.mark.full_after(1)
@pytest.mark.parametrize("leases", [True, False], ids=["leases", "no leases"])
@pytest.mark.parametrize("digest", [True, False], ids=["both ends", "target only"])
def test_kept_pieces_that_rotted_come_again_and_cost_no_try(
    world: World, monkeypatch: pytest.MonkeyPatch, digest: bool, leases: bool
) -> None:
    if not leases:
        monkeypatch.delattr(fcntl, "F_SETLEASE")
    item = world.put("f", 12 * MB)
    leave(world, item, (0, 9 * MB), rotten=(17, 3 * MB, 5 * MB - 1, 9 * MB - 1))
    assert brought(world, item, options(digest_at_source=digest)) == 3 * MB + 4 * BLOCK


def flip(part: Path, at: int) -> None:
    with part.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("block_bytes", [1000, 64 * MB])
def test_how_much_is_asked_for_at_once_has_no_say_in_what_is_compared(world: World, block_bytes: int) -> None:
    item = world.put("f", 8 * MB)
    leave(world, item, (0, 7 * MB), rotten=(5 * MB,))
    assert brought(world, item, options(block_bytes=block_bytes)) == 2 * MB


def test_a_part_that_is_taken_away_before_its_first_piece_is_begun_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = world.put("f", 4 * MB)
    leave(world, item, (0, 2 * MB))
    part, _ = places(world, item)
    begin, taken = part_file.begin_part, []

    def take_away(disk: Disk, path: str, identity: Identity, known: Sequence[Block]) -> None:
        if not taken:
            part.unlink()
        taken.append(path)
        begin(disk, path, identity, known)

    monkeypatch.setattr(pull, "begin_part", take_away)
    assert brought(world, item, options(retries=1)) <= 4 * MB + 2 * MB and len(taken) == 2


@pytest.mark.full_after(1)
@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("mtime", [LONG_AGO, LONG_AGO + 5], ids=["no time shows it", "its mtime shows it"])
def test_a_source_that_changed_between_cut_and_resume_is_brought_anew(world: World, mtime: int, retries: int) -> None:
    item = world.put("f", 8 * MB)
    leave(world, item, (0, 3 * MB), (5 * MB, 6 * MB))
    (world.site / "f").write_bytes(os.urandom(8 * MB))
    os.utime(world.site / "f", (mtime, mtime))
    assert brought(world, item, options(retries=retries)) == 8 * MB


def test_a_source_of_which_a_part_changed_is_never_mixed(world: World) -> None:
    """Pieces that both editions have stay, the others come."""
    item = world.put("f", 8 * MB)
    leave(world, item, (0, 6 * MB))
    flip(world.site / "f", 4 * MB + 5)
    os.utime(world.site / "f", (LONG_AGO, LONG_AGO))
    assert brought(world, item) == 3 * MB


@pytest.mark.full_after(1)
@pytest.mark.parametrize("mtime", [LONG_AGO, LONG_AGO + 5], ids=["its mtime set back", "its mtime shows it"])
def test_a_source_that_changes_while_the_kept_pieces_are_compared_is_never_mixed(
    world: World, monkeypatch: pytest.MonkeyPatch, mtime: int
) -> None:
    item, other = world.put("f", 24 * MB), os.urandom(24 * MB)
    leave(world, item, (0, 12 * MB))
    keep, compared = proving.VerifiedPart.keep_block, []

    def rewrite(part: proving.VerifiedPart, block: Block) -> None:
        keep(part, block)
        if len(compared) == 2:
            with (world.site / "f").open("r+b") as file:
                file.write(other)
            os.utime(world.site / "f", (mtime, mtime))
        compared.append(block)

    monkeypatch.setattr(proving.VerifiedPart, "keep_block", rewrite)
    brought(world, item, options(retries=3, bandwidth=8e6))
    assert len(compared) > 2 and (world.centre / item.target_path).read_bytes() == other


@pytest.mark.full
def test_the_time_that_a_file_has_does_not_begin_while_what_is_there_is_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, begun = world.put("f", 4 * MB), []
    leave(world, item, (0, 4 * MB))
    keep = proving.VerifiedPart.keep_block

    def slow(part: proving.VerifiedPart, block: Block) -> None:
        keep(part, block)
        time.sleep(0.2)

    monkeypatch.setattr(line, "JUDGE_SECONDS", 0.0)
    monkeypatch.setattr(proving.VerifiedPart, "keep_block", slow)
    monkeypatch.setattr(FileDeadlines, "begin_file", lambda _self, path, _now: begun.append(path))
    assert brought(world, item) == 0 and not begun


DEATHS = {  # what is done for the so-manieth time, and whether it is done
    "when the first missing byte comes": ("write_block", 1, False),
    "when the source told the first digest": ("keep_block", 1, False),
    "between two kept pieces": ("keep_block", 3, True),
    "while kept pieces are read back": ("_hash_back", 4, False),
    "when all is there and compared": ("_read_whole", 1, False),
    "behind the last look": ("_read_whole", 1, True),
}
DYING = """
import os, signal
from tidemark.transfer.stream import pull
from tidemark.transfer.stream.verify import VerifiedPart
pull.COMPARED, act, left = 1 << 20, VerifiedPart.{name}, [{times}]
def dying(self, *given):
    left[0] -= 1
    if not left[0] and not {done}:
        os.kill(os.getpid(), signal.SIGKILL)
    act(self, *given)
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
VerifiedPart.{name} = dying
"""


@pytest.mark.full_after(1)
@pytest.mark.parametrize("instant", DEATHS)
def test_death_while_what_is_there_is_compared(world: World, instant: str) -> None:
    """Whenever it comes, nothing that was there is lost, and what came meanwhile counts, too."""
    name, times, done = DEATHS[instant]
    item = world.put("f", 8 * MB)
    leave(world, item, (0, 5 * MB))
    dying = DYING.format(name=name, times=times, done=done)
    far = [world.server.url(world.site), world.server.host_key, str(world.server.key)]
    asked = [far, [f"file://{world.centre}"], [astuple(item)], {"block_bytes": BLOCK}]
    died = subprocess.run(
        [sys.executable, "-c", dying + PROGRAM, json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": str(PLUGINS)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    _, journal = places(world, item)
    left = decode_journal(journal.read_bytes())
    assert left is not None and set(range(0, 5 * MB, MB)) <= {block.offset for block in left.blocks}
    assert brought(world, item) <= 3 * MB


@pytest.mark.full_after(1)
@pytest.mark.parametrize("stop", ["with bytes on their way", "with none missing"])
def test_who_is_to_stop_does_not_read_through_what_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    """What was claimed stays claimed, and the next try goes on from it."""
    size = 6 * MB if stop == "with none missing" else 7 * MB
    items = [world.put(f"{number}", size) for number in range(4)]
    for item in items:
        leave(world, item, (0, 6 * MB))
    reads: list[float] = []
    asked_to_stop, read = threading.Event(), os.preadv

    def slow(handle: int, views: list[memoryview], offset: int) -> int:
        asked_to_stop.set()
        reads.append(time.monotonic())
        time.sleep(0.2)
        return read(handle, views, offset)

    with world.ends() as (source, target):
        monkeypatch.setattr(os, "preadv", slow)
        assert list(send_files(source, target, items, options(should_stop=asked_to_stop.is_set))) == []
        monkeypatch.undo()
    assert 0 < len(reads) < 12, "4 files of 6 MB, half a megabyte each"
    outcomes = world.move(items, options())
    assert world.arrived(outcomes) and sum(one.wire_bytes for one in outcomes.values()) <= 4 * (size - 6 * MB)


@pytest.mark.full
def test_a_line_cut_while_what_is_there_is_compared_costs_nothing_that_was_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, kept = world.put("f", 12 * MB), []
    leave(world, item, (0, 9 * MB))
    keep: Callable[[proving.VerifiedPart, Block], None] = proving.VerifiedPart.keep_block
    with world.ends() as (source, target):

        def cut(part: proving.VerifiedPart, block: Block) -> None:
            keep(part, block)
            kept.append(block)
            if len(kept) == 4:
                source.connection.drop()  # type: ignore[attr-defined]

        monkeypatch.setattr(proving.VerifiedPart, "keep_block", cut)
        (one,) = send_files(source, target, [item], options(retries=3))
    assert isinstance(one, Sent) and world.arrived({item: one})
    assert one.wire_bytes <= 3 * MB + BLOCK + 2 * MB, "what was on its way"
