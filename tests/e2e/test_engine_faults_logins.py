"""Logins that are taken away: what was sent stays, the rest fails at once, and the message says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.engine_world import MB, World
from tests.e2e.store_ends import QUICK, address
from tests.services.processes import soon
from tests.services.sshd import FarEnd, Sshd, make_key
from tests.services.wire import Wire
from tidemark.errors import HostKeyError, PermissionDeniedError, TidemarkError
from tidemark.stores.open import open_store
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]
WAYS = pytest.mark.parametrize("way", ["pull", "push"])
USER = f"tidemark-{os.getpid()}"


@pytest.fixture
def user() -> Iterator[str]:
    """A user of this machine for as long as the test runs."""
    tools = [tool for tool in ("useradd", "userdel", "chage") if shutil.which(tool)]
    if os.geteuid() != 0 or len(tools) < 3 or not Path("/etc/pam.d/sshd").exists():
        pytest.skip("a user of its own needs root, useradd, chage and sshd's PAM")
    subprocess.run(["useradd", "-M", "-N", "-s", "/bin/sh", USER], check=True)
    try:
        yield USER
    finally:
        assert soon(lambda: subprocess.run(["userdel", USER], check=False).returncode == 0)  # once its last session is over


def chage(*words: str) -> None:
    subprocess.run(["chage", *words, USER], check=True)


@pytest.fixture
def server_of(user: str, start_sshd: Callable[..., Sshd]) -> Callable[[FarEnd], Sshd]:
    def start(kind: FarEnd) -> Sshd:
        server = start_sshd(kind, {"UsePAM": "yes", "AllowUsers": user})
        server.user = user
        shutil.chown(server.files, user)
        return server

    return start


@pytest.mark.full_after(1)
@pytest.mark.parametrize("kind", [FarEnd.SHELL, FarEnd.SFTP])
@pytest.mark.parametrize(
    ("over", "word"), [(("-d", "0"), "(?i)password"), (("-d", "2020-01-01", "-E", "2020-01-01"), "account has expired")]
)
def test_an_expired_login_is_told_as_that(
    server_of: Callable[[FarEnd], Sshd], kind: FarEnd, over: tuple[str, ...], word: str
) -> None:
    server = server_of(kind)
    store = open_store(address(server))
    store.publish("a", b"1")
    store.close()
    chage(*over)
    with pytest.raises(PermissionDeniedError, match=word) as caught:
        open_store(address(server))
    assert f"{USER}@127.0.0.1:{server.port}" in caught.value.message
    assert "passwd" in caught.value.hint and "chage" in caught.value.hint


def moved_until(world: World, items: list[SendItem], act: Callable[[], object], wire: Wire) -> TidemarkError:
    """Once a file is told as sent the login is taken away and the line cut: the error of what was not sent."""
    taken_away = threading.Event()
    wire.once_at(sum(item.size for item in items) // 2, lambda: taken_away.wait(15))
    told: list[Sent | Failed] = []
    with world.ends() as (source, target):
        for one in send_files(source, target, items):
            if not told:
                act()
                wire.cut_after(1)
                taken_away.set()
            told.append(one)
    outcomes = {one.item: one for one in told}
    assert len(told) == len(outcomes) == len(items) and wire.cuts == 1
    assert world.no_half_file(outcomes)
    failed = [one.error for one in told if isinstance(one, Failed)]
    assert failed and all(type(error) is type(failed[0]) and error.hint for error in failed)
    assert isinstance(told[0], Sent)
    return failed[0]


@pytest.mark.full_after(1)
@WAYS
def test_a_password_that_expires_in_the_middle(server_of: Callable[[FarEnd], Sshd], tmp_path: Path, way: str) -> None:
    world = World.of(server_of(FarEnd.SHELL), tmp_path, way)
    items = [world.put(f"{n}", MB) for n in range(16)]
    for folder in (world.site, world.centre):
        shutil.chown(folder, USER)
    with Wire(world.server.port, upwards=way == "push") as wire:
        world.port = wire.port
        error = moved_until(world, items, lambda: chage("-d", "0"), wire)
        assert isinstance(error, PermissionDeniedError) and "password" in error.message.lower()
        chage("-d", "2026-01-01", "-M", "99999")
        assert world.arrived(world.move(items))


@pytest.mark.full_after(1)
@WAYS
def test_a_key_that_is_taken_away_in_the_middle(start_sshd: Callable[..., Sshd], tmp_path: Path, way: str) -> None:
    server = start_sshd()
    world = World.of(server, tmp_path, way)
    items = [world.put(f"{n}", MB) for n in range(16)]
    allowed = server.folder / "authorized_keys"
    keys = allowed.read_text()
    with Wire(server.port, upwards=way == "push") as wire:
        world.port = wire.port
        error = moved_until(world, items, lambda: allowed.write_text(""), wire)
        assert isinstance(error, PermissionDeniedError) and str(server.key) in error.message
        allowed.write_text(keys)
        assert world.arrived(world.move(items))


@pytest.mark.full_after(1)
@WAYS
def test_a_host_key_that_changes_in_the_middle(start_sshd: Callable[..., Sshd], tmp_path: Path, way: str) -> None:
    server = start_sshd()
    world = World.of(server, tmp_path, way)
    world.limits = QUICK
    items = [world.put(f"{n}", MB) for n in range(16)]
    gone, over = threading.Event(), threading.Event()

    def another_server() -> None:
        server.stop()
        gone.set()
        (server.folder / "host_key").unlink()
        make_key(server.folder / "host_key")
        server.restart()
        over.wait()  # it would end with the thread that started it

    def change() -> None:
        threading.Thread(target=another_server).start()
        gone.wait(60)  # not one byte more is taken from the old one

    before = server.host_key
    try:
        with Wire(server.port, upwards=way == "push") as wire:
            wire.once_at(4 * MB, change)
            world.port = wire.port
            with world.ends() as (source, target):
                told = list(send_files(source, target, items, SendOptions(retries=50)))
            failed = [one.error for one in told if isinstance(one, Failed)]
            assert len(told) == len(items) and failed and all(isinstance(error, HostKeyError) for error in failed)
            assert before in failed[0].message and server.host_key in failed[0].message and "host_key" in failed[0].hint
            assert world.no_half_file({one.item: one for one in told})
            assert world.arrived(world.move(items))  # the key of the settings is the new one
    finally:
        over.set()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("sessions", ["1", "2"])
@WAYS
def test_a_server_of_few_sessions_a_connection_is_enough(
    start_sshd: Callable[..., Sshd], tmp_path: Path, way: str, sessions: str
) -> None:
    world = World.of(start_sshd(FarEnd.SHELL, {"MaxSessions": sessions}), tmp_path, way)
    items = [world.put(f"{n}", size) for n, size in enumerate([6 * MB, 0, *[20_000] * 50])]
    with world.ends() as (source, target):
        outcomes = {one.item: one for one in send_files(source, target, items)}
        assert target.stat(items[0].target_path) is not None  # while the transfer's own sessions are kept
    assert world.arrived(outcomes)
