"""A session at an IoTDB: run a statement, or run a query and get the result as columns.

Works with 0.12 … 2.x: all of them have the methods used. After a lost connection the outcome of a statement may be unknown.
`UnreachableError`: it was never sent. `OutcomeUnknownError`: it may have run. Source: `rpc.thrift` of IoTDB;
research/iotdb-real.md §5 "one new session after a lost connection".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.errors import OutcomeUnknownError, PermanentError, PermissionDeniedError, TidemarkError, UnreachableError
from tidemark.receiver.iotdb.thrift import BOOL, I32, I64, MAP, STRING, STRUCT, Field, Server, Wire, WireError
from tidemark.tsfiles.points.codes import DataType
from tidemark.tsfiles.points.column import VALUE_DTYPES

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 1_800.0  # a LOAD of many files replies only at its end
_ROWS = 5_000  # of one reply; in 0.12 more rows per reply allow fewer series per query
_PROTOCOL_V3 = 2
_CLIENT = b"V_0_13"  # the newest that 0.13 and 1.0 accept; later servers treat it as their own
_DONE = (200, 400)  # 400: another node should be asked next time, which is no failure
_LOGIN_REFUSED = (600, 601, 602, 603, 800, 801, 803)  # 0.12 and 2.x number them differently
_STORED = {
    DataType.BOOLEAN: ">b",
    DataType.INT32: ">i4",
    DataType.DATE: ">i4",
    DataType.INT64: ">i8",
    DataType.TIMESTAMP: ">i8",
    DataType.FLOAT: ">f4",
    DataType.DOUBLE: ">f8",
}


class RefusedError(PermanentError):
    """The server replied to a statement with an error. `code` is the server's own number."""

    code: int = 0


@dataclass(frozen=True)
class Cells:
    """A column of a result: `values` of the rows where `present`."""

    name: str
    type: DataType
    values: NDArray[Any]
    present: NDArray[np.bool_]

    def decode_texts(self) -> list[str | None]:
        """Return one text per row, as people read it; None where the row has no value."""
        values = iter(self.values.tolist())
        told = (next(values) if there else None for there in self.present.tolist())
        return [
            v.decode("utf-8", "backslashreplace") if isinstance(v, bytes) else None if v is None else str(v) for v in told
        ]


@dataclass(frozen=True)
class Rows:
    """The rows of a query. `times` is empty where the result has no time column of its own."""

    times: NDArray[np.int64]
    cells: tuple[Cells, ...]

    def find_column(self, name: str) -> Cells | None:
        return next((one for one in self.cells if one.name.casefold() == name.casefold()), None)


class Session:
    """A session; a context manager. `table`: use the dialect of the table model (2.x).

    Raises UnreachableError, OutcomeUnknownError, PermissionDeniedError (login), RefusedError (an error reply).
    """

    def __init__(self, server: Server, table: bool = False) -> None:
        self.server = server
        try:
            self._wire = Wire(server.host, server.port, CONNECT_SECONDS, ANSWER_SECONDS)
        except OSError as away:
            raise UnreachableError(
                f"IoTDB at {server.name} does not answer: {away}",
                hint="is it up? ./tidemark doctor; what waits for it is loaded by the next ./tidemark load",
                subject=server.name,
            ) from away
        try:
            self.session_id, self._statement = self._log_in(table)
        except BaseException:
            self._wire.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; the server then forgets the session."""
        self._wire.close()

    def run(self, statement: str) -> None:
        """Run a statement without rows."""
        self.send_request("executeUpdateStatement", self._statement_fields(statement), statement)

    def rows(self, statement: str) -> Rows:
        """Run a query and return all rows."""
        parts = list(self.iterate_parts(statement))
        if len(parts) == 1:
            return parts[0]
        cells = tuple(
            Cells(
                cell.name,
                cell.type,
                np.concatenate([part.cells[i].values for part in parts]),
                np.concatenate([part.cells[i].present for part in parts]),
            )
            for i, cell in enumerate(parts[0].cells)
        )
        return Rows(np.concatenate([part.times for part in parts]), cells)

    def iterate_parts(self, statement: str) -> Iterator[Rows]:
        """Run a query and yield the rows in pieces, at least one."""
        answer = self.send_request("executeQueryStatement", self._statement_fields(statement), statement)
        shape = _parse_shape(answer)
        yield _parse_rows(answer.get(7, {}), shape)
        more = answer.get(14, 1)
        while more:
            words = [Field(1, I64, self.session_id), Field(2, STRING, statement.encode()), Field(3, I32, _ROWS)]
            words += [
                Field(4, I64, answer[2]),
                Field(5, BOOL, 1),
                Field(6, I64, _timeout_ms()),
                Field(7, I64, self._statement),
            ]
            found = self.send_request("fetchResults", words, statement)
            if not found.get(2) or not found.get(4, {}).get(1):
                return
            yield _parse_rows(found[4], shape)
            more = found.get(7, 1)

    def _log_in(self, table: bool) -> tuple[int, int]:
        server = self.server
        words = [Field(1, I32, _PROTOCOL_V3), Field(2, STRING, b"UTC")]
        words += [Field(3, STRING, server.user.encode()), Field(4, STRING, server.password.encode())]
        dialect = b"table" if table else b"tree"
        words.append(Field(5, MAP, {b"version": _CLIENT, b"sql_dialect": dialect}))
        try:
            session: int = self.send_request("openSession", words, "login")[3]
        except RefusedError as refused:
            kind = PermissionDeniedError if refused.code in _LOGIN_REFUSED else PermanentError
            raise kind(
                f"IoTDB at {server.name} refuses the login of {server.user}: {refused.message}",
                hint="see iotdb, iotdb_password_file and iotdb_connection of the receiver in the settings",
                subject=server.name,
            ) from refused
        statement: int = self._call_server("requestStatementId", [Field(1, I64, session)], "login")
        return session, statement

    def _statement_fields(self, statement: str) -> list[Field]:
        words = [Field(1, I64, self.session_id), Field(2, STRING, statement.encode()), Field(3, I64, self._statement)]
        return [*words, Field(4, I32, _ROWS), Field(5, I64, _timeout_ms())]

    def send_request(self, method: str, request: Sequence[Field], what: str) -> dict[int, Any]:
        """Call a method with one request. Return the reply, which is a status or has one as its first field."""
        answer: dict[int, Any] = self._call_server(method, [Field(1, STRUCT, request)], what)
        status = answer.get(1)
        if not isinstance(status, dict):
            status = answer
        code = int(status.get(1, 0))
        if code not in _DONE:
            raise self._refused_error(code, status)
        return answer

    def _call_server(self, method: str, arguments: Sequence[Field], what: str) -> Any:
        try:
            return self._wire.call(method, arguments)
        except (OSError, WireError) as broken:
            self._wire.close()
            error: type[TidemarkError] = UnreachableError if what == "login" else OutcomeUnknownError
            raise error(
                f"IoTDB at {self.server.name}: the connection broke: {broken}",
                hint="is it up? ./tidemark doctor; the next ./tidemark load asks it what it has",
                subject=self.server.name,
            ) from broken

    def _refused_error(self, code: int, status: Mapping[int, Any]) -> RefusedError:
        told = [str(code), status.get(2, b"").decode("utf-8", "replace")]
        told += [s.get(2, b"").decode("utf-8", "replace") for s in status.get(3, ()) if int(s.get(1, 200)) not in _DONE]
        message = " ".join(" ".join(filter(None, dict.fromkeys(told))).split())[:600]
        error = RefusedError(f"IoTDB at {self.server.name} answers {message}", subject=self.server.name)
        error.code = code
        return error


def _timeout_ms() -> int:
    return int(ANSWER_SECONDS * 1000)


def _parse_shape(answer: Mapping[int, Any]) -> list[tuple[str, DataType, int]]:
    """Return name, type and index of each column of a reply."""
    names = [name.decode() for name in answer.get(3, ())]
    types = [DataType[name.decode()] for name in answer.get(6, ())]
    places = {name.decode(): int(place) for name, place in answer.get(9, {}).items()}
    return [(name, types[i], places.get(name, i)) for i, name in enumerate(names)]


def _parse_rows(data: Mapping[int, Any], shape: Sequence[tuple[str, DataType, int]]) -> Rows:
    times = np.frombuffer(data.get(1, b""), ">i8").astype(np.int64)
    cells = []
    for name, kind, place in shape:
        values = _decode_values(kind, data[2][place]) if data.get(2) else np.empty(0, VALUE_DTYPES[kind])
        present = np.ones(len(times), np.bool_)
        if len(values) < len(times):
            present = np.unpackbits(np.frombuffer(data[3][place], np.uint8))[: len(times)].astype(np.bool_)
        cells.append(Cells(name, kind, values, present))
    return Rows(times, tuple(cells))


def _decode_values(kind: DataType, data: bytes) -> NDArray[Any]:
    if kind in _STORED:
        return np.frombuffer(data, _STORED[kind]).astype(VALUE_DTYPES[kind])
    found: list[bytes] = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    values = np.empty(len(found), object)
    values[:] = found
    return values
