"""Which way files go between two far ends, and what is remembered of it."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.errors import HostKeyError, UnreachableError
from tidemark.stores.python.store import PythonStore
from tidemark.stores.ssh.connection import SshConnection
from tidemark.stores.ssh.login import Limits, Login
from tidemark.transfer.engine import NotBegun, attempt_between
from tidemark.transfer.items import SendOptions, Wire
from tidemark.transfer.relay.relay import Relay
from tidemark.transfer.stream import direct
from tidemark.transfer.stream.direct import NoDirectPath, ssh_command


def end(name: str) -> PythonStore:
    """Not connected: nothing of it is asked here."""
    nobody: Any = None
    return PythonStore(f"sftp://{name}/srv", "/srv", SshConnection(Login(name, 22, "u", "", ""), Limits()), nobody)


def wire(source: PythonStore, target: PythonStore) -> Wire:
    return Wire(source, target, SendOptions(), lambda _count: None)


def test_a_target_that_is_not_reached_is_relayed_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fails(_source: PythonStore, target: PythonStore) -> Any:
        tried.append(target.url)
        raise NoDirectPath("it has no ssh client")

    monkeypatch.setattr(direct, "DirectPath", type("Road", (), {"__new__": lambda _cls, *ends: fails(*ends)}))
    source, target, third = end("n1"), end("n2"), end("n3")
    for other in (target, target, third):
        between = wire(source, other)
        assert isinstance(attempt_between(between, []), Relay)
        assert between.path == "relayed: u@n1:22 does not reach it: it has no ssh client"
    assert tried == [target.url, third.url]


def test_a_source_that_lets_nobody_in_twice_is_relayed_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_ends: PythonStore) -> Any:
        raise UnreachableError("no further connection")

    monkeypatch.setattr(direct, "DirectPath", type("Road", (), {"__new__": lambda _cls, *ends: fails(*ends)}))
    source = end("n1")
    between = wire(source, end("n2"))
    assert isinstance(attempt_between(between, []), Relay)
    assert between.path == "relayed: no further connection"
    assert not source.direct_routes


def test_another_host_key_is_no_reason_to_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    error: Any = HostKeyError("another key")

    def fails(*_ends: PythonStore) -> Any:
        raise error

    monkeypatch.setattr(direct, "DirectPath", type("Road", (), {"__new__": lambda _cls, *ends: fails(*ends)}))
    source = end("n1")
    begun = attempt_between(wire(source, end("n2")), [])
    assert isinstance(begun, NotBegun) and begun.error is error and not list(begun.iter_outcomes())
    assert not source.direct_routes  # asked again by the next round


def test_the_nodes_ssh_reads_nothing_of_the_node_and_adds_nothing() -> None:
    words = ssh_command(Login("10.0.0.2", 2222, "u", "SHA256:x", ""), Limits(stall=30), "sh -c 'x'")
    assert words[:3] == ["ssh", "-F", "none"]
    assert words[-3:] == ["--", "10.0.0.2", "sh -c 'x'"]
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "IdentityFile=none", "UserKnownHostsFile={known}"} < set(words)
    assert words[words.index("-l") + 1] == "u" and words[words.index("-p") + 1] == "2222"
    assert "ServerAliveInterval=10" in words
