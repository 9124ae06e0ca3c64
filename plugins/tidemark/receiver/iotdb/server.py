"""An IoTDB as one load uses it: one session per model, reopened after a failure, and the statements by version.

`Connected` reads the server's version and time unit. Building statements (LOAD, databases, counts, points, deletions) is
pure. Source: research/iotdb.md §2 (syntax by version), research/iotdb-real.md §5 (which options 2.0.1-beta accepts). Options
that only some releases of a line accept are never used: an unknown option is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from tidemark.errors import OutcomeUnknownError, PermanentError, UnreachableError
from tidemark.receiver.iotdb.session import RefusedError, Rows, Session
from tidemark.receiver.iotdb.thrift import Server
from tidemark.tsfiles.devices import split_nodes, table_segments

_UNITS = {"MILLISECOND": "ms", "MICROSECOND": "us", "NANOSECOND": "ns", "ms": "ms", "us": "us", "ns": "ns"}


class Answering(Protocol):
    """What a load needs of a server."""

    @property
    def version(self) -> Version: ...

    @property
    def unit(self) -> str:
        """Unit of its times: ms | us | ns, '' where unknown."""
        ...

    def run(self, statement: str, table: bool = False) -> None:
        """Run a statement without rows. RefusedError: an error reply; OutcomeUnknownError: it may have run."""
        ...

    def rows(self, statement: str, table: bool = False) -> Rows:
        """Run a query and return the rows."""
        ...

    def close(self) -> None: ...


class Connected:
    """A real server. Sessions are opened on first use; the first one shows whether the server is reachable."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: dict[bool, Session] = {}
        self._version: Version | None = None
        self._unit: str | None = None

    def __enter__(self) -> Connected:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def version(self) -> Version:
        if self._version is None:
            cells = self.rows("show version").cells
            told = [text for cell in cells for text in cell.decode_texts() if text]
            self._version = Version.parse_version(told[0] if told else "")
        return self._version

    @property
    def unit(self) -> str:
        if self._unit is None:
            self._unit = self._ask_unit() if self.version.major >= 1 else ""
        return self._unit

    def run(self, statement: str, table: bool = False) -> None:
        try:
            self._open_session(table).run(statement)
        except OutcomeUnknownError:
            self._close_session(table)
            raise

    def rows(self, statement: str, table: bool = False) -> Rows:
        """Run a query. A query may be repeated, so a broken session is reopened once."""
        try:
            return self._open_session(table).rows(statement)
        except OutcomeUnknownError:
            self._close_session(table)
        try:
            return self._open_session(table).rows(statement)
        except OutcomeUnknownError as away:
            self._close_session(table)
            raise UnreachableError(away.message, hint=away.hint, subject=away.subject) from away

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _open_session(self, table: bool) -> Session:
        if table not in self._sessions:
            self._sessions[table] = Session(self._server, table)
        return self._sessions[table]

    def _close_session(self, table: bool) -> None:
        self._sessions.pop(table).close()

    def _ask_unit(self) -> str:
        try:
            cells = self.rows("show variables").cells
        except RefusedError:
            return ""
        told = dict(zip(*(cell.decode_texts() for cell in cells[:2]), strict=True)) if len(cells) >= 2 else {}
        return _UNITS.get(told.get("TimestampPrecision") or "", "")


def load_into(server: Answering, path: str, database: str, table: bool) -> None:
    """LOAD a file or a folder, in the form that the server understands. Raises as `run`."""
    *others, last = load_statements(server.version, path, database, table)
    for statement in others:
        try:
            return server.run(statement, table)
        except RefusedError as refused:
            if not is_syntax_error(refused.message):
                raise
    return server.run(last, table)


_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class Version:
    """The server's version. `text` is its own wording."""

    text: str
    major: int
    minor: int

    @classmethod
    def parse_version(cls, text: str) -> Version:
        """Parse a version. PermanentError if it is none, or older than 0.12."""
        found = _VERSION.search(text)
        version = cls(text, int(found[1]), int(found[2])) if found else cls(text, 0, 0)
        if (version.major, version.minor) < (0, 12):
            raise PermanentError(f"IoTDB {text!r}: files are loaded into 0.12 and newer", subject=text)
        return version

    @property
    def has_tables(self) -> bool:
        """Whether it has the table model."""
        return self.major >= 2

    @property
    def format(self) -> int:
        """The newest TsFile version it reads (research/iotdb.md §7, 12)."""
        return 4 if self.major >= 2 else 3

    @property
    def moves_files(self) -> bool:
        """Whether LOAD removes the file and ignores its deletions. Such a server gets copies, never links to our files."""
        return self.major == 0


def load_statements(version: Version, path: str, database: str, table: bool) -> list[str]:
    """Return the LOAD statements to try in turn for a file or all files below a folder. The next one is used if the server
    does not understand one (`is_syntax_error`). `path` as the server sees it."""
    place = _quote_text(version, path)
    if version.major == 0:  # 0.12.0 has no option names
        level = _database_level(database)
        return [f"load {place} autoregister=true,sglevel={level},verify=true", f"load {place} true {level}"]
    if version.major == 1:
        return [f"load {place} sglevel={_database_level(database)} verify=true onSuccess=none"]
    options = {"on-success": "none", "convert-on-type-mismatch": "false"}
    options |= {"database-name": database} if table else {"database-level": str(_database_level(database))}
    told = ",".join(f"'{name}'={_quote_text(version, value)}" for name, value in options.items())
    return [f"load {place} with ({told})"]


def is_syntax_error(message: str) -> bool:
    """Whether a refusal says that the statement was not understood, so nothing was done."""
    return "parsing SQL" in message or "mismatched input" in message


def database_statement(version: Version, database: str, table: bool) -> str:
    """Return the statement that creates a database. An existing one is refused (`is_already_there`)."""
    if table:
        return f"create database if not exists {quote_identifier(database)}"
    return f"set storage group to {database}" if version.major == 0 else f"create database {database}"


def is_already_there(message: str) -> bool:
    """Whether the refusal of a new database says that it already exists."""
    said = ("already been created", "has been created", "already been set", "already exist")
    return any(words in message.lower() for words in said)


@dataclass(frozen=True)
class Span:
    """From `start` to `end`, both inclusive, in the files' unit."""

    start: int
    end: int


def counts_of(devices: Sequence[str], span: Span) -> str:
    """Count the points of each series of tree devices within a span: one row, one column `count(<series>)` each."""
    return f"select count(*) from {', '.join(devices)} where {_time_condition(span)}"


def points_of(device: str, span: Span | None, measurement: str = "*") -> str:
    """Select one or every series of a tree device within a span (None: all times), one row per time."""
    return f"select {measurement} from {device}" + (f" where {_time_condition(span)}" if span else "")


def table_counts(database: str, table: str, fields: Sequence[str], span: Span) -> str:
    """Count the points of each field of a table within a span: one row."""
    told = ", ".join(f"count({quote_identifier(field)})" for field in fields)
    return f"select {told} from {quote_identifier(database)}.{quote_identifier(table)} where {_time_condition(span)}"


def table_columns(database: str, table: str) -> str:
    return f"describe {quote_identifier(database)}.{quote_identifier(table)}"


def table_points(device: str, tags: Sequence[str], fields: Sequence[str], database: str, span: Span | None) -> str:
    """Select the fields of one device of a table within a span (None: all times). `tags`: names of all tag columns."""
    told = ", ".join(["time", *map(quote_identifier, fields)])
    table = table_segments(device)[0] or ""
    named = f"{quote_identifier(database)}.{quote_identifier(table)}"
    asked = [*_tag_conditions(device, tags), *([_time_condition(span)] if span else [])]
    return f"select {told} from {named}" + (f" where {' and '.join(asked)}" if asked else "") + " order by time"


def delete_statement(device: str, measurement: str, span: Span) -> str:
    """Delete the points of one tree series within a span."""
    return f"delete from {device}.{measurement} where {_time_condition(span)}"


def table_delete_statement(device: str, tags: Sequence[str], database: str, span: Span) -> str:
    """Delete the rows of one device of a table within a span."""
    table = table_segments(device)[0] or ""
    asked = " and ".join([*_tag_conditions(device, tags), _time_condition(span)])
    return f"delete from {quote_identifier(database)}.{quote_identifier(table)} where {asked}"


def counted_device(name: str) -> str:
    """Return the device of a column `count(<device>.<measurement>)`."""
    inner = name[name.index("(") + 1 : name.rindex(")")]
    return ".".join(split_nodes(inner)[:-1])


def quote_identifier(identifier: str) -> str:
    """Quote an identifier for the table model's SQL; quotes keep its case."""
    return '"' + identifier.replace('"', '""') + '"'


def _tag_conditions(device: str, tags: Sequence[str]) -> list[str]:
    given = list(table_segments(device)[1:])
    given += [None] * (len(tags) - len(given))
    parts = []
    for tag, value in zip(tags, given, strict=True):
        told = "is null" if value is None else "= '" + value.replace("'", "''") + "'"
        parts.append(f"{quote_identifier(tag)} {told}")
    return parts


def _time_condition(span: Span) -> str:
    return f"time >= {span.start} and time <= {span.end}"


def _database_level(database: str) -> int:
    """Return the number of nodes of a database after `root`."""
    return max(1, len(split_nodes(database)) - 1)


def _quote_text(version: Version, text: str) -> str:
    """Quote a text. PermanentError for a quote in it before 2.x: the old grammars cannot escape one."""
    if version.major < 2 and "'" in text:
        raise PermanentError(f"IoTDB {version.text} cannot be told a path with a quote: {text}", subject=text)
    return "'" + text.replace("'", "''") + "'"
