"""Landings at a receiver: find them, read their manifests, say why one cannot be accepted.

A folder is a landing once `manifest.json` is in it; before that it is still arriving and is not touched. Manifests come
from elsewhere: nothing in one is believed before it is checked. Source: DESIGN §5, docs/formats/manifest.md.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tidemark.errors import CorruptionError, PermissionDeniedError
from tidemark.load.check import plain_file
from tidemark.stores.landing import MANIFEST, RECEIPT, Manifest, landing_folder
from tidemark.stores.landing_papers import decode_manifest

_LARGEST = 1 << 30  # bytes of a manifest: a million files take about 400 MB


@dataclass(frozen=True)
class Folder:
    """A landing folder with its manifest. `answered`: receipt.json is there; `bulky`: other files are there still."""

    site_id: str
    landing: str
    answered: bool
    bulky: bool

    @property
    def path(self) -> str:
        """Relative to the receiver's root."""
        return landing_folder(self.site_id, self.landing)


@dataclass(frozen=True)
class Paper:
    """A manifest as it lies there: its bytes' digest, and either the manifest or what is wrong with it."""

    folder: Folder
    sha256: str
    manifest: Manifest | None
    trouble: str = ""


def landing_folders(
    root: Path, site_id: str | None = None, finished: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> Iterator[Folder]:
    """The landings below a receiver's root, of one site or of all, by name; symlinks and arriving folders passed over.

    `finished`: (site, landing) → its folder's mtime (ns). While that is the same nobody has put anything in or taken
    anything out, and the folder is passed over without being opened: answered landings stay for ever, as papers.
    """
    for site in _folders(root / "landing"):
        if site_id is not None and site != site_id:
            continue
        for landing, mtime in _dated_folders(root / "landing" / site):
            if finished.get((site, landing)) == mtime:
                continue
            names = {entry.name: entry for entry in _entries(root / "landing" / site / landing)}
            if MANIFEST in names:
                yield Folder(site, landing, RECEIPT in names, bool(names.keys() - {MANIFEST, RECEIPT}))


def folder_mtime(root: Path, site_id: str, landing: str) -> int:
    """When anything was last put into a landing's folder or taken out of it, ns since 1970; 0 where there is none."""
    try:
        return Path(root, landing_folder(site_id, landing)).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def read_paper(root: Path, folder: Folder) -> Paper:
    """Read and check one manifest; what is wrong stands in the answer, since other landings go on."""
    sha256 = ""
    try:
        place = plain_file(root / folder.path, MANIFEST)
        if place is None:
            raise CorruptionError("manifest.json went away while it was read")
        if place.stat().st_size > _LARGEST:
            raise CorruptionError(f"manifest.json has {place.stat().st_size} bytes, more than any site's files take")
        data = place.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        return Paper(folder, sha256, check_sound(decode_manifest(data), folder))
    except (CorruptionError, PermissionDeniedError) as broken:
        return Paper(folder, sha256, None, broken.message)


def check_sound(manifest: Manifest, folder: Folder) -> Manifest:
    """The manifest itself when it fits its folder and its own rules; CorruptionError names the first that it breaks."""
    if manifest.site_id != folder.site_id or manifest.landing != folder.landing:
        raise CorruptionError(
            f"the manifest is that of landing {manifest.landing} of site {manifest.site_id}, it lies in the folder of "
            f"landing {folder.landing} of site {folder.site_id}"
        )
    if manifest.sequence < 1:
        raise CorruptionError(f"sequence {manifest.sequence}: landings count from 1")
    if manifest.time_unit not in ("ms", "us", "ns"):
        raise CorruptionError(f"time unit {manifest.time_unit!r}: it is one of ms, us, ns")
    if manifest.deletes not in ("keep", "apply"):
        raise CorruptionError(f"deletes {manifest.deletes!r}: it is keep or apply")
    if manifest.partition_interval_ms < 1:
        raise CorruptionError(f"partition interval {manifest.partition_interval_ms} ms: it is at least 1")
    twice = [path for path, times in Counter(f.path for f in manifest.files).items() if times > 1]
    if twice:
        raise CorruptionError(f"{twice[0]} stands in the manifest twice")
    for file in manifest.files:
        _check_file(manifest, file.path)
        if file.generation < 1:
            raise CorruptionError(f"{file.path}: generation {file.generation}: they count from 1")
        if file.tsfile is None and file.mods is None:
            raise CorruptionError(f"{file.path}: neither a TsFile nor mods travelled")
        if file.tsfile is not None and (file.tsfile.path != file.path or file.tsfile.sha256 != file.sha256):
            raise CorruptionError(f"{file.path}: the TsFile's path or digest is told in two ways")
        for part in (file.resource, file.mods):
            if part is not None and not part.path.startswith(file.path + "."):
                raise CorruptionError(f"{file.path}: {part.path} is no companion of it")
    return manifest


def _check_file(manifest: Manifest, path: str) -> None:
    if path in (MANIFEST, RECEIPT):
        raise CorruptionError(f"landing {manifest.landing}: a source path may not be {path}")


def _folders(place: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(place) if entry.is_dir(follow_symlinks=False))


def _dated_folders(place: Path) -> list[tuple[str, int]]:
    """(name, mtime in ns) of the folders in `place`, by name."""
    found = []
    for entry in _entries(place):
        if entry.is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError):  # somebody took it away just now
                found.append((entry.name, entry.stat(follow_symlinks=False).st_mtime_ns))
    return sorted(found)


def _entries(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as refused:
        raise PermissionDeniedError(f"cannot list {place}: {refused}", subject=str(place)) from refused
