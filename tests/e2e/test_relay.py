"""Ends without our program, and two remote ends: the same results as any others, whatever happens on the way."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.store_ends import QUICK, address, ends
from tests.services.sshd import FarEnd, Sshd
from tests.services.wire import Wire
from tidemark.errors import DiskFullError, PermissionDeniedError, SourceVanishedError
from tidemark.stores.agent import durable
from tidemark.stores.agent import part_file as head_room
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.relay import relay as relay_room
from tidemark.transfer.relay.disk_target import DiskTarget
from tidemark.transfer.relay.sftp_target import SftpTarget

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]

MB = 1 << 20
OPTIONS = SendOptions(retries=3)
LOWER = [Tier.POSIX, Tier.SFTP]
NAMES = [
    *("a b.tsfile", "o'clock $HOME.tsfile", 'quo"te.tsfile', "new\nline.tsfile", "back\\slash", "-rf"),
    *("x" * 250, "ä/" + "d" * 120 + "/1"),
]
SIZES = [0, 1, *[20_000] * 30, MB, MB + 1, 5_000_000]


def fill(folder: Path) -> list[SendItem]:
    names = {name: 1000 + number for number, name in enumerate(NAMES)} | {f"{n}.tsfile": s for n, s in enumerate(SIZES)}
    for name, size in names.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))
        os.utime(folder / name, (1_600_000_000, 1_600_000_000))
    return [SendItem(name, f"landing/{name}", size) for name, size in names.items()]


def files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def assert_whole(items: list[SendItem], source: Path, target: Path, outcomes: list[Sent | Failed]) -> None:
    assert {type(one) for one in outcomes} == {Sent}, [one for one in outcomes if isinstance(one, Failed)]
    assert sorted(one.item.target_path for one in outcomes) == sorted(item.target_path for item in items)
    for one in outcomes:
        assert isinstance(one, Sent)
        bytes_there = (target / one.item.target_path).read_bytes()
        assert bytes_there == (source / one.item.source_path).read_bytes(), one.item
        assert one.sha256 == hashlib.sha256(bytes_there).hexdigest()
    assert files(target) == sorted(item.target_path for item in items)


@pytest.fixture
def other(start_sshd: Callable[..., Sshd]) -> Sshd:
    return start_sshd(FarEnd.SHELL)


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Tier.SFTP, Tier.SFTP),
        (Tier.PYTHON, Tier.SFTP),
        pytest.param(Tier.PYTHON, Tier.PYTHON, marks=pytest.mark.full),
        pytest.param(Tier.POSIX, Tier.POSIX, marks=pytest.mark.full),
        pytest.param(Tier.SFTP, Tier.PYTHON, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("direct", [False, pytest.param(True, marks=pytest.mark.full)])
def test_files_go_from_one_server_to_another(sshd: Sshd, other: Sshd, first: Tier, second: Tier, direct: bool) -> None:
    options = replace(OPTIONS, direct=direct)
    begin, end = sshd.new_folder("site"), other.new_folder("centre")
    items = fill(begin)
    source, target = open_store(address(sshd, begin), first), open_store(address(other, end), second)

    outcomes = list(send_files(source, target, items, options))

    assert_whole(items, begin, end, outcomes)
    direct_road = direct and first is second is Tier.PYTHON
    assert {one.path for one in outcomes if isinstance(one, Sent)} == {"direct" if direct_road else ""}
    proof = "target" if first is Tier.SFTP else "source"
    assert {one.verified for one in outcomes if isinstance(one, Sent)} == {proof}
    known = [SendItem(i.source_path, i.target_path, i.size, one.sha256) for i, one in by_item(outcomes)]
    assert [one.wire_bytes for one in send_files(source, target, known, options)] == [0] * len(items)
    source.close()
    target.close()


def by_item(outcomes: list[Sent | Failed]) -> list[tuple[SendItem, Sent]]:
    return [(one.item, one) for one in outcomes if isinstance(one, Sent)]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("cut_source", [True, False])
@pytest.mark.parametrize("tier", [Tier.SFTP, pytest.param(Tier.PYTHON, marks=pytest.mark.full)])
def test_either_line_between_two_servers_may_be_cut(sshd: Sshd, other: Sshd, tier: Tier, cut_source: bool) -> None:
    begin, end = sshd.new_folder("site"), other.new_folder("centre")
    (begin / "1.tsfile").write_bytes(os.urandom(12 * MB))
    os.utime(begin / "1.tsfile", (1_600_000_000, 1_600_000_000))
    items = [SendItem("1.tsfile", "landing/1.tsfile", 12 * MB)]
    with Wire((sshd if cut_source else other).port, upwards=not cut_source) as wire:
        wire.cut_after(5 * MB, times=2)
        source = open_store(address(sshd, begin, wire.port if cut_source else 0), tier)
        target = open_store(address(other, end, 0 if cut_source else wire.port), tier)

        outcomes = list(send_files(source, target, items, OPTIONS))

        source.close()
        target.close()
        assert wire.cuts == 2
    assert_whole(items, begin, end, outcomes)
    assert outcomes[0].wire_bytes <= 12 * MB + 2 * OPTIONS.block_bytes


# --- what happens while bytes are on their way


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", LOWER)
@pytest.mark.parametrize("way", ["pull", "push"])
def test_a_part_that_rots_during_the_try_is_found_and_mended(sshd: Sshd, tmp_path: Path, way: str, tier: Tier) -> None:
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, way, tier)
    begin, end = (far, near) if way == "pull" else (near, far)
    (begin / "1.tsfile").write_bytes(os.urandom(12 * MB))
    came = [0]

    def rot(count: int) -> None:
        before, came[0] = came[0], came[0] + count
        if before < 10 * MB <= came[0]:
            with (end / "l" / "1.tsfile.part").open("r+b") as part:
                part.seek(3 * MB + 5)
                part.write(b"rot")

    (sent,) = send_files(source, target, [SendItem("1.tsfile", "l/1.tsfile", 12 * MB)], OPTIONS, rot)

    assert isinstance(sent, Sent)
    assert (end / "l" / "1.tsfile").read_bytes() == (begin / "1.tsfile").read_bytes()
    assert 12 * MB < sent.wire_bytes <= 12 * MB + 9 * MB + OPTIONS.block_bytes  # from the rotten block on
    assert files(end / "l") == ["1.tsfile"]
    source.close()
    target.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("size", [12 * MB, 40 * MB])
@pytest.mark.parametrize("tier", LOWER)
@pytest.mark.parametrize("way", ["pull", pytest.param("push", marks=pytest.mark.full)])
def test_a_source_that_changes_during_the_try_is_never_mixed(
    sshd: Sshd, tmp_path: Path, way: str, tier: Tier, size: int
) -> None:
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, way, tier)
    begin, end = (far, near) if way == "pull" else (near, far)
    (begin / "1.tsfile").write_bytes(os.urandom(size))
    os.utime(begin / "1.tsfile", (1_600_000_000, 1_600_000_000))
    new, came = os.urandom(size), [0]

    def change(count: int) -> None:
        before, came[0] = came[0], came[0] + count
        if before < 4 * MB <= came[0]:
            (begin / "1.tsfile").write_bytes(new)

    (sent,) = send_files(source, target, [SendItem("1.tsfile", "l/1.tsfile", size)], OPTIONS, change)

    assert isinstance(sent, Sent) and sent.wire_bytes > size
    assert (end / "l" / "1.tsfile").read_bytes() == new
    source.close()
    target.close()


@pytest.mark.parametrize("tier", [Tier.SFTP, pytest.param(Tier.POSIX, marks=pytest.mark.full)])
def test_a_source_whose_mtime_is_set_back_after_a_change_is_never_mixed(sshd: Sshd, tmp_path: Path, tier: Tier) -> None:
    """As `cp -p` or `rsync -t` over it do; a ctime nobody sets."""
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, "push", tier)
    file, size, came = near / "1.tsfile", 8 * MB, [0]
    file.write_bytes(b"A" * size)
    os.utime(file, (1_600_000_000, 1_600_000_000))

    def change(count: int) -> None:
        before, came[0] = came[0], came[0] + count
        if before < 2 * MB <= came[0]:
            with file.open("r+b") as there:
                there.write(b"B" * size)
            os.utime(file, (1_600_000_000, 1_600_000_000))

    (sent,) = send_files(source, target, [SendItem("1.tsfile", "l/1.tsfile", size)], OPTIONS, change)

    assert isinstance(sent, Sent) and sent.wire_bytes > size
    assert (far / "l" / "1.tsfile").read_bytes() == b"B" * size
    target.close()


@pytest.mark.full
def test_a_file_that_is_being_written_is_never_mixed_where_nobody_digests(sshd: Sshd, tmp_path: Path) -> None:
    """All within one second: its mtime over SFTP is the same before and after."""
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, "pull", Tier.SFTP)
    file, size, came = far / "1.tsfile", 16 * MB, [0]
    time.sleep(1 - time.time() % 1)
    file.write_bytes(b"A" * size)

    def change(count: int) -> None:
        before, came[0] = came[0], came[0] + count
        if before < MB <= came[0]:
            with file.open("r+b") as there:
                there.write(b"B" * size)

    (sent,) = send_files(source, target, [SendItem("1.tsfile", "l/1.tsfile", size)], OPTIONS, change)

    assert isinstance(sent, Sent)
    assert (near / "l" / "1.tsfile").read_bytes() == b"B" * size
    source.close()


def gone(part: Path) -> None:
    part.unlink()


def half(part: Path) -> None:
    """As another Tidemark begins anew."""
    part.unlink()
    part.write_bytes(b"half")


def written_into(part: Path) -> None:
    with part.open("r+b") as file:
        file.truncate(4)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("harm", [gone, half, written_into])
@pytest.mark.parametrize("size", [20_000, 2 * MB])
@pytest.mark.parametrize(
    ("tier", "way"),
    [
        (Tier.SFTP, "push"),
        (Tier.SFTP, "pull"),
        *(pytest.param(Tier.POSIX, w, marks=pytest.mark.full) for w in ("push", "pull")),
    ],
)
def test_what_somebody_did_to_a_part_before_its_name_gets_no_name(
    sshd: Sshd,
    tmp_path: Path,
    tier: Tier,
    way: str,
    size: int,
    harm: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older edition under the final name is no proof of ours, and a half part of a second writer is not ours either."""
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, way, tier)
    begin, end = (far, near) if way == "pull" else (near, far)
    (begin / "1.tsfile").write_bytes(os.urandom(size))
    os.utime(begin / "1.tsfile", (1_600_000_000, 1_600_000_000))
    (end / "l").mkdir()
    (end / "l" / "1.tsfile").write_bytes(b"old edition")
    kind = DiskTarget if way == "pull" else SftpTarget
    names_given, harmed = kind.give_names, [0]

    def between(self: Any, jobs: Sequence[Any]) -> Any:
        if not harmed[0]:
            harm(end / "l" / "1.tsfile.part")
        harmed[0] += 1
        return names_given(self, jobs)

    monkeypatch.setattr(kind, "give_names", between)
    items = [SendItem("1.tsfile", "l/1.tsfile", size)]

    outcomes = list(send_files(source, target, items, OPTIONS))

    assert harmed[0] == 2
    assert_whole(items, begin, end, outcomes)
    source.close()
    target.close()


@pytest.mark.parametrize("whole_disk", [True, False])
def test_bytes_that_a_disk_lost_are_sent_again_whatever_it_says_next(
    sshd: Sshd, tmp_path: Path, whole_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, "pull", Tier.SFTP)
    items = [SendItem(f"{n}", f"l/{n}", 20_000) for n in range(60 if whole_disk else 1)]
    for item in items:
        (far / item.source_path).write_bytes(os.urandom(20_000))
        os.utime(far / item.source_path, (1_600_000_000, 1_600_000_000))
    said: list[int] = []
    call = "_sync_disks" if whole_disk else "make_durable"
    real = getattr(durable, call)

    def once(asked: Any, *more: Any, **others: Any) -> Any:
        said.append(len(asked))
        if len(said) > 1:
            return real(asked, *more, **others)
        if whole_disk:
            raise OSError(errno.EIO, "Input/output error")
        (part, _) = asked[0]
        durable.remove_quietly(part)
        raise durable.SyncFailed(OSError(errno.EIO, ""), [part], False)

    monkeypatch.setattr(durable, call, once)

    outcomes = list(send_files(source, target, items, OPTIONS))

    assert_whole(items, far, near, outcomes)
    assert any(one.wire_bytes > one.item.size for one in outcomes)
    source.close()


@pytest.mark.full_after(1)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own, so root")
@pytest.mark.parametrize("way", ["pull", "push"])
@pytest.mark.parametrize("tier", [Tier.SFTP, pytest.param(Tier.POSIX, marks=pytest.mark.full)])
def test_the_room_at_the_target_is_looked_at_all_the_way(
    sshd: Sshd, tmp_path: Path, tier: Tier, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else fills the disk meanwhile: what is whole gets its name, and the run ends before the disk is full."""
    near, far = tmp_path / "near", sshd.new_folder("far")
    source, target = ends(sshd, near, far, way, tier)
    begin, end = (far, near) if way == "pull" else (near, far)
    monkeypatch.setattr(head_room, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(relay_room, "FAR_LOOKS", 1)
    items = []
    for number, size in enumerate([*[20_000] * 50, 48 * MB]):
        (begin / f"{number}").write_bytes(os.urandom(size))
        os.utime(begin / f"{number}", (1_600_000_000, 1_600_000_000))
        items.append(SendItem(f"{number}", f"l/{number}", size))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(end)], check=True)
    try:
        filled: list[int] = []

        def fill_up(_count: int) -> None:
            if not filled:
                filled.append(1)
                (end / "ballast").write_bytes(bytes(70 * MB))

        options = SendOptions(bandwidth=32e6, reserve=32 * MB)
        outcomes = list(send_files(source, target, items, options, fill_up))

        room = os.statvfs(end)
        (failed,) = [one for one in outcomes if isinstance(one, Failed)]
        assert failed.item is items[-1] and isinstance(failed.error, DiskFullError)
        assert "bytes free" in str(failed.error) and f"{32 * MB} are to stay free" in str(failed.error)
        assert 8 * MB < room.f_bavail * room.f_frsize < 40 * MB
        (end / "ballast").unlink()
        crossed: list[int] = []
        (sent,) = send_files(source, target, items[-1:], SendOptions(reserve=32 * MB), crossed.append)
        assert isinstance(sent, Sent) and sum(crossed) < 46 * MB
        assert (end / "l" / "50").read_bytes() == (begin / "50").read_bytes()
        source.close()
        target.close()
    finally:
        subprocess.run(["umount", str(end)], check=True)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", LOWER)
@pytest.mark.parametrize("size", [20_000, 12 * MB])
def test_a_source_that_shrinks_or_goes_away_fails_alone(sshd: Sshd, tmp_path: Path, tier: Tier, size: int) -> None:
    far = sshd.new_folder("far")
    items = []
    for number in range(20):
        (far / f"{number}.tsfile").write_bytes(os.urandom(size if number % 10 == 5 else 20_000))
        items.append(SendItem(f"{number}.tsfile", f"l/{number}.tsfile", (far / f"{number}.tsfile").stat().st_size))
    source = open_sftp(address(sshd, far), tier, QUICK)
    came = [0]

    def harm(count: int) -> None:
        came[0] += count
        if came[0] == count:  # the first bytes
            os.truncate(far / "5.tsfile", 1000)
            (far / "15.tsfile").unlink()

    outcomes = {one.item.source_path: one for one in send_files(source, LocalStore(str(tmp_path)), items, OPTIONS, harm)}

    failed = {path: one.error for path, one in outcomes.items() if isinstance(one, Failed)}
    assert set(failed) <= {"5.tsfile", "15.tsfile"} and len(outcomes) == 20
    assert all(isinstance(error, SourceVanishedError) for error in failed.values())
    if size > 20_000:
        assert set(failed) == {"5.tsfile", "15.tsfile"}
    assert not [path for path in failed if (tmp_path / "l" / path).exists()]
    source.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("tier", LOWER)
@pytest.mark.parametrize("size", [20_000, 3 * MB])
def test_a_symlink_in_the_place_of_a_part_is_not_written_through(sshd: Sshd, tmp_path: Path, tier: Tier, size: int) -> None:
    far = sshd.new_folder("far")
    (tmp_path / "1.tsfile").write_bytes(os.urandom(size))
    (far / "l").mkdir()
    (far / "secret").write_bytes(b"secret")
    for ending in (".part", ".part.blocks"):
        (far / "l" / f"1.tsfile{ending}").symlink_to(far / "secret")
    target = open_sftp(address(sshd, far), tier, QUICK)

    (sent,) = send_files(LocalStore(str(tmp_path)), target, [SendItem("1.tsfile", "l/1.tsfile", size)], OPTIONS)

    assert isinstance(sent, Sent)
    assert (far / "secret").read_bytes() == b"secret"
    assert (far / "l" / "1.tsfile").read_bytes() == (tmp_path / "1.tsfile").read_bytes()
    target.close()


@pytest.mark.parametrize("tier", LOWER)
def test_a_folder_that_may_not_be_followed_fails_its_files_alone(sshd: Sshd, tmp_path: Path, tier: Tier) -> None:
    far, outside = sshd.new_folder("far"), sshd.new_folder("outside")
    (far / "linked").symlink_to(outside)
    items = []
    for number in range(6):
        (tmp_path / f"{number}").write_bytes(b"x" * 100)
        items.append(SendItem(f"{number}", f"{'linked' if number == 3 else 'l'}/{number}", 100))
    target = open_sftp(address(sshd, far), tier, QUICK)

    outcomes = {one.item.source_path: one for one in send_files(LocalStore(str(tmp_path)), target, items, OPTIONS)}

    failed = {path: one.error for path, one in outcomes.items() if isinstance(one, Failed)}
    assert set(failed) == {"3"} and isinstance(failed["3"], PermissionDeniedError)
    assert not list(outside.iterdir())
    target.close()
