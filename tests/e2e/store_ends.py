"""Two ends of a transfer: what the specifications of faults between them share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services.sshd import Sshd
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Store, StoreAddress, Tier
from tidemark.stores.ssh.login import Limits
from tidemark.transfer.engine import SendItem, SendOptions

TIERS = [Tier.PYTHON, Tier.POSIX, Tier.SFTP]
FASTEST_FIRST = [Tier.PYTHON, *(pytest.param(tier, marks=pytest.mark.full) for tier in TIERS[1:])]
QUICK = Limits(connect=10, handshake=20, stall=10)  # a busy machine keeps them too
IMPATIENT = Limits(connect=5, handshake=8, stall=1.5)  # where the limit itself is waited for
BLOCK = 1 << 20
OPTIONS = SendOptions(block_bytes=BLOCK, retries=5)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own, so root")
MAC_ROOM = 400_000  # bytes of handshakes, packets and answers in a proxy's count


def address(server: Sshd, folder: Path | None = None, port: int = 0, **changes: Any) -> StoreAddress:
    url = server.url(folder).replace(f":{server.port}/", f":{port or server.port}/")
    return StoreAddress(**{"url": url, "host_key": server.host_key, "key": str(server.key), **changes})


def write(folder: Path, *sizes: int) -> list[SendItem]:
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        (folder / f"{number}.tsfile").write_bytes(os.urandom(size))
    return [SendItem(f"{number}.tsfile", f"l/{number}.tsfile", size) for number, size in enumerate(sizes)]


def same(items: list[SendItem], source: Path, target: Path) -> bool:
    return all((source / i.source_path).read_bytes() == (target / i.target_path).read_bytes() for i in items)


def ends(server: Sshd, near: Path, far: Path, way: str, tier: Tier) -> tuple[Store, Store]:
    """Source and target of a pull from the server's folder `far`, or of a push to it."""
    near.mkdir(exist_ok=True)
    remote, local = open_sftp(address(server, far), tier, QUICK), LocalStore(str(near))
    return (remote, local) if way == "pull" else (local, remote)


@contextmanager
def disk(place: Path, options: str) -> Iterator[Path]:
    """A disk of its own for as long as the block runs."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
