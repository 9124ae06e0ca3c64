"""Which TsFiles a path stands for, in the order in which they win, each with the deletions beside it.

A path is a TsFile, a glob, a folder with TsFiles at any depth (an IoTDB data folder, or just files), or a folder that
`df.write.format("tsfile")` made: there its `_tidemark.json` alone says which files exist (`dataset_commit`).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidemark.errors import CorruptionError, NotFoundError, UsageError
from tidemark.tsfiles.dataset_paper import PAPER, read_paper
from tidemark.tsfiles.footer import MAGIC
from tidemark.tsfiles.mods import NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.names import SUFFIX, is_compacted, parse_name, parse_place
from tidemark.tsfiles.receiver_folder import refuse_data_file, refuse_receiver_folder
from tidemark.tsfiles.resource import read_mods_name
from tidemark.tsfiles.sealed import COMPANION_BYTES, MODS_SUFFIXES, SHORTEST, lone_mods, was_mods_of

Rank = tuple[int, int, int, int, int, int]
NO_DATABASE = "default"
"""The database in names of table-model devices whose file lies in no folder that names one."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """`path` is absolute; `database`: that of its folder, else NO_DATABASE; `mods` may be empty."""

    path: str
    rank: Rank
    database: str = NO_DATABASE
    mods: str = ""

    def deletions(self) -> Deletions:
        """The deletions beside the file. Raises as `parse_mods`."""
        if not self.mods:
            return NO_DELETIONS
        return parse_mods(Path(self.mods).read_bytes(), "mods2" if self.mods.endswith(".mods2") else "mods", self.mods)


def find_files(paths: Sequence[str]) -> list[DataFile]:
    """The files of all `paths`, lowest rank first: where two hold one point the later wins.

    Rank is that of DESIGN §3 for files with IoTDB's names; any other file ranks below those, in the order given and by
    name within a folder. Raises NotFoundError for a path that names nothing, UsageError for a remote one, for a receiver's
    folder and for a receiver's data files.
    """
    found: dict[str, DataFile] = {}
    for path in paths:
        local = local_path(path)
        refuse_receiver_folder(local)
        for at in [local] if Path(local).exists() else sorted(glob.glob(local)) or [local]:  # noqa: PTH207
            for file in _files_of(at, len(found)):
                refuse_data_file(file.path)
                found.setdefault(file.path, file)
    if not found:
        raise NotFoundError(f"no TsFile at {', '.join(paths) or 'no path'}", subject=", ".join(paths))
    return sorted(found.values(), key=lambda file: file.rank)


def local_path(path: str) -> str:
    """An absolute path of this machine; `file:` URLs are taken."""
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
    if (folder / PAPER).exists():
        for number, name in enumerate(read_paper(folder).names):
            yield _data_file(str(folder / name), first + number)
        return
    number = first
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        beside = set(names)
        renamed = bool(lone_mods(names))
        for name in sorted(name for name in names if name.endswith(SUFFIX) and not name.startswith((".", "_"))):
            at = os.path.join(parent, name)  # noqa: PTH118 - a folder may have a million
            if name + ".resource" in beside or _is_sealed(at):
                yield _data_file(at, number, renamed)
                number += 1


def _is_sealed(at: str) -> bool:
    """Whether a file without `.resource` has the tail of a TsFile: without both, IoTDB still writes it."""
    with open(at, "rb") as file:  # noqa: PTH123
        if os.fstat(file.fileno()).st_size < SHORTEST:
            return False
        file.seek(-len(MAGIC), os.SEEK_END)
        return file.read() == MAGIC


def _data_file(at: str, number: int, renamed: bool = True) -> DataFile:
    """`renamed`: whether its deletions may stand under a name that it had before."""
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
    """Deletions under an earlier name of a TsFile, where its `.resource` names them; '' else."""
    resource = Path(at + ".resource")
    if not resource.exists() or resource.stat().st_size > COMPANION_BYTES:
        return ""
    try:
        named = str(resource.with_name(read_mods_name(resource.read_bytes(), str(resource)) or resource.name))
    except (CorruptionError, ValueError):  # it tells nothing, or no name of a file
        return ""
    return named if was_mods_of(named, at) and Path(named).exists() else ""
