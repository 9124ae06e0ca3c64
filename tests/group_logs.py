"""Records of a data group's log for tests: the next ones behind an end, with bodies that tell them apart."""

from __future__ import annotations

import json
import uuid

from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord, decode_record, encode_record
from tidemark.cluster.replicas.core.roles import LogEnd
from tidemark.cluster.replicas.log import GroupLog
from tidemark.cluster.replicas.members import folder_of
from tidemark.stores.protocol import Store

COORDINATOR = "0f8e1c52"


def fence_of(epoch: int, master: str = "n1", coordinator: str = COORDINATOR) -> Fence:
    return Fence(coordinator, epoch, master)


def records_behind(end: LogEnd, epoch: int, count: int = 1, body: bytes = b"{}") -> list[StoredRecord]:
    records: list[StoredRecord] = []
    for _ in range(count):
        operation = uuid.uuid5(uuid.NAMESPACE_OID, f"{end} {epoch} {body!r}")
        records.append(decode_record(encode_record(end, epoch, operation, RecordKind.ADD_FILES, body=body)))
        end = records[-1].head.end
    return records


def records_at(store: Store, header: str) -> list[StoredRecord]:
    """What a member's folder says of a group, record by record."""
    return list(GroupLog(store, folder_of(header)).read(1))


def files_of(records: list[StoredRecord]) -> list[str]:
    """The locations that a log adds, sorted, without those of commits that it takes back."""
    found: dict[str, list[str]] = {}
    for stored in records:
        if stored.kind is RecordKind.BARRIER:
            continue
        words = json.loads(stored.body)
        if stored.kind is RecordKind.REMOVE_FILES:
            assert words["takes_back"] and found.pop(words["commit"])
        else:
            found.setdefault(words["commit"], []).extend(file["location"] for file in words["files"])
    return sorted(location for locations in found.values() for location in locations)
