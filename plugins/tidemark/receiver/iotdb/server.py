"""An IoTDB as one load speaks with it: a session a model, made anew after one broke; its statements.

It says its version and its unit of time. What is said to a server, by its version, is pure: LOAD, databases, counts,
points, deletions. Source: research/iotdb.md §2 (syntax by version), research/iotdb-real.md §5 (which options
2.0.1-beta knows). Options that only some releases of a line know are never said: an unknown one is an error.
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
        """Of its times: ms | us | ns, '' where it does not say."""
        ...

    def run(self, statement: str, table: bool = False) -> None:
        """A statement without rows. RefusedError: the server's own word; OutcomeUnknownError: it may have happened."""
        ...

    def rows(self, statement: str, table: bool = False) -> Rows:
        """The rows of a question."""
        ...

    def close(self) -> None: ...


class Connected:
    """A real server. Sessions are opened when they are needed; the first tells whether it is there."""

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
        """A question may be asked again: a session that broke since its last use is made anew once."""
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
    """What the server says it is. `text` is as it says it."""

    text: str
    major: int
    minor: int

    @classmethod
    def parse_version(cls, text: str) -> Version:
        """PermanentError for what is no version, or one whose LOAD nobody here knows."""
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
        """Whether LOAD takes the file away (it is given a copy then, never a link to ours) and leaves its deletions."""
        return self.major == 0


def load_statements(version: Version, path: str, database: str, table: bool) -> list[str]:
    """LOAD of a file or of all files below a folder, in the forms that servers of that version may understand: the next is
    said where one is not (`is_syntax_error`). `path` as the server sees it."""
    place = _quote_text(version, path)
    if version.major == 0:  # 0.12.0 has no names for options yet
        level = _database_level(database)
        return [f"load {place} autoregister=true,sglevel={level},verify=true", f"load {place} true {level}"]
    if version.major == 1:
        return [f"load {place} sglevel={_database_level(database)} verify=true onSuccess=none"]
    options = {"on-success": "none", "convert-on-type-mismatch": "false"}
    options |= {"database-name": database} if table else {"database-level": str(_database_level(database))}
    told = ",".join(f"'{name}'={_quote_text(version, value)}" for name, value in options.items())
    return [f"load {place} with ({told})"]


def is_syntax_error(message: str) -> bool:
    """Whether a refusal says that the statement was not understood, so that nothing of it was done."""
    return "parsing SQL" in message or "mismatched input" in message


def database_statement(version: Version, database: str, table: bool) -> str:
    """Make a database. One that is there already is refused (`is_already_there`)."""
    if table:
        return f"create database if not exists {quote_identifier(database)}"
    return f"set storage group to {database}" if version.major == 0 else f"create database {database}"


def is_already_there(message: str) -> bool:
    """Whether the refusal of a new database says that there is one already."""
    said = ("already been created", "has been created", "already been set", "already exist")
    return any(words in message.lower() for words in said)


@dataclass(frozen=True)
class Span:
    """From `start` to `end`, both inclusive, in the files' unit."""

    start: int
    end: int


def counts_of(devices: Sequence[str], span: Span) -> str:
    """Points of each series of tree devices within a span: one row, a column `count(<series>)` each."""
    return f"select count(*) from {', '.join(devices)} where {_time_condition(span)}"


def points_of(device: str, span: Span | None, measurement: str = "*") -> str:
    """One or every series of a tree device within a span (None: ever), a row a time."""
    return f"select {measurement} from {device}" + (f" where {_time_condition(span)}" if span else "")


def table_counts(database: str, table: str, fields: Sequence[str], span: Span) -> str:
    """Points of each field of a table within a span: one row."""
    told = ", ".join(f"count({quote_identifier(field)})" for field in fields)
    return f"select {told} from {quote_identifier(database)}.{quote_identifier(table)} where {_time_condition(span)}"


def table_columns(database: str, table: str) -> str:
    return f"describe {quote_identifier(database)}.{quote_identifier(table)}"


def table_points(device: str, tags: Sequence[str], fields: Sequence[str], database: str, span: Span | None) -> str:
    """The fields of one device of a table within a span (None: ever). `tags`: names of all tag columns, in order."""
    told = ", ".join(["time", *map(quote_identifier, fields)])
    table = table_segments(device)[0] or ""
    named = f"{quote_identifier(database)}.{quote_identifier(table)}"
    asked = [*_tag_conditions(device, tags), *([_time_condition(span)] if span else [])]
    return f"select {told} from {named}" + (f" where {' and '.join(asked)}" if asked else "") + " order by time"


def delete_statement(device: str, measurement: str, span: Span) -> str:
    """Deletes the points of one tree series within a span."""
    return f"delete from {device}.{measurement} where {_time_condition(span)}"


def table_delete_statement(device: str, tags: Sequence[str], database: str, span: Span) -> str:
    """Deletes the rows of one device of a table within a span."""
    table = table_segments(device)[0] or ""
    asked = " and ".join([*_tag_conditions(device, tags), _time_condition(span)])
    return f"delete from {quote_identifier(database)}.{quote_identifier(table)} where {asked}"


def counted_device(name: str) -> str:
    """The device of a column `count(<device>.<measurement>)`."""
    inner = name[name.index("(") + 1 : name.rindex(")")]
    return ".".join(split_nodes(inner)[:-1])


def quote_identifier(identifier: str) -> str:
    """An identifier of the table model's SQL; quotes keep its case."""
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
    """Nodes of a database after `root`."""
    return max(1, len(split_nodes(database)) - 1)


def _quote_text(version: Version, text: str) -> str:
    """A text in quotes. The old grammars know no quote inside of one."""
    if version.major < 2 and "'" in text:
        raise PermanentError(f"IoTDB {version.text} cannot be told a path with a quote: {text}", subject=text)
    return "'" + text.replace("'", "''") + "'"
