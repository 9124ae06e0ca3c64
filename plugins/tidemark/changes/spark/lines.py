"""Rows of any tables, and what is no row, with canonical JSON. Without Spark.

`before` and `after` are objects by column, in the table's order, without spaces. A column that the source did not log is
left out; bytes are `{"hex": "…"}`; all else is as `changes read` has it. `detail` has what only some kinds of lines have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidemark.changes.capture.identity import Origin
from tidemark.changes.delivery.export import as_json, describe_record
from tidemark.changes.delivery.shards import INDEX, MOVED, ShardPiece
from tidemark.changes.spark.columns import PLACE, SHARD, TEXT, name_log
from tidemark.changes.spark.plan import ByShard
from tidemark.changes.store.model import ABSENT, Rows, Shape, Value

_BATCH = 8192
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
Line = dict[str, Any]


def line_schema(*, sharded: bool) -> pa.Schema:
    """The columns of a frame of lines."""
    texts = [(name, TEXT) for name in ("db", "table", "op", "before", "after", "detail")]
    return pa.schema([("k", TEXT), *PLACE, *(SHARD if sharded else ()), *texts])


class LineRows:
    """Makes Arrow batches of a frame's schema. `controls`: also of what is no row."""

    def __init__(self, schema: pa.Schema, origin: Origin | None, *, controls: bool) -> None:
        self.schema = schema
        self._origin = origin
        self._controls = controls

    def convert(self, blocks: ByShard) -> Iterator[pa.RecordBatch]:
        waiting: list[Line] = []
        for shard, pieces in sorted(blocks.items()):
            for piece in pieces:
                waiting.extend(self._describe(piece, shard))
                if len(waiting) >= _BATCH:
                    yield self._make_batch(waiting)
                    waiting = []
        if waiting:
            yield self._make_batch(waiting)

    def _make_batch(self, lines: list[Line]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(lines, schema=self.schema)

    def _describe(self, piece: ShardPiece, shard: int) -> Iterator[Line]:
        info = piece.transaction.info
        head = {
            "seq": piece.seq,
            "file": name_log(info, self._origin),
            "txn_pos": info.offset,
            "gtid": piece.transaction.gtid,
            "ts": info.timestamp,
            "shard": shard,
        }
        for record in piece.transaction.records:
            if isinstance(record, Rows):
                yield from _describe_rows(head, record)
            elif self._controls:
                for line in describe_record({}, record, piece.rows, {}):
                    known: Line = {name: line.pop(name) for name in ("k", "db") if name in line}
                    yield {**head, **known, "detail": _ENCODE(line)}


def _describe_rows(head: Line, rows: Rows) -> Iterator[Line]:
    same = {"k": "row", **head, "db": rows.shape.database, "table": rows.shape.table}
    extra = (rows.batch.column(name).to_pylist() for name in (INDEX, MOVED))
    for row, number, moved in zip(rows.rows(), *extra, strict=True):
        sides = {"before": _encode_image(row.before, rows.shape), "after": _encode_image(row.after, rows.shape)}
        yield {**same, "i": number, "moved": moved, "op": chr(row.op), **sides}


def _encode_image(values: Sequence[Value] | None, shape: Shape) -> str | None:
    told = as_json(values)
    if told is None or values is None:
        return None
    pairs = zip(shape.columns, values, told, strict=True)
    return _ENCODE({column.name: shown for column, value, shown in pairs if value is not ABSENT})
