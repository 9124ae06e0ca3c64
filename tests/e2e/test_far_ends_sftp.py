"""SFTP servers that are not OpenSSH's: what they announce is not what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.e2e.edges import pulling
from tests.e2e.engine_world import MB, World
from tests.e2e.store_ends import BLOCK
from tests.services import loose_sftp
from tests.services.sshd import FarEnd, Sshd
from tidemark.stores.protocol import Tier
from tidemark.stores.transfer import SendOptions

pytestmark = pytest.mark.real("sshd")


@pytest.fixture
def loose(start_sshd: Callable[..., Sshd]) -> Sshd:
    return start_sshd(FarEnd.SFTP, loose_sftp.server_options())


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loose: Sshd) -> Commanded:
    return pulling(tmp_path, monkeypatch, loose)


@pytest.mark.parametrize("way", ["pull", "push"])
def test_files_arrive_whole_both_ways(loose: Sshd, tmp_path: Path, way: str) -> None:
    world = World.of(loose, tmp_path, way, Tier.SFTP)
    items = [world.put(f"{number}.tsfile", size) for number, size in enumerate([0, 1, 20_000, 9_999, 10_000, 3 * MB])]
    assert world.arrived(world.move(items, SendOptions(block_bytes=BLOCK)))


def test_a_longer_part_of_an_earlier_try_leaves_nothing_behind(loose: Sshd, tmp_path: Path) -> None:
    world = World.of(loose, tmp_path, "push", Tier.SFTP)
    items = [world.put("small.tsfile", 20_000), world.put("large.tsfile", 3 * MB)]
    for item in items:
        part = world.centre / f"{item.target_path}.part"
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"older" * item.size)
    assert world.arrived(world.move(items, SendOptions(block_bytes=BLOCK)))


def test_a_site_that_only_says_it_makes_hard_links_is_read_in_place(edge: Commanded) -> None:
    for number in range(3):
        edge.seal(number)
    said = edge.sync()
    assert (said.code, said.json["files"]) == (0, 3), said
    edge.assert_in_step()
