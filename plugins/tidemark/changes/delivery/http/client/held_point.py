"""The point of a task of one shard, held at the task's readers by one who fetches spans.

The shard is held by a lease at each reader that answers, for readers may have a ledger each. So of two holders the second
one is refused, and so is a consumer of the task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from tidemark.changes.delivery.http.client.readers import Reader, Told, most_telling
from tidemark.changes.delivery.stream import LEASE_SECONDS
from tidemark.changes.delivery.tasks import Wanted
from tidemark.errors import LeaseHeldError, TidemarkError
from tidemark.ledger.delivery import StoragePoint

RENEW_SECONDS = LEASE_SECONDS / 3
PATIENCE_SECONDS = LEASE_SECONDS + 5
"""So long the lease of a holder that died is waited for: a reader does not see who lives on another machine."""
AGAIN_SECONDS = 1.0


class HeldPoint:
    """A task's point, from when it is made until `close`. A task that has not begun begins at the point that is given.

    A thread renews the leases. A reader that is away is held again when it answers; until then its retention keeps more.
    Raises what says most where no reader answers. LeaseHeldError: a member, or another holder, has the shard at one of them.
    """

    def __init__(self, readers: Sequence[Reader], task: str, source: str, point: StoragePoint) -> None:
        start = f"seq:{point.seq}" if point.seq > 1 else "earliest"
        self._wanted = Wanted(task, source, shards=1, start=start)
        self._readers = readers
        self._name = f"span-{uuid4().hex[:12]}"
        self._asking = threading.Lock()
        self._ended = threading.Event()
        try:
            self._take(time.monotonic() + PATIENCE_SECONDS)
            self.move(point)
        except BaseException:
            self._leave()
            raise
        self._thread = threading.Thread(target=self._renew, name="point of a task", daemon=True)
        self._thread.start()

    def move(self, point: StoragePoint) -> None:
        """Move the point forward, at each reader that answers. Errors as of the class."""

        # CRASH WINDOW: the point is moved at some readers. The others keep more until the next one is moved.
        def move_at(reader: Reader) -> None:
            told = self._hold_at(reader)
            assert told.task is not None
            moved = replace(point, version_ts=told.points[0].version_ts)
            if reader.commit(told.task, {0: moved}, self._name).refused:
                raise self._held_error(reader)

        self._ask_each(move_at)

    def close(self) -> None:
        """Let the shard go, at each reader that answers."""
        self._ended.set()
        self._thread.join()
        self._leave()

    def _take(self, give_up: float) -> None:
        while True:
            try:
                return self._ask_each(self._hold_at)
            except LeaseHeldError:
                if time.monotonic() >= give_up:
                    raise
            time.sleep(AGAIN_SECONDS)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with suppress(TidemarkError):  # the next `move` tells it
                self._ask_each(self._hold_at)

    def _ask_each(self, ask: Callable[[Reader], object]) -> None:
        refused: list[Exception] = []
        with self._asking:
            for reader in self._readers:
                try:
                    ask(reader)
                except TidemarkError as wrong:
                    refused.append(wrong)
        if held := next((one for one in refused if isinstance(one, LeaseHeldError)), None):
            raise held
        if len(refused) == len(self._readers):
            raise most_telling(refused)

    def _hold_at(self, reader: Reader) -> Told:
        told = reader.begin(self._wanted)
        assert told.task is not None
        held = reader.hold(told.task, self._name, (), [0])
        if 0 not in held.held:
            raise self._held_error(reader)
        return held

    def _held_error(self, reader: Reader) -> LeaseHeldError:
        task = self._wanted.name
        return LeaseHeldError(
            f"another stream, or a member, of task {task} has its shard at {reader.url}, or rewound it",
            hint="end the other stream and the consumers of the task; or give another task",
            subject=task,
        )

    def _leave(self) -> None:
        # CRASH WINDOW: the leases are held by nobody who lives. They expire.
        def leave(reader: Reader) -> None:
            told = reader.begin(replace(self._wanted, start=""))
            if told.task is not None:
                reader.hold(told.task, self._name, (), [0], leaves=True)

        with suppress(TidemarkError):
            self._ask_each(leave)
        for reader in self._readers:
            reader.close()
