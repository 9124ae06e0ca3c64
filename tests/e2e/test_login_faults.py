"""Opening a connection has an end, whatever comes back: nothing, half a greeting, broken packets, a refused command."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import paramiko
import psutil
import pytest
from paramiko.common import MSG_USERAUTH_REQUEST

from tests.e2e.chaos_proxy import ChaosProxy
from tests.e2e.store_ends import QUICK, address
from tests.services.processes import soon
from tests.services.sshd import Sshd
from tidemark.errors import Retry, TidemarkError, UnreachableError
from tidemark.stores.open_sftp import login_of, open_sftp
from tidemark.stores.protocol import StoreAddress
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.login import CIPHERS, Limits

pytestmark = pytest.mark.real("sshd")


@contextmanager
def somebody(greeting: bytes = b"") -> Iterator[int]:
    """A port whose owner accepts, says `greeting` and nothing more."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    held.append(client)
                    client.sendall(greeting)

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    for client in held:
        client.close()


@contextmanager
def full_backlog() -> Iterator[int]:
    """A port whose owner accepts nobody, and whose queue is full: the network drops who knocks."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for knocking in waiting:
            knocking.setblocking(False)
            knocking.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])
        for knocking in waiting:
            knocking.close()


def given_up(server: Sshd, port: int, limits: Limits) -> UnreachableError:
    with pytest.raises(UnreachableError) as caught:
        open_sftp(address(server, port=port), limits=limits)
    assert caught.value.retry is Retry.SOON and caught.value.hint and caught.value.subject == "127.0.0.1"
    return caught.value


def test_a_port_that_does_not_answer_is_given_up(sshd: Sshd) -> None:
    began = time.monotonic()
    with full_backlog() as port:
        assert "did not answer in time" in given_up(sshd, port, Limits(connect=0.5, handshake=60, stall=60)).message
    assert time.monotonic() - began < 30


@pytest.mark.full_after(1)
@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-", b"SSH-2.0-Mute_1.0\r\n"])
def test_a_handshake_that_does_not_get_on_is_given_up(sshd: Sshd, greeting: bytes) -> None:
    began = time.monotonic()
    with somebody(greeting) as port:
        given_up(sshd, port, Limits(connect=60, handshake=1.0, stall=60))
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("first", [1500, pytest.param(1750, marks=pytest.mark.full)])
def test_a_line_that_goes_silent_while_we_log_in_is_no_refusal(sshd: Sshd, first: int) -> None:
    """It was told as "accepts none of the keys" (6), for somebody to mend what was right."""
    for after in range(first, 4500, 500):  # bytes, in either direction: the key exchange, the login, the first answers
        proxy = ChaosProxy(sshd.port, [("stall", after)], for_ever=True)
        proxy.start()
        try:
            given_up(sshd, proxy.port, Limits(connect=5, handshake=1.0, stall=1.0))
        finally:
            proxy.close()


@contextmanager
def flipping(server: Sshd, at: int) -> Iterator[int]:
    """A port through which the server's byte number `at` arrives with a bit flipped, once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []

        def carry(source: socket.socket, sink: socket.socket, flip: int) -> None:
            done = 0
            with contextlib.suppress(OSError):
                while data := bytearray(source.recv(65_536)):
                    if done <= flip < done + len(data):
                        data[flip - done] ^= 1
                    done += len(data)
                    sink.sendall(data)
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            client, _ = listener.accept()
            upstream = socket.create_connection(("127.0.0.1", server.port))
            held.extend([client, upstream])
            threading.Thread(target=carry, args=(client, upstream, -1), daemon=True).start()
            threading.Thread(target=carry, args=(upstream, client, at), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
    for end in held:
        end.close()


@pytest.mark.parametrize("start", [1150, pytest.param(1100, marks=pytest.mark.full)])
def test_a_bit_that_flips_while_a_connection_is_opened_is_an_error_of_ours(sshd: Sshd, start: int) -> None:
    """In the key exchange, the login or the first answers: a broken packet, not a traceback of a library."""
    step = 37 if start == 1100 else 190
    errors: list[TidemarkError] = []
    for at in range(start, 2700, step):
        with flipping(sshd, at) as port:
            try:
                open_sftp(address(sshd, port=port), limits=Limits(3, 3, 2)).close()
            except TidemarkError as error:
                errors.append(error)
    assert any(isinstance(error, UnreachableError) and "broken" in error.message for error in errors)
    assert all(error.hint for error in errors)


def test_the_cipher_is_aes_gcm(sshd: Sshd, tmp_path: Path) -> None:
    """It is the first we offer, so every server that has it takes it."""
    login, _ = login_of(address(sshd))
    connection = SshConnection(login, QUICK)
    with connection.translate_errors("connecting"):
        transport = connection._ensure_connected()
    assert (transport.local_cipher, transport.remote_cipher) == (CIPHERS[0], CIPHERS[0])
    connection.drop()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_a_key_is_shown_once_however_fast_the_server_answers(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It goes with the question whose answer shows it where nobody did: that answer may be there before we go on."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True)
    with (sshd.folder / "authorized_keys").open("a") as allowed:
        allowed.write(key.with_suffix(".pub").read_text())
    shown: list[bytes] = []
    ask, send = paramiko.AuthHandler._request_auth, paramiko.Transport._send_message

    def asked_slowly(handler: paramiko.AuthHandler) -> None:
        ask(handler)
        time.sleep(0.2)

    def sent(transport: paramiko.Transport, message: paramiko.Message) -> None:
        shown.extend([message.asbytes()[:1]] if message.asbytes()[0] == MSG_USERAUTH_REQUEST else [])
        send(transport, message)

    monkeypatch.setattr(paramiko.AuthHandler, "_request_auth", asked_slowly)
    monkeypatch.setattr(paramiko.Transport, "_send_message", sent)
    login, _ = login_of(dataclasses.replace(address(sshd), key=str(key)))
    connection = SshConnection(login, QUICK)
    with connection.translate_errors("connecting"):
        assert connection._ensure_connected().is_authenticated()
    connection.drop()
    assert len(shown) == 1


def connections_to(server: Sshd) -> int:
    mine = psutil.Process().net_connections("tcp")
    return sum(1 for one in mine if one.raddr and one.raddr.port == server.port and one.status == "ESTABLISHED")


@pytest.mark.full_after(1)
@pytest.mark.parametrize("sessions", ["10", "1"])
def test_a_command_that_fails_to_start_leaves_no_channel_and_no_connection(
    sessions: str, start_sshd: Callable[..., Sshd]
) -> None:
    server = start_sshd(options={"MaxSessions": sessions})
    login, _ = login_of(StoreAddress(server.url(), server.host_key, str(server.key)))
    connection = SshConnection(login, QUICK)
    first = connection.open_pipe("cat")
    channels = len(connection._ensure_connected()._channels)  # type: ignore[union-attr]
    for _ in range(3):
        with pytest.raises(UnreachableError):
            connection.open_pipe(subsystem="there is none")
    assert soon(lambda: len(connection._ensure_connected()._channels) == channels)  # type: ignore[union-attr]
    assert soon(lambda: connections_to(server) == 1)
    first.write(b"still here\n")
    assert first.read_line() == b"still here\n"
    connection.drop()
