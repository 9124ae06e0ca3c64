"""A client of `changes serve`, in Python: calls with a bearer token, sessions, replies as blocks or transactions by shard.

Nothing that a reader answers is believed before it is looked at: how long it is, how fast it comes, what it holds.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tidemark.changes.delivery.http.frames import Frame, decode_frame, decode_stretch
from tidemark.changes.delivery.http.requests import MOST_BYTES, NORMAL, PROTOCOL_BUFFER, Subscription
from tidemark.changes.delivery.http.schema import ERROR, UNDIVIDED, message_class, read_fields
from tidemark.changes.delivery.shards import Divider
from tidemark.changes.delivery.storage_points import OtherStoreError
from tidemark.changes.store.block import Chosen
from tidemark.changes.store.read import Stretch
from tidemark.errors import (
    BinlogGapError,
    CorruptionError,
    LeaseHeldError,
    NotFoundError,
    PermanentError,
    RetryableError,
    TidemarkError,
    UnreachableError,
    UsageError,
)

SESSION = "Tidemark-Session"
MOST_REPLY, MOST_TOLD = 1 << 30, 64 << 20
"""A block is larger than a client asked for where one row is. What is no fetch is told in less."""
KEPT_SECONDS = 3.0
"""A connection without a request is used again for so long. The reader closes one after five seconds."""
SLOW_SECONDS, LEAST_SPEED = 5.0, 16 << 10
"""A reply that comes with fewer bytes a second, after so long, is given up."""
_PIECE = 256 << 10
_LATER = (408, 429, 500, 503)


class ReaderBehindError(RetryableError):
    """A reader's store ends before the point: it lacks what is done."""


class SessionEndedError(RetryableError):
    """A reader has no such session any more."""


@dataclass(frozen=True)
class Received:
    """What a fetch gave. `frames`: of codec ARROW, of one shard each; `events`: of the other, RdsEvents by shard."""

    frames: Sequence[tuple[int, Frame]] = ()
    events: Mapping[int, Sequence[Any]] | None = None
    count: int = 0


class ReaderConnection:
    """Requests to a reader, one at a time. `timeout`: seconds without a byte; `whole`: for a request and its reply."""

    def __init__(self, url: str, token: str, *, ca: str = "", timeout: float = 70.0, whole: float = 600.0) -> None:
        try:
            place = urlsplit(url)
            host, port = place.hostname or "", place.port
        except ValueError:
            place, host, port = urlsplit(""), "", None
        if place.scheme not in ("http", "https") or not host or place.path.strip("/"):
            raise UsageError(f"{url!r} is no address of a reader", hint="https://HOST:28332", subject=url)
        if not token or not token.isascii() or not token.isprintable():
            raise UsageError("the reader's token is empty, or no text of one line", hint="a line of its changes.tokens")
        self._connection: http.client.HTTPConnection
        if place.scheme == "https":
            try:
                context = ssl.create_default_context(cafile=ca or None)
            except OSError as wrong:
                raise UsageError(f"the certificate {ca} cannot be read: {wrong.strerror or wrong}", subject=ca) from wrong
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout)
        self.url = url
        self._ca = ca
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._whole = whole
        self._used = time.monotonic()

    def close(self) -> None:
        self._connection.close()

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """What a call answers in JSON: an object. CorruptionError where it is none."""
        data = self.post(path, body, MOST_TOLD)
        try:
            told = json.loads(data)
            if isinstance(told, dict):
                return told
        except (ValueError, RecursionError):
            pass
        raise CorruptionError(f"the reader {self.url} answers {path} with no JSON object", subject=self.url)

    def post(self, path: str, body: Mapping[str, Any], most: int = MOST_REPLY) -> bytearray:
        """The body of the answer. UnreachableError: there is none, or not whole; else what the status means."""
        if time.monotonic() - self._used > KEPT_SECONDS:
            self._connection.close()  # the reader may have closed it; the next request opens it
        watch = threading.Timer(self._whole, self._cut)
        watch.daemon = True
        watch.start()
        try:
            self._connection.request("POST", path, json.dumps(body), self.headers)
            response = self._connection.getresponse()
            data = self._read_body(response, most)
            self._used = time.monotonic()
        except ssl.SSLCertVerificationError as wrong:
            self._connection.close()
            raise self._tell_certificate(wrong) from wrong
        except (OSError, http.client.HTTPException) as broken:
            self._connection.close()
            raise UnreachableError(f"the reader {self.url} does not answer: {broken}", subject=self.url) from broken
        except BaseException:
            self._connection.close()
            raise
        finally:
            watch.cancel()
        if response.status != 200:
            raise _read_error(self.url, response.status, path, data)
        return data

    def _tell_certificate(self, wrong: ssl.SSLCertVerificationError) -> PermanentError:
        vouching = f"ca {self._ca} does not vouch for" if self._ca else "no ca is given, and this machine does not know"
        return PermanentError(
            f"{vouching} the certificate of the reader {self.url}: {wrong.verify_message}",
            hint='ca names the certificate of the reader, or of who signed it: .option("ca", FILE), subscribe(ca=FILE),'
            " consume --ca FILE",
            subject=self.url,
        )

    def _cut(self) -> None:
        with suppress(OSError, AttributeError):  # it is closed already
            self._connection.sock.shutdown(socket.SHUT_RDWR)

    def _read_body(self, response: http.client.HTTPResponse, most: int) -> bytearray:
        size = response.length
        if size is None:
            raise CorruptionError(f"the reader {self.url} does not say how long its answer is", subject=self.url)
        if size > most:
            raise PermanentError(f"the reader {self.url} answers with more than {most} bytes", subject=self.url)
        data, found, begun = bytearray(size), 0, time.monotonic()
        while found < size:
            piece = response.read1(min(_PIECE, size - found))
            if not piece:
                raise http.client.IncompleteRead(b"", size - found)
            data[found : found + len(piece)] = piece
            found += len(piece)
            taken = time.monotonic() - begun
            if taken > SLOW_SECONDS and found < taken * LEAST_SPEED and found < size:
                raise UnreachableError(f"the reader {self.url} answers too slowly", subject=self.url)
        response.read()  # nothing is left; the connection takes the next request
        return data


class ReaderClient:
    """One session at a reader. `wanted.is_undivided`: blocks come as stored where they can, and are divided here.

    It keeps no point: of several shards, the next `wanted.checkpoint` is the least of their points. `chosen`: which columns
    of rows are decoded of blocks as stored.
    """

    def __init__(
        self,
        url: str,
        token: str,
        wanted: Subscription,
        *,
        timeout: float = 70.0,
        ca: str = "",
        whole: float = 600.0,
        chosen: Chosen | None = None,
    ) -> None:
        self._connection = ReaderConnection(url, token, ca=ca, timeout=timeout, whole=whole)
        self._url = url
        self.wanted = wanted
        self._chosen = chosen
        self._divider = Divider(wanted.sharding)

    def close(self) -> None:
        self._connection.close()

    def ask_server(self) -> Mapping[str, Any]:
        """What the reader says of itself. Where it is AVAILABLE, a session has begun."""
        told: Mapping[str, Any] = self._connection.ask("/v1/getServerInfo", self._describe())
        if session := told.get("session"):
            if not isinstance(session, str) or not re.fullmatch(r"[!-~]{1,200}", session):
                raise CorruptionError(f"the reader {self._url} gives a session that is no word", subject=self._url)
            self._connection.headers[SESSION] = session
        return told

    def make_refusal(self, told: Mapping[str, Any]) -> Exception:
        """Why a reader that is not AVAILABLE has no session for us, as it told."""
        return _make_error(self._url, 503, f"{told.get('code')}: {str(told.get('error'))[:500]}")

    def subscribe(self) -> None:
        self._connection.post("/v1/subscribe", self._describe(), MOST_TOLD)
        self._divider = Divider(self.wanted.sharding)

    def end(self) -> None:
        """Let the session go now, and not when it is idle for long: a reader has so many at most. Where it does not answer,
        nothing is lost."""
        with suppress(TidemarkError):
            self._connection.post("/v1/endSession", {}, MOST_TOLD)

    def fetch(self, milliseconds: int = 1000, size: int = MOST_BYTES, events: int = 10_000) -> Received:
        """What comes next; nothing, after `milliseconds`."""
        count, parts = self._fetch(milliseconds, size, events)
        if self.wanted.codec == PROTOCOL_BUFFER:
            read = message_class("RdsEvent").FromString
            found = {shard: [read(bytes(data)) for data in parts[shard]] for shard in sorted(parts)}
            return Received(events=found, count=count)
        frames = [frame for shard in sorted(parts) for frame in self._read_blocks(shard, parts[shard])]
        return Received(frames, count=count)

    def fetch_stretches(self, milliseconds: int = 1000, size: int = MOST_BYTES) -> Iterator[Stretch]:
        """The blocks that come next, as stored: of a session that began with a `seq`, undivided. Each is decompressed when
        it is asked for. CorruptionError: they are no blocks."""
        _, parts = self._fetch(milliseconds, size, 1)
        if any(shard != UNDIVIDED for shard in parts):
            raise CorruptionError(f"the reader {self._url} divided its blocks", subject=self._url)
        return (self._decode(block) for blocks in parts.values() for block in blocks)

    def _decode(self, block: memoryview) -> Stretch:
        stretch = decode_stretch(block, self._chosen)
        try:
            stretch.pieces, stretch.gtids  # noqa: B018 (decoded here, and not where it is first used)
        except Exception as wrong:  # whatever decoding raises: the bytes are a reader's
            raise CorruptionError(f"the reader {self._url} sent no block of changes", subject=self._url) from wrong
        return stretch

    def _fetch(self, milliseconds: int, size: int, events: int) -> tuple[int, Mapping[int, Sequence[memoryview]]]:
        """How many events or rows came, and the messages of each shard: views of the reply."""
        asked = {"batchSize": events, "timeoutMs": milliseconds, "maxByteSize": size}
        data = self._connection.post("/v1/fetchMessages", asked)
        try:
            envelope = dict(read_fields(memoryview(data)))
            if envelope.get(2) == ERROR:
                raise _make_error(self._url, *_tell_error(envelope))
            parts: dict[int, list[memoryview]] = {}
            for number, entry in read_fields(envelope.get(3, memoryview(b""))):
                if number == 1:
                    fields = dict(read_fields(entry))
                    shard = fields.get(1, 0)
                    shard -= shard >> 63 << 64  # it has a sign
                    parts[shard] = [value for number, value in read_fields(fields.get(2, memoryview(b""))) if number == 3]
            return envelope.get(6, 0), parts
        except (ValueError, TypeError, LookupError) as wrong:
            raise CorruptionError(f"the reader {self._url} sent no RdsEnvelope", subject=self._url) from wrong

    def _read_blocks(self, shard: int, blocks: Sequence[memoryview]) -> Iterator[tuple[int, Frame]]:
        for block in blocks:
            if shard != UNDIVIDED:
                yield shard, decode_frame(block)
                continue
            stretch = decode_stretch(block)
            for own, pieces in self._divider.divide(stretch.pieces, self.wanted.shards).items():
                yield own, Frame(stretch.gtids, stretch.gtids_after, pieces, stretch.header.begins)

    def _describe(self) -> dict[str, Any]:
        wanted, point = self.wanted, self.wanted.checkpoint
        checkpoint: dict[str, Any] = {"checkpointMode": point.mode}
        if point.seq:
            checkpoint |= {"seq": point.seq}
        elif point.mode == NORMAL:
            checkpoint |= {"gtidSet": point.gtid_set} if point.gtid_set else {}
            checkpoint |= {"uuid": point.uuid, "transactionId": point.transaction_id} if point.uuid else {}
            checkpoint |= {"eventIndex": point.event_index, "serverId": point.server_id, "binlogFile": point.file}
            checkpoint |= {"binlogOffset": point.offset, "timestamp": point.milliseconds}
        tables = [pattern.partition(".") for pattern in wanted.tables if pattern != "**"]
        return {
            "serviceGroupInfo": {
                "taskName": wanted.task,
                "serviceGroupName": wanted.source,
                "databaseInfoSet": [{"databaseName": database, "tableNames": [table]} for database, _, table in tables],
            },
            "partitionClusterInfo": {
                "partitionTotal": wanted.sharding.shards,
                "partitionSet": list(wanted.shards),
                "hash": wanted.sharding.hash,
                "keyChange": wanted.sharding.key_change,
                "columns": {table: list(names) for table, names in wanted.sharding.columns.items()},
            },
            "buffaloCheckpoint": checkpoint,
            "codec": wanted.codec,
            "undivided": wanted.is_undivided,
            "compressed": wanted.is_compressed,
            "needEndTransaction": wanted.needs_end,
            "needDDL": wanted.needs_ddl,
        }


def _tell_error(envelope: Mapping[int, Any]) -> tuple[int, str]:
    return envelope.get(4, 0), str(envelope.get(5, b""), "utf-8", "replace")


def _read_error(url: str, status: int, path: str, data: bytearray) -> Exception:
    try:
        if path == "/v1/fetchMessages":
            code, message = _tell_error(dict(read_fields(memoryview(data))))
            return _make_error(url, code or status, message)
        told = json.loads(data)
        return _make_error(url, status, f"{told['code']}: {told['error']}; {told['hint']}")
    except Exception:  # whatever decoding raises: the bytes are a reader's
        return _make_error(url, status, "no reason")


_KINDS: dict[str, type[PermanentError | RetryableError | NotFoundError | BinlogGapError]] = {
    "LESS_THAN_MIN": BinlogGapError,
    "GREATER_THAN_MAX": ReaderBehindError,
    "OTHER_SERVER": OtherStoreError,
    "NO_SESSION": SessionEndedError,
    "BUSY": RetryableError,
    "HELD": LeaseHeldError,
    "NOT_FOUND": NotFoundError,
    "NO_SOURCE": NotFoundError,
}
_HINTS = {
    "GREATER_THAN_MAX": "let the capture there go on; or give a reader of the store that was read before",
    "UNAUTHORIZED": "give a token that is a line `TOKEN TASK…` of the reader's changes.tokens; it is asked at each request",
    "FORBIDDEN": "give the token of this task: the reader's changes.tokens has a line `TOKEN TASK…` for it",
    "NO_SOURCE": "give a reader of this source: ./tidemark changes show SOURCE tells there what it has",
}


def _make_error(url: str, status: int, message: str) -> Exception:
    text, word = f"the reader {url} answers {status}: {message[:2000]}", message.partition(":")[0]
    kind = _KINDS.get(word, RetryableError if status in _LATER else PermanentError)
    return kind(text, hint=_HINTS.get(word, ""), subject=url)
