"""One statement for many rows: what SQLAlchemy does anew for each row of an `executemany` is done once, and not at all for
each row that is read.

A first sync writes five rows a file; building SQLAlchemy's parameters took longer than the database did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

_STREAM = 2_000  # rows fetched at once


def write_rows(connection: Connection, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute `sql`, which names its values `:name`, once for each of `rows`: mappings that have all these names. Nothing
    is done for no rows. Raises what the driver raises, as SQLAlchemy's errors."""
    if rows:
        names = tuple(sa.text(sql).compile().params)
        take = itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)
        write_tuples(connection, sql, names, map(take, rows))


def write_tuples(
    connection: Connection, sql: str, names: Sequence[str], rows: Iterable[tuple[Any, ...]], **same: Any
) -> None:
    """The same for rows that are tuples of the values that `names` names, and the values that are the `same` in all."""
    all_names, constant = (*names, *same), tuple(same.values())
    whole = [row + constant for row in rows] if constant else list(rows)
    if not whole:
        return
    compiled = sa.text(sql).compile(dialect=connection.dialect)
    order = compiled.positiontup if isinstance(compiled, sa.sql.compiler.SQLCompiler) else None
    if order is None:  # the driver takes names itself
        connection.exec_driver_sql(str(compiled), [dict(zip(all_names, row, strict=True)) for row in whole])
        return
    places = [all_names.index(name) for name in order]
    if len(places) == 1:
        connection.exec_driver_sql(str(compiled), [(row[places[0]],) for row in whole])
    else:
        connection.exec_driver_sql(str(compiled), list(map(itemgetter(*places), whole)))


def read_tuples(connection: Connection, sql: str, values: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """The rows of a query, some at a time: of SQLite the driver's own tuples, SQLAlchemy's rows take twice the time."""
    if connection.dialect.name == "sqlite":
        cursor = connection.execute(sa.text(sql), values).cursor
        while rows := cursor.fetchmany(_STREAM):
            yield from rows
        return
    result = connection.execute(sa.text(sql), values, execution_options={"yield_per": _STREAM})
    for some in result.partitions(_STREAM):
        yield from some
