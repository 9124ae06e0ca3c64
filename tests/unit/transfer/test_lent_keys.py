"""An agent that lends one key for one login: what it signs, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.stores.ssh.lean_paramiko import paramiko
from tidemark.transfer.stream.direct import FAILURE, SUCCESS, AgentRequests

USER, CONNECTION = "tidemark", b"session id of a connection"
BOUND = "publickey-hostbound-v00@openssh.com"


@pytest.fixture(scope="module")
def keys() -> tuple[Any, Any, Any]:
    """The lent one, the target's host key, and one of somebody else. Curves whose keys are made here, and RSA."""
    return paramiko.RSAKey.generate(2048), paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()


@pytest.fixture
def asked(keys: tuple[Any, Any, Any]) -> AgentRequests:
    lent, host, _ = keys
    return AgentRequests(lent, USER, host.asbytes())


def words(*parts: object) -> bytes:
    """As SSH has them: bytes and text with their length, numbers in four bytes, True in one."""
    message = paramiko.Message()
    for part in parts:
        if isinstance(part, bool):
            message.add_boolean(part)
        elif isinstance(part, int):
            message.add_int(part)
        else:
            message.add_string(part)
    return bytes(message.asbytes())


def login(key: Any, user: str = USER, method: str = "publickey", host: Any = None, connection: bytes = CONNECTION) -> bytes:
    said = words(connection) + bytes([50])
    said += words(user, "ssh-connection", method, True, "rsa-sha2-512", key.asbytes())
    return said + (words(host.asbytes()) if host is not None else b"")


def sign(key: Any, data: bytes, flags: int = 4) -> bytes:
    return bytes([13]) + words(key.asbytes(), data, flags)


def bind(host: Any, connection: bytes = CONNECTION, signer: Any = None) -> bytes:
    signature = (signer or host).sign_ssh_data(connection).asbytes()
    return bytes([27]) + words("session-bind@openssh.com", host.asbytes(), connection, signature, False)


def test_it_lists_the_one_key(asked: AgentRequests, keys: tuple[Any, Any, Any]) -> None:
    answer = paramiko.Message(asked.answer_request(bytes([11]))[1:])
    assert (answer.get_int(), answer.get_string()) == (1, keys[0].asbytes())


def test_it_signs_the_login(asked: AgentRequests, keys: tuple[Any, Any, Any]) -> None:
    lent, host, _ = keys
    for data in (login(lent), login(lent, method=BOUND, host=host)):
        answer = asked.answer_request(sign(lent, data))
        assert answer[0] == 14
        signature = paramiko.Message(paramiko.Message(answer[1:]).get_string())
        assert lent.verify_ssh_sig(data, signature)


def test_it_signs_nothing_else(asked: AgentRequests, keys: tuple[Any, Any, Any]) -> None:
    lent, _, other = keys
    refused = {
        "another user": sign(lent, login(lent, user="root")),
        "another key": sign(other, login(other)),
        "another key inside": sign(lent, login(other)),
        "another host": sign(lent, login(lent, method=BOUND, host=other)),
        "another method": sign(lent, login(lent, method="hostbased")),
        "another service": sign(lent, login(lent).replace(b"ssh-connection", b"ssh-somewhere!")),
        "more behind it": sign(lent, login(lent) + b"more"),
        "no login": sign(lent, b"SSHSIG" + words("git", "", "sha512", b"digest")),
        "with SHA-1": sign(lent, login(lent), flags=0),
        "cut off": sign(lent, login(lent))[:40],
        "nothing": bytes([13]),
        "to add a key": bytes([17]) + words(b"key"),
        "to remove all": bytes([19]),
        "what nobody knows": bytes([27]) + words("something@example.com"),
    }
    assert {why: asked.answer_request(request) for why, request in refused.items()} == dict.fromkeys(refused, FAILURE)


def test_bound_to_a_connection_it_signs_for_that_alone(asked: AgentRequests, keys: tuple[Any, Any, Any]) -> None:
    lent, host, _ = keys
    assert asked.answer_request(bind(host)) == SUCCESS
    assert asked.answer_request(sign(lent, login(lent)))[0] == 14
    assert asked.answer_request(sign(lent, login(lent, connection=b"another"))) == FAILURE


@pytest.mark.parametrize("how", ["another host", "not signed by the host", "a second connection"])
def test_bound_to_another_it_signs_nothing_any_more(asked: AgentRequests, keys: tuple[Any, Any, Any], how: str) -> None:
    lent, host, other = keys
    if how == "another host":
        assert asked.answer_request(bind(other)) == FAILURE
    elif how == "not signed by the host":
        assert asked.answer_request(bind(host, signer=other)) == FAILURE
    else:
        assert asked.answer_request(bind(host)) == SUCCESS
        assert asked.answer_request(bind(host, b"another")) == FAILURE
    assert asked.answer_request(sign(lent, login(lent))) == FAILURE
    assert asked.answer_request(bind(host)) == FAILURE
