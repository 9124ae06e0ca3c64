"""Whole runs among faults of servers and networks: each named, and the next run ends in step."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.chaos_proxy import ChaosProxy, chaos
from tests.e2e.edges import large_file, pulling
from tests.services.sshd import FarEnd, Sshd, make_key
from tidemark.stores import open_sftp as sftp
from tidemark.stores.ssh.login import Limits

pytestmark = pytest.mark.usefixtures("short_limits")


@pytest.mark.full
@pytest.mark.real("sshd")
def test_a_host_key_that_changed_stops_the_link_until_somebody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_sshd: Callable[..., Sshd]
) -> None:
    server = start_sshd()
    edge = pulling(tmp_path, monkeypatch, server)
    edge.seal(1)
    assert edge.sync().code == 0
    edge.seal(2)
    old = server.host_key
    server.stop()
    (server.folder / "host_key").unlink()
    make_key(server.folder / "host_key")
    server.restart()

    said = edge.sync()

    said.refused(6, old, server.host_key)
    assert "host_key" in said.json["hint"]
    assert edge.devices() == ["root.sg.d1"]
    edge.site_keys = {**edge.site_keys, "host_key": server.host_key}
    edge.write_settings()
    assert edge.sync().code == 0
    edge.assert_in_step()


@pytest.mark.real("sshd")
@pytest.mark.parametrize(
    "far_end",
    [FarEnd.SHELL, pytest.param(FarEnd.POSIX, marks=pytest.mark.full), pytest.param(FarEnd.SFTP, marks=pytest.mark.full)],
)
def test_a_server_that_allows_one_session_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_sshd: Callable[..., Sshd], far_end: FarEnd
) -> None:
    server = start_sshd(far_end, {"MaxSessions": "1"})
    edge = pulling(tmp_path, monkeypatch, server)
    for number in range(1, 4):
        edge.seal(number)
    large_file(edge, 4)
    said = edge.sync()
    assert said.code == 0, said
    edge.assert_in_step()


@pytest.mark.real("sshd")
@pytest.mark.parametrize("how", ["drop", pytest.param("stall", marks=pytest.mark.full)])
def test_a_link_that_breaks_in_the_middle_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshd: Sshd, how: str
) -> None:
    if how == "stall":
        monkeypatch.setattr(sftp, "Limits", functools.partial(Limits, 5, 8, 1.5))
    with chaos(sshd.port, *[(how, 120_000)] * 2) as proxy:
        edge = pulling(tmp_path, monkeypatch, sshd, proxy.port, block_bytes=65_536)
        for number in range(1, 4):
            edge.seal(number)
        large_file(edge, 4)
        said = edge.sync()
        assert said.code == 0, said
        assert proxy.connections >= 3
        proxy.breaks.clear()
        edge.assert_in_step()


@pytest.mark.full
@pytest.mark.real("sshd")
def test_a_link_that_is_only_slow_is_not_taken_for_a_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshd: Sshd
) -> None:
    monkeypatch.setattr(sftp, "Limits", functools.partial(Limits, 10, 20, 2.5))
    with chaos(sshd.port, ("slow", 20_000), for_ever=True) as proxy:
        edge = pulling(tmp_path, monkeypatch, sshd, proxy.port, retries=0)
        edge.seal(1)
        large_file(edge, 2)
        started = time.monotonic()
        assert edge.sync().code == 0
        assert time.monotonic() - started > 2.5  # the stall limit
        edge.assert_in_step()


@pytest.mark.real("sshd")
@pytest.mark.parametrize("how", ["drop", *(pytest.param(how, marks=pytest.mark.full) for how in ("stall", "refuse"))])
def test_a_link_that_stays_broken_is_told_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshd: Sshd, how: str
) -> None:
    if how == "stall":
        monkeypatch.setattr(sftp, "Limits", functools.partial(Limits, 5, 8, 1.5))
    with chaos(sshd.port) as proxy:
        edge = pulling(tmp_path, monkeypatch, sshd, proxy.port, block_bytes=65_536, retries=1)
        for number in range(1, 4):
            edge.seal(number)
        large_file(edge, 4)
        break_for_ever(proxy, how)
        said = edge.sync()
        said.refused(5, f"127.0.0.1:{proxy.port}")
        edge.assert_no_half_file()
        assert edge.run("status").json["links"][0]["backlog_files"] == (0 if how == "refuse" else 4)
        proxy.breaks.clear()
        assert edge.sync().code == 0
        assert len(edge.devices()) == 4
        edge.assert_in_step()


def break_for_ever(proxy: ChaosProxy, how: str) -> None:
    proxy.for_ever = True
    proxy.breaks[:] = [(how, 60_000)]
