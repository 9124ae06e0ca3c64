"""Parse the name and the folder of a TsFile, for every IoTDB from 0.9 to 2.x.

| IoTDB | name | below `…/sequence` or `…/unsequence` |
|---|---|---|
| 0.9 | `created-version-inner.tsfile` | `<database>/` |
| 0.10, 0.11 | `created-version-inner.tsfile` | `<database>/<partition>/` |
| 0.12 … 2.x | `created-version-inner-cross.tsfile` | `<database>/<region>/<partition>/` |

Source: research/iotdb.md §1.10.

Below a receiver's root (the folder with `ledger_mark.json`) and at its nodes, the ledger decides which files are read
and which deletions apply, not the folder. `refuse_receiver_folder` and `refuse_data_file` refuse such files by name,
because a file read alone would give wrong rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tidemark.errors import PermanentError, UsageError

SUFFIX = ".tsfile"
RESOURCE = SUFFIX + ".resource"
PLACES = "sequence|unsequence/database/region/partition"
"""Where IoTDB keeps TsFiles below a data folder, for a person."""

_NAME = re.compile(r"(\d{1,19})-(\d{1,19})-(\d{1,9})(?:-(\d{1,9}))?\.tsfile", re.ASCII)
_FILE_LEVEL = 4  # at most, below sequence: database, region, partition, file
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


class TsFileName(NamedTuple):
    """`created` in ms since 1970, `version` a counter of the partition, `inner` and `cross` count compactions."""

    created: int
    version: int
    inner: int
    cross: int


class Place(NamedTuple):
    """The parts of a TsFile's folder. `partition` is 0 and `region` empty if the layout has none."""

    unsequence: bool
    database: str
    region: str
    partition: int


class SourceName(NamedTuple):
    """The parts of a TsFile's path at its site."""

    path: str
    unsequence: bool
    database: str
    region: str
    partition: int
    name: TsFileName


def parse_name(name: str) -> TsFileName | None:
    """The parts of a TsFile's name, None for any other name. The merge count of 0.9 to 0.11 becomes `inner`."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    created, version, inner, cross = found.groups()
    return TsFileName(int(created), int(version), int(inner), int(cross or 0))


def is_name(name: str) -> bool:
    """Whether a file name is a TsFile's."""
    return _NAME.fullmatch(name) is not None


def parse_source_path(path: str, data_folders: Sequence[str]) -> SourceName | None:
    """The parts of a TsFile's path, None if it is no TsFile or not below one of the site's data folders.

    `path` and `data_folders` are relative to the site's store, or absolute. A data folder names `sequence` or
    `unsequence` itself or a folder above it.
    """
    folder, _, base = path.rpartition("/")
    name = parse_name(base)
    place = parse_place(folder, tuple(data_folders)) if name else None
    if name is None or place is None:
        return None
    return SourceName(path, *place, name)


def parse_former_path(path: str, data_folders: Sequence[str]) -> SourceName | None:
    """As `parse_source_path`; the path may be below a data folder that is none any more."""
    return parse_source_path(path, data_folders) or parse_source_path(path, ("",))


@lru_cache(maxsize=4096)
def parse_place(folder: str, data_folders: tuple[str, ...]) -> Place | None:
    """The parts of a TsFile's folder, None if IoTDB keeps no TsFiles there."""
    below = _below_sequence(folder, data_folders)
    if below is None:
        return None
    unsequence, parts = below
    if not parts or not parts[0] or len(parts) > 3 or not all(_NUMBER.fullmatch(part) for part in parts[1:]):
        return None
    if len(parts) < 3 and _NUMBER.fullmatch(parts[0]):
        return None  # a region or a partition; before regions there was no table model: each database began with `root`
    region = parts[1] if len(parts) == 3 else ""
    partition = int(parts[-1]) if len(parts) > 1 else 0
    return Place(unsequence, parts[0], region, partition)


def rank_of_source(source: SourceName) -> tuple[int, int, int, int, int]:
    """The rank of a file: at equal times the file with the higher rank wins (DESIGN §3). Compared within one site."""
    name = source.name
    return (int(source.unsequence), name.version, name.inner, name.cross, name.created)


def is_compacted(name: TsFileName) -> bool:
    """Whether a name shows a compaction: a count above 0. An insertion compaction increments none."""
    return name.inner > 0 or name.cross > 0


def may_hold(made: SourceName, before: SourceName) -> bool:
    """Whether points of file `before` may now be in file `made`, judged by their names.

    Both must be in one database, region and time partition. `made` must be compacted, have the version of `before` with
    another creation time (this is how an insertion compaction moves a file into `sequence`), or be the same file, moved.
    """
    if made.path == before.path or made[2:5] != before[2:5]:
        return False
    inserted = made.name.version == before.name.version and made.name.created != before.name.created
    return inserted or is_compacted(made.name) or is_same_file(made, before)


def is_same_file(one: SourceName, other: SourceName) -> bool:
    """Whether two paths have one name in one group: IoTDB moves a file to another data folder (tiers of disks) unchanged."""
    return one.path != other.path and one[1:] == other[1:]


def within_data(path: str, data_folders: Sequence[str]) -> str:
    """`path` relative to the longest data folder that contains it, or unchanged if none does."""
    data_folder = _data_folder_of(path, data_folders)
    return path if data_folder is None else path[len(data_folder) :].strip("/")


def may_hold_files(path: str, data_folders: Sequence[str]) -> bool:
    """Whether IoTDB keeps TsFiles at such a path: a folder of a database, region or partition, a TsFile or a companion.

    If something else (a symlink, a device) is there, it may hide TsFiles."""
    below = _below_sequence(path, tuple(data_folders))
    if below is None:
        return False
    name, suffix, _ = path.rpartition("/")[2].partition(SUFFIX)
    return len(below[1]) < _FILE_LEVEL or (len(below[1]) == _FILE_LEVEL and is_name(name + suffix))


def refuse_misplaced_files(paths: Iterable[str], folder: str, site: str) -> None:
    """Raise PermanentError if files of the data folder `folder` are TsFiles and none lies where IoTDB keeps them.

    Then the folder is not a data folder: usually that of a database, inside `sequence` or named so. A sync of it would
    pass over every file. `paths`: of all files below it."""
    tsfiles = (path for path in paths if is_name(path.rpartition("/")[2]))
    first = next(tsfiles, None)
    if first is None or any(parse_source_path(path, [folder]) for path in chain([first], tsfiles)):
        return
    raise PermanentError(
        f"site {site}: {folder} has TsFiles, none where IoTDB keeps them ({PLACES})",
        hint=f"{_suggest_place(first, folder, site)}, then ./tidemark doctor",
        subject=site,
    )


def _suggest_place(path: str, folder: str, site: str) -> str:
    """Return what to do for a TsFile of the data folder `folder` that lies where IoTDB keeps none."""
    below = _below_sequence(path.rpartition("/")[0], (folder,))
    if below and below[1] and _NUMBER.fullmatch(below[1][0]):
        half = "unsequence" if below[0] else "sequence"
        return f"put what {half} holds into a folder with the name of its database, such as {half}/root.plant1"
    above = re.match(r"(?:.*/)?(?:un)?sequence(?=/)", _clean_folder(folder))
    write = f'write data = ["{above[0]}"]' if above else "name the folder that holds sequence and unsequence as data"
    return f"{write} in [sites.{site}]"


def _below_sequence(folder: str, data_folders: tuple[str, ...]) -> tuple[bool, list[str]] | None:
    """(unsequence, folder names below `sequence` or `unsequence`) by the longest data folder that holds `folder`."""
    data_folder = _data_folder_of(folder, data_folders)
    if data_folder is None:
        return None
    rest = folder[len(data_folder) :].strip("/")
    parts = rest.split("/") if rest else []
    last = data_folder.rpartition("/")[2]
    if last in ("sequence", "unsequence"):
        return last == "unsequence", parts
    for index, part in enumerate(parts):
        if part in ("sequence", "unsequence"):
            return part == "unsequence", parts[index + 1 :]
    return None


def _data_folder_of(path: str, data_folders: Sequence[str]) -> str | None:
    for data_folder in sorted(map(_clean_folder, data_folders), key=len, reverse=True):
        if not data_folder or path == data_folder or path.startswith(data_folder.rstrip("/") + "/"):
            return data_folder
    return None


def _clean_folder(folder: str) -> str:
    """A data folder without a leading `./` and trailing slashes; the store's root itself is empty."""
    cleaned = folder.rstrip("/") if folder != "/" else folder
    while cleaned.startswith("./"):
        cleaned = cleaned[2:]
    return "" if cleaned == "." else cleaned


MARK_FILE = "ledger_mark.json"  # at a receiver's root (docs/formats/ledger-mark.md)
_DATA_FILE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{12}-.+\.tsfile", re.DOTALL
)  # site, digest, name: `receiver.load.place`, at nodes too


def refuse_receiver_folder(path: str) -> None:
    """Raise UsageError for an absolute path at or below a receiver's root."""
    place = Path(path)
    for folder in (place, *place.parents):
        if (folder / MARK_FILE).exists():
            raise _refusal_error(path, f"it lies in the receiver's folder {folder}")


def refuse_data_file(path: str) -> None:
    """Raise UsageError for a file with the name of a receiver's data file, in any folder, or a symlink to one."""
    if Path(path).is_symlink():
        path = str(Path(path).resolve())
        refuse_receiver_folder(path)
    if _DATA_FILE.fullmatch(path.rpartition("/")[2]):
        raise _refusal_error(path, "it is a data file of a receiver or of one of its nodes")


def _refusal_error(path: str, why: str) -> UsageError:
    return UsageError(
        f"{path}: {why}. Which files are read there, and with which deletions, the ledger says: they alone give wrong rows",
        hint='spark.read.format("tidemark").load("tidemark.toml"), or ./tidemark read --out FILE.parquet (docs/spark.md)',
        subject=path,
    )
