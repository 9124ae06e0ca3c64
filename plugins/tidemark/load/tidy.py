"""Remove what nobody needs any more: a landing's bytes once it is answered, refused and held bytes once they are settled.

Only after the record says so; a removal that a crash cut short is made by the next load. Manifest and receipt stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tidemark.formats.answered import readable_name
from tidemark.formats.landing import LandedFile, Manifest, decode_entry
from tidemark.formats.layout import MANIFEST, RECEIPT, landed_path
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Lease, check_in
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.load.check import parts
from tidemark.load.manifests import Folder
from tidemark.stores.agent.disk import RAISED
from tidemark.stores.listing import folders_of, glance
from tidemark.stores.protocol import Store
from tidemark.tsfiles.names import RESOURCE

_LEFTOVER = (".part", ".part.blocks", ".tmp")  # of files that were left out of the landing, of papers that got no name


def clean_landing(store: Store, folder: Folder, manifest: Manifest) -> None:
    """Remove the files that the manifest names, and leftovers of transfers; what it does not name stays."""
    named = _named(manifest)
    found = glance(store, [folder.path], RESOURCE)
    start = len(folder.path) + 1
    paths = [files.prefix + name for files in folders_of(found.entries) for name in files.names]
    doomed = {path for path in paths if path[start:] in named or _is_leftover(path[start:])}
    kept = [path for path in paths if path not in doomed] + [path for path, _ in found.odd]
    for name in store.list_folder(folder.path):
        place = f"{folder.path}/{name}"
        if any(path == place or path.startswith(place + "/") for path in kept):
            store.remove(sorted(path for path in doomed if path == place or path.startswith(place + "/")))
        elif name not in (MANIFEST, RECEIPT):
            store.remove_tree(place)


def unnamed_files(root: Path, folder: Folder, manifest: Manifest) -> list[str]:
    """Files in the landing that its manifest does not name, relative to it; they are left where they are."""
    named = _named(manifest) | {MANIFEST, RECEIPT}
    found = _files_below(str(root / folder.path))
    return sorted(n for n in found if n not in named and not _is_leftover(n))


def _is_leftover(path: str) -> bool:
    """Of a transfer, or of a removal that was cut short: its files lie under another name by then."""
    return path.endswith(_LEFTOVER) or any(name.startswith(RAISED) for name in path.split("/"))


def _files_below(place: str) -> Iterator[str]:
    """Files and symlinks, relative to `place`; symlinks are not followed."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(f"{place}/{above}") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{above}{entry.name}/")
                elif entry.is_symlink() or entry.is_file():
                    yield readable_name(above + entry.name)


def sweep_waiting(ledger: Ledger, store: Store, receiver: str, lease: Lease) -> None:
    """Remove bytes of refused files that were replayed and of held files that were released, dropped or superseded."""
    with ledger.read() as connection:
        refused = refusal_rows.refusals_to_sweep(connection, receiver)
        held = refusal_rows.quarantine_to_sweep(connection, receiver)
    if not refused and not held:
        return
    # CRASH WINDOW: bytes gone, the row still names them: the next load removes nothing and clears the row.
    places = [(row.location, row.entry) for row in refused] + [(row.location, row.entry) for row in held]
    store.remove([path for location, entry in places for path in waiting_files(location, entry)])
    with ledger.write() as connection:
        check_in(connection, lease)
        refusal_rows.forget_refused_bytes(connection, [row.refusal_id for row in refused])
        refusal_rows.forget_held_bytes(connection, [row.quarantine_id for row in held])


def waiting_files(location: str, entry: str) -> list[str]:
    """All files that wait with one refused or held TsFile, relative to the receiver's root."""
    file, _ = decode_entry(entry)
    folder = waiting_folder(location, file)
    return [f"{folder}/{landed_path(part.path)}" for part in parts(file)]


def waiting_folder(location: str, file: LandedFile) -> str:
    """The folder below which a refused or held file lies under its source path."""
    return location.removesuffix("/" + landed_path(file.path))


def _named(manifest: Manifest) -> set[str]:
    files = {landed_path(part.path) for file in manifest.files for part in parts(file)}
    return files | {landed_path(log.part.path) for log in manifest.schema}
