"""Change stores over HTTP: three calls of the original, health, metrics. docs/changes.md has it for users.

A client goes from `/v1/getServerInfo`, which gives it a session, over `/v1/subscribe` to `/v1/fetchMessages`, which it calls
again and again. What costs time runs in a few threads; a client that takes its reply slowly holds nothing but that reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidemark.changes.capture.identity import read_origin
from tidemark.changes.delivery.http.events import Reply, encode_error
from tidemark.changes.delivery.http.feed import OTHER_SERVER, TOO_NEW, TOO_OLD, Feed, RangeError, Watch, find_start
from tidemark.changes.delivery.http.points import STORE, TaskPoints
from tidemark.changes.delivery.http.requests import (
    PROTOCOL_BUFFER,
    CommitPoints,
    Fetch,
    Subscription,
    describe_span,
    parse_begin,
    parse_commit,
    parse_fetch,
    parse_hold,
    parse_locate,
    parse_rewind,
    parse_span,
    parse_subscription,
    parse_task,
)
from tidemark.changes.delivery.http.sessions import Counts, Session, Sessions
from tidemark.changes.delivery.http.tokens import Tokens
from tidemark.changes.delivery.spans import find_span
from tidemark.changes.delivery.storage_points import OtherStoreError, StoreBehindError, measure_behind
from tidemark.changes.store.disk import Disk
from tidemark.errors import (
    BinlogGapError,
    LeaseHeldError,
    LeaseLostError,
    NotFoundError,
    PermanentError,
    RetryableError,
    TidemarkError,
    UsageError,
)
from tidemark.ledger.leases import Leases

SESSION = "Tidemark-Session"
MOST_BODY, MOST_MESSAGE = 256 << 10, 500
MOST_POINTS = 16 << 20
"""Bytes of a body that has points: of as many shards as a task may have, with 3 KiB of GTIDs each."""
BODY_SECONDS, ROOM_SECONDS = 10.0, 10.0
MOST_HELD = 512 << 20
"""Bytes of replies that are made and not yet sent, of all clients together."""
LOOK_SECONDS = 0.02
THREADS = 4
_PIECE = 256 << 10
_PROTOBUF = "application/x-protobuf"


class RefusedError(Exception):
    """A request that gets an error. `code`: a word for programs."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint


class PiecesResponse(Response):
    """A body in pieces, each sent when the client took most of the one before, and then let go.
    `held` ends with the last one. `lose`: called where the client is gone before that.

    The last byte goes by itself. A client that is gone before it has no whole reply. One that leaves behind it may have it.
    """

    def __init__(self, pieces: list[bytes], media_type: str, held: ExitStack, lose: Callable[[], None]) -> None:
        super().__init__(media_type=media_type, headers={"content-length": str(sum(map(len, pieces)))})
        self._last = pieces[-1][-1:]
        self._pieces: list[memoryview] = [memoryview(piece) for piece in (*pieces[:-1], pieces[-1][:-1])]
        self._held = held
        self._lose = lose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with self._held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in chain(_join_small(self._pieces), (self._last,)):
                await send({"type": "http.response.body", "body": b"", "more_body": True})  # waits for the client
                if await request.is_disconnected():
                    self._lose()
                    break
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def _join_small(pieces: list[memoryview]) -> Iterator[bytes]:
    """The same bytes in pieces that are neither tiny nor huge. Empties the list on the way."""
    pieces.reverse()
    joined: list[memoryview] = []
    size = 0
    while pieces:
        piece = pieces.pop()
        for start in range(0, len(piece), _PIECE):
            joined.append(piece[start : start + _PIECE])
            size += len(joined[-1])
            if size >= _PIECE:
                yield b"".join(joined)
                joined, size = [], 0
    yield b"".join(joined)


Answer = Callable[[Request, frozenset[str]], Awaitable[Response]]


class Growth:
    """Who waits for a store to grow. One look at the store is for all of them."""

    def __init__(self, look: Callable[[], Awaitable[int]]) -> None:
        self._look = look
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, seq: int, seconds: float) -> None:
        """Until transaction `seq` is there, or the time is over."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = seq
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again())
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter, seconds)
        finally:
            del self._waiting[waiter]

    async def _look_again(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                end = await self._look()
            except TidemarkError:
                end = 1 << 63  # who waits meets it
            for waiter, seq in self._waiting.items():
                if end >= seq and not waiter.done():
                    waiter.set_result(None)


class Server:
    """All that the routes share. `sources`: the stores, by the names of the settings."""

    def __init__(
        self, sources: Mapping[str, Watch], tokens: Tokens, leases: Leases, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watches = dict(sources)
        self._growths = {name: Growth(partial(self._look_at, watch)) for name, watch in self._watches.items()}
        self._tokens = tokens
        self._points = TaskPoints(leases)
        self._clock = clock
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="reply")
        self._load, self._load_at = 0.0, clock()
        self._busy = 0.0
        self._sending = self._making = 0  # bytes
        self.sessions = Sessions(clock)
        self.counts = Counts()

    def make_app(self) -> Starlette:
        routes = [
            Route("/healthz", self._answer_health, methods=["GET"]),
            Route("/metrics", self._guard(self._answer_metrics), methods=["GET"]),
            Route("/v1/getServerInfo", self._guard(self._answer_info), methods=["POST"]),
            Route("/v1/subscribe", self._guard(self._answer_subscribe), methods=["POST"]),
            Route("/v1/fetchMessages", self._guard(self._answer_fetch), methods=["POST"]),
            Route("/v1/begin", self._guard(self._answer_begin), methods=["POST"]),
            Route("/v1/hold", self._guard(self._answer_hold), methods=["POST"]),
            Route("/v1/span", self._guard(self._answer_span), methods=["POST"]),
            Route("/v1/locate", self._guard(self._answer_locate), methods=["POST"]),
            Route("/v1/endSession", self._guard(self._answer_end), methods=["POST"]),
            Route("/v1/points", self._guard(self._answer_points), methods=["POST"]),
            Route("/v1/commit", self._guard(self._answer_commit), methods=["POST"]),
            Route("/v1/rewind", self._guard(self._answer_rewind), methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={404: _tell_unknown, 405: _tell_unknown})

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _guard(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Who asks is known before anything is looked at; what goes wrong becomes a status with its reason."""

        async def guarded(request: Request) -> Response:
            try:
                tasks = self._find_tasks(request)
                if tasks is None:
                    raise RefusedError(401, "UNAUTHORIZED", "no token of this server", "Authorization: Bearer TOKEN")
                response = await answer(request, tasks)
            except RefusedError as refused:
                response = _tell_refused(request, refused)
            except TidemarkError as wrong:
                response = _tell_refused(request, _refuse(wrong))
            except ClientDisconnect:
                response = Response(status_code=400)
            except (OSError, ValueError):  # its text may have paths of this machine
                failed = RefusedError(500, "FAILED", "the store cannot be read", "try again; or ask who runs this server")
                response = _tell_refused(request, failed)
            key = (request.url.path, response.status_code)
            self.counts.requests[key] = self.counts.requests.get(key, 0) + 1
            return response

        return guarded

    def _find_tasks(self, request: Request) -> frozenset[str] | None:
        """While the tokens cannot be read, nobody is let in. Where they are is told to nobody."""
        try:
            return self._tokens.find_tasks(request.headers.get("authorization", ""))
        except UsageError as wrong:
            raise RefusedError(503, "CLOSED", "the tokens of this server cannot be read just now", "try again") from wrong

    async def _work(self, act: Callable[[], Any]) -> Any:
        """Act in a thread, and note how long."""

        def timed() -> Any:
            begun = time.thread_time()
            try:
                return act()
            finally:
                self._busy += time.thread_time() - begun

        return await asyncio.get_running_loop().run_in_executor(self._pool, timed)

    async def _look_at(self, watch: Watch) -> int:
        """The number of the last transaction."""
        return int(await self._work(lambda: watch.open_reader().view.end.seq))

    def _measure_load(self) -> float:
        """How much of one core the replies took in the last second or more, at most 1."""
        now = self._clock()
        if now - self._load_at >= 1.0:
            self._load, self._busy = min(1.0, self._busy / (now - self._load_at)), 0.0
            self._load_at = now
        return round(self._load, 3)

    # answers

    async def _answer_health(self, request: Request) -> Response:
        del request
        return PlainTextResponse("ok\n")

    async def _answer_metrics(self, request: Request, tasks: frozenset[str]) -> Response:
        del request
        self.sessions.end_idle()
        lines = ["# TYPE tidemark_changes_requests counter"]
        for (path, status), count in sorted(self.counts.requests.items()):
            lines.append(f'tidemark_changes_requests_total{{path="{path}",status="{status}"}} {count}')
        lines += ["# TYPE tidemark_changes_rows counter"]
        for task, rows in sorted(self.counts.rows.items()):
            if task in tasks:
                lines.append(f'tidemark_changes_rows_total{{task="{_escape(task)}"}} {rows}')
        lines += ["# TYPE tidemark_changes_sessions gauge"]
        lines += [f'tidemark_changes_sessions{{task="{_escape(t)}"}} {self.sessions.count(t)}' for t in sorted(tasks)]
        lines += await self._work(lambda: self._measure_sinks(tasks))
        lines += ["# TYPE tidemark_changes_sent_bytes counter", f"tidemark_changes_sent_bytes_total {self.counts.bytes_out}"]
        lines += ["# TYPE tidemark_changes_load gauge", f"tidemark_changes_load {self._measure_load()}", "# EOF", ""]
        return PlainTextResponse("\n".join(lines), media_type="application/openmetrics-text; version=1.0.0; charset=utf-8")

    def _measure_sinks(self, tasks: frozenset[str]) -> list[str]:
        """Of each sink of the token: its newest batch, the store's rows in it, how far it is behind, tables that stopped."""
        found: dict[str, list[tuple[str, float]]] = {}
        for name, task, batch, point, stopped in self._points.read_sinks(sorted(tasks)):
            if task.source in self._watches:
                reader = self._watches[task.source].open_reader()
                behind, seconds = measure_behind(reader, point)
                values: dict[str, float] = {"batch": batch.number, "batch_rows": reader.count_rows(batch.first, batch.end)}
                values |= {"behind_transactions": behind, "stopped_tables": stopped}
                values |= {"behind_seconds": seconds} if seconds is not None else {}
                for word, value in values.items():
                    found.setdefault(word, []).append((name, value))
        return [
            line
            for word, values_of in sorted(found.items())
            for line in (
                f"# TYPE tidemark_changes_sink_{word} gauge",
                *(f'tidemark_changes_sink_{word}{{sink="{_escape(name)}"}} {value}' for name, value in values_of),
            )
        ]

    async def _answer_info(self, request: Request, tasks: frozenset[str]) -> Response:
        wanted = self._allow(parse_subscription(await self._read_body(request)), tasks)
        told: dict[str, Any] = {
            "serverStatus": "AVAILABLE",
            "address": request.url.netloc,
            "writerTaskList": [task for task in self.sessions.list_tasks(wanted.source) if task in tasks],
            "inboundBytes": self.counts.bytes_in,
            "outboundBytes": self.counts.bytes_out,
            "loadFactor": self._measure_load(),
        }
        watch = self._watches[wanted.source]
        try:
            await self._work(lambda: find_start(watch.open_reader(), wanted.checkpoint))
        except RangeError as outside:
            told |= {"serverStatus": "UNAVAILABLE", **_describe(_refuse(outside))}
            return JSONResponse(told)
        session = self.sessions.begin(wanted.task, wanted.source)
        if session is None:
            told |= {"serverStatus": "UNAVAILABLE", "code": "TOO_MANY_SESSIONS", "error": "too many sessions"}
            return JSONResponse(told)
        return JSONResponse(told | {"session": session.id}, headers={SESSION: session.id})

    async def _answer_subscribe(self, request: Request, tasks: frozenset[str]) -> Response:
        body = await self._read_body(request)
        session = self._find_session(request, tasks)
        wanted = self._allow(parse_subscription(body), tasks)
        if (wanted.task, wanted.source) != (session.task, session.source):
            raise RefusedError(409, "OTHER_TASK", "the session is of another task or source", "call /v1/getServerInfo first")
        with self._hold(session):
            watch = self._watches[wanted.source]
            session.ahead = None
            session.feed = await self._work(lambda: Feed(watch, wanted))
        return PlainTextResponse("success", headers={SESSION: session.id})

    async def _answer_fetch(self, request: Request, tasks: frozenset[str]) -> Response:
        asked = parse_fetch(await self._read_body(request))
        session = self._find_session(request, tasks)
        if session.feed is None:
            raise RefusedError(409, "NOT_SUBSCRIBED", "the session has not subscribed", "call /v1/subscribe first")
        with ExitStack() as held:
            held.enter_context(self._hold(session))
            try:
                reply = await self._take(session, session.feed, asked)
            except RefusedError:  # nothing was taken
                raise
            except BaseException:  # the feed may stand behind what it did not give
                session.forget_feed()
                raise
            self._sending += reply.size
            held.callback(self._note_sent, reply.size)
            pieces = await self._work(reply.encode)
            self.counts.rows[session.task] = self.counts.rows.get(session.task, 0) + reply.count
            self.counts.bytes_out += sum(map(len, pieces))
            return PiecesResponse(pieces, _PROTOBUF, held.pop_all(), session.forget_feed)

    async def _answer_end(self, request: Request, tasks: frozenset[str]) -> Response:
        session = self._find_session(request, tasks)
        with self._hold(session):
            self.sessions.end(session)
        return PlainTextResponse("success")

    def _note_sent(self, size: int) -> None:
        self._sending -= size

    async def _wait_for_room(self, size: int) -> None:
        """Until a reply of `size` may be made. One that clients take slowly stands in the way of others for a while."""
        until = self._clock() + ROOM_SECONDS
        while self._sending + self._making + self.sessions.count_ahead() + size > MOST_HELD:
            if self._clock() >= until:
                raise RefusedError(503, "OVERLOADED", "too many replies wait for their clients", "try again later")
            await asyncio.sleep(LOOK_SECONDS)

    async def _make(self, feed: Feed, asked: Fetch) -> Reply:
        self._making += asked.bytes
        try:
            reply: Reply = await self._work(lambda: feed.take(asked))
        finally:
            self._making -= asked.bytes
        return reply

    async def _take(self, session: Session, feed: Feed, asked: Fetch) -> Reply:
        """What the feed has. Where that is nothing, what comes until the time is over.

        Messages take long to write: while a client reads some, the next are written, as large as it asked for last.
        """
        until = self._clock() + asked.milliseconds / 1000
        while True:
            work, session.ahead = session.ahead, None
            if work is None:
                await self._wait_for_room(asked.bytes)
            reply = await (work or self._make(feed, asked))
            if reply.messages and feed.wanted.codec == PROTOCOL_BUFFER:
                session.ahead = asyncio.ensure_future(self._make(feed, asked))
            left = until - self._clock()
            if reply.messages or left <= 0:
                return reply
            if not feed.is_behind:
                await self._growths[feed.wanted.source].wait(feed.next, left)

    async def _answer_points(self, request: Request, tasks: frozenset[str]) -> Response:
        task = _allow_task(parse_task(await self._read_body(request)), tasks)
        return JSONResponse(await self._work(lambda: self._points.tell(task)))

    async def _answer_begin(self, request: Request, tasks: frozenset[str]) -> Response:
        asked = parse_begin(await self._read_body(request, MOST_POINTS))
        _allow_task(asked.wanted.name, tasks)
        watch = self._find_watch(asked.wanted.source)
        told = await self._work(lambda: self._points.begin(watch.disk, asked, time.time()))
        return JSONResponse(told | await self._work(lambda: self._describe_store(watch)))

    async def _answer_hold(self, request: Request, tasks: frozenset[str]) -> Response:
        asked = parse_hold(await self._read_body(request))
        _allow_task(asked.task, tasks)
        told = await self._work(lambda: self._points.hold(asked))
        watch = self._find_watch(told["serviceGroupName"])
        return JSONResponse(told | await self._work(lambda: self._describe_store(watch)))

    async def _answer_locate(self, request: Request, tasks: frozenset[str]) -> Response:
        asked = parse_locate(await self._read_body(request, MOST_POINTS))
        _allow_task(asked.task, tasks)
        return JSONResponse(await self._work(lambda: self._points.locate(self._disk_of(asked.task), asked)))

    async def _answer_span(self, request: Request, tasks: frozenset[str]) -> Response:
        wanted = parse_span(await self._read_body(request))
        _allow_task(wanted.task, tasks)
        disk = self._find_watch(wanted.source).disk
        span = await self._work(lambda: find_span(disk, wanted.asked, where=STORE, patience=0.0))
        return JSONResponse(describe_span(span))

    def _describe_store(self, watch: Watch) -> dict[str, Any]:
        """How far the store is, of which server it is, and how much there is to do."""
        end = watch.open_reader().view.end
        origin = read_origin(watch.disk)
        logs = origin.changes.get(end.info.change_id) if origin else None
        return {
            "end": {"seq": end.seq, "newest": end.newest},
            "server": logs.server_id if logs else None,
            "loadFactor": self._measure_load(),
        }

    async def _answer_commit(self, request: Request, tasks: frozenset[str]) -> Response:
        asked = parse_commit(await self._read_body(request, MOST_POINTS))
        _allow_task(asked.task, tasks)
        commit = self._points.commit_points if isinstance(asked, CommitPoints) else self._points.commit
        return JSONResponse(await self._work(lambda: commit(self._disk_of(asked.task), asked)))  # type: ignore[arg-type]

    async def _answer_rewind(self, request: Request, tasks: frozenset[str]) -> Response:
        asked = parse_rewind(await self._read_body(request))
        _allow_task(asked.task, tasks)
        now = time.time()
        return JSONResponse(await self._work(lambda: self._points.rewind(self._disk_of(asked.task), asked, now)))

    def _disk_of(self, task: str) -> Disk:
        source = self._points.find(task).source
        if source not in self._watches:
            raise NotFoundError(f"this server has no source {source}", subject=source)
        return self._watches[source].disk

    def _find_watch(self, source: str) -> Watch:
        if source not in self._watches:
            raise RefusedError(404, "NO_SOURCE", "this server has no such source", "serviceGroupName is a [sources.NAME]")
        return self._watches[source]

    # what a request is

    def _allow(self, wanted: Subscription, tasks: frozenset[str]) -> Subscription:
        """A task of another token, and a source that is not here, are told in one word: nothing is told of either."""
        _allow_task(wanted.task, tasks)
        self._find_watch(wanted.source)
        return wanted

    def _find_session(self, request: Request, tasks: frozenset[str]) -> Session:
        found = self.sessions.find(request.headers.get(SESSION, ""), tasks.__contains__)
        if found is None:
            raise RefusedError(
                410, "NO_SESSION", "no such session, or it ended", "call /v1/getServerInfo, then /v1/subscribe"
            )
        return found

    def _hold(self, session: Session) -> Any:
        if session.is_busy:
            raise RefusedError(409, "BUSY", "a request of this session is at work", "one request of a session at a time")
        return _Held(session, self._clock)

    async def _read_body(self, request: Request, most: int = MOST_BODY) -> bytes:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RefusedError(415, "ENCODED", "the body is compressed", "send it as it is")
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > most:
            raise RefusedError(413, "TOO_LARGE", f"the body is larger than {most} bytes")
        found = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for piece in request.stream():
                    found += piece
                    if len(found) > most:
                        raise RefusedError(413, "TOO_LARGE", f"the body is larger than {most} bytes")
        except TimeoutError as late:
            raise RefusedError(408, "TOO_SLOW", f"the body did not come within {BODY_SECONDS:g} seconds") from late
        self.counts.bytes_in += len(found)
        return bytes(found)


class _Held:
    """A session that a request works with."""

    def __init__(self, session: Session, clock: Callable[[], float]) -> None:
        self._session = session
        self._clock = clock

    def __enter__(self) -> None:
        self._session.is_busy = True

    def __exit__(self, *_: object) -> None:
        self._session.is_busy = False
        self._session.used = self._clock()


def _allow_task(task: str, tasks: frozenset[str]) -> str:
    if task not in tasks:
        raise RefusedError(403, "FORBIDDEN", "the token is for no such task", "`tokens` of [changes] says which")
    return task


def _refuse(wrong: TidemarkError) -> RefusedError:
    if isinstance(wrong, RangeError):
        return RefusedError(410 if wrong.code == TOO_OLD else 416, wrong.code, wrong.message, wrong.hint)
    if isinstance(wrong, BinlogGapError):
        return RefusedError(410, TOO_OLD, wrong.message, wrong.hint)
    if isinstance(wrong, StoreBehindError):
        return RefusedError(416, TOO_NEW, wrong.message, wrong.hint)
    if isinstance(wrong, OtherStoreError):
        return RefusedError(416, OTHER_SERVER, wrong.message, wrong.hint)
    if isinstance(wrong, UsageError):
        return RefusedError(400, "BAD_REQUEST", wrong.message, wrong.hint)
    if isinstance(wrong, LeaseHeldError | LeaseLostError):
        return RefusedError(409, "HELD" if isinstance(wrong, LeaseHeldError) else "STALE", wrong.message, wrong.hint)
    if isinstance(wrong, NotFoundError):
        return RefusedError(404, "NOT_FOUND", wrong.message, wrong.hint)
    if isinstance(wrong, PermanentError):
        return RefusedError(422, "REFUSED", wrong.message, wrong.hint)
    if isinstance(wrong, RetryableError):
        return RefusedError(503, "NOT_YET", wrong.message, wrong.hint)
    return RefusedError(500, "FAILED", wrong.message, wrong.hint)


def _tell_refused(request: Request, refused: RefusedError) -> Response:
    """The reason: of a fetch as an RdsEnvelope, else as JSON. The connection ends where the body may not be read whole."""
    headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
    if refused.status in (401, 408, 413, 415):
        headers["Connection"] = "close"
    if request.url.path == "/v1/fetchMessages":
        data = encode_error(refused.status, "{code}: {error}; {hint}".format(**_describe(refused)))
        return Response(data, refused.status, headers, _PROTOBUF)
    return JSONResponse(_describe(refused), refused.status, headers)


def _describe(refused: RefusedError) -> dict[str, str]:
    """What went wrong, in words that have an end."""
    message = refused.message if len(refused.message) <= MOST_MESSAGE else refused.message[:MOST_MESSAGE] + "…"
    return {"code": refused.code, "error": message, "hint": refused.hint}


async def _tell_unknown(request: Request, error: Exception) -> Response:
    del request
    return JSONResponse({"code": "NO_SUCH_CALL"}, getattr(error, "status_code", 404))


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
