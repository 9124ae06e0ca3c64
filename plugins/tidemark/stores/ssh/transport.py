"""paramiko's transport, two round trips shorter and with clear errors for broken packets; fast sending on a channel.

`BulkSender` encrypts many packets into one buffer and writes them in one system call. paramiko copies each packet several
times and writes it by itself, which costs most of a push's CPU time (research/transfer.md §1.2). Windows, rekeying and
the order among channels stay paramiko's: its locks are taken as its own sender takes them. As `packets`, this is for the
versions of paramiko in `packets.KNOWN` alone.
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
_RENAMED = {"curve25519-sha256": "curve25519-sha256@libssh.org"}  # RFC 8731's name, which paramiko lacks → the older one


def _on_refused(channel: paramiko.Channel, said: paramiko.Message) -> None:
    """Record that the server refused a request. paramiko only closes the channel, as if it had ended."""
    channel.refused = True
    channel._request_failed(said)


class SshTransport(paramiko.Transport):  # type: ignore[misc]
    """paramiko's transport, which ends with an SSHException for any corrupt packet.

    paramiko's thread ends with any exception of decrypting and parsing (cryptography's InvalidTag, ValueError, also from
    nacl, struct.error …) and raises it in all threads that wait for the connection.
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
        """Log in by a key. Unlike paramiko's, does not wait for an answer before it sends the key."""
        over = event or threading.Event()
        self.auth_handler = _KeyAtOnce(self)
        self.auth_handler.auth_publickey(username, key, over)
        left: list[str] = [] if event else self.auth_handler.wait_for_response(over)
        return left

    def execute(self, channel: paramiko.Channel, command: str) -> None:
        """Start a command without waiting for the answer, so that its input can follow at once. After a refusal the channel
        is closed: it is at its end."""
        request = paramiko.Message()
        request.add_byte(bytes([paramiko.common.MSG_CHANNEL_REQUEST]))
        request.add_int(channel.remote_chanid)
        request.add_string("exec")
        request.add_boolean(True)
        request.add_string(command)
        self._send_user_message(request)


class _KeyAtOnce(paramiko.AuthHandler):  # type: ignore[misc]
    """Sends the service request and the key together (RFC 4253 §10 lets a client continue before the answer).

    sshd delays small packets until earlier ones are acknowledged (Nagle). So what it sends after the login joins its answer
    and does not delay the first channel. This saves one round trip.
    """

    _at_once = False

    def _request_auth(self) -> None:
        # Set before the request: another thread handles its answer and ignores it then.
        self._at_once = "rsa" not in self.private_key.get_name() or "server-sig-algs" in self.transport.server_extensions
        super()._request_auth()
        if self._at_once:  # the signature algorithm is known
            accepted = paramiko.Message()
            accepted.add_string("ssh-userauth")
            accepted.rewind()
            super()._parse_service_accept(accepted)

    def _parse_service_accept(self, message: Any) -> None:
        if not self._at_once:
            super()._parse_service_accept(message)


GROUP = 16  # packets in one system call
_CHANNEL_DATA = 94
_HEAD = struct.Struct(">BBII")  # padding, type, channel, bytes
_TAG, _LENGTH, _BLOCK = 16, 4, 16

Bytes = bytes | bytearray | memoryview


class BulkSender:
    """Sends bytes on one channel. Not thread-safe."""

    def __init__(self, channel: paramiko.Channel, packetizer: BulkPacketizer) -> None:
        self._channel = channel
        self._packets = packetizer
        room = int(channel.out_max_packet_size) + 2 * _BLOCK + _HEAD.size
        self._plain = memoryview(bytearray(room))
        self._out = memoryview(bytearray(GROUP * (room + _LENGTH + _TAG)))

    def send_pieces(self, pieces: Sequence[Bytes]) -> None:
        """Send all bytes of `pieces` as the far end's window allows. Raises as `Channel.sendall` does."""
        views = [memoryview(piece) for piece in pieces if len(piece)]
        left = sum(len(view) for view in views)
        views.reverse()
        while left:
            sizes = self._window_sizes(left)
            left -= sum(sizes)
            self._send_when_clear(views, sizes)

    def _window_sizes(self, left: int) -> list[int]:
        """Return the sizes of the next packets: as much of `left` as the window allows. Waits for at least one byte."""
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
        """Write packets, but not during a key exchange."""
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
    """Copy `size` bytes to `plain`, starting with the last view. Removes what was copied from `views`."""
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
