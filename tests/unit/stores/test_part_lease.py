"""A part that somebody else opened is known, whatever its times say; who opened it waits until we looked, no longer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemark.stores.agent.part_file import PartLease

WRITES = "import os, sys; os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'x', 0)"


@pytest.fixture
def part(tmp_path: Path) -> int:
    return os.open(tmp_path / "f.part", os.O_RDWR | os.O_CREAT)


def test_a_part_that_is_ours_alone_is_held_through_our_own_writes(part: int) -> None:
    lease = PartLease(part)
    os.close(os.dup(part))
    os.pwrite(part, b"ours", 0)
    assert lease.check_held() and lease.held
    lease.release_lease()
    os.close(part)


def test_who_opens_it_is_let_in_by_the_next_look_and_known_from_then_on(part: int, tmp_path: Path) -> None:
    lease = PartLease(part)
    other = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path / "f.part")])
    deadline = time.monotonic() + 30
    while lease.check_held() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lease.held
    assert other.wait(10) == 0
    assert os.pread(part, 1, 0) == b"x"
    assert not lease.check_held()
    os.close(part)


def test_a_part_that_somebody_has_open_already_is_not_held(part: int, tmp_path: Path) -> None:
    another = os.open(tmp_path / "f.part", os.O_RDONLY)
    assert not PartLease(part).check_held()
    os.close(another)
    os.close(part)


def test_after_its_end_anybody_opens_it_at_once(part: int, tmp_path: Path) -> None:
    lease = PartLease(part)
    lease.release_lease()
    os.close(os.open(tmp_path / "f.part", os.O_RDWR))
    assert not lease.check_held()
    os.close(part)
