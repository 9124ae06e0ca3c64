"""Hard links of what a run will send, so that no compaction takes a file away under it: all of them or none.

`<parent of the data folder>/<snapshot>/<link>/<run id>/<n>/<path below the data folder>`, n being the data folder's
number in the settings. Beside the data folder, not in it: IoTDB scans that one. Same disk, else links cannot be.
Source: seed 000 "File selection", DESIGN §1 "snapshot", research/iotdb.md §1.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from tidemark.errors import PermanentError
from tidemark.stores.protocol import Store
from tidemark.sync.session import SnapshotFolders
from tidemark.tsfiles.sealed import Entry, SealedFile

FORSAKEN_DAYS = 30


def members_of_file(file: SealedFile) -> list[Entry]:
    """The entries that are linked together: TsFile, `.resource`, mods."""
    return [file.entry, file.resource, *([file.mods] if file.mods else [])]


def fit_budget(files: Sequence[SealedFile], budget: int) -> Sequence[SealedFile]:
    """The files that a run may link where `budget` bytes may stay on the disk for it; 0: all. Pure.

    The smallest first: compactions take those first, and the most files are safe. The others are read in place.
    """
    if not budget:
        return files
    left, kept = budget, []
    for file in sorted(files, key=_bytes_of_members):
        left -= _bytes_of_members(file)
        if left < 0:
            break
        kept.append(file)
    return kept


def pin_files(store: Store, folders: SnapshotFolders, run_id: str, files: Sequence[SealedFile]) -> frozenset[str] | None:
    """Link every member of every file, then look at the links. Returns the TsFiles of which a member is gone or is not
    what was listed any more; None where the site cannot link (other disk, no such call, no right to write).

    CRASH WINDOW: links without a record; the rerun removes the run's folder before it selects again.
    """
    if not store.properties.hard_links:
        return None
    listed = [(file.entry.path, member) for file in files for member in members_of_file(file)]
    places = {member.path: folders.link_path(run_id, member.path) for _, member in listed}
    try:
        store.link(list(places.items()))
    except PermanentError:  # permission, another disk, a file system without links: read in place
        remove_snapshot(store, folders, run_id)
        return None
    links = {e.path: e for e in store.list_files(folders.run_folders(run_id)).entries}
    return find_changed(listed, {path: links.get(place) for path, place in places.items()})


def find_changed(listed: Iterable[tuple[str, Entry]], now: Mapping[str, Entry | None]) -> frozenset[str]:
    """The TsFiles of which a member is missing or differs. A mods file may have grown: its first bytes are sent. Pure."""
    return frozenset(tsfile for tsfile, member in listed if not _is_intact(member, now[member.path]))


def unpin_files(store: Store, folders: SnapshotFolders, run_id: str, paths: Iterable[str]) -> None:
    """Remove a run's links of these files; those that are gone are success."""
    store.remove([folders.link_path(run_id, path) for path in paths])


def remove_snapshot(store: Store, folders: SnapshotFolders, run_id: str) -> None:
    """Remove a run's links; done again it is success."""
    for folder in folders.run_folders(run_id):
        store.remove_tree(folder)


def list_other_runs(store: Store, folders: SnapshotFolders, keep: str) -> list[tuple[str, str]]:
    """(snapshot folder, run id) of every other run of a link of this name than `keep`."""
    return [(f"{root}/{run}", run) for root in folders.root_folders() for run in store.list_folder(root) if run != keep]


def is_forsaken(run_id: str, at: float) -> bool:
    """Whether a run that this ledger never knew began so long ago that nobody can be at it still. Pure.

    `at`: seconds since 1970. An unknown run may be at work: another Tidemark with a link of the same name to the same
    site has a ledger of its own. Only one whose ledger was lost leaves links for good.
    """
    try:
        began = datetime.strptime(run_id.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return False  # no run's folder: not ours to remove
    return at - began > FORSAKEN_DAYS * 86_400


def _bytes_of_members(file: SealedFile) -> int:
    return sum(member.size for member in members_of_file(file))


def _is_intact(member: Entry, link: Entry | None) -> bool:
    if link is None:
        return False
    if member.path.endswith((".mods", ".mods2")):
        return link.size >= member.size
    return link.size == member.size and link.mtime == member.mtime
