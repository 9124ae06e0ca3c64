"""Log in to an SSH server: strict host key, public key, AES-GCM preferred, a time limit on each step.

The host key must be that of the settings. No key is added automatically.
"""

from __future__ import annotations

import io
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_ssh_private_key,
)

from tidemark.connections import Connection, HeldConnection
from tidemark.errors import HostKeyError, PermanentError, PermissionDeniedError, UsageError
from tidemark.stores.ssh.dial import CONNECT_SECONDS, Dialled, dial_server, dial_through
from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.stores.ssh.packets import BulkPacketizer, packetizer_class
from tidemark.stores.ssh.transport import SshTransport

CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")  # faster than CTR with a MAC
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)

KINDS = ("ed25519", "ecdsa", "rsa")  # of host keys
_IN_COMMON = {  # what both ends must share: paramiko's word → sshd_config's keyword, our first choices
    "kex algorithm": ("KexAlgorithms", SshTransport._preferred_kex[:4]),
    "host key": ("HostKeyAlgorithms", SshTransport._preferred_keys[:4]),
    "ciphers": ("Ciphers", (*CIPHERS, *SshTransport._preferred_ciphers[:2])),
    "macs": ("MACs", SshTransport._preferred_macs[:4]),
}
_KEYS = {
    Ed25519PrivateKey: paramiko.Ed25519Key,
    EllipticCurvePrivateKey: paramiko.ECDSAKey,
    RSAPrivateKey: paramiko.RSAKey,
}
_SHOWN: dict[str, str] = {}  # fingerprint of each accepted host key → its kind


@dataclass(frozen=True)
class Login:
    """The server, the user, the private key and the expected host key of a login."""

    host: str
    port: int
    user: str
    host_key: str  # the server's "SHA256:…" fingerprint
    key: str  # private key file; "": the usual files
    connection: HeldConnection | None = None  # of Airflow: it alone says by what, instead of `key`
    through: tuple[str, ...] = ()  # the command whose input and output are the connection, instead of one that is dialled
    agent: bool = False  # log in by the keys of the SSH agent, and no others

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds: for the TCP connection; for handshake and login; for a connection on which nothing moves; for
    a silent command whose server still answers (its disk hangs, its process was stopped)."""

    connect: float = CONNECT_SECONDS
    handshake: float = 20.0
    stall: float = 30.0
    silence: float = 600.0


def connect_and_login(login: Login, limits: Limits, dialled: Dialled | None = None) -> SshTransport:
    """Connect, compare the host key, log in. `dialled`: a TCP connection that was begun before."""
    sock = dialled.take_socket() if dialled is not None else None
    if login.connection is None:
        return _connect_once(login, limits, sock)
    used = login.connection.now
    try:
        return _connect_once(login, limits, sock)
    except PermissionDeniedError:
        if not login.connection.renew(used):
            raise
    return _connect_once(login, limits, None)


def _connect_once(login: Login, limits: Limits, sock: socket.socket | None) -> SshTransport:
    try:
        transport = _connect_verified(login, limits, sock or _reach_server(login, limits))
    except paramiko.IncompatiblePeer as stranger:
        raise _nothing_in_common(login, str(stranger)) from stranger
    try:
        _authenticate_user(transport, login)
        transport.set_keepalive(15)
    except BaseException:
        transport.close()
        raise
    return transport


def _reach_server(login: Login, limits: Limits) -> socket.socket:
    if login.through:
        return dial_through(login.through, limits.connect + limits.handshake)
    return dial_server(login.host, login.port, limits.connect)


def _connect_verified(
    login: Login, limits: Limits, sock: socket.socket, tried: frozenset[str] = frozenset()
) -> SshTransport:
    """Exchange keys and compare the host key.

    A server with several kinds of keys shows the kind that is requested first. If that key is not the one of the settings,
    the other kinds are requested, each by another connection. Raises HostKeyError for the first key shown.
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
    """Connect with host keys of other kinds. Returns None where the server has none, or none that is the settings' one.

    Any other error gets a note about the key shown before, so that its message names both.
    """
    if tried.issuperset(KINDS):
        return None
    try:
        return _connect_verified(login, limits, _reach_server(login, limits), tried)
    except (HostKeyError, paramiko.IncompatiblePeer):
        return None
    except (EOFError, OSError, paramiko.SSHException) as broken:
        broken.add_note(f"; before that {mismatch.message}")
        raise


def _exchange_keys(login: Login, limits: Limits, sock: socket.socket, tried: frozenset[str]) -> SshTransport:
    """Exchange keys. Requests a host key of no kind in `tried`, and first of the kind that was accepted before."""
    if not login.through:
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
    """Let a write fail when nothing moves on the connection within the stall limit.

    Our packet layer checks it. The kernel's TCP_USER_TIMEOUT gets a longer limit there: it also fails on a slow reader.
    """
    ours = isinstance(transport.packetizer, BulkPacketizer)
    if ours:
        transport.packetizer.stall = limits.stall
    longest = limits.silence if ours else limits.stall
    if sock.family != socket.AF_UNIX:  # of a command that connects
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, int(longest * 1000))


def _key_kind(name: str) -> str:
    """Return a host key's kind, from the name of its algorithm."""
    return next((kind for kind in KINDS if kind in name), name)


def _nothing_in_common(login: Login, said: str) -> PermanentError:
    """Return the permanent error for a server that shares no algorithm with us. `said`: paramiko's text."""
    trouble, hint = f"cannot be spoken with: {said}", "is the sshd there a recent one?"
    for word, (keyword, ours) in _IN_COMMON.items():
        if f"no acceptable {word}" in said:
            trouble = f"allows none of our {keyword}"
            hint = f"allow one of them in its sshd_config: {keyword} {','.join(ours)}"
    return PermanentError(f"{login.name} {trouble}", hint=hint, subject=login.host)


def check_host_key(login: Login, shown: str) -> None:
    """Raise HostKeyError unless the server shows the fingerprint of the settings. No key is added automatically."""
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
        hint="if the server was set up anew, compare its key there and change host_key; otherwise somebody may stand between"
        " you and the server",
        subject=login.host,
    )


def _authenticate_user(transport: paramiko.Transport, login: Login) -> None:
    tried = []
    for name, prove in _list_proofs(transport, login):
        try:
            if not prove():
                return
            tried.append(f"{name} (more than that is asked for)")
        except paramiko.AuthenticationException as refused:
            if over := expired(login.name, said_at_login(transport)):
                raise over from refused
            if not tried and not transport.is_active():  # paramiko raises this for a cut connection, too
                raise EOFError from refused
            if "timeout" in str(refused).lower():  # and for a silent one
                raise TimeoutError("nothing came back while we logged in") from refused
            not_taken = isinstance(refused, paramiko.BadAuthenticationType)
            tried.append(f"{name} (that server takes only {', '.join(refused.allowed_types)})" if not_taken else name)
    if login.connection:
        used = login.connection.now
        raise PermissionDeniedError(
            f"{login.name} does not let in Airflow {used.name}; tried: {', '.join(tried)}",
            hint=f"add its public key to authorized_keys there, or {used.next_step}",
            subject=login.host,
        )
    if login.agent and not tried:
        raise PermissionDeniedError(
            f"the SSH agent has no key for {login.name}",
            hint="`ssh-add -l` shows its keys; SSH_AUTH_SOCK must name it, also where Airflow's tasks run",
            subject=login.host,
        )
    raise PermissionDeniedError(
        f"{login.name} accepts none of the keys: {', '.join(tried) or 'there is none'}",
        hint='add the public key to authorized_keys there, or set `key`; login = "agent" is for keys of the SSH agent',
        subject=login.host,
    )


def known_host_key(host: str, port: int, known_hosts: Path) -> str:
    """Return the fingerprint that a file of known hosts has for the server; "" for none. ed25519 before others."""
    try:
        keys = paramiko.HostKeys(str(known_hosts)).lookup(host if port == 22 else f"[{host}]:{port}")
    except (OSError, paramiko.SSHException):
        return ""
    prints = {_key_kind(name): key.fingerprint for name, key in (keys or {}).items()}
    return next((prints[kind] for kind in KINDS if kind in prints), "")


def said_at_login(transport: paramiko.Transport) -> str:
    """Return the server's banner, also after the connection was closed, where paramiko's `get_banner` loses it."""
    said = getattr(transport.auth_handler, "banner", None)
    return said.decode("utf-8", "backslashreplace") if isinstance(said, bytes) else ""


def _list_proofs(transport: paramiko.Transport, login: Login) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yield what to log in with, each with its name and the call that tries it. The server's key was compared before."""
    for name, key in _load_keys(login):
        yield name, partial(transport.auth_publickey, login.user, key)
    if login.connection and (password := login.connection.now.password):
        yield "its password", partial(transport.auth_password, login.user, password)


def _load_keys(login: Login) -> Iterator[tuple[str, paramiko.PKey]]:
    if login.connection:
        told = login.connection.now
        if told.private_key:
            yield "its private_key", _load_held_key(told)
        if told.key_file:
            yield f"its key_file {told.key_file}", _load_key(Path(told.key_file).expanduser(), told.passphrase)
        return
    if login.key:
        yield login.key, _load_key(Path(login.key).expanduser())
        return
    if login.agent:
        for key in paramiko.Agent().get_keys():
            yield f"agent key {key.fingerprint}", key
        return
    for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
        path = Path("~/.ssh").expanduser() / name
        if _is_there(path):
            yield str(path), _load_key(path)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # in another user's home; the settings do not name it
        return False


def _load_held_key(told: Connection) -> paramiko.PKey:
    """Make a key of a connection's text, which touches no disk. The errors show nothing of it."""
    text, passphrase = told.private_key.strip().encode() + b"\n", told.passphrase.encode() or None
    try:
        try:
            found = _decrypt_key(text, passphrase)
        except TypeError:
            if passphrase is None:
                raise PermissionDeniedError(
                    f"the private_key of Airflow {told.name} has a passphrase",
                    hint=f"give it the extra private_key_passphrase: {told.next_step}",
                    subject=told.id,
                ) from None
            found = _decrypt_key(text, None)  # the key has none
        plain = found.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
        return next(kind for of, kind in _KEYS.items() if isinstance(found, of)).from_private_key(io.StringIO(plain))
    except (ValueError, UnsupportedAlgorithm, StopIteration, paramiko.SSHException):
        what = "cannot be read with its private_key_passphrase" if passphrase else "is no private key that can be read"
        raise PermanentError(
            f"the private_key of Airflow {told.name} {what}", hint=told.next_step, subject=told.id
        ) from None


def _decrypt_key(text: bytes, passphrase: bytes | None) -> Any:
    """Read a private key in OpenSSH's form, or in an older one. TypeError if it has a passphrase and none is given, or the
    other way round; ValueError for anything else."""
    if b"BEGIN OPENSSH" in text:
        return load_ssh_private_key(text, passphrase)
    return load_pem_private_key(text, passphrase)


def _load_key(path: Path, passphrase: str = "") -> paramiko.PKey:
    """Load a private key. Raises PermissionDeniedError for one that others may write: they could log in as anyone. (A key
    that others may read is reported by `doctor` only: containers get such keys.)"""
    with suppress(OSError):
        if path.stat().st_mode & 0o022:
            raise PermissionDeniedError(
                f"key {path} may be written by others than its owner: it is not used",
                hint=f"chmod 600 {path}, and make sure that it is still yours: ssh-keygen -y -f {path}",
                subject=str(path),
            )
    try:
        with suppress(TypeError) if passphrase else nullcontext():  # it has none
            return paramiko.PKey.from_path(path, passphrase.encode() or None)
        return paramiko.PKey.from_path(path)
    except FileNotFoundError as missing:
        raise UsageError(
            f"key file {path} does not exist", hint="set `key` to a private key file", subject=str(path)
        ) from missing
    except (paramiko.PasswordRequiredException, TypeError) as locked:  # TypeError: from the cryptography library
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


_EXPIRED = re.compile(r"(password|account) has expired|change your password|password change required", re.IGNORECASE)


def expired(name: str, said: str) -> PermissionDeniedError | None:
    """Return the error for an expired password or account, if the server's text `said` reports one; else None.

    The protocol has no other sign of it. With a key the login itself succeeds. The session then ends at once with a line on
    its standard error, or without one after a banner (OpenSSH with PAM: `sshd` session.c, `pam_unix`).
    """
    if not _EXPIRED.search(said):
        return None
    line = next(line.strip() for line in said.splitlines() if _EXPIRED.search(line))
    return PermissionDeniedError(
        f"{name} may not log in any more: {line}",
        hint="set a new password for that user there (passwd), or make its account last longer (chage -E -1 USER)",
        subject=name,
    )
