"""One transfer between a disk of this machine and a far end, with what it must not leave behind."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.e2e.store_ends import address
from tests.services import bad_disk
from tests.services.processes import descendants, soon
from tests.services.sshd import FarEnd, Sshd
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Store, Tier
from tidemark.stores.ssh.login import Limits
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.stream import connections as line
from tidemark.transfer.stream import schedule

MB = 1 << 20
LONG_AGO = 1_600_000_000
BIDING = Limits(connect=10, handshake=30, stall=20)  # where the line is the trouble, not the limits


def every_line_is_long(patch: pytest.MonkeyPatch) -> None:
    """One on which several connections pay, and all of them carry."""
    for module in (line, schedule):
        patch.setattr(module, "SHORT_ROUND_TRIP", 0.0)
        patch.setattr(module, "READY", 4)
    patch.setattr(line, "MANY", 1)


@dataclass
class World:
    """Files of `site` go to `centre`; by a pull the site is behind the server, by a push the centre is."""

    server: Sshd
    way: str
    site: Path
    centre: Path
    tier: Tier = Tier.PYTHON
    port: int = 0  # of what stands before the server
    limits: Limits = field(default_factory=lambda: BIDING)

    @classmethod
    def of(cls, server: Sshd, folder: Path, way: str, tier: Tier = Tier.PYTHON) -> World:
        """`folder`: on this machine; the far end's is the server's."""
        far, near = server.new_folder("far"), folder / "near"
        near.mkdir()
        site, centre = (far, near) if way == "pull" else (near, far)
        return cls(server, way, site, centre, tier)

    @contextmanager
    def ends(self) -> Iterator[tuple[Store, Store]]:
        """Source and target; looks afterwards that no descriptor and no process is left."""
        descriptors, children, elsewhere = _descriptors(), _children(), set(descendants(self.server.pid))
        far = open_sftp(
            address(self.server, self.site if self.way == "pull" else self.centre, self.port), self.tier, self.limits
        )
        near = LocalStore(str(self.centre if self.way == "pull" else self.site))
        try:
            yield (far, near) if self.way == "pull" else (near, far)
        finally:
            far.close()
        assert soon(lambda: _descriptors() <= descriptors), "descriptors are left"
        assert soon(lambda: set(descendants(self.server.pid)) <= elsewhere), "processes are left at the far end"
        assert soon(lambda: _children() <= children | {self.server.pid}), "processes are left here"

    def move(self, items: Sequence[SendItem], options: SendOptions | None = None) -> dict[SendItem, Sent | Failed]:
        """One transfer from opening to closing; an outcome each."""
        with self.ends() as (source, target):
            told = list(send_files(source, target, items, options))
        outcomes = {one.item: one for one in told}
        assert len(told) == len(outcomes) == len(items)
        return outcomes

    def put(self, name: str, size: int) -> SendItem:
        place = self.site / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(random.Random(f"{name} {size}").randbytes(size))
        os.utime(place, (LONG_AGO, LONG_AGO))
        return SendItem(name, f"landing/{name}", size)

    def is_whole(self, item: SendItem) -> bool:
        return (self.site / item.source_path).read_bytes()[: item.size] == (self.centre / item.target_path).read_bytes()

    def arrived(self, outcomes: dict[SendItem, Sent | Failed]) -> bool:
        """All are sent, whole under their names, and nothing lies beside them."""
        for item, one in outcomes.items():
            assert isinstance(one, Sent), one
            assert self.is_whole(item), item
        assert self.names() == sorted(item.target_path for item in outcomes), self.names()
        return True

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.centre)) for path in self.centre.rglob("*") if path.is_file())

    def no_half_file(self, outcomes: dict[SendItem, Sent | Failed]) -> bool:
        """What has a final name is whole, and what was told as sent has one."""
        for item, one in outcomes.items():
            there = (self.centre / item.target_path).exists()
            assert there or isinstance(one, Failed), item
            assert not there or self.is_whole(item), item
        return True


def world_on_a_bad_disk(
    start: Callable[..., Sshd], tmp_path: Path, way: str, tier: Tier = Tier.PYTHON, **troubles: object
) -> World:
    """The far end sees a bad disk below its folder of this test."""
    far = tmp_path / "far"
    far.mkdir()
    server = start(FarEnd.SHELL, bad_disk.server_options(tmp_path / "login", far, **troubles))
    near = tmp_path / "near"
    near.mkdir()
    site, centre = (far, near) if way == "pull" else (near, far)
    return World(server, way, site, centre, tier)


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}
