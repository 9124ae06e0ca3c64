"""A site whose disk is small: a run links no more than `snapshot_bytes`, and sends everything all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.e2e.edges import large_file
from tidemark.sync.send import transfer_files as sending
from tidemark.sync.send.batches import cut_batches
from tidemark.sync.session import PartLimits

pytestmark = pytest.mark.usefixtures("short_limits")


def only_pinned(edge: Commanded) -> int:
    """Bytes on the site's disk that nothing but a snapshot holds."""
    links = (place.stat() for place in edge.site.rglob(".tidemark/**/*") if place.is_file())
    return sum(info.st_size for info in links if info.st_nlink == 1)


def take_away(edge: Commanded) -> None:
    """As a compaction does with its sources."""
    for place in (edge.site / "data/sequence").rglob("*.tsfile*"):
        place.unlink()


def before_the_first_byte(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """`act` happens once a run has selected and linked, and has sent nothing."""
    real = sending._require_ready

    def looked(*arguments: object) -> None:
        act()
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sending, "_require_ready", looked)


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    made = Commanded(tmp_path, monkeypatch, site_keys={"snapshot_bytes": "100 kB"})
    for number in range(1, 6):
        made.seal(number)
    large_file(made, 6)  # half a megabyte: more than may be linked
    return made


@pytest.mark.full
def test_all_is_sent_and_only_what_fits_is_linked(edge: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []
    before_the_first_byte(
        monkeypatch,
        lambda: linked.extend(p.name for p in edge.site.rglob(".tidemark/**/*.tsfile")),
    )
    assert edge.sync().code == 0
    assert sorted(linked) == [f"{1_600_000_000_000 + n}-{n}-0-0.tsfile" for n in range(1, 6)]
    (link,) = edge.run("status").json["links"]
    told = edge.run("why", link["last_run"]).json["evidence"]
    assert any("snapshot.full" in line or "snapshot_bytes" in line for line in told), told
    edge.assert_in_step()


def test_files_merged_away_meanwhile_hold_no_more_than_the_limit(edge: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction takes everything: what was linked arrives from its links, the rest is told and looked for again."""
    held: list[int] = []

    def compaction() -> None:
        take_away(edge)
        held.append(only_pinned(edge))

    before_the_first_byte(monkeypatch, compaction)
    said = edge.sync()
    assert 0 < held[0] <= 100_000
    assert (said.code, said.json["files"]) == (23, 5)
    (left,) = said.json["left_out"]
    assert "1600000000006-6-0-0.tsfile" in left["path"] and "gone" in left["reason"]
    assert only_pinned(edge) == 0  # when the run is over nothing is linked any more


def test_without_a_limit_all_is_linked(edge: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    edge.site_keys = {}
    edge.write_settings()
    before_the_first_byte(
        monkeypatch, lambda: [p.unlink() for p in (edge.site / "data/sequence").rglob("*.tsfile*")] and None
    )
    assert (edge.sync().code, len(edge.devices())) == (0, 6)


@pytest.mark.parametrize("wrong", ["20", "-1 GB", "0 MB", "many"])
def test_a_limit_that_is_none_is_a_settings_error(edge: Commanded, wrong: str) -> None:
    edge.site_keys = {"snapshot_bytes": wrong}
    edge.write_settings()
    edge.sync().refused(2, "snapshot_bytes", "20 GB")


def test_links_of_a_closed_part_are_released_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of several parts does not hold what has landed until its end."""
    edge = Commanded(tmp_path, monkeypatch)
    for number in range(1, 7):
        edge.seal(number, database=f"root.sg{number}")
    held: list[int] = []
    real = sending.close_part

    def closed(work: object, last: bool) -> None:
        real(work, last)  # type: ignore[arg-type]
        held.append(len(list(edge.site.rglob(".tidemark/**/*.tsfile"))))

    monkeypatch.setattr(sending, "close_part", closed)
    monkeypatch.setattr(sending, "part_is_full", lambda *_: True)
    monkeypatch.setattr(sending, "cut_batches", lambda todo, key, _: cut_batches(todo, key, PartLimits(batch_files=2)))
    assert edge.sync().code == 0
    assert held == [4, 2]
    edge.assert_in_step()
