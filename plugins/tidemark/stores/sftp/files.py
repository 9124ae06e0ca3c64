"""File operations over an SFTP session: contents, links and renames; entries, trees and folders.

Reads and writes are pipelined, and every status is read. Writes are made durable by `fsync@openssh.com` where the server
has it. Hard links use OpenSSH's extension and raise an error without it. A rename replaces its target atomically where
the server has posix-rename. Elsewhere the old target is removed first. `SftpFolders` works on names: it stats paths, lists
trees, makes and removes folders. Folders cannot be synced over SFTP.
"""

from __future__ import annotations

import errno
import hashlib
import stat as modes
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from tidemark.stores.agent.disk import BAD_FOLDER, BAD_NAME, UNLISTED, printable_name, why_unreached
from tidemark.stores.protocol import Entry
from tidemark.stores.sftp.protocol import (
    CLOSE,
    CREATE,
    EOF,
    EXTENDED,
    FOR_READ,
    FOR_WRITE,
    FSETSTAT,
    FSTAT,
    FSYNC,
    HARDLINK,
    LSTAT,
    MKDIR,
    NO_ATTRIBUTES,
    NO_SUCH_FILE,
    OPEN,
    OPENDIR,
    READDIR,
    REMOVE,
    RENAME,
    RENAME_OVER,
    RMDIR,
    STATVFS,
    WRITE,
    Attributes,
    Reply,
    SftpWire,
    encode_string,
    mode_attribute,
    size_attribute,
)
from tidemark.stores.sftp.read_stream import Place, ReadStream
from tidemark.stores.sftp.session import BulkWire
from tidemark.stores.sftp.write_stream import PartStream

WRITE_AHEAD = 8 << 20  # bytes sent but not yet acknowledged, at most


class SftpFiles:
    """Contents, links and renames. Places are absolute paths at the server, checked to be regular files or missing."""

    def __init__(self, wire: BulkWire) -> None:
        self.wire = wire

    def read_pieces(self, place: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        """Yield `length` bytes from `offset` in pieces of at most `size`. Raises ERANGE where the file ends earlier."""
        for _, data, trouble in ReadStream(self.wire).read_places(iter([Place(0, place, offset, length)])):
            if trouble is not None:
                raise trouble
            for start in range(0, len(data), size):
                yield bytes(data[start : start + size])

    def read_range(self, place: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`, or fewer where the file ends."""
        found = b""
        for _, data, trouble in ReadStream(self.wire).read_places(iter([Place(0, place, offset, length)])):
            if trouble is not None and trouble.errno != errno.ERANGE:
                raise trouble
            found += data
        return found

    def read_whole(self, places: Sequence[str], lengths: Sequence[int]) -> list[bytes | None]:
        """Return the first `lengths[i]` bytes of each file, fewer where it ends earlier; None for a missing one."""
        found: list[bytes | None] = [None] * len(places)
        wants = (Place(number, place, 0, lengths[number]) for number, place in enumerate(places))
        for number, data, trouble in ReadStream(self.wire).read_places(wants):
            if trouble is None:
                found[number] = (found[number] or b"") + bytes(data)
            elif trouble.errno not in (errno.ENOENT, errno.ERANGE):
                raise trouble
        return found

    def digest_places(self, wants: Sequence[Place]) -> list[str | None]:
        """Return the SHA-256 of each range, by reading it; None where the file is missing or too short."""
        totals = [hashlib.sha256() for _ in wants]
        bad: set[int] = set()
        for number, data, trouble in ReadStream(self.wire).read_places(iter(wants)):
            totals[number].update(data)
            if trouble is not None:
                if trouble.errno not in (errno.ENOENT, errno.ERANGE):
                    raise trouble
                bad.add(number)
        return [None if number in bad else total.hexdigest() for number, total in enumerate(totals)]

    def write_pieces(self, place: str, offset: int, pieces: Iterable[bytes], sync: bool) -> int:
        """Cut the file at `offset` and append `pieces`. Returns the new length. Raises ERANGE if that would leave a hole."""
        handle = self._open_file(place, FOR_WRITE | CREATE)
        wire = self.wire
        writing = _Writing()
        try:
            there = wire.ask(FSTAT, encode_string(handle)).parse_attributes().size
            if there < offset:
                raise OSError(errno.ERANGE, "is shorter than the offset to go on from", place)
            if there > offset:  # not sent otherwise: some servers cannot truncate
                wire.ask(FSETSTAT, encode_string(handle) + size_attribute(offset)).raise_for_status()
            for piece in pieces:
                for start in range(0, len(piece), wire.write_size):
                    data = memoryview(piece)[start : start + wire.write_size]
                    writing.post_write(wire, handle, offset, data)
                    offset += len(data)
                if writing.failure is not None:
                    break
            writing.await_writes(wire)
            if sync and FSYNC in wire.extensions:
                wire.ask(EXTENDED, encode_string(FSYNC) + encode_string(handle)).raise_for_status()
        finally:
            wire.ask(CLOSE, encode_string(handle))
        return offset

    def write_whole(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write many small files in one pipeline. Raises the first failure."""
        stream = PartStream(self.wire, WRITE_AHEAD)
        parts = []
        for place, data in files:
            parts.append(stream.open_part(place))
            stream.write_part(parts[-1], data)
            stream.close_part(parts[-1])
        stream.await_parts(parts)
        for part in parts:
            if part.trouble is not None:
                raise part.trouble

    def sync_files(self, places: Sequence[str]) -> None:
        """fsync each file, where the server can."""
        if FSYNC not in self.wire.extensions:
            return
        for place in places:
            self._post_open(place, FOR_READ, self._sync_and_close)
        self.wire.flush_replies()

    def link_files(self, pairs: Sequence[tuple[str, str]]) -> None:
        if pairs and HARDLINK not in self.wire.extensions:
            raise OSError(errno.EOPNOTSUPP, "the SFTP server makes no hard links", pairs[0][1])
        for source, target in pairs:
            self.wire.post(
                EXTENDED, encode_string(HARDLINK) + encode_string(source) + encode_string(target), Reply.raise_for_status
            )
        self.wire.flush_replies()

    def link_new(self, source: str, target: str) -> bool:
        """Give a file a second name, unless that name is taken. Raises OSError where the server makes no hard links."""
        if HARDLINK not in self.wire.extensions:
            raise OSError(errno.EOPNOTSUPP, "the SFTP server makes no hard links", target)
        names = encode_string(source) + encode_string(target)
        refused = self.wire.ask(EXTENDED, encode_string(HARDLINK) + names).as_os_error()
        there = self.wire.ask(LSTAT, encode_string(target)).as_os_error() is None
        if refused is not None and not there:
            raise refused
        if refused is None and not there:
            raise OSError(errno.EOPNOTSUPP, "the SFTP server says it is linked, and it is not there", target)
        return refused is None

    def rename_over(self, pairs: Sequence[tuple[str, str]]) -> list[int | None]:
        """Replace each target atomically. Returns each target's size then, None where the rename failed."""
        sizes: list[int | None] = [None] * len(pairs)
        if RENAME_OVER not in self.wire.extensions:
            return sizes

        def answered(number: int, reply: Reply) -> None:
            if reply.as_os_error() is None:
                sizes[number] = -1  # until LSTAT is answered

        def looked(number: int, reply: Reply) -> None:
            if sizes[number] is not None and reply.as_os_error() is None:
                sizes[number] = reply.parse_attributes().size

        for number, (source, target) in enumerate(pairs):
            payload = encode_string(RENAME_OVER) + encode_string(source) + encode_string(target)
            self.wire.post(EXTENDED, payload, lambda reply, number=number: answered(number, reply))  # type: ignore[misc]
            self.wire.post(LSTAT, encode_string(target), lambda reply, number=number: looked(number, reply))  # type: ignore[misc]
        self.wire.flush_replies()
        return sizes

    def rename_files(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Replace each target, atomically where the server has posix-rename."""
        if RENAME_OVER in self.wire.extensions:
            for source, target in pairs:
                self.wire.post(
                    EXTENDED,
                    encode_string(RENAME_OVER) + encode_string(source) + encode_string(target),
                    Reply.raise_for_status,
                )
            self.wire.flush_replies()
            return
        for source, target in pairs:
            if self.wire.ask(RENAME, encode_string(source) + encode_string(target)).as_os_error() is not None:
                # CRASH WINDOW: the old target is removed, the source still has its temp name; the rerun renames it.
                self.wire.ask(REMOVE, encode_string(target)).raise_for_status((NO_SUCH_FILE,))
                self.wire.ask(RENAME, encode_string(source) + encode_string(target)).raise_for_status()

    def free_bytes(self, place: str) -> int | None:
        """Return the free bytes at `place`; None where the server cannot tell or `place` does not exist."""
        if STATVFS not in self.wire.extensions:
            return None
        reply = self.wire.ask(EXTENDED, encode_string(STATVFS) + encode_string(place))
        if reply.as_os_error() is not None or len(reply.body) < 40:
            return None
        _, fragment, _, _, available = struct.unpack_from(">QQQQQ", reply.body)
        return int(fragment * available)

    def _open_file(self, place: str, flags: int) -> bytes:
        return self.wire.ask(OPEN, _encode_open(place, flags)).parse_string()

    def _post_open(self, place: str, flags: int, opened: Callable[[bytes], None]) -> None:
        self.wire.post(OPEN, _encode_open(place, flags), lambda reply: opened(reply.parse_string()))

    def _sync_and_close(self, handle: bytes) -> None:
        self.wire.post(EXTENDED, encode_string(FSYNC) + encode_string(handle), Reply.raise_for_status)
        self.wire.post(CLOSE, encode_string(handle), lambda _reply: None)


class _Writing:
    """The WRITEs of one file. A failure is kept here and concerns this file alone, not the session."""

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self._waits_for = self._on_way = 0

    def post_write(self, wire: BulkWire, handle: bytes, offset: int, data: memoryview) -> None:
        size = len(data)

        def written(reply: Reply) -> None:
            self._waits_for -= 1
            self._on_way -= size
            self.failure = self.failure or reply.as_os_error()

        self._waits_for += 1
        self._on_way += size
        wire.post_data(WRITE, encode_string(handle) + struct.pack(">Q", offset), data, written)
        while self._on_way > WRITE_AHEAD:
            wire.step()

    def await_writes(self, wire: BulkWire) -> None:
        """Wait until all WRITEs are answered. Raises the first failure."""
        while self._waits_for:
            wire.step()
        if self.failure is not None:
            raise self.failure


def _encode_open(place: str, flags: int) -> bytes:
    return encode_string(place) + struct.pack(">I", flags) + NO_ATTRIBUTES


_FOLDERS = 8  # folders read at a time
_AHEAD = 8  # READDIRs in flight for a folder, since a reply has only about a hundred names


class SftpFolders:
    """Work on names. Places are absolute paths at the server. `root` is trusted. Symlinks below it are never followed."""

    def __init__(self, wire: SftpWire, root: str) -> None:
        self.wire = wire
        self.root = root.rstrip("/")

    def place_of(self, path: str) -> str:
        return path if path.startswith("/") else (f"{self.root}/{path}" if path else self.root or "/")

    def stat_places(self, places: Sequence[str]) -> list[Attributes | None]:
        """LSTAT each place. None where nothing is there."""
        found: list[Attributes | None] = [None] * len(places)
        failed: list[OSError] = []
        left = len(places)

        def note(number: int, reply: Reply) -> None:
            nonlocal left
            left -= 1
            failure = reply.as_os_error((NO_SUCH_FILE,))
            if failure is not None:
                failed.append(OSError(failure.errno, failure.strerror, places[number]))
            elif not reply.is_status(NO_SUCH_FILE):
                found[number] = reply.parse_attributes()

        for number, place in enumerate(places):
            self.wire.post(LSTAT, encode_string(place), lambda reply, number=number: note(number, reply))  # type: ignore[misc]
        while left:  # not until all replies have come: a stream may be running in the same session
            self.wire.step()
        if failed:
            raise failed[0]
        return found

    def stat_entries(self, paths: Sequence[str]) -> list[Entry | None]:
        """Return each path's entry; None where it is no regular file or a symlink is above it."""
        plain = self.keep_plain_paths(paths)
        found = self.stat_places([self.place_of(path) for path in paths])
        return [
            Entry(path, facts.size, facts.mtime) if facts and path in plain and modes.S_ISREG(facts.mode) else None
            for path, facts in zip(paths, found, strict=True)
        ]

    def keep_plain_paths(self, paths: Iterable[str]) -> set[str]:
        """Return those of `paths` that have neither a symlink nor a file between the root and them."""
        paths = list(paths)
        above = sorted({folder for path in paths for folder in self._folders_above(path)})
        facts = dict(zip(above, self.stat_places([self.place_of(folder) for folder in above]), strict=True))
        bad = {folder for folder, found in facts.items() if found is not None and not modes.S_ISDIR(found.mode)}
        return {path for path in paths if bad.isdisjoint(self._folders_above(path))}

    def make_folders(self, folders: Iterable[str]) -> None:
        """Make folders and their parents; "" is the root. Raises ELOOP for a symlink among them, EEXIST for a file."""
        above = {part for place in map(self.place_of, folders) for part in (*_parents_of(place), place)}
        places = sorted(above - {"/"}, key=lambda place: place.count("/"))
        facts = dict(zip(places, self.stat_places(places), strict=True))
        for place in places:
            found = facts[place]
            if found is None:
                reply = self.wire.ask(MKDIR, encode_string(place) + mode_attribute(0o755))
                if reply.as_os_error() is not None:
                    self._accept_existing(place, reply)
            elif modes.S_ISLNK(found.mode):
                if place.startswith(self.root + "/") and place != self.root:
                    raise OSError(errno.ELOOP, "is a symlink", place)
            elif not modes.S_ISDIR(found.mode):
                raise OSError(errno.EEXIST, "is no folder", place)

    def list_folder(self, folder: str) -> list[bytes]:
        found: list[bytes] = []
        if folder and folder not in self.keep_plain_paths([folder]):
            return found
        facts = self.stat_places([self.place_of(folder)])[0]
        if facts is None or (folder and not modes.S_ISDIR(facts.mode)):
            return found
        self._read_folder(
            self.place_of(folder),
            lambda name, _facts: found.append(name),
            lambda reply: reply.raise_for_status(),
            lambda: None,
        )
        self.wire.flush_replies()
        return found

    def walk_folders(
        self, folders: Sequence[str], entries: list[Entry], odd: list[tuple[str, str]], deep: bool = False
    ) -> list[str]:
        """Add all regular files below `folders` to `entries`, and anything unusual to `odd`. Returns the folders, parents
        first. `deep`: without a limit on the depth."""
        seen: list[str] = []
        waiting = [(folder, 0) for folder in folders]
        active = [0]

        def enter_next() -> None:
            while waiting and active[0] < _FOLDERS:
                active[0] += 1
                enter(*waiting.pop())

        def left() -> None:
            active[0] -= 1
            enter_next()

        def enter(path: str, depth: int) -> None:
            seen.append(path)
            prefix = path + "/" if path and path != "/" else path

            def one(name: bytes, facts: Attributes) -> None:
                try:
                    below = prefix + name.decode()
                except UnicodeDecodeError:
                    odd.append((prefix + printable_name(name), BAD_FOLDER if modes.S_ISDIR(facts.mode) else BAD_NAME))
                    return
                if modes.S_ISREG(facts.mode):
                    entries.append(Entry(below, facts.size, facts.mtime))
                elif modes.S_ISDIR(facts.mode):
                    why = "" if deep else why_unreached(below, depth + 1)
                    if why:
                        odd.append((below, UNLISTED + why))
                    else:
                        waiting.append((below, depth + 1))
                else:
                    link = modes.S_ISLNK(facts.mode)
                    odd.append((below, "is a symlink" if link else "is neither file nor folder"))

            def refused(reply: Reply) -> None:
                if not reply.is_status(NO_SUCH_FILE):  # else it was removed meanwhile
                    odd.append((path, f"{UNLISTED}{getattr(reply.as_os_error(), 'strerror', '')}"))

            self._read_folder(self.place_of(path), one, refused, left)

        enter_next()
        self.wire.flush_replies()
        return seen

    def remove_tree(self, folder: str) -> None:
        facts = self.stat_places([self.place_of(folder)])[0]
        if facts is None:
            return
        if not modes.S_ISDIR(facts.mode):
            self.remove_files([folder])
            return
        entries: list[Entry] = []
        odd: list[tuple[str, str]] = []
        folders = self.walk_folders([folder], entries, odd, deep=True)
        self.remove_files([entry.path for entry in entries])
        self.remove_files([path for path, reason in odd if reason.startswith("is ")])
        for inner in sorted(folders, key=lambda path: -path.count("/")):
            self.wire.post(RMDIR, encode_string(self.place_of(inner)), lambda reply: reply.raise_for_status((NO_SUCH_FILE,)))
        self.wire.flush_replies()

    def remove_files(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.wire.post(REMOVE, encode_string(self.place_of(path)), lambda reply: reply.raise_for_status((NO_SUCH_FILE,)))
        self.wire.flush_replies()

    def _read_folder(
        self,
        place: str,
        one: Callable[[bytes, Attributes], None],
        refused: Callable[[Reply], None],
        left: Callable[[], None],
    ) -> None:
        """Post requests to list one folder. Calls `one` for each name, `refused` for a failure, always `left` at the end."""
        wire = self.wire

        def opened(reply: Reply) -> None:
            if reply.as_os_error() is not None:
                left()
                refused(reply)
                return
            handle = reply.parse_string()
            ahead = [_AHEAD]

            def listed(reply: Reply) -> None:
                if reply.as_os_error() is None:
                    for name, facts in reply.parse_names():
                        if name not in (b".", b".."):
                            one(name, facts)
                    wire.post(READDIR, encode_string(handle), listed)
                    return
                ahead[0] -= 1
                if ahead[0] == 0:
                    wire.post(CLOSE, encode_string(handle), lambda _reply: None)
                    left()
                if not reply.is_status(EOF):
                    refused(reply)

            for _ in range(_AHEAD):
                wire.post(READDIR, encode_string(handle), listed)

        wire.post(OPENDIR, encode_string(place), opened)

    def _accept_existing(self, place: str, reply: Reply) -> None:
        """Raise the failure of a MKDIR, unless another process has made the folder meanwhile."""
        facts = self.stat_places([place])[0]
        if facts is None or not modes.S_ISDIR(facts.mode):
            reply.raise_for_status()

    def _folders_above(self, path: str) -> list[str]:
        if path.startswith("/"):
            return []
        parts = path.split("/")[:-1]
        return ["/".join(parts[: end + 1]) for end in range(len(parts))]


def _parents_of(place: str) -> list[str]:
    parts = place.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]
