"""Who is measured against whom, and that nobody stays away without a reason in the paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import peers
from bench.peers import Way
from tests.services.sshd import FarEnd, Sshd


@pytest.fixture
def way(tmp_path: Path) -> Way:
    server = Sshd(FarEnd.SHELL, tmp_path, tmp_path, 1, None, user="edge")  # type: ignore[arg-type]
    return Way(server, tmp_path / "source", tmp_path / "target", 0)


def test_on_a_long_line_who_stays_away_is_named_with_the_reason(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.shutil, "which", lambda name: f"/usr/bin/{name}")
    few, away_of_few = peers.on_a_long_line(way, many=False)
    many, away_of_many = peers.on_a_long_line(way, many=True)
    assert [one.name for one in few] == ["rsync gcm -W", "tar gcm", "scp gcm"] and not away_of_few
    assert {one.name for one in many} | away_of_many.keys() == {one.name for one in few}
    assert "round trips" in away_of_many["scp gcm"]


def test_what_is_not_installed_is_told_once_with_what_would_bring_it(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.shutil, "which", lambda name: None if name == "scp" else f"/usr/bin/{name}")
    taking_part, away = peers.on_a_long_line(way, many=True)
    assert [one.name for one in taking_part] == ["rsync gcm -W", "tar gcm"] and not away
    assert "apt-get install openssh-client" in peers.absent()["scp"]
