"""The store of `bench delivery`: a table of ten columns, changed in transactions of 1,000 rows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Column, Kind, Mark, Op, Rows, Shape, Transaction
from tidemark.changes.store.write import Writer

ROWS, STATEMENT = 1_000_000, 1_000
BEGIN = 1_790_000_000_000_000  # microseconds since 1970
UUID = "0198b1a1-c2d3-11f0-8899-aabbccddeeff"
SHAPE = Shape(
    "bench",
    "bulk",
    (
        Column("id", Kind.UINT64, "bigint unsigned not null", key=True),
        Column("device", Kind.TEXT, "varchar(40) not null"),
        Column("ts", Kind.TEXT, "datetime(6) not null"),
        Column("v", Kind.FLOAT64, "double"),
        Column("q", Kind.UINT64, "tinyint unsigned"),
        Column("price", Kind.TEXT, "decimal(18,6)"),
        Column("at", Kind.TEXT, "timestamp(3) not null"),
        Column("note", Kind.TEXT, "varchar(400)"),
        Column("state", Kind.TEXT, "enum('on','off','fault')"),
        Column("n", Kind.INT64, "int"),
    ),
)


Step = tuple[Op, Any]
"""What a transaction does, and to which ids."""


def make_store(folder: Path, count: int = ROWS) -> None:
    """Two thirds inserts, a quarter updates, deletes: as the load of `bench changes`."""
    inserted, updated = count * 8 // 12, count * 3 // 12

    def choose(first: int) -> Op:
        return Op.INSERT if first < inserted else Op.UPDATE if first < inserted + updated else Op.DELETE

    write_steps(folder, ((choose(first), range_of(first, inserted)) for first in range(0, count, STATEMENT)))


def range_of(first: int, most: int) -> Any:
    """The ids of a transaction, from `first` on; behind `most` they begin anew."""
    return np.arange(first, first + STATEMENT, dtype=np.uint64) % np.uint64(most)


def write_steps(folder: Path, steps: Iterable[Step], *, apart_micros: int = 1000) -> None:
    """A store with a transaction for each step, so long after the one before."""
    writer = Writer(Disk(folder), 1)
    for seq, (op, ids) in enumerate(steps, 1):
        server = bytes.fromhex(UUID.replace("-", ""))
        place = BinlogInfo(1, 1, 1, 1000 * seq, server, seq, 0, BEGIN + seq * apart_micros)
        found = Transaction(place, f"{UUID}:{seq}", seq, (make_rows(op, ids), Mark("commit", "xid")))
        writer.append(found, f"{UUID}:1-{seq}")
    writer.close()


def make_rows(op: Op, ids: Any) -> Rows:
    old, new = _make_image(ids, 0), _make_image(ids, 1)
    none = [pa.nulls(STATEMENT, column.type) for column in old]
    absent = pa.nulls(STATEMENT, pa.binary())
    columns = [pa.array(np.full(STATEMENT, op, np.uint8)), absent, absent]
    columns += [*(old if op.has_before else none), *(new if op.has_after else none)]
    return Rows(SHAPE, pa.RecordBatch.from_arrays(columns, schema=SHAPE.arrow_schema()))


def _make_image(ids: Any, version: int) -> list[Any]:
    dice = np.random.default_rng(int(ids[0]) * 2 + version)
    noise = dice.integers(0, 10**9, len(ids))
    minutes = [f"{number % 24:02}:{number % 60:02}" for number in ids.tolist()]
    return [
        pa.array(ids),
        pa.array([f"dev-{number % 5000:05}" for number in ids.tolist()]),
        pa.array(
            [f"2025-01-{1 + n % 28:02} {m}:{n % 60:02}.{n % 1_000_000:06}" for n, m in zip(noise, minutes, strict=True)]
        ),
        pa.array(dice.uniform(-1000, 1000, len(ids))),
        pa.array(dice.integers(0, 256, len(ids)).astype(np.uint64)),
        pa.array([f"{number % 10**6}.{number % 999_983:06}" for number in noise.tolist()]),
        pa.array(
            [f"2025-02-01 {minute}:{n % 60:02}.{n % 1000:03}" for n, minute in zip(ids.tolist(), minutes, strict=True)]
        ),
        pa.array([f"note {n} " * (1 + number % 9) for n, number in zip(noise.tolist(), ids.tolist(), strict=True)]),
        pa.array([("on", "off", "fault")[number % 3] for number in noise.tolist()]),
        pa.array(dice.integers(-(10**9), 10**9, len(ids))),
    ]
