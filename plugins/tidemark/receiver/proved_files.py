"""Check that a catalog file is what was loaded before it is read: by a digest computed within `verify_days`, or now.

A digest is stored with size, inode and the inode's change time, which nobody can set back. While these are unchanged and the
digest is recent enough, a read trusts it. A touched file is digested at once (`require_proved`). `verify` trusts no stored
digest, reads every byte and renews the stored ones (`check_files`). `changed_files` returns the catalog files that are not
what was loaded. A damaged file is not read: CorruptionError names the first one. A file that only data nodes hold is not
checked. `note_proved` stores the digests of files that were compared just now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidemark.app import App
from tidemark.cluster.replicas.cache import places_of
from tidemark.errors import CorruptionError, PermissionDeniedError
from tidemark.ledger import journal
from tidemark.ledger.cluster.copies import held_somewhere
from tidemark.ledger.database import database_time
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.sql import FileCheck, file_checks, put_file_checks
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import ReceiverSettings
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

_THREADS = 2  # hashing releases the GIL; more than two only compete for the disk


@dataclass(frozen=True, slots=True)
class Recorded:
    """The ledger's record of one file: location, size, digest."""

    location: str  # relative to the receiver's root
    size: int  # 0 where it was not recorded (mods files)
    sha256: str


@dataclass(frozen=True)
class Checked:
    """`wrong`: location → what is wrong. `fresh`: digests computed now, to be stored."""

    wrong: Mapping[str, str]
    fresh: tuple[FileCheck, ...]
    files: int


def check_files(
    root: Path, recorded: Iterable[Recorded], remembered: Mapping[str, FileCheck], elsewhere: Collection[str] = ()
) -> Checked:
    """Compare each file below `root` with its record. `remembered`: stored digests to trust; empty: trust none.

    `elsewhere`: locations that data nodes hold. One that is missing here is only absent from the cache, and is not checked.
    """
    wanted = {r.location: r for r in recorded if r.location not in elsewhere or (root / r.location).exists()}
    wrong: dict[str, str] = {}
    fresh: list[FileCheck] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        looked = pool.map(lambda r: _compare_file(root, r, remembered.get(r.location)), wanted.values())
        for location, (why, check) in zip(wanted, looked, strict=True):
            if why:
                wrong[location] = why
            if check is not None:
                fresh.append(check)
    return Checked(wrong, tuple(fresh), len(wanted))


def _compare_file(root: Path, record: Recorded, before: FileCheck | None) -> tuple[str, FileCheck | None]:
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
    except (CorruptionError, PermissionDeniedError) as refused:  # something else is in its place
        return refused.message, None
    if digest != record.sha256:
        return f"{record.location} has digest {digest[:12]}…, {record.sha256[:12]}… was recorded", fresh
    return "", fresh


def records_of(files: Iterable[CatalogFile]) -> list[Recorded]:
    """Return the ledger's records of catalog files, and of their deletions."""
    return [
        Recorded(at, file.size if at == file.location else 0, sha256) for file in files for at, sha256 in places_of(file)
    ]


def changed_files(
    root: Path, files: Iterable[CatalogFile], remembered: Mapping[str, FileCheck], elsewhere: Collection[str] = ()
) -> dict[str, str]:
    """Return location → what is wrong, for files that differ, or whose deletions differ, from what was loaded. See
    `check_files`."""
    by_location = {file.location: file for file in files}
    owner = {at: location for location, file in by_location.items() for at, _ in places_of(file)}
    checked = check_files(root, records_of(by_location.values()), remembered, elsewhere)
    return {owner[at]: why for at, why in checked.wrong.items()}


def read_file_check(root: Path, location: str, sha256: str) -> FileCheck | None:
    """Return size, times and inode of a file below `root` whose digest was just compared; None: it is missing."""
    try:
        stat = (root / location).lstat()
    except FileNotFoundError:
        return None
    return FileCheck(location, stat.st_size, stat.st_ctime_ns, stat.st_ino, sha256)


def sha256_of(root: Path, location: str) -> str:
    """Return the hex digest of a file below `root`; raises as opening it does."""
    return UntrustedFile(str(root), location).compute_sha256()


DAY = 86_400.0
_AT_ONCE = 256  # files between two progress reports


def require_proved(
    app: App,
    receiver: ReceiverSettings,
    root: Path,
    files: Iterable[CatalogFile],
    *,
    anew: bool = False,
    progress: Progress = ignore_progress,
) -> int:
    """Digest the files below `root` (with mods) that were not compared within the receiver's `verify_days`, or all (`anew`).

    Returns how many were digested, and records the results. Raises CorruptionError naming the first file that is not what
    was loaded. A missing file is no error here: opening it fails later.
    """
    owner = {location: file for file in files for location, _ in places_of(file)}
    wanted = records_of({file.file_id: file for file in owner.values()}.values())
    with app.ledger.read() as connection:
        since = database_time(connection) - receiver.verify_days * DAY
        known = {} if anew else file_checks(connection, receiver.name, since)
        elsewhere = held_somewhere(connection, receiver.name)
    compared, wrong = 0, dict[str, str]()
    for first in range(0, len(wanted), _AT_ONCE):
        checked = check_files(root, wanted[first : first + _AT_ONCE], known, elsewhere)
        wrong |= {at: why for at, why in checked.wrong.items() if (root / at).exists()}
        compared += len(checked.fresh)
        if checked.fresh or wrong:
            with app.ledger.write() as connection:
                put_file_checks(connection, receiver.name, checked.fresh, database_time(connection))
                journal.record_many(
                    connection, "verify.difference", [_difference_event(owner[at], why) for at, why in wrong.items()]
                )
            progress(Tick("prove", done=first + checked.files, total=len(wanted)))
        if wrong:
            break
    if wrong:
        location = min(wrong)
        raise _damaged_file_error(app, owner[location], wrong[location], len(wrong))
    return compared


def note_proved(app: App, receiver: str, root: Path, files: Sequence[CatalogFile]) -> None:
    """Store digests of files that were compared just now, at their present places. The next read then skips the digest."""
    looks = [read_file_check(root, location, digest) for file in files for location, digest in places_of(file)]
    with app.ledger.write() as connection:
        put_file_checks(connection, receiver, [look for look in looks if look is not None], database_time(connection))


def _difference_event(file: CatalogFile, why: str) -> dict[str, object]:
    return {"site_id": file.site_id, "path": file.path or file.location, "what": "damaged", "detail": why}


def _damaged_file_error(app: App, file: CatalogFile, why: str, count: int) -> CorruptionError:
    with app.ledger.read() as connection:
        site = app.site_names(connection).get(file.site_id, file.site_id)
    came = f"{file.path} of site {site}" if file.path else f"made of files of site {site}"
    more = f"; {count - 1} more with it" if count > 1 else ""
    return CorruptionError(
        f"{why}: what is read would not be what was loaded ({came}){more}",
        hint="./tidemark quarantine list, which says how to give it up; --live-only reads without it"
        if file.kept and file.path
        else f"./tidemark verify --repair --site {site}",
        subject=file.location,
    )
