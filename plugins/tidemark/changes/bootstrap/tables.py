"""A table as the server's catalog describes it, in the form in which its rows come out of a binary log.

Rows that are read and rows that are logged must be equal, so the shape here is the one that `capture.rows` makes of a log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemark.changes.connection.login import Server
from tidemark.changes.store.model import Column, Kind, Shape, Value
from tidemark.errors import PermanentError

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_AS_TEXT = ("decimal", "date", "time", "datetime", "timestamp")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
# COLUMN_KEY is PRI for a UNIQUE NOT NULL, too, where there is no primary key: the log says the same.
_COLUMNS = (
    "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY, CHARACTER_SET_NAME, DATETIME_PRECISION"
    " FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)


@dataclass(frozen=True)
class ReadTable:
    """A table to read. `select`: an expression a column; `convert`: from the server's value to the store's."""

    shape: Shape
    select: tuple[str, ...]
    convert: tuple[Callable[[Any], Value], ...]

    @property
    def key(self) -> str | None:
        """The primary key's column, where it is one column of integers."""
        found = [c for c in self.shape.columns if c.key]
        return found[0].name if len(found) == 1 and found[0].kind in (Kind.INT64, Kind.UINT64) else None


def list_tables(server: Server) -> dict[str, tuple[str, str]]:
    """The tables of which a snapshot is consistent: `database.table` → (database, table)."""
    rows = server.ask(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
        " AND ENGINE = 'InnoDB' AND TABLE_SCHEMA NOT IN ('mysql', 'sys') ORDER BY 1, 2"
    )
    return {f"{row['d']}.{row['t']}": (str(row["d"]), str(row["t"])) for row in rows}


def quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def read_table(server: Server, database: str, table: str) -> ReadTable:
    """Ask the catalog for a table. PermanentError: a column whose rows are not known to come out as they are logged."""
    columns, select, convert = [], [], []
    for row in server.ask(_COLUMNS, database, table):
        column, expression, function = _describe(row, f"{database}.{table}")
        columns.append(column)
        select.append(expression)
        convert.append(function)
    return ReadTable(Shape(database, table, tuple(columns)), tuple(select), tuple(convert))


def _describe(row: dict[str, Any], table: str) -> tuple[Column, str, Callable[[Any], Value]]:
    name, word, declared = str(row["COLUMN_NAME"]), str(row["DATA_TYPE"]).lower(), str(row["COLUMN_TYPE"])
    quoted, unsigned = quote_name(name), "unsigned" in declared.lower().split(")")[-1].split()
    kind, expression, function = Kind.TEXT, quoted, _keep
    described = word
    if word in _INTEGERS:
        kind = Kind.UINT64 if unsigned else Kind.INT64
    elif word in _AS_TEXT:
        expression = f"CONCAT({quoted})"
        if word == "decimal":
            described = re.sub(r" .*", "", declared)
        elif row["DATETIME_PRECISION"]:
            described += f"({row['DATETIME_PRECISION']})"
    elif word in ("float", "double"):
        kind, expression, function = Kind.FLOAT64, f"CAST({quoted} AS DOUBLE)", _to_float
    elif word == "bit":
        kind, expression, described = Kind.UINT64, f"CAST({quoted} AS UNSIGNED)", declared
    elif word in _TEXTS and row["CHARACTER_SET_NAME"] in ("utf8mb4", "utf8mb3", "utf8", "latin1", "ascii"):
        described = declared if word in ("enum", "set") else word
    elif word in _BYTES:
        kind = Kind.BYTES
        described = declared if word in ("binary", "varbinary") else word
    else:
        raise PermanentError(
            f"{table}: a column of type {declared} is not read in a bootstrap",
            hint=f'leave the table out: exclude = ["{table}"] of the source, or --tables',
            subject=table,
        )
    described += (" unsigned" if unsigned else "") + ("" if row["IS_NULLABLE"] == "YES" else " not null")
    return Column(name, kind, described, row["COLUMN_KEY"] == "PRI"), expression, function


def _keep(value: Any) -> Value:
    return value  # type: ignore[no-any-return]


def _to_float(value: Any) -> Value:
    return None if value is None else float(value)
