"""Check that a landed file is what its manifest says and can be read. One file per task, in the engine's process.

TsFiles carry no checksums (research/iotdb.md "What to know first" 10). Size and SHA-256 are compared with the manifest
first, then structure and statistics are checked. Nothing here changes anything; a task may run twice.
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
from tidemark.tsfiles.companions.mods import NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.statistics import FileFacts, check_and_describe
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

_BLOCK = 1 << 18  # one buffer is reused, so it stays in a core's cache


@dataclass(frozen=True)
class ExamineTask:
    """`folder`: the receiver's root, absolute and trusted. `below`: the folder in it that holds the landed files under their
    source paths. `database`: from the source path, `prefix`: of the site; both complete the names of devices."""

    folder: str
    file: LandedFile
    database: str
    below: str = ""
    prefix: str = ""

    def locate_part(self, part: Part) -> UntrustedFile:
        """Return the place of a part."""
        return landed_file(Path(self.folder), self.below, part)

    @property
    def subject(self) -> str:
        return self.file.path


@dataclass(frozen=True)
class Examined:
    """The result of a task. `trouble` is '' for a sound file, else says what is wrong (`kind`: its exit code).

    `facts` is None for faulty files and for mods that came alone. `came`: some of the bytes are there. `differs`: the bytes
    are not those that the manifest promised.
    """

    path: str
    generation: int
    facts: FileFacts | None = None
    trouble: str = ""
    kind: int = 0
    came: bool = True
    differs: bool = False


def examine_file(task: ExamineTask) -> Examined:
    """Check one file with its companions. RetryableError if the disk does not answer: the file may be sound."""
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
    """A data file of the catalog, and what completes the names of its devices."""

    place: UntrustedFile
    database: str
    prefix: str = ""

    @property
    def subject(self) -> str:
        return str(self.place)


def describe_kept(task: KeptTask) -> FileFacts:
    """Return what a data file holds; its digest is not compared. CorruptionError; RetryableError: the disk does not
    answer."""
    try:
        return check_and_describe(task.place, task.database, task.prefix)
    except OSError as broken:
        raise RetryableError(f"cannot read {task.place}: {broken}", subject=task.subject) from broken
    except (TidemarkError, MemoryError):
        raise
    except Exception as broken:
        raise CorruptionError(f"{task.place} cannot be read: {type(broken).__name__}: {broken}") from broken


def _describe_file(task: ExamineTask) -> Examined:
    """Return the facts of a file whose bytes are those that the manifest promised."""
    file = task.file
    try:
        if file.mods:
            data = task.locate_part(file.mods).read(MOST_MODS)
            parse_mods(data, mods_form(file.mods.path), file.mods.path)
        if file.tsfile is None:
            return Examined(file.path, file.generation)
        facts = check_and_describe(task.locate_part(file.tsfile), task.database, task.prefix)
        return Examined(file.path, file.generation, facts)
    except TidemarkError as broken:
        if not isinstance(broken, CorruptionError):
            raise
        return _report_trouble(task, _by_source_path(task, broken.message), broken.kind)
    except OSError as broken:
        raise RetryableError(f"cannot read {task.folder}: {file.path}: {broken}", subject=file.path) from broken
    except MemoryError:
        raise  # a limit of its task, reported by the engine
    except Exception as broken:
        # A decoder met bytes that it did not expect: the file goes into quarantine, the rest goes on.
        return _report_trouble(task, f"cannot be read: {type(broken).__name__}: {broken}", CorruptionError.kind)


def _by_source_path(task: ExamineTask, message: str) -> str:
    """Replace paths of the receiver in the message by source paths: the file goes into quarantine from here."""
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
        return False  # a symlink or a folder: the trouble says so already
    return True


def parts_of_file(file: LandedFile) -> list[Part]:
    """List the parts that arrived, the TsFile first."""
    return [part for part in (file.tsfile, file.mods, file.resource) if part is not None]


def mods_form(path: str) -> Literal["mods", "mods2"]:
    """Return `mods` (text, up to 1.3) or `mods2` (2.x), by the name's end."""
    return "mods2" if path.endswith(".mods2") else "mods"


def read_deletions(root: str, mods_location: str, prefix: str = "") -> Deletions:
    """Return the deletions of a data file of the catalog, of series below `prefix`; none where `mods_location` is ''.

    Raises as `UntrustedFile.read` and `parse_mods`."""
    if not mods_location:
        return NO_DELETIONS
    return parse_mods(UntrustedFile(root, mods_location).read(MOST_MODS), mods_form(mods_location), mods_location, prefix)


def landed_file(root: Path, folder: str, part: Part) -> UntrustedFile:
    """Return the place of a part of a landing in `folder`, relative to the receiver's `root`."""
    return UntrustedFile(str(root), f"{folder}/{landed_path(part.path)}" if folder else landed_path(part.path))


def check_part(place: UntrustedFile, part: Part) -> None:
    """Compare size and digest of one landed file with the manifest; CorruptionError says how they differ."""
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
    """Return the hex digest. Raises as opening does; CorruptionError, before reading, for more than `most` bytes."""
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
