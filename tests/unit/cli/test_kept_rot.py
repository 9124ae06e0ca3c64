"""A kept file (gone at its site) whose bytes here rot: nobody can repair it, and the operator gives it up, by a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commanded import Commanded, row
from tidemark.app import open_app
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.settings.load import load_settings


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    return Commanded(tmp_path, monkeypatch)


def kept(edge: Commanded) -> tuple[str, Path]:
    """The path of a kept file beside a live one, and where its bytes are."""
    gone = edge.seal(1)
    edge.seal(2)
    assert edge.sync().code == 0
    for end in edge.sealed.pop(gone):
        (edge.site / (gone + end)).unlink()
    assert edge.sync().code == 0
    (place,) = (edge.root / "data").rglob(f"*{Path(gone).name}")
    return gone, place


def rotten(edge: Commanded, how: str = "bit") -> tuple[str, str]:
    gone, place = kept(edge)
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.unlink()
    if how == "bit":
        place.write_bytes(bytes(data))
    assert edge.run("verify").code == 20
    (one,) = edge.run("quarantine", "list").json["quarantine"]
    assert one["path"] == gone and "gone at its site and kept, and damaged here" in one["reason"]
    return gone, one["id"]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("how", ["bit", "missing"])
def test_it_is_given_up_by_name(edge: Commanded, how: str) -> None:
    gone, held = rotten(edge, how)
    repaired = edge.run("verify", "--repair")
    repaired.refused(20, gone)
    assert repaired.json["hint"] == f"./tidemark quarantine drop {held}"
    read = ("read", "--tall", "--out", str(edge.folder / "out.csv"))
    if how == "bit":
        edge.run(*read).refused(7)
        assert "quarantine" in edge.run(*read).json["hint"]
    assert edge.run("quarantine", "drop", held).code == 2, "it asks"
    edge.run("quarantine", "release", held).refused(2, "whole again, or given up")
    done = edge.run("quarantine", "drop", held, "--yes")
    assert (done.code, done.json["path"]) == (0, gone)
    assert edge.run("quarantine", "drop", held, "--yes").code == 0, "said again"
    told_everywhere(edge, gone)
    assert (edge.run("verify").code, edge.run("quarantine", "list").json["quarantine"]) == (0, [])


def told_everywhere(edge: Commanded, gone: str) -> None:
    assert edge.rows() == [row("root.sg", 2, time) for time in (1, 2, 3)]
    why = edge.run("why", gone).json
    assert (why["state"], why["final"]) == ("given up", True) and "given up by the operator" in why["cause"]
    covered = edge.run("coverage").json
    assert covered["complete"] and "the operator gave up their points" in str(covered) and gone in str(covered)
    assert edge.sync().json["state"] == "nothing"


@pytest.mark.full
def test_a_rebuilt_ledger_knows_of_it(edge: Commanded) -> None:
    gone, held = rotten(edge)
    assert edge.run("quarantine", "drop", held, "--yes").code == 0
    assert edge.run("ledger", "rebuild", "--replace", "--yes").code in (0, 23)
    told_everywhere(edge, gone)


def test_one_that_is_whole_is_not_given_up(edge: Commanded) -> None:
    gone, held = rotten(edge)
    (place,) = (edge.root / "data").rglob(f"*{Path(gone).name}")
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(bytes(data))
    edge.run("quarantine", "drop", held, "--yes").refused(6, "nothing to give up")
    assert len(edge.rows()) == 6
    edge.run("quarantine", "drop", "k999", "--yes").refused(3, "k999")
    (other,) = [h for h in ("k1", "k2") if h != held]
    edge.run("quarantine", "drop", other, "--yes").refused(3, other)


def test_beside_a_merged_file_that_is_read_nothing_is_given_up(edge: Commanded) -> None:
    """Its points are there, and would be lost."""
    gone, more = edge.seal(1, device="root.sg.d"), edge.seal(3, device="root.sg.d")
    edge.seal(2)
    assert edge.sync().code == 0
    for path in (gone, more):
        for end in edge.sealed.pop(path):
            (edge.site / (path + end)).unlink()
    assert edge.sync().code == 0
    assert edge.run("merge").json["groups"] == 1
    (place,) = (edge.root / "data").rglob(f"*{Path(gone).name}")
    place.unlink()
    assert edge.run("quarantine", "list").json["quarantine"] == []
    edge.run("quarantine", "drop", "k1", "--yes").refused(6, "a merged file that is read")
    assert len(edge.rows()) == 6


def settle(edge: Commanded) -> Path:
    """Two kept files of one device become a merged file, and their own bytes go. Return its place."""
    gone = [edge.seal(1, device="root.sg.d"), edge.seal(3, device="root.sg.d", points=5)]
    edge.seal(2)
    assert edge.sync().code == 0
    for path in gone:
        for end in edge.sealed.pop(path):
            (edge.site / (path + end)).unlink()
    assert edge.sync().code == 0
    return let_settle(edge)


def let_settle(edge: Commanded) -> Path:
    """Merge, and let the sources' bytes go. Return the place of the merged file."""
    assert edge.run("merge").json["groups"] == 1
    app = open_app(load_settings(edge.folder / "tidemark.toml", {}))
    clock = app.clock
    for days in (15, 17):
        app.clock = lambda days=days: clock() + days * DAY  # type: ignore[misc]
        housekeep(app, app.receiver_settings())
    app.ledger.close()
    (merged,) = (edge.root / "data").rglob("*-merged-*.tsfile")
    return merged


@pytest.mark.full
def test_a_settled_file_of_kept_points_is_given_up_with_all_that_it_holds(edge: Commanded) -> None:
    merged = settle(edge)
    data = bytearray(merged.read_bytes())
    data[len(data) // 2] ^= 1
    merged.write_bytes(data)
    refused = edge.run("read", "--tall", "--out", str(edge.folder / "out.csv"))
    refused.refused(7)
    assert refused.json["hint"].startswith("./tidemark verify --repair")
    repaired = edge.run("verify", "--repair")
    repaired.refused(20)
    (one,) = edge.run("quarantine", "list").json["quarantine"]
    gone = [f"data/sequence/root.sg/0/0/{1_600_000_000_000 + n}-{n}-0-0.tsfile" for n in (1, 3)]
    assert repaired.json["hint"] == f"./tidemark quarantine drop {one['id']}"
    assert one["reason"].endswith(f"it holds all that is left of {', '.join(gone)}")
    for _ in range(2):
        done = edge.run("quarantine", "drop", one["id"], "--yes")
        assert (done.code, done.json["path"]) == (0, merged.relative_to(edge.root).as_posix())
    for path in gone:
        told_everywhere(edge, path)
    assert (edge.run("verify", "--deep").code, edge.run("quarantine", "list").json["quarantine"]) == (0, [])
    assert edge.run("ledger", "rebuild", "--replace", "--yes").code in (0, 23)
    for path in gone:
        told_everywhere(edge, path)


def test_a_settled_file_that_is_whole_is_not_given_up(edge: Commanded) -> None:
    settle(edge)
    merged = 4  # three sources before it
    edge.run("quarantine", "drop", f"k{merged}", "--yes").refused(6, "nothing to give up")
    edge.run("quarantine", "drop", "k1", "--yes").refused(3, "k1")
    assert len(edge.rows()) == 8


@pytest.mark.full_after(1)
@pytest.mark.parametrize("asked", [False, True], ids=["nothing", "live one"])
def test_a_settled_file_of_kept_and_live_points_is_sent_again_and_the_rest_given_up(edge: Commanded, asked: bool) -> None:
    """`asked`: the drop made the receiver ask for the live file before the merged one rotted."""
    first, second = edge.seal(1, device="root.sg.d", points=3 + 2 * (not asked)), edge.seal(3, device="root.sg.d")
    live, gone = (first, second) if asked else (second, first)
    edge.seal(2)
    assert edge.sync().code == 0
    merged = let_settle(edge)
    for end in edge.sealed.pop(gone):
        (edge.site / (gone + end)).unlink()
    assert edge.sync().code == 0
    data = bytearray(merged.read_bytes())
    data[len(data) // 2] ^= 1
    merged.write_bytes(data)
    edge.run("verify").refused(20)
    repaired = edge.run("verify", "--repair").json
    (told,) = [d for d in repaired["differences"] if d["what"] == "damaged"]
    assert "sends it again" in told["repaired"] and gone in told["repaired"]
    assert repaired["ok"] or repaired["hint"] == "./tidemark sync plant1"
    assert edge.sync().code == 0
    stays = edge.run("verify", "--repair")
    stays.refused(20)
    (one,) = edge.run("quarantine", "list").json["quarantine"]
    assert stays.json["hint"] == f"./tidemark quarantine drop {one['id']}"
    assert one["reason"].endswith(f"it holds all that is left of {gone}")
    for _ in range(2):
        assert edge.run("quarantine", "drop", one["id"], "--yes").code == 0
    for _ in range(2):
        assert [int(time) for device, _, time, _, _ in edge.rows() if device == "root.sg.d"] == [1, 2, 3]
        assert (edge.run("why", gone).json["state"], edge.run("why", live).json["state"]) == ("given up", "in the catalog")
        assert (edge.run("verify", "--deep").code, edge.sync().json["state"]) == (0, "nothing")
        assert edge.run("ledger", "rebuild", "--replace", "--yes").code in (0, 23)
