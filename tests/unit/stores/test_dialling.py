"""A connection that is begun early is for one user, and closed where nobody takes it."""

from __future__ import annotations

import socket

import pytest

from tidemark.stores.ssh.dial import Dialled


@pytest.fixture
def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_it_is_taken_once(server: socket.socket) -> None:
    with server:
        dialled = Dialled("127.0.0.1", server.getsockname()[1], 5.0)
        taken = dialled.take_socket()
        assert taken is not None and dialled.take_socket() is None
        dialled.drop()
        there, _ = server.accept()
        with taken, there:
            taken.sendall(b"x")
            assert there.recv(1) == b"x"


def test_it_is_closed_when_nobody_takes_it(server: socket.socket) -> None:
    with server:
        dialled = Dialled("127.0.0.1", server.getsockname()[1], 5.0)
        there, _ = server.accept()
        dialled.drop()
        with there:
            there.settimeout(5.0)
            assert there.recv(1) == b""
        assert dialled.take_socket() is None


def test_its_error_is_told_once_to_who_would_take_it(server: socket.socket) -> None:
    port = server.getsockname()[1]
    server.close()
    dialled = Dialled("127.0.0.1", port, 5.0)
    with pytest.raises(ConnectionRefusedError):
        dialled.take_socket()
    assert dialled.take_socket() is None
