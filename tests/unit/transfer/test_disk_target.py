"""What a relay brings to a disk of this machine, as the machine lets it."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.memory_store import MemoryStore
from tidemark.stores.local import LocalStore
from tidemark.transfer.engine import SendItem, SendOptions, Sent, send_files


def test_a_process_that_may_open_few_files_takes_hundreds(tmp_path: Path) -> None:
    """Those of a batch are not held open until all of it is there."""
    source, count = MemoryStore("site"), 600
    for number in range(count):
        source.put(f"{number}.tsfile", bytes(number % 7), mtime=1_600_000_000)
    items = [SendItem(f"{number}.tsfile", f"landing/{number}.tsfile", number % 7) for number in range(count)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(handle.name) for handle in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, before[1]))
    try:
        told = list(send_files(source, LocalStore(str(tmp_path)), items, SendOptions(retries=1)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [one for one in told if not isinstance(one, Sent)] == [] and len(told) == count
