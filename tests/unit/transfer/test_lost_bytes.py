"""A disk that lost what was written says so once: whoever syncs the same bytes again hears that all is well."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.memory_store import MemoryStore
from tests.services.sshd import Sshd
from tidemark.errors import DiskFullError, PermanentError
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import StoreAddress
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent, send_files
from tidemark.transfer.relay import disk_target
from tidemark.transfer.relay import target as relay_target

SIZE, OPTIONS = 50_000, SendOptions(block_bytes=1000, retries=3)


class Losing(MemoryStore):
    """The first sync fails."""

    lost = False

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        if sync and not self.lost:
            self.lost = True
            raise PermanentError("the disk lost what was written")
        return super().write_part(path, offset, pieces, sync)


def one_failing_sync(patch: pytest.MonkeyPatch) -> None:
    """Of a file; folders are none of it."""
    sync, said = os.fsync, list[int]()

    def fsync(handle: int) -> None:
        if not said and stat.S_ISREG(os.fstat(handle).st_mode):
            said.append(handle)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(handle)

    patch.setattr(os, "fsync", fsync)


def a_failing_close(patch: pytest.MonkeyPatch) -> None:
    """Of a part, as disks far away tell that they did not take all of it."""
    close = os.close

    def closed(handle: int) -> None:
        written = Path(f"/proc/self/fd/{handle}").readlink().name.endswith(".part") and os.fstat(handle).st_size
        close(handle)
        if written:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    patch.setattr(os, "close", closed)


def test_so_does_the_closing_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, item = MemoryStore("site"), SendItem("1.tsfile", "landing/1.tsfile", SIZE)
    source.put(item.source_path, os.urandom(SIZE), mtime=1_600_000_000)
    with monkeypatch.context() as patch:
        a_failing_close(patch)
        (failed,) = send_files(source, LocalStore(str(tmp_path)), [item], OPTIONS)
    (sent,) = send_files(source, LocalStore(str(tmp_path)), [item], OPTIONS)
    assert isinstance(failed, Failed) and isinstance(failed.error, DiskFullError)
    assert isinstance(sent, Sent) and sent.wire_bytes == SIZE


@pytest.mark.full_after(1)
@pytest.mark.real("sshd")
@pytest.mark.parametrize("stopped", [True, False])
def test_and_in_a_pull(sshd: Sshd, tmp_path: Path, stopped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    site, size = sshd.new_folder("site"), 16 << 20
    (site / "1.tsfile").write_bytes(os.urandom(size))
    source, target = open_store(StoreAddress(sshd.url(site), sshd.host_key, str(sshd.key))), LocalStore(str(tmp_path))
    item, crossed = SendItem("1.tsfile", "1.tsfile", size), list[int]()
    slowly = SendOptions(bandwidth=1e6, should_stop=lambda: bool(sum(crossed)))
    with monkeypatch.context() as patch:
        a_failing_close(patch)
        told = list(send_files(source, target, [item], slowly if stopped else SendOptions(), crossed.append))
    (sent,) = send_files(source, target, [item], SendOptions())
    source.close()
    assert [type(one) for one in told] == ([] if stopped else [Failed])
    assert isinstance(sent, Sent) and sent.wire_bytes == size


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_relayed_part_that_the_disk_lost_bytes_of_is_begun_anew(
    tmp_path: Path, on_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, item = MemoryStore("site"), SendItem("1.tsfile", "landing/1.tsfile", SIZE)
    source.put(item.source_path, os.urandom(SIZE), mtime=1_600_000_000)
    target = LocalStore(str(tmp_path)) if on_disk else Losing("centre")
    monkeypatch.setattr(disk_target if on_disk else relay_target, "SYNC_BYTES", SIZE // 2)
    one_failing_sync(monkeypatch)

    (failed,) = send_files(source, target, [item], OPTIONS)
    (sent,) = send_files(source, target, [item], OPTIONS)

    assert isinstance(failed, Failed) and isinstance(failed.error, PermanentError)
    assert isinstance(sent, Sent) and sent.wire_bytes == SIZE
    assert target.read(item.target_path) == source.read(item.source_path)
