"""Storage points of tasks over HTTP: told, moved, rewound. For clients that are no members: they hold no lease.

A point moves forward, of the version that the client has seen, and only in a shard that no member holds. A rewind is that of
`./tidemark changes rewind`, with its entry in the audit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.delivery.http.feed import find_start
from tidemark.changes.delivery.http.requests import NORMAL, Commit, Rewind
from tidemark.changes.delivery.members import lease_prefix, read_seen
from tidemark.changes.delivery.storage_points import Place, point_fields
from tidemark.changes.delivery.tasks import apply_change, find_task, plan_rewind
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Rows
from tidemark.changes.store.read import Reader
from tidemark.errors import LeaseHeldError, LeaseLostError, NotFoundError, UsageError
from tidemark.ledger.delivery import StoragePoint, TaskRow, move_point, read_points
from tidemark.ledger.leases import Leases


@dataclass(frozen=True)
class TaskPoints:
    """The points of tasks, in the ledger."""

    leases: Leases

    def find(self, name: str) -> TaskRow:
        """The task. The names of others are not told."""
        try:
            return find_task(self.leases.ledger, name)
        except NotFoundError as unknown:
            raise NotFoundError(f"no task named {name!r} has begun", hint=unknown.hint, subject=name) from unknown

    def tell(self, name: str) -> dict[str, Any]:
        """The task, and the point of each shard in the words of the seed."""
        task = self.find(name)
        with self.leases.ledger.read() as connection:
            points = read_points(connection, name)
        told = [{"shard": shard, **point_fields(point)} for shard, point in points.items()]
        return {
            "taskName": task.name,
            "serviceGroupName": task.source,
            "partitionTotal": task.shards,
            "hash": task.hash,
            "keyChange": task.key_change,
            "generation": task.generation,
            "points": told,
        }

    def commit(self, disk: Disk, asked: Commit) -> dict[str, Any]:
        """Move a shard's point behind an event that is dealt with. A point that is there already, or behind it, stays.

        LeaseHeldError: a member holds the shard. LeaseLostError: the point was rewound since, or another client moved it.
        """
        task = self.find(asked.task)
        point = _point_behind(Reader(disk), asked)
        with self.leases.ledger.write() as connection:
            rows = self.leases.list_named(connection, lease_prefix(task.name))
            if asked.shard in read_seen("", task.shards, task.generation, rows).held:
                raise LeaseHeldError(f"a member of task {task.name} holds shard {asked.shard}", subject=task.name)
            before = read_points(connection, task.name).get(asked.shard)
            if before is None:
                raise NotFoundError(f"task {task.name} has no shard {asked.shard}", subject=task.name)
            if before.version_ts != asked.version_ts:
                raise LeaseLostError(
                    f"shard {asked.shard} of task {task.name} was rewound or divided anew since",
                    hint="ask /v1/points, and go on from there",
                    subject=task.name,
                )
            if point.order > before.order and not move_point(connection, (task.name, asked.shard), before, point, fence=0):
                raise LeaseLostError("another client moved the point meanwhile", hint="ask /v1/points", subject=task.name)
            now = max(before, point, key=lambda one: one.order)
        return {"shard": asked.shard, **point_fields(now)}

    def rewind(self, disk: Disk, asked: Rewind, now: float) -> dict[str, Any]:
        """What comes again; with `apply` it is done."""
        task = self.find(asked.task)
        plan = plan_rewind(self.leases.ledger, disk, choose_tables(task.tables), task.name, asked.to, asked.shards, now)
        if asked.apply:
            apply_change(self.leases.ledger, plan, "rewind", to=asked.to, shards=sorted(plan.points), by="http")
        shards = [{"shard": one.shard, "from": one.first, "to": one.end, "rows": one.rows} for one in plan.shards]
        return {
            "transactions": plan.transactions,
            "rows": plan.rows,
            "exact": plan.exact,
            "shards": shards,
            "undo": list(plan.undo),
            "applied": asked.apply,
        }


def _point_behind(reader: Reader, asked: Commit) -> StoragePoint:
    """The storage point behind an event: of its transaction, or of the next one where that is whole."""
    point = replace(asked.checkpoint, gtid_set="")
    if point.mode != NORMAL or not (point.file or (point.uuid and point.transaction_id > 0)):
        raise UsageError("buffaloCheckpoint: a commit names an event: its uuid and transactionId, or its log and offset")
    start = find_start(reader, point)
    seq = start.seq
    if not start.is_exact:
        raise UsageError(
            f"buffaloCheckpoint: no transaction is there; the next one is seq:{seq}",
            hint="send the checkpoint of an event as it came",
        )
    stretches = reader.read_stretches(seq)
    index = point.event_index + 1
    rows = 0
    for stretch in stretches:
        for piece in stretch.pieces:
            if piece.seq == seq:
                rows += sum(record.count for record in piece.transaction.records if isinstance(record, Rows))
                if piece.ends:
                    is_whole = point.event_index >= rows
                    place = Place(seq + 1, 0, stretch) if is_whole else Place(seq, index, stretch)
                    return place.as_point(asked.version_ts)
    raise NotFoundError(f"transaction seq:{seq} is not whole in the store", subject=f"seq:{seq}")
