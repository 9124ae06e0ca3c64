"""Files of the catalog are read only as what was loaded: by a digest that was compared within `verify_days`, or is now.

What was compared is remembered with size, inode and the time of the inode's last change (`proof.bytes_check`), so that a
read digests a file once in that time, and at once when anybody touched it. What is recorded as damaged is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tidemark.app import App
from tidemark.cluster.replicas.cache import places_of
from tidemark.errors import CorruptionError
from tidemark.flows.known_sites import site_names
from tidemark.ledger import journal
from tidemark.ledger.cluster.copies import held_somewhere
from tidemark.ledger.database import now
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.ledger.sql import file_checks, put_file_checks
from tidemark.progress import Progress, Tick, silent
from tidemark.proof.bytes_check import Recorded, check_files, look_at
from tidemark.settings.model import ReceiverSettings

DAY = 86_400.0
_AT_ONCE = 256  # files between two words of progress


def require_proved(
    app: App,
    receiver: ReceiverSettings,
    root: Path,
    files: Iterable[CatalogFile],
    *,
    anew: bool = False,
    progress: Progress = silent,
) -> int:
    """Digest the files below `root` (with their mods) that were not compared within the receiver's `verify_days`, or all of
    them (`anew`). Returns how many were.

    What it finds is recorded. Raises CorruptionError naming the first file that is not what was loaded. A file that is not
    there is left to whoever opens it.
    """
    owner = {location: file for file in files for location, _ in places_of(file)}
    wanted = [
        Recorded(location, file.size if location == file.location else 0, digest)
        for file in {file.file_id: file for file in owner.values()}.values()
        for location, digest in places_of(file)
    ]
    with app.ledger.read() as connection:
        since = now(connection) - receiver.verify_days * DAY
        known = {} if anew else file_checks(connection, receiver.name, since)
        elsewhere = held_somewhere(connection, receiver.name)
    compared, wrong = 0, dict[str, str]()
    for first in range(0, len(wanted), _AT_ONCE):
        checked = check_files(root, wanted[first : first + _AT_ONCE], known, elsewhere)
        wrong |= {at: why for at, why in checked.wrong.items() if (root / at).exists()}
        compared += len(checked.fresh)
        if checked.fresh or wrong:
            with app.ledger.write() as connection:
                put_file_checks(connection, receiver.name, checked.fresh, now(connection))
                journal.record_many(connection, "verify.difference", [_event(owner[at], why) for at, why in wrong.items()])
            progress(Tick("prove", done=first + checked.files, total=len(wanted)))
        if wrong:
            break
    if wrong:
        location = min(wrong)
        raise _damaged(app, owner[location], wrong[location], len(wrong))
    return compared


def note_proved(app: App, receiver: str, root: Path, files: Sequence[CatalogFile]) -> None:
    """These were compared just now, under the names they have: the next read need not."""
    looks = [look_at(root, location, digest) for file in files for location, digest in places_of(file)]
    with app.ledger.write() as connection:
        put_file_checks(connection, receiver, [look for look in looks if look is not None], now(connection))


def _event(file: CatalogFile, why: str) -> dict[str, object]:
    return {"site_id": file.site_id, "path": file.path or file.location, "what": "damaged", "detail": why}


def _damaged(app: App, file: CatalogFile, why: str, count: int) -> CorruptionError:
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
