"""The SFTP protocol (version 3) over a pipe: many requests in flight, every status read, OpenSSH's extensions.

Our own, because paramiko's client sends small reads and writes one way only, overlooks failed writes
(research/transfer.md §6) and has no public call for fsync, hardlink and statvfs. Source: draft-ietf-secsh-filexfer-02
and OpenSSH's PROTOCOL file.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import NamedTuple

from tidemark.errors import PermissionDeniedError, UnreachableError
from tidemark.stores.ssh.connection import Pipe
from tidemark.stores.ssh.login import expired

INIT, VERSION = 1, 2
OPEN, CLOSE, READ, WRITE, LSTAT, FSTAT, FSETSTAT, OPENDIR, READDIR, REMOVE, MKDIR, RMDIR = (
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    11,
    12,
    13,
    14,
    15,
)
RENAME, EXTENDED = 18, 200
STATUS, HANDLE, DATA, NAME, ATTRS, EXTENDED_REPLY = 101, 102, 103, 104, 105, 201
OK, EOF, NO_SUCH_FILE, DENIED, FAILURE, UNSUPPORTED = 0, 1, 2, 3, 4, 8

FSYNC, HARDLINK, RENAME_OVER, STATVFS, LIMITS = (
    "fsync@openssh.com",
    "hardlink@openssh.com",
    "posix-rename@openssh.com",
    "statvfs@openssh.com",
    "limits@openssh.com",
)

FOR_READ, FOR_WRITE, CREATE, TRUNCATE, EXCLUSIVE = 0x1, 0x2, 0x8, 0x10, 0x20
IN_FLIGHT = 64  # requests sent ahead of their replies
_SIZE, _OWNER, _MODE, _TIMES, _EXTENSIONS = 0x1, 0x2, 0x4, 0x8, 0x80000000

Then = Callable[["Reply"], None]


class Attributes(NamedTuple):
    size: int
    mode: int
    mtime: int


class Reply(NamedTuple):
    kind: int
    body: bytes

    def as_os_error(self, allowed: tuple[int, ...] = ()) -> OSError | None:
        """Return a STATUS as an OSError; None for success, for `allowed` codes and for other kinds."""
        if self.kind != STATUS:
            return None
        code = struct.unpack_from(">I", self.body)[0]
        return None if code == OK or code in allowed else status_error(code)

    def raise_for_status(self, allowed: tuple[int, ...] = ()) -> None:
        failure = self.as_os_error(allowed)
        if failure is not None:
            raise failure

    def is_status(self, code: int) -> bool:
        return self.kind == STATUS and struct.unpack_from(">I", self.body)[0] == code

    def parse_string(self) -> bytes:
        """Return the handle or the data of a reply. Raises the OSError of a status."""
        self.raise_for_status()
        return self.body[4 : 4 + struct.unpack_from(">I", self.body)[0]]

    def parse_attributes(self) -> Attributes:
        self.raise_for_status()
        return read_attributes(self.body, 0)[0]

    def parse_names(self) -> list[tuple[bytes, Attributes]]:
        self.raise_for_status()
        found, at = [], 4
        for _ in range(struct.unpack_from(">I", self.body)[0]):
            name, at = read_string(self.body, at)
            _, at = read_string(self.body, at)  # the line `ls -l` would print
            attributes, at = read_attributes(self.body, at)
            found.append((name, attributes))
        return found


class SftpWire:
    """An SFTP session: post requests with a callback (`post`), or one at a time (`ask`). For one thread.

    An OSError of a callback is kept until all requests are answered, then raised by `flush_replies`. So the session stays
    usable. Without `flush_replies`, a kept error is dropped at the next request after the last answer. Streams that outlive
    a call (`read_stream`) handle their errors themselves.
    """

    in_flight = IN_FLIGHT

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._waiting: dict[int, Then] = {}
        self._next = 0
        self._pending = bytearray()
        self._answering = False
        self.failure: OSError | None = None  # the first one since the last `flush_replies`
        self.extensions = self._exchange_versions()
        self.read_size, self.write_size = self._ask_limits()

    @property
    def is_open(self) -> bool:
        return self._pipe.is_open

    def post(self, kind: int, payload: bytes, then: Then) -> None:
        """Send a request. `then` is called with its reply during a later call, and may post requests itself."""
        self._pending += struct.pack(">IBI", len(payload) + 5, kind, self._assign_number(then)) + payload
        if not self._answering:
            if len(self._pending) > 1 << 17:
                self._flush_requests()
            while len(self._waiting) > self.in_flight:
                self.step()

    def _assign_number(self, then: Then) -> int:
        """Return the number of a new request whose reply goes to `then`."""
        if not self._waiting and not self._answering:
            self.failure = None  # of work that ended without `flush_replies`
        self._next = (self._next + 1) & 0xFFFFFFFF
        self._waiting[self._next] = then
        return self._next

    def step(self) -> None:
        """Receive one reply and call its callback."""
        self._flush_requests()
        number, reply = self._receive_reply()
        self._answering = True
        try:
            self._waiting.pop(number)(reply)
        except OSError as error:
            self.failure = self.failure or error
        finally:
            self._answering = False

    def flush_replies(self) -> None:
        """Receive all outstanding replies, then raise the first failure."""
        while self._waiting:
            self.step()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def ask(self, kind: int, payload: bytes) -> Reply:
        box: list[Reply] = []
        self.post(kind, payload, box.append)
        while not box:
            self.step()
        return box[0]

    def close(self) -> None:
        self._pipe.close()

    def _flush_requests(self) -> None:
        if self._pending:
            data, self._pending = self._pending, bytearray()
            self._pipe.write(data)

    def _receive_reply(self) -> tuple[int, Reply]:
        head = self._pipe.read(4, patient=True)
        size = struct.unpack(">I", head)[0] if len(head) == 4 else 0
        body = self._pipe.read(size) if 5 <= size < 1 << 20 else b""
        if len(body) < 5:
            raise UnreachableError(f"{self._pipe.host} ended its SFTP session", hint="run again", subject=self._pipe.host)
        return struct.unpack_from(">I", body, 1)[0], Reply(body[0], body[5:])

    def _exchange_versions(self) -> dict[str, bytes]:
        self._pipe.write(struct.pack(">IBI", 5, INIT, 3))
        head = self._pipe.read(9)
        size, kind, _ = struct.unpack(">IBI", head) if len(head) == 9 else (0, 0, 0)
        if kind != VERSION or size > 1 << 18:
            said = "" if len(head) == 9 else self._pipe.read_errors().strip()
            if over := expired(self._pipe.host, f"{said}\n{self._pipe.banner}"):
                raise over
            heard = f"it says {head.decode('utf-8', 'backslashreplace')!r} …" if head else "it ends without a word"
            raise PermissionDeniedError(
                f"{self._pipe.host} gives no SFTP: {said or heard}",
                hint="the account needs a shell or `ForceCommand internal-sftp`, and a login script that prints nothing to "
                "whoever is no terminal; does `sftp` work by hand?",
                subject=self._pipe.host,
            )
        body, at, found = self._pipe.read(size - 5), 0, {}
        while at < len(body):
            name, at = read_string(body, at)
            value, at = read_string(body, at)
            found[name.decode("ascii", "replace")] = value
        return found

    def _ask_limits(self) -> tuple[int, int]:
        """Return how many bytes a READ and a WRITE may have: the server's limits, else what every server accepts."""
        if LIMITS not in self.extensions:
            return 32_768, 32_768
        reply = self.ask(EXTENDED, encode_string(LIMITS))
        if reply.kind != EXTENDED_REPLY or len(reply.body) < 32:
            return 32_768, 32_768
        _, reads, writes, _ = struct.unpack_from(">QQQQ", reply.body)
        return min(reads or 32_768, 261_120), min(writes or 32_768, 261_120)


def encode_string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">I", len(raw)) + raw


def read_string(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + struct.unpack_from(">I", body, at)[0]
    return body[at + 4 : end], end


def read_attributes(body: bytes, at: int) -> tuple[Attributes, int]:
    flags = struct.unpack_from(">I", body, at)[0]
    at += 4
    size = mode = mtime = 0
    if flags & _SIZE:
        size, at = struct.unpack_from(">Q", body, at)[0], at + 8
    if flags & _OWNER:
        at += 8
    if flags & _MODE:
        mode, at = struct.unpack_from(">I", body, at)[0], at + 4
    if flags & _TIMES:
        mtime, at = struct.unpack_from(">II", body, at)[1], at + 8
    if flags & _EXTENSIONS:
        count, at = struct.unpack_from(">I", body, at)[0], at + 4
        for _ in range(2 * count):
            _, at = read_string(body, at)
    return Attributes(size, mode, mtime), at


def size_attribute(size: int) -> bytes:
    return struct.pack(">IQ", _SIZE, size)


def mode_attribute(mode: int) -> bytes:
    return struct.pack(">II", _MODE, mode)


NO_ATTRIBUTES = struct.pack(">I", 0)


def status_error(code: int) -> OSError:
    """Return the OSError of a status. Version 3 has few codes: "Failure" may be a full disk, an existing name, a folder …"""
    if code == NO_SUCH_FILE:
        return FileNotFoundError(errno.ENOENT, "No such file")
    if code == DENIED:
        return PermissionError(errno.EACCES, "Permission denied")
    if code == UNSUPPORTED:
        return OSError(errno.ENOSYS, "the SFTP server does not support it")
    return OSError(errno.EIO, f"the SFTP server fails without a reason (status {code})")
