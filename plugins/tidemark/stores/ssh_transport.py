"""paramiko's transport: plain about broken packets, and starts a command without waiting for the answer.

Showing the key without waiting for the service to be accepted saves nothing: sshd's two small answers go out one round trip
apart all the same (Nagle), as measured.
"""

from __future__ import annotations

from tidemark.stores.lean_paramiko import paramiko

_EXPECTED: tuple[type[Exception], ...] = (paramiko.SSHException, EOFError, OSError)


class SshTransport(paramiko.Transport):  # type: ignore[misc]
    """A packet that a flipped bit broke ends it with an SSHException, wherever in it the bit was.

    paramiko's thread dies of whatever decrypting and parsing raise (InvalidTag of cryptography, ValueError also of nacl,
    struct.error …) and hands that to everybody who waits for the connection.
    """

    def get_exception(self) -> Exception | None:
        error: Exception | None = super().get_exception()
        if error is None or isinstance(error, _EXPECTED):
            return error
        broken: Exception = paramiko.SSHException(f"a packet came broken: {type(error).__name__} {error}".rstrip())
        broken.__cause__ = error
        return broken

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
