"""A node of a group on a disk that is full, or that can only be read: the others go on, it comes back into step."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tidemark.cluster.health.watch import watch_groups
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.proof.cluster.replicas import show_replicas

pytestmark = pytest.mark.full
NODES = ("n1", "n2", "n3")


@contextmanager
def small_disk(place: Path) -> Iterator[None]:
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small disk needs root and mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def group(centre: LoadedCentre) -> GroupLogRow:
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


def role_of(centre: LoadedCentre, node: str) -> str:
    shown = next(one for one in show_replicas(centre.app, centre.receiver).groups if one.group == centre.header)
    return next(member.role.value for member in shown.members if member.node == node)


def spoil_disk(place: Path, how: str) -> None:
    """Fill a small disk, or let it only be read."""
    if how == "full":
        with (place / "in-the-way").open("wb", buffering=0) as filling, pytest.raises(OSError, match="No space"):
            while True:
                filling.write(bytes(4096))
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@pytest.mark.parametrize("how", ["full", "read-only"])
@pytest.mark.parametrize("which", ["master", "slave"])
def test_the_others_go_on_and_it_comes_back(tmp_path: Path, how: str, which: str) -> None:
    with_header = LoadedCentre(tmp_path / "named")
    with_header.land(1)
    with_header.load()
    header = with_header.header
    node = header if which == "master" else next(name for name in NODES if name != header)
    with small_disk(tmp_path / "real" / "nodes" / node):
        place = tmp_path / "real" / "nodes" / node
        centre = LoadedCentre(tmp_path / "real")
        centre.land(1)
        centre.load()
        assert group(centre).in_step == NODES
        spoil_disk(place, how)
        centre.land(2)
        assert centre.load().exit_code == 0 and len(centre.rows()) == 2
        watch_groups(centre.app, centre.receiver)
        row = group(centre)
        assert row.active and row.master != node and role_of(centre, node) == "unsynced"
        if how == "full":
            (place / "in-the-way").unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
        for _ in range(3):
            watched = watch_groups(centre.app, centre.receiver)
        assert (watched.exit_code, watched.waiting, group(centre).in_step) == (0, {}, NODES)
        assert group(centre).master == header, "a master goes home"
        logs_tell_the_catalog(centre)
        everything_is_held(centre)
        centre.app.ledger.close()
