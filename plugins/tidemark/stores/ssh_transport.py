"""paramiko's transport, two round trips shorter and plain about broken packets."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from tidemark.stores.lean_paramiko import paramiko
from tidemark.stores.packets import BulkPacketizer

_EXPECTED: tuple[type[Exception], ...] = (paramiko.SSHException, EOFError, OSError)
_KEX: dict[str, Any] = paramiko.Transport._kex_info
_RENAMED = {"curve25519-sha256": "curve25519-sha256@libssh.org"}  # RFC 8731's name, which paramiko lacks: its older one


def _refused(channel: paramiko.Channel, said: paramiko.Message) -> None:
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
        paramiko.common.MSG_CHANNEL_FAILURE: _refused,
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
