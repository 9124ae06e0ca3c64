"""What a statement of a binary log is: a border of a transaction, a definition, or changes that came as text. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto

from tidemark.changes.binlog.events import Query, XaId


class Sort(Enum):
    """What a statement does."""

    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    SAVEPOINT = auto()
    ROLLBACK_TO_SAVEPOINT = auto()
    XA_BEGIN = auto()
    XA_END = auto()
    XA_COMMIT = auto()
    XA_ROLLBACK = auto()
    DEFINITION = auto()
    FILLED_TABLE = auto()
    """A definition that fills its table with rows, which stand in no log."""
    CHANGE = auto()


_COMMENT = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|/\*M?!\d*|/\*.*?\*/|\*/|--(?=\s|$)[^\n]*|#[^\n]*""", re.DOTALL
)
"""A quoted text, which stays, or a comment. A server ran what stands in `/*! … */`, so of that the marks go alone."""
_FOR_ONE = re.compile(
    r"""SET\s+STATEMENT\s(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*?\sFOR\s+""", re.IGNORECASE | re.DOTALL
)
"""What MariaDB sets for one statement, and logs before it."""
_WORDS = re.compile(r"[A-Za-z]+(?:\s+[A-Za-z]+)?")
_BORDERS = {
    "BEGIN": Sort.BEGIN,
    "START TRANSACTION": Sort.BEGIN,
    "COMMIT": Sort.COMMIT,
    "ROLLBACK TO": Sort.ROLLBACK_TO_SAVEPOINT,
    "ROLLBACK": Sort.ROLLBACK,
    "SAVEPOINT": Sort.SAVEPOINT,
    "RELEASE SAVEPOINT": Sort.SAVEPOINT,
    "XA START": Sort.XA_BEGIN,
    "XA BEGIN": Sort.XA_BEGIN,
    "XA END": Sort.XA_END,
    "XA COMMIT": Sort.XA_COMMIT,
    "XA ROLLBACK": Sort.XA_ROLLBACK,
}
_FILLED_TABLE = re.compile(
    r"CREATE\s+(?:OR\s+REPLACE\s+)?TABLE\b.*(?<![.\w$])(?:SELECT|TABLE|VALUES\s+ROW)\b", re.IGNORECASE | re.DOTALL
)
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`""", re.DOTALL)
_ANALYZES_TABLES = {"ANALYZE TABLE", "ANALYZE TABLES", "ANALYZE LOCAL", "ANALYZE NO"}
_CHANGES = {
    "INSERT",
    "UPDATE",
    "DELETE",
    "REPLACE",
    "LOAD",
    "WITH",
    "CALL",
    "MERGE",
    "EXECUTE",
    "DO",
    "SELECT",
    "TABLE",
    "VALUES",
}


def strip_statement(sql: str) -> str:
    """A statement without comments, and without what MariaDB set for it alone."""
    if "\\'" in sql or '\\"' in sql:
        sql = _double_backslashes(sql)
    if "/*" in sql or "--" in sql or "#" in sql:
        sql = _COMMENT.sub(lambda found: found[1] or " ", sql)
    return _FOR_ONE.sub("", sql.lstrip(), count=1) if sql.lstrip()[:3].upper() == "SET" else sql.lstrip()


def _double_backslashes(sql: str) -> str:
    """A statement of a session with NO_BACKSLASH_ESCAPES, where a backslash before a quote does not keep the text open, as
    others write it. Which kind it is no store tells; but read as the other, a quote is left that closes nothing."""
    doubled = sql.replace("\\", "\\\\")
    return doubled if _has_open_quote(sql) and not _has_open_quote(doubled) else sql


def _has_open_quote(sql: str) -> bool:
    left = _COMMENT.sub("", sql)
    return any(quote in left for quote in "'\"`")


_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|(?P<keep>`(?:[^`]|``)+`|[(=])|\b(?P<word>COMMENT|DEFAULT)\s*=?\s*"(?:[^"\\]|\\.|"")*"|"""
    r"""(?P<name>"(?:[^"]|"")*")""",
    re.IGNORECASE | re.DOTALL,
)


def space_tokens(sql: str) -> str:
    """A statement with blanks around names in quotes, `(` and `=`, which a server does not ask for: ADD`n`INT. Texts go, for
    they name no table. In double quotes may be a text or a name (ANSI_QUOTES): that goes where no name can be."""
    return _TOKEN.sub(lambda found: f" {found['keep'] or found['name'] or found['word'] or ''} ", sql)


def sort_statement(query: Query) -> Sort:
    """What a statement does. One that is neither a border nor known to change rows counts as a definition."""
    sql = strip_statement(query.sql)
    found = _WORDS.match(sql)
    words = " ".join(found[0].upper().split()) if found else ""
    first = words.partition(" ")[0]
    if query.is_load or first in _CHANGES or not first:
        return Sort.CHANGE
    if first == "ANALYZE" and words not in _ANALYZES_TABLES:  # MariaDB runs what it analyzes
        return Sort.CHANGE
    if words in ("CREATE OR", "CREATE TABLE") and _FILLED_TABLE.match(_QUOTED.sub("''", sql)):
        return Sort.FILLED_TABLE
    return _BORDERS.get(words) or _BORDERS.get(first) or Sort.DEFINITION


_SAVEPOINT = re.compile(r"(?:SAVEPOINT|ROLLBACK\s+TO(?:\s+SAVEPOINT)?)\s+(?:([`\"])(.+)\1|(\S+))", re.IGNORECASE | re.DOTALL)


def find_savepoint(sql: str) -> str:
    """The name of the savepoint that a statement sets or goes back to, in lower case, as servers compare it; "" if none."""
    found = _SAVEPOINT.match(strip_statement(sql))
    if found is None:
        return ""
    name = found[2].replace(found[1] * 2, found[1]) if found[1] else found[3]
    return name.casefold()


_XA_PART = r"(?:[Xx]'([0-9A-Fa-f]*)'|0x([0-9A-Fa-f]*)|'([^']*)')"
_XA = re.compile(rf"XA\s+\w+\s+{_XA_PART}(?:\s*,\s*{_XA_PART}(?:\s*,\s*(\d+))?)?", re.IGNORECASE)


def find_xa(sql: str) -> XaId | None:
    """The name of the XA transaction that an XA statement is on; None where it is not written as servers write it."""
    found = _XA.match(sql.strip())
    if found is None:
        return None
    parts = [
        text.encode() if text is not None else bytes.fromhex(hex1 or hex2 or "")
        for hex1, hex2, text in (found.group(1, 2, 3), found.group(4, 5, 6))
    ]
    return XaId(int(found[7] or 1), *parts)


def name_xa(xa: XaId) -> str:
    """An XA transaction's name as text: its first part where that says it all, else as servers write it."""
    plain = xa.gtrid.decode("utf-8", "replace")
    if xa.format_id == 1 and not xa.bqual and plain.isprintable() and plain.encode() == xa.gtrid and "'" not in plain:
        return plain
    return f"X'{xa.gtrid.hex()}',X'{xa.bqual.hex()}',{xa.format_id}"
