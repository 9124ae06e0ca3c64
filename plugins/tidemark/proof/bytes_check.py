"""Are the catalog's files on this disk what the ledger recorded?

The digest of a file is computed once and remembered with size, inode and the time of the inode's last change (which,
unlike the modification time, nobody can set back); while those are unchanged, a report trusts it. `verify` trusts nothing,
reads every byte and renews what is remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import CorruptionError, PermissionDeniedError
from tidemark.ledger.sql import FileCheck
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

_THREADS = 2  # hashing leaves the interpreter alone; more than two only fight for the disk


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger says of one file: bytes, digest, and what to call it."""

    location: str  # relative to the receiver's root
    size: int  # 0 where it was not recorded (mods files)
    sha256: str


@dataclass(frozen=True)
class Checked:
    """`wrong`: location → what is wrong. `fresh`: digests computed now, to be remembered."""

    wrong: Mapping[str, str]
    fresh: tuple[FileCheck, ...]
    files: int


def check_files(
    root: Path, recorded: Iterable[Recorded], remembered: Mapping[str, FileCheck], elsewhere: Collection[str] = ()
) -> Checked:
    """Compare each file below `root` with its record; `remembered` is empty where nothing may be trusted.

    `elsewhere`: locations that data nodes hold: one that is not here is only not in the receiver's cache, and not checked.
    """
    wanted = {r.location: r for r in recorded if r.location not in elsewhere or (root / r.location).exists()}
    wrong: dict[str, str] = {}
    fresh: list[FileCheck] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        looked = pool.map(lambda r: _look(root, r, remembered.get(r.location)), wanted.values())
        for location, (why, check) in zip(wanted, looked, strict=True):
            if why:
                wrong[location] = why
            if check is not None:
                fresh.append(check)
    return Checked(wrong, tuple(fresh), len(wanted))


def _look(root: Path, record: Recorded, before: FileCheck | None) -> tuple[str, FileCheck | None]:
    path = root / record.location
    try:
        stat = path.lstat()
        if record.size and stat.st_size != record.size:
            return f"{record.location} has {stat.st_size} bytes, {record.size} were recorded", None
        if not record.size and stat.st_size > MOST_MODS:
            return f"{record.location} has {stat.st_size} bytes, more than deletions may take", None
        seen = (stat.st_size, stat.st_ctime_ns, stat.st_ino)
        if before is not None and (before.size, before.ctime_ns, before.inode) == seen:
            digest, fresh = before.sha256, None
        else:
            digest = sha256_of(root, record.location)
            fresh = FileCheck(record.location, *seen, digest)
    except FileNotFoundError:
        return f"{record.location} is missing", None
    except OSError as broken:
        return f"{record.location} cannot be read: {broken.strerror}", None
    except (CorruptionError, PermissionDeniedError) as refused:  # somebody put something else in its place
        return refused.message, None
    if digest != record.sha256:
        return f"{record.location} has digest {digest[:12]}…, {record.sha256[:12]}… was recorded", fresh
    return "", fresh


def look_at(root: Path, location: str, sha256: str) -> FileCheck | None:
    """The signs by which a file below `root` whose digest was just compared is known again; None where it is not there."""
    try:
        stat = (root / location).lstat()
    except FileNotFoundError:
        return None
    return FileCheck(location, stat.st_size, stat.st_ctime_ns, stat.st_ino, sha256)


def sha256_of(root: Path, location: str) -> str:
    """Hex digest of a file below `root`; raises as opening it."""
    return UntrustedFile(str(root), location).sha256()
