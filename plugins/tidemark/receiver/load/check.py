"""Is a landed file what its manifest says, and can it be read? One file a task, in whatever process the engine gives.

TsFiles carry no checksums (research/iotdb.md "What to know first" 10): size and SHA-256 against the manifest come first,
then structure and statistics. Nothing here changes anything; a task may run twice.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Literal

from tidemark.errors import CorruptionError, RetryableError, TidemarkError
from tidemark.formats.landing import LandedFile, Part
from tidemark.formats.layout import landed_path
from tidemark.tsfiles.companions.mods import parse_mods
from tidemark.tsfiles.statistics import FileFacts, check_and_describe
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

_BLOCK = 1 << 18  # read into one place over and over, which stays in the cache of a core


@dataclass(frozen=True)
class ExamineTask:
    """`folder`: absolute and trusted, the receiver's; `below`: the folder in it with the landed files under their source
    paths; `database`: from the source path."""

    folder: str
    file: LandedFile
    database: str
    below: str = ""

    def locate_part(self, part: Part) -> UntrustedFile:
        """Where a part lies."""
        return landed_file(Path(self.folder), self.below, part)

    @property
    def subject(self) -> str:
        return self.file.path


@dataclass(frozen=True)
class Examined:
    """What a task found. `trouble` is empty for a sound file, else says what is wrong (`kind`: its exit code).

    `facts` is None for troubled files and for mods that travel alone. `came`: whether any of its bytes are there.
    `differs`: these are not the bytes that the manifest promised.
    """

    path: str
    generation: int
    facts: FileFacts | None = None
    trouble: str = ""
    kind: int = 0
    came: bool = True
    differs: bool = False


def examine_file(task: ExamineTask) -> Examined:
    """Check one file with its companions. Raises RetryableError when the disk does not answer: that is no verdict."""
    file = task.file
    try:
        for part in parts_of_file(file):
            check_part(task.locate_part(part), part)
    except CorruptionError as broken:
        return replace(_report_trouble(task, broken.message, broken.kind), differs=True)
    except OSError as broken:
        raise RetryableError(f"cannot read {task.folder}: {file.path}: {broken}", subject=file.path) from broken
    return _describe_file(task)


@dataclass(frozen=True)
class KeptTask:
    """A data file of the catalog. `database`: that of its devices."""

    place: UntrustedFile
    database: str

    @property
    def subject(self) -> str:
        return str(self.place)


def describe_kept(task: KeptTask) -> FileFacts:
    """What a data file holds, without comparing its digest. Raises CorruptionError; RetryableError: the disk is silent."""
    try:
        return check_and_describe(task.place, task.database)
    except OSError as broken:
        raise RetryableError(f"cannot read {task.place}: {broken}", subject=task.subject) from broken
    except (TidemarkError, MemoryError):
        raise
    except Exception as broken:
        raise CorruptionError(f"{task.place} cannot be read: {type(broken).__name__}: {broken}") from broken


def _describe_file(task: ExamineTask) -> Examined:
    """The facts of a file whose bytes are those that the manifest promised."""
    file = task.file
    try:
        if file.mods:
            data = task.locate_part(file.mods).read(MOST_MODS)
            parse_mods(data, mods_form(file.mods.path), file.mods.path)
        if file.tsfile is None:
            return Examined(file.path, file.generation)
        return Examined(file.path, file.generation, check_and_describe(task.locate_part(file.tsfile), task.database))
    except TidemarkError as broken:
        if not isinstance(broken, CorruptionError):
            raise
        return _report_trouble(task, _by_source_path(task, broken.message), broken.kind)
    except OSError as broken:
        raise RetryableError(f"cannot read {task.folder}: {file.path}: {broken}", subject=file.path) from broken
    except MemoryError:
        raise  # a limit of its task: whoever gave that says so
    except Exception as broken:
        # A decoder stumbled over bytes it did not expect: the file goes to quarantine with that, the rest goes on.
        return _report_trouble(task, f"cannot be read: {type(broken).__name__}: {broken}", CorruptionError.kind)


def _by_source_path(task: ExamineTask, message: str) -> str:
    """The message without the folder where its file was read: it goes to the quarantine from there."""
    for part in parts_of_file(task.file):
        message = message.replace(str(task.locate_part(part)), part.path)
    return message


def _report_trouble(task: ExamineTask, trouble: str, kind: int) -> Examined:
    came = any(_is_there(task.locate_part(part)) for part in parts_of_file(task.file))
    return Examined(task.file.path, task.file.generation, trouble=trouble, kind=kind, came=came)


def _is_there(place: UntrustedFile) -> bool:
    try:
        place.open_file().close()
    except (CorruptionError, OSError):
        return False  # a symlink or a folder: examined already, and what it is stands in the trouble
    return True


def parts_of_file(file: LandedFile) -> list[Part]:
    """The companions that travelled, the TsFile first."""
    return [part for part in (file.tsfile, file.mods, file.resource) if part is not None]


def mods_form(path: str) -> Literal["mods", "mods2"]:
    """`mods` (text, up to 1.3) or `mods2` (2.x), by the name's end."""
    return "mods2" if path.endswith(".mods2") else "mods"


def landed_file(root: Path, folder: str, part: Part) -> UntrustedFile:
    """Where a part of a landing in `folder`, relative to the receiver's `root`, lies."""
    return UntrustedFile(str(root), f"{folder}/{landed_path(part.path)}" if folder else landed_path(part.path))


def check_part(place: UntrustedFile, part: Part) -> None:
    """Size and digest of one landed file; CorruptionError says how they differ."""
    try:
        with place.open_file() as file:
            size = os.fstat(file.fileno()).st_size
            if size != part.size:
                raise CorruptionError(f"{part.path} has {size} bytes, the manifest says {part.size}", subject=part.path)
            digest = _digest_of(file)
    except FileNotFoundError as gone:
        raise CorruptionError(
            f"missing: the manifest names {part.path}, it is not in the landing", subject=part.path
        ) from gone
    if digest != part.sha256:
        raise CorruptionError(
            f"{part.path} has SHA-256 {digest[:16]}…, the manifest says {part.sha256[:16]}…: its bytes changed on the way",
            subject=part.path,
        )


def sha256_of(place: UntrustedFile, most: int) -> str:
    """Hex digest. Raises as opening it; CorruptionError, before a byte is read, where it has more than `most` bytes."""
    with place.open_file() as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise CorruptionError(f"{place.path} has {size} bytes, at most {most} were loaded", subject=place.path)
        return _digest_of(file)


def _digest_of(file: FileIO) -> str:
    digest = hashlib.sha256()
    block = memoryview(bytearray(min(_BLOCK, os.fstat(file.fileno()).st_size + 1)))
    while count := file.readinto(block):
        digest.update(block[:count])
    return digest.hexdigest()
