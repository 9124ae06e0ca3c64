"""A data node's folder: its owner, the newest table, the schema of its slots, snapshots, and the files themselves.

Files lie below `data/` at the same locations as at the receiver. Tidemark's own files lie below `.tidemark/`. No process
runs at a node: callers open its store and use this module. Every call may be repeated, by another process and after a crash,
with the same result. Source: seed 001 "Data migration"; docs/decisions/0015; docs/formats/node-folder.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote

from tidemark.cluster.nodes.formats import KeptDocument, NodeClaim, decode_kept, decode_node, encode_kept, encode_node
from tidemark.errors import (
    CorruptionError,
    DiskAwayError,
    HostKeyError,
    PermanentError,
    SourceVanishedError,
    StaleEpochError,
    TidemarkError,
)
from tidemark.stores.protocol import Range, Store, check_path, read_records, remove_half_written
from tidemark.untrusted_files import MOST_MODS

DATA = "data"
OWN = ".tidemark"
NODE = ".tidemark/node.json"
TABLES = ".tidemark/table"
SCHEMAS = ".tidemark/schema"
SNAPSHOTS = ".tidemark/snapshot"
LOGS = ".tidemark/log"
QUARANTINE = ".tidemark/quarantine"

_SCHEMA = ".schema"
_KEPT_TABLES = 2  # the previous one too: the rollback of a change removes the newest
MEND = "./tidemark cluster check --repair"

_MOST = 1 << 27  # bytes of one document: the schema of a million series
_EPOCH = re.compile("[1-9][0-9]{0,17}")
_LONGEST = 200  # bytes of a file's name; file systems allow 255


@dataclass(frozen=True)
class Snapshot:
    """Files that stay readable until `drop_snapshot`. `paths`: location → where it is read, relative to the store.

    `linked`: False if the node has no hard links, or no room for them. The files are then read in place. If one is removed
    meanwhile, the reader gets SourceVanishedError and the caller lists anew.
    """

    label: str
    paths: Mapping[str, str]
    linked: bool


class NodeFolder:
    """The folder of node `name` in an open store. Errors of the store pass through."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name

    # the owner

    def read_owner(self) -> NodeClaim | None:
        """Return the claim on this folder; None if it is not claimed. CorruptionError, SchemaTooNewError."""
        data = self._read_file(NODE)
        return None if data is None else decode_node(data, self._url_of(NODE))

    def claim_folder(self, cluster: str) -> None:
        """Claim the folder for this node of that cluster. A second call changes nothing.

        PermanentError if it belongs to another cluster or another node, or has files and no claim (a receiver's own folder,
        say). Nothing is changed then.
        """
        if self.read_owner() is None:
            self._require_empty()
            # CRASH WINDOW: not published, and nothing else is written here before it is: the claim is made again. If two
            # claim at once, both write; the check below fails for the loser.
            self.store.publish(NODE, encode_node(NodeClaim(cluster, self.name)))
        self.require_owner(cluster)

    def require_owner(self, cluster: str) -> None:
        """Check the claim. PermanentError if it is another's; DiskAwayError if there is none: the disk may be unmounted."""
        owner = self.read_owner()
        if owner == NodeClaim(cluster, self.name):
            return
        if owner is None:
            raise DiskAwayError(
                f"{self.store.url} is not the folder of node {self.name}: {NODE} is not there",
                hint="mount the node's disk, or mend its address in [nodes.*]; lost:"
                f" ./tidemark cluster check --repair --lost {self.name}",
                subject=self.name,
            )
        raise PermanentError(
            f"{self.store.url} is the folder of node {owner.node} of cluster {owner.cluster},"
            f" not of node {self.name} of cluster {cluster}",
            hint="give the node a folder of its own; nothing was changed",
            subject=self.name,
        )

    def _require_empty(self) -> None:
        there = self.store.list_files([DATA]).entries
        if there:
            raise PermanentError(
                f"{self.store.url} has {len(there)} files below {DATA}/ that are no node's, {there[0].path} among them",
                hint=f"give node {self.name} an empty folder of its own; nothing was changed",
                subject=self.name,
            )

    def release_folder(self, cluster: str) -> None:
        """Give up the folder of a node that left or never joined: remove tables, schema, logs and snapshots, the claim last.

        Files below `data/` stay; empty folders there are removed. Without this node's claim nothing is removed.
        """
        if self.read_owner() != NodeClaim(cluster, self.name):
            return
        # CRASH WINDOW: some of it is removed, the claim is still there: released again.
        for folder in (SNAPSHOTS, LOGS, SCHEMAS, TABLES):
            self.store.remove_tree(folder)
        left = self.store.list_files([DATA])
        if not left.entries and not left.odd:
            self.store.remove_tree(DATA)
        self.store.remove([NODE])

    # the table

    def put_table(self, epoch: int, record: bytes) -> None:
        """Store a partition table durably. StaleEpochError, and no change, if a newer one is there.

        Each epoch is a file of its own, so an old task that pauses before its write cannot hide a newer table.
        """
        known = self._list_epochs()
        if known and known[-1] > epoch:
            raise StaleEpochError(
                f"node {self.name} has partition table {known[-1]}: {epoch} is out of date",
                hint="run it again: it routes by the new table",
                subject=self.name,
            )
        path, data = _table_path(epoch), encode_kept(KeptDocument("table", str(epoch), record))
        if not self._holds(path, data):
            self.store.publish(path, data)
        # CRASH WINDOW: published, the ledger does not know it: it is put again, with the same bytes.
        # CRASH WINDOW: older tables are left; the next `put_table` removes them.
        self.store.remove([_table_path(old) for old in known if old != epoch][: -_KEPT_TABLES + 1])

    def read_table(self) -> tuple[int, bytes] | None:
        """Return epoch and bytes of the newest table; None before the first. CorruptionError if it is damaged or no file."""
        known = self._list_epochs()
        if not known:
            return None
        path = _table_path(known[-1])
        data = self._read_file(path)
        if data is None:
            raise CorruptionError(f"{self._url_of(path)} is no file that can be read", hint=MEND, subject=self.name)
        kept = decode_kept(data, "table", self._url_of(path))
        if kept.about != str(known[-1]):
            raise CorruptionError(
                f"{self._url_of(path)} holds the table of epoch {kept.about}", hint=MEND, subject=self.name
            )
        return known[-1], kept.body

    def withdraw_table(self, epoch: int) -> None:
        """Remove a table that was never in force (its change was rolled back). The previous one is the newest again."""
        self.store.remove([_table_path(epoch)])

    def withdraw_beyond(self, epoch: int) -> None:
        """Remove everything in the place of a table newer than `epoch`, even if it is damaged or a folder."""
        for path in (_table_path(known) for known in self._list_epochs() if known > epoch):
            if self.store.list_folder(path):
                self.store.remove_tree(path)
            else:
                self.store.remove([path])

    # the schema

    def put_schema(self, database: str, record: bytes) -> None:
        """Store the schema of a database, replacing the old one; it is durable when the call returns."""
        path, data = _schema_path(database), encode_kept(KeptDocument("schema", database, record))
        if not self._holds(path, data):
            # CRASH WINDOW: published, the slot is still `pulling` in the ledger: put again, to the same bytes.
            self.store.publish(path, data)

    def read_schema(self, database: str) -> bytes | None:
        """Return the stored schema; None if there is none. CorruptionError if it is damaged."""
        path = _schema_path(database)
        data = self._read_file(path)
        if data is None:
            return None
        kept = decode_kept(data, "schema", self._url_of(path))
        if kept.about != database:
            raise CorruptionError(f"{self._url_of(path)} is the schema of {kept.about}", subject=self.name)
        return kept.body

    def read_schemas(self) -> Iterator[KeptDocument | CorruptionError]:
        """Yield every stored schema; for a damaged one, its error."""
        paths = [f"{SCHEMAS}/{name}" for name in self.store.list_folder(SCHEMAS) if name.endswith(_SCHEMA)]
        for path in paths:
            try:
                if (data := self._read_file(path)) is not None:
                    yield decode_kept(data, "schema", self._url_of(path))
            except CorruptionError as torn:
                yield torn

    def drop_schema(self, database: str) -> None:
        """Remove the schema of a database that is dropped, or that now belongs to another group."""
        self.store.remove([_schema_path(database)])

    # snapshots

    def create_snapshot(self, locations: Iterable[str], label: str) -> Snapshot:
        """Make hard links of all of these files, or of none. SourceVanishedError if one is missing: the caller lists anew.

        A repeated call under the same label gives the same snapshot, of these locations and no others.
        """
        wanted = {location: f"{_snapshot_folder(label)}/{_in_data(location)}" for location in sorted(set(locations))}
        if not self.store.properties.hard_links:
            return self._snapshot_in_place(wanted, label)
        try:
            # CRASH WINDOW: some links, or all of them, and nobody reads them: made again under the same label, or found by
            # `list_snapshots` and dropped.
            vanished = self.store.link(list(wanted.items()))
        except HostKeyError:
            raise
        except PermanentError:  # no links on this file system, no inodes left, a disk that may only be read
            with contextlib.suppress(PermanentError):  # the links that may be there are found by `list_snapshots`
                self.drop_snapshot(label)
            return self._snapshot_in_place(wanted, label)
        if vanished:
            # CRASH WINDOW: some links are left, as above.
            self.drop_snapshot(label)
            raise _vanished_error(self.name, vanished)
        there = {entry.path for entry in self.store.list_files([_snapshot_folder(label)]).entries}
        self.store.remove(sorted(there - set(wanted.values())))  # of an earlier try with other locations
        return Snapshot(label, MappingProxyType(wanted), linked=True)

    def drop_snapshot(self, label: str) -> None:
        """Remove the links of a snapshot; a second call succeeds too."""
        self.store.remove_tree(_snapshot_folder(label))

    def list_snapshots(self) -> list[str]:
        """Return the labels of the snapshots in the folder."""
        return list(self.store.list_folder(SNAPSHOTS))

    # the files

    def remove_files(self, locations: Iterable[str]) -> None:
        """Remove files below `data/`; a missing one counts as removed. CorruptionError for a path outside of it."""
        # CRASH WINDOW: some are removed, their rows say `going`: removed again. A power loss may bring files back.
        self.store.remove([_in_data(location) for location in sorted(set(locations))])

    def set_aside(self, locations: Iterable[str], label: str) -> None:
        """Move files from below `data/` to where nobody looks for them or removes them. A missing one is left out."""
        wanted = [_in_data(location) for location in sorted(set(locations))]
        here = [at for at, entry in zip(wanted, self.store.stat_many(wanted), strict=True) if entry is not None]
        aside = f"{QUARANTINE}/{label}"
        self.store.make_folders(sorted({f"{aside}/{at.rpartition('/')[0]}" for at in here}))
        # CRASH WINDOW: some are there, some not yet. Either way they do not count.
        self.store.seal_parts([(at, f"{aside}/{at}") for at in here])

    def list_sizes(self) -> dict[str, int]:
        """Return every file below `data/` with its bytes, `.part`s included."""
        return {entry.path: entry.size for entry in self.store.list_files([DATA]).entries}

    def list_leftovers(self, known: Collection[str], before: float | None = None) -> list[str]:
        """Return files below `data/` that are not among the `known` locations, with `.part`s of broken transfers.

        `before`: only those last changed before it (seconds since 1970, the node's clock), to leave out files in transfer.
        """
        wanted = known if isinstance(known, set | frozenset) else frozenset(known)
        entries = self.store.list_files([DATA]).entries
        return [e.path for e in entries if e.path not in wanted and (before is None or e.mtime < before)]

    def remove_half_written(self, before: float) -> None:
        """Remove temp files of documents that killed writers left; only those last changed before it (seconds since 1970).

        Those of logs go with the log's old files.
        """
        beside = [f"{OWN}/{name}" for name in self.store.list_folder(OWN)]
        remove_half_written(self.store, [TABLES, SCHEMAS], beside, before)

    def compute_digests(self, sizes: Mapping[str, int]) -> dict[str, str | int | None]:
        """Return location → SHA-256 in hex of the file on the node's disk now; None if it is missing.

        `sizes`: location → its recorded bytes, 0 if unknown (mods: up to `MOST_MODS` are read). A file of another length is
        not read: its length is returned instead of a digest.
        """
        found: dict[str, str | int | None] = {}
        for (location, size), entry in zip(sizes.items(), self.store.stat_many(list(sizes)), strict=True):
            right = entry is not None and (entry.size == size or (not size and entry.size <= MOST_MODS))
            found[location] = None if entry is None else "" if right else entry.size
        read = [location for location, told in found.items() if told == ""]
        return found | dict(zip(read, self.store.digest_ranges([Range(at) for at in read]) if read else (), strict=True))

    def free_bytes(self) -> int | None:
        """Return the free bytes of the node's disk; None if unknown."""
        return self.store.free_bytes(DATA)

    def _snapshot_in_place(self, wanted: Mapping[str, str], label: str) -> Snapshot:
        locations = list(wanted)
        gone = [at for at, entry in zip(locations, self.store.stat_many(locations), strict=True) if entry is None]
        if gone:
            raise _vanished_error(self.name, gone)
        return Snapshot(label, MappingProxyType({location: location for location in locations}), linked=False)

    def _list_epochs(self) -> list[int]:
        """Return the epochs of the tables in the folder, rising."""
        return sorted(int(name) for name in self.store.list_folder(TABLES) if _EPOCH.fullmatch(name))

    def _read_file(self, path: str) -> bytes | None:
        """Read a file; None if there is none, or it is no file. CorruptionError if it is longer than `_MOST`."""
        (data,) = read_records(self.store, [path], _MOST)
        if isinstance(data, CorruptionError):
            raise CorruptionError(f"{data.message}: no record", hint=MEND, subject=self.name)
        return data

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self._read_file(path) == data
        except CorruptionError:
            return False

    def _url_of(self, path: str) -> str:
        return f"{self.store.url.rstrip('/')}/{path}"


def _table_path(epoch: int) -> str:
    return f"{TABLES}/{epoch}"


def _schema_path(database: str) -> str:
    """Percent-encode the name. One too long for a file system is cut, and its digest appended."""
    encoded = quote(database, safe="") or "%"
    if len(encoded) > _LONGEST:
        encoded = f"{encoded[:_LONGEST]}~{hashlib.sha256(database.encode()).hexdigest()[:16]}"
    return f"{SCHEMAS}/{encoded}{_SCHEMA}"


def _snapshot_folder(label: str) -> str:
    if not label or "/" in label or label in (".", ".."):
        raise ValueError(f"{label!r} is no label: it becomes a folder's name")
    return f"{SNAPSHOTS}/{label}"


def _in_data(location: str) -> str:
    if not check_path(location).startswith(f"{DATA}/"):
        raise CorruptionError(
            f"{location} is no file of the catalog: a node's lie below {DATA}/",
            hint="./tidemark ledger backup keeps older ledgers; ./tidemark cluster check",
            subject=location,
        )
    return location


def _vanished_error(name: str, gone: Sequence[str]) -> TidemarkError:
    return SourceVanishedError(
        f"{len(gone)} files went away at node {name} while they were linked, {gone[0]} among them",
        hint="run it again: it lists again",
        subject=gone[0],
    )
