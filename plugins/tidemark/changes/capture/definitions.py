"""What a server's catalog says of tables that its log does not describe, and for which stretch of the log that is proved.
Pure.

A definition is read while no other can be made, and the log ends at some place then. It holds from the last statement
before that place on that may have changed the table, up to the next one. No DDL is parsed: any statement that has the name
of the table in it, and is not known to leave definitions alone, may have changed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tidemark.changes.binlog.charsets import BINARY
from tidemark.changes.binlog.events import Query
from tidemark.changes.binlog.tables import Column, T, Table
from tidemark.changes.capture.identity import number_of
from tidemark.changes.capture.rows import shape_of
from tidemark.changes.capture.statements import Sort, sort_statement, space_tokens, strip_statement
from tidemark.changes.store import model
from tidemark.changes.store.model import Shape

Place = tuple[int, int, int]
"""Change id, number of the log, position."""


class Where(NamedTuple):
    """An event of a log, and where its transaction begins."""

    change_id: int
    file: str
    begins: int
    position: int

    @property
    def place(self) -> Place:
        return self.change_id, number_of(self.file), self.position


class Catalog(Protocol):
    """What describes tables that the log does not."""

    def describe(self, table: Table, where: Where) -> Table | None:
        """The table as it was there. None: nothing proves how it was, and that is on record as the table's loss."""

    def note_statement(self, query: Query, where: Where) -> None:
        """A statement comes that is neither rows nor a border. It was not told of before those that come behind it."""

    def begin(self, change_id: int, end: Place) -> None:
        """Events come that go on behind a store's `end`; before the first, its number is 0. They have a change id."""

    def note_read(self, name: str) -> None:
        """A table (`database.table`) is read anew from here on: what was lost of it before is made good."""

    @property
    def parked(self) -> dict[str, str]:
        """The tables of which rows were lost, and why."""


@dataclass(frozen=True)
class Definition:
    """A table as the catalog has it, from the place `since` on, before the place `until` (None: no end is known).

    `charsets`: of each column the number of a collation, None: it has none. `shape`: None: it is not to be had, and `why`.
    `hidden`: so many hashes of unique texts stand in the log behind the columns.
    """

    database: str
    table: str
    since: Place
    until: Place | None = None
    shape: Shape | None = None
    charsets: tuple[int | None, ...] = ()
    why: str = ""
    hidden: int = 0

    def holds_at(self, place: Place) -> bool:
        return self.since <= place and (self.until is None or place < self.until)

    def describe(self, table: Table) -> Table | None:
        """A table of the log with all that this says of it. None: they do not fit each other."""
        if self.shape is None or len(self.shape.columns) + self.hidden != len(table.columns):
            return None
        shown = len(self.shape.columns)
        told = zip(table.columns[:shown], self.shape.columns, self.charsets, strict=True)
        columns = [_describe_column(column, known, charset) for column, known, charset in told]
        for number, column in enumerate(table.columns[shown:], start=1):
            if column.type != T.LONGLONG or column.is_unsigned is False:
                return None
            columns.append(replace(column, name=f"DB_ROW_HASH_{number}", is_unsigned=True))
        key = tuple(index for index, column in enumerate(self.shape.columns) if column.key)
        found = replace(table, columns=tuple(columns), key=key, has_names=True, hidden=self.hidden)
        return found if not found.unknown() and _without_labels(shape_of(found)) == _without_labels(self.shape) else None


_SIGNED = (T.TINY, T.SHORT, T.INT24, T.LONG, T.LONGLONG, T.NEWDECIMAL, T.FLOAT, T.DOUBLE)
_LABELLED = (T.ENUM, T.SET)
_TEXTS = (
    *(T.STRING, T.VAR_STRING, T.VARCHAR, T.VARCHAR_COMPRESSED, T.BLOB_COMPRESSED),
    *(T.TINY_BLOB, T.BLOB, T.MEDIUM_BLOB, T.LONG_BLOB),
)


def _describe_column(column: Column, known: model.Column, charset: int | None) -> Column:
    """A column of the log as the catalog has it. What the log tells stays."""
    found = replace(column, name=known.name)
    if column.type in _SIGNED and column.is_unsigned is None:
        found = replace(found, is_unsigned="unsigned" in known.type.rpartition(")")[2].split())
    if column.type in (*_TEXTS, *_LABELLED) and column.collation is None:
        found = replace(found, collation=BINARY if charset is None else charset)
    if column.type in _LABELLED and column.labels is None:
        found = replace(found, labels=read_labels(known.type))
    return found


def _without_labels(shape: Shape) -> Shape:
    """A shape without what its labels are: they are not the log's."""
    columns = [
        replace(column, type=column.type.rpartition(")")[2]) if column.type.startswith(("enum(", "set(")) else column
        for column in shape.columns
    ]
    return replace(shape, columns=tuple(columns))


_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_MEANT = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


def read_labels(declared: str) -> tuple[str, ...]:
    """The labels of an ENUM or a SET as a catalog writes its type."""
    return tuple(
        _ESCAPED.sub(lambda one: "'" if one[1] is None else _MEANT.get(one[1], one[1]), found)
        for found in _LABEL.findall(declared)
    )


class Statement(NamedTuple):
    """A statement of the log that may define tables, and where it stands."""

    place: Place
    sql: str

    def may_define(self, table: str) -> bool:
        """Whether it may have changed a table of this name, in whatever database."""
        if not table.isascii() and not self.sql.isascii():
            return True  # in the client's charset: not compared
        sql = _VERSION.sub(" ", self.sql).casefold()
        words = _WORD.findall(sql)
        if not _DATABASES.isdisjoint(words) and not _REMOVING.isdisjoint(words):
            return True
        spellings = {table.casefold(), *(table.casefold().replace(quote, 2 * quote) for quote in '`"')}
        if _WORD.fullmatch(table):
            return table.casefold() in words
        return any(spelling in sql for spelling in spellings)


_VERSION = re.compile(r"/\*M?!\d*")
_WORD = re.compile(r"[\w$]+")
_DATABASES, _REMOVING = {"database", "schema"}, {"drop", "replace", "upgrade"}
_HARMLESS = re.compile(r"\s*(TRUNCATE|ANALYZE|OPTIMIZE|REPAIR|CHECK|GRANT|REVOKE|FLUSH)\b", re.IGNORECASE)
"""Statements that leave names, types and charsets of columns as they are."""


def read_statement(query: Query, place: Place) -> Statement | None:
    """A statement that may define tables; None: it defines none."""
    defines = sort_statement(query) in (Sort.DEFINITION, Sort.FILLED_TABLE, Sort.CHANGE) and not _HARMLESS.match(query.sql)
    return Statement(place, query.sql) if defines else None


_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$]+)"
_TABLE = rf"({_NAME})(?:\s*\.\s*({_NAME}))?"
_WAIT = r"(?:\s+(?:WAIT\s+\d+|NOWAIT))?"
_RENAME = re.compile(rf"\s*RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?{_TABLE}", re.IGNORECASE)
_PAIR = re.compile(rf"(?:TABLES?\s|,)\s*(?:IF\s+EXISTS\s+)?{_TABLE}{_WAIT}\s+TO\s+{_TABLE}", re.IGNORECASE)
_ALTER = re.compile(rf"\s*ALTER\s+(?:(?:ONLINE|OFFLINE|IGNORE)\s+)*TABLE\s+(?:IF\s+EXISTS\s+)?{_TABLE}", re.IGNORECASE)
_NEW = re.compile(rf"\bRENAME(?:\s+(?:TO|AS)\s+|\s*=\s*|\s+){_TABLE}\s*(?:,|$)", re.IGNORECASE)


def find_renames(query: Query) -> list[tuple[str, str]]:
    """(former, new) name of each table that a statement renames, as `database.table`, in its order."""
    sql = space_tokens(strip_statement(query.sql))
    if _RENAME.match(sql):
        pairs = [(one[1], one[2], one[3], one[4]) for one in _PAIR.finditer(sql)]
    else:
        altered = _ALTER.match(sql)
        new = _NEW.search(sql, altered.end()) if altered else None
        pairs = [(altered[1], altered[2], new[1], new[2])] if altered and new else []
    return [(_join_name(query, *pair[:2]), _join_name(query, *pair[2:])) for pair in pairs]


def _join_name(query: Query, first: str, second: str | None) -> str:
    """The name of a table that is written with its database, or without."""
    database, table = (_unquote(first), _unquote(second)) if second else (query.database, _unquote(first))
    return f"{database}.{table}"


def _unquote(name: str) -> str:
    return name[1:-1].replace(2 * name[0], name[0]) if name[0] in '`"' else name


def end_by(definitions: Sequence[Definition], statements: Iterable[Statement]) -> tuple[Definition, ...]:
    """The definitions, each up to the first of these statements behind its begin that may have changed its table."""
    found = list(definitions)
    for statement in statements:
        for number, one in enumerate(found):
            if one.since < statement.place and one.holds_at(statement.place) and statement.may_define(one.table):
                found[number] = replace(one, until=statement.place)
    return tuple(found)


def begin_of(table: str, statements: Iterable[Statement], first: Place, end: Place) -> Place:
    """From where on a definition holds that is read while the log ends at `end`. `statements`: all from `first` on."""
    return max((one.place for one in statements if one.place < end and one.may_define(table)), default=first)


def go_on(definitions: Sequence[Definition], end: Place, change_id: int) -> tuple[Definition, ...]:
    """The definitions that count for what comes behind a store's end. In logs of another change id those that hold at the
    end hold from their beginning on: what ended them in the former logs comes there, too."""
    if change_id == end[0]:
        return tuple(one for one in definitions if one.until is None or one.until > end)
    return tuple(replace(one, since=(change_id, 0, 0), until=None) for one in definitions if one.holds_at(end))
