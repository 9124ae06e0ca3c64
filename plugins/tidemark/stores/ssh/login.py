"""Log in to an SSH server: strict host key, public key, AES-GCM first, a time limit on each step.

The host key must be the one of the settings; nothing is ever added by itself.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidemark.errors import HostKeyError, PermanentError, PermissionDeniedError, UsageError
from tidemark.stores.ssh.dial import CONNECT_SECONDS, Dialled, dial_server
from tidemark.stores.ssh.expired_logins import expired
from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.stores.ssh.packets import BulkPacketizer, packetizer_class
from tidemark.stores.ssh.transport import SshTransport

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # a fifth to two fifths faster than CTR with a MAC
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)

KINDS = ("ed25519", "ecdsa", "rsa")  # of host keys
_IN_COMMON = {  # what two ends need: by paramiko's word for it sshd_config's, and the first of ours
    "kex algorithm": ("KexAlgorithms", SshTransport._preferred_kex[:4]),
    "host key": ("HostKeyAlgorithms", SshTransport._preferred_keys[:4]),
    "ciphers": ("Ciphers", (*CIPHERS, *SshTransport._preferred_ciphers[:2])),
    "macs": ("MACs", SshTransport._preferred_macs[:4]),
}
_SHOWN: dict[str, str] = {}  # the kind of each host key that was right, by its fingerprint


@dataclass(frozen=True)
class Login:
    """Where to log in, as whom, with which key, and which host key to expect."""

    host: str
    port: int
    user: str
    host_key: str  # the server's "SHA256:…" fingerprint
    key: str  # private key file; "": the agent's keys and the usual files

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


@dataclass(frozen=True)
class Limits:
    """Seconds until we give up: on the TCP connection, on handshake and login, on a peer that stopped moving, and on a far
    end that says nothing for so long though its server is there (a disk that hangs, a process that was stopped)."""

    connect: float = CONNECT_SECONDS
    handshake: float = 20.0
    stall: float = 30.0
    silence: float = 600.0


def connect_and_login(login: Login, limits: Limits, dialled: Dialled | None = None) -> SshTransport:
    """A connection with the host key compared and the user logged in. `dialled`: it was begun already."""
    sock = dialled.take_socket() if dialled is not None else None
    try:
        transport = _connect_verified(login, limits, sock or dial_server(login.host, login.port, limits.connect))
    except paramiko.IncompatiblePeer as stranger:
        raise _nothing_in_common(login, str(stranger)) from stranger
    try:
        _authenticate_user(transport, login)
        transport.set_keepalive(15)
    except BaseException:
        transport.close()
        raise
    return transport


def _connect_verified(
    login: Login, limits: Limits, sock: socket.socket, tried: frozenset[str] = frozenset()
) -> SshTransport:
    """Keys exchanged, the host key compared.

    A server that has keys of several kinds shows the one it is asked for first: where that is not the one of the settings,
    it is asked for the other kinds, in a connection each. Raises HostKeyError of what it showed first.
    """
    transport = _exchange_keys(login, limits, sock, tried)
    try:
        key = transport.get_remote_server_key()
        kind, shown = _key_kind(key.get_name()), key.fingerprint
        check_host_key(login, shown)
    except HostKeyError as mismatch:
        transport.close()
        other = _by_another_kind(login, limits, tried | {kind}, mismatch) if login.host_key else None
        if other is None:
            raise
        return other
    except BaseException:
        transport.close()
        raise
    _SHOWN[shown] = kind
    return transport


def _by_another_kind(login: Login, limits: Limits, tried: frozenset[str], mismatch: HostKeyError) -> SshTransport | None:
    """None where the server has no key of another kind, or none that is the one of the settings.

    What hinders us to ask carries a note of what it showed before: who reads of it should know of both.
    """
    if tried.issuperset(KINDS):
        return None
    try:
        return _connect_verified(login, limits, dial_server(login.host, login.port, limits.connect), tried)
    except (HostKeyError, paramiko.IncompatiblePeer):
        return None
    except (EOFError, OSError, paramiko.SSHException) as broken:
        broken.add_note(f"; before that {mismatch.message}")
        raise


def _exchange_keys(login: Login, limits: Limits, sock: socket.socket, tried: frozenset[str]) -> SshTransport:
    """Keys exchanged, with a host key of no kind in `tried`; of the one that was right before, where the server has it."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = SshTransport(sock, packetizer_class=packetizer_class())
    try:
        _look_for_stalls(transport, sock, limits)
        transport.banner_timeout = transport.auth_timeout = limits.handshake
        options = transport.get_security_options()
        rest = [cipher for cipher in options.ciphers if cipher not in CIPHERS]
        options.ciphers = [*(cipher for cipher in CIPHERS if cipher in options.ciphers), *rest]
        first = _SHOWN.get(login.host_key.rstrip("="))
        asked = [name for name in options.key_types if _key_kind(name) not in tried]
        options.key_types = sorted(asked, key=lambda name: _key_kind(name) != first)
        transport.start_client(timeout=limits.handshake)
    except BaseException:
        transport.close()
        raise
    return transport


def _look_for_stalls(transport: SshTransport, sock: socket.socket, limits: Limits) -> None:
    """Who writes to a line on which nothing moves is told so after the stall limit.

    The kernel would call it that, too, where a slow reader now and then lets less pass than it wants to send.
    """
    ours = isinstance(transport.packetizer, BulkPacketizer)
    if ours:
        transport.packetizer.stall = limits.stall
    longest = limits.silence if ours else limits.stall
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, int(longest * 1000))


def _key_kind(name: str) -> str:
    """Of a host key, by the name of its algorithm."""
    return next((kind for kind in KINDS if kind in name), name)


def _nothing_in_common(login: Login, said: str) -> PermanentError:
    """For a server that no later try finds another one. `said`: by paramiko."""
    trouble, hint = f"cannot be spoken with: {said}", "is the sshd there a recent one?"
    for word, (keyword, ours) in _IN_COMMON.items():
        if f"no acceptable {word}" in said:
            trouble = f"allows none of our {keyword}"
            hint = f"allow one of them in its sshd_config: {keyword} {','.join(ours)}"
    return PermanentError(f"{login.name} {trouble}", hint=hint, subject=login.host)


def check_host_key(login: Login, shown: str) -> None:
    """HostKeyError unless the server shows the fingerprint of the settings. Nothing is ever added by itself."""
    if login.host_key.rstrip("=") == shown:
        return
    if not login.host_key:
        raise HostKeyError(
            f"no host_key for {login.name}; it shows {shown} (not checked by anybody)",
            hint=f'compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there, then set host_key = "{shown}"',
            subject=login.host,
        )
    raise HostKeyError(
        f"the host key of {login.name} is another one: expected {login.host_key}, got {shown}",
        hint="if the server was set up anew, compare its key there and change host_key; else somebody is in between",
        subject=login.host,
    )


def _authenticate_user(transport: paramiko.Transport, login: Login) -> None:
    tried = []
    for name, key in _load_keys(login):
        try:
            if not transport.auth_publickey(login.user, key):
                return
            tried.append(f"{name} (more than a key is asked for)")
        except paramiko.AuthenticationException as refused:
            if over := expired(login.name, said_at_login(transport)):
                raise over from refused
            if not tried and not transport.is_active():  # paramiko calls a connection that was cut here a refusal
                raise EOFError from refused
            if "timeout" in str(refused).lower():  # and one that went silent
                raise TimeoutError("nothing came back while we logged in") from refused
            tried.append(name)
    raise PermissionDeniedError(
        f"{login.name} accepts none of the keys: {', '.join(tried) or 'there is none'}",
        hint="add the public key to authorized_keys there, or set `key`",
        subject=login.host,
    )


def said_at_login(transport: paramiko.Transport) -> str:
    """The server's banner; `get_banner` has forgotten it once the connection is closed."""
    said = getattr(transport.auth_handler, "banner", None)
    return said.decode("utf-8", "backslashreplace") if isinstance(said, bytes) else ""


def _load_keys(login: Login) -> Iterator[tuple[str, paramiko.PKey]]:
    if login.key:
        yield login.key, _load_key(Path(login.key).expanduser())
        return
    for key in paramiko.Agent().get_keys():
        yield f"agent key {key.fingerprint}", key
    for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
        path = Path("~/.ssh").expanduser() / name
        if _is_there(path):
            yield str(path), _load_key(path)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in another user's home: nobody named it
        return False


def _load_key(path: Path) -> paramiko.PKey:
    """Raises PermissionDeniedError for one that others may write: who does so logs in as whom they like. (That others may
    read one is told by `doctor`: a container is handed such.)"""
    with suppress(OSError):
        if path.stat().st_mode & 0o022:
            raise PermissionDeniedError(
                f"key {path} may be written by others than its owner: it is not used",
                hint=f"chmod 600 {path}, and make sure that it is still yours: ssh-keygen -y -f {path}",
                subject=str(path),
            )
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError as missing:
        raise UsageError(
            f"key file {path} does not exist", hint="set `key` to a private key file", subject=str(path)
        ) from missing
    except (paramiko.PasswordRequiredException, TypeError) as locked:  # the latter of the cryptography library
        raise PermissionDeniedError(
            f"key {path} has a passphrase",
            hint=f"`ssh-add {path}` and leave `key` empty; or `ssh-keygen -p -f {path}` takes the passphrase away",
            subject=str(path),
        ) from locked
    except (paramiko.SSHException, paramiko.UnknownKeyType, OSError, ValueError) as broken:
        raise PermanentError(
            f"key {path} cannot be read: {str(broken).partition('. ')[0]}",
            hint=f"is it a private key that you may read? `ssh-keygen -y -f {path}` says so",
            subject=str(path),
        ) from broken
