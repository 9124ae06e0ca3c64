"""Tasks for tests: a store whose every row is known, and members of its tasks with or without threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

from tidemark.changes.delivery import tasks
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.stream import Options, Stream
from tidemark.changes.delivery.tasks import Wanted, open_task
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Column, Kind, Mark, Op, Row, Rows, Shape, Transaction
from tidemark.changes.store.write import Limits, Writer
from tidemark.ledger.database import Ledger
from tidemark.ledger.delivery import StoragePoint, read_points
from tidemark.ledger.leases import Leases, this_process
from tidemark.ledger.migrations import migrate_ledger

SERVER = UUID("11111111-2222-3333-4444-555555555555")
ORDERS = Shape("shop", "orders", (Column("id", Kind.INT64, "bigint", key=True), Column("n", Kind.INT64, "bigint")))
NOTES = Shape("shop", "notes", (Column("id", Kind.INT64, "bigint", key=True), Column("n", Kind.INT64, "bigint")))
LIMITS = Limits(bucket_bytes=60_000, block_bytes=6_000, index_bytes=1_000, block_seconds=1e9, group_seconds=1e9)
KEYS = 97
START = 1_790_000_000_000_000  # 2026-09-21, in microseconds
Change = tuple[int, int]
"""(transaction, row) of a change."""


def keys_of(number: int) -> list[int]:
    """The keys of a transaction's rows, in their order, as `fill_store` makes it."""
    rows = range(number % 7)
    return [(number + row) % KEYS for row in ([*rows[::2], *rows[1::2]] if number % 4 == 0 else rows)]


def make_transaction(number: int, rows: int, tables: Iterable[Shape] = (ORDERS,), *, minutes: int = 1) -> Transaction:
    """The `number`-th transaction: `rows` inserts of keys that many transactions share; `n` tells the order."""
    info = BinlogInfo(1, 7, 1, 1000 * number, SERVER.bytes, number, 0, START + number * minutes * 60_000_000)
    shapes = list(tables)
    records = []
    for place, shape in enumerate(shapes):
        own = [Row(Op.INSERT, None, ((number + row) % KEYS, number * 1000 + row)) for row in range(place, rows, len(shapes))]
        if own:
            records.append(Rows.of(shape, own))
    return Transaction(info, f"{SERVER}:{number}", number, (*records, Mark("commit", "xid")))


def gtids_at(number: int) -> str:
    return f"{SERVER}:1-{number}" if number > 1 else f"{SERVER}:1" if number else ""


def fill_store(root: Path, first: int, last: int, *, fence: int = 1, minutes: int = 1) -> Disk:
    """Append transactions `first` to `last`, of 0 to 6 rows, some of two tables."""
    disk = Disk(root)
    with Writer(disk, fence, LIMITS) as writer:
        for number in range(first, last + 1):
            tables = (ORDERS, NOTES) if number % 4 == 0 else (ORDERS,)
            writer.append(make_transaction(number, number % 7, tables, minutes=minutes), gtids_at(number))
    return disk


def write_store(folder: Path, last: int) -> Path:
    """A store of the source `orders`, with transactions 1 to `last`, and a ledger. Returns their settings."""
    fill_store(folder / "store", 1, last)
    file = folder / "tidemark.toml"
    file.write_text('[ledger]\nurl = "sqlite:///ledger.db"\n[sources.orders]\nstore = "store"\n')
    return file


def expected_changes(first: int, last: int) -> set[Change]:
    return {(number, row) for number in range(first, last + 1) for row in range(number % 7)}


def changes_of(batch: Batch) -> list[Change]:
    return [(row["seq"], row["i"]) for row in batch.to_pylist()]


class World:
    """A store, a ledger, and members that this process plays."""

    def __init__(self, folder: Path, last: int = 60) -> None:
        self.folder = folder
        self.disk = fill_store(folder / "store", 1, last)
        self.last = last
        self.ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
        migrate_ledger(self.ledger)

    def member(
        self,
        options: Options | None = None,
        *,
        leases: Leases | None = None,
        start: str = "earliest",
        shards: int | None = 4,
    ) -> Stream:
        task = open_task(self.ledger, self.disk, Wanted("billing", "orders", shards, start=start), 1000.0)
        return Stream(leases or Leases(self.ledger, this_process()), self.disk, task, lambda _d, _t: True, options)

    def rewind(self, to: str, shards: Sequence[int] = ()) -> None:
        change = tasks.plan_rewind(self.ledger, self.disk, lambda _d, _t: True, "billing", to, shards)
        tasks.apply_change(self.ledger, change, "rewind")

    def reshard(self, shards: int) -> None:
        change = tasks.plan_reshard(self.ledger, self.disk, lambda _d, _t: True, "billing", shards)
        tasks.apply_change(self.ledger, change, "reshard")

    def points(self) -> dict[int, StoragePoint]:
        with self.ledger.read() as connection:
            return read_points(connection, "billing")
