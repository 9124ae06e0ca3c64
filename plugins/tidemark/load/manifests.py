"""Landings at a receiver: find them, read their manifests, say why one cannot be accepted.

A folder is a landing once `manifest.json` is in it; before that it is still arriving and is not touched. Manifests come
from elsewhere: nothing in one is believed before it is checked. Source: DESIGN §5, docs/formats/manifest.md.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tidemark.errors import CorruptionError, PermanentError, PermissionDeniedError
from tidemark.formats.answered import folder_names, landing_sign
from tidemark.formats.landing import Manifest, check_place, decode_manifest, named_paths
from tidemark.formats.layout import MANIFEST, RECEIPT, landing_folder
from tidemark.ledger.receiver.landings import SiteRow
from tidemark.tsfiles.sealed import was_mods_of
from tidemark.untrusted_files import MOST_PAPER, UntrustedFile

_MOST_BYTES = 1 << 60
_LONGEST_NAME = 200  # bytes of a landing's name: its papers are kept under it with something behind


@dataclass(frozen=True)
class Folder:
    """A landing folder with its manifest. `answered`: a receipt.json is there, whoever wrote it; `bulky`: other files are
    there still."""

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
    """The landings below a receiver's root, of one site or of all, by name; symlinks and arriving folders passed over. One
    that nobody may look into is there, and its manifest cannot be read; a site's folder of that kind is `odd_landings`'.

    `finished`: (site, landing) → its sign. While that is the same nobody has touched it, and the folder is passed over
    without being opened: answered landings stay for ever, as papers.
    """
    for site in folder_names(root / "landing")[0]:
        if site_id is not None and site != site_id:
            continue
        for landing in _names(root, site)[0]:
            sign = finished.get((site, landing), 0)
            if sign and sign == landing_sign(root, site, landing):
                continue
            names = _held(root / "landing" / site / landing)
            if names is None:
                yield Folder(site, landing, answered=False, bulky=False)
            elif MANIFEST in names:
                yield Folder(site, landing, RECEIPT in names, bool(names - {MANIFEST, RECEIPT}))


def odd_landings(root: Path, site_id: str | None = None) -> list[tuple[str, str]]:
    """Folders below `landing/` that no landing can be told of, relative to the root and readably, and why: those whose name
    is not UTF-8, those of sites that cannot be listed."""
    sites, odd = folder_names(root / "landing")
    found = [(f"landing/{name}", _NOT_TEXT) for name in odd if site_id is None]
    for site in sites if site_id is None else [site_id]:
        _, odd, closed = _names(root, site)
        found += [(f"landing/{site}/{name}", _NOT_TEXT) for name in odd]
        found += [(f"landing/{site}", closed)] if closed else []
    return found


_NOT_TEXT = "its name is not UTF-8: it is passed over; rename or remove it"


def _names(root: Path, site: str) -> tuple[list[str], list[str], str]:
    """Of a site's folder: landings, names that are not UTF-8, and why it cannot be listed."""
    try:
        return *folder_names(root / "landing" / site), ""
    except PermanentError as closed:
        return [], [], closed.message


def read_paper(root: Path, folder: Folder, path: str = "") -> Paper:
    """Read and check one manifest, or the one that is kept at `path` below the root; what is wrong stands in the answer,
    since other landings go on."""
    sha256 = ""
    try:
        data = UntrustedFile(str(root), path or f"{folder.path}/{MANIFEST}").read(MOST_PAPER)
        sha256 = hashlib.sha256(data).hexdigest()
        return Paper(folder, sha256, check_sound(decode_manifest(data), folder))
    except FileNotFoundError:
        return Paper(folder, sha256, None, "manifest.json went away while it was read")
    except (CorruptionError, PermissionDeniedError) as broken:
        return Paper(folder, sha256, None, broken.message)


def check_sound(manifest: Manifest, folder: Folder) -> Manifest:
    """The manifest itself when it fits its folder and its own rules; CorruptionError names the first that it breaks."""
    if manifest.site_id != folder.site_id or manifest.landing != folder.landing:
        raise CorruptionError(
            f"the manifest is that of landing {manifest.landing} of site {manifest.site_id}, it lies in the folder of "
            f"landing {folder.landing} of site {folder.site_id}"
        )
    if len(manifest.landing.encode()) > _LONGEST_NAME:
        raise CorruptionError(f"landing {manifest.landing[:40]}…: its name is longer than {_LONGEST_NAME} bytes")
    if manifest.sequence < 1:
        raise CorruptionError(f"sequence {manifest.sequence}: landings count from 1")
    if manifest.time_unit not in ("ms", "us", "ns"):
        raise CorruptionError(f"time unit {manifest.time_unit!r}: it is one of ms, us, ns")
    if manifest.deletes not in ("keep", "apply"):
        raise CorruptionError(f"deletes {manifest.deletes!r}: it is keep or apply")
    if manifest.partition_interval_ms < 1:
        raise CorruptionError(f"partition interval {manifest.partition_interval_ms} ms: it is at least 1")
    _check_numbers(manifest)
    for path in named_paths(manifest):
        check_place(path)
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
            renamed = part is file.mods and part is not None and was_mods_of(part.path, file.path)
            if part is not None and not renamed and not part.path.startswith(file.path + "."):
                raise CorruptionError(f"{file.path}: {part.path} is no companion of it")
    return manifest


def unlike(paper: Paper, sites: Mapping[str, SiteRow]) -> str:
    """What keeps a site's landing out, by what is known of this site and of `sites`, by id; '' where nothing does.

    A site's time unit may not change: its times would be read wrongly. The names of its data files begin with the first
    characters of its id: another site of the same ones would write over them.
    """
    manifest, site = paper.manifest, sites.get(paper.folder.site_id)
    if manifest is not None and site is not None and site.time_unit != manifest.time_unit:
        return f"the site's time unit was {site.time_unit} and is {manifest.time_unit} now; set time_unit back at the sender"
    start = paper.folder.site_id[:8]
    other = next((s for s in sites.values() if s.site_id[:8] == start and site is None), None)
    if other is not None:
        return f"the site's id begins with {start} as that of site {other.name} ({other.site_id}) does: give it another id"
    return ""


def in_batches(papers: Sequence[Paper], most: int) -> Iterator[list[Paper]]:
    """Following landings together, until they have `most` files."""
    batch: list[Paper] = []
    files = 0
    for paper in papers:
        batch.append(paper)
        files += len(paper.manifest.files) if paper.manifest else 0
        if files >= most:
            yield batch
            batch, files = [], 0
    if batch:
        yield batch


def _check_numbers(manifest: Manifest) -> None:
    """Together they must fit where one does."""
    sizes = [part.size for file in manifest.files for part in (file.tsfile, file.resource, file.mods) if part]
    sizes += [log.part.size for log in manifest.schema] + [entry.size for entry in manifest.added]
    if min(sizes, default=0) < 0 or sum(sizes) >= _MOST_BYTES:
        raise CorruptionError(f"sizes from {min(sizes)} to {max(sizes)} bytes: no disk has them")
    starts = [end for log in manifest.schema for end in (log.start, log.epoch)]
    if min(starts, default=0) < 0 or max(starts, default=0) >= _MOST_BYTES:
        raise CorruptionError("a schema log that begins nowhere on a disk")


def _check_file(manifest: Manifest, path: str) -> None:
    if path in (MANIFEST, RECEIPT):
        raise CorruptionError(f"landing {manifest.landing}: a source path may not be {path}")


def _held(place: Path) -> set[str] | None:
    """What lies in a landing by name; None where that cannot be listed."""
    try:
        with os.scandir(place) as entries:
            return {entry.name for entry in entries}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None
