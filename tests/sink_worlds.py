"""Sinks for tests: a source whose store the test fills, transaction by transaction, and what a sink has of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Any
from uuid import UUID

from tests.commanded import Said, run_here
from tidemark.app import App, open_app
from tidemark.changes.bootstrap.state import BEGIN, END
from tidemark.changes.sinks.deliver import Delivered, Request, Sink, deliver_sink, find_sink
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Column, Ddl, Kind, Mark, Op, Record, Row, Rows, Shape, Transaction
from tidemark.changes.store.write import Limits as StoreLimits
from tidemark.changes.store.write import Writer
from tidemark.engines.task import KINDS, Outcome
from tidemark.engines.worker import run_task
from tidemark.settings.load import load_settings

SERVER = UUID("11111111-2222-3333-4444-555555555555")
ORDERS = Shape(
    "shop",
    "orders",
    (
        Column("id", Kind.INT64, "bigint not null", key=True),
        Column("name", Kind.TEXT, "varchar(20)"),
        Column("paid", Kind.TEXT, "decimal(10,2)"),
    ),
)
LIMITS = StoreLimits(bucket_bytes=60_000, block_bytes=2_000, index_bytes=1_000, block_seconds=1e9, group_seconds=1e9)
START = 1_790_000_000_000_000  # 2026-09-21, in microseconds


def inserted(*values: Any) -> Row:
    return Row(Op.INSERT, None, values)


def read(*values: Any) -> Row:
    return Row(Op.READ, None, values)


def deleted(*values: Any) -> Row:
    return Row(Op.DELETE, values, None)


def updated(before: Sequence[Any], after: Sequence[Any]) -> Row:
    return Row(Op.UPDATE, tuple(before), tuple(after))


class SinkWorld:
    """The source `orders`, and its sink `lake`."""

    def __init__(self, folder: Path, kind: str, more: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.config = folder / "tidemark.toml"
        self.config.write_text(
            '[sources.orders]\nstore = "store"\n'
            f'[sinks.lake]\nsource = "orders"\nkind = "{kind}"\ntarget = "lake"\nshards = 2\n{more}',
            encoding="utf-8",
        )
        self.target = folder / "lake"
        self.disk = Disk(folder / "store")
        self.count = 0

    def append(self, *transactions: Sequence[Record] | Record | Sequence[Row]) -> None:
        """Append transactions: of records, or of rows of `ORDERS`."""
        with Writer(self.disk, self.count + 1, LIMITS) as writer:
            for found in transactions:
                self.count += 1
                records = [found] if isinstance(found, Mark | Ddl | Rows) else list(found)
                if records and isinstance(records[0], Row):
                    records = [Rows.of(ORDERS, records)]  # type: ignore[arg-type]
                info = BinlogInfo(1, 7, 1, 1000 * self.count, SERVER.bytes, self.count, 0, START + self.count * 1_000_000)
                made = Transaction(info, f"{SERVER}:{self.count}", self.count, (*records, Mark("commit", "xid")))
                writer.append(made, f"{SERVER}:1-{self.count}")

    def append_large(self, *records: Record) -> None:
        """Append one transaction, in several blocks where it is larger than one."""
        with Writer(self.disk, self.count + 1, LIMITS) as writer:
            self.count += 1
            info = BinlogInfo(1, 7, 1, 1000 * self.count, SERVER.bytes, self.count, 0, START + self.count * 1_000_000)
            writer.append_large(Transaction(info, f"{SERVER}:{self.count}", self.count), records, f"{SERVER}:1-{self.count}")

    def bootstrap(self, *rows: Row, table: str = "shop.orders") -> None:
        """Append a reading of all rows of a table."""
        self.append(Mark(BEGIN, table), *([rows] if rows else []), Mark(END, table))

    def app(self) -> App:
        return open_app(load_settings(self.config, {}), whose_ever=True)

    def sink(self) -> Sink:
        return find_sink(self.app(), "lake")

    def deliver(self, request: Request | None = None) -> Delivered:
        return deliver_sink(self.sink(), request)

    def run(self, *words: str) -> Said:
        return run_here(self.config, "changes", *words)

    def run_status(self) -> Said:
        return run_here(self.config, "status")

    def files(self) -> dict[str, bytes]:
        """The Parquet files of the target, by their path below it."""
        return {str(path.relative_to(self.target)): path.read_bytes() for path in sorted(self.target.rglob("*.parquet"))}


class Model:
    """A made-up source: random changes of `ORDERS`, and its rows as they are now."""

    def __init__(self, seed: int, keys: int = 30) -> None:
        self.choice = Random(seed)
        self.keys = keys
        self.rows: dict[int, tuple[Any, ...]] = {}

    def change(self) -> list[Row]:
        """The rows of one transaction, done to `rows`."""
        return [self._change_one() for _ in range(self.choice.randint(1, 6))]

    def _change_one(self) -> Row:
        key = self.choice.randrange(self.keys)
        before = self.rows.pop(key, None)
        if before is None:
            self.rows[key] = (key, f"n{self.choice.randrange(1000)}", f"{self.choice.randrange(10_000)}.50")
            return inserted(*self.rows[key])
        if self.choice.random() < 0.3:
            return deleted(*before)
        free = [number for number in range(self.keys) if number not in self.rows]
        new = self.choice.choice(free) if self.choice.random() < 0.3 else key
        self.rows[new] = (new, f"n{self.choice.randrange(1000)}", before[2])
        return updated(before, self.rows[new])


class InlineEngine:
    """An engine that runs tasks in this process, last one first, each twice, pickled as on their way to executors. `tasks`:
    how many there were of each class."""

    name = "inline"

    def __init__(self) -> None:
        self.tasks: dict[str, int] = {}

    def run(self, kind: str, tasks: Sequence[Any]) -> Iterator[Outcome]:
        function = resolve_name(KINDS[kind])
        for index, task in reversed(list(enumerate(tasks))):
            name = type(task).__name__
            self.tasks[name] = self.tasks.get(name, 0) + 1
            sent = pickle.dumps(task)
            run_task(function, pickle.loads(sent))
            value, error = pickle.loads(pickle.dumps(run_task(function, pickle.loads(sent))))
            yield Outcome(index, value, error)
