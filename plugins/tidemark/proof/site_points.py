"""The site's own points, device by device, from files that were verified against what was acknowledged.

Files of a remote site are fetched into a temporary folder first.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from tidemark.errors import CorruptionError, UnsupportedError
from tidemark.proof.source_check import SourceFile
from tidemark.stores.protocol import Store
from tidemark.tsfiles.companions.mods import NO_DELETIONS, Deletions, parse_mods
from tidemark.tsfiles.names import rank
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.reader import TsFile
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

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
        for path in sorted(self._files, key=lambda p: rank(self._files[p].name)):
            if (opened := self._opened(path)) is not None:
                for device in opened[0].devices():
                    self._by_device[device].append(path)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file, _ in self._open.values():
            file.close()

    def devices(self) -> Sequence[str]:
        return sorted(self._by_device)

    def paths(self, device: str) -> Sequence[str]:
        """The files that hold a device, lowest rank first."""
        return self._by_device[device]

    def columns(self, device: str) -> Mapping[str, list[Column]]:
        """Measurement → its columns, deletions applied, lowest rank first."""
        found: dict[str, list[Column]] = defaultdict(list)
        for path in self._by_device[device]:
            opened = self._opened(path)
            if opened is None:
                continue
            for measurement in opened[0].measurements(device):
                try:
                    found[measurement].append(opened[0].column(device, measurement, deletions=opened[1]))
                except UnsupportedError as broken:
                    self.not_read[f"{device}.{measurement}"] = broken.message
                except CorruptionError as broken:
                    self.not_read[f"{path} {device}.{measurement}"] = broken.message
        return found

    def _opened(self, path: str) -> _Opened | None:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        file = self._files[path]
        try:
            opened = TsFile(self._fetched(path, file.size), file.name.database), self._deletions(file)
        except CorruptionError as broken:
            self.not_read[path] = broken.message
            return None
        self._open[path] = opened
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)[1][0].close()
        return opened

    def _deletions(self, file: SourceFile) -> Deletions:
        if not file.mods_size:
            return NO_DELETIONS
        if file.mods_size > MOST_MODS:
            raise CorruptionError(f"{file.mods_path} has {file.mods_size} bytes of deletions; at most {MOST_MODS} are read")
        form: Literal["mods", "mods2"] = "mods2" if file.mods_path.endswith(".mods2") else "mods"
        return parse_mods(self._store.read(file.mods_path, 0, file.mods_size), form, file.mods_path)

    def _fetched(self, path: str, size: int) -> Path | UntrustedFile:
        if self._local is not None:
            return UntrustedFile(str(self._local), path)
        copy = self._scratch / path.lstrip("/")
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("wb") as target:
                for piece in self._store.chunks(path, 0, size, _BLOCK):
                    target.write(piece)
        return copy
