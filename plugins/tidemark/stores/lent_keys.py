"""An SSH agent of this process that a node may ask for one login at another: it signs, the key itself stays here.

Offered by agent forwarding to one session, for as long as the login takes. It names one key, the one that this process
logged in with at the other node, and signs nothing but that user's login with it; where the asking ssh says for which
connection (OpenSSH 8.9 and later, `session-bind@openssh.com`), for a connection to that host key alone.
Source: draft-ietf-sshm-ssh-agent; RFC 4252 §7; OpenSSH's PROTOCOL.agent and PROTOCOL (publickey-hostbound).
"""

from __future__ import annotations

import struct
import threading
from contextlib import suppress

from tidemark.stores.ssh.lean_paramiko import paramiko

FAILURE, SUCCESS = b"\x05", b"\x06"
_IDENTITIES, _IDENTITIES_ANSWER, _SIGN, _SIGN_ANSWER, _EXTENSION = 11, 12, 13, 14, 27
_USERAUTH_REQUEST = 50
_METHODS = ("publickey", "publickey-hostbound-v00@openssh.com")
_RSA = {2: "rsa-sha2-256", 4: "rsa-sha2-512"}  # by the request's flags
_LONGEST = 1 << 18  # bytes of a request, as ssh-agent has it


class LentKeys:
    """`key` for logins of `user` at the host with `host_key`. Give it to a session as its agent."""

    def __init__(self, key: paramiko.PKey, user: str, host_key: paramiko.PKey) -> None:
        self._key = key
        self._user = user
        self._host = bytes(host_key.asbytes())
        self._open = True

    def __call__(self, channel: paramiko.Channel) -> None:
        """Somebody there asks for the agent. Called by the connection's thread, which must not wait."""
        threading.Thread(target=self._serve, args=(channel,), name="tidemark-agent", daemon=True).start()

    def close(self) -> None:
        """No more is signed."""
        self._open = False

    def _serve(self, channel: paramiko.Channel) -> None:
        asked = Asked(self._key, self._user, self._host)
        with suppress(EOFError, OSError, paramiko.SSHException, struct.error):
            stream = channel.makefile("rb")
            while self._open and len(head := stream.read(4)) == 4:
                (size,) = struct.unpack(">I", head)
                request = stream.read(size) if 0 < size <= _LONGEST else b""
                answer = asked.answer(request) if self._open and request else FAILURE
                channel.sendall(struct.pack(">I", len(answer)) + answer)
                if not request:
                    break
        channel.close()


class Asked:
    """One that asks the agent, from its first request to its last."""

    def __init__(self, key: paramiko.PKey, user: str, host: bytes) -> None:
        self._key = key
        self._user = user
        self._host = host
        self._bound: bytes | None = None  # the connection it asks for; b"": to another host, so for none

    def answer(self, request: bytes) -> bytes:
        """To a request without its length. What cannot be read, is not known or not allowed is a failure."""
        message = paramiko.Message(request[1:])
        try:
            if request[0] == _IDENTITIES:
                return self._identities()
            if request[0] == _SIGN:
                return self._signed(message.get_string(), message.get_string(), message.get_int())
            if request[0] == _EXTENSION and message.get_text() == "session-bind@openssh.com":
                return self._bind(message.get_string(), message.get_string(), message.get_string())
        except (ValueError, struct.error, paramiko.SSHException):
            return FAILURE
        return FAILURE

    @property
    def _blobs(self) -> list[bytes]:
        """The key as a server may know it; with its certificate first, where it has one."""
        certificate = getattr(self._key.public_blob, "key_blob", None)
        return [*([bytes(certificate)] if certificate else []), bytes(self._key.asbytes())]

    def _identities(self) -> bytes:
        listed = paramiko.Message()
        listed.add_byte(bytes([_IDENTITIES_ANSWER]))
        listed.add_int(len(self._blobs))
        for blob in self._blobs:
            listed.add_string(blob)
            listed.add_string("lent by tidemark")
        return bytes(listed.asbytes())

    def _bind(self, host: bytes, connection: bytes, signature: bytes) -> bytes:
        """The asking ssh proves that its connection is to `host`, which signed it."""
        kind = paramiko.Message(host).get_text()
        key = paramiko.PKey.from_type_string(kind, host) if host == self._host else None
        known = key is not None and key.verify_ssh_sig(connection, paramiko.Message(signature))
        self._bound = connection if known and self._bound in (None, connection) else b""
        return SUCCESS if self._bound else FAILURE

    def _signed(self, blob: bytes, data: bytes, flags: int) -> bytes:
        if blob not in self._blobs or not self._is_login(data, blob):
            return FAILURE
        algorithm = None
        if self._key.get_name() == "ssh-rsa":
            algorithm = next((name for flag, name in _RSA.items() if flags & flag), None)
            if algorithm is None:  # SHA-1
                return FAILURE
        signed = self._key.sign_ssh_data(data, algorithm)
        answer = paramiko.Message()
        answer.add_byte(bytes([_SIGN_ANSWER]))
        answer.add_string(signed if isinstance(signed, bytes) else signed.asbytes())
        return bytes(answer.asbytes())

    def _is_login(self, data: bytes, blob: bytes) -> bool:
        """RFC 4252 §7: what is signed is a login of our user with this key, and nothing else."""
        said = paramiko.Message(data)
        connection, kind = said.get_string(), said.get_byte()
        user, service, method = said.get_text(), said.get_text(), said.get_text()
        shown, _, key = said.get_boolean(), said.get_text(), said.get_string()
        host = said.get_string() if method == _METHODS[1] else self._host
        return (
            kind == bytes([_USERAUTH_REQUEST])
            and (user, service) == (self._user, "ssh-connection")
            and method in _METHODS
            and shown
            and key == blob
            and host == self._host
            and not said.get_remainder()
            and self._bound in (None, connection)
        )
