"""Write what a read gives as `.parquet` or `.csv`, in batches, durably: a temp file that gets its name when it is whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from tidemark.errors import PermissionDeniedError, UsageError, limits_named
from tidemark.stores.agent import durable
from tidemark.tsfiles.spark.arrow import MOST_BYTES, Part, rows_at_once, together

BATCH_ROWS = 65_536
ENDINGS = (".parquet", ".csv")


class PointFile:
    """An open result file; a context manager that publishes it at the end, or removes it when something went wrong.

    Rows are gathered and written `BATCH_ROWS` at a time, fewer of very many columns. CSV tells a null (nothing) from an
    empty text (`""`).
    """

    def __init__(self, place: Path, schema: pa.Schema) -> None:
        check_ending(place)
        self._place = place
        self._temp = place.with_name(f"{place.name}.{os.getpid()}.tmp")
        self._schema = schema
        self._gathered: list[Part] = []
        self._at_once = rows_at_once(len(schema), BATCH_ROWS)
        self._waiting = self._bytes = 0
        self.rows = 0
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._writer: Any = (
                pa_parquet.ParquetWriter(self._temp, schema, compression="zstd")
                if place.suffix == ".parquet"
                else pa_csv.CSVWriter(str(self._temp), schema)
            )
        except PermissionError as refused:
            raise PermissionDeniedError(f"cannot write {place}: {refused}", subject=str(place)) from refused

    def add(self, part: Part) -> None:
        """More rows."""
        if self._at_once < BATCH_ROWS and part.rows > self._at_once:  # of so many columns a long device is nulls mostly
            for start in range(0, part.rows, self._at_once):
                self.add(part.piece(start, self._at_once))
            return
        size = part.nbytes
        if self._bytes + size > MOST_BYTES:
            self._flush()
        self._gathered.append(part)
        self._bytes += size
        self._waiting += part.rows
        self.rows += part.rows
        if self._waiting >= self._at_once:
            self._flush()

    def __enter__(self) -> PointFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with limits_named(self._place):
            try:
                if error is not None:
                    raise error
                self._flush()
                self._writer.close()
                durable.seal([(os.fsencode(self._temp), os.fsencode(self._place))])
            except BaseException:
                with suppress(OSError):  # it says once more what it said
                    self._writer.close()
                durable.remove_quietly(os.fsencode(self._temp))
                raise

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_batch(together(self._gathered, self._schema))
            self._gathered, self._waiting, self._bytes = [], 0, 0


def check_ending(place: Path) -> None:
    if place.suffix not in ENDINGS:
        raise UsageError(f"--out {place}: the name must end in .parquet or .csv", subject=str(place))
