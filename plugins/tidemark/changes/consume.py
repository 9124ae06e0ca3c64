"""Tasks as programs and commands see them: `subscribe`, and what `./tidemark changes consume|rewind|reshard` does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tidemark.app import App
from tidemark.app import open_app as open_settings
from tidemark.changes.capture.identity import read_origin
from tidemark.changes.delivery import tasks
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.export import Stream as LineStream
from tidemark.changes.delivery.export import choose_tables
from tidemark.changes.delivery.lines import DEBEZIUM, AppendedFile, DebeziumMaker, LineMaker, encode_lines
from tidemark.changes.delivery.stream import LEASE_SECONDS, LONGEST_WAIT, BatchStream, GivenPoints, Options, Stream
from tidemark.changes.delivery.tasks import Change, Wanted
from tidemark.changes.sources.source import Source, find_source
from tidemark.errors import RetryableError, UsageError
from tidemark.ledger.delivery import Letters, note_letters
from tidemark.ledger.leases import Leases, this_process
from tidemark.settings.load import load_settings

if TYPE_CHECKING:
    from tidemark.changes.delivery.http.client.member import ReaderStream

DURABLE_BATCHES = 1000
"""Batches that are written before their files are made durable, at most."""


def subscribe(  # noqa: PLR0913 (each is one word of what is asked for)
    task: str,
    *,
    source: str,
    tables: Sequence[str] | None = None,
    shards: int | None = None,
    start: str = "earliest",
    columns: Mapping[str, Sequence[str]] | None = None,
    hash: str | None = None,
    key_change: str | None = None,
    point: GivenPoints | None = None,
    rows: int = 8192,
    controls: bool = False,
    follow: bool = True,
    checkpoint_seconds: float = 5.0,
    settings: Path | str | None = None,
    url: str | Sequence[str] = (),
    token: str = "",
    ca: str = "",
    only: Sequence[int] | None = None,
) -> BatchStream:
    """Become a member of a task; its first one begins it. Use it with `with`; start as many processes as you like.

    `tables`, `shards`, `columns` (shard columns of a table), `hash`, `key_change`: of the task; left out, they are as the
    task has them, or 8 shards of all tables by primary key. `start`: a POINT, where a new task begins. `point`: a function
    from a shard to the point of it that the consumer kept, or None. It is asked whenever this member begins the shard: a
    shard that went to another member and came back must not go on from an old one. `rows`: of a batch, at most.
    `controls`: also what is no row. `follow`: wait for more at the end. `settings`: the file; by default as the command
    finds it.

    `url`: of a reader, or of several ones of this source: from another machine, without settings, store and ledger. `token`:
    a line of their `changes.tokens`. `ca`: a file with the certificate that vouches for theirs. `only`: at readers, these
    shards; where readers have a ledger each, processes divide a task by it.
    """
    if point is not None and not callable(point):
        raise UsageError(
            f"`point` is a {type(point).__name__}, not a function from a shard to a point",
            hint="point=lambda shard: READ_POINT(shard), which is asked whenever a shard begins",
            subject=task,
        )
    wanted = Wanted(
        task,
        source,
        shards,
        hash,
        key_change,
        {table: tuple(names) for table, names in columns.items()} if columns is not None else None,
        tuple(tables) if tables is not None else None,
        start,
    )
    options = Options(rows, controls, follow, checkpoint_seconds, given=point)
    urls = (url,) if isinstance(url, str) and url else tuple(url)
    if urls:
        return open_readers(urls, token, wanted, options, ca=ca, only=only)
    if token or ca or only is not None:
        raise UsageError("token, ca and only are for readers", hint="give `url`, or leave them out", subject=task)
    return open_stream(open_settings(load_settings(settings, os.environ), whose_ever=True), wanted, options)


def open_stream(app: App, wanted: Wanted, options: Options) -> Stream:
    """A member of a task, which has not joined yet."""
    source = find_source(app, wanted.source)
    if wanted.name in app.settings.sinks:
        raise UsageError(
            f"{wanted.name} is a sink: its rows go to its tables alone",
            hint=f"./tidemark changes deliver {wanted.name}; or give the task another name",
            subject=wanted.name,
        )
    task = tasks.open_task(app.ledger, source.disk, wanted, app.clock())
    leases = Leases(app.ledger, app.identity, ttl=LEASE_SECONDS)
    stream = Stream(leases, source.disk, task, choose_tables(task.tables), options)
    host = app.identity.host
    stream.note_letters = lambda place, count, anew: _note_letters(app, Letters(task.name, host, place, count), anew)
    return stream


def _note_letters(app: App, letters: Letters, anew: bool) -> None:
    with suppress(RetryableError), app.ledger.write() as connection:  # where it is away, the next beginning counts
        note_letters(connection, letters, anew=anew)


def open_readers(
    urls: Sequence[str], token: str, wanted: Wanted, options: Options, *, ca: str = "", only: Sequence[int] | None = None
) -> ReaderStream:
    """A member of a task at readers, which has not joined yet."""
    from tidemark.changes.delivery.http.client.member import ReaderStream
    from tidemark.changes.delivery.http.client.readers import Address

    me = this_process()
    name = re.sub(r"[^A-Za-z0-9.-]", "-", f"{me.host[:100]}-{me.pid}-{uuid4().hex[:8]}")
    return ReaderStream(Address(urls, token, ca), name, wanted, options, only=only)


@dataclass(frozen=True)
class Readers:
    """Where `changes consume` reads without a store: addresses, the file of the token, a certificate, shards."""

    urls: Sequence[str]
    token_file: Path
    ca: str = ""
    only: Sequence[int] | None = None


@dataclass(frozen=True)
class Consumption:
    """What `changes consume` is asked for. `write`: where lines go without a folder. `limit`: rows, 0: all. `readers`: None
    of who has the store."""

    wanted: Wanted
    out: Path | None = None
    format: str = "jsonl"
    follow: bool = False
    limit: int = 0
    write: LineStream | None = None
    readers: Readers | None = None


@dataclass
class Consumed:
    """What was written: by shard, the rows, and the first and last transaction."""

    shards: dict[int, list[int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(rows for rows, _, _ in self.shards.values())

    def add(self, batch: Batch) -> None:
        one = self.shards.setdefault(batch.shard, [0, batch.segments[0].seq, 0])
        one[0] += len(batch)
        one[2] = batch.segments[-1].seq


def consume_task(app: App | None, asked: Consumption) -> Consumed:
    """Be a member of a task that writes what it gets: a file a shard. Points move once the files are durable.

    `app`: None where readers have the store. From them logs are told by their numbers.
    """
    options = Options(controls=asked.format != DEBEZIUM, follow=asked.follow, undone=2 * DURABLE_BATCHES)
    origin = None
    opened: BatchStream
    if asked.readers is not None:
        from tidemark.changes.delivery.http.tokens import read_token

        at = asked.readers
        opened = open_readers(at.urls, read_token(at.token_file), asked.wanted, options, ca=at.ca, only=at.only)
    else:
        assert app is not None
        origin, opened = read_origin(find_source(app, asked.wanted.source).disk), open_stream(app, asked.wanted, options)
    maker = DebeziumMaker(asked.wanted.source, origin) if asked.format == DEBEZIUM else LineMaker(origin)
    done, files, waiting = Consumed(), _Files(asked), list[Batch]()
    with opened as stream:
        settled = stream.clock()
        try:
            while not stream.is_finished and not (asked.limit and done.rows >= asked.limit):
                most = min(options.rows, asked.limit - done.rows) if asked.limit else 0
                batch = stream.next_batch(rows=most, patience=LONGEST_WAIT)
                if batch is not None:
                    files.write(batch, maker)
                    done.add(batch)
                    waiting.append(batch)
                is_due = stream.clock() - settled >= options.checkpoint_seconds
                if batch is None or is_due or len(waiting) >= DURABLE_BATCHES:
                    waiting, settled = _settle(files, waiting), stream.clock()
        finally:
            try:
                _settle(files, waiting)
            finally:
                files.close()
    return done


def _settle(files: _Files, waiting: Sequence[Batch]) -> list[Batch]:
    files.make_durable()
    # CRASH WINDOW: lines are durable and no point says so: they come again, behind those that are there.
    for batch in waiting:
        batch.done()
    return []


class _Files:
    """The files of shards, opened when they are first written to; or the one stream of all."""

    def __init__(self, asked: Consumption) -> None:
        self._asked = asked
        self._files: dict[int, AppendedFile] = {}
        self._written: set[int] = set()

    def write(self, batch: Batch, maker: LineMaker | DebeziumMaker) -> None:
        if self._asked.out is None:
            if self._asked.write is not None and (data := encode_lines(maker.describe(batch))):
                self._asked.write.write(data)
            return
        if batch.shard not in self._files:
            place = self._asked.out / f"{self._asked.wanted.name}-{batch.shard}.jsonl"
            self._files[batch.shard] = AppendedFile(place)
        self._files[batch.shard].write(maker.describe(batch))
        self._written.add(batch.shard)

    def make_durable(self) -> None:
        if self._asked.write is not None:
            self._asked.write.flush()  # lines that wait in a buffer die with this process
        for shard in self._written:
            self._files[shard].make_durable()
        self._written = set()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def plan_rewind(app: App, name: str, to: str, shards: Sequence[int] = ()) -> Change:
    """What would come again; see `tasks.plan_rewind`."""
    task, source = _find(app, name)
    return tasks.plan_rewind(app.ledger, source.disk, choose_tables(task.tables), name, to, shards, app.clock())


def plan_reshard(app: App, name: str, shards: int) -> Change:
    """What another number of shards would give twice; see `tasks.plan_reshard`."""
    task, source = _find(app, name)
    return tasks.plan_reshard(app.ledger, source.disk, choose_tables(task.tables), name, shards, app.clock())


def _find(app: App, name: str) -> tuple[Any, Source]:
    task = tasks.find_task(app.ledger, name)
    return task, find_source(app, task.source)
