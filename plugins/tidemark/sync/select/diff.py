"""Find what changed at the site: merge the listing with the ledger's rows, both sorted by path. Pure.

A site may have a million files of which ten are new. So the first pass (`compare_listing`) reads every entry once, keeps
nothing of unchanged files and parses no name. It compares a folder column by column if it holds only acknowledged files,
each with its `.resource`. Only folders in which something differs are classified (`classify_changes`).
Source: DESIGN §3 "A file is its content", "Vanished files"; seed 000 "File selection".
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from tidemark.stores.listing import FolderFiles, folders_of
from tidemark.stores.protocol import Entry
from tidemark.tsfiles.names import RESOURCE, SUFFIX, parse_former_path, parse_source_path
from tidemark.tsfiles.sealed import COMPANION_BYTES, Classified, SealedFile, is_hidden, lone_mods, stem_of
from tidemark.tsfiles.sealed import Entry as AnyEntry


class KnownFile(NamedTuple):
    """The columns of the ledger's `file` table that planning needs. `state`: waiting | acked | held | gone."""

    path: str
    size: int
    mtime: int
    inode: int
    mods_size: int
    state: str
    generation: int
    sha256: str
    reason: str | None
    mods_mtime: int = 0


OUTSIDE = "its data folder is not in the settings any more: neither sent again nor dropped"
"""Why a known file is passed over whose data folder was taken out of the settings."""


@dataclass
class Compared:
    """Outcome of the first pass. `differing`: listed TsFiles that may have changed, with their row if any."""

    differing: dict[str, KnownFile | None] = field(default_factory=dict)
    absent: list[KnownFile] = field(default_factory=list)  # known (not gone), not in the listing
    folders: set[str] = field(default_factory=set)  # where something differs: to be classified
    prefixes: set[str] = field(default_factory=set)  # folders, with their slash, that hold any file
    listed: int = 0  # TsFiles in the listing, whatever their state
    known: int = 0  # rows that are not gone
    outside: list[str] = field(default_factory=list)  # known, but below no data folder: they were not listed
    moved: dict[str, KnownFile] = field(default_factory=dict)  # likewise; by the path at which the same file is listed


class Kind(enum.StrEnum):
    """How a sealed file differs from what was acknowledged."""

    NEW = "new"  # never seen, or seen and never acknowledged, or back after it had vanished
    CONTENT = "content"  # size, time or inode differ from what was acknowledged
    MODS = "mods"  # only its mods grew or were written anew: they are sent alone
    SAME = "same"  # other times or inode, or back again, with the acknowledged digests: nothing is sent


class Change(NamedTuple):
    """A path whose content or companions differ from what was acknowledged."""

    kind: Kind
    file: SealedFile
    row: KnownFile | None


@dataclass(frozen=True)
class Changes:
    """What differs at the site.

    `live`: unchanged sealed files of the same folders. `vanished`: rows whose file does not exist. `unjudged`: rows
    that could not be compared (unreadable folder, a running compaction): neither changed nor vanished. `waiting`:
    changes that are sent once a compaction has ended (`compacting`).
    """

    changed: tuple[Change, ...] = ()
    live: tuple[SealedFile, ...] = ()
    vanished: tuple[KnownFile, ...] = ()
    unjudged: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    waiting: tuple[Change, ...] = ()


def list_shown(entries: Iterable[Entry], data_folders: Sequence[str]) -> Iterator[FolderFiles]:
    """The folders of a listing, without those that are hidden below these data folders."""
    return (files for files in folders_of(entries) if not is_hidden(files.prefix, data_folders))


def compare_listing(
    entries: Iterable[Entry],
    rows: Iterable[Sequence[Any]],
    left_out: str = "",
    everything: bool = False,
    *,
    data_folders: Sequence[str] = (),
) -> Compared:
    """Merge the listing with the ledger's rows (columns of `KnownFile`); both ordered by path, in bytes.

    `left_out`: the reason of files that the current patterns exclude; with the same content they count as unchanged.
    What is hidden below `data_folders` counts as not listed.
    `everything`: treat every listed TsFile as differing (send all again). Memory grows only with what differs.
    """
    out = Compared()
    known = _Rows(rows)
    for files in list_shown(entries, data_folders) if data_folders else folders_of(entries):
        out.prefixes.add(files.prefix)
        for row in known.rows_before(files.prefix + files.names[0]):
            _note_absent(row, out)
        if everything or not _all_unchanged(files, known, out):
            _compare_folder(files, known, left_out, everything, out)
    for row in known.remaining_rows():
        _note_absent(row, out)
    for path in (*out.differing, *(gone.path for gone in out.absent)):
        out.folders.add(path.rpartition("/")[0])
    return out


def set_outside(compared: Compared, data_folders: Sequence[str], entries: Iterable[Entry] = ()) -> None:
    """Move files below no data folder from `absent` to `outside`: they were not listed, so they have not vanished.

    Those that `entries` (the listing) have below a data folder have moved there with it: they go to `moved`."""
    below = tuple(folder.rstrip("/") + "/" for folder in data_folders)
    away = [row for row in compared.absent if not row.path.startswith(below)]
    if not away:
        return
    compared.absent = [row for row in compared.absent if row.path.startswith(below)]
    compared.folders -= {row.path.rpartition("/")[0] for row in away}
    former = {row.path: name for row in away if (name := parse_former_path(row.path, data_folders))}
    bases = {path.rpartition("/")[2] for path in former}
    paths = (files.prefix + name for files in list_shown(entries, data_folders) for name in files.names if name in bases)
    listed = {name[1:]: path for path in paths if (name := parse_source_path(path, data_folders))}
    moved = {path: listed[name[1:]] for path, name in former.items() if name[1:] in listed}
    compared.folders |= {path.rpartition("/")[0] for path in moved.values()}
    compared.moved = {moved[row.path]: row for row in away if row.path in moved}
    compared.outside = [row.path for row in away if row.path not in moved]


def classify_changes(
    compared: Compared, classified: Classified, odd: Sequence[str] = (), everything: bool = False
) -> Changes:
    """Classify each difference (second pass). `classified`: the listed files of the folders in which something differs.
    `odd`: paths that could not be listed."""
    changed = [
        c for f in classified.sealed if f.entry.path in compared.differing for c in _classify_change(f, compared, everything)
    ]
    moving = {c.file.entry.path for c in changed if c.kind is not Kind.MODS}
    sealed = {file.entry.path for file in classified.sealed}
    hidden = tuple(f"{path}/" if path else "" for path in odd)
    unseen = {row.path for row in compared.absent if row.path in odd or row.path.startswith(hidden)}
    open_again = [p for p, row in compared.differing.items() if row and row.state != "gone" and p not in sealed]
    on_the_way = [row.path for path, row in compared.moved.items() if path not in sealed]  # it may still be copied
    moved = [row for path, row in compared.moved.items() if path in sealed]
    return Changes(
        changed=tuple(changed),
        live=tuple(file for file in classified.sealed if file.entry.path not in moving),
        vanished=(*(row for row in compared.absent if row.path not in unseen), *moved),
        unjudged=tuple(sorted([*unseen, *open_again, *on_the_way, *compared.outside])),
        skipped=(*classified.skipped, *((path, OUTSIDE) for path in compared.outside)),
    )


class _Rows:
    """The ledger's rows with push-back: a folder's rows are popped at once, and given back if they do not match."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self._rows = iter(rows)
        self._back: deque[Sequence[Any]] = deque()

    def next_row(self) -> Sequence[Any] | None:
        return self._back.popleft() if self._back else next(self._rows, None)

    def take_rows(self, count: int) -> list[Sequence[Any]]:
        """Pop the next `count` rows, fewer at the end."""
        taken = [self._back.popleft() for _ in range(min(count, len(self._back)))]
        taken += islice(self._rows, count - len(taken))
        return taken

    def give_back(self, rows: Sequence[Sequence[Any]]) -> None:
        self._back.extendleft(reversed(rows))

    def rows_before(self, path: str) -> Iterator[Sequence[Any]]:
        """Pop the rows whose path sorts before `path`."""
        while (row := self.next_row()) is not None:
            if row[0] >= path:
                self.give_back([row])
                return
            yield row

    def remaining_rows(self) -> Iterator[Sequence[Any]]:
        while (row := self.next_row()) is not None:
            yield row


def _all_unchanged(files: FolderFiles, known: _Rows, out: Compared) -> bool:
    """Whether a folder holds exactly its acknowledged TsFiles, each with its `.resource`. If so, pops its rows."""
    tsfiles = files.names[::2]
    if files.names[1::2] != [name + ".resource" for name in tsfiles] or not all(files.sizes[1::2]):
        return False
    rows = known.take_rows(len(tsfiles))
    if len(rows) == len(tsfiles):
        paths, sizes, mtimes, inodes, mods, states, *_ = zip(*rows, strict=True)
        prefix = files.prefix
        if (
            states.count("acked") == len(states)
            and not any(mods)
            and sizes == tuple(files.sizes[::2])
            and mtimes == tuple(files.mtimes[::2])
            and _same_inodes(inodes, tuple(files.inodes[::2]))
            and paths == tuple([prefix + name for name in tsfiles])
        ):
            out.listed += len(rows)
            out.known += len(rows)
            return True
    known.give_back(rows)
    return False


def _same_inodes(known: Sequence[int], listed: Sequence[int]) -> bool:
    return known == listed or all(a == b or not a or not b for a, b in zip(known, listed, strict=True))


def _compare_folder(files: FolderFiles, known: _Rows, left_out: str, everything: bool, out: Compared) -> None:
    """Compare a folder's files one by one. Mods without their TsFile may belong to a TsFile that was renamed. A TsFile with
    such a stem always counts as differing."""
    renamed = {stem_of(files.prefix + name) for name in lone_mods(files.names)}
    for entry, mods, plain in _list_tsfiles(files.iter_entries(), out):
        path = entry.path
        for row in known.rows_before(path):
            _note_absent(row, out)
        out.listed += 1
        row_or_none = known.next_row()
        if row_or_none is None or row_or_none[0] != path:
            if row_or_none is not None:
                known.give_back([row_or_none])
            out.differing[path] = None
            continue
        if row_or_none[5] != "gone":
            out.known += 1
        unsure = everything or not plain or (renamed and stem_of(path) in renamed)
        if unsure or not _is_unchanged(entry, mods, row_or_none, left_out):
            out.differing[path] = KnownFile(*row_or_none)


def _list_tsfiles(entries: Iterable[Entry], out: Compared) -> Iterator[tuple[Entry, Entry | None, bool]]:
    """Yield every listed TsFile with its mods, if not empty, and whether it has only the usual companions.

    In byte order, all paths that begin with a TsFile's path follow it directly. The folder of any other file is marked for
    classification, so that the file is reported as skipped.
    """
    current: Entry | None = None
    prefix = "\0"
    mods: Entry | None = None
    resource, plain = False, True
    for entry in entries:
        path = entry.path
        if path.startswith(prefix):
            if path.endswith(RESOURCE):
                resource = entry.size != 0  # -1: a partial listing, which does not stat it
            elif path.endswith((".tsfile.mods", ".tsfile.mods2")):
                plain = (
                    plain and not mods and entry.size <= COMPANION_BYTES
                )  # two of them: the classifier knows which counts
                mods = entry if entry.size else None
            else:
                plain = False
            continue
        if current is not None:
            yield current, mods, plain and resource
            current, prefix = None, "\0"
        if path.endswith(SUFFIX):
            current, prefix = entry, path
            mods, resource, plain = None, False, True
        else:
            out.folders.add(path.rpartition("/")[0])
    if current is not None:
        yield current, mods, plain and resource


def _note_absent(row: Sequence[Any], out: Compared) -> None:
    if row[5] != "gone":
        out.known += 1
        out.absent.append(KnownFile(*row))


def _is_unchanged(entry: Entry, mods: Entry | None, row: Sequence[Any], left_out: str) -> bool:
    _, size, mtime, inode, row_mods, state, _, _, reason, mods_mtime = row
    if size != entry.size or mtime != entry.mtime or (inode and entry.inode and inode != entry.inode):
        return False
    if state == "acked":
        return bool(row_mods == (mods.size if mods else 0)) and not written_anew(mods, mods_mtime)
    return bool(left_out) and state == "waiting" and bool(reason == left_out)


def _classify_change(file: SealedFile, compared: Compared, everything: bool) -> Iterator[Change]:
    row = compared.differing[file.entry.path]
    mods_size = file.mods.size if file.mods else 0
    if row is None or row.state == "gone" or row.generation == 0:
        yield Change(Kind.NEW, file, row)
    elif everything or row.state == "waiting" or not same_content(file.entry, row) or mods_size < row.mods_size:
        yield Change(Kind.CONTENT, file, row)
    elif mods_size > row.mods_size or written_anew(file.mods, row.mods_mtime):
        yield Change(Kind.MODS, file, row)
    elif row.state == "held":
        yield Change(Kind.SAME, file, row)


def same_content(entry: AnyEntry, row: KnownFile) -> bool:
    """Whether size and whole-second mtime are equal, and the inode too if both sides have one (DESIGN §3)."""
    same_inode = not entry.inode or not row.inode or entry.inode == row.inode
    return entry.size == row.size and entry.mtime == row.mtime and same_inode


def written_anew(mods: AnyEntry | None, known: int) -> bool:
    """Whether mods have another mtime than the acknowledged ones (`known`, 0 if unknown). IoTDB appends to mods. With an
    unchanged length they hold other deletions, or were only touched."""
    return mods is not None and bool(mods.size) and bool(known) and mods.mtime != known
