"""Stage files for an IoTDB: check them once more, give them names that the server may read, remove them afterwards.

IoTDB reports a damaged head only while it inserts the points, and damaged pages not at all (research/iotdb-real.md §5). So a
file is staged only if it is, byte for byte, what the load checked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tidemark.errors import CorruptionError, NotFoundError, RetryableError, SourceVanishedError
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.receiver.load.check import mods_form, sha256_of
from tidemark.stores.protocol import Store
from tidemark.tsfiles.devices import is_table, table_segments
from tidemark.tsfiles.points.column import Column
from tidemark.tsfiles.write.writer import TsFileWriter, device_order, tree_segments
from tidemark.untrusted_files import MOST_MODS, UntrustedFile

_BLOCK = 4 << 20
FOLDER = "staging/iotdb"


def require_unchanged(root: Path, file: CatalogFile) -> None:
    """Raise CorruptionError if the bytes are not those of the catalog, SourceVanishedError if they are missing."""
    wanted = [(file.location, file.sha256, file.size)]
    wanted += [(file.mods_location, file.mods_sha256, MOST_MODS)] if file.mods_location else []
    for location, digest, most in wanted:
        try:
            found = sha256_of(UntrustedFile(str(root), location), most)
        except FileNotFoundError:
            hint = "./tidemark verify --repair"
            raise SourceVanishedError(f"{location} is gone from the receiver", hint=hint, subject=file.path) from None
        except OSError as broken:
            raise RetryableError(f"cannot read {location}: {broken}", subject=file.path) from broken
        if found != digest:
            raise CorruptionError(
                f"{location} has SHA-256 {found[:16]}…, the ledger says {digest[:16]}…: it is not handed over",
                hint="./tidemark verify --repair",
                subject=file.path,
            )


class Stage:
    """The folder below the receiver's root from which the server reads the files of one load."""

    def __init__(self, store: Store, root: Path, server: str, copies: bool, clock: Callable[[], float] = time.time) -> None:
        """`copies`: the server removes files that it loads, so it gets copies, never links to files of the catalog."""
        self._store = store
        self._root = root
        self._copies = copies
        self._clock = clock
        self._version = 0
        self._placed: dict[int, str] = {}
        self.folder = f"{FOLDER}/{hashlib.sha256(server.encode()).hexdigest()[:12]}"

    def clear_folder(self) -> None:
        """Remove all staged files, also those that a crashed load left."""
        self._store.remove_tree(self.folder)

    def place_files(self, files: Sequence[CatalogFile]) -> str:
        """Stage these files under their own names, with their deletions. Return the folder as the server names it.

        A TsFile is a hard link: nobody writes into one. Deletions are copied: a server appends to them.
        """
        names = {file.file_id: f"{self.folder}/{number}/{self._name_for_server(file)}" for number, file in enumerate(files)}
        self._placed = names
        links = [(file.location, names[file.file_id]) for file in files]
        if self._store.properties.hard_links and not self._copies:
            gone = self._store.link(links)
            if gone:
                raise SourceVanishedError(f"{gone[0]} is gone from the receiver", hint="./tidemark verify", subject=gone[0])
        else:
            for file in files:
                self._copy_file(file.location, names[file.file_id], file.size)
        for file in files:
            if file.mods_location:
                end = mods_form(file.mods_location)
                self._store.publish(f"{names[file.file_id]}.{end}", self._store.read(file.mods_location))
        return str(self._root / self.folder)

    def find_left_files(self, files: Sequence[CatalogFile]) -> list[CatalogFile]:
        """Return the files staged last that a server that removes loaded files did not load."""
        there = self._store.stat_many([self._placed[file.file_id] for file in files])
        return [file for file, entry in zip(files, there, strict=True) if entry is not None]

    def write_points(
        self, devices: Mapping[str, Mapping[str, Column]], aligned: Mapping[str, bool], tags: Mapping[str, Sequence[str]]
    ) -> str:
        """Write a new TsFile of these points. Return its path as the server names it. `tags`: table → its tag columns."""
        self._store.make_folders([f"{self.folder}/points"])
        path = self._root / self.folder / "points" / "1-1-0-0.tsfile"
        segments = {d: table_segments(d) if is_table([d]) else tree_segments(d) for d in devices}
        tables = {str(segments[d][0]) for d in devices if is_table([d])}
        with TsFileWriter(path, {table: tags[table] for table in sorted(tables)}) as writer:
            for device in sorted(devices, key=lambda d: device_order(segments[d])):
                writer.write_device(segments[device], devices[device], aligned.get(device, False))
        return str(path)

    def _copy_file(self, source: str, target: str, size: int) -> None:
        self._store.remove([target])
        try:
            self._store.write_part(target, 0, self._store.read_chunks(source, 0, size, _BLOCK))
        except NotFoundError as gone:
            raise SourceVanishedError(
                f"{source} is gone from the receiver", hint="./tidemark verify", subject=source
            ) from gone

    def _name_for_server(self, file: CatalogFile) -> str:
        """Return the file's name at its site; for a merged file its name in the catalog. A server that removes files keeps
        their names, silently skips a name that it has, and lets the higher version win: it gets rising version numbers."""
        if not self._copies:
            return (file.path or file.location).rpartition("/")[2]
        self._version = max(self._version + 1, int(self._clock() * 1000))
        return f"{self._version}-{self._version}-0-0.tsfile"
