"""Points of a server beside those that readers of the catalog see: what it lacks, what it has too much. Mostly pure.

A file that comes late cannot be LOADed as it is, a deletion cannot be LOADed at all: of both the server gets the
difference. Compared bit for bit, so that a comparison without a difference is the digest of both sides at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import PermanentError
from tidemark.load import iotdb_words
from tidemark.load.iotdb_server import Answering
from tidemark.load.iotdb_session import RefusedError, Rows
from tidemark.load.iotdb_words import Span
from tidemark.tsfiles.devices import split_nodes, table_segments, unquote
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import Column

Series = Mapping[str, Column]
TOO_WIDE = (719, 411)  # "not enough memory for Query": also of a span of very many time partitions; 0.12: too many series


class TypeDiffersError(PermanentError):
    """A series has another type at the server than in the file."""


@dataclass(frozen=True)
class Difference:
    """Of one device. `missing`: points that the server lacks or has with another value; `extra`: measurement → times
    that only the server has."""

    missing: Series = field(default_factory=dict)
    extra: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    alike: int = 0  # points that both have
    other: int = 0  # of `missing`: those whose time has another value at the server

    def __bool__(self) -> bool:
        return bool(self.missing) or bool(self.extra)


def difference(device: str, ours: Series, theirs: Series) -> Difference:
    """What differs between the catalog's columns of a device and the server's. Raises TypeDiffersError."""
    missing, extra, alike, values = {}, {}, 0, 0
    for name in sorted({*ours, *theirs}):
        mine, other = ours.get(name), theirs.get(name)
        if mine is not None and other is not None and len(mine) and len(other) and mine.type is not other.type:
            raise TypeDiffersError(
                f"{device}.{name} is {other.type.name} at the server and {mine.type.name} in the file",
                hint="give it one type: change the series at the server, then ./tidemark load",
                subject=f"{device}.{name}",
            )
        lacks, much, same = _compared(mine, other)
        alike += same
        values += (len(other) if other is not None else 0) - len(much) - same
        if lacks is not None and len(lacks):
            missing[name] = lacks
        if len(much):
            extra[name] = much
    return Difference(missing, extra, alike, values)


def _compared(mine: Column | None, other: Column | None) -> tuple[Column | None, NDArray[np.int64], int]:
    none = np.empty(0, np.int64)
    if mine is None or not len(mine):
        return None, none if other is None else other.times, 0
    if other is None or not len(other):
        return mine, none, 0
    places = np.minimum(np.searchsorted(other.times, mine.times), len(other) - 1)
    there = other.times[places] == mine.times
    same = there & (_bits(mine) == _bits(other)[places])
    return mine.where(~same), np.setdiff1d(other.times, mine.times, assume_unique=True), int(same.sum())


def _bits(column: Column) -> NDArray[np.generic]:
    """Values that are equal where their bits are: NaN is NaN, 0.0 is not -0.0."""
    if column.type in (DataType.FLOAT, DataType.DOUBLE):
        return column.values.view(np.int32 if column.type is DataType.FLOAT else np.int64)
    return column.values


def runs(extra: NDArray[np.int64], kept: Sequence[NDArray[np.int64]]) -> Iterator[Span]:
    """Spans that cover all times of `extra` and none of `kept`; ascending times."""
    if not len(extra):
        return
    others = np.unique(np.concatenate([*kept, np.empty(0, np.int64)]))
    between = np.searchsorted(others, extra)
    cuts = np.flatnonzero(np.diff(between)) + 1
    for part in np.split(extra, cuts):
        yield Span(int(part[0]), int(part[-1]))


@dataclass(frozen=True)
class Table:
    """A table at the server: its tag columns in order, its fields."""

    database: str
    name: str
    tags: tuple[str, ...]
    fields: tuple[str, ...]


def table_of(server: Answering, database: str, name: str) -> Table | None:
    """None where the server has no such table."""
    try:
        told = server.rows(iotdb_words.table_columns(database, name), table=True)
    except RefusedError:
        return None
    names, kinds = told.column("ColumnName"), told.column("Category")
    columns = list(zip(names.texts(), kinds.texts(), strict=True)) if names and kinds else []
    tags = tuple(str(n) for n, kind in columns if kind in ("TAG", "ID"))
    fields = tuple(str(n) for n, kind in columns if kind in ("FIELD", "MEASUREMENT"))
    return Table(database, name, tags, fields)


def server_points(
    server: Answering, device: str, span: Span, table: Table | None = None, measurement: str = "*"
) -> dict[str, Column]:
    """The points of a device at the server within a span, by measurement. `table`: of a device of the table model;
    `measurement`: only this one, of the tree model."""
    if table is not None:
        tags, fields, database = table.tags, table.fields, table.database
        told = _within(server, lambda s: iotdb_words.table_points(device, tags, fields, database, s), span, table=True)
        time, *cells = told.cells
        times = time.values
        names = list(table.fields)
    else:
        told = _within(server, lambda s: iotdb_words.points_of(device, s, measurement), span)
        cells, times = list(told.cells), told.times
        names = [_measurement(cell.name, device) for cell in cells]
    found = {}
    for name, cell in zip(names, cells, strict=True):
        if name and len(cell.values):
            found[name] = Column(cell.type, times[cell.present], cell.values).between(span.start, span.end + 1)
    return {name: column for name, column in found.items() if len(column)}


def _within(server: Answering, statement: Callable[[Span | None], str], span: Span, table: bool = False) -> Rows:
    """A server reckons memory for every time partition of a span, and refuses one of many (a device with times far apart):
    then all of the device is asked for, and the caller cuts it."""
    try:
        return server.rows(statement(span), table)
    except RefusedError as refused:
        if refused.code not in TOO_WIDE:
            raise
    return server.rows(statement(None), table)


def _measurement(name: str, device: str) -> str:
    """The measurement of a column `<device>.<measurement>`; '' for one of a deeper device (0.12: `*` is many nodes)."""
    nodes = split_nodes(name)
    return nodes[-1] if ".".join(nodes[:-1]) == device else ""


def table_name(device: str) -> str:
    """The table of a canonical device of the table model."""
    return str(table_segments(device)[0])


def database_name(device: str) -> str:
    """The database of a canonical device of the table model."""
    return unquote(split_nodes(device)[0])
