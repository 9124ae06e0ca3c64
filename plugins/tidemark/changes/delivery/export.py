"""What a store holds, as lines of JSON or as Parquet, in the order of the store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.changes.capture.identity import Origin
from tidemark.changes.capture.transactions import COMMIT, XA_COMMIT, XA_PREPARE, XA_ROLLBACK
from tidemark.changes.store.model import ABSENT, Ddl, Mark, Record, Rows, Shape, Transaction, Value
from tidemark.changes.store.read import Reader
from tidemark.errors import UsageError, limits_named
from tidemark.stores.agent import durable

if TYPE_CHECKING:
    from tidemark.changes.delivery.shards import Sharding, ShardPiece

Shapes = dict[tuple[str, str], Shape]
Line = dict[str, Any]
Wants = Callable[[str, str], bool]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_XA = (XA_PREPARE, XA_COMMIT, XA_ROLLBACK)
_BATCH = 8192


class Stream(Protocol):
    """What lines can go to instead of a file."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...


@dataclass(frozen=True)
class Query:
    """Transactions `first` to before `end`, rows of tables that are wanted, of one shard (None: of all)."""

    first: int
    end: int
    wants: Wants
    sharding: Sharding | None = None
    shard: int = 0


@dataclass
class Exported:
    """What was written."""

    transactions: int = 0
    rows: int = 0


def choose_tables(tables: Sequence[str], exclude: Sequence[str] = ()) -> Wants:
    """Which tables patterns of `database.table` mean."""

    def wants(database: str, table: str) -> bool:
        name = f"{database}.{table}"
        return any(fnmatchcase(name, p) for p in tables) and not any(fnmatchcase(name, p) for p in exclude)

    return wants


def export(reader: Reader, origin: Origin | None, query: Query, out: Path | Stream) -> Exported:
    """Write what `query` asks for to a file (`.jsonl`, `.parquet`) or, as JSON lines, to a stream."""
    done = Exported()
    lines = make_lines(reader, origin, query, done)
    if not isinstance(out, Path):
        _write_json(lines, out)
        return done
    writers = {".jsonl": _write_json, ".parquet": _write_parquet}
    if out.suffix not in writers:
        raise UsageError(f"--out {out}: the name must end in .jsonl or .parquet", subject=str(out))
    with _open_output(out) as target:
        writers[out.suffix](lines, target)
    return done


def make_lines(reader: Reader, origin: Origin | None, query: Query, done: Exported) -> Iterator[Line]:
    """The lines of a stretch. `done` counts. Before the first row of a table's shape stands the shape."""
    shapes: Shapes = {}
    for piece in _read_shard(reader, query):
        head = describe_place(piece.seq, piece.transaction, origin)
        for record in piece.transaction.records:
            yield from describe_record(head, record, piece.rows, shapes)
            done.rows += record.count if isinstance(record, Rows) else 0
        done.transactions += piece.ends


def _read_shard(reader: Reader, query: Query) -> Iterator[ShardPiece]:
    from tidemark.changes.delivery.shards import Divider, Sharding  # it imports Arrow

    divider = Divider(query.sharding or Sharding(), query.wants)
    for stretch in reader.read_stretches(query.first) if query.first < query.end else ():
        for piece in divider.divide(stretch.pieces, [query.shard])[query.shard]:
            if piece.seq >= query.end:
                return
            if piece.seq >= query.first:
                yield piece


def describe_record(head: Line, record: Record, rows: int, shapes: Shapes) -> Iterator[Line]:
    """The lines of a record. `rows`: of its transaction, up to here. `shapes`: those that were told already, by table."""
    if isinstance(record, Rows):
        table = (record.shape.database, record.shape.table)
        if shapes.get(table) != record.shape:
            shapes[table] = record.shape
            yield describe_shape(head, record.shape)
        yield from describe_rows(head, record)
    elif isinstance(record, Ddl):
        yield {"k": "ddl", **head, "db": record.database, "sql": record.sql}
    elif isinstance(record, Mark):
        yield describe_mark(head, record, rows)


def describe_place(seq: int, transaction: Transaction, origin: Origin | None) -> Line:
    info = transaction.info
    file = origin.name_log(info.file, info.change_id) if origin else str(info.file)
    time = (_EPOCH + timedelta(microseconds=info.timestamp)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"seq": seq, "file": file, "txn_pos": info.offset, "gtid": transaction.gtid, "ts": time}


def describe_shape(head: Line, shape: Shape) -> Line:
    columns = [{"name": c.name, "type": c.type, "key": c.key} for c in shape.columns]
    return {"k": "schema", **head, "db": shape.database, "table": shape.table, "columns": columns}


def describe_rows(head: Line, rows: Rows) -> Iterator[Line]:
    table = {"db": rows.shape.database, "table": rows.shape.table}
    extra = (rows.batch.column(name).to_pylist() for name in ("i", "moved"))
    for row, number, moved in zip(rows.rows(), *extra, strict=True):
        before, after = as_json(row.before), as_json(row.after)
        line = {"k": "row", **head, "i": number, **table, "op": chr(row.op), "before": before, "after": after}
        yield line if moved is None else line | {"moved": moved}


def as_json(values: Sequence[Value] | None) -> list[object] | None:
    if values is None:
        return None
    return [
        {"hex": value.hex()} if isinstance(value, bytes) else {"absent": True} if value is ABSENT else value
        for value in values
    ]


def describe_mark(head: Line, mark: Mark, rows: int) -> Line:
    if mark.word == COMMIT:
        return {"k": COMMIT, **head, "by": mark.text, "rows": rows}
    if mark.word in _XA:
        return {"k": mark.word, **head, "xid": mark.text}
    return {"k": mark.word, **head, "text": mark.text}


@contextmanager
def _open_output(place: Path) -> Iterator[Any]:
    """A file under a temporary name, which gets its own when all is written."""
    part = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    with limits_named(place):
        try:
            with part.open("wb") as target:
                yield target
            durable.seal([(os.fsencode(part), os.fsencode(place))])
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _write_json(lines: Iterator[Line], target: Stream) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    for batch in _gather(lines):
        target.write("".join(f"{encode(line)}\n" for line in batch).encode())
    target.flush()


_FIELDS = ("k", "seq", "file", "txn_pos", "gtid", "ts", "i", "db", "table", "op", "before", "after")


def _write_parquet(lines: Iterator[Line], target: Any) -> None:
    """The same: `before`, `after` as JSON text, and what only some kinds of lines have as JSON text in `detail`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = {"seq": pa.int64(), "txn_pos": pa.int64(), "i": pa.int64(), "ts": pa.timestamp("us", "UTC")}
    schema = pa.schema([*((name, numbers.get(name, pa.string())) for name in _FIELDS), ("detail", pa.string())])
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in _gather(lines):
            writer.write_batch(pa.RecordBatch.from_pylist([_flatten(line) for line in batch], schema=schema))


def _flatten(line: Line) -> Line:
    flat = {name: line.get(name) for name in _FIELDS}
    flat["ts"] = datetime.fromisoformat(line["ts"])
    for side in ("before", "after"):
        flat[side] = None if flat[side] is None else json.dumps(flat[side], ensure_ascii=False, separators=(",", ":"))
    detail = {name: value for name, value in line.items() if name not in _FIELDS}
    flat["detail"] = json.dumps(detail, ensure_ascii=False) if detail else None
    return flat


def _gather(lines: Iterator[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    for line in lines:
        batch.append(line)
        if len(batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
