"""The edge of a link's window: a run stops there within a block, ends with 10, and goes on from its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.e2e.edges import large_file
from tests.services.sshd import Sshd
from tests.services.wire import Wire
from tidemark import app as apps
from tidemark.app import App

pytestmark = [pytest.mark.real("sshd"), pytest.mark.usefixtures("short_limits")]
BLOCK = 1 << 20
RATE = 6e6  # bytes a second on the line
INSIDE, OUTSIDE = (datetime(2026, 1, 5, hour, tzinfo=UTC).timestamp() for hour in (23, 12))


class Edge:
    """A link over a line of `RATE` with a window that closes once so many bytes have crossed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, server: Sshd, wire: Wire, way: str) -> None:
        self.wire = wire
        self.closes_at = 0
        self.when_closed = -1
        far = server.url(folder / ("site" if way == "pull" else "centre")).replace(f":{server.port}/", f":{wire.port}/")
        keys = {"host_key": server.host_key, "key": str(server.key)}
        link = {"window": "22:00-06:00", "block_bytes": BLOCK}
        if way == "pull":
            self.edge = Commanded(folder, monkeypatch, store=far, site_keys=keys, link_keys=link)
        else:
            self.edge = Commanded(folder, monkeypatch, centre=far, receiver_keys=keys, link_keys=link)
        real: Callable[..., App] = apps.open_app
        monkeypatch.setattr(apps, "open_app", lambda *args, **more: replace(real(*args, **more), clock=self.clock))

    def clock(self) -> float:
        if not self.closes_at or self.wire.came < self.closes_at:
            return INSIDE
        self.when_closed = self.wire.came if self.when_closed < 0 else self.when_closed
        return OUTSIDE


@pytest.mark.full_after(1)
@pytest.mark.parametrize("way", ["pull", "push"])
def test_a_run_stops_at_the_edge_of_its_window_within_a_block(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with Wire(sshd.port, upwards=way == "push") as wire:
        wire.pace(RATE)
        made = Edge(tmp_path, monkeypatch, sshd, wire, way)
        edge = made.edge
        large_file(edge, 1, 2_000_000)
        size = (edge.site / next(iter(edge.sealed))).stat().st_size
        assert size > 12 * BLOCK
        edge.seal(2)
        made.closes_at = 5 * BLOCK

        said = edge.sync()

        said.refused(10, "outside its window 22:00-06:00")
        after = wire.came - made.when_closed
        assert made.when_closed > 0 and after <= BLOCK + 200_000, (made.when_closed, after)
        (link,) = edge.run("status").json["links"]
        assert link["state"] == "window"
        edge.assert_no_half_file()
        before, made.closes_at = wire.came, 0
        assert edge.sync().code == 0
        assert wire.came - before <= size - made.when_closed + 2 * BLOCK  # it went on from its blocks
        edge.assert_no_half_file()
