"""A table as the server's catalog describes it, in the form in which its rows come out of a binary log.

Rows that are read and rows that are logged must be equal, so the shape here is the one that `capture.rows` makes of a log.
Texts come as they are stored (`character_set_results` is NULL), and are decoded as those of a log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.changes.binlog.charsets import BINARY, find_codec
from tidemark.changes.connection.login import Server
from tidemark.changes.store.model import Column, Kind, Shape
from tidemark.changes.trust.answers import LOCKED_ENGINES
from tidemark.errors import CorruptionError, PermanentError

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TIMES = ("date", "time", "datetime", "timestamp")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_LABELS = ("enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_SHAPES = (
    *("geometry", "point", "linestring", "polygon"),
    *("multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection"),
)
_FIXED = {"uuid": 16, "inet6": 16, "inet4": 4}
"""Types of MariaDB that its log calls BINARY."""
_AS_BYTES = {"char": "binary", "varchar": "varbinary"}
# COLUMN_KEY is PRI for a UNIQUE NOT NULL, too, where there is no primary key: the log says the same.
_COLUMNS = (
    "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY, CHARACTER_SET_NAME, COLLATION_NAME,"
    " CHARACTER_OCTET_LENGTH, DATETIME_PRECISION FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
)
_CHARSETS = (
    "SELECT CHARACTER_SET_NAME AS name, MIN(ID) AS id FROM information_schema.COLLATIONS"
    " WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL GROUP BY CHARACTER_SET_NAME"
)
_SNAPSHOTS = "InnoDB"
_WORD, _NUMBER, _TIME = re.compile(r"\w+"), re.compile(r"-?\d+(\.\d+)?"), re.compile(r"-?[\d:. -]+")


@dataclass(frozen=True)
class ReadColumn:
    """A column to read. `expression`: what to select. `charset`: the number of a collation of its charset, None: ASCII.
    Where nothing here reads it, that is the one of bytes; `collation` is always its own.

    `order`: how a value is written so that the server compares it as it orders the column: "number", "time", "bytes", or
    the charset and collation of a text. Empty: not known.
    """

    column: Column
    expression: str
    charset: int | None = None
    order: str = ""
    collation: int | None = None

    def write_literal(self, value: bytes) -> str:
        """A value of the column as SQL. It is compared by the column's own collation: rows that are equal by it cannot both
        stand under a key, so none is left out and none comes twice."""
        if self.order == "bytes":
            return f"X'{value.hex()}'"
        if self.order in ("number", "time"):
            text = value.decode("ascii", "replace")
            if not (_NUMBER if self.order == "number" else _TIME).fullmatch(text):
                raise CorruptionError(f"{text!r} is no key of {self.column.name}", subject=self.column.name)
            return text if self.order == "number" else f"'{text}'"
        charset, collation = self.order.split()
        return f"_{charset} X'{value.hex()}' COLLATE {collation}"


@dataclass(frozen=True)
class ReadTable:
    """A table to read. `key`: the positions of the columns by which it is read in chunks, `index` their index; none: whole.

    `row_bytes`: what a row takes on the average, as the server guesses. `hidden`: so many hashes stand in the log behind the
    columns (MariaDB).
    """

    shape: Shape
    columns: tuple[ReadColumn, ...]
    key: tuple[int, ...] = ()
    index: str = ""
    row_bytes: int = 0
    hidden: int = 0

    def describe_key(self) -> tuple[str, ...]:
        """What a key of this table means: as long as it is the same, what was read before goes on."""
        found = [self.columns[number] for number in self.key]
        return tuple(f"{one.column.name} {one.column.type} {one.order}" for one in found)

    def select(self, after: Sequence[bytes] = (), limit: int = 0) -> str:
        """The question for the rows behind a key, in its order; for all rows where the table has none."""
        wanted = ", ".join(one.expression for one in self.columns)
        question = f"SELECT {wanted} FROM {quote_name(self.shape.database)}.{quote_name(self.shape.table)}"
        if not self.key:
            return question
        names = [quote_name(self.columns[number].column.name) for number in self.key]
        question += f" FORCE INDEX ({quote_name(self.index)})"
        if after:
            literals = [self.columns[number].write_literal(value) for number, value in zip(self.key, after, strict=True)]
            question += f" WHERE {_compare(names, literals)}"
        return f"{question} ORDER BY {', '.join(names)} LIMIT {limit}"

    def select_sorted(self, key: Sequence[str], numbers: Collection[str]) -> str:
        """The question for all rows in an order that is the same everywhere: by the columns `key`, `numbers` among them by
        value, others by the bytes of what is read, texts in UTF-8."""
        there = {one.column.name: one for one in self.columns}
        terms = [quote_name(name) if name in numbers else _as_bytes(there[name]) for name in key]
        is_indexed = [self.columns[number].column.name for number in self.key] == [*key] and set(key) <= set(numbers)
        index = f" FORCE INDEX ({quote_name(self.index)})" if is_indexed else ""
        wanted = ", ".join(one.expression for one in self.columns)
        name = f"{quote_name(self.shape.database)}.{quote_name(self.shape.table)}"
        return f"SELECT {wanted} FROM {name}{index} ORDER BY {', '.join(terms)}"


def _as_bytes(one: ReadColumn) -> str:
    text = one.expression if one.column.kind is Kind.BYTES else f"CONVERT({one.expression} USING utf8mb4)"
    return f"CAST({text} AS BINARY)"


def _compare(names: Sequence[str], literals: Sequence[str]) -> str:
    """`names > literals`, one after the other. Not as rows: some servers walk the whole index for that."""
    found = []
    for number, (name, literal) in enumerate(zip(names, literals, strict=True)):
        same = [f"{one} = {value}" for one, value in zip(names[:number], literals[:number], strict=True)]
        found.append(" AND ".join([*same, f"{name} > {literal}"]))
    return " OR ".join(f"({one})" for one in found)


@dataclass(frozen=True)
class Name:
    """A table of a server. `has_snapshot`: its engine has consistent snapshots; else it is locked to be read.
    `is_versioned`: MariaDB keeps what its rows were, as rows of it that are logged and a SELECT does not see."""

    database: str
    table: str
    has_snapshot: bool
    is_versioned: bool = False

    @property
    def quoted(self) -> str:
        return f"{quote_name(self.database)}.{quote_name(self.table)}"


def list_tables(server: Server) -> dict[str, Name]:
    """The tables that hold rows of their own, by `database.table`."""
    rows = server.ask(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, ENGINE AS e, TABLE_TYPE AS k FROM information_schema.TABLES"
        f" WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND ENGINE IN ('{_SNAPSHOTS}', {LOCKED_ENGINES})"
        " AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema') ORDER BY 1, 2"
    )
    return {
        f"{row['d']}.{row['t']}": Name(str(row["d"]), str(row["t"]), row["e"] == _SNAPSHOTS, row["k"] == "SYSTEM VERSIONED")
        for row in rows
    }


def quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def read_charsets(server: Server) -> dict[str, int]:
    """Of each charset of a server the number of a collation."""
    return {str(row["name"]): int(row["id"]) for row in server.ask(_CHARSETS)}


def read_table(server: Server, name: Name, charsets: dict[str, int]) -> ReadTable:
    """Ask the catalog for a table. PermanentError: its rows, or those of a column, are not known to come out as logged."""
    asked, label = (name.database, name.table), f"{name.database}.{name.table}"
    if name.is_versioned:
        raise PermanentError(
            f"{label} is not read: it has system versioning, and its log has rows and columns that a SELECT does not give",
            hint=f'leave it out: exclude = ["{label}"] of the source; its changes are captured where the log names columns',
            subject=label,
        )
    rows, is_maria = server.ask(_COLUMNS, *asked), server.is_maria
    columns = tuple(_describe(row, label, charsets, is_native=not is_maria) for row in rows)
    shape = Shape(*asked, tuple(one.column for one in columns))
    indexes = server.ask(f"SHOW INDEX FROM {name.quoted}")
    index, key = _choose_key(indexes, columns)
    told = server.ask(
        "SELECT AVG_ROW_LENGTH AS size, ENGINE AS engine FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        *asked,
    )
    hidden = _count_hashes(indexes) if is_maria and told and told[0]["engine"] != "MEMORY" else 0
    return ReadTable(shape, columns, key, index, int(told[0]["size"] or 0) if told else 0, hidden)


def _count_hashes(rows: Sequence[dict[str, Any]]) -> int:
    """The unique indexes that MariaDB keeps by a hash, which it logs as a column; MEMORY logs none."""
    return len({row["Key_name"] for row in rows if row["Index_type"] == "HASH" and not int(row["Non_unique"])})


def _choose_key(rows: Sequence[dict[str, Any]], columns: Sequence[ReadColumn]) -> tuple[str, tuple[int, ...]]:
    """The index by which a table is read, and its columns: the primary key, else one that is unique and without nulls."""
    positions = {one.column.name: number for number, one in enumerate(columns)}
    indexes: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        indexes.setdefault(str(row["Key_name"]), []).append(row)
    for index in sorted(indexes, key=lambda one: (one != "PRIMARY", one)):
        parts = sorted(indexes[index], key=lambda row: int(row["Seq_in_index"]))
        key = tuple(positions[str(row["Column_name"])] for row in parts if row["Column_name"] in positions)
        if len(key) == len(parts) and all(map(_orders, parts)) and all(columns[number].order for number in key):
            return index, key
    return "", ()


def _orders(part: dict[str, Any]) -> bool:
    is_off = part.get("Ignored") == "YES" or part.get("Visible") == "NO"
    return not (int(part["Non_unique"]) or part["Sub_part"] or part["Null"] or is_off) and part["Index_type"] == "BTREE"


def _is_walked(word: str, collation: str) -> bool:
    """Whether an index has texts in the order in which the server compares them. It keeps a CHAR with the blanks behind it;
    a comparison has them not. That differs where a collation does not pad (seen with MariaDB 10.11 and 11.8, of characters
    before the blank), and in Thai, where a vowel changes places with the character behind it (seen with MySQL 9.7, too)."""
    return "text" not in word and not (word == "char" and ("_nopad_" in collation or collation.startswith("tis620_thai_")))


def _describe(row: dict[str, Any], table: str, charsets: dict[str, int], *, is_native: bool) -> ReadColumn:
    name, word, declared = str(row["COLUMN_NAME"]), str(row["DATA_TYPE"]).lower(), str(row["COLUMN_TYPE"])
    quoted, words = quote_name(name), declared.lower().split(")")[-1].split()
    charset = charsets.get(str(row["CHARACTER_SET_NAME"])) if row["CHARACTER_SET_NAME"] else None
    kind, expression, described, order, collation = Kind.TEXT, quoted, word, "", charset
    is_unsigned = "unsigned" in words and word != "year"
    if word in _INTEGERS or (word == "year" and declared.lower() != "year(2)"):
        kind, order = Kind.UINT64 if is_unsigned else Kind.INT64, "number"
    elif word == "decimal":
        described, order = re.sub(r" .*", "", declared), "number"
        expression = f"{quoted} + 0" if "zerofill" in words else quoted
    elif word in _TIMES:
        described, order = word + (f"({row['DATETIME_PRECISION']})" if row["DATETIME_PRECISION"] else ""), "time"
    elif word in ("float", "double"):
        kind, expression = Kind.FLOAT64, f"CAST({quoted} AS DOUBLE)"
    elif word == "bit":
        kind, expression, described, order = Kind.UINT64, f"CAST({quoted} AS UNSIGNED)", declared, "number"
    elif word in _LABELS and charset is not None and find_codec(charset) is not None:
        described = declared
    elif word in _TEXTS and charset is not None:
        if _is_walked(word, str(row["COLLATION_NAME"])):
            order = f"{row['CHARACTER_SET_NAME']} {row['COLLATION_NAME']}"
        if find_codec(charset) is None:  # bytes in the log, too
            kind, charset = Kind.BYTES, BINARY
            size = int(row["CHARACTER_OCTET_LENGTH"]) + ("compressed" in declared.lower())
            described = f"{_AS_BYTES[word]}({size})" if word in _AS_BYTES else word.replace("text", "blob")
    elif word in _BYTES:
        kind, order = Kind.BYTES, "bytes" if "blob" not in word else ""
        size = int(row["CHARACTER_OCTET_LENGTH"]) + ("compressed" in declared.lower())
        described = f"{word}({size})" if "blob" not in word else word
    elif word in _SHAPES:
        kind, described = Kind.BYTES, "geometry"
    elif word == "vector" and is_native:
        kind = Kind.BYTES
    elif word == "json":
        pass  # MySQL's own type: as text, as the log's reader prints it
    elif word in _FIXED:
        kind, described, order = Kind.BYTES, f"binary({_FIXED[word]})", "bytes"
        expression = f"CAST({quoted} AS BINARY({_FIXED[word]}))"
    else:
        raise PermanentError(
            f"{table}: a column of type {declared} is not read in a bootstrap",
            hint=f'leave the table out: exclude = ["{table}"] of the source',
            subject=table,
        )
    described += (" unsigned" if is_unsigned else "") + ("" if row["IS_NULLABLE"] == "YES" else " not null")
    if not all(_WORD.fullmatch(part) for part in order.split()):
        order = ""
    return ReadColumn(Column(name, kind, described, row["COLUMN_KEY"] == "PRI"), expression, charset, order, collation)
