"""Make hard links of the files that a run will send, so that a compaction cannot remove them meanwhile: all or none.

`<parent of the data folder>/<snapshot>/<link>/<run id>/<n>/<path below the data folder>`; n is the data folder's
number in the settings. The links are next to the data folder, not in it, because IoTDB scans it. They need the same disk.
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
    """Return the entries that are linked together: TsFile, `.resource`, mods."""
    return [file.entry, file.resource, *([file.mods] if file.mods else [])]


def fit_budget(files: Sequence[SealedFile], budget: int) -> Sequence[SealedFile]:
    """Return the files that a run may link within a budget of `budget` bytes; 0: all. Pure. The smallest come first:
    compactions merge those first, and most files are protected. The others are read in place."""
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
    """Link every member of every file, then list the links.

    Returns the TsFiles of which a member vanished or differs from what was listed. Returns None if the site cannot link
    (other disk, no such call, no right to write).

    CRASH WINDOW: links without a record; the rerun removes the run's folder before it selects again.
    """
    if not store.properties.hard_links:
        return None
    listed = [(file.entry.path, member) for file in files for member in members_of_file(file)]
    places = {member.path: folders.link_path(run_id, member.path) for _, member in listed}
    try:
        store.link(list(places.items()))
    except PermanentError:
        remove_snapshot(store, folders, run_id)
        return None
    links = {e.path: e for e in store.list_files(folders.run_folders(run_id)).entries}
    return find_changed(listed, {path: links.get(place) for path, place in places.items()})


def find_changed(listed: Iterable[tuple[str, Entry]], now: Mapping[str, Entry | None]) -> frozenset[str]:
    """Return the TsFiles with a missing or different member. A mods file may have grown: its first bytes are sent. Pure."""
    return frozenset(tsfile for tsfile, member in listed if not _is_intact(member, now[member.path]))


def unpin_files(store: Store, folders: SnapshotFolders, run_id: str, paths: Iterable[str]) -> None:
    """Remove a run's links of these files. Links that do not exist are ignored."""
    store.remove([folders.link_path(run_id, path) for path in paths])


def remove_snapshot(store: Store, folders: SnapshotFolders, run_id: str) -> None:
    """Remove all links of a run. May be repeated."""
    for folder in folders.run_folders(run_id):
        store.remove_tree(folder)


def list_other_runs(store: Store, folders: SnapshotFolders, keep: str) -> list[tuple[str, str]]:
    """Return (snapshot folder, run id) of every run except `keep` of a link of this name."""
    return [(f"{root}/{run}", run) for root in folders.root_folders() for run in store.list_folder(root) if run != keep]


def is_forsaken(run_id: str, at: float) -> bool:
    """Whether a run that is not in this ledger began so long ago that nothing can still be running it. Pure.

    `at`: seconds since 1970. An unknown run may be active: another Tidemark with a link of the same name to the same site
    has its own ledger. Only a run whose ledger was lost leaves its links for ever.
    """
    try:
        began = datetime.strptime(run_id.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return False  # not the folder of a run: do not remove it
    return at - began > FORSAKEN_DAYS * 86_400


def _bytes_of_members(file: SealedFile) -> int:
    return sum(member.size for member in members_of_file(file))


def _is_intact(member: Entry, link: Entry | None) -> bool:
    if link is None:
        return False
    if member.path.endswith((".mods", ".mods2")):
        return link.size >= member.size
    return link.size == member.size and link.mtime == member.mtime
