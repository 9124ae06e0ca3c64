"""What a push tells as sent is what the source had and what the far disk holds, whatever happens on the way there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.engine_world import every_line_is_long
from tests.e2e.store_ends import QUICK, address, same, write
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.stores import retrying
from tidemark.stores.agent import reader as far_stream
from tidemark.stores.local import LocalStore
from tidemark.stores.open_sftp import open_sftp
from tidemark.stores.python.store import PythonStore
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files

pytestmark = pytest.mark.real("sshd")
MB = 1 << 20
LONG_AGO = 1_600_000_000


@pytest.fixture
def site(tmp_path: Path) -> LocalStore:
    (tmp_path / "site").mkdir()
    return LocalStore(str(tmp_path / "site"))


@pytest.fixture
def wire(sshd: Sshd) -> Iterator[Wire]:
    with Wire(sshd.port, upwards=True) as between:
        yield between


@pytest.fixture
def centre(sshd: Sshd, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonStore]:
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.05)
    (tmp_path / "centre").mkdir()
    store = open_sftp(address(sshd, tmp_path / "centre", wire.port), limits=QUICK)
    assert isinstance(store, PythonStore)
    yield store
    store.close()


def old(site: LocalStore, *sizes: int) -> list[SendItem]:
    """Files whose times show every change."""
    items = write(Path(site.where.root), *sizes)
    for item in items:
        os.utime(Path(site.where.root) / item.source_path, (LONG_AGO, LONG_AGO))
    return items


def arrived(site: LocalStore, centre: PythonStore, items: list[SendItem]) -> bool:
    return same(items, Path(site.where.root), Path(centre.root))


@pytest.mark.parametrize("size", [100_000, 3 * MB])
def test_a_source_that_changes_while_its_last_bytes_are_read_is_never_mixed(
    site: LocalStore, centre: PythonStore, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (item,) = old(site, size)
    place = Path(site.where.root) / item.source_path
    fill, changed = far_stream._read_into, []

    def then_changed(handle: int, view: memoryview) -> bool:
        filled = fill(handle, view)
        if not changed and os.lseek(handle, 0, os.SEEK_CUR) == size:
            changed.append(place.write_bytes(os.urandom(size)))
        return filled

    monkeypatch.setattr(far_stream, "_read_into", then_changed)
    (sent,) = send_files(site, centre, [item], SendOptions(block_bytes=MB))
    assert changed and isinstance(sent, Sent) and arrived(site, centre, [item])


def test_pieces_of_two_editions_are_never_put_together(site: LocalStore, centre: PythonStore, wire: Wire) -> None:
    """Between two chunks, within one second, size and inode the same: its times in nanoseconds tell."""
    (item,) = old(site, 6 * MB)
    place = Path(site.where.root) / item.source_path
    crossed: list[int] = []

    def rewrite() -> None:
        with place.open("r+b") as file:
            file.write(os.urandom(6 * MB))
        os.utime(place, ns=(LONG_AGO * 10**9, LONG_AGO * 10**9 + 7))

    wire.once_at(MB, rewrite)
    (sent,) = send_files(site, centre, [item], SendOptions(block_bytes=MB), crossed.append)
    assert isinstance(sent, Sent) and arrived(site, centre, [item])
    assert sum(crossed) > 6 * MB


def grown_and_replaced(place: Path) -> None:
    """By another file that is longer than what is wanted, too."""
    other = place.with_name("other")
    other.write_bytes(os.urandom(8 * MB))
    other.replace(place)


def rewritten_within_its_tick(place: Path) -> None:
    before = place.stat()
    with place.open("r+b") as file:
        file.write(os.urandom(before.st_size))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("digest", [True, False], ids=["both ends", "target only"])
@pytest.mark.parametrize(("size", "change"), [(7 * MB, grown_and_replaced), (6 * MB, rewritten_within_its_tick)])
def test_two_editions_that_no_time_tells_apart_are_never_put_together(
    site: LocalStore, centre: PythonStore, wire: Wire, size: int, change: Callable[[Path], None], digest: bool
) -> None:
    """Nor where the link has the digest made at the target alone."""
    (written,) = old(site, size)
    item = replace(written, size=6 * MB)
    place = Path(site.where.root) / item.source_path
    crossed: list[int] = []

    wire.once_at(MB, lambda: change(place))
    options = SendOptions(block_bytes=MB, digest_at_source=digest)
    (sent,) = send_files(site, centre, [item], options, crossed.append)
    assert isinstance(sent, Sent) and sent.verified == ("source" if digest else "target")
    assert (Path(centre.root) / item.target_path).read_bytes() == place.read_bytes()[: item.size]
    assert sum(crossed) > 6 * MB


@pytest.mark.full
def test_small_files_asked_of_several_connections_arrive_whole(
    site: LocalStore, centre: PythonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a long line what is slow is asked of another connection, too; who comes second writes over nobody's bytes."""
    every_line_is_long(monkeypatch)
    items = old(site, *[40_000] * 300, 2 * MB)
    outcomes = list(send_files(site, centre, items, SendOptions(connections=4)))
    assert len(outcomes) == len(items) and all(isinstance(one, Sent) for one in outcomes)
    assert arrived(site, centre, items)
    assert not list(Path(centre.root).rglob("*.part*"))
