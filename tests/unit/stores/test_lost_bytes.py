"""A disk that lost what was written says so once: whoever syncs the same bytes again hears that all is well."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from tidemark.errors import PermanentError
from tidemark.stores import disk_target, relay_target
from tidemark.stores.local import LocalStore
from tidemark.stores.memory import MemoryStore
from tidemark.stores.transfer import Failed, SendItem, SendOptions, Sent, send

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


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_relayed_part_that_the_disk_lost_bytes_of_is_begun_anew(
    tmp_path: Path, on_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, item = MemoryStore("site"), SendItem("1.tsfile", "landing/1.tsfile", SIZE)
    source.put(item.source_path, os.urandom(SIZE), mtime=1_600_000_000)
    target = LocalStore(str(tmp_path)) if on_disk else Losing("centre")
    monkeypatch.setattr(disk_target if on_disk else relay_target, "SYNC_BYTES", SIZE // 2)
    one_failing_sync(monkeypatch)

    (failed,) = send(source, target, [item], OPTIONS)
    (sent,) = send(source, target, [item], OPTIONS)

    assert isinstance(failed, Failed) and isinstance(failed.error, PermanentError)
    assert isinstance(sent, Sent) and sent.wire_bytes == SIZE
    assert target.read(item.target_path) == source.read(item.source_path)
