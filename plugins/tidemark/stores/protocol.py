"""The interface of a store: the file operations that every store has, over any kind of connection.

Paths are strings separated by `/`, relative to the store's root, or absolute (`/disk2/…`) where a site has data on
several disks. No call follows a symlink, and none accepts a `..` component (`check_path`, `check_folder`).
`StoreProperties` declares what a far end cannot do. Errors are Tidemark's: `UnreachableError` for what may succeed after
seconds, `PermissionDeniedError`, `DiskFullError`, `HostKeyError`, `SourceVanishedError` for a missing path. Every method
of `Store` documents the effect of a missing file, a lost reply and a repeated call.

`read_stream(store, wants)` reads many files as one stream, in the order of the wants. Requests are sent ahead, across
files. A store that can have many requests in flight has its own `read_stream`. For any other store the stream is made
from its calls: small files in bundles of at most 512 files and 8 MB, others one by one. A file that is missing or too
short gives a piece with that trouble, and the stream continues.

A `StoreAddress` is a store's url and login: `file:///path` or `sftp://user@host:port/path`, from a site, a receiver or a
node of the settings. `place_of` and `local_root` parse the url and raise UsageError for an invalid one.
`without_password` makes it printable. An address has no secret: a private key is given by its file.

Source: DESIGN §3 "Either end may be remote"; research/aesthetics.md §4.4 for durable publish.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from tidemark.errors import CorruptionError, SourceVanishedError, TidemarkError, UsageError
from tidemark.settings.model import NodeSettings, ReceiverSettings, SiteSettings
from tidemark.stores.agent.disk import RAISED as RAISED  # noqa: PLC0414  part of the protocol
from tidemark.stores.agent.disk import UNLISTED as UNLISTED  # noqa: PLC0414  part of the protocol
from tidemark.stores.agent.durable import is_half_written as is_half_written  # noqa: PLC0414  part of the protocol
from tidemark.stores.agent.limits import MEMORY_BYTES
from tidemark.stores.os_errors import Where


class Tier(enum.StrEnum):
    """What the far end can run. Found by one probe; the settings may force one."""

    LOCAL = "local"
    PYTHON = "python3"  # a shell and python3
    POSIX = "posix"  # a shell with find, sha256sum, tar
    SFTP = "sftp"  # the SFTP subsystem only (internal-sftp, chroot)


@dataclass(frozen=True)
class StoreProperties:
    """What a store's far end can do."""

    tier: Tier
    hard_links: bool
    inodes: bool  # listings have inode numbers
    appends: bool  # `append_if` extends files, too; else it only makes new ones


class Entry(NamedTuple):
    """One regular file of a listing. `mtime` in whole seconds; `inode` 0 where the store has none.

    A tuple, because a site may have a million files: it is faster to make than a frozen dataclass.
    """

    path: str
    size: int
    mtime: int
    inode: int = 0


@dataclass(frozen=True)
class Listing:
    """All regular files below the requested folders, ordered by path bytes, and what could not be listed.

    `missing`: requested folders that do not exist. `odd`: (path, reason) of symlinks, unreadable folders and the like.
    `partial`: some files have only a name, see `PartialListing`.
    """

    entries: Sequence[Entry]
    missing: Sequence[str] = ()
    odd: Sequence[tuple[str, str]] = ()
    partial: bool = False

    @property
    def unlisted(self) -> list[tuple[str, str]]:
        """Those of `odd` whose content is unknown, e.g. a requested folder that is a symlink."""
        return [(path, why) for path, why in self.odd if why.startswith(UNLISTED)]


class Range(NamedTuple):
    """`length` bytes of a file from `offset`; None: up to its end."""

    path: str
    offset: int = 0
    length: int | None = None


class FileEnd(NamedTuple):
    """What a caller has read of a file: it has `size` bytes, and its first `offset` bytes end with `tail`."""

    size: int
    offset: int
    tail: bytes


@runtime_checkable
class PartialListing(Protocol):
    """A store that can list some files by name alone, because a stat of each costs time (see `listing.list_names`)."""

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        """`list_files`, but files whose name ends with `by_name` are not stat'ed: they get size -1, mtime 0 and inode 0."""
        ...


class Store(Protocol):
    """The operations of a store. Missing folders of a target are made. A path that is no regular file counts as missing."""

    @property
    def url(self) -> str: ...

    @property
    def properties(self) -> StoreProperties: ...

    def list_files(self, folders: Sequence[str]) -> Listing:
        """List every regular file below `folders`, recursively. `""` is the root. A name that is not UTF-8 is odd."""
        ...

    def list_folder(self, folder: str) -> Sequence[str]:
        """Return the names of files and folders directly in `folder`, sorted; empty where it does not exist."""
        ...

    def stat(self, path: str) -> Entry | None:
        """Return the file's entry, or None where there is no regular file."""
        ...

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        """`stat` each path, in few round trips. Inodes only where `stat` has them."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a small file or a range of a large one; fewer bytes where the file ends. Raises SourceVanishedError."""
        ...

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        """Read small files in few round trips, in order, each whole or its first `lengths[i]` bytes; None where missing."""
        ...

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        """Read `length` bytes from `offset` in pieces of at most `size`, with many requests in flight where possible.

        Raises SourceVanishedError when the file is missing or too short.
        """
        ...

    def sha256(self, path: str, length: int | None = None) -> str:
        """Return the hex digest of the file or its first `length` bytes, computed at the far end where it has a tool.

        Raises SourceVanishedError when the file is missing or shorter than `length`.
        """
        ...

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        """Return the SHA-256 of each range in hex, in few round trips; None where the file is missing or too short."""
        ...

    def publish(self, path: str, data: bytes) -> None:
        """Write a small file durably: temp name, write, fsync, rename, fsync folder. Replaces an older file."""
        ...

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        """Cut the file at `end.offset` and append `data` durably, if the file still is what `end` says. None: make the file,
        whole or not at all, if there is none.

        Returns False, and changes nothing, where that does not hold. One caller of many wins: the far end compares and
        appends under a lock, and gives a new file its name by a link. A repeated call returns False where the first had its
        effect. A call that breaks off may leave a torn append; the next caller sees and cuts it.
        """
        ...

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        """Cut `path` (a `.part`) at `offset` and append `pieces`. Returns the new length.

        `sync`: make its bytes durable before the call returns (where the far end can).
        """
        ...

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write many small whole `.part` files in few round trips. Nothing is durable before `seal_parts`."""
        ...

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        """Make every `.part` durable, rename each to its final name, make the folders durable.

        A pair whose `.part` is missing while the final name exists was renamed by an earlier call whose reply was lost or
        whose process died. It is made durable, too, and counts as success.
        """
        ...

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Hard-link each source to its target. Returns the missing sources.

        An existing equal link is success. Another file at the target is replaced. Raises PermanentError where the disks
        differ or the file system has no links.
        """
        ...

    def make_folders(self, folders: Sequence[str]) -> None:
        """Make each folder and its parents. An existing one is success."""
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files. A missing one is success."""
        ...

    def remove_tree(self, folder: str) -> None:
        """Remove a folder and everything below it. A missing one is success."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replace `target` atomically and make the folder durable, where the far end can. A missing source with an existing
        target was renamed before: success."""
        ...

    def free_bytes(self, folder: str = "") -> int | None:
        """Return the free bytes at the nearest existing folder; None where unknown."""
        ...

    def close(self) -> None: ...


BUNDLE_FILES = 512
BUNDLE_BYTES = 8 << 20


class Want(NamedTuple):
    """`length` bytes of a file from `offset`."""

    number: int
    path: str
    offset: int
    length: int
    small: bool = False  # a whole file, which may be read in a bundle


class Piece(NamedTuple):
    """The next bytes of a want, valid until the next piece; or the reason why no more come."""

    number: int
    data: bytes | memoryview
    trouble: TidemarkError | None = None


@runtime_checkable
class StreamReading(Protocol):
    """A store that can read many files as one stream, because a round trip costs more than the bytes."""

    def read_stream(self, wants: Iterator[Want], ahead: int = 0) -> Iterator[Piece]:
        """Yield all bytes of each want, in the order of the wants. An empty want gives one empty piece. Requests are sent
        `ahead` bytes ahead; 0: as many as the connection may need.

        A file that is missing or too short gives a piece with that trouble, and the stream continues with the next one.
        """
        ...


class PendingDigest(Protocol):
    """A digest that is being computed at a far end."""

    def await_digest(self) -> str | None:
        """Wait for the digest; None where the file is missing or cannot be read."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class DigestingBeside(Protocol):
    """A store whose far end can compute a digest in the background."""

    def digest_beside(self, path: str, length: int) -> PendingDigest | None:
        """Start to digest the first `length` bytes of a file; None for a file that is too small for it."""
        ...


def read_stream(store: Store, wants: Iterator[Want], ahead: int = 0) -> Iterator[Piece]:
    """Call `store.read_stream` where the store has it, else make the stream from its calls: small files in bundles."""
    return (
        store.read_stream(wants, ahead)
        if isinstance(store, StreamReading)
        else _read_by_calls(store, wants, ahead or BUNDLE_BYTES)
    )


def read_records(store: Store, paths: Sequence[str], most: int) -> Iterator[bytes | CorruptionError | None]:
    """Read small files that others can write: the bytes of each; None where there is none; the error for a longer one.

    Of each at most `most` + 1 bytes are asked for, so a far end that lies about a size cannot send more. One that says
    itself that it is longer is not read.
    """
    told = store.stat_many(paths)
    short = [path for path, entry in zip(paths, told, strict=True) if entry is not None and entry.size <= most]
    read = store.read_many(short, [most + 1] * len(short))
    for path, entry in zip(paths, told, strict=True):
        data = next(read)[1] if entry is not None and entry.size <= most else None
        long = (entry is not None and entry.size > most) or (data is not None and len(data) > most)
        yield _long_error(store, path, most) if long else data


def read_record(store: Store, path: str, most: int) -> bytes | None:
    """Read one such file. Raises the error for one that is longer."""
    (data,) = read_records(store, [path], most)
    if isinstance(data, CorruptionError):
        raise data
    return data


def _long_error(store: Store, path: str, most: int) -> CorruptionError:
    text = f"{without_password(store.url).rstrip('/')}/{path} has more than the {most} bytes that are read of it"
    return CorruptionError(text, hint="look at who wrote it, and remove it there", subject=path)


def vanished_error(path: str, why: str) -> SourceVanishedError:
    return SourceVanishedError(f"{path} {why}", hint="the next run lists again", subject=path)


def _read_by_calls(store: Store, wants: Iterator[Want], ahead: int) -> Iterator[Piece]:
    bundle: list[Want] = []
    for want in wants:
        if bundle and not (
            want.small and len(bundle) < BUNDLE_FILES and sum(w.length for w in bundle) < min(ahead, BUNDLE_BYTES)
        ):
            yield from _read_bundle(store, bundle)
            bundle = []
        if want.small:
            bundle.append(want)
        else:
            yield from _read_single(store, want)
    yield from _read_bundle(store, bundle)


def _read_bundle(store: Store, wants: list[Want]) -> Iterator[Piece]:
    found = store.read_many([want.path for want in wants], [want.length for want in wants]) if wants else ()
    for want, (_, data) in zip(wants, found, strict=True):
        if data is None or len(data) < want.length:
            yield Piece(want.number, b"", vanished_error(want.path, "is gone" if data is None else "is shorter than it was"))
        else:
            yield Piece(want.number, data)


def _read_single(store: Store, want: Want) -> Iterator[Piece]:
    try:
        for data in store.read_chunks(want.path, want.offset, want.length, PIECE):
            yield Piece(want.number, data)
    except SourceVanishedError as trouble:
        yield Piece(want.number, b"", trouble)


LANDING = "landing"
"""The folder at a receiver below which senders write."""


# Fast check for most paths, with those in `.tidemark`: no component consists of dots alone.
_PLAIN = re.compile(r"/?\.?[\w-][\w.=+@-]*(?:/\.?[\w-][\w.=+@-]*)*", re.ASCII)


def check_path(path: str) -> str:
    """Return `path`. Raises CorruptionError when it is empty, is not UTF-8, or has a `.` or `..` component or a NUL."""
    if _PLAIN.fullmatch(path):
        return path
    parts = path.lstrip("/").split("/")
    if not path or "\0" in path or any(p in ("", ".", "..") for p in parts) or not is_utf8(path):
        raise CorruptionError(f"path leaves its folder or is not a path: {path!r}", subject=path)
    return path


def is_utf8(path: str) -> bool:
    """Return whether `path` can be encoded. A lone surrogate, which JSON allows, is no name on a disk."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_folder(folder: str) -> str:
    """Return a folder's path, checked, without a trailing slash; "" is the root."""
    folder = folder.rstrip("/") or folder[:1]
    return folder if folder in ("", "/") else check_path(folder)


def finish_listing(entries: list[Entry], missing: list[str], odd: list[tuple[str, str]]) -> Listing:
    """Make a listing, ordered by path. UTF-8 bytes sort as code points do, so strings can be sorted."""
    entries.sort()
    return Listing(entries, tuple(sorted(missing)), tuple(sorted(odd)))


def gone_error(where: Where, path: str, length: int | None = None) -> SourceVanishedError:
    what = "is gone" if length is None else f"is gone or has fewer than {length} bytes"
    return SourceVanishedError(f"{where.full_path(path)} {what}", hint="the next run lists again", subject=path)


@dataclass(frozen=True)
class StoreAddress:
    """A store's url and login. `host_key`: the server's "SHA256:…" fingerprint; `key`: a private key file."""

    url: str  # file:///path or sftp://user@host:port/path
    host_key: str = ""
    key: str = ""
    connection: str = ""  # an Airflow connection id, which says who logs in and by what (`tidemark.connections`)
    nice: int = 0  # niceness of our processes at the far end, 0 … 19: its disk and CPU serve others first
    memory: int = MEMORY_BYTES  # bytes that our program may use at the far end; 0: no limit
    tier: str = "auto"  # of an sftp store: a key of `open.TIERS` to force one
    known_hosts: str = ""  # a file that has the server's key, where `host_key` is none
    tries: int = 0  # tries to open it; 0: the default; fewer for a store that others can replace
    ssh_config: str = ""  # a file of OpenSSH's client that says more of the host
    agent: bool = False  # log in by the keys of the SSH agent

    @classmethod
    def of(cls, end: SiteSettings | ReceiverSettings | NodeSettings) -> StoreAddress:
        memory = getattr(end, "far_memory", MEMORY_BYTES)
        nice, hosts, agent = getattr(end, "nice", 0), end.known_hosts, end.login == "agent"
        proof = end.host_key, end.key, end.connection
        config = getattr(end, "ssh_config", "")
        return cls(end.store, *proof, nice, memory, end.tier, hosts, ssh_config=config, agent=agent)


def place_of(url: str) -> tuple[str, int]:
    """Return host and port of an sftp address. Raises UsageError for an invalid one."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # an unpaired bracket
        raise UsageError(f"store {shown!r} is not sftp://user@host:port/path", subject=shown) from None
    if "#" in url or "?" in url:  # else the folder's name would be cut there
        raise UsageError(
            f"store {shown!r}: # and ? have a meaning in an address", hint="write %23 and %3F for them", subject=shown
        )
    try:
        port = parts.port or 22
    except ValueError:
        raise UsageError(f"store {shown!r}: its port must be a number up to 65535", subject=shown) from None
    if not parts.hostname:
        raise UsageError(f"store {shown!r} is not sftp://user@host:port/path", subject=shown)
    return parts.hostname, port


def without_password(url: str) -> str:
    """Return an address with "***" for the password, also for what may be one in an invalid address."""
    return re.sub(r"^([^/]*//[^/@:]*):.*@", r"\1:***@", url)


def local_root(url: str) -> str:
    """Return the folder of a `file://` address, which has it as it is. Raises UsageError where it is no absolute path."""
    path = url.removeprefix("file://")
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise UsageError(f"store {url!r} needs an absolute path: file:///folder", subject=url)
    return path


PIECE = 1 << 18  # bytes of a piece read at once


def remove_half_written(store: Store, folders: Sequence[str], beside: Sequence[str], before: float) -> None:
    """Remove temp files of `Store.publish` that killed writers left below `folders`, and among the paths `beside`.

    Only those last changed before `before` (seconds since 1970, the store's clock).
    """
    stated = store.stat_many([path for path in beside if is_half_written(path)])
    entries = [*store.list_files(folders).entries, *(entry for entry in stated if entry is not None)]
    store.remove([e.path for e in entries if is_half_written(e.path) and e.mtime < before])
