"""Disks that limit or lie, at either end: what has a final name is whole, and the message says what to do."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.engine_world import MB, World, world_on_a_bad_disk
from tests.e2e.sending_process import moved_apart
from tests.e2e.store_ends import disk, needs_root
from tests.services import bad_disk
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.errors import CorruptionError, DiskFullError, PermanentError, SourceVanishedError
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses", "compiler")]
WAYS = pytest.mark.parametrize("way", ["pull", "push"])
LOWER = [pytest.param(tier, marks=pytest.mark.full) for tier in (Tier.POSIX, Tier.SFTP)]
START = Callable[..., Sshd]


# --- a quota that is used up


def in_a_quota(world: World, sizes: list[int]) -> list[SendItem]:
    return [world.put(f"{n}.tsfile", size) for n, size in enumerate(sizes)]


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    "sizes", [[200_000] * 40, [9 * MB, 1000], [30_000, 2 * MB, 3 * MB, 50]], ids=["small", "large", "both"]
)
def test_a_quota_of_the_far_user_is_named_and_nothing_is_half(start_sshd: START, tmp_path: Path, sizes: list[int]) -> None:
    world = world_on_a_bad_disk(start_sshd, tmp_path, "push", quota=4_000_000)
    outcomes = world.move(in_a_quota(world, sizes))
    assert world.no_half_file(outcomes)
    failed = [one.error for one in outcomes.values() if isinstance(one, Failed)]
    assert failed and all(isinstance(error, DiskFullError) for error in failed)
    assert any("quota" in error.message.lower() and "quota" in error.hint for error in failed)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("sizes", [[200_000] * 40, [9 * MB, 1000]], ids=["small", "large"])
def test_a_quota_of_our_own_user_is_named_and_nothing_is_half(sshd: Sshd, tmp_path: Path, sizes: list[int]) -> None:
    world = World.of(sshd, tmp_path, "pull")
    items = in_a_quota(world, sizes)
    told = moved_apart(world, items, bad_disk.environment(world.centre, quota=4_000_000))
    assert set(told) == {item.source_path for item in items}
    failed = [error for error in told.values() if error]
    assert failed and {error[0] for error in failed} == {"DiskFullError"}
    assert any("quota" in error[1].lower() and "quota" in error[2] for error in failed)
    for item in items:
        assert (world.centre / item.target_path).exists() is (told[item.source_path] is None)
        assert told[item.source_path] is not None or world.is_whole(item)
    assert world.arrived(world.move(items))  # once there is room


# --- a disk that somebody else fills meanwhile


def fill(place: Path) -> None:
    with suppress(OSError), (place / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.mark.full_after(1)
@needs_root
@WAYS
@pytest.mark.parametrize("tier", [Tier.PYTHON, *LOWER])
@pytest.mark.parametrize("percent", [1, 50, 99])
def test_a_target_that_is_full_on_the_way_is_named_and_goes_on_once_there_is_room(
    sshd: Sshd, tmp_path: Path, way: str, tier: Tier, percent: int
) -> None:
    """At 99 % what is still to be written may be a name alone, for which there is room."""
    world = World.of(sshd, tmp_path, way, tier)
    items = [world.put(f"{n}.tsfile", size) for n, size in enumerate([9 * MB, 3 * MB + 1, *[20_000] * 100, 2 * MB])]
    total = sum(item.size for item in items)
    with disk(world.centre, f"size={2 * total}"):
        with Wire(sshd.port, upwards=way == "push") as wire:
            wire.once_at(total * percent // 100, lambda: fill(world.centre))
            world.port = wire.port
            with world.ends() as (source, target):
                outcomes = {one.item: one for one in send_files(source, target, items)}
        world.port = 0
        assert set(outcomes) == set(items) and world.no_half_file(outcomes)
        failed = [one.error for one in outcomes.values() if isinstance(one, Failed)]
        assert failed or percent == 99
        assert all(isinstance(error, DiskFullError) and str(world.centre) in error.message for error in failed)
        (world.centre / "ballast").unlink()
        assert world.arrived(world.move(items))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel's own limit of a file's size, for this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.full_after(1)
@WAYS
def test_a_file_that_is_larger_than_files_may_be_fails_alone(start_sshd: START, tmp_path: Path, way: str) -> None:
    script = tmp_path / "login"
    script.write_text('#!/bin/sh\nulimit -f 8192\nexec sh -c "${SSH_ORIGINAL_COMMAND:-sh}"\n')  # blocks of 512 bytes
    script.chmod(0o755)
    world = World.of(start_sshd(FarEnd.SHELL, {"ForceCommand": str(script)} if way == "push" else {}), tmp_path, way)
    large, *rest = items = [world.put(f"{n}", size) for n, size in enumerate([9 * MB, 3 * MB, *[1000] * 20])]
    with world.ends() as (source, target):
        if way == "pull":
            with largest_file(4 * MB):
                outcomes = {one.item: one for one in send_files(source, target, items, SendOptions())}
        else:
            outcomes = {one.item: one for one in send_files(source, target, items, SendOptions())}
    failed = outcomes[large]
    assert isinstance(failed, Failed) and isinstance(failed.error, PermanentError)
    assert "landing/0" in failed.error.message and "ulimit" in failed.error.hint
    assert all(isinstance(outcomes[item], Sent) and world.is_whole(item) for item in rest)
    assert not (world.centre / large.target_path).exists()


# --- a disk that lost what was written, which it says once


@pytest.mark.parametrize("tier", [Tier.SFTP, pytest.param(Tier.POSIX, marks=pytest.mark.full)])
def test_bytes_of_a_large_file_that_the_disk_lost_are_not_gone_on_from(
    start_sshd: START, tmp_path: Path, tier: Tier
) -> None:
    world = world_on_a_bad_disk(start_sshd, tmp_path, "push", tier, unsynced="1.tsfile.part")
    small, large = items = [world.put("0.tsfile", 5000), world.put("1.tsfile", 6 * MB)]
    outcomes = world.move(items)
    assert isinstance(outcomes[small], Sent) and isinstance(outcomes[large], Failed)
    bad_disk.login_script(tmp_path / "login", {})
    outcomes = world.move(items)
    assert world.arrived(outcomes)
    assert outcomes[large].wire_bytes >= large.size, "what a sync said is lost was believed, since the next one said nothing"


def test_a_name_that_the_disk_may_lose_is_told(start_sshd: START, tmp_path: Path) -> None:
    """The tool `sync` said so, behind which a plain `sync` knows of no trouble."""
    world = world_on_a_bad_disk(start_sshd, tmp_path, "push", Tier.POSIX, unsynced="/landing")
    items = [world.put("0.tsfile", 5000)]
    (failed,) = world.move(items).values()
    assert isinstance(failed, Failed) and "/landing" in failed.error.message and failed.error.hint
    bad_disk.login_script(tmp_path / "login", {})
    assert world.arrived(world.move(items))


# --- a server that lies about sizes


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", [Tier.PYTHON, *LOWER])
@pytest.mark.parametrize("size", [5000, 5 * MB])
@pytest.mark.parametrize("lie", [700, -700])
def test_a_source_that_lies_about_its_size(start_sshd: START, tmp_path: Path, tier: Tier, size: int, lie: int) -> None:
    """Selected at its real size, or at the one that is told: it arrives as it is, or not under its final name."""
    world = world_on_a_bad_disk(start_sshd, tmp_path, "pull", tier, lie=lie)
    item = world.put("x.tsfile", size)
    other = world.put("y.tsfile", size)
    told = SendItem(other.source_path, other.target_path, size + lie)  # as a listing had it
    outcomes = world.move([item, told], SendOptions(retries=1))
    for one in outcomes.values():
        if isinstance(one, Sent):
            assert world.is_whole(one.item)  # of a lesser size that prefix: the load looks at what it holds
        else:
            assert one.item.source_path in one.error.message and one.error.hint
            assert isinstance(one.error, (SourceVanishedError, CorruptionError))
            assert not (world.centre / one.item.target_path).exists()
    if tier is not Tier.POSIX:  # its tools believe the lie themselves, and digest what is not there
        assert isinstance(outcomes[item if lie > 0 else told], Sent)
    assert isinstance(outcomes[told if lie > 0 else item], Failed)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", [Tier.PYTHON, *LOWER])
@pytest.mark.parametrize("lie", [700, -700])
def test_a_target_that_lies_about_sizes(start_sshd: START, tmp_path: Path, tier: Tier, lie: int) -> None:
    world = world_on_a_bad_disk(start_sshd, tmp_path, "push", tier, lie=lie)
    items = [world.put("x.tsfile", 5000), world.put("y.tsfile", 5 * MB), world.put("z.tsfile", 0)]
    for _ in range(2):  # what is there already is known by its digest, not by a size that somebody tells
        outcomes = world.move(items, SendOptions(retries=1))
        assert world.no_half_file(outcomes)
    failed = [one for one in outcomes.values() if isinstance(one, Failed)]
    assert all(one.error.hint and one.item.source_path in one.error.message for one in failed)
