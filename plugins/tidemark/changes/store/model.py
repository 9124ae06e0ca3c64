"""What a change store holds: transactions of records. Frozen values.

Rows of one statement and table are one `Rows`: an Arrow batch whose schema follows from the table's `Shape`. A value has
three states: a value, null, or `ABSENT` (the source logged no such column). A shape is stored by its content, so two tables
made alike at different times have the same shape.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tidemark.errors import CorruptionError


class Absent(enum.Enum):
    """The third state beside a value and null."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
Value = int | float | str | bytes | None | Absent


class Kind(enum.StrEnum):
    """How a column's values are stored. The caller turns what is none of these (decimals, times, JSON) into exact text."""

    INT64 = "int64"
    UINT64 = "uint64"
    FLOAT64 = "float64"
    TEXT = "text"
    BYTES = "bytes"


class Op(enum.IntEnum):
    """What became of a row."""

    INSERT = ord("I")
    UPDATE = ord("U")
    DELETE = ord("D")
    READ = ord("R")  # of a bootstrap

    @property
    def has_before(self) -> bool:
        return self in (Op.UPDATE, Op.DELETE)

    @property
    def has_after(self) -> bool:
        return self is not Op.DELETE


@dataclass(frozen=True)
class Column:
    """A column. `type` is the source's own text, for readers."""

    name: str
    kind: Kind
    type: str = ""
    key: bool = False


@dataclass(frozen=True)
class Shape:
    """A table as it was while its rows were logged."""

    database: str
    table: str
    columns: tuple[Column, ...]

    def as_json(self) -> str:
        columns = [[c.name, c.kind, c.type, c.key] for c in self.columns]
        return json.dumps([self.database, self.table, columns], ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Shape:
        database, table, columns = json.loads(text)
        return cls(database, table, tuple(Column(name, Kind(kind), type_, key) for name, kind, type_, key in columns))

    def arrow_schema(self) -> Any:
        """The Arrow schema of this shape's rows: `op`, which columns are absent, then `b0…` before and `a0…` after."""
        import pyarrow as pa

        types = {
            Kind.INT64: pa.int64(),
            Kind.UINT64: pa.uint64(),
            Kind.FLOAT64: pa.float64(),
            Kind.TEXT: pa.string(),
            Kind.BYTES: pa.binary(),
        }
        fields = [("op", pa.uint8()), ("before_absent", pa.binary()), ("after_absent", pa.binary())]
        fields += [(f"{side}{number}", types[c.kind]) for side in "ba" for number, c in enumerate(self.columns)]
        return pa.schema(fields, metadata={b"shape": self.as_json().encode()})


@dataclass(frozen=True)
class Row:
    """One row of a `Rows`. `before` or `after` is None where the operation has none."""

    op: Op
    before: tuple[Value, ...] | None
    after: tuple[Value, ...] | None


class Rows:
    """Rows of one table in their order: `count` rows of the Arrow batch `whole` from `start` on, or all of them.

    `whole` has the schema `shape.arrow_schema()`, and may have more columns behind it. Neighbours may share it, so that rows
    of many transactions are decoded, kept and encoded together.
    """

    __slots__ = ("count", "shape", "start", "whole")

    def __init__(self, shape: Shape, whole: Any, start: int = 0, count: int | None = None) -> None:
        self.shape = shape
        self.whole = whole
        self.start = start
        self.count: int = whole.num_rows if count is None else count

    @property
    def batch(self) -> Any:
        """These rows alone, as an Arrow batch."""
        is_all = self.start == 0 and self.count == self.whole.num_rows
        return self.whole if is_all else self.whole.slice(self.start, self.count)

    @property
    def letters(self) -> Any:
        """The operation of each row: `I`, `U`, `D`, `R`, as an Arrow array of a dictionary."""
        import numpy as np
        import pyarrow as pa

        codes = sorted(Op)
        places = np.searchsorted(codes, view_numbers(self.batch.column(0))).astype(np.int8)
        offsets = np.arange(len(codes) + 1, dtype=np.int32)
        letters = pa.Array.from_buffers(pa.string(), len(codes), [None, pa.py_buffer(offsets), pa.py_buffer(bytes(codes))])
        return pa.DictionaryArray.from_arrays(make_numbers(places), letters)

    def image(self, side: int) -> tuple[Any, Any]:
        """The columns of a side (0: before, 1: after) as Arrow arrays, and of which rows the operation has no such image."""
        import numpy as np

        batch, width = self.batch, len(self.shape.columns)
        ops = [op for op in Op if (op.has_after if side else op.has_before)]
        has_none = ~np.isin(view_numbers(batch.column(0)), ops)
        return batch.columns[3 + side * width : 3 + (side + 1) * width], has_none

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows):
            return NotImplemented
        return self.shape == other.shape and bool(self.batch == other.batch)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Rows({self.shape.database}.{self.shape.table}, {list(self.rows())})"

    @classmethod
    def of(cls, shape: Shape, rows: Sequence[Row]) -> Rows:
        """Make a batch of rows that are given one by one."""
        import pyarrow as pa

        width = len(shape.columns)
        sides = [[row.before for row in rows], [row.after for row in rows]]
        columns: list[list[Any]] = [[row.op.value for row in rows]]
        columns += [[_absent_bits(values) for values in side] for side in sides]
        for side in sides:
            for number in range(width):
                column = [None if values is None else values[number] for values in side]
                columns.append([None if value is ABSENT else value for value in column])
        schema = shape.arrow_schema()
        arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
        return cls(shape, pa.record_batch(arrays, schema=schema))

    def rows(self) -> Iterator[Row]:
        """The rows as Python values."""
        width = len(self.shape.columns)
        columns = [column.to_pylist() for column in self.batch.columns[: 3 + 2 * width]]
        for op, before_absent, after_absent, *values in zip(*columns, strict=True):
            kind = Op(op)
            yield Row(
                kind,
                _mark_absent(values[:width], before_absent) if kind.has_before else None,
                _mark_absent(values[width:], after_absent) if kind.has_after else None,
            )


@dataclass(frozen=True)
class SchemaChange:
    """The shape that the next rows of its table have."""

    shape: Shape


@dataclass(frozen=True)
class Ddl:
    """A statement that changed definitions, as the source logged it."""

    database: str
    sql: str


@dataclass(frozen=True)
class Mark:
    """Anything else that has a place in the order: `heartbeat`, `gap`, `bootstrap_begin` … `text` belongs to the word."""

    word: str
    text: str = ""


Record = Rows | SchemaChange | Ddl | Mark


class BinlogInfo(NamedTuple):
    """Where a transaction stands at its source. `order`: by change id, file, offset, event index.

    `timestamp`: microseconds since 1970 UTC, of the commit. `uuid` and `transaction_id` are parts of the GTID for readers.
    """

    change_id: int = 0
    server_id: int = 0
    file: int = 0
    offset: int = 0
    uuid: bytes = bytes(16)
    transaction_id: int = 0
    event_index: int = 0
    timestamp: int = 0

    @property
    def order(self) -> tuple[int, int, int, int]:
        return self.change_id, self.file, self.offset, self.event_index


class Transaction(NamedTuple):
    """The unit of appending, resuming, finding and counting. `gtid_offset`: number of transactions in the source's GTID set
    with this one; it never falls."""

    info: BinlogInfo
    gtid: str = ""
    gtid_offset: int = 0
    records: tuple[Record, ...] = ()


def _absent_bits(values: tuple[Value, ...] | None) -> bytes | None:
    """One bit a column, least significant first; None where no column is absent."""
    if values is None or ABSENT not in values:
        return None
    bits = sum(1 << number for number, value in enumerate(values) if value is ABSENT)
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _mark_absent(values: list[Any], absent: bytes | None) -> tuple[Value, ...]:
    if absent is None:
        return tuple(values)
    bits = int.from_bytes(absent, "little")
    if bits >> len(values):
        raise CorruptionError("a row says that columns are absent which its table does not have")
    return tuple(ABSENT if bits >> number & 1 else value for number, value in enumerate(values))


# numbers between Arrow and numpy; pa.array, pa.scalar and to_numpy import pandas, 0.3 s of a process


def view_numbers(array: Any) -> Any:
    """A column of numbers as numpy has them, without a copy and read only. In place of a null stands any number."""
    import numpy as np
    import pyarrow as pa

    if array.null_count:
        array = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    return np.from_dlpack(array)


def make_numbers(numbers: Any) -> Any:
    """An Arrow array of numpy's numbers or truth values, without a null. Numbers are not copied."""
    import numpy as np
    import pyarrow as pa

    if numbers.dtype == np.bool_:
        bits = pa.py_buffer(np.packbits(numbers, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(numbers), [None, bits])
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, data])
