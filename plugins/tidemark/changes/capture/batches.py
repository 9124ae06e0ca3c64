"""Row events of many transactions in the form of the store, column by column. Touches nothing.

Events of one table and operation are decoded together, whichever transactions they are of, for what a batch costs, it costs
once. The rows of each shape become one Arrow batch in the order of the log. A record of a transaction is a stretch of it.

What is not decoded by column goes one by one (`rows`), with the same result: partial updates, and events with text that its
charset does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.changes.binlog import rows as logged
from tidemark.changes.binlog.batches import Walked, as_text, gather_bytes, make_array, walk_events, walk_stretches
from tidemark.changes.binlog.charsets import BINARY
from tidemark.changes.binlog.rows import RowKey
from tidemark.changes.binlog.tables import INTEGERS, T, Table
from tidemark.changes.binlog.values import value_reader
from tidemark.changes.capture.identity import number_of
from tidemark.changes.capture.plain import Run
from tidemark.changes.capture.rows import Item, convert_one_by_one, gather_items, shape_of
from tidemark.changes.store import run as stored
from tidemark.changes.store.model import Kind, Mark, Record, Rows, Shape

_PLAIN = {Kind.TEXT: pa.string(), Kind.BYTES: pa.binary()}
_KEPT: dict[Kind, tuple[type[Any], pa.DataType]] = {
    Kind.INT64: (np.int64, pa.int64()),
    Kind.UINT64: (np.uint64, pa.uint64()),
    Kind.FLOAT64: (np.float64, pa.float64()),
}
_NUMBERS = (*INTEGERS, T.FLOAT, T.DOUBLE, T.BIT, T.YEAR)
_FEW = 100
"""Stretches that are put into order one by one: for more, a module is worth its import."""
_AS_STORED = (T.GEOMETRY, T.VECTOR)
_STRINGS = (T.VARCHAR, T.VAR_STRING, T.STRING, T.BLOB, T.TINY_BLOB, T.MEDIUM_BLOB, T.LONG_BLOB)


def convert_items(transactions: Sequence[Sequence[Item]]) -> list[list[Record]]:
    """The records of transactions. Raises CorruptionError and UnsupportedError where a row of any of them cannot be read."""
    found = _Decoded(item for items in transactions for item in items if isinstance(item, logged.Rows))
    return [found.make_records(items) for items in transactions]


def convert_stream(
    items: Iterable[Item], convert: Callable[[Sequence[Sequence[Item]]], list[list[Record]]] = convert_items
) -> Iterator[Record]:
    """The records of one transaction, which memory may not hold."""
    left = iter(items)
    while (found := gather_items(left))[0]:
        yield from convert([found[0]])[0]


def convert_run(run: Run, is_wanted: Callable[[Table], bool], mark: Mark) -> stored.Run | None:
    """The transactions of a run in the form of the store. None where that is not to be had by column: a table is not
    described, or a text is not of its charset. Raises what `convert_items` raises."""
    stretch = run.stretch
    rows, keys = stretch.rows, stretch.plain.keys
    events = len(rows)
    counts, starts, shapes = np.zeros(events, np.int64), np.zeros(events, np.int64), np.zeros(events, np.int64)
    by_shape: dict[Shape, list[_Part]] = {}
    for number, key in enumerate(keys):
        own = np.flatnonzero(rows[:, 0] == number)
        if not len(own) or not is_wanted(key.table):
            continue
        if key.table.unknown():
            return None
        walks = walk_stretches(key, stretch.plain.data, rows[own, 1], rows[own, 2])
        part = _decode_together(key, walks, own)
        if part is None:
            return None
        by_shape.setdefault(shape_of(key.table), []).append(part)
    wholes = []
    for number, (shape, parts) in enumerate(by_shape.items()):
        whole = _join_parts(parts)
        wholes.append((shape, whole.batch))
        counts[whole.numbers], shapes[whole.numbers] = whole.counts, number
        starts[whole.numbers] = np.cumsum(whole.counts) - whole.counts
    there = np.flatnonzero(counts)
    owners = np.repeat(np.arange(stretch.count), stretch.row_events)[there]
    begins = np.ones(len(there), bool)  # of a record
    begins[1:] = (owners[1:] != owners[:-1]) | (shapes[there][1:] != shapes[there][:-1])
    firsts = np.flatnonzero(begins)
    heads = stretch.heads
    return stored.Run(
        change_id=run.change_id,
        file=number_of(stretch.file),
        server_ids=heads[:, 4],
        offsets=stretch.position + heads[:, 8],
        uuids=stretch.uuids,
        transaction_ids=heads[:, 6],
        timestamps=heads[:, 3],
        gtids=run.gtid_texts(),
        gtid_offsets=run.offsets,
        mark=mark,
        borders=np.concatenate([[0], np.cumsum(np.bincount(owners[firsts], minlength=stretch.count))]),
        shapes=shapes[there[firsts]],
        starts=starts[there[firsts]],
        counts=np.add.reduceat(counts[there], firsts) if len(firsts) else counts[:0],
        wholes=wholes,
        gtids_after=lambda index: _text_of(run.gtids_after(index)),
    )


def _text_of(gtids: object) -> object:
    return "" if gtids is None else gtids


class _Part(NamedTuple):
    """Rows of events of one table: the batch, the numbers of the events, and how many rows each has."""

    batch: Any
    numbers: NDArray[np.int64]
    counts: NDArray[np.int64]


def _join_parts(parts: Sequence[_Part]) -> _Part:
    """The rows of a shape in the order of their events."""
    if len(parts) == 1:
        return parts[0]
    whole = pa.concat_batches([part.batch for part in parts])
    numbers = np.concatenate([part.numbers for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    begins, order = np.cumsum(counts) - counts, np.argsort(numbers)
    numbers, counts = numbers[order], counts[order]
    return _Part(_reorder(whole, begins[order], counts), numbers, counts)


class _Decoded:
    """Row events, decoded. Each is asked for once, in the order in which they were given."""

    def __init__(self, events: Iterable[logged.Rows]) -> None:
        groups: dict[RowKey, list[tuple[int, logged.Rows]]] = {}
        self._singly: set[int] = set()
        for number, event in enumerate(events):
            if event.is_partial:
                self._singly.add(number)
            else:
                groups.setdefault(RowKey(*event[:4]), []).append((number, event))
        self._next = 0
        self._at: dict[int, tuple[Shape, Any, int, int]] = {}  # number of an event → its rows
        by_shape: dict[Shape, list[_Part]] = {}
        for key, members in groups.items():
            numbers = [number for number, _ in members]
            part = _decode_together(key, walk_events([event for _, event in members]), np.array(numbers, np.int64))
            if part is None:
                self._singly.update(numbers)
            else:
                by_shape.setdefault(shape_of(key.table), []).append(part)
        for shape, parts in by_shape.items():
            whole = _join_parts(parts)
            starts = np.cumsum(whole.counts) - whole.counts
            places = (whole.numbers.tolist(), starts.tolist(), whole.counts.tolist())
            for number, start, count in zip(*places, strict=True):
                self._at[number] = (shape, whole.batch, start, count)

    def make_records(self, items: Sequence[Item]) -> list[Record]:
        """The records of a transaction. Rows that follow each other in one batch are one record."""
        records: list[Record] = []
        last: Rows | None = None
        for item in items:
            if not isinstance(item, logged.Rows):
                records.append(item)
                last = None
                continue
            number, self._next = self._next, self._next + 1
            if number in self._singly:
                records += convert_one_by_one(item)
                last = None
                continue
            shape, whole, start, count = self._at[number]
            if last is not None and last.whole is whole and last.start + last.count == start:
                last = records[-1] = Rows(shape, whole, last.start, last.count + count)
            elif count:
                last = Rows(shape, whole, start, count)
                records.append(last)
        return records


def _reorder(whole: Any, begins: Any, counts: Any) -> Any:
    """The rows in stretches, each `counts` rows from `begins` on."""
    if len(begins) <= _FEW:
        return pa.concat_batches([whole.slice(*one) for one in zip(begins.tolist(), counts.tolist(), strict=True)])
    places = np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
    return whole.take(make_array(pa.int64(), places, places))


def _decode_together(key: RowKey, walks: Iterable[Walked], numbers: NDArray[np.int64]) -> _Part | None:
    """The rows of the events with these numbers; None where a text is not of its charset."""
    shape = shape_of(key.table)
    batches, owners = [], []
    for walked in walks:
        batch = _make_batch(shape, key, walked)
        if batch is None:
            return None
        batches.append(batch)
        owners.append(walked.events)
    if not batches:
        empty = pa.RecordBatch.from_pylist([], shape.arrow_schema())
        return _Part(empty, numbers, np.zeros(len(numbers), np.int64))
    counts = np.bincount(np.concatenate(owners), minlength=len(numbers))
    return _Part(batches[0] if len(batches) == 1 else pa.concat_batches(batches), numbers, counts)


def _make_batch(shape: Shape, key: RowKey, walked: Walked) -> Any:
    rows = len(walked.events)
    schema = shape.arrow_schema()
    types = schema.types
    arrays: list[Any] = [make_array(pa.uint8(), np.zeros(rows, np.int64), np.full(rows, ord(key.operation), np.uint8))]
    arrays += [_absent_bits(image, len(shape.columns), rows) for image in (key.before, key.after)]
    number = 0
    for image in (key.before, key.after):
        there: dict[int, Any] = {}
        for index in image or ():
            if index < len(shape.columns):  # else it is hidden
                there[index] = _convert_column(walked, number, shape.columns[index].kind)
                if there[index] is None:
                    return None
            number += 1
        for index in range(len(shape.columns)):
            arrays.append(there[index] if index in there else pa.nulls(rows, types[len(arrays)]))
    return pa.record_batch(arrays, schema=schema)


def _absent_bits(image: tuple[int, ...] | None, width: int, rows: int) -> Any:
    """As the store says which columns an image does not have."""
    bits = 0 if image is None else (1 << width) - 1 - sum(1 << index for index in image if index < width)
    if not bits:
        return pa.nulls(rows, pa.binary())
    return _make_plain([bits.to_bytes((width + 7) // 8, "little")], Kind.BYTES, np.zeros(rows, np.int64))


def _convert_column(walked: Walked, number: int, kind: Kind) -> Any:
    """A column as the store keeps it; None where a text is not of its charset."""
    column = walked.columns[number]
    if column.type in (T.ENUM, T.SET):
        return _print_labels(walked, number)
    if column.type in _NUMBERS:
        values = walked.load_numbers(number)
        if column.type == T.YEAR:
            values = np.where(values == 0, 0, values + np.uint64(1900))
        as_numpy, as_arrow = _KEPT[kind]
        return make_array(as_arrow, walked.lengths[number], values.astype(as_numpy, copy=False))
    if column.type in _AS_STORED:
        return walked.load_column(number)
    if column.type in _STRINGS and not column.declared:
        found = walked.load_column(number)
        if column.type == T.STRING and column.collation == BINARY:  # a log leaves the zeros at the end of BINARY out
            lengths = walked.lengths[number]
            if ((lengths >= 0) & (lengths != column.size)).any():
                padded = [None if value is None else value.ljust(column.size, b"\0") for value in found.to_pylist()]
                return _make_plain(padded, kind)
        if found.type == _PLAIN[kind]:
            return found
    texts = walked.print_column(number)
    return texts if texts is not None else _make_plain(walked.read_column(number), kind)


def _print_labels(walked: Walked, number: int) -> Any:
    """Labels of an ENUM or a SET: each number is read once."""
    column = walked.columns[number]
    values = walked.load_numbers(number)
    known = sorted(set(values.tolist()))
    which = np.searchsorted(np.array(known, values.dtype), values)  # np.unique would import numpy.ma, which takes longer
    read = value_reader(column)
    labels = [read(value.to_bytes(column.size, "little"), 0)[0] for value in known]
    which[walked.lengths[number] < 0] = len(labels)
    return _make_plain([*labels, None], Kind.TEXT, which)


def _make_plain(values: list[Any], kind: Kind, which: NDArray[np.int64] | None = None) -> Any:
    """Texts or bytes as an array, or, with `which`, those with these numbers; None where a text is bytes."""
    if kind is Kind.TEXT and any(isinstance(value, bytes) for value in values):
        return None
    stored = [value.encode() if isinstance(value, str) else value for value in values]
    lengths = np.array([-1 if value is None else len(value) for value in stored], np.int64)
    sizes = np.maximum(lengths, 0)
    starts = np.cumsum(sizes) - sizes
    if which is not None:
        starts, lengths = starts[which], lengths[which]
    found = gather_bytes(b"".join(value for value in stored if value), starts, lengths)
    return as_text(found) if kind is Kind.TEXT else found
