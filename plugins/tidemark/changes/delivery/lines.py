"""Batches as lines of JSON in files: what `changes consume` writes, a file a shard, and dead letters.

A file is appended to, by one process or by several. A line that a crash tore is cut off before the next one is written; its
batch comes again.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.changes.capture.identity import Origin
from tidemark.changes.delivery.export import Line, Shapes, describe_place, describe_record
from tidemark.changes.store.model import ABSENT, Op, Row, Shape, Value
from tidemark.errors import UsageError, limits_named
from tidemark.stores.agent import durable

if TYPE_CHECKING:
    from tidemark.changes.delivery.batches import Batch, Segment

JSONL, DEBEZIUM = "jsonl", "debezium"
Formatter = Callable[["Batch"], Iterator[Line]]
NoteLetters = Callable[[str, int, bool], object]
"""Told of dead letters: the file, how many, and whether these are all or come on top."""
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_WINDOW = 1 << 16


def encode_lines(lines: Iterator[Line]) -> bytes:
    text = "".join(f"{_ENCODE(line)}\n" for line in lines)
    return text.encode(errors="backslashreplace")  # JSON's own way for half a character, as an error has of a file's name


class AppendedFile:
    """A file of lines that are appended and then made durable. Processes that share it write one after another."""

    def __init__(self, place: Path) -> None:
        self.place = place
        with limits_named(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            is_new = not place.exists()
            self._file = place.open("ab+", buffering=0)  # what waits in a buffer would not be whole lines
            try:
                with self._lock_file():
                    self._cut_torn_line()
                if is_new:
                    durable.sync_folder(os.fsencode(place.parent))
            except BaseException:
                self._file.close()
                raise

    def write(self, lines: Iterator[Line]) -> None:
        data = encode_lines(lines)
        with limits_named(self.place), self._lock_file():
            self._cut_torn_line()
            # CRASH WINDOW: a part of the lines is written. Who writes next cuts the torn one off, and the batch comes again.
            durable.write_all(self._file.fileno(), data)

    def make_durable(self) -> None:
        with limits_named(self.place):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    @contextmanager
    def _lock_file(self) -> Iterator[None]:
        """Keep other processes from writing, and from taking a line that is being written for a torn one."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _cut_torn_line(self) -> None:
        end = self._file.seek(0, os.SEEK_END)
        if (whole := _find_last_line(self._file)) < end:
            self._file.truncate(whole)


def _find_last_line(file: Any) -> int:
    """The length of a file up to the end of its last whole line."""
    end: int = file.seek(0, os.SEEK_END)
    window = 1  # mostly the last line is whole
    while end:
        start = max(0, end - window)
        found = os.pread(file.fileno(), end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end, window = start, _WINDOW
    return 0


class DeadLetters:
    """Batches that a callback did not take, a line each, with what it raised. For the threads of a process.

    `note` is told how many of the task lie there at the beginning, and of each more.
    """

    def __init__(self, place: Path, task: str, note: NoteLetters) -> None:
        self.count = 0
        self._task = task
        self._place, self._note = str(place.absolute()), note
        self._lock = threading.Lock()
        try:
            self._file = AppendedFile(place)
            self._file.make_durable()  # a device or a pipe refuses that
        except OSError as refused:
            raise UsageError(
                f"no dead letters can be written to {place}: {refused.strerror}",
                hint="let dead_letters name a file, in a folder that this user may write to",
                subject=str(place),
            ) from refused
        self._describe = LineMaker(None)
        note(self._place, self._count_lines(), True)

    def _count_lines(self) -> int:
        begin = encode_lines(iter([{"task": self._task}])).rstrip(b"}\n")
        with Path(self._place).open("rb") as file:
            return sum(line.startswith(begin) for line in file)

    def append(self, batch: Batch, error: Exception) -> None:
        line = {
            "task": self._task,
            "shard": batch.shard,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "error": f"{type(error).__name__}: {error}",
            "table": batch.table,
            "rows": [line for line in self._describe.describe(batch) if line["k"] != "schema"],
            "point": batch.point,
        }
        with self._lock:
            self._file.write(iter([line]))
            self._file.make_durable()
            self.count += 1
        # CRASH WINDOW: a letter that nobody counts: the next beginning counts the file.
        self._note(self._place, 1, False)

    def close(self) -> None:
        self._file.close()


class LineMaker:
    """Batches as the lines of `changes read`, with the shard. Before the first row of a table's shape stands the shape."""

    def __init__(self, origin: Origin | None) -> None:
        self._origin = origin
        self._shapes: defaultdict[int, Shapes] = defaultdict(dict)  # by shard

    def describe(self, batch: Batch) -> Iterator[Line]:
        for segment in batch.segments:
            head = {"shard": batch.shard, **describe_place(segment.seq, segment.transaction, self._origin)}
            yield from describe_record(head, segment.record, segment.rows, self._shapes[batch.shard])


_OPS = {"I": "c", "U": "u", "D": "d", "R": "r"}


class DebeziumMaker:
    """Rows as events of Debezium's envelope, without a schema. What is no row is left out. An update that changes the key is
    two events, as there: who keeps rows by the key of `after` would keep the former one, too."""

    def __init__(self, source: str, origin: Origin | None) -> None:
        self._source = source
        self._origin = origin

    def describe(self, batch: Batch) -> Iterator[Line]:
        for segment, number, row in batch.rows():
            assert batch.schema is not None
            for part in _split_row(row, batch.schema):
                yield self._describe_row(segment, number, part, batch.schema)

    def _describe_row(self, segment: Segment, number: int, row: Row, shape: Shape) -> Line:
        info = segment.transaction.info
        op = _OPS[chr(row.op)]
        milliseconds = info.timestamp // 1000
        source = {
            "version": "1",
            "connector": "tidemark",
            "name": self._source,
            "ts_ms": milliseconds,
            "snapshot": "true" if op == "r" else "false",
            "db": shape.database,
            "table": shape.table,
            "server_id": info.server_id,
            "gtid": segment.transaction.gtid or None,
            "file": self._origin.name_log(info.file, info.change_id) if self._origin else str(info.file),
            "pos": info.offset,
            "row": number,
        }
        sides = {"before": _name_values(row.before, shape), "after": _name_values(row.after, shape)}
        return {**sides, "source": source, "op": op, "ts_ms": milliseconds, "transaction": {"id": f"seq:{segment.seq}"}}


def _split_row(row: Row, shape: Shape) -> Sequence[Row]:
    """A row; where an update changes its key, the delete of the former one and the insert of the new one."""
    if row.op != Op.UPDATE or row.before is None or row.after is None:
        return [row]
    pairs = zip(shape.columns, row.before, row.after, strict=True)
    if all(ABSENT in (one, other) or one == other for column, one, other in pairs if column.key):
        return [row]
    return [Row(Op.DELETE, row.before, None), Row(Op.INSERT, None, row.after)]


def _name_values(values: Sequence[Value] | None, shape: Shape) -> Mapping[str, Any] | None:
    if values is None:
        return None
    pairs = zip(shape.columns, values, strict=True)
    return {
        column.name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for column, value in pairs
        if value is not ABSENT
    }
