"""The format `tidemark_changes` as Spark calls it, without Spark: frames, and streams of batches."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tests.delivery_worlds import LIMITS, NOTES, ORDERS, START, gtids_at, make_transaction
from tests.reader_worlds import RunningReader
from tidemark.changes.spark.source import ChangesSource, ChangesStreamReader
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import BinlogInfo, Column, Mark, Op, Record, Row, Rows, Shape, Transaction
from tidemark.changes.store.write import Writer

LAST = 60
Line = dict[str, Any]
Options = dict[str, object]


def make_source(**options: object) -> ChangesSource:
    return ChangesSource({name.rstrip("_"): str(value) for name, value in options.items()})


def read_parts(schema: StructType | None = None, **options: object) -> list[list[Line]]:
    """A frame, by partition."""
    source = make_source(**options)
    wanted = source.schema() if schema is None else schema
    reader = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source)).reader(wanted)))
    arrow = to_arrow_schema(wanted, timezone="UTC")
    found = []
    for partition in reader.partitions():
        batches = list(pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))))
        assert all(batch.schema.equals(arrow) for batch in batches)  # what Spark demands of the first
        found.append([row for batch in batches for row in batch.to_pylist()])
    return found


def read_frame(schema: StructType | None = None, **options: object) -> list[Line]:
    return [row for part in read_parts(schema, **options) for row in part]


def frame_of(**kinds: pa.DataType) -> StructType:
    """What a user gives to `.schema(…)`."""
    return from_arrow_schema(pa.schema(list(kinds.items())))


def places(rows: Sequence[Line]) -> list[tuple[int, int]]:
    return [(row["seq"], row["i"]) for row in rows]


class Stream:
    """A query as Spark runs it: batches of offsets, which are kept as JSON."""

    def __init__(self, offset: str = "", **options: object) -> None:
        source = make_source(**options)
        schema = source.schema()
        self.reader: ChangesStreamReader = pickle.loads(pickle.dumps(source)).streamReader(schema)
        self.offset = offset or json.dumps(self.reader.initialOffset())

    def plan_batch(self) -> bytes | None:
        """The parts of the next batch, as they are sent to tasks; None: there is nothing new."""
        start = json.loads(self.offset)
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if end == start:
            return None
        self.offset = json.dumps(end)
        return pickle.dumps(self.reader.partitions(start, json.loads(self.offset)))

    def read_parts(self, parts: bytes | None) -> list[Line]:
        """The rows of a batch that is planned, as tasks read them."""
        workers = pickle.loads(pickle.dumps(self.reader))
        return [row for part in pickle.loads(parts or b"") for batch in workers.read(part) for row in batch.to_pylist()]

    def read_batch(self) -> list[Line] | None:
        """The next batch; None: there is nothing new."""
        parts = self.plan_batch()
        return None if parts is None else self.read_parts(parts)

    def read_all(self) -> list[list[Line]]:
        return list(iter(self.read_batch, None))


def put(folder: Path, *records: Record, seq: int = 1, fence: int = 1) -> None:
    with Writer(Disk(folder), fence) as writer:
        info = BinlogInfo(1, 7, 1, 1000 * seq, bytes(15) + b"\1", seq, 0, START + seq)
        writer.append(Transaction(info, "", seq, (*records, Mark("commit", "xid"))), gtids_at(seq))


def shape(*columns: Column) -> Shape:
    return Shape("shop", "t", columns)


def inserts(table: Shape, *values: tuple[Any, ...]) -> Rows:
    return Rows.of(table, [Row(Op.INSERT, None, each) for each in values])


# readers of a store


def fill(reader: RunningReader, first: int, last: int) -> None:
    tables = {0: (ORDERS, NOTES)}
    reader.append(range(first, last + 1), lambda n: make_transaction(n, n % 7, tables.get(n % 4, (ORDERS,))))


def served(*readers: RunningReader, **more: object) -> Options:
    token = readers[0].folder.parent / "token"
    url = ",".join(reader.url for reader in readers)
    return {"url": url, "tokenFile": token, "task": "billing", "source": "orders", **more}


def shared(reader: RunningReader) -> Options:
    return {"store": reader.disk.root, "source": "orders"}


def copy_of(reader: RunningReader, name: str) -> RunningReader:
    """Another reader, of a copy of the store."""
    copy = RunningReader(reader.folder.parent / name)
    copy.writer.close()
    shutil.rmtree(copy.disk.root)
    shutil.copytree(reader.disk.root, copy.disk.root)
    copy.writer = Writer(copy.disk, 2, LIMITS)
    return copy
