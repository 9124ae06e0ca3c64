"""Rows of devices put together to batches: of thousands of columns a device mostly has a few, and costs what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

MOST_BYTES = 1 << 30
"""Of the parts that go together, or one: a column of texts holds less than 2 GiB."""

_CELLS = 1 << 24


@dataclass(frozen=True)
class Part:
    """Some rows of one device; columns that are not there are null."""

    rows: int
    columns: Mapping[str, pa.Array]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values())

    def piece(self, start: int, rows: int) -> Part:
        """`rows` of its rows from `start` on, or as many as there are; nothing is copied."""
        return Part(min(rows, self.rows - start), {name: array.slice(start, rows) for name, array in self.columns.items()})


def rows_at_once(columns: int, most: int) -> int:
    """Rows of a batch of so many columns: `most`, fewer where they are very many, since its nulls are in memory too."""
    return max(1, min(most, _CELLS // columns))


def together(parts: Sequence[Part], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of all parts, one part behind the other. One part alone is not copied."""
    pieces: dict[str, list[pa.Array]] = {name: [] for name in schema.names}
    told = dict.fromkeys(schema.names, 0)
    rows = 0
    for part in parts:
        for name, array in part.columns.items():
            if told[name] < rows:
                pieces[name].append(pa.nulls(rows - told[name], array.type))
            pieces[name].append(array)
            told[name] = rows + part.rows
        rows += part.rows
    arrays = []
    for field in schema:
        mine = pieces[field.name]
        if told[field.name] < rows:
            mine.append(pa.nulls(rows - told[field.name], field.type))
        arrays.append(mine[0] if len(mine) == 1 else pa.concat_arrays(mine))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
