"""A source that changes while it is read by an end without our program, where neither its times nor a clock tell."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.engine_world import LONG_AGO, World
from tests.e2e.store_ends import ends
from tests.services.sshd import Sshd
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]

MB = 1 << 20
OPTIONS = SendOptions(retries=3)
LOWER = [Tier.POSIX, Tier.SFTP]


@pytest.mark.full
def test_a_small_file_that_is_being_written_by_another_clock_is_never_torn(sshd: Sshd, tmp_path: Path) -> None:
    """The server's clock is a hundred seconds behind ours, and nobody digests there: its mtimes look old."""
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, "pull", Tier.SFTP)
    items = [SendItem(f"{number}.mods", f"l/{number}.mods", MB) for number in range(4)]
    writing = [os.open(far / item.source_path, os.O_RDWR | os.O_CREAT) for item in items]
    begun, rounds = time.monotonic(), 0
    settled = threading.Event()

    def write() -> None:
        nonlocal rounds
        while rounds < 2 or time.monotonic() < begun + 1.5:
            rounds += 1
            for handle in writing:
                for offset in range(0, MB, MB // 8):
                    os.pwrite(handle, bytes([rounds % 256]) * (MB // 8), offset)
                    os.utime(handle, (time.time() - 100, time.time() - 100))
        settled.set()

    thread = threading.Thread(target=write)
    thread.start()
    while rounds < 2:
        time.sleep(0.01)

    outcomes = list(send_files(source, target, items, OPTIONS))

    thread.join()
    assert settled.is_set()
    for one in outcomes:
        assert isinstance(one, Sent)
        assert len(set((near / one.item.target_path).read_bytes())) == 1
    for handle in writing:
        os.close(handle)
    source.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", LOWER)
@pytest.mark.parametrize("digest", [True, False], ids=["both ends", "target only"])
def test_a_growing_file_that_is_rewritten_under_way_is_never_mixed(
    sshd: Sshd, tmp_path: Path, digest: bool, tier: Tier
) -> None:
    """No time tells of one that is longer than what is wanted of it: its bytes do, whatever the link says."""
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, "pull", tier)
    file, size, came = far / "1.mods", 16 * MB, [0]
    file.write_bytes(b"A" * (size + 1))
    os.utime(file, (1_600_000_000, 1_600_000_000))

    def change(count: int) -> None:
        before, came[0] = came[0], came[0] + count
        if before < MB <= came[0]:
            with file.open("r+b") as there:
                there.write(b"B" * (size + 2))

    options = replace(OPTIONS, digest_at_source=digest)
    (sent,) = send_files(source, target, [SendItem("1.mods", "l/1.mods", size)], options, change)

    assert isinstance(sent, Sent)
    assert (near / "l" / "1.mods").read_bytes() == b"B" * size
    source.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", LOWER)
def test_a_file_put_in_the_place_of_one_that_came_half_is_never_mixed_with_it(
    sshd: Sshd, tmp_path: Path, tier: Tier
) -> None:
    """Of the same size and the same second: over SFTP there is no more to see of it."""
    world = World.of(sshd, tmp_path, "pull", tier)
    item = world.put("large", 12 * MB)
    crossed: list[int] = []
    options = SendOptions(block_bytes=MB, bandwidth=30e6, should_stop=lambda: sum(crossed) > 5 * MB)
    with world.ends() as (source, target):
        assert not list(send_files(source, target, [item], options, crossed.append))
    other = world.site / "other"
    other.write_bytes(os.urandom(12 * MB))
    os.utime(other, (LONG_AGO, LONG_AGO))
    other.replace(world.site / "large")
    assert world.arrived(world.move([item]))
