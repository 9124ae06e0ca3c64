"""Which shard of a task has a row, and what a shard has of each transaction. Pure.

A row is in the shard of its key: the columns that the task names for the table, else the primary key, else the whole row.
The key's hash modulo the number of shards is the shard; `docs/formats/shards.md` gives both hashes bit for bit. Nothing of
it is stored with a change, so another number of shards or other columns rewrite nothing.

Rows of a shard stand in the order of the store. What is no row (definitions, shapes, commits, marks) is in every shard, with
the number of rows that the transaction has in all shards together: a consumer can wait for a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.changes.store.model import Op, Record, Rows, Shape, Transaction, make_numbers, view_numbers
from tidemark.changes.store.read import Piece
from tidemark.errors import PermanentError, UsageError

MIXED, PTUBES = "mixed", "ptubes"
SPLIT, AFTER, REFUSE = "split", "after", "refuse"
MOST_SHARDS = 4096
INDEX, MOVED = "i", "moved"
"""Columns behind those of a shape: the row's number in its transaction, and the other shard of a row whose key changed."""
EXTRA = (pa.field(INDEX, pa.int64()), pa.field(MOVED, pa.int32()))
Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Wants = Callable[[str, str], bool]
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_NULL, _NAN = 0x9DDFEA08EB382D69, 0x7FF8000000000000
_LOGICAL, _LONG, _STRING = 32767, 961, 992  # of `ptubes`; 31 * (31 * 1 + type code)


@dataclass(frozen=True)
class Sharding:
    """How a task divides its rows. `columns`: by `database.table`, the names of its shard columns.

    `key_change`, where an update gives a row another shard: `split` makes it a delete in the old one and an insert in the
    new one; `after` leaves it an update, in the new one; `refuse` ends at any change of a key.
    """

    shards: int = 1
    hash: str = MIXED
    key_change: str = SPLIT
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= MOST_SHARDS:
            raise UsageError(f"{self.shards} shards: a task has 1 to {MOST_SHARDS}")
        for name, value, known in (
            ("hash", self.hash, (MIXED, PTUBES)),
            ("key_change", self.key_change, (SPLIT, AFTER, REFUSE)),
        ):
            if value not in known:
                raise UsageError(f"{name} {value!r} is not known: {', '.join(known)}")


@dataclass(frozen=True)
class ShardPiece:
    """What a shard has of a transaction, or of a part of a large one. Its rows have the columns `i` and `moved`, too.

    `rows`: of the transaction in all shards together, up to here; `behind`: of all its rows, wanted or not, so the number of
    the next one. With `ends` it is whole.
    """

    seq: int
    transaction: Transaction
    rows: int
    ends: bool = True
    behind: int = 0


def shard_rows(sharding: Sharding, rows: Rows) -> Numbers:
    """The shard of each row: by its image after the change, of a deleted one by that before."""
    batch = rows.batch
    is_deleted = _ops_of(batch) == Op.DELETE
    if is_deleted.all():
        return _number(sharding, _hash_keys(sharding, rows.shape, batch, 0))
    after = _number(sharding, _hash_keys(sharding, rows.shape, batch, 1))
    if not is_deleted.any():
        return after
    deleted = batch.filter(make_numbers(is_deleted))
    after[is_deleted] = _number(sharding, _hash_keys(sharding, rows.shape, deleted, 0))
    return after


def find_key(sharding: Sharding, shape: Shape) -> tuple[int, ...]:
    """The places of the columns that make a row's key. Raises PermanentError where a named column is not there."""
    table = f"{shape.database}.{shape.table}"
    if table not in sharding.columns:
        key = tuple(place for place, column in enumerate(shape.columns) if column.key)
        return key or tuple(range(len(shape.columns)))
    places = {column.name: place for place, column in enumerate(shape.columns)}
    missing = [name for name in sharding.columns[table] if name not in places]
    if missing:
        raise PermanentError(
            f"{table} has no column {missing[0]}, by which its rows are divided",
            hint="name other shard columns for this table, or none: then it is the primary key",
            subject=table,
        )
    return tuple(places[name] for name in sharding.columns[table])


class Divider:
    """Divides a stream of transactions, from the beginning of one on. `wants`: which tables."""

    def __init__(self, sharding: Sharding, wants: Wants = lambda _database, _table: True) -> None:
        self.sharding = sharding
        self._wants = lru_cache(maxsize=4096)(wants)
        self._row = 0  # of the transaction at hand, wanted or not
        self._given = 0  # rows of it, in all shards together

    def divide(self, pieces: Sequence[Piece], shards: Collection[int] | None = None) -> dict[int, list[ShardPiece]]:
        """By shard, what it has of each of the pieces. Pieces of a block together cost least.

        Raises PermanentError where a key changes and may not.
        """
        chosen = range(self.sharding.shards) if shards is None else sorted(shards)
        wholes: dict[int, _Whole] = {}
        behinds: list[int] = []
        for piece in pieces:
            for record in piece.transaction.records:
                if not isinstance(record, Rows):
                    continue
                if record.count and self._wants(record.shape.database, record.shape.table):
                    whole = wholes.setdefault(id(record.whole), _Whole(record.shape, record.whole))
                    whole.add(record, self._row, piece.seq)
                self._row += record.count
            behinds.append(self._row)
            if piece.ends:
                self._row = 0
        divided = {key: _divide_rows(self.sharding, whole, chosen) for key, whole in wholes.items()}
        found: dict[int, list[ShardPiece]] = {shard: [] for shard in chosen}
        for piece, behind in zip(pieces, behinds, strict=True):
            everyone: list[Record] = []
            own: dict[int, list[Record]] = {}  # of shards that have rows
            for record in piece.transaction.records:
                if not isinstance(record, Rows):
                    for records in (everyone, *own.values()):
                        records.append(record)
                elif record.count and self._wants(record.shape.database, record.shape.table):
                    given, parts = next(divided[id(record.whole)])
                    self._given += given
                    for shard, rows in parts:
                        own.setdefault(shard, [*everyone]).append(rows)
            shared = self._make_piece(piece, behind, everyone)
            for shard, list_of_shard in found.items():
                list_of_shard.append(self._make_piece(piece, behind, own[shard]) if shard in own else shared)
            if piece.ends:
                self._given = 0
        return found

    def _make_piece(self, piece: Piece, behind: int, records: Sequence[Record]) -> ShardPiece:
        whole = piece.transaction
        transaction = Transaction(whole.info, whole.gtid, whole.gtid_offset, tuple(records))
        return ShardPiece(piece.seq, transaction, self._given, piece.ends, behind)


class _Whole:
    """An Arrow batch of which records have stretches."""

    def __init__(self, shape: Shape, batch: Any) -> None:
        self.shape = shape
        self.batch = batch
        self.stretches: list[tuple[int, int, int]] = []  # start, count, number of the first row in its transaction
        self.seqs: list[int] = []

    def add(self, rows: Rows, first: int, seq: int) -> None:
        self.stretches.append((rows.start, rows.count, first))
        self.seqs.append(seq)

    def gather(self) -> tuple[Any, Numbers, Numbers]:
        """The stretches one behind the other: rows, their numbers in their transactions, and where each stretch begins."""
        starts, counts, firsts = np.array(self.stretches, np.int64).T
        begins = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(begins[-1], dtype=np.int64) - np.repeat(begins[:-1], counts)
        places = within + np.repeat(starts, counts)
        if len(places) and places[-1] - places[0] + 1 == len(places) and (np.diff(places) == 1).all():
            return self.batch.slice(int(places[0]), len(places)), within + np.repeat(firsts, counts), begins
        return self.batch.take(make_numbers(places)), within + np.repeat(firsts, counts), begins


def _divide_rows(sharding: Sharding, whole: _Whole, chosen: Sequence[int]) -> Iterator[tuple[int, list[tuple[int, Rows]]]]:
    """For each stretch: how many rows all shards have of it, and its rows by shard."""
    shape, (batch, index, begins) = whole.shape, whole.gather()
    count = len(index)
    moved = np.zeros(0, np.int64)
    if sharding.shards == 1 and sharding.key_change != REFUSE:
        divided, order = _extend(batch, index, None), None
        places, shards = np.arange(count), np.zeros(count, np.int64)
    else:
        shards, moved, olds = _find_moved(sharding, whole, batch)
        places = np.arange(count)
        divided = _extend(batch, index, None)
        if len(moved):
            rows = _fill_after(divided.take(make_numbers(moved)), shape, find_key(sharding, shape))
            divided = _split_moved(divided, rows, moved, (olds, shards[moved]))
            places = np.concatenate([np.delete(places, moved), moved, moved])
            shards = np.concatenate([np.delete(shards, moved), olds, shards[moved]])
            order = np.lexsort((places, shards))
        else:
            order = np.argsort(shards.astype(np.uint16), kind="stable")  # numbers so small are sorted in one pass
        if len(chosen) < sharding.shards:
            order = order[np.isin(shards[order], chosen)]
        divided, places, shards = _take(divided, order), places[order], shards[order]
    more = np.searchsorted(np.sort(moved), begins)
    given = (np.diff(begins) + np.diff(more)).tolist()
    edges = []
    for shard in chosen:
        low, high = np.searchsorted(shards, [shard, shard + 1])
        edges.append((low + np.searchsorted(places[low:high], begins)).tolist())
    lows = list(zip(*edges, strict=True)) or [()] * len(begins)
    for total, last, following in zip(given, lows, lows[1:], strict=False):
        parts = zip(chosen, last, following, strict=True)
        yield total, [(shard, Rows(shape, divided, low, high - low)) for shard, low, high in parts if high > low]


def _find_moved(sharding: Sharding, whole: _Whole, batch: Any) -> tuple[Numbers, Numbers, Numbers]:
    """The shard of each row, which updates are to be split, and their old shards."""
    shards = shard_rows(sharding, Rows(whole.shape, batch))
    none = np.zeros(0, np.int64)
    updates = np.flatnonzero(_ops_of(batch) == Op.UPDATE)
    if sharding.key_change == AFTER or not len(updates):
        return shards, none, none
    updated = batch if len(updates) == batch.num_rows else batch.take(make_numbers(updates))
    before = _hash_keys(sharding, whole.shape, updated, 0)
    if sharding.key_change == REFUSE:
        changed = np.flatnonzero(before != _hash_keys(sharding, whole.shape, updated, 1))
        if len(changed):
            ends = np.cumsum([count for _, count, _ in whole.stretches])
            seq = whole.seqs[int(np.searchsorted(ends, updates[changed[0]], side="right"))]
            table = f"{whole.shape.database}.{whole.shape.table}"
            raise PermanentError(
                f'transaction seq:{seq} changes the key of a row of {table}, and key_change is "refuse"',
                hint=f'key_change = "{SPLIT}" makes it a delete and an insert; or divide {table} by a column that stays',
                subject=table,
            )
        return shards, none, none
    olds = _number(sharding, before)
    differ = olds != shards[updates]
    return shards, updates[differ], olds[differ]


def _take(batch: Any, places: Numbers) -> Any:
    """Rows of a batch. Columns of nulls alone, as images have that an operation lacks, cost nothing."""
    taken, count = make_numbers(places), len(places)
    columns = [
        pa.nulls(count, column.type) if column.null_count == len(column) else column.take(taken) for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _extend(batch: Any, index: Numbers, moved: Any) -> Any:
    """A shape's rows with the columns `i` and `moved`."""
    extra = [make_numbers(index), pa.nulls(batch.num_rows, pa.int32()) if moved is None else moved]
    return pa.RecordBatch.from_arrays([*batch.columns, *extra], schema=_extended(batch.schema))


def _extended(schema: Any) -> Any:
    for one in EXTRA:
        schema = schema.append(one)
    return schema


def _fill_after(rows: Any, shape: Shape, key: Sequence[int]) -> Any:
    """Updates whose images after the change have their key. With binlog_row_image = MINIMAL it may stand before alone."""
    columns, width = list(rows.columns), len(shape.columns)
    bits = [int.from_bytes(each or b"", "little") for each in rows.column(2).to_pylist()]
    for place in sorted({*key, *(place for place, column in enumerate(shape.columns) if column.key)}):
        absent = find_absent(rows, place, 1) & ~find_absent(rows, place, 0)
        if absent.any():
            after = 3 + width + place
            columns[after] = pc.if_else(make_numbers(absent), columns[3 + place], columns[after])
            bits = [each & ~(1 << place) if is_absent else each for each, is_absent in zip(bits, absent, strict=True)]
    size = (width + 7) // 8
    columns[2] = pa.array([each.to_bytes(size, "little") if each else None for each in bits], columns[2].type)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _split_moved(divided: Any, rows: Any, moved: Numbers, shards: tuple[Numbers, Numbers]) -> Any:
    """The rows without the moved ones, then a delete for each of these, then an insert for each."""
    width = (divided.num_columns - 3 - len(EXTRA)) // 2
    kept = divided.filter(make_numbers(~np.isin(np.arange(divided.num_rows), moved)))
    olds, news = (make_numbers(each.astype(np.int32)) for each in shards)
    made = [kept]
    for op, other, absent, gone in ((Op.DELETE, news, 2, 3 + width), (Op.INSERT, olds, 1, 3)):
        columns = list(rows.columns)
        columns[0] = make_numbers(np.full(len(moved), op, np.uint8))
        for place in (absent, *range(gone, gone + width)):
            columns[place] = pa.nulls(len(moved), columns[place].type)
        columns[-1] = other
        made.append(pa.RecordBatch.from_arrays(columns, schema=divided.schema))
    return pa.concat_batches(made)


# keys


def _ops_of(batch: Any) -> NDArray[np.uint8]:
    return view_numbers(batch.column(0))  # type: ignore[no-any-return]


def _hash_keys(sharding: Sharding, shape: Shape, batch: Any, side: int) -> Words:
    """The hash of each row's key; `side` 0: as it was before, 1: after. A column that the image after lacks is as before.

    PermanentError where no image has it: the row's shard cannot be known.
    """
    arrays = [_key_column(shape, batch, place, side) for place in find_key(sharding, shape)]
    return _hash_ptubes(arrays) if sharding.hash == PTUBES else _hash_mixed(arrays)


def _key_column(shape: Shape, batch: Any, place: int, side: int) -> Any:
    before, after = (batch.column(3 + len(shape.columns) * which + place) for which in (0, 1))
    absent = lost = find_absent(batch, place, side)
    if side:
        lost = absent & ((_ops_of(batch) != Op.UPDATE) | find_absent(batch, place, 0))
    if lost.any():
        table = f"{shape.database}.{shape.table}"
        raise PermanentError(
            f"a row of {table} has no value of {shape.columns[place].name}, by which its rows are divided",
            hint="set binlog_row_image = FULL at the source, or divide the table by its primary key",
            subject=table,
        )
    return pc.if_else(make_numbers(absent), before, after) if side and absent.any() else (before, after)[side]


def find_absent(batch: Any, place: int, side: int) -> NDArray[np.bool_]:
    """Of which rows the image of a side is there, and lacks a column."""
    absent = batch.column(1 + side)
    if absent.null_count == len(absent):
        return np.zeros(len(absent), np.bool_)
    return np.array([bits is not None and bits[place >> 3] >> (place & 7) & 1 == 1 for bits in absent.to_pylist()], np.bool_)


def _number(sharding: Sharding, hashes: Words) -> Numbers:
    return (hashes % np.uint64(sharding.shards)).astype(np.int64)


def _hash_mixed(arrays: Sequence[Any]) -> Words:
    hashes: Words = np.zeros(len(arrays[0]), np.uint64)
    for array in arrays:
        hashes = _mix(hashes + _words(array) + np.uint64(_GOLDEN))
    return hashes


def _mix(words: Words) -> Words:
    """The finisher of splitmix64: each bit of a word decides over half of the bits of the result."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def _words(array: Any) -> Words:
    """A number of 64 bits for each value of a column."""
    words: Words
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        texts = array.view(pa.binary()).to_pylist()
        words = np.array([0 if text is None else crc32(text) | len(text) << 32 for text in texts], np.uint64)
    elif pa.types.is_floating(array.type):
        floats = view_numbers(array) + 0.0  # -0.0 becomes 0.0
        words = np.where(np.isnan(floats), np.uint64(_NAN), floats.view(np.uint64))
    else:
        words = view_numbers(array).view(np.uint64)
    if array.null_count:
        words = np.where(_nulls_of(array), np.uint64(_NULL), words)
    return words


def _nulls_of(array: Any) -> NDArray[np.bool_]:
    return view_numbers(array.is_null().cast(pa.uint8())).view(np.bool_)  # type: ignore[no-any-return]


def _hash_ptubes(arrays: Sequence[Any]) -> Words:
    """The logical partition of the original."""
    if len(arrays) == 1 and pa.types.is_integer(arrays[0].type):
        values = np.where(_nulls_of(arrays[0]), np.uint64(0), view_numbers(arrays[0]).view(np.uint64))
        hashes = (values ^ values >> np.uint64(32)).astype(np.uint32) + np.uint32(_LONG)
    elif len(arrays) == 1:
        texts = _print_values(arrays[0])
        hashes = _hash_java(["" if text is None else text for text in texts]) + np.uint32(_STRING)
        hashes = np.where(np.array([text is None for text in texts], bool), np.uint32(_LONG), hashes)
    else:
        columns = [["null" if text is None else text for text in _print_values(array)] for array in arrays]
        hashes = _hash_java(["".join(row) for row in zip(*columns, strict=True)]) + np.uint32(_STRING)
    logical: Words = (np.abs(hashes.astype(np.int32).astype(np.int64)) % _LOGICAL).astype(np.uint64)
    return logical


def _print_values(array: Any) -> list[str | None]:
    return [
        None if value is None else _decode_bytes(value) if isinstance(value, bytes) else str(value)
        for value in array.to_pylist()
    ]


def _decode_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _hash_java(texts: Sequence[str]) -> NDArray[np.uint32]:
    """Java's hash of strings: the sum of each UTF-16 unit times 31 to the power of the units behind it."""
    joined = np.frombuffer("".join(texts).encode("utf-16-le", "surrogatepass"), "<u2")
    sizes = np.array([len(text) for text in texts], np.int64)
    if len(joined) != sizes.sum():
        sizes = np.array([len(text.encode("utf-16-le", "surrogatepass")) // 2 for text in texts], np.int64)
    ends = np.cumsum(sizes)
    powers = np.full(max(int(sizes.max(initial=0)), 1), 31, np.uint32)
    powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint32)
    weights = powers[np.repeat(ends, sizes) - 1 - np.arange(len(joined))]
    sums = np.concatenate([np.zeros(1, np.uint32), np.cumsum(joined * weights, dtype=np.uint32)])
    found: NDArray[np.uint32] = sums[ends] - sums[ends - sizes]
    return found
