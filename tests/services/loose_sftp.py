"""OpenSSH's sftp-server with the habits of those made with Go's pkg/sftp, as a subsystem of an sshd.

Seen at `rclone serve sftp` 1.60: it announces hard links and makes none; a READ on a handle that writes is taken for a WRITE
of as many zeros; a file that must be new may be an old one; there is no fsync, and a READ brings no more than 32 KB (here
less). And as some others it sets no attributes, so it cuts no file. One request at a time.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

from tests.services.sshd import SFTP_SERVERS

ROOT = Path(__file__).resolve().parents[2]
INIT, OPEN, READ, WRITE, SETSTAT, FSETSTAT, EXTENDED, STATUS, HANDLE = 1, 3, 5, 6, 9, 10, 200, 101, 102
WRITES, EXCLUSIVE = 0x2, 0x20
MOST_READ = 10_000
ANNOUNCED = ("posix-rename@openssh.com", "hardlink@openssh.com")


def server_options() -> dict[str, str]:
    """Of an sshd whose far end is this, and no shell."""
    command = f"env PYTHONPATH={ROOT} {sys.executable} -m {__name__}"
    return {"Subsystem": f"sftp {command}", "ForceCommand": command}


class LooseServer:
    """Packets in and out are without their length."""

    def __init__(self, inner: subprocess.Popen[bytes]) -> None:
        self._inner = inner
        self._writing: set[bytes] = set()

    def answer(self, packet: bytes) -> bytes:
        kind, number, rest = packet[0], packet[1:5], packet[5:]
        if kind == INIT:
            self._ask(packet)
            names = b"".join(_text(name.encode()) + _text(b"1") for name in ANNOUNCED)
            return b"\x02" + struct.pack(">I", 3) + names
        if kind == EXTENDED:
            name = _first(rest).decode()
            if name == "hardlink@openssh.com":
                return _status(number, 0)
            return self._ask(packet) if name in ANNOUNCED else _status(number, 8)
        if kind in (SETSTAT, FSETSTAT):
            return _status(number, 8)
        if kind == OPEN:
            return self._open(number, rest)
        if kind == READ:
            return self._read(number, rest)
        return self._ask(packet)

    def _open(self, number: bytes, rest: bytes) -> bytes:
        place = _first(rest)
        flags = int.from_bytes(rest[4 + len(place) : 8 + len(place)], "big")
        asked = _text(place) + struct.pack(">I", flags & ~EXCLUSIVE) + rest[8 + len(place) :]
        reply = self._ask(bytes([OPEN]) + number + asked)
        if reply[0] == HANDLE:
            (self._writing.add if flags & WRITES else self._writing.discard)(_first(reply[5:]))
        return reply

    def _read(self, number: bytes, rest: bytes) -> bytes:
        handle = _first(rest)
        offset, length = struct.unpack_from(">QI", rest, 4 + len(handle))
        if handle in self._writing:
            return self._ask(bytes([WRITE]) + number + _text(handle) + struct.pack(">Q", offset) + _text(bytes(length)))
        return self._ask(bytes([READ]) + number + _text(handle) + struct.pack(">QI", offset, min(length, MOST_READ)))

    def _ask(self, packet: bytes) -> bytes:
        assert self._inner.stdin is not None and self._inner.stdout is not None
        self._inner.stdin.write(_text(packet))
        self._inner.stdin.flush()
        return self._inner.stdout.read(int.from_bytes(self._inner.stdout.read(4), "big"))


def _text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _first(body: bytes) -> bytes:
    return body[4 : 4 + int.from_bytes(body[:4], "big")]


def _status(number: bytes, code: int) -> bytes:
    return bytes([STATUS]) + number + struct.pack(">I", code) + _text(b"") + _text(b"")


def main() -> None:
    """Until the client hangs up, or says what is no packet."""
    real = next(path for path in SFTP_SERVERS if Path(path).exists())
    with subprocess.Popen([real], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as inner:
        server = LooseServer(inner)
        while len(head := sys.stdin.buffer.read(4)) == 4:
            size = int.from_bytes(head, "big")
            if not 5 <= size < 1 << 20:
                break
            sys.stdout.buffer.write(_text(server.answer(sys.stdin.buffer.read(size))))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
