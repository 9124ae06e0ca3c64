"""A folder of TsFiles that changes all at once: written aside, named by one replaced paper, left again after a grace.

    <folder>/_staging-<job>/…      what tasks write; nobody reads it
    <folder>/<created>-<version>-0-0.tsfile
    <folder>/_tidemark.json        the files that exist (`dataset_paper`), replaced by rename

Files get their names at the commit, with versions that grow: what was appended later wins at equal times, here and after
a LOAD into IoTDB. Commits of one folder take turns by a lock on it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.errors import CorruptionError, UsageError
from tidemark.tsfiles.dataset_paper import PAPER, DatasetPaper, read_paper
from tidemark.tsfiles.names import SUFFIX

LOCK = "_lock"
_STAGING = "_staging-"
_FORGOTTEN = 7 * 86_400  # seconds after which the staging folder of a driver that died is removed


@dataclass(frozen=True)
class StagedFile:
    """A whole, durable file in the staging folder; `facts` go into the paper."""

    name: str
    size: int
    facts: Mapping[str, Any]


def staging(folder: Path, job: str) -> Path:
    """The folder where the tasks of a job write."""
    return folder / f"{_STAGING}{job}"


def check_target(folder: Path) -> None:
    """UsageError where TsFiles lie that no paper names: a first commit would hide them from readers."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder", subject=str(folder))
    if folder.is_dir() and not (folder / PAPER).exists() and next(folder.rglob(f"[!_.]*{SUFFIX}"), None) is not None:
        unlisted = [path for path in folder.rglob(f"[!_.]*{SUFFIX}") if _STAGING not in str(path.relative_to(folder))]
        if unlisted:
            message = f"{folder} holds TsFiles that Tidemark did not write, such as {unlisted[0].name}"
            raise UsageError(message, hint="write into a folder of its own", subject=str(folder))


def commit(folder: Path, job: str, staged: Sequence[StagedFile], overwrite: bool, grace: float) -> DatasetPaper:
    """Make the staged files the folder's, beside those it has or in their place; the new paper.

    Nothing changes for readers before the paper is replaced. Files that leave keep their bytes for `grace` seconds, for
    readers that have planned with them. CorruptionError where a staged file is not what its task wrote.
    """
    for file in staged:
        place = staging(folder, job) / file.name
        if not place.is_file() or place.stat().st_size != file.size:
            raise CorruptionError(f"{place} is not the {file.size} bytes that its task wrote", subject=str(place))
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        before = read_paper(folder)
        _sweep(folder, before)
        after, renames = _renumbered(before, staged, overwrite, time.time())
        # CRASH WINDOW: files with final names that no paper names; readers do not see them, the next commit sweeps them.
        for old, new in renames:
            (staging(folder, job) / old).rename(folder / new)
        _sync(folder)
        _replace_paper(folder, after)
        after = _without_expired(folder, after, grace)
    shutil.rmtree(staging(folder, job), ignore_errors=True)
    return after


def abort(folder: Path, job: str) -> None:
    """Forget what the tasks of a job wrote."""
    shutil.rmtree(staging(folder, job), ignore_errors=True)


def _renumbered(
    before: DatasetPaper, staged: Sequence[StagedFile], overwrite: bool, now: float
) -> tuple[DatasetPaper, list[tuple[str, str]]]:
    created = max(before.created + 1, int(now * 1000))
    files: dict[str, Mapping[str, Any]] = {} if overwrite else dict(before.files)
    retired = {**before.retired, **(dict.fromkeys(before.files, now) if overwrite else {})}
    renames = []
    version = before.version
    for file in staged:
        version += 1
        name = f"{created}-{version}-0-0{SUFFIX}"
        files[name] = {"size": file.size, **file.facts}
        renames.append((file.name, name))
    return DatasetPaper(files, retired, version, created), renames


def _sweep(folder: Path, paper: DatasetPaper) -> None:
    """Remove what commits that died left behind. Only under the lock: a living commit has unlisted files, too."""
    for path in folder.glob(f"[!_.]*{SUFFIX}"):
        if path.name not in paper.files and path.name not in paper.retired:
            path.unlink()
    for path in folder.glob(f"{_STAGING}*"):
        if path.stat().st_mtime < time.time() - _FORGOTTEN:
            shutil.rmtree(path, ignore_errors=True)


def _without_expired(folder: Path, paper: DatasetPaper, grace: float) -> DatasetPaper:
    """Delete what left longer than `grace` ago. A file that is gone already is only forgotten."""
    limit = time.time() - grace
    expired = [name for name, since in paper.retired.items() if since <= limit]
    if not expired:
        return paper
    for name in expired:
        (folder / name).unlink(missing_ok=True)
    kept = {name: since for name, since in paper.retired.items() if since > limit}
    after = DatasetPaper(paper.files, kept, paper.version, paper.created)
    _replace_paper(folder, after)
    return after


def _replace_paper(folder: Path, paper: DatasetPaper) -> None:
    temporary = folder / f"{PAPER}.tmp"
    with temporary.open("wb") as file:
        file.write(paper.encode())
        file.flush()
        os.fsync(file.fileno())
    # CRASH WINDOW: the old paper is still there: the commit did not happen, its files are swept by the next one.
    temporary.replace(folder / PAPER)
    _sync(folder)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
