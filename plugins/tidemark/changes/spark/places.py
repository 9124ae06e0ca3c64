"""Where a frame's blocks come from: a store's folder that all machines see, or readers of it, over HTTP.

A place is pickled for the tasks. Of a token it knows the file alone: each machine reads it when it asks.
"""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.changes.capture.identity import Origin
from tidemark.changes.delivery.blocks import DiskStretches, Stretches
from tidemark.changes.store.block import Chosen
from tidemark.changes.store.disk import Disk
from tidemark.errors import UnreachableError

if TYPE_CHECKING:
    from tidemark.changes.delivery.http.client.held_point import HeldPoint
    from tidemark.changes.delivery.http.client.spans import SpanReaders
    from tidemark.changes.delivery.spans import Span
    from tidemark.ledger.delivery import StoragePoint

TIMEOUT_SECONDS = 15.0
"""A reader must answer within, four times that where it is the only one: it may look through a whole store for columns."""
PATIENCE_SECONDS = 15.0


class TaskPoint(Protocol):
    """The point of a task, which follows a stream so that retention waits for it."""

    def move(self, point: StoragePoint) -> None: ...

    def close(self) -> None: ...


class Place(Protocol):
    """What a frame asks of the place of its blocks."""

    @property
    def name(self) -> str:
        """As errors call it."""

    @property
    def source(self) -> str: ...

    @property
    def task(self) -> str:
        """The task whose point follows a stream; "": none."""

    @property
    def is_remote(self) -> bool:
        """Whether a part must say with which transactions it was planned, for what answers may have others."""

    def find_span(self, start: str | StoragePoint, end: str = "", *, what: str = "", **limits: Any) -> Span:
        """A span of what is there now, asked for as `spans.SpanAsked`. `what`: whose point it begins with."""

    def read_blocks(self, part: Part, chosen: Chosen) -> Stretches:
        """The blocks of a part. `chosen`: the columns of rows that are decoded."""

    def open_task(self, point: StoragePoint) -> TaskPoint:
        """The task; one that has not begun begins at this point."""


@dataclass(frozen=True)
class Part:
    """What one task reads: transactions `first` to before `end`; of all shards, or of one. `origin`: how logs are named.
    `proof`: of a remote place, the points of both ends."""

    first: int
    end: int
    shard: int | None = None
    origin: Origin | None = None
    proof: tuple[StoragePoint, StoragePoint] | None = None


@dataclass(frozen=True)
class SharedStore:
    """A store's folder. `settings`: their file, which names the ledger of `task`; "" where the folder was named.

    Tasks import neither settings nor ledger.
    """

    root: str
    source: str
    settings: str = ""
    task: str = ""
    is_remote = False

    @property
    def name(self) -> str:
        return f"the store {self.root}"

    def find_span(self, start: str | StoragePoint, end: str = "", *, what: str = "", **limits: Any) -> Span:
        from tidemark.changes.delivery.spans import SpanAsked, find_span

        return find_span(Disk(Path(self.root)), SpanAsked(start, end, **limits), what=what)

    def read_blocks(self, part: Part, chosen: Chosen) -> Stretches:
        del part  # they are read in order
        return DiskStretches(Disk(Path(self.root)), chosen)

    def open_task(self, point: StoragePoint) -> TaskPoint:
        from tidemark.changes.spark.task_point import HeldTaskPoint

        return HeldTaskPoint(self.settings, self.source, self.task, point.seq)


@dataclass(frozen=True)
class Served:
    """Readers of the source. `task`: the one that the token is for. `refused`: the addresses that did not answer of late."""

    urls: tuple[str, ...]
    source: str
    task: str
    token_file: str
    ca: str = ""
    refused: set[str] = field(default_factory=set, compare=False)
    is_remote = True

    @property
    def name(self) -> str:
        return f"the store of {', '.join(self.urls)}"

    def find_span(self, start: str | StoragePoint, end: str = "", *, what: str = "", **limits: Any) -> Span:
        from tidemark.changes.delivery.spans import SpanAsked

        del what  # a reader calls it the point
        return self.open_readers().find_span(SpanAsked(start, end, **limits))

    def read_blocks(self, part: Part, chosen: Chosen) -> Stretches:
        assert part.proof is not None
        return self.open_readers().fetch_blocks(*part.proof, chosen)

    def open_task(self, point: StoragePoint) -> TaskPoint:
        held = self.open_readers().hold_point(point)
        _exit_on_sigterm()
        return ServedTaskPoint(held)

    def open_readers(self) -> SpanReaders:
        from tidemark.changes.delivery.http.client.readers import Address
        from tidemark.changes.delivery.http.client.spans import SpanReaders
        from tidemark.changes.delivery.http.tokens import read_token

        token = read_token(Path(self.token_file))
        address = Address(self.urls, token, self.ca, TIMEOUT_SECONDS, patience_seconds=PATIENCE_SECONDS)
        return SpanReaders(address, self.task, self.source, self.refused)


@dataclass(frozen=True)
class ServedTaskPoint:
    """The point of a task at readers, held by the stream."""

    held: HeldPoint

    def move(self, point: StoragePoint) -> None:
        with suppress(UnreachableError):  # retention keeps more until the next one
            self.held.move(point)

    def close(self) -> None:
        self.held.close()


def _exit_on_sigterm() -> None:
    """Let a SIGTERM, by which Spark ends the process that plans a stream, end it as an exit does: so the stream is stopped,
    and its lease released. A handler of the process's own stays."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
