"""Log in to a server of a source by PyMySQL, and ask it questions.

PyMySQL is imported when it is used. Nothing of ours prints or keeps a password, and none leaves in the clear without TLS.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from tidemark.changes.connection.model import Identity, SourceSettings
from tidemark.changes.connection.packets import explain_refusal
from tidemark.errors import (
    CorruptionError,
    PermanentError,
    PermissionDeniedError,
    TidemarkError,
    UnreachableError,
    UsageError,
)

Row = dict[str, Any]
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""A server that says nothing for so long is not reached any more."""
_QUERY = 3
_WHOLE_ANSWERS = (
    "SET SESSION completion_type = NO_CHAIN, sql_select_limit = 18446744073709551615"
    " /*!50708 , max_execution_time = 0 */ /*M!100101 , max_statement_time = 0 */"
    " /*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
)
"""A server may be set to end a login with its first COMMIT, to leave out rows of answers, to end those that take long, and
to leave a key that it made out of its catalog. What is not for a server, it takes for a comment."""
_NONSENSE = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    struct.error,
)
"""What PyMySQL raises of an answer that is none."""


class Server:
    """A login at one server. A context manager that closes it."""

    def __init__(self, settings: SourceSettings, address: tuple[str, int], connection: Any) -> None:
        self.settings, self.address = settings, address
        self._connection = connection
        self.version = str(connection.server_version)
        if self.is_maria:
            self.version = self.version.removeprefix("5.5.5-")  # MariaDB says so to clients of a time when 10 was too new

    @property
    def name(self) -> str:
        return name_address(self.address)

    @property
    def is_maria(self) -> bool:
        return "mariadb" in self.version.lower()

    @property
    def version_numbers(self) -> tuple[int, ...]:
        return tuple(int(digits) for digits in re.findall(r"\d+", self.version)[:3])

    def ask(self, question: str, *values: object) -> list[Row]:
        """The rows that answer an SQL statement, each a dict in the order of its columns. `%s` stands for a value.

        UnreachableError: the line broke or the server ends. PermissionDeniedError: a right is missing. PermanentError: any
        other refusal. CorruptionError: an answer that no server gives.
        """
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(question, values or None)
                return list(cursor.fetchall())
        except Exception as error:
            _raise_translated(error, self.address)

    def begin_answer(self, question: str) -> tuple[int, Any]:
        """Ask an SQL statement, and leave its rows on the line: how many columns it has, and the stream that they come by.
        Nothing else can be asked before the caller has read all of it. Raises as `ask`."""
        connection = self._connection
        try:
            connection._execute_command(_QUERY, question)
            width = connection._read_packet().read_length_encoded_integer()
            for _ in range(width + 1):  # what the columns are, and that this was all
                connection._read_packet()
        except Exception as error:
            _raise_translated(error, self.address)
        return width, connection._rfile

    def ask_if_allowed(self, question: str) -> list[Row] | None:
        """The same, None if the login may not ask."""
        try:
            return self.ask(question)
        except PermissionDeniedError:
            return None

    def read_variables(self, *names: str) -> dict[str, str]:
        """The server's global variables of those names, as text; those that it does not know are left out."""
        wanted = ", ".join(["%s"] * len(names))
        rows = self.ask(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({wanted})", *names)
        pairs = (list(row.values()) for row in rows)
        return {str(name).lower(): str(value) for name, value, *_ in pairs}

    def read_gtids(self) -> str:
        """The set of all that its logs have, or had, as its server writes it; "" without GTIDs."""
        name = "gtid_binlog_pos" if self.is_maria else "gtid_executed"
        return self.read_variables(name).get(name, "")

    def read_identity(self) -> Identity:
        """Which server this is, whatever address it was reached at."""
        found = self.read_variables("server_id", "server_uuid", "hostname", "port")
        return Identity(*(found.get(name, "") for name in ("server_id", "server_uuid", "hostname", "port")))

    def pin_login(self) -> SourceSettings:
        """The login at this very server: where another one answers in its place, `open_server` raises."""
        return replace(self.settings, addresses=(self.address,), only=self.read_identity())

    def is_replica(self) -> bool | None:
        """Whether the server replicates from another; None if the login may not ask."""
        words = "ALL SLAVES" if self.is_maria else "REPLICA" if self.version_numbers >= (8, 0, 22) else "SLAVE"
        rows = self.ask_if_allowed(f"SHOW {words} STATUS")
        return None if rows is None else bool(rows)

    def take_socket(self) -> socket.socket:
        """The login's socket. From now on it is the caller's alone, and nothing can be asked here."""
        connection = self._connection
        sock: socket.socket = connection._sock
        connection._sock = connection._rfile = None
        connection._closed = True
        return sock

    def close(self) -> None:
        self._connection._force_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def name_address(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def open_server(settings: SourceSettings, suits: Callable[[Server], bool] = lambda _: True) -> Server:
    """Log in at the first address where a replica logs what it replicates, else the first with a binary log, else the first.

    Of several addresses, servers that suit come before those that do not. Two calls may give two servers: who needs one
    server twice takes its `pin_login`.
    UnreachableError where none answers, or another server than `only`; what each said stands in it. PermissionDeniedError:
    the login is refused, or the server cannot do the TLS that is asked for.
    """
    if not settings.addresses:
        raise UsageError("the source has no address", hint="see url of the source")
    best: Server | None = None
    best_rank = (False, -1)
    failures: list[TidemarkError] = []
    password = _read_password(settings)
    context = _make_tls(settings)
    for address in settings.addresses:
        server = None
        try:
            server = Server(settings, address, _log_in(settings, address, password, context))
            _check_identity(server)
            rank = (suits(server), _rank(server)) if len(settings.addresses) > 1 else (True, 0)
        except (UnreachableError, PermanentError, CorruptionError) as error:
            failures.append(error)
            rank = (False, -1)
        if rank > best_rank:
            best, best_rank, server = server, rank, best
        if server is not None:
            server.close()
        if rank == (True, _BEST):
            break
    if best is not None:
        return best
    if len(failures) == 1:
        raise failures[0]
    told = "; ".join(error.message for error in failures)
    away = any(isinstance(error, UnreachableError) for error in failures)
    raise (UnreachableError if away else type(failures[0]))(told, hint="see url of the source")


def _check_identity(server: Server) -> None:
    """Raise UnreachableError where the login is for another server."""
    only = server.settings.only
    if only is not None and (found := server.read_identity()) != only:
        raise UnreachableError(
            f"{server.name} is server {found.server_id} of {found.host}:{found.port} now, not {only.server_id} of"
            f" {only.host}:{only.port}, with which this began",
            hint="run it again",
            subject=server.name,
        )


_BEST = 2


def _rank(server: Server) -> int:
    found = server.read_variables("log_bin", "log_slave_updates", "log_replica_updates", "read_only")
    if found.get("log_bin") != "ON":
        return 0
    is_replica = server.is_replica()
    if is_replica is None:
        is_replica = found.get("read_only", "OFF") not in ("OFF", "0")
    if not is_replica:
        return 1
    return _BEST if "ON" in (found.get("log_slave_updates"), found.get("log_replica_updates")) else 0


def _read_password(settings: SourceSettings) -> bytes:
    if not settings.password_file:
        return settings.password.encode()
    try:
        return Path(settings.password_file).read_bytes().strip(b"\r\n")
    except OSError as error:
        raise UsageError(
            f"the password of the source cannot be read: {settings.password_file}: {error.strerror}",
            hint="see password_file of the source",
        ) from error


def _make_tls(settings: SourceSettings) -> ssl.SSLContext | None:
    if settings.tls == "off":
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the certificates in {settings.ca} cannot be read: {error}", hint="see ca of the source"
        ) from error
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # certificates that a server made for itself do not pass it
    if settings.tls == "required":  # as the servers' own clients mean it: nobody listens, but who answers is not proved
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _NoClearPassword:
    """For the methods that send the password as it is: not without TLS."""

    def __init__(self, connection: Any) -> None: ...

    def authenticate(self, _packet: Any) -> NoReturn:
        raise PermissionDeniedError(
            "the server asks for the password in the clear, and TLS is off", hint='let the source have tls = "required"'
        )


def _log_in(settings: SourceSettings, address: tuple[str, int], password: bytes, context: ssl.SSLContext | None) -> Any:
    import pymysql
    import pymysql.cursors

    methods = dict.fromkeys(("mysql_clear_password", "dialog"), _NoClearPassword)
    try:
        connection: Any = pymysql.connect(
            host=address[0],
            port=address[1],
            user=settings.user,
            password=password,
            ssl=context,
            ssl_disabled=context is None,
            auth_plugin_map=None if context else methods,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=ANSWER_SECONDS,
            write_timeout=ANSWER_SECONDS,
            autocommit=True,
            charset="utf8mb4",
            init_command=_WHOLE_ANSWERS,
            program_name="tidemark",
            cursorclass=pymysql.cursors.DictCursor,
        )
    except Exception as error:
        _raise_translated(error, address)
    connection.password = b""  # it is not needed again
    return connection


_CLIENTS_OWN = range(2000, 3000)
_NO_TLS, _NO_METHOD = 2026, (2059, 2061)


def _raise_translated(error: Exception, address: tuple[str, int]) -> NoReturn:
    """An error of PyMySQL as one of ours."""
    import pymysql

    peer = name_address(address)
    cause = getattr(error, "original_exception", error)
    code, text = (*error.args, "", "")[:2]
    if isinstance(error, TidemarkError):
        raise error
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise PermissionDeniedError(
            f"the certificate of {peer} is not believed: {cause.verify_message}", hint="see ca of the source", subject=peer
        ) from error
    if isinstance(error, pymysql.MySQLError) and isinstance(code, int):
        if code == _NO_TLS:
            raise PermissionDeniedError(
                f"{peer} has no TLS", hint='give the server a certificate, or let the source have tls = "off"', subject=peer
            ) from error
        if code in _NO_METHOD:
            raise PermissionDeniedError(f"no login at {peer}: {text}", subject=peer) from error
        if code in _CLIENTS_OWN or code == 0:
            raise UnreachableError(f"{peer} is not reached: {text or 'the connection is closed'}", subject=peer) from error
        raise explain_refusal(code, str(text), peer) from error
    if isinstance(error, OSError):
        raise UnreachableError(f"{peer} is not reached: {error}", subject=peer) from error
    if isinstance(error, (pymysql.MySQLError, *_NONSENSE)):
        raise CorruptionError(f"{peer} answers what no server does: {error!r}", subject=peer) from error
    raise error
