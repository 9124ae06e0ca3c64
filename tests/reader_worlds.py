"""Readers for tests: `changes serve` in this process, on a port of 127.0.0.1, that can die, come back, lie and be late."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.delivery_worlds import LIMITS, ORDERS, make_transaction
from tidemark.changes.capture.identity import Logs, Origin, write_origin
from tidemark.changes.delivery.batches import Batch
from tidemark.changes.delivery.http.app import Server
from tidemark.changes.delivery.http.client.member import ReaderStream
from tidemark.changes.delivery.http.client.readers import Address
from tidemark.changes.delivery.http.feed import Watch
from tidemark.changes.delivery.http.tokens import Tokens
from tidemark.changes.delivery.storage_points import add_gtids
from tidemark.changes.delivery.stream import Options
from tidemark.changes.delivery.tasks import Wanted
from tidemark.changes.store.disk import Disk
from tidemark.changes.store.model import Mark, Op, Row, Rows, Transaction
from tidemark.changes.store.write import Limits, Writer
from tidemark.ledger.database import Ledger
from tidemark.ledger.delivery import StoragePoint, read_points
from tidemark.ledger.leases import Leases, this_process
from tidemark.ledger.migrations import migrate_ledger

TOKEN = "a-token-of-the-reader-tests"
QUICK = Options(beat_seconds=0.03, checkpoint_seconds=0.05, follow=False)
Alter = Callable[[str, bytes], bytes | None]
"""(path, body) → another body; None: the answer never ends; TimeoutError: there is none."""


@cache
def _make_ledger() -> bytes:
    """An empty ledger, made once."""
    with TemporaryDirectory() as folder:
        ledger = Ledger(f"sqlite:///{folder}/ledger.db")
        migrate_ledger(ledger)
        ledger.close()
        return (Path(folder) / "ledger.db").read_bytes()


def name_maria(transaction: Transaction) -> Transaction:
    """The same transaction as MariaDB names it: three domains in turn."""
    number = transaction.info.transaction_id
    domain, own = number % 3, number // 3 + 1
    info = transaction.info._replace(uuid=UUID(int=domain).bytes, transaction_id=own, server_id=1)
    return transaction._replace(info=info, gtid=f"{domain}-1-{own}")


@dataclass
class RunningReader:
    """A reader with a store and a ledger of its own. `file`: of its server's log; `alter`: what it makes of replies;
    `has_tls`: it has the certificate and the key of its folder."""

    folder: Path
    file: int = 9
    alter: Alter | None = None
    has_gtids: bool = True
    has_tls: bool = False
    port: int = 0
    limits: Limits = LIMITS
    _known: str = ""
    _place: int = 0
    _running: list[tuple[uvicorn.Server, threading.Thread]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "tokens").write_text(f"{TOKEN} billing\nanother-token-of-the-tests mail\n")
        (self.folder / "ledger.db").write_bytes(_make_ledger())
        self.ledger = Ledger(f"sqlite:///{self.folder / 'ledger.db'}")
        self.writer = Writer(self.disk, 1, self.limits)

    @property
    def disk(self) -> Disk:
        return Disk(self.folder / "store")

    @property
    def url(self) -> str:
        return f"http{'s' if self.has_tls else ''}://127.0.0.1:{self.port}"

    def append(self, numbers: Iterable[int], make: Callable[[int], Transaction] = lambda n: make_transaction(n, 3)) -> None:
        """Transactions of the source, in this order, in this server's log."""
        for number in numbers:
            one = make(number)
            self._place += 1
            info = one.info._replace(file=self.file, offset=self._place * 10)
            if self.has_gtids:
                self._known = add_gtids(self._known, [one.gtid])
            else:
                info, one = info._replace(uuid=bytes(16), transaction_id=0), one._replace(gtid="")
            self.writer.append(one._replace(info=info, gtid_offset=self._place), self._known)
        self.writer.sync()

    def append_chunk(self, keys: Iterable[int], *, is_first: bool, is_last: bool) -> None:
        """Rows that a bootstrap read: they have the place of the transaction before them, and no GTID."""
        rows = Rows.of(ORDERS, [Row(Op.READ, None, (key, 0)) for key in keys])
        begin, end = [Mark("bootstrap_begin", "shop.orders")], [Mark("bootstrap_end", "shop.orders")]
        records = (*(begin if is_first else []), rows, *(end if is_last else []))
        state = self.writer.state
        self.writer.append(Transaction(state.info, "", state.gtid_offset, records), self._known)
        self.writer.sync()

    def name_server(self, server_id: int) -> None:
        """Say whose logs the store is from, as a capture does."""
        write_origin(self.disk, Origin({1: Logs("mysql-bin", 6, server_id)}))

    def start(self) -> None:
        leases = Leases(self.ledger, this_process())
        server = Server({"orders": Watch(self.disk, 0)}, Tokens(self.folder / "tokens"), leases)
        app: ASGIApp = server.make_app() if self.alter is None else _Altering(server.make_app(), self)
        tls = {"ssl_certfile": self.folder / "c.pem", "ssl_keyfile": self.folder / "k.pem"} if self.has_tls else {}
        config = uvicorn.Config(app, log_level="critical", access_log=False, lifespan="off", ws="none", **tls)  # type: ignore[arg-type]
        running = uvicorn.Server(config)
        bound = _bind(self.port)
        self.port = bound.getsockname()[1]
        thread = threading.Thread(target=lambda: _run(running, bound), daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.005)
        self._running = [(running, thread)]

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        for running, thread in self._running:
            running.should_exit = running.force_exit = True
            for connection in list(running.server_state.connections):
                with suppress(Exception):
                    running_loop(connection).call_soon_threadsafe(connection.transport.abort)  # type: ignore[attr-defined]
            thread.join()
        self._running = []

    def close(self) -> None:
        self.kill()
        self.writer.close()
        self.ledger.close()

    def points(self) -> dict[int, StoragePoint]:
        with self.ledger.read() as connection:
            return read_points(connection, "billing")


def running_loop(connection: Any) -> asyncio.AbstractEventLoop:
    return connection.loop  # type: ignore[no-any-return]


def _run(server: uvicorn.Server, bound: socket.socket) -> None:
    with bound:
        asyncio.run(server.serve([bound]))


def _bind(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=64)


class _Altering:
    """A reader that answers something else than it would."""

    def __init__(self, app: ASGIApp, reader: RunningReader) -> None:
        self._app = app
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {}
        body = bytearray()

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                body.extend(message.get("body", b""))

        await self._app(scope, receive, keep)
        try:
            found = self._reader.alter(scope["path"], bytes(body)) if self._reader.alter else bytes(body)
        except TimeoutError:
            await asyncio.sleep(3600)
            raise
        headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        if found is None:
            await send({**start, "headers": headers})
            while True:
                await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
                await asyncio.sleep(0.01)
        size = len(body) if len(found) < len(body) else len(found)  # half of an answer is told as whole
        await send({**start, "headers": [*headers, (b"content-length", str(size).encode())]})
        await send({"type": "http.response.body", "body": found})


def join(
    readers: Sequence[RunningReader],
    options: Options = QUICK,
    *,
    member: str = "one",
    shards: int | None = 2,
    token: str = TOKEN,
    only: Sequence[int] | None = None,
    timeout: float = 2.5,
    patience: float = 0.5,
) -> ReaderStream:
    """A member of the task at these readers, quick in all that it waits for."""
    pace = {"look_seconds": 0.05, "late_seconds": 0.2, "patience_seconds": patience}
    address = Address([one.url for one in readers], token, timeout=timeout, **pace)  # type: ignore[arg-type]
    return ReaderStream(address, member, Wanted("billing", "orders", shards), options, only=only, chance=lambda: 0.0)


def gtids_of(batch: Batch) -> list[str]:
    """The rows of a batch by what they are called at any server."""
    return [f"{row['gtid']} {row['i']}" for row in batch.to_pylist()]


def flip_blocks(path: str, body: bytes) -> bytes | None:
    """A reader of which one bit of a block is wrong."""
    return body[:-400] + bytes((body[-400] ^ 1,)) + body[-399:] if path == "/v1/fetchMessages" and len(body) > 1000 else body
