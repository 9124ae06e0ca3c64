"""Make landings at a receiver the way a sender leaves them: files under their source path, then the manifest.

For tests of what a receiver does with them; the sender's own tests use the sync flow. Nothing here reads a ledger.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidemark.formats.landing import InventoryEntry, LandedFile, LandedSchema, Manifest, Part, Vanished, encode_document
from tidemark.formats.layout import MANIFEST, landed_path, landing_folder
from tidemark.tsfiles.companions.resource import read_extent

SITE_A = "0f8e1c52-7d1b-4a5e-9c1e-aaaaaaaaaaaa"
SITE_B = "1b2c3d4e-7d1b-4a5e-9c1e-bbbbbbbbbbbb"


@dataclass
class Sender:
    """A site that hands landings to `receiver`. Counts sequence and generations as a link does."""

    receiver: Path
    site_id: str = SITE_A
    name: str = "plant1"
    data: tuple[str, ...] = ("data/sequence", "data/unsequence")
    time_unit: str = "ms"
    deletes: str = "keep"
    sequence: int = 0
    previous: str | None = None
    generations: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    def land(
        self,
        files: Mapping[str, Mapping[str, bytes]] | None = None,
        *,
        schema: Sequence[tuple[str, int, int, bytes]] = (),
        change: Mapping[str, Any] | None = None,
        **papers: Any,
    ) -> Path:
        """One landing; returns its folder.

        `files`: source path → {"": TsFile bytes, ".resource": …, ".mods": …}; without "" the mods travel alone. `schema`:
        (path, epoch, start, bytes). `papers`: fields of the manifest (superseded, dropped, added, removed …); `change`:
        the same, put over what would be written, to make manifests that lie.
        """
        self.sequence += 1
        landing = f"20260101T000000-{self.sequence:06x}-1"
        folder = self.receiver / landing_folder(self.site_id, landing)
        landed = tuple(self._file(folder, path, parts) for path, parts in (files or {}).items())
        logs = []
        for path, epoch, start, data in schema:
            part = self._write(folder, f"_schema/{path}.{epoch}.{start}", data)
            logs.append(LandedSchema(path, epoch, start, part))
        manifest = Manifest(
            landing=landing,
            site_id=self.site_id,
            site_name=self.name,
            time_unit=self.time_unit,
            partition_interval_ms=604_800_000,
            data=self.data,
            link=self.name,
            run_id=landing.rpartition("-")[0],
            part=1,
            last=True,
            sequence=self.sequence,
            previous=self.previous,
            created=1767225600.0 + self.sequence,
            deletes=self.deletes,
            files=landed,
            schema=tuple(logs),
            **{"added": self._added(files or {}), "listed": time.time(), **papers},
        )
        self.previous = landing
        write_manifest(folder, replace(manifest, **(change or {})))
        return folder

    def drop(self, path: str, *covered_by: str) -> Vanished:
        """The paper that `path` is gone, covered by others or by none."""
        return Vanished(path, self.generations[path], tuple(covered_by))

    def _file(self, folder: Path, path: str, parts: Mapping[str, bytes]) -> LandedFile:
        self.generations[path] = self.generations.get(path, 0) + 1
        written = {end: self._write(folder, path + end, data) for end, data in parts.items()}
        if "" in written:
            self.digests[path] = written[""].sha256
        return LandedFile(
            path=path,
            generation=self.generations[path],
            mtime=1767225600,
            tsfile=written.get(""),
            resource=written.get(".resource"),
            mods=written.get(".mods") or written.get(".mods2"),
            sha256=self.digests[path],
            verified="source",
        )

    @staticmethod
    def _write(folder: Path, path: str, data: bytes) -> Part:
        place = folder / landed_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return Part(path, len(data), hashlib.sha256(data).hexdigest())

    @staticmethod
    def _added(files: Mapping[str, Mapping[str, bytes]]) -> tuple[InventoryEntry, ...]:
        return tuple(
            InventoryEntry(path, len(parts[""]), 1767225600, tuple(read_extent(parts[".resource"])))
            for path, parts in files.items()
            if "" in parts and ".resource" in parts
        )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (MANIFEST + ".part")
    part.write_bytes(encode_document(manifest))
    part.replace(folder / MANIFEST)


def companions(root: Path, path: str) -> dict[str, bytes]:
    """A TsFile of a folder with its companions, by the end of their names."""
    ends = ("", ".resource", ".mods", ".mods2")
    return {end: (root / (path + end)).read_bytes() for end in ends if (root / (path + end)).exists()}


def tsfiles_below(root: Path, data: Iterable[str]) -> list[str]:
    """Source paths of every TsFile below the data folders of a site."""
    return sorted(p.relative_to(root).as_posix() for folder in data for p in (root / folder).rglob("*.tsfile"))


def move_aside(landing: Path, elsewhere: Path) -> Path:
    """Take a landing away, as if it had not arrived; returns where it is now."""
    place = elsewhere / landing.name
    shutil.move(landing, place)
    return place
