"""Steps that a load, a release and a replay share: copy the bytes, check the files, decide.

A release loads a file from quarantine, a replay loads a refused one. Files that a run of this ledger wrote into a landing
are checked in place. All others are copied first (`copy_landing`). A sender may keep a hard link or an open file of what is
in a landing and write to it after the load. Neither mode nor owner stops an open file. So only inodes that nobody else ever
held are checked, placed and read. The copies lie in `taken/<site id>/<landing>/`, where no edge writes. Source:
docs/decisions/0021.

`examine_all` checks every file in the engine's processes. `ask_survivors` finds out what became of vanished files' points.
`decide_files` decides with what the ledger knows now. A file that crashes its child process or exceeds its limit is held;
only `quarantine release` opens it again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.app import App
from tidemark.cluster.replicas.cache import recall_files
from tidemark.engines.choose import Engine, EngineChoice, choose_engine, choose_pool
from tidemark.engines.task import Limits
from tidemark.errors import CorruptionError, NotFoundError, TaskLimitError, TidemarkError, UsageError
from tidemark.formats.landing import LandedFile
from tidemark.formats.layout import TAKEN, landed_path, landing_folder, taken_folder
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver.landings import DropRow
from tidemark.ledger.sender import holds as hold_rows
from tidemark.progress import Progress, Tick
from tidemark.receiver.load.admit import Admission, Load, Origin, admit_files
from tidemark.receiver.load.check import Examined, ExamineTask, landed_file, parts_of_file
from tidemark.receiver.load.landings import FoundManifest
from tidemark.receiver.load.record import known_before
from tidemark.receiver.load.removal.rules import Survival
from tidemark.receiver.load.removal.survival import Found, Question, list_questions
from tidemark.receiver.load.removal.surviving_points import Evidence
from tidemark.receiver.proved_files import changed_files
from tidemark.receiver.session import ReceiverSession
from tidemark.stores.local import copy_files
from tidemark.stores.os_errors import Where, translate_os_errors
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import parse_source_path

_TOO_MUCH = ". Nothing says that it is damaged: ./tidemark quarantine release checks it again, on a machine with less to do"


@dataclass(frozen=True)
class CheckedFile:
    """A file, its origin, and the result of its check."""

    origin: Origin
    file: LandedFile
    examined: Examined


def site_of(app: App, site: str) -> str | None:
    """Return the UUID of a site given by name (settings, then the ledger) or by UUID; None for ''.

    UsageError for a name that several sites have: manifests carry the name, and a site may use another's name.
    """
    if not site:
        return None
    if site in app.settings.sites:
        return app.settings.sites[site].id
    with app.ledger.read() as connection:
        known = landing_rows.read_sites(connection)
    if site in known:
        return site
    found = sorted(row.site_id for row in known.values() if row.name == site)
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} sites say that their name is {site}: {', '.join(found)}", hint="name it by its UUID", subject=site
        )
    if found:
        return found[0]
    names = ", ".join(sorted({*app.settings.sites, *(r.name for r in known.values())})) or "none"
    raise NotFoundError(f"no site named {site!r}; known are: {names}", subject=site)


def examine_all(
    app: App, files: Sequence[tuple[Origin, LandedFile]], root: Path, engine: EngineChoice, progress: Progress
) -> list[CheckedFile]:
    """Check every file in the engine's processes. Results are in the given order. Raises errors that say nothing about a
    file (disk, engine)."""
    tasks = [_examine_task(root, origin, file) for origin, file in files]
    results: dict[int, Examined] = {}
    for outcome in _check_engine(app, engine).run("load_check", tasks) if tasks else ():
        file = files[outcome.index][1]
        if outcome.error is None:
            results[outcome.index] = outcome.value
        elif isinstance(outcome.error, CorruptionError | TaskLimitError):  # it crashed its child process: it is held
            error = outcome.error
            trouble = error.message + (_TOO_MUCH if isinstance(error, TaskLimitError) else "")
            results[outcome.index] = Examined(file.path, file.generation, trouble=trouble, kind=error.kind)
        elif type(outcome.error) is TidemarkError:  # unexpected, and met while reading this file: the file is at fault
            trouble = f"cannot be read: {outcome.error.message.splitlines()[0]}"
            results[outcome.index] = Examined(file.path, file.generation, trouble=trouble, kind=CorruptionError.kind)
        else:
            raise outcome.error
        progress(Tick("check", done=len(results), total=len(tasks)))
    return [CheckedFile(origin, file, results[index]) for index, (origin, file) in enumerate(files)]


def find_survivors(root: Path, asked: Sequence[Question], engine: EngineChoice = "pool") -> dict[str, Found]:
    """Return path → what became of a vanished file's points, read in child processes of this machine. An unreadable or
    changed file raises nothing: the reason is in the result, and the vanished file stays as it is."""
    due = {one.gone.path: task for one in asked if (task := one.make_task(str(root))) is not None}
    found = {one.gone.path: Found(Survival.GONE) for one in asked if one.gone.path not in due}
    questions_due = [one for one in asked if one.gone.path in due]
    evidence: dict[str, Evidence] = {}
    ended = 0
    judges = choose_pool(engine, survival_limits(questions_due))
    for outcome in judges.run("surviving_points", list(due.values())) if due else ():
        path = questions_due[outcome.index].gone.path
        if outcome.error is None:
            evidence[path] = outcome.value
            continue
        found[path] = Found(None, trouble=outcome.error.message.splitlines()[0])
        ended += isinstance(outcome.error, TaskLimitError)
        if ended >= _MOST_ENDED:
            break  # this ends the child processes
    told = [(one, evidence[one.gone.path]) for one in questions_due if one.gone.path in evidence]
    rested_on = [file for one, answer in told for file in one.rests_on(answer) if file.file_id]  # no id: just digested
    changed = changed_files(root, rested_on, {})  # digest all: a file that leaves is never read again
    for one, answer in told:
        wrong = [changed[file.location] for file in one.rests_on(answer) if file.location in changed]
        found[one.gone.path] = Found(None, trouble=wrong[0]) if wrong else one.make_answer(answer)
    return {path: Found(None, trouble=_NOT_LOOKED) for path in due} | found


def survival_limits(asked: Iterable[Question]) -> Limits:
    """Return the limits of one comparison, in proportion to the bytes sent: their content cannot be trusted."""
    most = max((one.bytes for one in asked), default=0)
    seconds = 10 + most // _BYTES_A_SECOND
    return Limits(cpu_seconds=seconds, wall_seconds=3 * seconds, memory_bytes=_COMPARED_IN + 4 * most)


_BYTES_A_SECOND = 4 << 20
_COMPARED_IN = 640 << 20  # address space; libraries reserve nearly half of it
_MOST_ENDED = 3  # comparisons of a landing that a limit ended; the others are then skipped, so that the next site can go on
_NOT_LOOKED = f"nobody looked: {_MOST_ENDED} others of its site took all that a comparison may take"


def ask_survivors(
    session: ReceiverSession, origin: Origin, told: Iterable[DropRow], loads: Sequence[Load]
) -> dict[str, Found]:
    """Find out what became of all vanished files that are judged with these drops and loads, before they are recorded. Files
    that only nodes have are fetched where possible."""
    with session.app.ledger.read() as connection:
        asked = list_questions(connection, origin, told, loads)
    recall_files(session.cluster, [file for one in asked for file in (one.gone, *one.made) if file.file_id], if_any=True)
    return find_survivors(session.root, asked, session.engine)


def _examine_task(root: Path, origin: Origin, file: LandedFile) -> ExamineTask:
    name = parse_source_path(file.path, origin.data)
    return ExamineTask(str(root), file, name.database if name else "", origin.folder, origin.prefix)


def decide_files(app: App, origin: Origin, checked: Sequence[CheckedFile], at: float) -> Admission:
    """Decide what becomes of the checked files of one origin, with what the ledger knows now."""
    devices = {d.device for c in checked if c.examined.facts for d in c.examined.facts.devices}
    with app.ledger.read() as connection:
        known = known_before(connection, origin, [c.file for c in checked], devices)
    return admit_files(origin, [(c.file, c.examined) for c in checked], known, at)


def _check_engine(app: App, engine: EngineChoice) -> Engine:
    """Choose the engine: the pool, unless Spark is asked for. A check reads a file once, so Spark is no faster on one
    machine and starts slower."""
    return choose_engine(app.settings.spark, engine, 0)


def is_ours(app: App, origin: Origin, record: FoundManifest, root: Path) -> bool:
    """Whether a run of this ledger wrote the landing, and nobody else may write to its folder."""
    with app.ledger.read() as connection:
        if not hold_rows.has_carried(connection, origin.receiver, origin.site_id, origin.landing, record.sha256):
            return False
    site, _, _ = origin.folder.rpartition("/")
    return all(_ours_alone(root / folder) for folder in ("landing", site, origin.folder))


def _ours_alone(folder: Path) -> bool:
    info = folder.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def copy_landing(store: Store, root: Path, origin: Origin, files: Iterable[LandedFile], logs: Iterable[str] = ()) -> Origin:
    """Copy these files with their companions, and pieces of schema `logs`, into a folder that no edge can write.

    Returns the origin of the copies. Skips what is no regular file. Raises DiskFullError, PermissionDeniedError.
    """
    folder = _copy_folder(origin)
    store.remove_tree(folder)
    paths = [landed_path(path) for path in (*(part.path for file in files for part in parts_of_file(file)), *logs)]
    try:
        with translate_os_errors(Where("", str(root)), folder):
            copy_files(root, ((f"{origin.folder}/{path}", f"{folder}/{path}") for path in paths))
    except BaseException:
        # CRASH WINDOW: half of it copied: the next load removes the folder before anything else.
        store.remove_tree(folder)
        raise
    return replace(origin, folder=folder)


def remove_copies(store: Store, origin: Origin) -> None:
    """Remove the copies that were not placed, if there are any."""
    if origin.folder == _copy_folder(origin):
        store.remove_tree(origin.folder)


def sweep_taken(store: Store) -> None:
    """Remove copies that an interrupted load left."""
    store.remove_tree(TAKEN)


def called_as_landed(root: Path, checked: Sequence[CheckedFile]) -> list[CheckedFile]:
    """Return the same files. Where a copy is missing because its original is no regular file, the trouble says that."""
    return [
        _as_landed(root, one) if one.examined.trouble and one.origin.folder == _copy_folder(one.origin) else one
        for one in checked
    ]


def _as_landed(root: Path, one: CheckedFile) -> CheckedFile:
    folder = landing_folder(one.origin.site_id, one.origin.landing)
    try:
        for part in parts_of_file(one.file):
            with suppress(FileNotFoundError):
                landed_file(root, folder, part).open_file().close()
    except CorruptionError as odd:
        return replace(one, examined=replace(one.examined, trouble=odd.message))
    return one


def _copy_folder(origin: Origin) -> str:
    return taken_folder(origin.site_id, origin.landing)
