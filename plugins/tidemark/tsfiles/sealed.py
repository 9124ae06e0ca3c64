"""Classify the files of a listing: sealed TsFiles, and skipped files with a reason (DESIGN §1 "sealed file").

Pure: decides from names and sizes alone. `layout.structure` checks the bytes.
Source for the companions: research/iotdb.md §1.10 and `TsFileResource`, `ModificationFile`, `IoTDBConstant` of IoTDB.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple, Protocol

from tidemark.tsfiles.names import PLACES, SUFFIX, Place, SourceName, is_name, parse_name, parse_place, within_data

SHORTEST = 18
"""Bytes of the shortest file that can be whole: head 7, one byte of metadata, its size 4, tail 6."""

COMPANION_BYTES = 64 << 20
"""Of the largest companion that is read or sent: a `.resource` has some hundred bytes a device. A larger one counts as
missing."""

MISPLACED = f"not where IoTDB keeps TsFiles ({PLACES})"
NAMELESS = "sent without its devices being known: "
MISSING = "counts as missing: "
"""How the reasons of companions begin that tell nothing."""
NO_FOLDER = "this data folder is not there; is the disk mounted, is data in the settings right?"

_MODS = SUFFIX + ".mods"
MODS_SUFFIXES = (".mods2", ".mods")
"""Deletions that travel with their TsFile; where both exist IoTDB 2.x goes by the first."""

_IN_WORK = {
    ".resource.temp": "its .resource is being written",
    ".merge": "being merged",
    ".settle": "being settled",
    ".mods.settle": "its deletions are being rewritten",
    ".mods2.settle": "its deletions are being rewritten",
    ".inner": "being compacted",
    ".cross": "being compacted",
    ".target": "being compacted",
    ".vm": "being compacted",
    ".broken": "marked broken by IoTDB",
}
_ALSO_IN_MODS = (".compaction.mods", ".compaction.mods2")
"""Deletions that came while the file is a source of a compaction. They stand in its own mods, too, and IoTDB 2.0.1-beta may
leave them there for good: the file is what it was."""
_OPEN = "still open (no .resource yet)"
_UNFINISHED = "unfinished output of a compaction"
_ALONE = "its TsFile is not there"
COMPACTING = "a compaction is at work in its time partition, or was cut short"
WAITS = "a compaction made it, and one is at work in its time partition or was cut short"
UNTOLD = "gone at the site, where a compaction is at work in its time partition or was cut short"
"""Of a compaction's log; of a file that is not sent, and of one that is not told as vanished, before that has ended."""
AT_WORK = frozenset(
    {
        *(_OPEN, _UNFINISHED, _ALONE, COMPACTING, WAITS, UNTOLD),
        *(f"{why} ({end})" for end, why in _IN_WORK.items() if end != ".broken"),
    }
)
"""Reasons that IoTDB's own work gives: such a file is sealed later, or gone."""
_OF_THE_DISK = "lost+found"  # at the root of a file system; only root can read it
COPIES = ("snapshot", "pipe")
"""Beside `sequence`: hard links that IoTDB (1.0 to 2.x) makes of its files, for another data node, for Ratis, for a Pipe."""
_IN_COPIES = re.compile(r"(?:^|/)(?:snapshot/[^/]+-\d+/[^/]+/(?:un)?sequence/|pipe/tsfile/)")
_OUTPUTS = (".inner", ".cross", ".target", ".merge", ".settle", ".vm", ".broken")
_LOG = "compaction.log"  # 0.13 to 2.x: a TsFile's name and more, then `.inner-`, `.cross-`, `.insertion-` or `.settle-`
_COMPACTING = (_LOG, ".inner", ".cross", ".target", ".merge", ".settle")


class Entry(Protocol):
    """A regular file of a listing (`stores.protocol.Entry`): path, size in bytes, mtime in whole seconds."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def mtime(self) -> int: ...
    @property
    def inode(self) -> int: ...


class SealedFile(NamedTuple):
    """A sealed TsFile with its companions. Kept small, because a site may have a million."""

    entry: Entry
    place: Place
    resource: Entry
    mods: Entry | None

    @property
    def resource_bytes(self) -> int:
        """The size of the `.resource`, 0 if it is too large and counts as missing."""
        return self.resource.size if self.resource.size <= COMPANION_BYTES else 0

    @property
    def name(self) -> SourceName:
        """The parsed path, parsed on each call."""
        path = self.entry.path
        parsed = parse_name(path.rpartition("/")[2])
        if parsed is None:
            raise ValueError(f"{path}: not a TsFile's name")
        return SourceName(path, *self.place, parsed)


@dataclass(frozen=True, slots=True)
class Classified:
    """A listing in two parts: `sealed`, ordered by path, and `skipped`: (path, reason) of all other files of TsFiles.

    `lone_mods`: the skipped files of deletions whose TsFile is missing (`candidates_for_lone_mods`)."""

    sealed: list[SealedFile]
    skipped: list[tuple[str, str]]
    lone_mods: list[Entry] = field(default_factory=list)


def classify_listing(entries: Sequence[Entry], data_folders: Sequence[str]) -> Classified:
    """Sort a site's listing into sealed files and skipped files with a readable reason.

    Hidden files and folders (`.tidemark`) and files unrelated to TsFiles are in neither list.
    """
    folders = _Folders(tuple(data_folders))
    ordered = sorted(entries, key=attrgetter("path"))
    result = Classified([], [])
    at, count = 0, len(ordered)
    while at < count:
        entry = ordered[at]
        path = entry.path
        at += 1
        if not path.endswith(SUFFIX):
            _note_stray(entry, data_folders, result)
            continue
        first = at
        while at < count and ordered[at].path.startswith(path):  # sorted: companions follow their TsFile
            at += 1
        folder, _, base = path.rpartition("/")
        place = folders[folder]
        if place and at == first + 1 and is_name(base) and _plain_pair(entry, ordered[first]):
            result.sealed.append(SealedFile(entry, place, ordered[first], None))  # a quick path for nearly all files
        elif not is_hidden(path, data_folders):
            _classify_tsfile(entry, place, {other.path[len(path) :]: other for other in ordered[first:at]}, result)
    return result


def candidates_for_lone_mods(found: Classified) -> list[SealedFile]:
    """Sealed files whose deletions may be under an earlier name. Their `.resource` names it (`with_named_mods`).

    A merge of 0.12 increments a count in a TsFile's name. Its deletions keep the old name, and later ones are added there.
    """
    stems = {stem for mods in found.lone_mods if (stem := stem_of(mods.path))}
    folders = {folder for folder, *_ in stems}
    near = (file for file in found.sealed if stems and file.entry.path.rpartition("/")[0] in folders)
    return [file for file in near if stem_of(file.entry.path) in stems]


def with_named_mods(found: Classified, names: Mapping[str, str]) -> Classified:
    """Assign each file of lone deletions to the TsFile whose `.resource` names it. `names`: TsFile's path → that name.

    A name that is not a lone file of deletions under an earlier name of the same TsFile is ignored.
    """
    lone = {mods.path: mods for mods in found.lone_mods}
    given: dict[str, Entry] = {}
    notes: dict[str, str] = {}
    sealed = []
    for file in found.sealed:
        path = file.entry.path
        named = f"{path.rpartition('/')[0]}/{names.get(path, '')}"
        if named in lone and named not in given and was_mods_of(named, path):
            mods = given[named] = lone[named]
            if file.mods:
                notes[file.mods.path] = f"its .resource names other deletions ({names[path]})"
            if mods.size > COMPANION_BYTES:
                notes[named] = too_large(mods.size)
            sealed.append(file._replace(mods=mods if mods.size <= COMPANION_BYTES else None))
        else:
            sealed.append(file)
    skipped = [pair for pair in found.skipped if pair[0] not in given] + list(notes.items())
    return replace(found, sealed=sealed, skipped=skipped, lone_mods=[m for p, m in lone.items() if p not in given])


def was_mods_of(mods_path: str, path: str) -> bool:
    """Whether a file of deletions may belong to a TsFile under an earlier name: same folder and version, lower counts.

    This is only a hint. The TsFile's `.resource` decides."""
    before, now = parse_name(mods_path.rpartition("/")[2].removesuffix(".mods")), parse_name(path.rpartition("/")[2])
    if before is None or now is None or not mods_path.endswith(_MODS) or stem_of(mods_path) != stem_of(path):
        return False
    return (before.inner, before.cross) < (now.inner, now.cross)


def lone_mods(names: Collection[str]) -> list[str]:
    """The files of deletions in `names` (file names or paths) whose TsFile is not in `names`."""
    mods = [name for name in names if name.endswith(_MODS)]
    there = set(names) if mods else set()
    return [name for name in mods if name.removesuffix(".mods") not in there]


def stem_of(path: str) -> tuple[str, int, int] | None:
    """(folder, creation time, version) of a TsFile or its deletions: the parts of the name that a merge keeps."""
    folder, _, base = path.rpartition("/")
    name = parse_name(base.removesuffix(".mods"))
    return (folder, name.created, name.version) if name else None


def is_hidden(path: str, data_folders: Sequence[str]) -> bool:
    """Whether a part of the path below its data folder begins with a dot (`.tidemark`, `.snapshot`) or is `lost+found`, or
    the path leads among links that IoTDB made of files in `sequence`, with the deletions of that time or none.

    IoTDB keeps nothing of its own there. The data folder itself may be below a hidden folder."""
    if "/." not in path and path[:1] != "." and not any(name in path for name in (_OF_THE_DISK, *COPIES)):
        return False
    within = within_data(path, data_folders)
    return any(part[:1] == "." or part == _OF_THE_DISK for part in within.split("/")) or bool(_IN_COPIES.search(within))


class _Folders(dict[str, Place | None]):
    """A cache: folder → its parsed place, None if it is hidden or IoTDB keeps no TsFiles there."""

    def __init__(self, data_folders: tuple[str, ...]) -> None:
        super().__init__()
        self._data_folders = data_folders

    def __missing__(self, folder: str) -> Place | None:
        place = self[folder] = None if is_hidden(folder, self._data_folders) else parse_place(folder, self._data_folders)
        return place


def shows_compaction(path: str) -> bool:
    """Whether a file exists in a time partition only while IoTDB compacts there.

    It exists from before an output has its final name until the last source is removed. After a kill it stays until the
    server starts again and ends or undoes the compaction. Source: `CompactionLogger`, `TsFileNameGenerator`,
    `CompactionRecoverTask` of 0.13 to 2.x. 0.12 keeps its log in the system folder, which is not listed.
    """
    if not path.endswith(_COMPACTING) or path.endswith((".mods.settle", ".mods2.settle")):
        return False
    return parse_name(path.rpartition("/")[2].partition(".")[0] + SUFFIX) is not None


def too_large(size: int) -> str:
    """The reason why a companion of this size counts as missing."""
    return f"{MISSING}{size:,} bytes, more than a companion may have ({COMPANION_BYTES:,})"


def _plain_pair(entry: Entry, beside: Entry) -> bool:
    """Whether `beside` is the `.resource` of a TsFile, and neither is too short."""
    return entry.size >= SHORTEST and beside.size > 0 and beside.path == entry.path + ".resource"


def _classify_tsfile(entry: Entry, place: Place | None, companions: dict[str, Entry], result: Classified) -> None:
    """Add a TsFile to `result` as sealed, or as skipped with the reason. `companions`: suffix → file."""
    if not is_name(entry.path.rpartition("/")[2]):
        result.skipped.append((entry.path, "its name is not a TsFile's (created-version-inner-cross.tsfile)"))
        return
    if place is None:
        result.skipped.append((entry.path, MISPLACED))
        return
    reason = _why_not_sealed(entry, companions)
    if reason:
        result.skipped.append((entry.path, reason))
        return
    mods = next((companions[suffix] for suffix in MODS_SUFFIXES if suffix in companions), None)
    if mods is not None and mods.size > COMPANION_BYTES:
        result.skipped.append((mods.path, too_large(mods.size)))
        mods = None
    result.sealed.append(SealedFile(entry, place, companions[".resource"], mods))
    for suffix, other in companions.items():
        if suffix not in (".resource", *MODS_SUFFIXES, *_ALSO_IN_MODS) and suffix.startswith("."):
            result.skipped.append((other.path, COMPACTING if suffix.endswith(_LOG) else "not known beside a TsFile"))


def _why_not_sealed(entry: Entry, companions: dict[str, Entry]) -> str:
    """The reason for people why a TsFile is not sealed; empty if the listing shows none."""
    for suffix in companions:
        if suffix in _IN_WORK:
            return f"{_IN_WORK[suffix]} ({suffix})"
    resource = companions.get(".resource")
    if resource is None:
        return _OPEN
    if resource.size == 0:
        return "its .resource is empty"
    if entry.size == 0:
        return "zero length"
    if entry.size < SHORTEST:
        return f"too short to be a TsFile ({entry.size} bytes)"
    return ""


def _note_stray(entry: Entry, data_folders: Sequence[str], result: Classified) -> None:
    """Add a file that is no TsFile and no companion of a listed one to the skipped files, if it concerns TsFiles."""
    path = entry.path
    base = path.rpartition("/")[2]
    log = base.endswith(_LOG) and shows_compaction(path)
    alone = SUFFIX + "." in base and not base.endswith(".part")
    unfinished = base.endswith(_OUTPUTS) and parse_name(base.partition(".")[0] + SUFFIX)
    if (log or alone or unfinished) and not is_hidden(path, data_folders):
        result.skipped.append((path, COMPACTING if log else _ALONE if alone else _UNFINISHED))
        if path.endswith(_MODS):
            result.lone_mods.append(entry)
