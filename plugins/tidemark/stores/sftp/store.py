"""A store behind an SFTP server alone: all calls of `Store` over one pipelined session.

SFTP's limits: digests are made from bytes read back; folders cannot be synced (so the source is kept until a later
listing shows the file, research/aesthetics.md §4.4); listings have no inodes.
"""

from __future__ import annotations

import errno
import secrets
import stat as modes
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from tidemark.errors import DiskFullError, PermanentError, TidemarkError
from tidemark.stores.agent.disk import UNLISTED, outermost_folders, printable_name
from tidemark.stores.os_errors import Where, os_error, translate_os_errors
from tidemark.stores.protocol import (
    Entry,
    FileEnd,
    Listing,
    Piece,
    Range,
    StoreProperties,
    Tier,
    Want,
    check_folder,
    check_path,
    finish_listing,
    gone_error,
)
from tidemark.stores.sftp.files import SftpFiles, SftpFolders
from tidemark.stores.sftp.protocol import HARDLINK
from tidemark.stores.sftp.read_stream import Place, ReadStream
from tidemark.stores.sftp.session import BulkWire
from tidemark.stores.ssh.connection import SshConnection

_BATCH_FILES, _BATCH_BYTES = 500, 8 << 20
_LITTLE = 1 << 20  # with fewer free bytes, a failure without a reason is taken for a full disk


class SftpStore:
    """A store whose far end offers SFTP and no shell."""

    tier = Tier.SFTP
    reads_back = True

    def __init__(self, url: str, root: str, connection: SshConnection) -> None:
        self.url = url
        self._root = root
        self._connection = connection
        self._where = Where(connection.login.name, root)
        self._wire: BulkWire | None = None
        extensions = self._open_session()[0].extensions
        self.properties = StoreProperties(
            tier=self.tier, hard_links=HARDLINK in extensions, inodes=self._has_inodes(), appends=self._can_append()
        )

    def list_files(self, folders: Sequence[str]) -> Listing:
        missing: list[str] = []
        odd: list[tuple[str, str]] = []
        entries: list[Entry] = []
        asked = outermost_folders([check_folder(folder) for folder in folders])
        with self._session_at("") as (_, at, _files):
            self._collect_files(at, self._real_folders(at, asked, missing, odd), entries, odd)
        return finish_listing(entries, missing, odd)

    def list_folder(self, folder: str) -> Sequence[str]:
        with self._session_at(folder) as (_, at, _files):
            return sorted(printable_name(name) for name in at.list_folder(check_folder(folder)))

    def stat(self, path: str) -> Entry | None:
        return self.stat_many([path])[0]

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        for path in paths:
            check_path(path)
        with self._session_at(paths[0] if paths else "") as (_, at, _files):
            return at.stat_entries(paths)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._session_at(check_path(path)) as (_, at, files):
            entry = at.stat_entries([path])[0]
            if entry is None:
                raise gone_error(self._where, path)
            there = max(0, entry.size - offset)
            return files.read_range(at.place_of(path), offset, there if length is None else min(length, there))

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        known = self.stat_many(paths)
        wanted = [
            0 if entry is None else entry.size if lengths is None else min(entry.size, lengths[number])
            for number, entry in enumerate(known)
        ]
        start = 0
        while start < len(paths):
            end = _batch_end(wanted, start)
            there = [number for number in range(start, end) if known[number] is not None]
            with self._session_at(paths[start]) as (_, at, files):
                read = files.read_whole([at.place_of(paths[n]) for n in there], [wanted[n] for n in there])
            data = dict(zip(there, read, strict=True))
            yield from ((paths[number], data.get(number)) for number in range(start, end))
            start = end

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        with self._session_at(check_path(path), reading=True) as (_, at, files):
            if at.stat_entries([path])[0] is None:
                raise gone_error(self._where, path)
            yield from files.read_pieces(at.place_of(path), offset, length, size)

    def sha256(self, path: str, length: int | None = None) -> str:
        digest = self.digest_ranges([Range(path, 0, length)])[0]
        if digest is None:
            raise gone_error(self._where, path, length)
        return digest

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        """Digest by reading the bytes back: no known SFTP server can digest."""
        known = self.stat_many([path for path, _, _ in ranges])
        found: list[str | None] = [None] * len(ranges)
        wants: list[Place] = []
        numbers: list[int] = []
        with self._session_at(ranges[0].path if ranges else "", reading=True) as (_, at, files):
            for number, ((path, offset, length), entry) in enumerate(zip(ranges, known, strict=True)):
                if entry is not None and entry.size >= offset + (length or 0):
                    numbers.append(number)
                    wants.append(
                        Place(len(wants), at.place_of(path), offset, entry.size - offset if length is None else length)
                    )
            for number, digest in zip(numbers, files.digest_places(wants), strict=True):
                found[number] = digest
        return found

    def read_stream(self, wants: Iterator[Want], ahead: int = 0) -> Iterator[Piece]:
        paths: dict[int, str] = {}

        def places() -> Iterator[Place]:
            for want in wants:
                paths[want.number] = check_path(want.path)
                yield Place(want.number, at.place_of(want.path), want.offset, want.length)

        with self._session_at("", reading=True) as (wire, at, _):
            for number, data, trouble in ReadStream(wire, ahead).read_places(places()):
                told = os_error(trouble, self._where, paths[number], reading=True) if trouble is not None else None
                yield Piece(number, data, told)

    def bulk_session(self) -> BulkWire:
        return self._open_session()[0]

    def locate_path(self, path: str) -> str:
        """Return a path's absolute place at the server."""
        return self._open_session()[1].place_of(check_path(path))

    def explain_error(self, error: OSError, path: str) -> TidemarkError:
        """Translate an error of the server. A failure without a reason is a full disk where few bytes are free."""
        with self._session_at(path) as (_, at, files):
            free = files.free_bytes(at.place_of(path.rpartition("/")[0])) if error.errno == errno.EIO else None
        if free is not None and free < _LITTLE:
            error = OSError(errno.ENOSPC, f"{free} bytes are free", error.filename)
        return os_error(error, self._where, path)

    def name_durable(self, renames: Sequence[tuple[str, str, int]]) -> list[int]:
        """Rename durable parts, each (part, final, size), atomically where the server can.

        Returns the numbers of those that were missing or had another size: another process has changed them, so they get no
        final name.
        """
        with self._session_at(renames[0][1]) as (_, at, files):
            pairs = [(at.place_of(part), at.place_of(final)) for part, final, _ in renames]
            sizes = files.rename_over(pairs)
            left = [number for number, size in enumerate(sizes) if size is None]
            there = at.stat_places([pairs[number][0] for number in left])
            left = [number for number, facts in zip(left, there, strict=True) if facts is not None]
            files.rename_files([pairs[number] for number in left])
            for number, facts in zip(left, at.stat_places([pairs[number][1] for number in left]), strict=True):
                sizes[number] = facts.size if facts is not None else None
            others = [number for number, size in enumerate(sizes) if size is not None and size != renames[number][2]]
            # CRASH WINDOW: another process's incomplete file has the final name; the rerun detects it by its digest.
            at.remove_files([renames[number][1] for number in others])
            self._sync_folders(at, sorted({final.rpartition("/")[0] for _, final, _ in renames}))
        return [number for number, size in enumerate(sizes) if size != renames[number][2]]

    def publish(self, path: str, data: bytes) -> None:
        temp = f"{check_path(path)}.{secrets.token_hex(4)}.tmp"
        try:
            self.write_part(temp, 0, [data], sync=True)
        except (PermanentError, DiskFullError):
            self.remove([temp])
            raise
        # CRASH WINDOW: a whole temp file without its final name; nobody reads it, the rerun publishes again.
        self.rename(temp, path)

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        """Make a new file as `Store.append_if`. SFTP alone cannot compare and append."""
        if end is not None:
            raise PermanentError(
                f"{self._where.full_path(path)}: an SFTP server alone cannot compare and append", subject=path
            )
        temp = f"{check_path(path)}.{secrets.token_hex(4)}.tmp"
        try:
            self.write_part(temp, 0, [data], sync=True)
            # CRASH WINDOW: a whole temp file without its name; nobody reads it.
            with self._session_at(path) as (_, at, files):
                won = files.link_new(at.place_of(temp), at.place_of(path))
                self._sync_folders(at, [path.rpartition("/")[0]] if won else [])
        finally:
            self.remove([temp])
        return won

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        with self._session_for_writing([check_path(path)]) as (_, at, files):
            return files.write_pieces(at.place_of(path), offset, pieces, sync)

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        if files:
            with self._session_for_writing([check_path(path) for path, _ in files]) as (_, at, contents):
                contents.write_whole([(at.place_of(path), data) for path, data in files])

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        self._rename_parts(renames, sync=True)

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Hard-link as `Store.link`. SFTP has no inodes, so every existing target is linked anew.

        Raises EOPNOTSUPP also where the server reports success without a link (rclone's does): a caller would wait forever
        for the files.
        """
        targets = [check_path(target) for _, target in pairs]
        sources = self.stat_many([source for source, _ in pairs])
        there = [pair for pair, entry in zip(pairs, sources, strict=True) if entry is not None]
        with self._session_at(pairs[0][1] if pairs else "") as (_, at, files):
            self._make_parents(at, targets)
            facts = at.stat_places([at.place_of(target) for _, target in there])
            # CRASH WINDOW: an old target is removed, its new link is not there yet; the rerun links it.
            at.remove_files([target for (_, target), found in zip(there, facts, strict=True) if found is not None])
            files.link_files([(at.place_of(source), at.place_of(target)) for source, target in there])
            first = [at.place_of(target) for _, target in there[:1]]
            if at.stat_places(first) == [None]:
                raise OSError(errno.EOPNOTSUPP, "the SFTP server says it is linked, and it is not there", first[0])
        return [source for (source, _), entry in zip(pairs, sources, strict=True) if entry is None]

    def make_folders(self, folders: Sequence[str]) -> None:
        with self._session_at(folders[0] if folders else "") as (_, at, _files):
            at.make_folders([check_folder(folder) for folder in folders])

    def remove(self, paths: Sequence[str]) -> None:
        with self._session_at(paths[0] if paths else "") as (_, at, _files):
            at.remove_files(sorted(at.keep_plain_paths([check_path(path) for path in paths])))

    def remove_tree(self, folder: str) -> None:
        with self._session_at(check_path(folder)) as (_, at, _files):
            if not folder.strip("/"):
                raise OSError(errno.EINVAL, "is the root of the store, which is never removed")
            at.remove_tree(folder)

    def rename(self, source: str, target: str) -> None:
        self._rename_parts([(source, target)], sync=False)

    def free_bytes(self, folder: str = "") -> int | None:
        with self._session_at(folder) as (_, at, files):
            place = at.place_of(check_folder(folder))
            while True:
                free = files.free_bytes(place)
                if free is not None or place == "/":
                    return free
                place = place.rpartition("/")[0] or "/"

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire = None
        self._connection.drop()

    # overridden by the tier with a shell

    def _has_inodes(self) -> bool:
        return False

    def _can_append(self) -> bool:
        return False

    def _collect_files(self, at: SftpFolders, folders: list[str], entries: list[Entry], odd: list[tuple[str, str]]) -> None:
        """Add the files below `folders` to `entries`."""
        at.walk_folders(folders, entries, odd)

    def _sync_folders(self, at: SftpFolders, folders: Sequence[str]) -> None:
        """Do nothing: a folder cannot be synced over SFTP."""

    # the session

    @contextmanager
    def _session_at(self, path: str, *, reading: bool = False) -> Iterator[tuple[BulkWire, SftpFolders, SftpFiles]]:
        with translate_os_errors(self._where, path, reading=reading):
            yield self._open_session()

    @contextmanager
    def _session_for_writing(self, paths: Sequence[str]) -> Iterator[tuple[BulkWire, SftpFolders, SftpFiles]]:
        """Make the folders of `paths`, check that no path is a symlink, and give the block a session to write them."""
        with self._session_at(paths[0]) as session:
            _, at, _files = session
            self._make_parents(at, paths)
            for path, facts in zip(paths, at.stat_places([at.place_of(path) for path in paths]), strict=True):
                if facts is not None and not modes.S_ISREG(facts.mode):
                    raise OSError(
                        errno.ELOOP if modes.S_ISLNK(facts.mode) else errno.EISDIR, "is no file", at.place_of(path)
                    )
            try:
                yield session
            except OSError as error:
                raise self.explain_error(error, paths[0]) from error

    def _open_session(self) -> tuple[BulkWire, SftpFolders, SftpFiles]:
        if self._wire is None or not self._wire.is_open:
            self._wire = BulkWire(self._connection.open_pipe(subsystem="sftp"))
        return self._wire, SftpFolders(self._wire, self._root), SftpFiles(self._wire)

    def _make_parents(self, at: SftpFolders, paths: Sequence[str]) -> None:
        at.make_folders({path.rpartition("/")[0] if "/" in path.strip("/") else "" for path in paths} or {""})

    def _real_folders(self, at: SftpFolders, asked: list[str], missing: list[str], odd: list[tuple[str, str]]) -> list[str]:
        plain = at.keep_plain_paths(asked)
        real = []
        for folder, facts in zip(asked, at.stat_places([at.place_of(folder) for folder in asked]), strict=True):
            if facts is None:
                missing.append(folder)
            elif folder not in plain:
                odd.append((folder, UNLISTED + "lies below a symlink"))
            elif folder and not modes.S_ISDIR(facts.mode):
                odd.append((folder, UNLISTED + ("is a symlink" if modes.S_ISLNK(facts.mode) else "is not a folder")))
            else:
                real.append(folder)
        return real

    def _rename_parts(self, renames: Sequence[tuple[str, str]], sync: bool) -> None:
        for part, final in renames:
            check_path(part)
            check_path(final)
        if not renames:
            return
        with self._session_at(renames[0][0]) as (_, at, files):
            parts = at.stat_places([at.place_of(part) for part, _ in renames])
            waiting = [pair for pair, facts in zip(renames, parts, strict=True) if facts is not None]
            done = [pair for pair, facts in zip(renames, parts, strict=True) if facts is None]
            for (part, _), facts in zip(done, at.stat_places([at.place_of(final) for _, final in done]), strict=True):
                if facts is None:
                    raise gone_error(self._where, part)
            self._make_parents(at, [final for _, final in renames])
            if sync:
                files.sync_files([at.place_of(part) for part, _ in waiting] + [at.place_of(final) for _, final in done])
            # CRASH WINDOW: durable parts without final names, or some with: the rerun finds the rest and seals them.
            files.rename_files([(at.place_of(part), at.place_of(final)) for part, final in waiting])
            folders = {path.rpartition("/")[0] for pair in renames for path in (pair if not sync else pair[1:])}
            self._sync_folders(at, sorted(folders))


def _batch_end(sizes: Sequence[int], start: int) -> int:
    end, total = start, 0
    while end < len(sizes) and end - start < _BATCH_FILES and (end == start or total + sizes[end] <= _BATCH_BYTES):
        total += sizes[end]
        end += 1
    return end
