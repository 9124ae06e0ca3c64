"""A client of `changes serve`, in Python: the three calls, and replies as transactions by shard."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tidemark.changes.delivery.http.frames import Frame, decode_frame, decode_stretch
from tidemark.changes.delivery.http.requests import MOST_BYTES, NORMAL, PROTOCOL_BUFFER, Subscription
from tidemark.changes.delivery.http.schema import ERROR, UNDIVIDED, message_class
from tidemark.changes.delivery.shards import Divider
from tidemark.errors import BinlogGapError, PermanentError, RetryableError, UnreachableError

SESSION = "Tidemark-Session"
MOST_REPLY = 1 << 30
"""A block is larger than a client asked for where one row is."""
KEPT_SECONDS = 3.0
"""A connection without a request is used again for so long. The reader closes one after five seconds."""
_GONE, _LATER = (410, 416), (408, 429, 500, 503)


@dataclass(frozen=True)
class Received:
    """What a fetch gave. `frames`: of codec ARROW, of one shard each; `events`: of the other, RdsEvents by shard."""

    frames: Sequence[tuple[int, Frame]] = ()
    events: Mapping[int, Sequence[Any]] | None = None
    count: int = 0


class ReaderClient:
    """One session at a reader. `wanted.is_undivided`: blocks come as stored where they can, and are divided here.

    It keeps no point: of several shards, the next `wanted.checkpoint` is the least of their points.
    """

    def __init__(self, url: str, token: str, wanted: Subscription, *, timeout: float = 70.0, ca: str = "") -> None:
        place = urlsplit(url)
        host, port = place.hostname or "", place.port
        self._connection: http.client.HTTPConnection
        if place.scheme == "https":
            context = ssl.create_default_context(cafile=ca or None)
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout)
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.wanted = wanted
        self._divider = Divider(wanted.sharding)
        self._used = time.monotonic()

    def close(self) -> None:
        self._connection.close()

    def ask_server(self) -> Mapping[str, Any]:
        """What the reader says of itself. Where it is AVAILABLE, a session has begun."""
        told: Mapping[str, Any] = json.loads(self._post("/v1/getServerInfo", self._describe()))
        if told.get("session"):
            self._headers[SESSION] = str(told["session"])
        return told

    def subscribe(self) -> None:
        self._post("/v1/subscribe", self._describe())
        self._divider = Divider(self.wanted.sharding)

    def fetch(self, milliseconds: int = 1000, size: int = MOST_BYTES, events: int = 10_000) -> Received:
        """What comes next; nothing, after `milliseconds`."""
        asked = {"batchSize": events, "timeoutMs": milliseconds, "maxByteSize": size}
        envelope = message_class("RdsEnvelope").FromString(self._post("/v1/fetchMessages", asked))
        if envelope.messageType == ERROR:
            raise _make_error(self._url, envelope.error_code, envelope.error_message)
        parts = message_class("RdsPartitionedMessage").FromString(envelope.message).partitionedMessages
        if self.wanted.codec == PROTOCOL_BUFFER:
            read = message_class("RdsEvent").FromString
            found = {shard: [read(data) for data in parts[shard].messages] for shard in sorted(parts)}
            return Received(events=found, count=envelope.totalEventCount)
        frames = [frame for shard in sorted(parts) for frame in self._read_blocks(shard, parts[shard].messages)]
        return Received(frames, count=envelope.totalEventCount)

    def _read_blocks(self, shard: int, blocks: Sequence[bytes]) -> Iterator[tuple[int, Frame]]:
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
        if point.mode == NORMAL:
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

    def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        if time.monotonic() - self._used > KEPT_SECONDS:
            self._connection.close()  # the reader may have closed it; the next request opens it
        try:
            self._connection.request("POST", path, json.dumps(body), self._headers)
            response = self._connection.getresponse()
            data = response.read(MOST_REPLY + 1)
            self._used = time.monotonic()
        except (OSError, http.client.HTTPException) as broken:
            self._connection.close()
            raise UnreachableError(f"the reader {self._url} does not answer: {broken}", subject=self._url) from broken
        if len(data) > MOST_REPLY:
            self._connection.close()
            raise PermanentError(f"the reader {self._url} answers with more than {MOST_REPLY} bytes", subject=self._url)
        if response.status != 200:
            raise _read_error(self._url, response.status, path, data)
        return data


def _read_error(url: str, status: int, path: str, data: bytes) -> Exception:
    try:
        if path == "/v1/fetchMessages":
            envelope = message_class("RdsEnvelope").FromString(data)
            return _make_error(url, envelope.error_code or status, envelope.error_message)
        told = json.loads(data)
        return _make_error(url, status, f"{told['code']}: {told['error']}; {told['hint']}")
    except (ValueError, LookupError, TypeError):
        return _make_error(url, status, "no reason")


def _make_error(url: str, status: int, message: str) -> Exception:
    text = f"the reader {url} answers {status}: {message[:2000]}"
    if status in _GONE and "NO_SESSION" not in message:
        return BinlogGapError(text, subject=url)
    if status in _LATER or "NO_SESSION" in message or "BUSY" in message:
        return RetryableError(text, subject=url)
    return PermanentError(text, subject=url)
