"""Send files of one node to another without their bytes passing through this machine.

It is a push (`push`) whose reader is the source node. This process decides what is sent and which files get names. The
source reports what it read of each piece, and what the target answered. The source's agent runs the target's
receiving program over its own ssh (`stores.agent.forward`). Its login there uses this process's key by agent forwarding.

`KeyAgent` is an SSH agent in this process that signs one login of a node at another. The key stays here. The agent is
forwarded to one session, for as long as the login takes. It lists one key, the one that this process logged in with at
the other node, and signs only that user's login with it. If the asking ssh names its connection (OpenSSH 8.9 and later,
`session-bind@openssh.com`), it signs only for a connection to that host key. Older ssh versions do not bind the
signature to the host.

Source: draft-ietf-sshm-ssh-agent; RFC 4252 §7; OpenSSH's PROTOCOL.agent and PROTOCOL (publickey-hostbound).
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from tidemark.errors import HostKeyError, UnreachableError
from tidemark.stores.agent.frames import FAILED, PIECES, RANGE
from tidemark.stores.python.bundle import encode_forwarding, encode_program, start_command
from tidemark.stores.python.session import FarPool, FarSession, start_far_end
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.stores.ssh.login import Limits, Login
from tidemark.stores.ssh.sink import Frame
from tidemark.transfer.items import SendItem, Wire
from tidemark.transfer.stream.push import Push, PushConnection, Reader
from tidemark.transfer.stream.session import Session

ALIAS = "tidemark-target"  # the target's name in the file of known hosts, whatever its address
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes128-ctr"
ANOTHER_KEY = "Host key verification failed"  # in ssh's error message


class NoDirectPath(Exception):
    """The source does not reach the target; its text is why."""


def open_direct(wire: Wire, path: DirectPath, items: Sequence[SendItem]) -> Session:
    """Make one round (`transfer.attempts`) from the path's end to its target."""
    return Session(wire, items, partial(Push, path=path, make=DirectConnection))


class DirectConnection(PushConnection):
    """A connection to the source that sends only what to read, and which files to name."""

    said = ""  # the error of the connection between the nodes, once it is lost

    @property
    def last_words(self) -> str:
        return self.said or super().last_words

    def _open_reader(self, frame: int, digest: bool) -> Reader:
        self.session.begin_operation("forward", frame, digest, self._push.session.wire.options.reserve)
        return self

    def answer(self, asked: bytes) -> None:
        numbers, at = [], 0
        while at < len(asked):
            number, *_, name = RANGE.unpack_from(asked, at)
            numbers.append(number)
            at += RANGE.size + name
        self._send_frame(PIECES, numbers, [asked], memoryview(b""))

    def _deliver_frame(self, frame: Frame | None) -> None:
        if frame is not None and frame.kind == FAILED:  # the connection between the nodes
            self.said, frame = str(json.loads(bytes(frame.words))[1]), None
        super()._deliver_frame(frame)


class DirectPath(PythonStore):
    """The source over a connection of its own, with an open ssh from there to `target`.

    Raises NoDirectPath if the source does not reach the target, HostKeyError if it meets another host key there than we
    do, UnreachableError and other errors of opening a connection to either of them.
    """

    def __init__(self, source: PythonStore, target: PythonStore) -> None:
        connection = source.connection.make_another()
        try:
            first = _reach_target(connection, source.root, target)
        except BaseException:
            connection.drop()
            raise
        super().__init__(source.url, source.root, connection, first)
        self._forwarding = _Forwarding(connection, source.root, first, target)
        self.pool = self._forwarding

    def ensure_session(self, target: PythonStore) -> None:
        """Open the session to the target again if it was lost. `target`: its open store. Raises as the constructor."""
        self._forwarding.target = target
        self.pool.return_session(self.pool.pop_session())


class _Forwarding(FarPool):
    def __init__(self, connection: SshConnection, root: str, first: FarSession, target: PythonStore) -> None:
        super().__init__(connection, root, first)
        self.target = target

    def _start_session(self) -> FarSession:
        return _reach_target(self._connection, self._root, self.target)


def _reach_target(connection: SshConnection, root: str, target: PythonStore) -> FarSession:
    """Open a session with the source's program, and from there an ssh to the target's program. Raises as `DirectPath`."""
    host_key, key = target.connection.host_and_user_keys()
    login, limits = target.connection.login, connection.limits
    if key is None:
        raise NoDirectPath("the target is logged in to by a password, which is lent to nobody")
    known = f"{ALIAS} {host_key.get_name()} {host_key.get_base64()}\n"
    lent, seconds = KeyAgent(key, login.user, host_key), limits.connect + limits.handshake
    over = threading.Timer(seconds + limits.stall, lent.close)  # however long the source takes to answer
    over.daemon = True
    over.start()
    try:
        session, _ = start_far_end(connection, root or "/", agent=lent)
        if session is None:
            raise UnreachableError(f"{connection.login.name} does not start python3 any more", hint="run again")
        asked = (ssh_command(login, limits, start_command(nice=target.connection.nice)), known, seconds)
        said = session.send_pieces(
            "reach", asked, [encode_forwarding(), b"".join(encode_program(target.root or "/", target.connection.memory))]
        )
    finally:
        over.cancel()
        lent.close()
    if said:
        session.close()
        if ANOTHER_KEY in said:
            raise HostKeyError(
                f"{connection.login.name} meets another host key at {login.name} than {login.host_key}",
                hint="who answers there, seen from that node? docs/runbooks/host-key-changed.md",
                subject=login.host,
            )
        raise NoDirectPath(said)
    return session


def ssh_command(login: Login, limits: Limits, remote: str) -> list[str]:
    """Return the source's ssh command that runs `remote` at the target. "{known}": the file of known hosts. Pure."""
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": "{known}",
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": ALIAS,
        "CheckHostIP": "no",
        "IdentityFile": "none",  # the lent key alone
        "PreferredAuthentications": "publickey",
        "ClearAllForwardings": "yes",
        "ControlPath": "none",
        "ConnectTimeout": str(max(1, int(limits.connect))),
        "ServerAliveInterval": str(max(1, int(limits.stall / 3))),
        "ServerAliveCountMax": "3",
        "Ciphers": CIPHERS,
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", "-a", "-T", *words, "-p", str(login.port), "-l", login.user, "--", login.host, remote]


FAILURE, SUCCESS = b"\x05", b"\x06"
_IDENTITIES, _IDENTITIES_ANSWER, _SIGN, _SIGN_ANSWER, _EXTENSION = 11, 12, 13, 14, 27
_USERAUTH_REQUEST = 50
_METHODS = ("publickey", "publickey-hostbound-v00@openssh.com")
_RSA = {2: "rsa-sha2-256", 4: "rsa-sha2-512"}  # by the request's flags
_LONGEST = 1 << 18  # bytes of a request, as ssh-agent has it


class KeyAgent:
    """An SSH agent that uses `key` for logins of `user` at the host with `host_key`. Pass it to a session as its agent."""

    def __init__(self, key: paramiko.PKey, user: str, host_key: paramiko.PKey) -> None:
        self._key = key
        self._user = user
        self._host = bytes(host_key.asbytes())
        self._open = True

    def __call__(self, channel: paramiko.Channel) -> None:
        """Serve an agent channel on a new thread: the calling thread of the connection must not wait."""
        threading.Thread(target=self._serve_channel, args=(channel,), name="tidemark-agent", daemon=True).start()

    def close(self) -> None:
        """Stop signing."""
        self._open = False

    def _serve_channel(self, channel: paramiko.Channel) -> None:
        asked = AgentRequests(self._key, self._user, self._host)
        with suppress(EOFError, OSError, paramiko.SSHException, struct.error):
            stream = channel.makefile("rb")
            while self._open and len(head := stream.read(4)) == 4:
                (size,) = struct.unpack(">I", head)
                request = stream.read(size) if 0 < size <= _LONGEST else b""
                answer = asked.answer_request(request) if self._open and request else FAILURE
                channel.sendall(struct.pack(">I", len(answer)) + answer)
                if not request:
                    break
        channel.close()


class AgentRequests:
    """The requests of one agent channel, from the first to the last."""

    def __init__(self, key: paramiko.PKey, user: str, host: bytes) -> None:
        self._key = key
        self._user = user
        self._host = host
        self._bound: bytes | None = None  # the connection it asks for; b"": to another host, so for none

    def answer_request(self, request: bytes) -> bytes:
        """Return the answer to a request without its length; FAILURE if it is malformed, unknown or not allowed."""
        message = paramiko.Message(request[1:])
        try:
            if request[0] == _IDENTITIES:
                return self._list_identities()
            if request[0] == _SIGN:
                return self._sign_login(message.get_string(), message.get_string(), message.get_int())
            if request[0] == _EXTENSION and message.get_text() == "session-bind@openssh.com":
                return self._bind_session(message.get_string(), message.get_string(), message.get_string())
        except (ValueError, struct.error, paramiko.SSHException):
            return FAILURE
        return FAILURE

    @property
    def _key_blobs(self) -> list[bytes]:
        """The public key in the forms that a server may know, its certificate first if it has one."""
        certificate = getattr(self._key.public_blob, "key_blob", None)
        return [*([bytes(certificate)] if certificate else []), bytes(self._key.asbytes())]

    def _list_identities(self) -> bytes:
        listed = paramiko.Message()
        listed.add_byte(bytes([_IDENTITIES_ANSWER]))
        listed.add_int(len(self._key_blobs))
        for blob in self._key_blobs:
            listed.add_string(blob)
            listed.add_string("lent by tidemark")
        return bytes(listed.asbytes())

    def _bind_session(self, host: bytes, connection: bytes, signature: bytes) -> bytes:
        """Bind this channel to a connection that `host` signed. FAILURE if it is another host or another connection."""
        kind = paramiko.Message(host).get_text()
        key = paramiko.PKey.from_type_string(kind, host) if host == self._host else None
        known = key is not None and key.verify_ssh_sig(connection, paramiko.Message(signature))
        self._bound = connection if known and self._bound in (None, connection) else b""
        return SUCCESS if self._bound else FAILURE

    def _sign_login(self, blob: bytes, data: bytes, flags: int) -> bytes:
        if blob not in self._key_blobs or not self._is_login(data, blob):
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
        """Whether `data` is a login request of our user with this key, and nothing else (RFC 4252 §7)."""
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
