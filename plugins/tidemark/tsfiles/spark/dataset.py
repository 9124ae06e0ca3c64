"""Find the TsFiles of a path, ordered by rank, each with its deletions.

A path is a TsFile, a glob, a folder with TsFiles at any depth (an IoTDB data folder, or just files), or a folder
that `df.write.format("tsfile")` made. In such a folder readers see only the files that `_tidemark.json` names. It is
replaced atomically, so a reader sees the files before a commit or after it (docs/spark.md).
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tidemark.errors import CorruptionError, NotFoundError, UsageError
from tidemark.tsfiles.companions.mods import NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.companions.resource import read_mods_name
from tidemark.tsfiles.layout.footer import MAGIC
from tidemark.tsfiles.names import SUFFIX, is_compacted, parse_name, parse_place, refuse_data_file, refuse_receiver_folder
from tidemark.tsfiles.sealed import COMPANION_BYTES, COPIES, MODS_SUFFIXES, SHORTEST, lone_mods, was_mods_of
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

Rank = tuple[int, int, int, int, int, int]
NO_DATABASE = "default"
"""The database in names of table-model devices whose file lies in no folder that names one."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A TsFile to read. `path` is absolute. `database`: that of its folder, else NO_DATABASE. `mods` may be empty. `prefix`
    stands before its devices of the tree model.

    Files that others can write are UntrustedFile."""

    path: str | UntrustedFile
    rank: Rank
    database: str = NO_DATABASE
    mods: str | UntrustedFile = ""
    prefix: str = ""

    def read_deletions(self) -> Deletions:
        """Read the file's deletions. Raises FileNotFoundError, and as `parse_mods`."""
        if not self.mods:
            return NO_DELETIONS
        place = str(self.mods)
        data = self.mods.read(MOST_MODS) if isinstance(self.mods, UntrustedFile) else Path(place).read_bytes()
        return parse_mods(data, "mods2" if place.endswith(".mods2") else "mods", place, self.prefix)


def find_files(paths: Sequence[str]) -> list[DataFile]:
    """Find the files of all `paths`, lowest rank first. If two files hold one point, the later wins.

    Files with IoTDB's names rank as in DESIGN §3. Any other file ranks below those, in the order given and by name
    within a folder. Raises NotFoundError for a path without files, and UsageError for a remote path, a receiver's folder
    and a receiver's data files.
    """
    found: dict[str, DataFile] = {}
    for path in paths:
        local = local_path(path)
        refuse_receiver_folder(local)
        for at in [local] if Path(local).exists() else sorted(glob.glob(local)) or [local]:  # noqa: PTH207
            for file in _files_of(at, len(found)):
                refuse_data_file(str(file.path))
                found.setdefault(str(file.path), file)
    if not found:
        raise NotFoundError(f"no TsFile at {', '.join(paths) or 'no path'}", subject=", ".join(paths))
    return sorted(found.values(), key=lambda file: file.rank)


def local_path(path: str) -> str:
    """Convert a path or `file:` URL to an absolute path. Raises UsageError for other URLs."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        path = unquote(parts.path)
    elif "://" in path:
        hint = "mount or copy it to a path that every executor sees; ./tidemark sync brings files from SFTP"
        raise UsageError(f"{path}: only local and shared paths are read", hint=hint, subject=path)
    return str(Path(path).absolute())


def _files_of(at: str, first: int) -> Iterator[DataFile]:
    place = Path(at)
    if place.is_dir():
        yield from _files_below(place, first)
    elif place.exists():
        yield _data_file(at, first)
    else:
        raise NotFoundError(f"{at}: no such file or folder", subject=at)


def _files_below(folder: Path, first: int) -> Iterator[DataFile]:
    if (folder / DATASET_MANIFEST).exists():
        for number, name in enumerate(read_dataset_manifest(folder).names):
            yield _data_file(str(folder / name), first + number)
        return
    number = first
    for parent, folders, names in os.walk(folder):
        copies = COPIES if {"sequence", "unsequence"}.intersection(folders) else ()
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")) and name not in copies)
        beside = set(names)
        renamed = bool(lone_mods(names))
        for name in sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith((".", "_"))):
            at = os.path.join(parent, name)  # noqa: PTH118 - a folder may have a million
            if name + ".resource" in beside or _is_sealed(at):
                yield _data_file(at, number, renamed)
                number += 1


def _is_sealed(at: str) -> bool:
    """Whether a file ends with a TsFile's tail. Without tail and `.resource`, IoTDB still writes it."""
    with open(at, "rb") as file:  # noqa: PTH123
        if os.fstat(file.fileno()).st_size < SHORTEST:
            return False
        file.seek(-len(MAGIC), os.SEEK_END)
        return file.read() == MAGIC


def _data_file(at: str, number: int, renamed: bool = True) -> DataFile:
    """Make the DataFile of a path. `renamed`: whether its deletions may be under an earlier name."""
    folder, _, base = at.rpartition("/")
    name = parse_name(base)
    place = parse_place(folder, ("",))
    mods = next((at + suffix for suffix in MODS_SUFFIXES if Path(at + suffix).exists()), "")
    if renamed and name and is_compacted(name):
        mods = _mods_of_before(at) or mods
    if name is None:
        rank: Rank = (0, -1, 0, 0, 0, number)
    else:
        unsequence = int(place.unsequence) if place else 0
        rank = (unsequence, name.version, name.inner, name.cross, name.created, number)
    return DataFile(at, rank, place.database if place else NO_DATABASE, mods)


def _mods_of_before(at: str) -> str:
    """The deletions of a TsFile under an earlier name if its `.resource` names them, else ''."""
    resource = Path(at + ".resource")
    if not resource.exists() or resource.stat().st_size > COMPANION_BYTES:
        return ""
    try:
        named = str(resource.with_name(read_mods_name(resource.read_bytes(), str(resource)) or resource.name))
    except (CorruptionError, ValueError):  # a damaged `.resource`, or one that names no file
        return ""
    return named if was_mods_of(named, at) and Path(named).exists() else ""


DATASET_MANIFEST = "_tidemark.json"
FORMAT = 1


@dataclass(frozen=True)
class DatasetManifest:
    """The content of `_tidemark.json`. `files`: name → facts, in rank order.

    `retired`: name → removal time (seconds since 1970) of files whose bytes are kept for a grace period. `version`: the
    highest version number given to a file. `created`: the latest creation time in a name, in ms.
    """

    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    retired: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    created: int = 0

    @property
    def names(self) -> list[str]:
        return list(self.files)

    def encode(self) -> bytes:
        content = {
            "format": FORMAT,
            "version": self.version,
            "created": self.created,
            "files": dict(self.files),
            "retired": dict(self.retired),
        }
        return json.dumps(content, indent=1).encode() + b"\n"


def read_dataset_manifest(folder: Path) -> DatasetManifest:
    """Read the manifest of a folder; an empty one if there is none. Raises CorruptionError if it cannot be parsed."""
    place = folder / DATASET_MANIFEST
    try:
        raw = json.loads(place.read_bytes())
        if raw["format"] != FORMAT:
            raise CorruptionError(f"{place}: format {raw['format']!r}; this Tidemark knows {FORMAT}", subject=str(place))
        record = DatasetManifest(raw["files"], raw["retired"], int(raw["version"]), int(raw["created"]))
        if any("/" in name or name.startswith(".") for name in (*record.files, *record.retired)):
            raise CorruptionError(f"{place}: a file name leads out of the folder", subject=str(place))
    except FileNotFoundError:
        return DatasetManifest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as broken:
        raise CorruptionError(f"{place}: {type(broken).__name__}: {broken}", subject=str(place)) from broken
    return record
