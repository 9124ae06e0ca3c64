"""What lies in landings: in those that no load has taken yet, as their manifests record it; in those that are loaded, papers
that are not what was loaded and answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tidemark.errors import CorruptionError, PermissionDeniedError
from tidemark.formats.answered import altered, landing_sign, landings_of, read_manifest
from tidemark.formats.layout import landed_path, landing_folder
from tidemark.ledger.sql import Row
from tidemark.receiver.proved_files import Recorded

LOST = "it was whole, is not loaded, and is not at the receiver any more: the later ones of the site wait for it"


def landed_parts(
    root: Path, site_id: str, loaded: Collection[str], unread: dict[str, str]
) -> list[tuple[Recorded, str, str]]:
    """(record, path of the TsFile, source path of the part) of every file in landings that are not in `loaded`.

    `unread`: {path of a manifest that cannot be read: why}, filled here. PermanentError where they cannot be listed.
    """
    found = []
    for landing, path in landings_of(root, site_id):
        if landing in loaded:
            continue
        try:
            manifest = read_manifest(root, path)
        except (CorruptionError, PermissionDeniedError, OSError) as broken:
            unread[path] = str(broken)
            continue
        folder = landing_folder(site_id, landing)
        for file in manifest.files:
            for part in (file.tsfile, file.resource, file.mods):
                if part is not None:
                    record = Recorded(f"{folder}/{landed_path(part.path)}", part.size, part.sha256)
                    found.append((record, file.path, part.path))
    return found


def altered_papers(root: Path, site_id: str, loaded: Sequence[Row], trusting: bool) -> Iterator[tuple[str, str]]:
    """(landing, what is wrong) of `loaded` landings of a site whose papers somebody changed since. `loaded`: rows of
    `loaded_landings`; `trusting`: a landing that nobody touched is not read."""
    for row in loaded:
        sign = int(row["folder_mtime"])
        if not (trusting and sign and sign == landing_sign(root, site_id, row["landing"])):
            for what in altered(root, site_id, row["landing"], row["manifest_sha256"]):
                yield row["landing"], what
