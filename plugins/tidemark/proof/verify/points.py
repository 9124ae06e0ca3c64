"""Compare points: what the site's own files say, newest wins, with what readers of the catalog see.

The comparison is pure. It implements the rule independently of the catalog's reader, so a mistake in one of the two shows.
`SitePoints` reads the site's own points, device by device, from files that were verified against what was acknowledged.
Files of a remote site are fetched into a temporary folder first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.proof.verify.differences import SourceFile
from tidemark.stores.protocol import Store
from tidemark.tsfiles.companions.mods import NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.names import rank_of_source
from tidemark.tsfiles.points import column
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

Span = tuple[int, int]
ALL_TIMES: Span = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class Series:
    """The points of one series in time order, as canonical text with their type. `layers[i]`: index of the column that point
    i comes from."""

    times: NDArray[np.int64]
    texts: NDArray[np.object_]
    layers: NDArray[np.int64]


@dataclass(frozen=True)
class Origin:
    """Which files a column of the catalog shows. `free`: (first, last) times at which it may show a file that changed or
    vanished since the newest run; values there are not compared. `gone`: source path → times at which it may show a file
    that the receiver knows as vanished."""

    free: tuple[Span, ...] = ()
    gone: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)


LIVE = Origin()
"""A column of files that the site has, as they are there."""
FOREIGN = Origin((ALL_TIMES,))
"""A column of another site that has, or had, the device."""


@dataclass(frozen=True)
class Compared:
    """`trouble`: '' where the catalog shows what the site has. `kept`: path of a vanished file → points only from it."""

    trouble: str
    kept: Mapping[str, int] = field(default_factory=dict)


def newest_wins(columns: Sequence[Column]) -> Series:
    """Overlay columns of one series, lowest rank first: the last of equal times wins."""
    filled = [(number, c) for number, c in enumerate(columns) if len(c)]
    if not filled:
        return Series(np.empty(0, np.int64), np.empty(0, np.object_), np.empty(0, np.int64))
    texts = np.empty(sum(len(c) for _, c in filled), np.object_)
    texts[:] = [f"{c.type.name} {text}" for _, c in filled for text in column.format_values(c.type, c.values)]
    times = np.concatenate([c.times for _, c in filled])
    layers = np.repeat([number for number, _ in filled], [len(c) for _, c in filled])
    backwards = len(times) - 1
    unique, first = np.unique(times[::-1], return_index=True)
    return Series(unique, texts[backwards - first], layers[backwards - first])


def compare_columns(source: Sequence[Column], catalog: Sequence[Column], origins: Sequence[Origin] = ()) -> Compared:
    """Compare what the site has with what readers see. Columns lowest rank first. `origins`: those of the `catalog` columns
    (none: all `LIVE`)."""
    if _is_identical(source, catalog):
        return Compared("")
    mine, theirs = newest_wins(source), newest_wins(catalog)
    excused = np.zeros(len(theirs.times), np.bool_)
    for number, origin in enumerate(origins):
        excused |= (theirs.layers == number) & _mask_within(theirs.times, origin.free)
    times, at_mine, at_theirs = np.intersect1d(mine.times, theirs.times, assume_unique=True, return_indices=True)
    troubles = []
    missing = np.setdiff1d(mine.times, theirs.times, assume_unique=True)
    if len(missing):
        troubles.append(f"{len(missing)} points are missing in the catalog, the first at {missing[0]}")
    alone = ~np.isin(theirs.times, mine.times, assume_unique=True) & ~excused
    kept: Counter[str] = Counter()
    for number, origin in enumerate(origins):
        for path, spans in origin.gone.items():
            found = alone & (theirs.layers == number) & _mask_within(theirs.times, spans)
            kept[path] += int(found.sum())
            alone &= ~found
    extra = theirs.times[alone]
    if len(extra):
        troubles.append(f"{len(extra)} points of the catalog are not at the site, the first at {extra[0]}")
    other = np.flatnonzero((mine.texts[at_mine] != theirs.texts[at_theirs]) & ~excused[at_theirs])
    if len(other):
        at = other[0]
        values = f"{mine.texts[at_mine[at]]!r} at the site, {theirs.texts[at_theirs[at]]!r} in the catalog"
        troubles.append(f"{len(other)} points differ, the first at {times[at]}: {values}")
    return Compared("; ".join(troubles), {path: count for path, count in kept.items() if count})


def _mask_within(times: NDArray[np.int64], spans: Sequence[Span]) -> NDArray[np.bool_]:
    found = np.zeros(len(times), np.bool_)
    for first, last in spans:
        found |= (times >= first) & (times <= last)
    return found


def _is_identical(source: Sequence[Column], catalog: Sequence[Column]) -> bool:
    """Compare two single columns of one type quickly, bit for bit."""
    if len(source) != 1 or len(catalog) != 1 or source[0].type is not catalog[0].type:
        return False
    mine, theirs = source[0], catalog[0]
    if not np.array_equal(mine.times, theirs.times):
        return False
    if mine.values.dtype == np.object_:
        return bool(np.array_equal(mine.values, theirs.values))
    return mine.values.tobytes() == theirs.values.tobytes()


_OPEN_FILES = 32
_BLOCK = 4 << 20
_Opened = tuple[TsFile, Deletions]


class SitePoints:
    """Reads a site's files; a context manager. `not_read`: file or series → why it could not be compared."""

    def __init__(self, store: Store, files: Mapping[str, SourceFile], scratch: Path) -> None:
        self._store = store
        self._files = files
        self._scratch = scratch
        self._local = Path(store.url.removeprefix("file://")) if store.url.startswith("file://") else None
        self._open: OrderedDict[str, _Opened] = OrderedDict()
        self._by_device: dict[str, list[str]] = defaultdict(list)
        self.not_read: dict[str, str] = {}

    def __enter__(self) -> SitePoints:
        for path in sorted(self._files, key=lambda p: rank_of_source(self._files[p].name)):
            if (opened := self._open_file(path)) is not None:
                for device in opened[0].list_devices():
                    self._by_device[device].append(path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file, _ in self._open.values():
            file.close()

    def devices(self) -> Sequence[str]:
        return sorted(self._by_device)

    def paths(self, device: str) -> Sequence[str]:
        """Return the files that hold a device, lowest rank first."""
        return self._by_device[device]

    def read_columns(self, device: str) -> Mapping[str, list[Column]]:
        """Return measurement → its columns, deletions applied, lowest rank first."""
        found: dict[str, list[Column]] = defaultdict(list)
        for path in self._by_device[device]:
            opened = self._open_file(path)
            if opened is None:
                continue
            for measurement in opened[0].list_measurements(device):
                try:
                    found[measurement].append(opened[0].read_column(device, measurement, deletions=opened[1]))
                except UnsupportedError as broken:
                    self.not_read[f"{device}.{measurement}"] = broken.message
                except CorruptionError as broken:
                    self.not_read[f"{path} {device}.{measurement}"] = broken.message
        return found

    def _open_file(self, path: str) -> _Opened | None:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        file = self._files[path]
        try:
            opened = TsFile(self._fetch_file(path, file.size), file.name.database), self._read_deletions(file)
        except CorruptionError as broken:
            self.not_read[path] = broken.message
            return None
        self._open[path] = opened
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1][0].close()
        return opened

    def _read_deletions(self, file: SourceFile) -> Deletions:
        if not file.mods_size:
            return NO_DELETIONS
        if file.mods_size > MOST_MODS:
            raise CorruptionError(f"{file.mods_path} has {file.mods_size} bytes of deletions; at most {MOST_MODS} are read")
        form: Literal["mods", "mods2"] = "mods2" if file.mods_path.endswith(".mods2") else "mods"
        return parse_mods(self._store.read(file.mods_path, 0, file.mods_size), form, file.mods_path)

    def _fetch_file(self, path: str, size: int) -> Path | UntrustedFile:
        if self._local is not None:
            return UntrustedFile(str(self._local), path)
        copy = self._scratch / path.lstrip("/")
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("wb") as target:
                for piece in self._store.read_chunks(path, 0, size, _BLOCK):
                    target.write(piece)
        return copy
