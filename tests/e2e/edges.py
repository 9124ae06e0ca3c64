"""Edges for specifications of whole runs: one behind an sshd, one with a large file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tests.services.sshd import Sshd
from tests.small_files import sealed


def pulling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Sshd, port: int = 0, **link: Any) -> Commanded:
    """A site behind an sshd, or behind a proxy at `port` before it."""
    store = server.url(tmp_path / "site").replace(f":{server.port}/", f":{port or server.port}/")
    keys = {"host_key": server.host_key, "key": str(server.key)}
    return Commanded(tmp_path, monkeypatch, store=store, site_keys=keys, link_keys=link)


def large_file(edge: Commanded, number: int, points: int = 60_000) -> None:
    """Half a megabyte, or eight bytes a point."""
    chance = random.Random(number)
    edge.put(edge.seal(number), sealed({f"root.sg.d{number}": {"s": [(t, chance.getrandbits(62)) for t in range(points)]}}))
