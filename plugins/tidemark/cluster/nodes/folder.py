"""A data node's folder: whose it is, the newest table, the schema of its slots, snapshots, the files themselves.

`data/…` as at the receiver, by the same locations; everything of ours below `.tidemark/`. Nothing runs at a node: who has
work there opens its store and calls this. Every call may be made again, by another process and after a crash, with the
same end. Source: seed 001 "Data migration"; docs/decisions/0015; the papers: docs/formats/node-folder.md.
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
from tidemark.stores.protocol import Range, Store, check_path
from tidemark.untrusted_files import MOST_MODS

DATA = "data"
NODE = ".tidemark/node.json"
TABLES = ".tidemark/table"
SCHEMAS = ".tidemark/schema"
SNAPSHOTS = ".tidemark/snapshot"

_SCHEMA = ".schema"
_KEPT_TABLES = 2  # the one before too: a change that is rolled back takes the newest away again
MEND = "./tidemark cluster check --repair"

_MOST = 1 << 27  # bytes of a paper: the schema of a million series
_EPOCH = re.compile("[1-9][0-9]{0,17}")
_LONGEST = 200  # bytes of a file's name; file systems allow 255


@dataclass(frozen=True)
class Snapshot:
    """Files that stay readable until `drop_snapshot`. `paths`: location → where it is read, relative to the store.

    `linked`: False where the node has no hard links, or no room for them: the files are read in place, and a file that is
    removed meanwhile is gone for the reader (SourceVanishedError there; the caller lists anew).
    """

    label: str
    paths: Mapping[str, str]
    linked: bool


class NodeFolder:
    """The folder of node `name` behind an open store. Errors of the store pass through."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name

    # whose it is

    def read_owner(self) -> NodeClaim | None:
        """Whose folder it is; None where nobody claimed it. CorruptionError, SchemaTooNewError."""
        data = self._read_file(NODE)
        return None if data is None else decode_node(data, self._url_of(NODE))

    def claim_folder(self, cluster: str) -> None:
        """Make it this node's folder of that cluster; again it changes nothing.

        PermanentError where it is another cluster's or another node's, or has files and nobody claimed it (a receiver's own
        folder, say): nothing is changed then.
        """
        if self.read_owner() is None:
            self._require_empty()
            # CRASH WINDOW: not published, and nothing else is written here before it is: the claim is made again. Two who
            # claim at once both write; the look below tells the one who lost.
            self.store.publish(NODE, encode_node(NodeClaim(cluster, self.name)))
        self.require_owner(cluster)

    def require_owner(self, cluster: str) -> None:
        """PermanentError where it is another's; DiskAwayError where nobody claimed it: an unmounted disk looks empty."""
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
        """Nobody's folder any more, for a node that left or never came: tables, schema, snapshots go, the claim last.

        Files below `data/` stay, empty folders there go. Of a folder that is not this node's of that cluster nothing goes.
        """
        if self.read_owner() != NodeClaim(cluster, self.name):
            return
        # CRASH WINDOW: some of it is gone, the claim stands: released again.
        for folder in (SNAPSHOTS, SCHEMAS, TABLES):
            self.store.remove_tree(folder)
        left = self.store.list_files([DATA])
        if not left.entries and not left.odd:
            self.store.remove_tree(DATA)
        self.store.remove([NODE])

    # the table

    def put_table(self, epoch: int, paper: bytes) -> None:
        """Keep a partition table, durable when the call returns. StaleEpochError, and no change, where a newer one lies.

        Each epoch is a file of its own, so that an old task which wakes between its look and its write hides nothing.
        """
        known = self._list_epochs()
        if known and known[-1] > epoch:
            raise StaleEpochError(
                f"node {self.name} has partition table {known[-1]}: {epoch} is out of date",
                hint="run it again: it routes by the new table",
                subject=self.name,
            )
        path, data = _table_path(epoch), encode_kept(KeptDocument("table", str(epoch), paper))
        if not self._holds(path, data):
            self.store.publish(path, data)
        # CRASH WINDOW: published, the ledger does not know that it lies here: it is put again, to the same bytes.
        # CRASH WINDOW: older tables are left; the next one that is put takes them away.
        self.store.remove([_table_path(old) for old in known if old != epoch][: -_KEPT_TABLES + 1])

    def read_table(self) -> tuple[int, bytes] | None:
        """Epoch and bytes of the newest table; None before the first. CorruptionError for a torn one, or no file."""
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
        """Take away a table that never was in force (its change was rolled back); the one before is the newest again."""
        self.store.remove([_table_path(epoch)])

    def withdraw_beyond(self, epoch: int) -> None:
        """Take away whatever stands in the place of a newer table, whole or not."""
        for path in (_table_path(known) for known in self._list_epochs() if known > epoch):
            if self.store.list_folder(path):
                self.store.remove_tree(path)
            else:
                self.store.remove([path])

    # the schema

    def put_schema(self, database: str, paper: bytes) -> None:
        """Keep the schema of a database, durable when the call returns; replaces what was there."""
        path, data = _schema_path(database), encode_kept(KeptDocument("schema", database, paper))
        if not self._holds(path, data):
            # CRASH WINDOW: published, the slot is still `pulling` in the ledger: put again, to the same bytes.
            self.store.publish(path, data)

    def read_schema(self, database: str) -> bytes | None:
        """What was kept; None where nothing was. CorruptionError for a torn one."""
        path = _schema_path(database)
        data = self._read_file(path)
        if data is None:
            return None
        kept = decode_kept(data, "schema", self._url_of(path))
        if kept.about != database:
            raise CorruptionError(f"{self._url_of(path)} is the schema of {kept.about}", subject=self.name)
        return kept.body

    def read_schemas(self) -> Iterator[KeptDocument | CorruptionError]:
        """Every schema that is kept here; of a torn one what is wrong with it."""
        paths = [f"{SCHEMAS}/{name}" for name in self.store.list_folder(SCHEMAS) if name.endswith(_SCHEMA)]
        for path in paths:
            try:
                if (data := self._read_file(path)) is not None:
                    yield decode_kept(data, "schema", self._url_of(path))
            except CorruptionError as torn:
                yield torn

    def drop_schema(self, database: str) -> None:
        """The database is gone, or its schema is another group's."""
        self.store.remove([_schema_path(database)])

    # snapshots

    def create_snapshot(self, locations: Iterable[str], label: str) -> Snapshot:
        """Hard links of all of these files, or none: SourceVanishedError where one is gone, for the caller to list anew.

        Under the same label again it is the same snapshot, of these locations and no others.
        """
        wanted = {location: f"{_snapshot_folder(label)}/{_in_data(location)}" for location in sorted(set(locations))}
        if not self.store.properties.hard_links:
            return self._snapshot_in_place(wanted, label)
        try:
            # CRASH WINDOW: some links, or all of them, and nobody who reads them: taken again under the same label, or
            # found by `list_snapshots` and dropped.
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
        self.store.remove(sorted(there - set(wanted.values())))  # of an earlier try, which had listed others
        return Snapshot(label, MappingProxyType(wanted), linked=True)

    def drop_snapshot(self, label: str) -> None:
        """Remove its links; again it is success."""
        self.store.remove_tree(_snapshot_folder(label))

    def list_snapshots(self) -> list[str]:
        """Labels of the snapshots that are there."""
        return list(self.store.list_folder(SNAPSHOTS))

    # the files

    def remove_files(self, locations: Iterable[str]) -> None:
        """Remove files below `data/`; what is gone already is success. CorruptionError for a path that is not below it."""
        # CRASH WINDOW: some are gone, their rows say `going`: removed again. What a power loss brings back is left over.
        self.store.remove([_in_data(location) for location in sorted(set(locations))])

    def list_sizes(self) -> dict[str, int]:
        """Every file below `data/` with its bytes, `.part`s included."""
        return {entry.path: entry.size for entry in self.store.list_files([DATA]).entries}

    def list_leftovers(self, known: Collection[str], before: float | None = None) -> list[str]:
        """Files below `data/`, `.part`s of broken transfers included, that are not among the `known` locations.

        `before`: only those last changed before it (seconds since 1970, the node's clock), so that what is coming is not
        called left over.
        """
        wanted = known if isinstance(known, set | frozenset) else frozenset(known)
        entries = self.store.list_files([DATA]).entries
        return [e.path for e in entries if e.path not in wanted and (before is None or e.mtime < before)]

    def compute_digests(self, sizes: Mapping[str, int]) -> dict[str, str | int | None]:
        """Location → SHA-256 of the file as it lies on the node's disk now, in hex; None where it is gone.

        `sizes`: location → its bytes as recorded, 0 where nobody knows (mods: `MOST_MODS` are read). A file of another
        length is not read, however long it is: that length comes in the digest's place.
        """
        found: dict[str, str | int | None] = {}
        for (location, size), entry in zip(sizes.items(), self.store.stat_many(list(sizes)), strict=True):
            right = entry is not None and (entry.size == size or (not size and entry.size <= MOST_MODS))
            found[location] = None if entry is None else "" if right else entry.size
        read = [location for location, told in found.items() if told == ""]
        return found | dict(zip(read, self.store.digest_ranges([Range(at) for at in read]) if read else (), strict=True))

    def free_bytes(self) -> int | None:
        """Free space of the node's disk; None where it cannot be known."""
        return self.store.free_bytes(DATA)

    def _snapshot_in_place(self, wanted: Mapping[str, str], label: str) -> Snapshot:
        locations = list(wanted)
        gone = [at for at, entry in zip(locations, self.store.stat_many(locations), strict=True) if entry is None]
        if gone:
            raise _vanished_error(self.name, gone)
        return Snapshot(label, MappingProxyType({location: location for location in locations}), linked=False)

    def _list_epochs(self) -> list[int]:
        """Epochs of the tables that are there, rising."""
        return sorted(int(name) for name in self.store.list_folder(TABLES) if _EPOCH.fullmatch(name))

    def _read_file(self, path: str) -> bytes | None:
        """None where nothing is there, or no file. CorruptionError for more bytes than any paper has: they are not read."""
        entry = self.store.stat(path)
        if entry is None:
            return None
        if entry.size > _MOST:
            raise CorruptionError(f"{self._url_of(path)} has {entry.size} bytes: no paper", hint=MEND, subject=self.name)
        return next(data for _, data in self.store.read_many([path], [_MOST]))

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
    """The name percent-encoded; one that is too long for a file system is cut and carries its digest."""
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
