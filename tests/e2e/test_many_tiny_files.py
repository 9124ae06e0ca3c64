"""Very many tiny files on the lower tiers: no line is filled that nobody reads, no server is left without handles."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.store_ends import QUICK, address
from tests.services.sshd import FarEnd, Sshd
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files

pytestmark = pytest.mark.real("sshd")
HANDLES = 256  # of a process of the server


def tiny(folder: Path, count: int, size: int) -> list[SendItem]:
    items = []
    for number in range(count):
        handle = os.open(folder / f"{number}.tsfile", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(handle, b"%0*d" % (size, number))
        os.close(handle)
        items.append(SendItem(f"{number}.tsfile", f"landing/{number}.tsfile", size))
    return items


@pytest.mark.full
@pytest.mark.timeout(300)
def test_sixty_thousand_tiny_files_come_by_the_tools(sshd: Sshd, in_memory: Path) -> None:
    """Their commands are 4 MB and tar's headers for them 60: both more than any line holds."""
    far, near = in_memory / "far", in_memory / "near"
    far.mkdir()
    near.mkdir()
    items = tiny(far, 60_000, 5)
    store = open_sftp(address(sshd, far), Tier.POSIX, QUICK)
    outcomes = list(send_files(store, LocalStore(str(near)), items, SendOptions(retries=0)))
    store.close()
    assert len(outcomes) == len(items) and all(isinstance(one, Sent) for one in outcomes)
    assert sum(one.wire_bytes for one in outcomes) == 5 * len(items)
    found = {entry.name: Path(entry.path).read_bytes() for entry in os.scandir(near / "landing")}
    assert found == {f"{number}.tsfile": b"%05d" % number for number in range(len(items))}


@pytest.fixture
def few_handles(start_sshd: Callable[..., Sshd]) -> Sshd:
    """An SFTP server whose processes may have few files open, as many an account's limit has it."""
    server = start_sshd(FarEnd.SFTP)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (HANDLES, HANDLES))  # and what it starts from now on
    return server


@pytest.mark.parametrize("size", [1000, pytest.param(3000, marks=pytest.mark.full)])
@pytest.mark.parametrize("tier", [Tier.POSIX, pytest.param(Tier.PYTHON, marks=pytest.mark.full)])
def test_a_server_of_few_handles_takes_what_was_asked_far_ahead(
    sshd: Sshd, few_handles: Sshd, tier: Tier, size: int
) -> None:
    """With blocks of 2000 bytes the larger ones have a journal besides."""
    begin, end = sshd.new_folder("site"), few_handles.new_folder("centre")
    items = tiny(begin, 2000 if size < 2000 else 500, size)
    source, target = open_store(address(sshd, begin), tier), open_store(address(few_handles, end), Tier.SFTP)
    outcomes = list(send_files(source, target, items, SendOptions(retries=0, block_bytes=2000 if size > 2000 else 4 << 20)))
    source.close()
    target.close()
    assert len(outcomes) == len(items) and all(isinstance(one, Sent) for one in outcomes)
    assert all((end / item.target_path).read_bytes() == (begin / item.source_path).read_bytes() for item in items)
