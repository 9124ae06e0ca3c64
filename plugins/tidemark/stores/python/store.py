"""A store whose far end has python3 and a shell: the agent runs there, so it can do what a local store can."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tidemark.errors import PermanentError
from tidemark.stores.agent.block_journal import Identity
from tidemark.stores.agent.server import GATHER
from tidemark.stores.listing import Frame, PackedEntries
from tidemark.stores.os_errors import Where, translate_os_errors
from tidemark.stores.protocol import (
    Entry,
    FileEnd,
    Listing,
    Range,
    StoreProperties,
    Tier,
    check_folder,
    check_path,
    gone_error,
)
from tidemark.stores.python.session import FarPool, FarSession
from tidemark.stores.ssh.connection import SshConnection

T = TypeVar("T")

_BATCH = 2000  # paths in an operation


class PythonStore:
    """A store whose far end runs the agent in its python3. Nothing is installed, no file is left."""

    def __init__(self, url: str, root: str, connection: SshConnection, first: FarSession) -> None:
        self.url = url
        self.properties = StoreProperties(tier=Tier.PYTHON, hard_links=True, inodes=True, appends=True)
        self.connection = connection
        self.root = root
        self.pool = FarPool(connection, root, first)
        self.further: list[tuple[SshConnection, FarSession]] = []  # opened by a transfer, idle now
        self.direct_routes: dict[str, PythonStore | str] = {}  # by the target's url, see `transfer.engine`
        self.where = Where(connection.login.name, root)

    def list_files(self, folders: Sequence[str]) -> Listing:
        return self._make_listing(folders, "")

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        return self._make_listing(folders, by_name)

    def _make_listing(self, folders: Sequence[str], by_name: str) -> Listing:
        asked = [check_folder(folder) for folder in folders]
        frames: list[Frame] = []
        with self._far_session("") as far:
            for words, data in far.stream_frames("list", asked, by_name, patient=True):
                if data:
                    frames.append(Frame(words, data, compressed=True))
                else:
                    missing, odd = words
        found = tuple(sorted((path, why) for path, why in odd))
        return Listing(PackedEntries(frames), tuple(sorted(missing)), found, partial=bool(by_name))

    def list_folder(self, folder: str) -> Sequence[str]:
        with self._far_session(folder) as far:
            names: list[str] = far.ask("names", check_folder(folder))
            return names

    def stat(self, path: str) -> Entry | None:
        return self.stat_many([path])[0]

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        found: list[Entry | None] = []
        for batch in _in_batches([check_path(path) for path in paths]):
            with self._far_session(batch[0]) as far:
                facts = far.ask("stat", batch)
            found += [Entry(path, *fact) if fact else None for path, fact in zip(batch, facts, strict=True)]
        return found

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._far_session(check_path(path)) as far:
            found = self._at_most(length, (data for _, data in far.stream_frames("read_range", path, offset, length)))
            return b"".join(found)

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        start = 0
        for batch in _in_batches([check_path(path) for path in paths]):
            wanted = None if lengths is None else list(lengths[start : start + len(batch)])
            start += len(batch)
            names = iter(batch)
            with self._far_session(batch[0]) as far:
                held: list[bytes] = []  # the bytes of a large file, whose size comes after them
                most = None if wanted is None else max(wanted) + GATHER  # bytes that may come before a size
                for sizes, more in far.stream_frames("read_many", batch, wanted):
                    held += self._at_most(most, [*held, more])[len(held) :]
                    if sizes is None:
                        continue
                    data, held, at = b"".join(held), [], 0
                    for size in sizes:
                        yield next(names), None if size is None else data[at : at + size]
                        at += size or 0

    def _at_most(self, length: int | None, pieces: Iterable[bytes]) -> list[bytes]:
        """Return all `pieces`. Raises PermanentError where they have more than `length` bytes."""
        found, size = [], 0
        for piece in pieces:
            found.append(piece)
            size += len(piece)
            if length is not None and size > length:
                raise PermanentError(
                    f"{self.where.host} sends more bytes of a file than it was asked for",
                    hint="is what starts there as python3 one? A login script may stand for it",
                    subject=self.where.host,
                )
        return found

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        with self._far_session(check_path(path), reading=True) as far:
            for _, data in far.stream_frames("read", path, offset, length, size):
                if data:
                    yield data

    def sha256(self, path: str, length: int | None = None) -> str:
        digest = self.digest_ranges([Range(path, 0, length)])[0]
        if digest is None:
            raise gone_error(self.where, path, length)
        return digest

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        found: list[str | None] = []
        for batch in _in_batches([Range(check_path(path), offset, length) for path, offset, length in ranges]):
            with self._far_session(batch[0].path) as far:
                found += far.ask("digests", batch)
        return found

    def ask_editions(self, paths: Sequence[str]) -> Sequence[int | None]:
        """Return `stores.agent.reader.edition_of` each path, by the far end's clock; None where there is no file."""
        found: list[int | None] = []
        for batch in _in_batches([check_path(path) for path in paths]):
            with self._far_session(batch[0]) as far:
                found += far.ask("editions", batch)
        return found

    def publish(self, path: str, data: bytes) -> None:
        with self._far_session(check_path(path)) as far:
            far.send_pieces("publish", (path,), [data])

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        words = None if end is None else (end.size, end.offset, end.tail.hex())
        with self._far_session(check_path(path)) as far:
            return bool(far.send_pieces("append", (path, words), _join_pieces([data])))

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        with self._far_session(check_path(path)) as far:
            return int(far.send_pieces("write", (path, offset, sync), pieces))

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        for batch in _in_batches(files):
            with self._far_session(check_path(batch[0][0])) as far:
                sizes = [(check_path(path), len(data)) for path, data in batch]
                far.send_pieces("write_many", (sizes,), _join_pieces([data for _, data in batch]))

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        for batch in _in_batches([(check_path(part), check_path(final)) for part, final in renames]):
            with self._far_session(batch[0][1]) as far:
                far.ask("seal", batch)

    def begin_parts(self, files: Sequence[tuple[str, Identity, bool]]) -> Sequence[tuple[int, Any]]:
        """Make the parts of large files by `stores.agent.writer.begin_parts`. `files`: (path, identity, whether an old part
        may be resumed)."""
        found: list[tuple[int, Any]] = []
        for batch in _in_batches([[check_path(path), *identity, keep] for path, identity, keep in files]):
            with self._far_session(str(batch[0][0])) as far:
                found += [(number, said) for number, said in far.ask("begin", batch)]
        return found

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        missing: list[str] = []
        for batch in _in_batches([(check_path(source), check_path(target)) for source, target in pairs]):
            with self._far_session(batch[0][1]) as far:
                missing += far.ask("link", batch)
        return missing

    def make_folders(self, folders: Sequence[str]) -> None:
        if folders:
            with self._far_session(folders[0]) as far:
                far.ask("folders", [check_folder(folder) for folder in folders])

    def remove(self, paths: Sequence[str]) -> None:
        for batch in _in_batches([check_path(path) for path in paths]):
            with self._far_session(batch[0]) as far:
                far.ask("remove", batch)

    def remove_tree(self, folder: str) -> None:
        with self._far_session(check_path(folder)) as far:
            far.ask("remove_tree", folder)

    def rename(self, source: str, target: str) -> None:
        with self._far_session(check_path(source)) as far:
            far.ask("rename", source, check_path(target))

    def free_bytes(self, folder: str = "") -> int | None:
        with self._far_session(folder) as far:
            return int(far.ask("free", check_folder(folder)))

    def close(self) -> None:
        for path in self.direct_routes.values():
            if isinstance(path, PythonStore):
                path.close()
        self.pool.close()
        self.connection.drop()
        self.pool.await_returns()  # which ends with the connection
        for connection, _ in self.further:
            connection.drop()
        self.further.clear()

    @contextmanager
    def _far_session(self, path: str, *, reading: bool = False) -> Iterator[FarSession]:
        with translate_os_errors(self.where, path, reading=reading):
            with self.pool.borrow_session() as far:
                yield far


def _in_batches(things: Sequence[T]) -> Iterator[list[T]]:
    for start in range(0, len(things), _BATCH):
        yield list(things[start : start + _BATCH])


def _join_pieces(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Join the bytes into pieces of about 256 KB, to send fewer frames."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= 1 << 18:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
