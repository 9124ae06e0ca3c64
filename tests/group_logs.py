"""Records of a data group's log for tests: the next ones behind an end, with bodies that tell them apart."""

from __future__ import annotations

import uuid
from functools import partial

from tidemark.cluster.replicas.core.epochs import Fence
from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord, decode_record, encode_record
from tidemark.cluster.replicas.core.roles import LogEnd
from tidemark.cluster.replicas.log import GroupLog
from tidemark.cluster.replicas.members import folder_of
from tidemark.cluster.replicas.records.fold import GroupTold, fold_group, join_groups
from tidemark.cluster.slots.routing import slots_of_file
from tidemark.cluster.slots.table import PartitionTable
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
    return list(GroupLog(store, folder_of(header)).read_kept())


def told_by(records: list[StoredRecord], table: PartitionTable) -> GroupTold:
    """What a log tells; its last commit counts, whatever other groups have of it."""
    told = fold_group(records, partial(slots_of_file, table))
    join_groups({"alone": told}, partial(slots_of_file, table))
    return told


def files_of(records: list[StoredRecord], table: PartitionTable) -> list[str]:
    """The locations of the files that a log tells, sorted."""
    return sorted(key.location for key in told_by(records, table).files)
