"""An IoTDB as one load speaks with it: a session a model, made anew after one broke; its version and unit of time."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from tidemark.errors import OutcomeUnknownError, UnreachableError
from tidemark.load import iotdb_words
from tidemark.load.iotdb_address import Server
from tidemark.load.iotdb_session import RefusedError, Rows, Session
from tidemark.load.iotdb_words import Version

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
            told = [text for cell in cells for text in cell.texts() if text]
            self._version = Version.of(told[0] if told else "")
        return self._version

    @property
    def unit(self) -> str:
        if self._unit is None:
            self._unit = self._ask_unit() if self.version.major >= 1 else ""
        return self._unit

    def run(self, statement: str, table: bool = False) -> None:
        try:
            self._session(table).run(statement)
        except OutcomeUnknownError:
            self._forget(table)
            raise

    def rows(self, statement: str, table: bool = False) -> Rows:
        """A question may be asked again: a session that broke since its last use is made anew once."""
        try:
            return self._session(table).rows(statement)
        except OutcomeUnknownError:
            self._forget(table)
        try:
            return self._session(table).rows(statement)
        except OutcomeUnknownError as away:
            self._forget(table)
            raise UnreachableError(away.message, hint=away.hint, subject=away.subject) from away

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _session(self, table: bool) -> Session:
        if table not in self._sessions:
            self._sessions[table] = Session(self._server, table)
        return self._sessions[table]

    def _forget(self, table: bool) -> None:
        self._sessions.pop(table).close()

    def _ask_unit(self) -> str:
        try:
            cells = self.rows("show variables").cells
        except RefusedError:
            return ""
        told = dict(zip(*(cell.texts() for cell in cells[:2]), strict=True)) if len(cells) >= 2 else {}
        return _UNITS.get(told.get("TimestampPrecision") or "", "")


def load_into(server: Answering, path: str, database: str, table: bool) -> None:
    """LOAD a file or a folder, in the form that the server understands. Raises as `run`."""
    *others, last = iotdb_words.load_statements(server.version, path, database, table)
    for statement in others:
        try:
            return server.run(statement, table)
        except RefusedError as refused:
            if not iotdb_words.is_unread(refused.message):
                raise
    return server.run(last, table)
