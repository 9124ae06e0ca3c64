"""paramiko's transport, two round trips shorter and plain about broken packets; and a channel's bytes on their way out.

`BulkSender` encrypts many packets into one buffer and gives them to the kernel in one call. paramiko builds each
packet from copies and sends it by itself, which costs most of a push's CPU time (research/transfer.md §1.2).
Windows, rekeying and the order among channels stay paramiko's: its locks and gates are passed as its own sender
passes them. As in `packets`, this is for the versions of paramiko in KNOWN alone.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.stores.ssh.packets import BulkPacketizer

_EXPECTED: tuple[type[Exception], ...] = (paramiko.SSHException, EOFError, OSError)
_KEX: dict[str, Any] = paramiko.Transport._kex_info
_RENAMED = {"curve25519-sha256": "curve25519-sha256@libssh.org"}  # RFC 8731's name, which paramiko lacks: its older one


def _on_refused(channel: paramiko.Channel, said: paramiko.Message) -> None:
    """What was asked of it: paramiko closes it, as if it had ended."""
    channel.refused = True
    channel._request_failed(said)


class SshTransport(paramiko.Transport):  # type: ignore[misc]
    """A packet that a flipped bit broke ends it with an SSHException, wherever in it the bit was.

    paramiko's thread dies of whatever decrypting and parsing raise (InvalidTag of cryptography, ValueError also of nacl,
    struct.error …) and hands that to everybody who waits for the connection.
    """

    _kex_info: ClassVar = {**{new: _KEX[old] for new, old in _RENAMED.items() if old in _KEX}, **_KEX}
    _preferred_kex = (*paramiko.Transport._preferred_kex, *(new for new, old in _RENAMED.items() if old in _KEX))

    _channel_handler_table: ClassVar = {
        **paramiko.Transport._channel_handler_table,
        paramiko.common.MSG_CHANNEL_FAILURE: _on_refused,
    }

    def get_exception(self) -> Exception | None:
        error: Exception | None = super().get_exception()
        if error is None or isinstance(error, _EXPECTED):
            return error
        broken: Exception = paramiko.SSHException(f"a packet came broken: {type(error).__name__} {error}".rstrip())
        broken.__cause__ = error
        return broken

    def _get_engine(self, name: str, key: bytes, iv: Any = None, operation: Any = None, aead: bool = False) -> Any:
        engine = super()._get_engine(name, key, iv, operation, aead)
        if aead and operation is self._DECRYPT and isinstance(self.packetizer, BulkPacketizer):
            self.packetizer.note_key(engine, key)
        return engine

    def auth_publickey(self, username: str, key: paramiko.PKey, event: threading.Event | None = None) -> list[str]:
        """As paramiko's, which waits for an answer before it shows the key."""
        over = event or threading.Event()
        self.auth_handler = _KeyAtOnce(self)
        self.auth_handler.auth_publickey(username, key, over)
        left: list[str] = [] if event else self.auth_handler.wait_for_response(over)
        return left

    def execute(self, channel: paramiko.Channel, command: str) -> None:
        """As `channel.exec_command`, but what the command is to read may follow at once. Where it is refused, the session
        is closed: at its end from the beginning."""
        request = paramiko.Message()
        request.add_byte(bytes([paramiko.common.MSG_CHANNEL_REQUEST]))
        request.add_int(channel.remote_chanid)
        request.add_string("exec")
        request.add_boolean(True)
        request.add_string(command)
        self._send_user_message(request)


class _KeyAtOnce(paramiko.AuthHandler):  # type: ignore[misc]
    """Asks for the service and shows its key in one breath (RFC 4253 §10 lets a client go on before the answer).

    sshd holds small packets back until the ones before are acknowledged (Nagle): so what it says behind the login joins its
    answer, and does not hold up the first channel. A round trip, as measured.
    """

    _at_once = False

    def _request_auth(self) -> None:
        # Before the question: its answer comes in another thread, which then leaves it to us.
        self._at_once = "rsa" not in self.private_key.get_name() or "server-sig-algs" in self.transport.server_extensions
        super()._request_auth()
        if self._at_once:  # how it is signed is known
            accepted = paramiko.Message()
            accepted.add_string("ssh-userauth")
            accepted.rewind()
            super()._parse_service_accept(accepted)

    def _parse_service_accept(self, message: Any) -> None:
        if not self._at_once:
            super()._parse_service_accept(message)


GROUP = 16  # packets handed to the kernel at once
_CHANNEL_DATA = 94
_HEAD = struct.Struct(">BBII")  # padding, type, channel, bytes
_TAG, _LENGTH, _BLOCK = 16, 4, 16

Bytes = bytes | bytearray | memoryview


class BulkSender:
    """`send_pieces` is for one thread."""

    def __init__(self, channel: paramiko.Channel, packetizer: BulkPacketizer) -> None:
        self._channel = channel
        self._packets = packetizer
        room = int(channel.out_max_packet_size) + 2 * _BLOCK + _HEAD.size
        self._plain = memoryview(bytearray(room))
        self._out = memoryview(bytearray(GROUP * (room + _LENGTH + _TAG)))

    def send_pieces(self, pieces: Sequence[Bytes]) -> None:
        """All bytes of `pieces`, when the far end's window lets them. Raises as `Channel.sendall` does."""
        views = [memoryview(piece) for piece in pieces if len(piece)]
        left = sum(len(view) for view in views)
        views.reverse()
        while left:
            sizes = self._window_sizes(left)
            left -= sum(sizes)
            self._send_when_clear(views, sizes)

    def _window_sizes(self, left: int) -> list[int]:
        """Sizes of the next packets: what of `left` the window takes now, at least something."""
        channel = self._channel
        sizes: list[int] = []
        with channel.lock:
            while left and len(sizes) < GROUP and (channel.out_window_size or not sizes):
                size = channel._wait_for_send_window(left)
                if not size:
                    raise OSError("the channel is closed")
                sizes.append(size)
                left -= size
        return sizes

    def _send_when_clear(self, views: list[memoryview], sizes: list[int]) -> None:
        """While keys are exchanged nobody sends data."""
        transport = self._channel.transport
        while True:
            transport.clear_to_send.wait(0.1)
            if not transport.active:
                raise EOFError
            with transport.clear_to_send_lock:
                if transport.clear_to_send.is_set():
                    self._write_packets(views, sizes)
                    return

    def _write_packets(self, views: list[memoryview], sizes: list[int]) -> None:
        packets, number = self._packets, int(self._channel.remote_chanid)
        with packets.encrypting_packets() as encrypt:
            end = 0
            for size in sizes:
                padding = _BLOCK - (1 + 9 + size) % _BLOCK
                padding += _BLOCK if padding < 4 else 0
                length = _HEAD.size + size + padding
                _HEAD.pack_into(self._plain, 0, padding, _CHANNEL_DATA, number, size)
                _gather_bytes(views, self._plain, _HEAD.size, size)
                body = end + _LENGTH
                self._out[end:body] = length.to_bytes(_LENGTH, "big")
                encrypt(self._plain[:length], self._out[end:body], self._out[body : body + length + _TAG])
                end = body + length + _TAG
            packets.write_packets(self._out[:end], len(sizes))


def _gather_bytes(views: list[memoryview], plain: memoryview, at: int, size: int) -> None:
    """Move `size` bytes from the last of `views` on to `plain`."""
    end = at + size
    while at < end:
        view = views[-1]
        taken = min(len(view), end - at)
        plain[at : at + taken] = view[:taken]
        at += taken
        if taken == len(view):
            views.pop()
        else:
            views[-1] = view[taken:]
