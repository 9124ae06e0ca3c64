"""Records of a data group's log for tests: the next ones behind an end, with bodies that tell them apart."""

from __future__ import annotations

import uuid

from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord, decode_record, encode_record
from tidemark.cluster.replicas.core.roles import LogEnd

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
