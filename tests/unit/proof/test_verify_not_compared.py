"""verify through the command: nobody is told that all is well where nothing was compared."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest

from tests.commanded import Commanded, Said
from tests.landing_maker import SITE_A, Sender
from tests.small_files import sealed, source
from tidemark.cli.main import main

FAR = "sftp://edge@centre.example:22/srv/tidemark"
BYTES = "the bytes at receiver centre"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    """A site of two files, in step with its receiver."""
    world = Commanded(tmp_path, monkeypatch)
    world.seal(1)
    world.seal(2)
    assert world.sync().code == 0
    return world


def text(world: Commanded, *words: str) -> str:
    """What people read: `./tidemark WORDS` without --json."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["--config", str(world.folder / "tidemark.toml"), *words])
    return out.getvalue()


def not_compared(said: Said) -> list[str]:
    return [one["what"] for one in said.json["not_compared"]]


def drop(world: Commanded, path: str) -> None:
    for end in world.sealed.pop(path):
        (world.site / (path + end)).unlink()


class TestRemoteReceiver:
    @pytest.fixture
    def sender(self, world: Commanded) -> Commanded:
        """The Tidemark that sends, whose receiver is another machine's. It has read the answer to what it sent."""
        assert world.sync().json["state"] == "nothing"
        world.centre, world.receiver_keys = FAR, {"host_key": "SHA256:" + "A" * 43}
        world.write_settings()
        return world

    @pytest.mark.full_after(1)
    @pytest.mark.parametrize("words", [(), ("--repair",), ("--live-only",), ("--site", "plant1")], ids=" ".join)
    def test_points_are_refused_and_the_hint_says_what_can_be_proved_where(
        self, sender: Commanded, words: tuple[str, ...]
    ) -> None:
        said = sender.run("verify", "--deep", *words)
        said.refused(2, "receiver centre is remote", "verify --deep")
        hint = said.json["hint"]
        assert "./tidemark verify proves here" in hint and f"where {FAR} is a file:// store" in hint
        assert "points are compared by a Tidemark that has the link and the receiver's folder" in hint

    def test_without_deep_it_says_what_it_compared_and_what_not(self, sender: Commanded) -> None:
        said = sender.run("verify")
        assert (said.code, said.json["ok"], said.json["differences"]) == (0, True, [])
        assert said.json["checked"] == 2, "the site's TsFiles"
        (told,) = said.json["not_compared"]
        assert told["what"] == BYTES and FAR in told["next"]
        assert "not read from here; the sites' files were compared with the digests of what was sent" in told["reason"]
        assert f"nothing was compared of {BYTES}: they are not read from here" in text(sender, "verify")

    def test_a_change_at_the_site_is_still_found(self, sender: Commanded) -> None:
        victim = sender.site / next(iter(sender.sealed))
        stat, data = victim.stat(), bytearray(victim.read_bytes())
        data[40] ^= 1
        victim.write_bytes(data)
        os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        said = sender.run("verify")
        assert said.code == 20 and [d["what"] for d in said.json["differences"]] == ["source differs"]


class TestSiteWithoutALink:
    @pytest.fixture
    def pushed(self, world: Commanded) -> Commanded:
        """A second site, whose own Tidemark sends to this receiver."""
        Sender(world.root, SITE_A, name="edge").land({source(1): sealed({"root.edge.d1": {"s": [(1, 1)]}})})
        assert world.run("load").code == 0
        return world

    def test_its_points_are_named_as_not_compared(self, pushed: Commanded) -> None:
        said = pushed.run("verify", "--deep")
        said.refused(23, "nothing was compared of the points of edge", "has no link from the site")
        assert said.json["differences"] == [] and said.json["series"] == 2, "plant1's"
        assert [one["site"] for one in said.json["elsewhere"]] == ["edge"]
        assert not_compared(said) == ["the points of edge"]
        shown = text(pushed, "verify", "--deep")
        assert "compared point by point: 2 series" in shown
        assert "nothing was compared of the points of edge: this Tidemark has no link" in shown

    def test_what_can_be_compared_is_whole_by_itself(self, pushed: Commanded) -> None:
        assert pushed.run("verify", "--deep", "--site", "plant1").code == 0
        assert pushed.run("verify", "--deep", "--site", SITE_A).code == 23

    def test_by_digest_it_is_compared_with_what_was_recorded(self, pushed: Commanded) -> None:
        said = pushed.run("verify")
        assert (said.code, not_compared(said), len(said.json["elsewhere"])) == (0, [], 1)


class TestChangedSinceTheNewestRun:
    def test_series_and_what_is_left_out_are_told(self, world: Commanded) -> None:
        said = world.run("verify", "--deep")
        assert (said.code, said.json["series"], not_compared(said)) == (0, 2, [])
        shown = text(world, "verify", "--deep")
        assert "compared point by point: 2 series" in shown and "since the newest run" not in shown
        drop(world, next(iter(world.sealed)))
        world.seal(3)
        said = world.run("verify", "--deep")
        assert (said.code, said.json["series"], said.json["pending"], not_compared(said)) == (0, 1, 2, [])
        shown = text(world, "verify", "--deep")
        assert "compared point by point: 1 series" in shown
        assert "not compared: 2 files, changed, new or gone at the site since the newest run" in shown
        assert "then verify" in shown
        assert "then verify" in text(world, "verify") and "series" not in text(world, "verify")

    def test_a_site_that_compacted_everything_is_not_called_verified(self, world: Commanded) -> None:
        for path in list(world.sealed):
            drop(world, path)
        world.put(
            source(1, inner=1), sealed({f"root.sg.d{n}": {"s": [(t, 100 * n + t) for t in (1, 2, 3)]} for n in (1, 2)})
        )
        said = world.run("verify", "--deep")
        said.refused(23, "nothing was compared of the points of plant1")
        assert (said.json["series"], not_compared(said)) == (0, ["the points of plant1"])
        shown = text(world, "verify", "--deep")
        assert "compared point by point: 0 series" in shown and "nothing was compared of the points of plant1" in shown
        assert "./tidemark sync plant1" in said.json["hint"]
        assert world.run("verify").code == 0
        assert world.sync().code == 0
        after = world.run("verify", "--deep")
        assert (after.code, after.json["series"], after.json["pending"], not_compared(after)) == (0, 2, 0, [])

    def test_an_empty_site_has_nothing_to_compare(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "empty").mkdir()
        empty = Commanded(tmp_path / "empty", monkeypatch)
        said = empty.run("verify", "--deep")
        assert (said.code, not_compared(said)) == (0, [])

    def test_before_the_first_run_nothing_is_compared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "new").mkdir()
        new = Commanded(tmp_path / "new", monkeypatch)
        new.seal(1)
        assert new.run("verify", "--deep").code == 23 and new.run("verify").code == 0
        assert new.sync("--no-load").code == 0
        said = new.run("verify", "--deep")
        assert (said.code, not_compared(said), said.json["pending"]) == (23, ["the points of plant1"], 1)
        assert new.run("load").code == 0
        assert new.run("verify", "--deep").code == 0
