"""A task whose point follows a stream of Spark, so that retention waits for the stream.

The checkpoint says where the stream goes on, never this point. The stream holds the task's one shard as a member of a task
would, so no consumer of that name and no second stream moves it.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from uuid import uuid4

from tidemark.app import open_app
from tidemark.changes.delivery.members import name_holder, shard_lease
from tidemark.changes.delivery.stream import LEASE_SECONDS
from tidemark.changes.delivery.tasks import Wanted, open_task
from tidemark.changes.sources.source import find_source
from tidemark.ledger.delivery import StoragePoint, move_point, read_points
from tidemark.ledger.leases import Leases, assert_held
from tidemark.settings.load import load_settings


class HeldTaskPoint:
    """A task of one shard, held until `close`. LeaseHeldError: somebody else has it."""

    def __init__(self, settings: str, source: str, task: str, first: int) -> None:
        """`first`: the transaction with which a new task begins."""
        self._name = task
        with ExitStack() as opening:
            app = open_app(load_settings(settings, os.environ), whose_ever=True)
            opening.callback(app.ledger.close)
            disk = find_source(app, source).disk
            wanted = Wanted(task, source, shards=1, start=f"seq:{first}" if first > 1 else "earliest")
            row = open_task(app.ledger, disk, wanted, app.clock())
            self._ledger = app.ledger
            leases = Leases(app.ledger, app.identity, ttl=LEASE_SECONDS)
            holder = name_holder(f"spark-{uuid4().hex[:8]}", row.generation)
            self._lease = opening.enter_context(leases.hold_lease(shard_lease(task, 0), holder))
            self._opened = opening.pop_all()

    def move(self, point: StoragePoint) -> None:
        """Move the task's point forward to what the stream is done with."""
        with self._ledger.write() as connection:
            assert_held(connection, self._lease)
            before = read_points(connection, self._name)[0]
            if point.order > before.order:
                after = replace(point, version_ts=before.version_ts)
                move_point(connection, (self._name, 0), before, after, fence=self._lease.fence)

    def close(self) -> None:
        self._opened.close()
