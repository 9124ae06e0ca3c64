"""The one place where calls that may succeed after seconds are repeated: exponential back-off with jitter, then the error.

`RetryingStore` wraps a remote store's single calls. A transfer uses the store inside it (`without_retries`) and repeats
its own tries, which resume from the blocks that have arrived. So no failure is retried on two levels (DESIGN §9).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from tidemark.errors import OutcomeUnknownError, UnreachableError
from tidemark.stores.listing import list_names
from tidemark.stores.protocol import Entry, FileEnd, Listing, Range, Store, StoreProperties
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds; each pause doubles the last one, times a random 0.5 … 1.5

TRIES = 5  # of a single call, with the first
READ_AT_ONCE, CHUNKS_AT_ONCE = 256, 8 << 20

SOON = (UnreachableError, OutcomeUnknownError)


def pause_after(failures: int) -> float:
    """Return the seconds to wait after `failures` failures in a row. Jitter spreads clients that failed together."""
    return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1))) * random.uniform(0.5, 1.5)


def try_again(act: Callable[[], T], tries: int, pause: Callable[[float], None] = time.sleep) -> T:
    """Call `act()`, up to `tries` times while it raises SOON errors. Raises the last error unchanged."""
    try:
        return act()
    except SOON as error:
        if tries <= 1:
            raise
        log.debug("tried again: %s", error)
        pause(pause_after(1))
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt  # here, because most calls succeed at once

    retrying = Retrying(
        stop=stop_after_attempt(tries - 1),
        wait=lambda state: pause_after(state.attempt_number + 1),
        retry=retry_if_exception_type(SOON),
        sleep=pause,
        before_sleep=lambda state: log.debug("tried again: %s", state.outcome and state.outcome.exception()),
        reraise=True,
    )
    return retrying(act)


class RetryBudget:
    """`try_again` for work that progresses in parts: `pause_before_retry` counts a failure, `reset_failures` restores all
    tries after progress."""

    def __init__(self, tries: int, pause: Callable[[float], None] | None = None) -> None:
        self._tries = max(1, tries)
        self._failures = 0
        self._pause = pause or time.sleep

    def pause_before_retry(self) -> bool:
        """Return False when no try is left; else pause, longer each time, and return True."""
        self._failures += 1
        if self._failures >= self._tries:
            return False
        self._pause(pause_after(self._failures))
        return True

    def reset_failures(self) -> None:
        self._failures = 0


def without_retries(store: Store) -> Store:
    """Return the store inside a `RetryingStore`; another store as it is."""
    return store.inner if isinstance(store, RetryingStore) else store


class RetryingStore:
    """Repeats each call of `inner` while its far end is unreachable. Every call may be made twice with the same effect
    (`append_if` then says False, and its caller reads what is there).

    Not `write_part`: its pieces can be read only once. Its caller resumes from what has arrived.
    """

    def __init__(self, inner: Store, tries: int = TRIES) -> None:
        self.inner = inner
        self._tries = tries

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def properties(self) -> StoreProperties:
        return self.inner.properties

    def list_files(self, folders: Sequence[str]) -> Listing:
        return self._retry_call(lambda: self.inner.list_files(folders))

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        return self._retry_call(lambda: list_names(self.inner, folders, by_name))

    def list_folder(self, folder: str) -> Sequence[str]:
        return self._retry_call(lambda: self.inner.list_folder(folder))

    def stat(self, path: str) -> Entry | None:
        return self._retry_call(lambda: self.inner.stat(path))

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        return self._retry_call(lambda: self.inner.stat_many(paths))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._retry_call(lambda: self.inner.read(path, offset, length))

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        """Read a few hundred files at a time, and yield none of them before their call has succeeded."""
        for start in range(0, len(paths), READ_AT_ONCE):
            some = slice(start, start + READ_AT_ONCE)
            wanted = None if lengths is None else lengths[some]
            yield from self._retry_call(lambda some=some, wanted=wanted: list(self.inner.read_many(paths[some], wanted)))  # type: ignore[misc]

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        """Read a few megabytes at a time, and yield none of them before their call has succeeded."""
        for start in range(offset, offset + length, CHUNKS_AT_ONCE):
            wanted = min(CHUNKS_AT_ONCE, offset + length - start)
            read = partial(self.inner.read_chunks, path, start, wanted, size)
            yield from self._retry_call(lambda read=read: list(read()))  # type: ignore[misc]

    def sha256(self, path: str, length: int | None = None) -> str:
        return self._retry_call(lambda: self.inner.sha256(path, length))

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        return self._retry_call(lambda: self.inner.digest_ranges(ranges))

    def publish(self, path: str, data: bytes) -> None:
        self._retry_call(lambda: self.inner.publish(path, data))

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        return self._retry_call(lambda: self.inner.append_if(path, data, end))

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        return self.inner.write_part(path, offset, pieces, sync)

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        self._retry_call(lambda: self.inner.write_parts(files))

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        self._retry_call(lambda: self.inner.seal_parts(renames))

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        return self._retry_call(lambda: self.inner.link(pairs))

    def make_folders(self, folders: Sequence[str]) -> None:
        self._retry_call(lambda: self.inner.make_folders(folders))

    def remove(self, paths: Sequence[str]) -> None:
        self._retry_call(lambda: self.inner.remove(paths))

    def remove_tree(self, folder: str) -> None:
        self._retry_call(lambda: self.inner.remove_tree(folder))

    def rename(self, source: str, target: str) -> None:
        self._retry_call(lambda: self.inner.rename(source, target))

    def free_bytes(self, folder: str = "") -> int | None:
        return self._retry_call(lambda: self.inner.free_bytes(folder))

    def close(self) -> None:
        self.inner.close()

    def _retry_call(self, act: Callable[[], T]) -> T:
        return try_again(act, self._tries) if self._tries > 1 else act()
