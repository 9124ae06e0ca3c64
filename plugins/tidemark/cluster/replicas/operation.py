"""The operations that a group's log has, as frozen values, and their records. Pure.

`AddFiles` makes files visible; `TakeBack` says that a commit's records count for nothing, since its transaction never came.
A commit may have several records, so that none is too long. Body: canonical JSON, docs/formats/log-record.md.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord, decode_record, encode_body, encode_record
from tidemark.cluster.replicas.core.roles import LogEnd
from tidemark.errors import CorruptionError
from tidemark.ledger.receiver.catalog import CatalogFile

FILES_IN_RECORD = 2000
_NOT_KEPT = frozenset({"receiver", "file_id", "state", "visible", "marked", "retired"})  # what only a ledger knows
_KEPT = tuple(field.name for field in fields(CatalogFile) if field.name not in _NOT_KEPT)


@dataclass(frozen=True, slots=True)
class AddFiles:
    """Files that become visible by a commit."""

    commit: str  # a UUID
    files: tuple[CatalogFile, ...]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """The commit of this id never happened."""

    commit: str


Operation = AddFiles | TakeBack


def records_of(operation: Operation, end: LogEnd, epoch: int) -> list[StoredRecord]:
    """Return the records that continue `end` by this operation."""
    if isinstance(operation, TakeBack):
        return _chain(operation.commit, [(RecordKind.REMOVE_FILES, {"takes_back": True})], end, epoch)
    parts = [operation.files[at : at + FILES_IN_RECORD] for at in range(0, len(operation.files), FILES_IN_RECORD)]
    rows = [[{name: getattr(file, name) for name in _KEPT} for file in part] for part in parts]
    return _chain(operation.commit, [(RecordKind.ADD_FILES, {"files": files}) for files in rows], end, epoch)


def barrier_behind(end: LogEnd, epoch: int) -> StoredRecord:
    """Return the barrier of an epoch: a record without content."""
    operation = uuid.uuid5(uuid.NAMESPACE_OID, f"barrier {epoch} {end.crc}")
    return decode_record(encode_record(end, epoch, operation, RecordKind.BARRIER))


def commit_of(stored: StoredRecord) -> str:
    """Return the commit that a record is of; "" for a barrier. CorruptionError for a body that is no operation's."""
    if stored.kind is RecordKind.BARRIER:
        return ""
    try:
        commit = json.loads(stored.body)["commit"]
    except (ValueError, KeyError, TypeError) as wrong:
        raise CorruptionError(f"the log record {stored.head.position.version} has no operation's body") from wrong
    return str(commit)


def _chain(
    commit: str, contents: Sequence[tuple[RecordKind, dict[str, object]]], end: LogEnd, epoch: int
) -> list[StoredRecord]:
    made: list[StoredRecord] = []
    for number, (kind, words) in enumerate(contents):
        operation = uuid.uuid5(uuid.UUID(commit), f"{kind.name} {number}")
        body = encode_body({"commit": commit, **words})
        made.append(decode_record(encode_record(end, epoch, operation, kind, body=body)))
        end = made[-1].head.end
    return made
