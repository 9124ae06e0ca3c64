"""One statement for many rows: what SQLAlchemy does anew for each row of an `executemany` is done once.

A first sync writes five rows a file; building SQLAlchemy's parameters took longer than the database did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection


def write_rows(connection: Connection, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Execute `sql`, which names its values `:name`, once for each of `rows`: mappings that have all these names. Nothing
    is done for no rows. Raises what the driver raises, as SQLAlchemy's errors."""
    if not rows:
        return
    compiled = sa.text(sql).compile(dialect=connection.dialect)
    names = compiled.positiontup if isinstance(compiled, sa.sql.compiler.SQLCompiler) else None
    if names is None:  # the driver takes names itself
        connection.exec_driver_sql(str(compiled), [dict(row) for row in rows])
    elif len(names) == 1:
        connection.exec_driver_sql(str(compiled), [(row[names[0]],) for row in rows])
    else:
        connection.exec_driver_sql(str(compiled), list(map(itemgetter(*names), rows)))
