"""Columns of a lake, and the last state of each key in a batch. Pure.

A column has the narrowest type that holds every value of its type at the source, exactly: whole numbers, decimals, floats,
text, bytes. Dates and times stay text, as the store has them: a server also holds dates that no calendar has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.changes.store.model import Column, Kind, Op, Shape

SEQ = "_tidemark_seq"
"""A column of ours: the transaction that wrote the row last."""
DELETED = "_tidemark_deleted"
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_MOST_DIGITS = 38
_LONG_DIGITS = 19
Types = Mapping[str, Any]
"""Arrow types by column."""
Numbers = NDArray[np.int64]


class MisfitError(Exception):
    """Rows do not fit a table; the text says why."""


def type_of(column: Column) -> Any:
    """The Arrow type of a column in a lake."""
    if column.kind is Kind.INT64:
        return pa.int64()
    if column.kind is Kind.UINT64:
        is_long = column.type.startswith("bigint") or column.type.startswith("bit(64)")
        return pa.decimal128(20, 0) if is_long else pa.int64()
    if column.kind is Kind.FLOAT64:
        return pa.float64()
    if column.kind is Kind.BYTES:
        return pa.binary()
    found = _DECIMAL.match(column.type)
    if found and int(found[1]) <= _MOST_DIGITS:
        return pa.decimal128(int(found[1]), int(found[2]))
    return pa.string()


def widen_type(there: Any, new: Any) -> Any | None:
    """The type that holds the values of both; None: there is none."""
    if there == new:
        return there
    numbers = [_digits_of(one) for one in (there, new)]
    if None in numbers:
        return None
    whole = max(one[0] for one in numbers)  # type: ignore[index]
    scale = max(one[1] for one in numbers)  # type: ignore[index]
    return pa.decimal128(whole + scale, scale) if whole + scale <= _MOST_DIGITS else None


def _digits_of(type_: Any) -> tuple[int, int] | None:
    """Digits before and behind the point that a type of exact numbers holds."""
    if pa.types.is_integer(type_):
        return _LONG_DIGITS, 0
    if pa.types.is_decimal(type_):
        return type_.precision - type_.scale, type_.scale
    return None


def spell_alike(shapes: Sequence[Shape], there: Iterable[str]) -> list[Shape]:
    """Shapes whose columns are written as in `there`, else as in the first shape that has them: no server tells names of
    columns apart by case."""
    known = {name.lower(): name for name in there}
    found = []
    for shape in shapes:
        columns = [replace(one, name=known.setdefault(one.name.lower(), one.name)) for one in shape.columns]
        found.append(replace(shape, columns=tuple(columns)))
    return found


def unite_types(there: Types, shape: Shape) -> dict[str, Any]:
    """The types of a table's columns with those of a shape: some are new, some wider, none goes. MisfitError: one does not
    fit."""
    found = dict(there)
    for column in shape.columns:
        new = type_of(column)
        if column.name.casefold() in (SEQ, DELETED):
            raise MisfitError(f"its column {column.name} has a name that the sink needs")
        wide = widen_type(found[column.name], new) if column.name in found else new
        if wide is None:
            raise MisfitError(
                f"column {column.name} is {column.type or column.kind} now, which does not fit the {found[column.name]} of"
                " the rows that are there"
            )
        found[column.name] = wide
    lower = [name.casefold() for name in found]
    if double := next((name for name in lower if lower.count(name) > 1), None):
        raise MisfitError(f"two columns are named {double}, but for case")
    return found


def key_of(shape: Shape) -> tuple[str, ...]:
    """The columns of a shape's key. MisfitError: it has none."""
    key = tuple(column.name for column in shape.columns if column.key)
    if not key:
        raise MisfitError(
            "it has no primary key, so no row can be told from another like it: ALTER TABLE … ADD PRIMARY KEY, or leave it"
            " out"
        )
    return key


@dataclass(frozen=True)
class Folded:
    """The last state of keys. `rows`: an Arrow table with the columns of the shapes, `SEQ` and `DELETED`; of a key that went
    only the key is there."""

    rows: Any
    kept: int
    gone: int


def fold_rows(stretches: Sequence[tuple[Shape, Any, Numbers]], key: Sequence[str], types: Types) -> Folded:
    """The last state of each key in rows that stand in order. A stretch: shape, rows as the store has them, transactions.
    `key` and `types` may write names of columns in another case.

    MisfitError: a row is not logged whole, or a value does not fit its column.
    """
    alike = spell_alike([shape for shape, _, _ in stretches], [*types, *key])
    stretches = [(shape, batch, numbers) for shape, (_, batch, numbers) in zip(alike, stretches, strict=True)]
    keys: list[Any] = []
    begin = 0
    for shape, batch, _ in stretches:
        keys.append(_list_states(shape, batch, key, begin))
        begin += batch.num_rows
    kinds = {one.schema for one in keys}
    if len(kinds) > 1:
        raise MisfitError("the type of its key changed")
    states = pa.concat_tables(keys) if keys else None
    parts = []
    if states is not None and states.num_rows:
        last = states.group_by(list(_name_keys(key)), use_threads=False).aggregate([("order", "max")])
        orders = np.sort(last["order_max"].to_numpy())
        parts = _take_states(stretches, key, types, orders)
    schema = pa.schema([*((name, types[name]) for name in types), (SEQ, pa.int64()), (DELETED, pa.bool_())])
    rows = pa.concat_tables(parts) if parts else schema.empty_table()
    gone = int(pc.sum(rows[DELETED]).as_py() or 0)
    return Folded(rows, rows.num_rows - gone, gone)


def _name_keys(key: Sequence[str]) -> Sequence[str]:
    return [f"k{number}" for number in range(len(key))]


def _list_states(shape: Shape, batch: Any, key: Sequence[str], begin: int) -> Any:
    """What becomes of keys: a table of the key's columns and `order`, which is 2 * row for a key that goes, and 2 * row + 1
    for one that is there afterwards."""
    _check_whole(batch)
    names = [column.name for column in shape.columns]
    places, width = [names.index(name) for name in key], len(names)
    ops = batch.column(0).to_numpy()
    before = [batch.column(3 + place) for place in places]
    after = [batch.column(3 + width + place) for place in places]
    goes = ops == Op.DELETE
    updates = np.flatnonzero(ops == Op.UPDATE)
    if len(updates):
        chosen = pa.array(updates)
        differ = np.zeros(len(updates), np.bool_)
        for one, other in zip(before, after, strict=True):
            differ |= pc.not_equal(one.take(chosen), other.take(chosen)).fill_null(True).to_numpy(zero_copy_only=False)
        goes[updates[differ]] = True
    went, came = np.flatnonzero(goes), np.flatnonzero(ops != Op.DELETE)
    order = np.concatenate([2 * (begin + went), 2 * (begin + came) + 1])
    arrays = [
        pa.concat_arrays([one.take(pa.array(went)), other.take(pa.array(came))])
        for one, other in zip(before, after, strict=True)
    ]
    return pa.table([*arrays, pa.array(order)], names=[*_name_keys(key), "order"])


def _check_whole(batch: Any) -> None:
    """Refuse images after a change that lack columns (binlog_row_image): nothing here knows what is in these."""
    absent = batch.column(2)
    if absent.null_count < len(absent):
        raise MisfitError("rows are not logged whole: set binlog_row_image = FULL at the source")


def _take_states(
    stretches: Sequence[tuple[Shape, Any, Numbers]], key: Sequence[str], types: Types, orders: Numbers
) -> list[Any]:
    parts = []
    begin = 0
    for shape, batch, numbers in stretches:
        mine = orders[(orders >= 2 * begin) & (orders < 2 * (begin + batch.num_rows))] - 2 * begin
        for side, chosen in ((0, mine[mine % 2 == 0] // 2), (1, mine[mine % 2 == 1] // 2)):
            if len(chosen):
                parts.append(_make_rows(shape, batch.take(pa.array(chosen)), numbers[chosen], side, (key, types)))
        begin += batch.num_rows
    return parts


def _make_rows(shape: Shape, batch: Any, numbers: Numbers, side: int, wanted: tuple[Sequence[str], Types]) -> Any:
    key, types = wanted
    width = len(shape.columns)
    given = {column.name: batch.column(3 + side * width + place) for place, column in enumerate(shape.columns)}
    if side == 0:
        given = {name: given[name] for name in key}
    arrays = cast_columns(given, types, batch.num_rows)
    arrays += [pa.array(numbers), pa.array(np.full(batch.num_rows, side == 0))]
    return pa.table(arrays, names=[*types, SEQ, DELETED])


def cast_columns(given: Mapping[str, Any], types: Types, count: int) -> list[Any]:
    """Columns of `count` rows in the types of a table; nulls for those that are not given. MisfitError: a value does not
    fit."""
    return [_cast(given[name], type_, name) if name in given else pa.nulls(count, type_) for name, type_ in types.items()]


def cast_rows(shape: Shape, batch: Any, types: Types) -> Any:
    """The rows after their change as a sink would have them. MisfitError: a value does not fit."""
    width = len(shape.columns)
    given = {column.name: batch.column(3 + width + place) for place, column in enumerate(shape.columns)}
    return pa.record_batch(cast_columns(given, types, batch.num_rows), names=[*types])


def _cast(array: Any, type_: Any, name: str) -> Any:
    if array.type == type_:
        return array
    try:
        if pa.types.is_uint64(array.type) and pa.types.is_decimal(type_):
            array = pc.cast(array, pa.decimal128(_LONG_DIGITS + 1, 0))  # Arrow asks for room for any value of 64 bits
        return pc.cast(array, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as wrong:
        raise MisfitError(f"a value of column {name} does not fit {type_}: {wrong}") from wrong
