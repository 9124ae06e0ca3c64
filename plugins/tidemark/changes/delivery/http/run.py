"""Listen and answer, until a signal ends it."""

from __future__ import annotations

import ipaddress
import socket
from asyncio import BaseTransport, TimerHandle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidemark.changes.delivery.http.app import Server
from tidemark.changes.delivery.http.feed import Watch
from tidemark.changes.delivery.http.tokens import Tokens
from tidemark.errors import PermanentError, UsageError
from tidemark.ledger.leases import Leases

HEAD_SECONDS, SEND_SECONDS = 10.0, 60.0
MOST_CONNECTIONS = 1024


@dataclass(frozen=True)
class Listen:
    """Where to listen, and with what. `certificate`, `key`: "" for plain HTTP."""

    host: str
    port: int
    tokens: Path
    certificate: str = ""
    key: str = ""


class _Protocol(H11Protocol):
    """A connection on which no whole head of a request comes, or whose client takes nothing, is ended.

    h11 bounds the size of a head, which httptools does not.
    """

    _waiting: TimerHandle | None = None
    _sending: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._waiting, self._sending):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_head()

    def pause_writing(self) -> None:
        """The client has more before it than it takes."""
        super().pause_writing()
        self._sending = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        super().resume_writing()

    def _wait_for_head(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._end_if_silent)

    def _end_if_silent(self) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered and not self.transport.is_closing():
            self.transport.close()


def serve(sources: Mapping[str, Watch], leases: Leases, listen: Listen, on_start: Callable[[str], None]) -> None:
    """Serve the stores of `sources`. `on_start` is told the address once connections are accepted.

    UsageError: the tokens or the certificate are not as they must be; PermanentError: the address is taken.
    """
    if bool(listen.certificate) != bool(listen.key):
        raise UsageError("certificate and key go together", hint="set both in [changes], or neither")
    server = Server(sources, Tokens(listen.tokens), leases)
    options: dict[str, Any] = {}
    if listen.certificate:
        options = {"ssl_certfile": listen.certificate, "ssl_keyfile": listen.key}
    try:
        config = uvicorn.Config(
            server.make_app(),
            http=_Protocol,
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
            **options,
        )
        config.load()
    except OSError as wrong:
        raise UsageError(
            f"the certificate {listen.certificate} or its key cannot be read: {wrong.strerror or wrong}",
            hint="certificate and key of [changes] are files in PEM",
        ) from wrong
    with _bind(listen) as bound:
        host, port = bound.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        on_start(f"{'https' if listen.certificate else 'http'}://{name}:{port}")
        try:
            uvicorn.Server(config).run(sockets=[bound])
        finally:
            server.close()


def _bind(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if _is_ipv6(listen.host) else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family, backlog=256)
    except OSError as error:
        raise PermanentError(
            f"nothing can listen on {listen.host}:{listen.port}: {error.strerror}",
            hint="./tidemark changes serve --host H --port N, or `listen` of [changes]",
        ) from error


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
