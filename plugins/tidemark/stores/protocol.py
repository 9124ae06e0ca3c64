"""The door of a store: what every place that keeps bytes can do, whatever carries them.

Paths are strings separated by `/`, relative to the store's root, or absolute (`/disk2/…`) where a site has data on
several disks. No call follows a symlink, and none accepts a `..` component (`check_path`, `check_folder`). Whatever
a far end cannot do is declared in `StoreProperties`, never guessed. Errors are Tidemark's: `UnreachableError` for
what may work again in seconds, `PermissionDeniedError`, `DiskFullError`, `HostKeyError`, `SourceVanishedError` for a
path that is gone. Every method of `Store` says what a missing file, a lost reply and a repeated call do.

`flow(store, wants)` gives the contents of many files in one stream. What is wanted is asked ahead, over the borders
of files, and it comes in that order. A store that can keep many requests on their way offers `flow` itself. For any
other store the same stream is made of its calls: small files in bundles of at most 512 files and 8 MB, others one by
one. A file that is gone or too short gives a piece with that trouble, and the stream goes on.

A `StoreAddress` says where a store is and how to log in: `file:///path` or `sftp://user@host:port/path`, made of a site,
a receiver or a node of the settings. `place_of` and `local_root` take it apart and raise UsageError for an address that
cannot be; `without_password` is an address as it may be shown. It holds no secret: a private key is named by its file.

Source: DESIGN §3 "Either end may be remote"; research/aesthetics.md §4.4 for durable publish.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from tidemark.errors import CorruptionError, SourceVanishedError, TidemarkError, UsageError
from tidemark.settings.model import NodeSettings, ReceiverSettings, SiteSettings
from tidemark.stores.agent.disk import UNLISTED
from tidemark.stores.agent.limits import MEMORY_BYTES
from tidemark.stores.os_errors import Where


class Tier(enum.StrEnum):
    """What the far end can run; found by one probe, recorded, may be forced."""

    LOCAL = "local"
    PYTHON = "python3"  # a shell and python3
    POSIX = "posix"  # a shell with find, sha256sum, tar
    SFTP = "sftp"  # the SFTP subsystem only (internal-sftp, chroot)


@dataclass(frozen=True)
class StoreProperties:
    """What a store's far end can do."""

    tier: Tier
    hard_links: bool
    fsync: bool  # file contents can be made durable
    inodes: bool  # listings carry inode numbers


class Entry(NamedTuple):
    """One regular file of a listing. `mtime` in whole seconds; `inode` 0 where the store has none.

    A tuple, because a site may have a million of them: it is made in a third of a frozen dataclass's time.
    """

    path: str
    size: int
    mtime: int
    inode: int = 0


@dataclass(frozen=True)
class Listing:
    """All regular files below the asked folders, ordered by path bytes, and what could not be listed as it should.

    `missing`: asked folders that do not exist. `odd`: (path, reason) of symlinks, unreadable folders and the like.
    `partial`: some files come by their names alone, see `PartialListing`.
    """

    entries: Sequence[Entry]
    missing: Sequence[str] = ()
    odd: Sequence[tuple[str, str]] = ()
    partial: bool = False

    @property
    def unlisted(self) -> list[tuple[str, str]]:
        """Those of `odd` of which nobody knows what is there, as of an asked folder that is a symlink."""
        return [(path, why) for path, why in self.odd if why.startswith(UNLISTED)]


class Range(NamedTuple):
    """`length` bytes of a file from `offset`; None: up to its end."""

    path: str
    offset: int = 0
    length: int | None = None


@runtime_checkable
class PartialListing(Protocol):
    """What a store may do besides, where looking at a file costs it something (`listing.list_names` asks)."""

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        """`list_files` in half the time: files whose name ends with `by_name` come with size -1, mtime 0 and inode 0."""
        ...


class Store(Protocol):
    """Targets get the folders they need; a path that is no regular file is answered as a path that is gone."""

    @property
    def url(self) -> str: ...

    @property
    def properties(self) -> StoreProperties: ...

    def list_files(self, folders: Sequence[str]) -> Listing:
        """Every regular file below `folders`, recursively. `""` is the root. A name that is not UTF-8 is odd."""
        ...

    def list_folder(self, folder: str) -> Sequence[str]:
        """Names (files and folders) directly in `folder`, sorted; empty where it does not exist."""
        ...

    def stat(self, path: str) -> Entry | None:
        """The file's entry, or None where there is no regular file."""
        ...

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        """`stat` of each path, in few round trips. Inodes only where `stat` itself has them."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a small file or a range of a large one; fewer where the file ends. SourceVanishedError when gone."""
        ...

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        """Small files in few round trips, in the given order, each whole or its first `lengths[i]` bytes; None: gone."""
        ...

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        """`length` bytes from `offset` in pieces of at most `size`, many requests in flight where the carrier can.

        SourceVanishedError when the file is gone or ends before that.
        """
        ...

    def sha256(self, path: str, length: int | None = None) -> str:
        """Hex digest of the file or its first `length` bytes, computed at the far end where it has a tool.

        SourceVanishedError when the file is gone or shorter than `length`.
        """
        ...

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        """SHA-256 of each range in few round trips, in hex; None where the file is gone or shorter than asked."""
        ...

    def publish(self, path: str, data: bytes) -> None:
        """Durably write a small file: temp name, write, fsync, rename, fsync folder. Replaces what was there."""
        ...

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        """Write `pieces` into `path` (a `.part`) from `offset`, cutting what lay beyond; returns the new length.

        `sync` makes its bytes survive a power loss before the call returns (where `properties.fsync`).
        """
        ...

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write many small whole `.part` files in few round trips; nothing is durable before `seal_parts`."""
        ...

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        """Make every `.part` durable, rename each to its final name, make the folders durable (a bundle at once).

        A pair whose `.part` is gone while the final name exists was renamed before, by a call whose reply was lost or
        whose process died: what that call may have left undone is made durable, and it is success.
        """
        ...

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Hard-link source → target for each pair. Returns the sources that are gone.

        An existing equal link is success, an unequal target is replaced. PermanentError where the disks differ or the
        file system has no links.
        """
        ...

    def make_folders(self, folders: Sequence[str]) -> None:
        """Make each folder and its parents; one that exists is success."""
        ...

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; what is gone already is success."""
        ...

    def remove_tree(self, folder: str) -> None:
        """Remove a folder and everything below it; what is gone already is success."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic replace, folder made durable where the carrier can. A source that is gone while the target exists was
        renamed before: success."""
        ...

    def free_bytes(self, folder: str = "") -> int | None:
        """Free space at the nearest existing folder, None where it cannot be known."""
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
    small: bool = False  # the file is whole in it, and may come in a bundle


class Piece(NamedTuple):
    """The next bytes of a want, good until the next piece is taken; or why there are no more of it."""

    number: int
    data: bytes | memoryview
    trouble: TidemarkError | None = None


@runtime_checkable
class StreamReading(Protocol):
    """What a store may do besides, where a round trip costs more than its bytes."""

    def read_stream(self, wants: Iterator[Want], ahead: int = 0) -> Iterator[Piece]:
        """All bytes of each want, in the order of the wants; an empty one gives one empty piece. `wants` is asked ahead,
        for `ahead` bytes or, without it, for as many as the line may hold.

        A file that is gone or ends too early gives a piece with that trouble, and the stream goes on with the next one.
        """
        ...


class PendingDigest(Protocol):
    """A digest that is being made at a far end."""

    def await_digest(self) -> str | None:
        """Waits for it; None where the file is gone or cannot be read."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class DigestingBeside(Protocol):
    """What a store may do besides, whose far end has a tool for it."""

    def digest_beside(self, path: str, length: int) -> PendingDigest | None:
        """Begin to digest the first `length` bytes of a file; None where that is not worth it."""
        ...


def read_stream(store: Store, wants: Iterator[Want], ahead: int = 0) -> Iterator[Piece]:
    """`store.flow` where the store can, else the same from its calls: small files by bundles, others by themselves."""
    return (
        store.read_stream(wants, ahead)
        if isinstance(store, StreamReading)
        else _read_by_calls(store, wants, ahead or BUNDLE_BYTES)
    )


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


# Most paths there are, those in `.tidemark` too, found good at one look: no component is of dots alone.
_PLAIN = re.compile(r"/?\.?[\w-][\w.=+@-]*(?:/\.?[\w-][\w.=+@-]*)*", re.ASCII)


def check_path(path: str) -> str:
    """Return `path` when it stays below its folder; CorruptionError when empty, with `.` or `..` components or a NUL."""
    if _PLAIN.fullmatch(path):
        return path
    parts = path.lstrip("/").split("/")
    if not path or "\0" in path or any(p in ("", ".", "..") for p in parts) or not is_utf8(path):
        raise CorruptionError(f"path leaves its folder or is not a path: {path!r}", subject=path)
    return path


def is_utf8(path: str) -> bool:
    """Half a surrogate pair, as JSON can smuggle in, is no name on a disk."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_folder(folder: str) -> str:
    """A folder's path without a slash at its end; "" is the root."""
    folder = folder.rstrip("/") or folder[:1]
    return folder if folder in ("", "/") else check_path(folder)


def finish_listing(entries: list[Entry], missing: list[str], odd: list[tuple[str, str]]) -> Listing:
    """Order by path: a listing has UTF-8 names alone, whose bytes order as their code points do."""
    entries.sort()
    return Listing(entries, tuple(sorted(missing)), tuple(sorted(odd)))


def gone_error(where: Where, path: str, length: int | None = None) -> SourceVanishedError:
    what = "is gone" if length is None else f"is gone or has fewer than {length} bytes"
    return SourceVanishedError(f"{where.full_path(path)} {what}", hint="the next run lists again", subject=path)


@dataclass(frozen=True)
class StoreAddress:
    """Where a store is and how to log in. `host_key`: the server's "SHA256:…" fingerprint; `key`: a private key file."""

    url: str  # file:///path or sftp://user@host:port/path
    host_key: str = ""
    key: str = ""
    connection: str = ""  # an Airflow connection id; orchestration puts its key file into `key`
    nice: int = 0  # of what we run at the far end, 0 … 19: its disk and CPU serve others first
    memory: int = MEMORY_BYTES  # that our program may take at the far end; 0: no limit
    tier: str = "auto"  # of an sftp store: a key of TIERS where the settings force one
    tries: int = 0  # how often it is tried to be opened, 0: as a store usually is; less for one that others stand in for

    @classmethod
    def of(cls, end: SiteSettings | ReceiverSettings | NodeSettings) -> StoreAddress:
        memory = getattr(end, "far_memory", MEMORY_BYTES)
        return cls(end.store, end.host_key, end.key, end.connection, getattr(end, "nice", 0), memory, end.tier)


def place_of(url: str) -> tuple[str, int]:
    """Host and port of an sftp address. UsageError where it is none."""
    shown = without_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket without its other one
        raise UsageError(f"store {shown!r} is not sftp://user@host:port/path", subject=shown) from None
    if "#" in url or "?" in url:  # else a folder of that name would be taken for one of a shorter name
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
    """An address as it may be shown: "***" where a password stands, or may stand in an address that is badly written."""
    return re.sub(r"^([^/]*//[^/@:]*):.*@", r"\1:***@", url)


def local_root(url: str) -> str:
    """The folder of a `file://` address. Raises UsageError where it is no absolute path."""
    path = unquote(url.removeprefix("file://"))
    if not path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise UsageError(f"store {url!r} needs an absolute path: file:///folder", subject=url)
    return path


PIECE = 1 << 18  # bytes of a block handed on at once
