"""What lies in landings that no load has taken yet, as its manifests record it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tidemark.errors import CorruptionError
from tidemark.proof.bytes_check import Recorded
from tidemark.stores.landing import MANIFEST, landed_path, landing_folder
from tidemark.stores.landing_papers import decode_manifest

LOST = "it was whole, is not loaded, and is not at the receiver any more: the later ones of the site wait for it"


def landed_parts(root: Path, site_id: str, loaded: Collection[str]) -> list[tuple[Recorded, str, str]]:
    """(record, path of the TsFile, source path of the part) of every file in landings that are not in `loaded`.

    A manifest that cannot be read is passed over: the load rejects and names it.
    """
    found = []
    for paper in sorted((root / "landing" / site_id).glob(f"*/{MANIFEST}")):
        if paper.parent.name in loaded:
            continue
        try:
            manifest = decode_manifest(paper.read_bytes())
        except (CorruptionError, OSError):
            continue
        folder = landing_folder(site_id, paper.parent.name)
        for file in manifest.files:
            for part in (file.tsfile, file.resource, file.mods):
                if part is not None:
                    record = Recorded(f"{folder}/{landed_path(part.path)}", part.size, part.sha256)
                    found.append((record, file.path, part.path))
    return found
