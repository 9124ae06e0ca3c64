"""A pull from a real sshd while bytes rot in the part, the source changes, or a thread of ours breaks."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.store_ends import address
from tests.services.processes import soon
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark.stores import retrying
from tidemark.stores.agent import durable, part_file
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files
from tidemark.transfer.stream import pull
from tidemark.transfer.stream.verify import VerifiedPart

pytestmark = pytest.mark.real("sshd")

MB = 1 << 20
OLD = 1_600_000_000


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.05)


@pytest.fixture
def site(sshd: Sshd) -> Path:
    return sshd.new_folder("site")


@pytest.fixture
def wire(sshd: Sshd) -> Iterator[Wire]:
    with Wire(sshd.port) as between:
        yield between


@pytest.fixture
def source(sshd: Sshd, site: Path, wire: Wire) -> Iterator[Store]:
    store = open_store(address(sshd, site, wire.port))
    yield store
    store.close()


@pytest.fixture
def target(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def put(site: Path, name: str, size: int) -> SendItem:
    (site / name).write_bytes(os.urandom(size))
    os.utime(site / name, (OLD, OLD))
    return SendItem(name, name, size)


@pytest.mark.full
def test_a_source_rewritten_while_it_is_read_is_never_mixed(
    site: Path, source: Store, target: LocalStore, tmp_path: Path, wire: Wire
) -> None:
    """Its mtime set back to what it was: the ctime shows it, and a digest at the source tells."""
    item = put(site, "f.tsfile", 32 * MB)  # of which eight are asked for ahead, and lie on the way
    other = os.urandom(item.size)

    def rewrite() -> None:
        with (site / "f.tsfile").open("r+b") as file:
            file.write(other)
        os.utime(site / "f.tsfile", (OLD, OLD))

    wire.once_at(4 * MB, rewrite)
    (outcome,) = send_files(source, target, [item], SendOptions(block_bytes=MB))
    assert isinstance(outcome, Sent), outcome
    assert (tmp_path / "f.tsfile").read_bytes() == other


@pytest.mark.full_after(1)
@pytest.mark.parametrize("most", [0, 1, 32])
def test_files_that_wait_to_be_read_back_are_few(
    site: Path, source: Store, target: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Each is held open: where reading is slower than the line, the line waits."""
    monkeypatch.setattr(pull, "MOST_UNPROVEN", most)
    items, read, held = [put(site, f"{n}.tsfile", 2 * MB) for n in range(20)], VerifiedPart.verify_written, []

    def prove(part: VerifiedPart, buffer: memoryview) -> bool:
        time.sleep(0.01)
        held.append(
            sum(_opened(fd).endswith(".part") and str(tmp_path) in _opened(fd) for fd in Path("/proc/self/fd").iterdir())
        )
        return read(part, buffer)

    monkeypatch.setattr(VerifiedPart, "verify_written", prove)
    assert all(isinstance(outcome, Sent) for outcome in send_files(source, target, items, SendOptions()))
    assert all((tmp_path / item.target_path).read_bytes() == (site / item.source_path).read_bytes() for item in items)
    assert max(held) <= most + 4  # one that comes, one that goes to be read, the thread that syncs


def _opened(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


@pytest.mark.timeout(60)
def test_a_bug_where_names_are_given_is_raised(
    site: Path, source: Store, target: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [put(site, f"{n}.tsfile", 1000) for n in range(3)]

    def bug(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(durable, "make_durable", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        list(send_files(source, target, items, SendOptions(retries=2)))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("size", [1000, 3 * MB])
def test_a_part_that_another_begins_at_the_same_moment_is_brought_again(
    site: Path, source: Store, target: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    taken: list[bytes] = []
    new = part_file._create_new

    def taken_once(place: bytes) -> int:
        if not taken:
            taken.append(place)
            raise OSError(errno.ESTALE, "is being written by somebody else")
        return new(place)

    monkeypatch.setattr(part_file, "_create_new", taken_once)
    (tmp_path / "f.tsfile.part").write_bytes(b"of a run before")
    (outcome,) = send_files(source, target, [put(site, "f.tsfile", size)], SendOptions(block_bytes=MB, retries=1))
    assert isinstance(outcome, Sent) and taken
    assert (tmp_path / "f.tsfile").read_bytes() == (site / "f.tsfile").read_bytes()


@pytest.mark.full
def test_all_that_came_is_told_while_the_far_end_stands_still(
    site: Path, source: Store, target: LocalStore, tmp_path: Path, wire: Wire
) -> None:
    item, part, told, all_told = put(site, "f.tsfile", 32 * MB), tmp_path / "f.tsfile.part", list[int](), []

    def look() -> None:
        time.sleep(0.5)  # what was on its way has come
        all_told.append(soon(lambda: part.exists() and sum(told) == part.stat().st_size > 0))

    wire.once_at(12 * MB, look)
    (outcome,) = send_files(source, target, [item], SendOptions(), told.append)
    assert all_told == [True] and isinstance(outcome, Sent) and sum(told) == 32 * MB
