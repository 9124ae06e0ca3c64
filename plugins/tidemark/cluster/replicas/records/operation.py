"""The operations that a group's log has, as frozen values, and a commit of them as records. Pure.

A commit has a record for each of its operations, or several, so that none is too long. Each tells how many they are and in
which groups, so that whoever has the logs alone sees whether a commit is whole. Body: canonical JSON,
docs/formats/log-record.md.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from sys import intern
from typing import Any, NamedTuple

from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord, decode_record, encode_body, encode_record
from tidemark.cluster.replicas.core.roles import LogEnd
from tidemark.errors import CorruptionError
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.ledger.receiver.landings import SiteRow
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.ledger.receiver.schemas import SeriesRow

BODY_BYTES = 1 << 20  # about; a longer operation is cut into several records
DEVICES_IN_RECORD = 5000
_NOT_KEPT = frozenset({"receiver", "file_id", "state", "retired"})  # what only a ledger knows, or what is clear
_KEPT = tuple(field.name for field in fields(CatalogFile) if field.name not in _NOT_KEPT)
_SERIES = tuple(field.name for field in fields(SeriesRow) if field.name != "receiver")


class FileKey(NamedTuple):
    """A row of the catalog by names that every ledger gives it. `path` is "" and `generation` 0 for a merged file."""

    site_id: str
    path: str
    generation: int
    location: str


class MergeFacts(NamedTuple):
    """How a merged file was made. `sources`: of all its points; times in seconds since 1970, `settled` None before."""

    sources: tuple[FileKey, ...]
    batch: str
    points_in: int
    points_out: int
    overwritten: int
    deleted: int
    at: float
    settled: float | None


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A live file of the catalog with all its facts. `file` has no receiver, no id."""

    file: CatalogFile
    devices: tuple[CatalogDevice, ...] = ()
    merge: MergeFacts | None = None

    @property
    def key(self) -> FileKey:
        return key_of(self.file)


class Width(NamedTuple):
    """How many tags readers pad the devices of a table to."""

    site_id: str
    database: str
    table: str
    tags: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What readers of the files need beside them."""

    sites: tuple[SiteRow, ...] = ()
    widths: tuple[Width, ...] = ()
    owners: tuple[OwnerRow, ...] = ()


NO_FACTS = Facts()


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of a group's catalog: `gone` leave it, then `files` stand in it as they are here.

    `database`: that is created or dropped. `series`: as the sites declare them now. `slots`: that the group has, or has no
    more, by the partition table of epoch `table`. `commits`: count, wherever their records in this log are.
    """

    kind: RecordKind
    files: tuple[FileEntry, ...] = ()
    gone: tuple[FileKey, ...] = ()
    facts: Facts = NO_FACTS
    series: tuple[SeriesRow, ...] = ()
    database: str = ""
    slots: tuple[int, ...] = ()
    table: int = 0
    commits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A record read: one of the `of` records that `commit` has in this log. `groups`: headers of all groups that it is in.

    `takes_back`: the commit's records before this one count for nothing.
    """

    commit: str
    number: int
    of: int
    groups: tuple[str, ...]
    takes_back: bool
    operation: Operation
    more: bool = False  # the one file is there already, these are further devices of it


def key_of(file: CatalogFile) -> FileKey:
    return FileKey(file.site_id, file.path, file.generation, file.location)


def records_of(
    commit: str, operations: Sequence[Operation], groups: Iterable[str], end: LogEnd, *, epoch: int
) -> list[StoredRecord]:
    """Return the records that continue `end` by this commit (a UUID)."""
    parts = [(one.kind, words) for one in operations for words in _cut_operation(one)]
    shared = {"commit": commit, "groups": sorted(groups), "of": len(parts)}
    bodies = [(kind, {**shared, "number": number, **words}) for number, (kind, words) in enumerate(parts)]
    return _chain(commit, bodies, end, epoch)


def taking_back(commit: str, end: LogEnd, epoch: int) -> list[StoredRecord]:
    """Return the record that says that the commit of this id never happened."""
    return _chain(commit, [(RecordKind.REMOVE_FILES, {"commit": commit, "takes_back": True})], end, epoch)


def barrier_behind(end: LogEnd, epoch: int) -> StoredRecord:
    """Return the barrier of an epoch: a record without content."""
    operation = uuid.uuid5(uuid.NAMESPACE_OID, f"barrier {epoch} {end.crc}")
    return decode_record(encode_record(end, epoch, operation, RecordKind.BARRIER))


def commit_of(stored: StoredRecord) -> str:
    """Return the commit that a record is of; "" for a barrier. CorruptionError for a body that is no operation's."""
    return "" if stored.kind is RecordKind.BARRIER else str(_words_of(stored)["commit"])


def is_take_back(stored: StoredRecord) -> bool:
    """Tell whether the record takes its commit back. CorruptionError as `commit_of`."""
    return stored.kind is RecordKind.REMOVE_FILES and bool(_words_of(stored).get("takes_back"))


def read_part(stored: StoredRecord) -> Part | None:
    """Return what a record says; None for a barrier. CorruptionError for a body that is no operation's."""
    if stored.kind is RecordKind.BARRIER:
        return None
    words = _words_of(stored)
    try:
        operation = Operation(
            stored.kind,
            tuple(_read_entry(one) for one in words.get("files", ())),
            tuple(FileKey(*one) for one in words.get("gone", ())),
            Facts(
                tuple(SiteRow(*one) for one in words.get("sites", ())),
                tuple(Width(*one) for one in words.get("widths", ())),
                tuple(OwnerRow(*one) for one in words.get("owners", ())),
            ),
            tuple(SeriesRow("", **one) for one in words.get("series", ())),
            words.get("database", ""),
            tuple(slot for first, last in words.get("slots", ()) for slot in range(first, last + 1)),
            words.get("table", 0),
            tuple(words.get("commits", ())),
        )
        back = bool(words.get("takes_back"))
        groups = tuple(words.get("groups", ()))
        return Part(words["commit"], words.get("number", 0), words.get("of", 1), groups, back, operation, "more" in words)
    except (ValueError, KeyError, TypeError) as wrong:
        raise _no_operation(stored) from wrong


def _cut_operation(one: Operation) -> Iterator[dict[str, Any]]:
    """Yield the operation's words, in parts that are not too long. What is no list of files or series is in the first."""
    words: dict[str, Any] = {}
    if one.gone:
        words["gone"] = one.gone
    for name in ("sites", "widths", "owners"):
        if rows := getattr(one.facts, name):
            words[name] = [row if isinstance(row, tuple) else tuple(asdict(row).values()) for row in rows]
    if one.database:
        words["database"] = one.database
    if one.slots:
        words |= {"slots": _ranges_of(one.slots), "table": one.table}
    if one.commits:
        words["commits"] = one.commits
    size = sum(map(len, map(str, words.values())))
    for name, values in (("files", map(_entry_words, one.files)), ("series", map(_series_words, one.series))):
        for whole in values:
            value, *further = _cut_devices(whole)
            length = len(encode_body(value))
            if words and size + length > BODY_BYTES:
                yield words
                words, size = {}, 0
            words.setdefault(name, []).append(value)
            size += length
            for more in further:
                yield words
                words, size = {"files": [more], "more": True}, BODY_BYTES
    if words:
        yield words


def _cut_devices(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the words of a file or series as they are, or those of a file with many devices in parts."""
    devices = value.get("devices", ())
    if len(devices) <= DEVICES_IN_RECORD:
        return [value]
    return [{**value, "devices": devices[at : at + DEVICES_IN_RECORD]} for at in range(0, len(devices), DEVICES_IN_RECORD)]


def _entry_words(entry: FileEntry) -> dict[str, Any]:
    words = {name: getattr(entry.file, name) for name in _KEPT}
    words["devices"] = [(d.device, d.start, d.end, d.points) for d in entry.devices]
    if entry.merge is not None:
        words["merge"] = entry.merge
    return words


def _series_words(row: SeriesRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _SERIES}


def _read_entry(words: dict[str, Any]) -> FileEntry:
    devices = tuple(CatalogDevice(intern(name), *extent) for name, *extent in words["devices"])
    merge = None
    if "merge" in words:
        sources, *rest = words["merge"]
        merge = MergeFacts(tuple(FileKey(*one) for one in sources), *rest)
    words.setdefault("prefix", "")  # records made before sites had one
    known = {name: words[name] for name in _KEPT}
    known |= {name: intern(known[name]) for name in ("site_id", "role", "database", "model")}
    known |= {"rank": tuple(words["rank"]), "undecodable": tuple(words["undecodable"])}
    return FileEntry(CatalogFile(receiver="", **known), devices, merge)


def without_ledger(file: CatalogFile) -> CatalogFile:
    """Return the file without what only a ledger knows, as an entry has it."""
    return replace(file, receiver="", file_id=0, state="live", retired=None)


def _ranges_of(slots: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if ranges and ranges[-1][1] == slot - 1:
            ranges[-1] = (ranges[-1][0], slot)
        else:
            ranges.append((slot, slot))
    return ranges


def _words_of(stored: StoredRecord) -> dict[str, Any]:
    try:
        words = json.loads(stored.body)
        if isinstance(words, dict) and "commit" in words:
            return words
    except ValueError as wrong:
        raise _no_operation(stored) from wrong
    raise _no_operation(stored)


def _no_operation(stored: StoredRecord) -> CorruptionError:
    return CorruptionError(f"the log record {stored.head.position.version} has no operation's body")


def _chain(
    commit: str, contents: Sequence[tuple[RecordKind, dict[str, Any]]], end: LogEnd, epoch: int
) -> list[StoredRecord]:
    made: list[StoredRecord] = []
    for number, (kind, words) in enumerate(contents):
        operation = uuid.uuid5(uuid.UUID(commit), f"{kind.name} {number}")
        made.append(decode_record(encode_record(end, epoch, operation, kind, body=encode_body(words))))
        end = made[-1].head.end
    return made
