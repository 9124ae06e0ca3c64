"""The door of a store: what every place that keeps bytes can do, whatever carries them.

Paths are `/`-separated strings relative to the store's root, or absolute (`/disk2/…`) where a site has data on several
disks. No call follows a symlink, none accepts a `..` component. Whatever a far end cannot do is declared in
`StoreProperties`, never guessed. Errors are Tidemark's (`UnreachableError` for what may work again in seconds,
`PermissionDeniedError`, `DiskFullError`, `HostKeyError`, `SourceVanishedError` for a path that is gone).

Source: DESIGN §3 "Either end may be remote"; research/aesthetics.md §4.4 for durable publish.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class Tier(enum.StrEnum):
    """What the far end can run; found by one probe, recorded, may be forced."""

    LOCAL = "local"
    PYTHON = "python3"  # a shell and python3
    POSIX = "posix"  # a shell with find, sha256sum, tar
    SFTP = "sftp"  # the SFTP subsystem only (internal-sftp, chroot)


@dataclass(frozen=True)
class StoreProperties:
    tier: Tier
    hard_links: bool
    fsync: bool  # file contents can be made durable
    inodes: bool  # listings carry inode numbers


@dataclass(frozen=True, slots=True)
class Entry:
    """One regular file of a listing. `mtime` in whole seconds; `inode` 0 where the store has none."""

    path: str
    size: int
    mtime: int
    inode: int = 0


@dataclass(frozen=True)
class Listing:
    """All regular files below the asked folders, ordered by path bytes, and what could not be listed as it should.

    `missing`: asked folders that do not exist. `odd`: (path, reason) of symlinks, unreadable folders and the like.
    """

    entries: Sequence[Entry]
    missing: Sequence[str] = ()
    odd: Sequence[tuple[str, str]] = ()


class Store(Protocol):
    url: str
    properties: StoreProperties

    def list_files(self, folders: Sequence[str]) -> Listing:
        """Every regular file below `folders`, recursively."""
        ...

    def list_folder(self, folder: str) -> Sequence[str]:
        """Names (files and folders) directly in `folder`, sorted; empty where it does not exist."""
        ...

    def stat(self, path: str) -> Entry | None:
        """The file's entry, or None where there is no regular file."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a small file or a range of a large one."""
        ...

    def read_many(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Whole small files in few round trips, in the given order; None where the file is gone."""
        ...

    def chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        """`length` bytes from `offset` in pieces of at most `size`, many requests in flight where the carrier can."""
        ...

    def sha256(self, path: str, length: int | None = None) -> str:
        """Hex digest of the file or its first `length` bytes, computed at the far end where it has a tool."""
        ...

    def publish(self, path: str, data: bytes) -> None:
        """Durably write a small file: temp name, write, fsync, rename, fsync folder. Replaces what was there."""
        ...

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes]) -> int:
        """Write `pieces` into `path` (a `.part`) from `offset`, cutting what lay beyond; returns the new length."""
        ...

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        """Make every `.part` durable, rename each to its final name, make the folders durable (a bundle at once)."""
        ...

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Hard-link source → target for each pair; an existing equal link is success. Returns the sources that are gone."""
        ...

    def make_folders(self, folders: Sequence[str]) -> None: ...

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; what is gone already is success."""
        ...

    def remove_tree(self, folder: str) -> None:
        """Remove a folder and everything below it; what is gone already is success."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic replace, folder made durable where the carrier can."""
        ...

    def free_bytes(self, folder: str = "") -> int | None:
        """Free space at the nearest existing folder, None where it cannot be known."""
        ...

    def close(self) -> None: ...
