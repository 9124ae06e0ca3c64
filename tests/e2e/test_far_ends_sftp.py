"""SFTP servers that are not OpenSSH's: what they announce is not what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.e2e.chaos_proxy import chaos
from tests.e2e.edges import pulling
from tests.e2e.engine_world import MB, World
from tests.e2e.store_ends import BLOCK, QUICK, address, same, write
from tests.services import loose_sftp
from tests.services.sshd import FarEnd, Sshd
from tidemark.errors import UnreachableError
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.protocol import Tier
from tidemark.transfer.engine import Failed, SendOptions, Sent, send_files

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_pauses")]


@pytest.fixture
def loose(start_sshd: Callable[..., Sshd]) -> Sshd:
    return start_sshd(FarEnd.SFTP, loose_sftp.server_options())


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loose: Sshd) -> Commanded:
    return pulling(tmp_path, monkeypatch, loose)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("way", ["pull", "push"])
def test_files_arrive_whole_both_ways(loose: Sshd, tmp_path: Path, way: str) -> None:
    world = World.of(loose, tmp_path, way, Tier.SFTP)
    items = [world.put(f"{number}.tsfile", size) for number, size in enumerate([0, 1, 20_000, 9_999, 10_000, 3 * MB])]
    assert world.arrived(world.move(items, SendOptions(block_bytes=BLOCK)))


@pytest.mark.full
def test_a_longer_part_of_an_earlier_try_leaves_nothing_behind(loose: Sshd, tmp_path: Path) -> None:
    world = World.of(loose, tmp_path, "push", Tier.SFTP)
    items = [world.put("small.tsfile", 20_000), world.put("large.tsfile", 3 * MB)]
    for item in items:
        part = world.centre / f"{item.target_path}.part"
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"older" * item.size)
    assert world.arrived(world.move(items, SendOptions(block_bytes=BLOCK)))


@pytest.mark.full
def test_a_push_that_was_cut_goes_on_where_no_file_can_be_cut(loose: Sshd, tmp_path: Path) -> None:
    """Also where the part is longer than the file by then: the proof finds it, and it is sent anew."""
    items, far, near = write(tmp_path, 6 * MB), loose.new_folder("far"), LocalStore(str(tmp_path))
    with chaos(loose.port, ("drop", 4 * MB), ("refuse", 0), for_ever=True) as proxy:
        store = open_sftp(address(loose, far, proxy.port), limits=QUICK)
        (cut,) = send_files(near, store, items, SendOptions(block_bytes=BLOCK, retries=0))
        store.close()
    assert isinstance(cut, Failed) and isinstance(cut.error, UnreachableError), cut
    part = far / f"{items[0].target_path}.part"
    for longer in (0, 8 * MB):
        kept = part.read_bytes()
        part.write_bytes(kept + bytes(longer))
        papers = {paper: paper.read_bytes() for paper in part.parent.glob("*.blocks")}
        store = open_sftp(address(loose, far), limits=QUICK)
        (sent,) = send_files(near, store, items, SendOptions(block_bytes=BLOCK, retries=2))
        store.close()
        assert isinstance(sent, Sent) and same(items, tmp_path, far), sent
        (far / items[0].target_path).unlink()
        for paper, said in [*papers.items(), (part, kept)]:
            paper.write_bytes(said)


@pytest.mark.full
def test_a_site_that_only_says_it_makes_hard_links_is_read_in_place(edge: Commanded) -> None:
    for number in range(3):
        edge.seal(number)
    said = edge.sync()
    assert (said.code, said.json["files"]) == (0, 3), said
    edge.assert_in_step()


@pytest.mark.full
def test_a_receiver_gets_its_papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loose: Sshd) -> None:
    keys = {"host_key": loose.host_key, "key": str(loose.key)}
    edge = Commanded(tmp_path, monkeypatch, centre=loose.url(tmp_path / "centre"), receiver_keys=keys)
    edge.seal(1)
    said = edge.sync()
    assert (said.code, said.json["files"]) == (0, 1), said
