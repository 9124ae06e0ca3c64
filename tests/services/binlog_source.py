"""A server of MySQL's protocol on 127.0.0.1 that serves recorded binary logs, and lies where a test wants it.

It logs everybody in, answers questions from a table, and dumps by file and position, by MySQL's GTID sets and by
MariaDB's positions. What it does not show: logins with a real password, TLS, real rotation and purge.
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from tests.binlog_maker import lenenc, uint
from tidemark.changes.binlog.cursor import Cursor
from tidemark.changes.binlog.events import read_gtid, read_maria_gtid, read_previous_gtids
from tidemark.changes.binlog.gtid_sets import MariaGtidPosition, MysqlGtidSet
from tidemark.changes.binlog.layout import MAGIC, EventType
from tidemark.changes.binlog.reader import split_events

FULL = (1 << 24) - 1
END = b"\xfe\0\0\2\0"
OK = b"\0\0\0\2\0\0\0"
Row = dict[str, object]


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error."""

    code: int
    text: str

    @property
    def packet(self) -> bytes:
        return b"\xff" + uint(self.code, 2) + b"#HY000" + self.text.encode()


@dataclass(frozen=True)
class Bytes:
    """Bytes instead of a packet."""

    data: bytes


STALL, HANG_UP = "stall", "hang up"
Sent = bytes | Bytes | str
"""The payload of a packet, or what happens instead."""


def leave_alone(sent: Iterator[bytes]) -> Iterable[Sent]:
    return sent


class BinlogSource:
    """A source; a context manager. Its public fields may be changed while it runs.

    `variables` are global ones, `answers` maps the beginning of a question to its rows, to a refusal or to a packet; `asked`
    are the questions so far, `received` all packets. `tamper` gets the packets of a dump and gives what is sent instead.
    """

    def __init__(self, logs: dict[str, bytes], *, version: str = "8.0.36", variables: dict[str, str] | None = None) -> None:
        self.logs, self.version = dict(logs), version
        self.variables = {"server_id": "1", "log_bin": "ON", "binlog_checksum": "CRC32"} | (variables or {})
        self.answers: dict[str, list[Row] | Refusal | bytes] = {}
        self.asked: list[str] = []
        self.received: list[bytes] = []
        self.purged = MysqlGtidSet({})
        self.tamper: Callable[[Iterator[bytes]], Iterable[Sent]] = leave_alone
        self.login_answer = OK
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()[:2]
        return host, port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        self._lines = []

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError, EOFError):
            _Session(self, line).run()

    def wait(self, seconds: float) -> bool:
        """Whether the source ended meanwhile."""
        return self._ended.wait(seconds)


class _Session:
    def __init__(self, source: BinlogSource, line: socket.socket) -> None:
        self.source, self.line = source, line
        self.number = 0
        self.set: dict[str, str] = {}

    def run(self) -> None:
        capabilities = 0x81FFF7FF & ~0x0800 & ~0x0020  # neither TLS nor compression
        low, high = capabilities & 0xFFFF, capabilities >> 16
        self.send(
            b"\x0a" + _shown(self.source.version) + b"\0" + uint(7, 4) + b"12345678\0" + uint(low, 2) + b"\x21\2\0"
            + uint(high, 2) + bytes([21]) + bytes(10) + b"123456789012\0mysql_native_password\0"
        )  # fmt: skip
        self.receive()
        self.send(self.source.login_answer)
        while (command := self.receive()) and command[0] != 0x01:
            if command[0] == 0x03:
                self.answer(command[1:].decode())
            elif command[0] == 0x12:
                position, flags = struct.unpack_from("<IH", command, 1)
                self.dump(self.dump_place(command[11:].decode(), position), follow=not flags & 1)
            elif command[0] == 0x1E:
                (name_size,) = struct.unpack_from("<I", command, 7)
                at = 11 + name_size + 8
                known = read_previous_gtids(Cursor(command[at + 4 :], "a set of GTIDs"))
                self.dump(self.dump_unknown(known), follow=not command[1] & 1)
            else:
                self.send(OK)

    def send(self, payload: bytes) -> None:
        for start in range(0, len(payload) + 1, FULL):
            piece = payload[start : start + FULL]
            self.line.sendall(uint(len(piece), 3) + bytes([self.number]) + piece)
            self.number = (self.number + 1) & 0xFF

    def receive(self) -> bytes:
        head = self._read(4)
        self.number = head[3] + 1
        packet = self._read(int.from_bytes(head[:3], "little"))
        self.source.received.append(packet)
        return packet

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.line.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def answer(self, question: str) -> None:
        source = self.source
        source.asked.append(question)
        if question.startswith("SET "):
            self.set |= {name: value.strip("'") for name, value in re.findall(r"@(\w+) = ('[^']*'|\d+)", question)}
        found = next((found for words, found in source.answers.items() if question.startswith(words)), None)
        if found is None:
            found = self._answer_by_itself(question)
        if isinstance(found, Refusal):
            self.send(found.packet)
        elif isinstance(found, bytes):
            self.send(found)
        else:
            self._send_rows(found)

    def _answer_by_itself(self, question: str) -> list[Row] | bytes:
        source = self.source
        if question.startswith("SET "):
            return OK
        if question.startswith("SHOW GLOBAL VARIABLES"):
            wanted = re.findall(r"'(\w+)'", question)
            return [{"Variable_name": name, "Value": source.variables[name]} for name in wanted if name in source.variables]
        if question.startswith("SHOW BINARY LOGS"):
            return [{"Log_name": name, "File_size": len(log)} for name, log in source.logs.items()]
        if question.startswith(("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS")):
            name, log = list(source.logs.items())[-1]
            return [{"File": name, "Position": len(log), "Binlog_Do_DB": "", "Binlog_Ignore_DB": ""}]
        if question.startswith("SELECT UNIX_TIMESTAMP"):
            return [{"clock": 1_700_000_000}]
        return []

    def _send_rows(self, rows: list[Row]) -> None:
        names = list(rows[0]) if rows else ["nothing"]
        self.send(lenenc(len(names)))
        for name in names:
            text = _text(name)
            self.send(_text("def") + b"\0\0\0" + text + text + b"\x0c" + struct.pack("<HIBHBH", 33, 255, 253, 0, 0, 0))
        self.send(END)
        for row in rows:
            self.send(b"".join(_text(value) for value in row.values()))
        self.send(END)

    def dump(self, events: Iterator[bytes], *, follow: bool) -> None:
        for sent in self.source.tamper(self._packets(events, follow=follow)):
            if sent == STALL:
                self.source.wait(600)
            elif sent == HANG_UP:
                self.line.shutdown(socket.SHUT_RDWR)
            elif isinstance(sent, Bytes):
                self.line.sendall(sent.data)
            else:
                assert isinstance(sent, bytes)
                self.send(sent)

    def _packets(self, events: Iterator[bytes], *, follow: bool) -> Iterator[bytes]:
        source, seen = self.source, 0
        for event in events:
            yield event if event[:1] == b"\xff" else b"\0" + event
        if not follow:
            yield END
            return
        name = list(source.logs)[-1]
        seen = len(source.logs[name])
        while not source.wait(int(self.set["master_heartbeat_period"]) / 1e9):
            for event in _split(source.logs[name][seen:]):
                yield b"\0" + event
            seen = len(source.logs[name])
            yield b"\0" + self._made_up(EventType.HEARTBEAT, name.encode(), log_pos=seen)

    def dump_place(self, name: str, position: int) -> Iterator[bytes]:
        logs = self.source.logs
        if "slave_connect_state" in self.set and not name:
            yield from self._dump_maria(MariaGtidPosition.parse(self.set["slave_connect_state"]))
            return
        if name not in logs:
            yield Refusal(1236, "Could not find first log file name in binary log index file").packet
            return
        if position > len(logs[name]):
            yield Refusal(1236, "Client requested source to start replication from impossible position").packet
            return
        names = list(logs)
        for later in names[names.index(name) :]:
            begin = position if later == name else len(MAGIC)
            yield self._rotate(later, begin)
            for at, event in _places(logs[later]):
                if at >= begin or event[4] == EventType.FORMAT_DESCRIPTION:
                    yield event

    def dump_unknown(self, known: MysqlGtidSet) -> Iterator[bytes]:
        if not known >= self.source.purged:
            yield Refusal(1236, "Cannot replicate because the source purged required binary logs.").packet
            return
        is_known = False
        for name, log in self.source.logs.items():
            yield self._rotate(name, len(MAGIC))
            for _, event in _places(log):
                if event[4] == EventType.GTID:
                    gtid = read_gtid(Cursor(event, "a GTID", 19), is_anonymous=False)
                    is_known = known.contains(gtid.uuid, gtid.tag, gtid.number)
                elif event[4] in (EventType.ROTATE, EventType.STOP, EventType.FORMAT_DESCRIPTION):
                    is_known = False
                if not is_known:
                    yield event

    def _dump_maria(self, known: MariaGtidPosition) -> Iterator[bytes]:
        is_known = False
        for name, log in self.source.logs.items():
            yield self._rotate(name, len(MAGIC))
            for _, event in _places(log):
                if event[4] == EventType.MARIA_GTID:
                    gtid = read_maria_gtid(Cursor(event, "a GTID", 19), int.from_bytes(event[5:9], "little"))
                    is_known = known.contains(gtid.domain, gtid.number)
                elif event[4] in (EventType.ROTATE, EventType.STOP, EventType.FORMAT_DESCRIPTION):
                    is_known = False
                if not is_known:
                    yield event

    def _rotate(self, name: str, position: int) -> bytes:
        return self._made_up(EventType.ROTATE, uint(position, 8) + name.encode())

    def _made_up(self, kind: int, body: bytes, log_pos: int = 0) -> bytes:
        has_checksum = self.source.variables["binlog_checksum"] == "CRC32"
        size = 19 + len(body) + 4 * has_checksum
        made = uint(0, 4) + bytes([kind]) + uint(1, 4) + uint(size, 4) + uint(log_pos & 0xFFFFFFFF, 4) + uint(0x20, 2) + body
        return made + uint(zlib.crc32(made), 4) if has_checksum else made


def _shown(version: str) -> bytes:
    """As servers of MariaDB before 11 greet."""
    return (b"5.5.5-" if version.startswith("10.") else b"") + version.encode()


def _text(value: object) -> bytes:
    data = str(value).encode()
    return lenenc(len(data)) + data


def _split(events: bytes) -> Iterator[bytes]:
    return (event for _, event in split_events(io.BytesIO(events)))


def _places(log: bytes) -> Iterator[tuple[int, bytes]]:
    at = len(MAGIC)
    for event in _split(log[at:]):
        yield at, event
        at += len(event)
