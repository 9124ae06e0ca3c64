"""Rows that become a Parquet, CSV or JSON lines file, or go to a stream in one of these forms.

Rows are collected and written in batches, so that memory does not grow with their number. A file is written under a
temporary name, which is renamed durably when it is complete. What a killed process leaves goes an hour later, with the next
file of that name. A stream that ends early, or after an error, gets no ending: a Parquet reader then refuses it. CSV
distinguishes a null (nothing) from an empty text (`""`); JSON lines have no key for a null.
"""

from __future__ import annotations

import glob
import json
import math
import os
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet
from numpy.typing import NDArray

from tidemark.errors import PermanentError, PermissionDeniedError, UsageError, limits_named
from tidemark.stores.agent import durable
from tidemark.tsfiles.spark.arrow import MOST_BYTES, Part, concatenate_parts, rows_at_once
from tidemark.visible import plain_json

BATCH_ROWS = 65_536
_LEFT_SECONDS = 3600.0  # one who is at work writes a batch more often
NUMBER = "number"
PARQUET, CSV, JSON_LINES = FORMS = ("parquet", "csv", "jsonl")


def form_of(place: Path) -> str:
    """Return the form that the ending of a file's name says. Raises UsageError for another ending."""
    form = place.suffix.removeprefix(".")
    if form not in FORMS:
        raise UsageError(f"--out {place}: the name must end in .parquet, .csv or .jsonl", subject=str(place))
    return form


@dataclass(frozen=True)
class Times:
    """How times are written: as numbers without a `unit`, else as instants; `as_text`: in ISO 8601."""

    unit: str
    as_text: bool

    @property
    def type(self) -> pa.DataType:
        if not self.unit:
            return pa.int64()
        return pa.string() if self.as_text else pa.timestamp(self.unit, "UTC")

    def encode(self, times: NDArray[np.int64]) -> pa.Array:
        if self.unit and self.as_text:
            return pa.array(np.datetime_as_string(times.view(f"datetime64[{self.unit}]"), timezone="UTC"), pa.string())
        return pa.array(times).view(self.type)


def choose_times(asked: str, form: str, unit: str) -> Times:
    """Return how times are written: as `asked` (number | instant), by default as instants in Parquet if the unit is known.

    Raises UsageError for instants of no unit: the sites' units differ."""
    if not asked:
        return Times(unit if form == PARQUET else "", False)
    if asked == NUMBER:
        return Times("", False)
    if not unit:
        message = "--times instant: these sites count time in different units"
        raise UsageError(message, hint="./tidemark read --site S, or --times number", subject="--times")
    return Times(unit, form != PARQUET)


class Stream(Protocol):
    """What rows can go to instead of a file."""

    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> None: ...


class PointFile:
    """Rows on their way into a file or a stream. A context manager. A file is published at the end, or removed after an
    error.

    `form`: of a stream; a file's is the ending of its name. Batches have `BATCH_ROWS` rows, fewer if there are very many
    columns.
    """

    def __init__(self, place: Path | Stream, schema: pa.Schema, form: str = "") -> None:
        self._place = place if isinstance(place, Path) else None
        self._schema = schema
        self._gathered: list[Part] = []
        self._at_once = rows_at_once(len(schema), BATCH_ROWS)
        self._waiting = self._bytes = 0
        self.rows = 0
        self._sink = _Sink(_open_temporary(place) if isinstance(place, Path) else place)
        self._writer = _open_writer(form_of(place) if isinstance(place, Path) else form, self._sink, schema)

    def add_rows(self, part: Part) -> None:
        """Add rows."""
        if self._at_once < BATCH_ROWS and part.rows > self._at_once:  # with very many columns most values are null
            for start in range(0, part.rows, self._at_once):
                self.add_rows(part.slice_rows(start, self._at_once))
            return
        size = part.nbytes
        if self._bytes + size > MOST_BYTES:
            self._write_gathered()
        self._gathered.append(part)
        self._bytes += size
        self._waiting += part.rows
        self.rows += part.rows
        if self._waiting >= self._at_once:
            self._write_gathered()

    def __enter__(self) -> PointFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with limits_named(self._place or "the output"):
            try:
                if error is not None:
                    raise error
                self._write_gathered()
                self._writer.close()
                if self._place:
                    self._sink.target.close()
                    durable.seal([(os.fsencode(_temporary(self._place)), os.fsencode(self._place))])
            except BaseException:
                self._sink.forget()
                self._writer.close()
                if self._place:
                    with suppress(OSError):  # it repeats the first error
                        self._sink.target.close()
                    durable.remove_quietly(os.fsencode(_temporary(self._place)))
                raise

    def _write_gathered(self) -> None:
        if self._waiting:
            self._writer.write_batch(concatenate_parts(self._gathered, self._schema))
            self._gathered, self._waiting, self._bytes = [], 0, 0


class _Sink:
    """What pyarrow's writers write to. They ask a pipe for its position, and write an ending even after an error."""

    closed = False

    def __init__(self, target: Any) -> None:  # a Stream, or a file of pyarrow
        self.target = target
        self._forgets = False
        self._written = 0

    def write(self, data: bytes) -> int:
        if not self._forgets:
            self.target.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        if not self._forgets:
            self.target.flush()

    def close(self) -> None:
        """The owner of the target closes it."""

    def forget(self) -> None:
        """Write nothing from now on."""
        self._forgets = True


class _JsonLines:
    """One JSON object for each row."""

    def __init__(self, sink: _Sink, schema: pa.Schema) -> None:
        self._sink = sink
        self._names = schema.names
        self._encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

    def write_batch(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, BATCH_ROWS):  # values of Python take many times their room in an array
            self._write_rows(batch.slice(start, BATCH_ROWS))

    def _write_rows(self, batch: pa.RecordBatch) -> None:
        columns = [_json_values(column) for column in batch.columns]
        rows = (zip(self._names, values, strict=True) for values in zip(*columns, strict=True))
        lines = (plain_json(self._encode({name: value for name, value in row if value is not None})) for row in rows)
        self._sink.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        self._sink.flush()


def _json_values(column: pa.Array) -> list[Any]:
    """Return the values as JSON has them: a float32 with its own shortest digits, `nan` and `inf` as text."""
    if not pa.types.is_floating(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    numbers = column.cast(pa.string()).cast(pa.float64()) if column.type == pa.float32() else column
    values: list[Any] = numbers.to_pylist()
    if pc.all(pc.is_finite(numbers)).as_py() is False:
        values = [value if value is None or math.isfinite(value) else str(value) for value in values]
    return values


def _open_writer(form: str, sink: _Sink, schema: pa.Schema) -> Any:
    if form == PARQUET:
        return pa_parquet.ParquetWriter(sink, schema, compression="zstd")
    return pa_csv.CSVWriter(sink, schema) if form == CSV else _JsonLines(sink, schema)


def _temporary(place: Path) -> Path:
    return place.with_name(f"{place.name}.{os.getpid()}.tmp")


def _open_temporary(place: Path) -> Any:
    form_of(place)
    _remove_left(place)
    try:
        # CRASH WINDOW: the temporary file is left: a PointFile of the same name removes it an hour later.
        return pa.OSFile(str(_temporary(place)), "wb")
    except FileNotFoundError as missing:
        hint = f"mkdir -p {shlex.quote(str(place.parent))}"
        raise PermanentError(f"cannot write {place}: its folder is not there", hint=hint, subject=str(place)) from missing
    except PermissionError as refused:
        raise PermissionDeniedError(f"cannot write {place}: {refused}", subject=str(place)) from refused


def _remove_left(place: Path) -> None:
    """Remove the temporary files that killed processes left of this name. Those of the last hour may be at work."""
    for left in place.parent.glob(f"{glob.escape(place.name)}.*.tmp"):
        if left.name.removeprefix(f"{place.name}.").removesuffix(".tmp").isdecimal():
            with suppress(OSError):
                if left.lstat().st_mtime < time.time() - _LEFT_SECONDS:
                    left.unlink()
