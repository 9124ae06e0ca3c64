"""A client of `changes serve` that knows the field list of docs/formats/change-wire.md, and nothing of Tidemark's code.

It reads protobuf by itself: numbers of fields, lengths, varints.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[int, list[Any]]
OPS = {1: "I", 2: "U", 3: "D"}


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


def read_message(data: bytes) -> Message:
    """Values by the numbers of their fields; a length-delimited one as bytes."""
    found: Message = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = read_varint(data, at)
            found.setdefault(number, []).append(value - (1 << 64) if value >> 63 else value)
        else:
            assert kind == 2, f"field {number} is of wire type {kind}"
            size, at = read_varint(data, at)
            assert at + size <= len(data)
            found.setdefault(number, []).append(data[at : at + size])
            at += size
    return found


def number(message: Message, field: int) -> int:
    return int(message.get(field, [0])[-1])


def text(message: Message, field: int) -> str:
    return bytes(message.get(field, [b""])[-1]).decode()


def pairs(message: Message, field: int) -> dict[str, str]:
    read = [read_message(one) for one in message.get(field, [])]
    return {text(pair, 1): text(pair, 2) for pair in read}


def read_columns(entries: list[bytes]) -> dict[str, Any]:
    """A map of columns: the text of each value, None where it is null, {} where it is absent."""
    found: dict[str, Any] = {}
    for entry in map(read_message, entries):
        column = read_message(entry[2][0])
        assert text(column, 3) == text(entry, 1)
        props = pairs(column, 7)
        value: Any = bytes.fromhex(text(column, 8)) if props.get("binary") else text(column, 8)
        found[text(entry, 1)] = {} if "absent" in props else None if number(column, 6) else value
    return found


def read_event(data: bytes) -> dict[str, Any]:
    event = read_message(data)
    header = read_message(event[1][0])
    checkpoint = read_message(header[2][0])
    row = read_message(event.get(4, [b""])[0])
    return {
        "type": number(event, 3),
        "ddl": bool(number(event, 2)),
        "props": pairs(event, 5),
        "database": text(event, 6),
        "sql": text(event, 7),
        "comment": text(event, 8),
        "table": text(header, 6),
        "gtid": pairs(header, 9).get("gtid", ""),
        "key": text(header, 10),
        "index": number(checkpoint, 3),
        "point": {
            "uuid": text(checkpoint, 1),
            "transactionId": number(checkpoint, 2),
            "eventIndex": number(checkpoint, 3),
            "serverId": number(checkpoint, 4),
            "binlogFile": number(checkpoint, 5),
            "binlogOffset": number(checkpoint, 6),
            "timestamp": number(checkpoint, 7),
        },
        "before": read_columns(row.get(1, [])),
        "after": read_columns(row.get(2, [])),
    }


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def envelope(self) -> Message:
        return read_message(self.body)

    @property
    def events(self) -> dict[int, list[dict[str, Any]]]:
        """The events by shard. The counts must be true."""
        envelope = self.envelope
        assert (number(envelope, 1), number(envelope, 2)) == (1, 1)
        found = {}
        for entry in map(read_message, read_message(envelope[3][0]).get(1, [])):
            message = read_message(entry[2][0])
            events = message.get(3, [])
            assert (number(message, 1), number(message, 2)) == (len(events), sum(map(len, events)))
            found[number(entry, 1)] = [read_event(one) for one in events]
        assert number(envelope, 6) == sum(map(len, found.values()))
        return found


@dataclass
class Client:
    """PICK_SERVER, CONNECT, SUBSCRIBE, FETCH_EVENTS: what the seed draws."""

    host: str
    port: int
    token: str = ""
    session: str = ""
    body: dict[str, Any] = field(default_factory=dict)

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        sent |= {"Tidemark-Session": self.session} if self.session else {}
        data = body if isinstance(body, bytes | str) else json.dumps(self.body if body is None else body)
        try:
            connection.request("POST", path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def connect(self) -> dict[str, Any]:
        told = self.post("/v1/getServerInfo").json
        self.session = told.get("session", "")
        return told

    def subscribe(self, **more: Any) -> Answer:
        return self.post("/v1/subscribe", self.body | more)

    def fetch(self, events: int = 1000, milliseconds: int = 0, size: int = 1_000_000) -> Answer:
        return self.post("/v1/fetchMessages", {"batchSize": events, "timeoutMs": milliseconds, "maxByteSize": size})

    def fetch_all(self, events: int = 1000) -> dict[int, list[dict[str, Any]]]:
        """Everything up to the end of the store."""
        found: dict[int, list[dict[str, Any]]] = {}
        while got := self.fetch(events).events:
            for shard, own in got.items():
                found.setdefault(shard, []).extend(own)
        return found
