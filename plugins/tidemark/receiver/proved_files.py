"""Files of the catalog are read only as what was loaded: by a digest that was compared within `verify_days`, or is now.

The digest of a file is computed once and remembered with size, inode and the time of the inode's last change, which,
unlike the modification time, nobody can set back. While those are unchanged and the comparison is young enough, a
read trusts it: a file is digested once in that time, and at once when anybody touched it (`require_proved`).
`verify` trusts nothing, reads every byte and renews what is remembered (`check_files`). `changed_files` says which of
some catalog files are not what was loaded. What is recorded as damaged is not read: CorruptionError names the first
file that is not what was loaded. A file that is not here but at data nodes is not checked. `note_proved` remembers
files that were compared just now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.cluster.replicas.cache import places_of
from tidemark.errors import CorruptionError, PermissionDeniedError
from tidemark.ledger import journal
from tidemark.ledger.cluster.copies import held_somewhere
from tidemark.ledger.database import database_time
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.receiver.landings import read_sites as known_sites
from tidemark.ledger.sql import FileCheck, file_checks, put_file_checks
from tidemark.progress import Progress, Tick, ignore_progress
from tidemark.settings.model import ReceiverSettings
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
    except (CorruptionError, PermissionDeniedError) as refused:  # somebody put something else in its place
        return refused.message, None
    if digest != record.sha256:
        return f"{record.location} has digest {digest[:12]}…, {record.sha256[:12]}… was recorded", fresh
    return "", fresh


def records_of(files: Iterable[CatalogFile]) -> list[Recorded]:
    """What the ledger says of the bytes of catalog files, and of those of their deletions."""
    return [
        Recorded(at, file.size if at == file.location else 0, sha256) for file in files for at, sha256 in places_of(file)
    ]


def changed_files(
    root: Path, files: Iterable[CatalogFile], remembered: Mapping[str, FileCheck], elsewhere: Collection[str] = ()
) -> dict[str, str]:
    """Location of those of these files that are not what was loaded, or whose deletions are not: what is wrong. The rest as
    `check_files`."""
    by_location = {file.location: file for file in files}
    owner = {at: location for location, file in by_location.items() for at, _ in places_of(file)}
    checked = check_files(root, records_of(by_location.values()), remembered, elsewhere)
    return {owner[at]: why for at, why in checked.wrong.items()}


def read_file_check(root: Path, location: str, sha256: str) -> FileCheck | None:
    """The signs by which a file below `root` whose digest was just compared is known again; None where it is not there."""
    try:
        stat = (root / location).lstat()
    except FileNotFoundError:
        return None
    return FileCheck(location, stat.st_size, stat.st_ctime_ns, stat.st_ino, sha256)


def sha256_of(root: Path, location: str) -> str:
    """Hex digest of a file below `root`; raises as opening it."""
    return UntrustedFile(str(root), location).compute_sha256()


DAY = 86_400.0
_AT_ONCE = 256  # files between two words of progress


def require_proved(
    app: App,
    receiver: ReceiverSettings,
    root: Path,
    files: Iterable[CatalogFile],
    *,
    anew: bool = False,
    progress: Progress = ignore_progress,
) -> int:
    """Digest the files below `root` (with their mods) that were not compared within the receiver's `verify_days`, or all of
    them (`anew`). Returns how many were.

    What it finds is recorded. Raises CorruptionError naming the first file that is not what was loaded. A file that is not
    there is left to whoever opens it.
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
    """These were compared just now, under the names they have: the next read need not."""
    looks = [read_file_check(root, location, digest) for file in files for location, digest in places_of(file)]
    with app.ledger.write() as connection:
        put_file_checks(connection, receiver, [look for look in looks if look is not None], database_time(connection))


def _difference_event(file: CatalogFile, why: str) -> dict[str, object]:
    return {"site_id": file.site_id, "path": file.path or file.location, "what": "damaged", "detail": why}


def _damaged_file_error(app: App, file: CatalogFile, why: str, count: int) -> CorruptionError:
    with app.ledger.read() as connection:
        site = site_names(app, connection).get(file.site_id, file.site_id)
    came = f"{file.path} of site {site}" if file.path else f"made of files of site {site}"
    more = f"; {count - 1} more with it" if count > 1 else ""
    return CorruptionError(
        f"{why}: what is read would not be what was loaded ({came}){more}",
        hint="./tidemark quarantine list, which says how to give it up; --live-only reads without it"
        if file.kept and file.path
        else f"./tidemark verify --repair --site {site}",
        subject=file.location,
    )


def site_names(app: App, connection: Connection) -> dict[str, str]:
    """{site id: name}, the settings' names before those that manifests told."""
    told = {site_id: row.name for site_id, row in known_sites(connection).items()}
    return told | {s.id: s.name for s in app.settings.sites.values()}
