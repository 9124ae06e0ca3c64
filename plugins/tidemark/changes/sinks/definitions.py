"""Which tables a statement empties, renames or changes without a row in the log. Pure.

No other part of Tidemark parses statements: rows say by themselves what shape they have. But rows that a `DROP` or
`TRUNCATE` removes stand in no log, and a table that is to equal the source has to lose them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.changes.capture.statements import space_tokens, strip_statement

EMPTIED, MADE, RENAMED, CHANGED, COLUMNS = "emptied", "made", "renamed", "changed", "columns"
VERSIONED = "it has or had system versioning: the log has what its rows were as further rows"
ALL = ""
"""In the place of a table's name: every table of the database."""


@dataclass(frozen=True)
class Effect:
    """What became of a table. `emptied`: its rows are gone. `made`: it is gone, or new, so it has no rows and may have other
    columns. `renamed`: it has the rows of `former`, which has none then. `changed`: some rows are not as the log told them,
    `why` says it. `columns`: likewise, of rows that there are. `if_exists`: renamed, if `former` was there."""

    what: str
    database: str
    table: str
    former: str = ""
    why: str = ""
    if_exists: bool = False


_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[\w$\u0080-\uffff]+)"
_TABLE = rf"{_NAME}(?:\s*\.\s*{_NAME})?"
_EXISTS = r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?"
_FLAGS = re.IGNORECASE | re.DOTALL
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?(?P<table>{_TABLE})", _FLAGS)
_DROP = re.compile(rf"DROP\s+TABLES?\s+{_EXISTS}(?P<tables>{_TABLE}(?:\s*,\s*{_TABLE})*)", _FLAGS)
_DROP_ALL = re.compile(rf"(?:DROP|CREATE\s+OR\s+REPLACE)\s+(?:DATABASE|SCHEMA)\s+{_EXISTS}(?P<database>{_NAME})", _FLAGS)
_CREATE = re.compile(rf"CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\s+(?!IF\b)(?P<table>{_TABLE})", _FLAGS)
_RENAME = re.compile(r"RENAME\s+TABLES?\s+(?P<if_exists>IF\s+EXISTS\s+)?(?P<pairs>.*)", _FLAGS)
_PAIR = re.compile(rf"({_TABLE})\s+(?:WAIT\s+\d+\s+|NOWAIT\s+)?TO\s+({_TABLE})", _FLAGS)
_ALTER = re.compile(
    rf"ALTER\s+(?:ONLINE\s+|(?P<ignore>IGNORE\s+))*TABLE\s+(?P<if_exists>{_EXISTS})(?P<table>{_TABLE})(?P<rest>.*)", _FLAGS
)
_ALTER_NAME = re.compile(rf"\bRENAME\s+(?!COLUMN\b|INDEX\b|KEY\b)(?:TO\s+|AS\s+|=\s*)?(?P<table>{_TABLE})", _FLAGS)
_PARTITION = re.compile(r"\b(?:DROP|TRUNCATE|EXCHANGE|CONVERT|IMPORT)\s+(?:PARTITION|TABLE|TABLESPACE)\b", _FLAGS)
_OTHER = re.compile(
    rf"\b(?:EXCHANGE|CONVERT)\s+(?:PARTITION\s+{_NAME}\s+(?:WITH|TO)\s+)?TABLE\s+(?P<table>{_TABLE})", _FLAGS
)
_RENAME_COLUMN = re.compile(
    rf"\b(?:RENAME\s+COLUMN|CHANGE(?:\s+COLUMN)?)\s+(?:IF\s+EXISTS\s+)?({_NAME})\s+(?:TO\s+)?({_NAME})", _FLAGS
)
_DEFINED_ANEW = re.compile(r"(?:^|[\s,])(?:(?:MODIFY|CHANGE)\s|CONVERT\s+TO\b)", _FLAGS)
_VERSIONED = re.compile(r"\b(?:WITH|ADD|DROP)\s+SYSTEM\s+VERSIONING\b", _FLAGS)
# A column may be named `period` or `system`.
_NO_COLUMN = r"INDEX|KEY|UNIQUE|PRIMARY|CONSTRAINT|FOREIGN|FULLTEXT|SPATIAL|PARTITION|CHECK|PERIOD\s+FOR|SYSTEM\s+VERSIONING"
_ADD = re.compile(rf"\bADD\s+(?!(?:{_NO_COLUMN})\b)", _FLAGS)


def find_effects(database: str, sql: str) -> Iterator[Effect]:
    """What a statement does to tables beyond what rows of the log say. `database`: of names that have none."""
    text = space_tokens(strip_statement(sql))
    if found := _TRUNCATE.match(text):
        yield Effect(EMPTIED, *_split(found["table"], database))
    elif found := _DROP.match(text):
        for name in re.findall(_TABLE, found["tables"]):
            yield Effect(MADE, *_split(name, database))
    elif found := _DROP_ALL.match(text):
        yield Effect(MADE, _unquote(found["database"]), ALL)
    elif found := _CREATE.match(text):
        yield Effect(MADE, *_split(found["table"], database))
        if _VERSIONED.search(text):
            yield Effect(CHANGED, *_split(found["table"], database), why=VERSIONED)
    elif found := _RENAME.match(text):
        for former, name in _PAIR.findall(found["pairs"]):
            yield from _rename(_split(former, database), _split(name, database), if_exists=bool(found["if_exists"]))
    elif found := _ALTER.match(text):
        rest = found["rest"]
        if found["ignore"]:
            why = "ALTER IGNORE TABLE removes rows that a new unique key forbids, and the log does not name them"
            yield Effect(CHANGED, *_split(found["table"], database), why=why)
        else:
            yield from _find_altered(_split(found["table"], database), rest)
        if other := _OTHER.search(rest):
            why = "ALTER TABLE of another table took or gave its rows"
            yield Effect(CHANGED, *_split(other["table"], database), why=why)
        if renamed := _ALTER_NAME.search(rest):
            names = _split(found["table"], database), _split(renamed["table"], database)
            yield from _rename(*names, if_exists=bool(found["if_exists"]))


def _find_altered(table: tuple[str, str], rest: str) -> Iterator[Effect]:
    if _VERSIONED.search(rest):
        yield Effect(CHANGED, *table, why=VERSIONED)
    elif _PARTITION.search(rest):
        yield Effect(CHANGED, *table, why="ALTER TABLE removed or brought in rows that the log does not name")
    elif _ADD.search(rest):
        yield Effect(COLUMNS, *table, why="a column was added: rows from before have no value there until they change")
    elif any(_unquote(one).lower() != _unquote(other).lower() for one, other in _RENAME_COLUMN.findall(rest)):
        yield Effect(COLUMNS, *table, why="a column was renamed: rows from before have no value there until they change")
    elif _DEFINED_ANEW.search(rest):
        yield Effect(COLUMNS, *table, why="a column was defined anew: the server may have changed values from before")


def _rename(former: tuple[str, str], table: tuple[str, str], *, if_exists: bool) -> Iterator[Effect]:
    if former != table:
        yield Effect(RENAMED, *table, former=".".join(former), if_exists=if_exists)


def _split(name: str, database: str) -> tuple[str, str]:
    parts = re.findall(_NAME, name)
    return (_unquote(parts[0]), _unquote(parts[1])) if len(parts) > 1 else (database, _unquote(parts[0]))


def _unquote(name: str) -> str:
    return name[1:-1].replace(name[0] * 2, name[0]) if name[0] in '`"' else name
