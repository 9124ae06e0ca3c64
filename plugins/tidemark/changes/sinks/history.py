"""Every change, as Parquet files: one for each batch, table and shape.

A file's name says which sink wrote it and which transactions its batch has, `lake-000000000001-000000000128.parquet`, so a
batch that is written again replaces its own files with the same bytes. After a rewind batches may end elsewhere. Then files
of the former ones go that have transactions of the new one, and a batch begins where such a file begins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.changes.sinks.batches import AnyRun, Run, TableChanges
from tidemark.changes.store.model import Op, Shape
from tidemark.errors import limits_named
from tidemark.ledger.delivery import SinkBatch
from tidemark.stores.agent import durable

Encode = Callable[[Sequence[AnyRun]], Iterator[bytes | Path]]
"""The Parquet file of each run, in their order: its bytes, or where it is, durable and on the same disk."""
ROW_GROUP = 65_536
_LETTERS = {int(op): chr(op) for op in Op}
FIELDS = (
    pa.field("seq", pa.int64()),
    pa.field("i", pa.int64()),
    pa.field("ts", pa.timestamp("us", "UTC")),
    pa.field("gtid", pa.string()),
    pa.field("op", pa.string()),
)
"""Before `before` and `after`: number of the transaction and of the row in it, commit, GTID, `I`, `U`, `D` or `R`."""


class HistoryFiles:
    """The folder of a sink's files: a folder a table below it. `folder_of`: what a table's folder is called."""

    def __init__(self, root: Path, sink: str, folder_of: Callable[[str], str]) -> None:
        self.root = root
        self.sink = sink
        self._folder_of = folder_of
        self._name = re.compile(rf"{re.escape(sink)}-(\d{{12,}})-(\d{{12,}})(?:-\d+)?\.parquet")
        self._is_clean = False

    def align(self, first: int, oldest: int) -> int:
        """Where a batch begins that is to have transaction `first`: with the file that has it, if there is one. Behind that
        where the store, which begins with `oldest`, has not all of it any more."""
        spans = [span for files in self._list_files().values() for span in files.values()]
        while within := [span for span in spans if span[0] < first < span[1]]:
            begin = min(begin for begin, _ in within)
            first = begin if begin >= oldest else max(end for _, end in within)
        return first

    def write(
        self, batch: SinkBatch, tables: Mapping[str, TableChanges], effect: Callable[[str], None], encode: Encode
    ) -> None:
        """Write the files of a batch, each whole and durable under its name."""
        self._remove_torn()
        written: list[Path] = []
        runs: list[AnyRun] = []
        for name, table in sorted(tables.items()):
            for number, run in enumerate(table.runs):
                suffix = f"-{number}" if number else ""
                base = f"{self.sink}-{batch.first:012}-{batch.end - 1:012}{suffix}.parquet"
                written.append(self.root / self._folder_of(name) / base)
                runs.append(run)
        for place, made in zip(written, encode(runs), strict=True):
            effect(f"before {place.relative_to(self.root)}")
            with limits_named(place):
                durable.make_folder(os.fsencode(place.parent))
                if isinstance(made, Path):
                    durable.rename_durably(os.fsencode(made), os.fsencode(place))
                else:
                    durable.publish(os.fsencode(place), [made])
            # CRASH WINDOW: the file is there and no point says so: the batch is written again, with the same bytes.
            effect(f"after {place.relative_to(self.root)}")
        for folder, files in self._list_files().items():
            former = [
                place
                for place, (begin, end) in files.items()
                if begin < batch.end and end > batch.first and place not in written
            ]
            if former:  # or, where this run slept past its lease, those of who rewound the sink meanwhile
                effect(f"before former ones of {folder.name} go")
            for place in former:
                durable.remove_quietly(os.fsencode(place))
            if former:
                durable.sync_folder(os.fsencode(folder))
            # CRASH WINDOW: former files are gone and no point says so: the batch is written again, and finds none.

    def _remove_torn(self) -> None:
        """Remove what a run that was killed left under temporary names; once in a run."""
        for place in () if self._is_clean else self.root.glob(f"*/{self.sink}-*.tmp"):
            if durable.is_half_written(place.name) and self._name.match(place.name):
                durable.remove_quietly(os.fsencode(place))
        self._is_clean = True

    def _list_files(self) -> dict[Path, dict[Path, tuple[int, int]]]:
        """Our files by folder, with the first transaction of each and the first behind it."""
        found: dict[Path, dict[Path, tuple[int, int]]] = {}
        for folder in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            for place in sorted(folder.iterdir()) if folder.is_dir() else ():
                if match := self._name.fullmatch(place.name):
                    found.setdefault(folder, {})[place] = (int(match[1]), int(match[2]) + 1)
        return found


def encode_run(run: Run) -> bytes:
    """The rows of one shape as a Parquet file. The same rows give the same bytes, however the store holds them."""
    sink = pa.BufferOutputStream()
    pq.write_table(make_table(run), sink, row_group_size=ROW_GROUP, compression="zstd")
    return bytes(sink.getvalue())


def make_table(run: Run) -> Any:
    """`FIELDS`, then `before` and `after` as structs, then the names of columns that an image lacks, if any does."""
    batch, shape = run.join(), run.shape
    width = len(shape.columns)
    ops = batch.column(0).to_numpy()
    gtids = np.repeat(np.arange(len(run.gtids)), run.counts)
    columns = [
        pa.array(run.spread(run.numbers)),
        batch.column("i"),
        pa.array(run.spread(run.times)).cast(FIELDS[2].type),
        pa.array(run.gtids, pa.string()).take(pa.array(gtids)),
        pa.array([_LETTERS[int(op)] for op in ops], pa.string()),
    ]
    fields = [*FIELDS]
    names = [column.name for column in shape.columns]
    for side, word, ops_with in ((0, "before", (Op.UPDATE, Op.DELETE)), (1, "after", (Op.INSERT, Op.UPDATE, Op.READ))):
        images = batch.columns[3 + side * width : 3 + (side + 1) * width]
        lacks = pa.array(~np.isin(ops, [int(op) for op in ops_with]))
        columns.append(pa.StructArray.from_arrays(images, names=names, mask=lacks))
        fields.append(pa.field(word, columns[-1].type))
    for side, word in ((1, "before_absent"), (2, "after_absent")):
        if batch.column(side).null_count < len(batch.column(side)):
            columns.append(pa.array([_name_absent(shape, bits) for bits in batch.column(side).to_pylist()]))
            fields.append(pa.field(word, columns[-1].type))
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    return table.replace_schema_metadata({b"shape": shape.as_json().encode()})


def _name_absent(shape: Shape, bits: bytes | None) -> list[str] | None:
    if bits is None:
        return None
    found = int.from_bytes(bits, "little")
    return [column.name for place, column in enumerate(shape.columns) if found >> place & 1]
