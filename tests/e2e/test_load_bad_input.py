"""What comes damaged, doubled, missing or lying: named, kept, and never in the way of the rest."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.landing_maker import SITE_B, Sender, move_aside
from tests.small_files import deletion, sealed, source
from tidemark.errors import CorruptionError, LeaseHeldError, NotFoundError, UsageError
from tidemark.formats.landing import decode_receipt
from tidemark.ledger.leases import Leases
from tidemark.operations.decisions import quarantine_drop, quarantine_list, quarantine_release
from tidemark.receiver.load.load import load
from tidemark.settings.model import ReceiverSettings

GOOD, BAD = source(1), source(2)
GOOD_ROW = ("root.sg.d1", "s", 1, "INT64", "10")
BAD_ROW = ("root.sg.d2", "s", 2, "INT64", "20")


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def good() -> dict[str, bytes]:
    return sealed({"root.sg.d1": {"s": [(1, 10)]}})


def other() -> dict[str, bytes]:
    return sealed({"root.sg.d2": {"s": [(2, 20)]}})


def land_two(sender: Sender) -> Path:
    """A landing of two files; the place of the second below it."""
    return sender.land({GOOD: good(), BAD: other()}) / BAD


def cut(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-7])


def empty(place: Path) -> None:
    place.write_bytes(b"")


def flip(place: Path) -> None:
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)


def remove(place: Path) -> None:
    place.unlink()


def link(place: Path) -> None:
    elsewhere = place.parents[8] / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)


def folder(place: Path) -> None:
    place.unlink()
    place.mkdir()


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (cut, "bytes, the manifest says"),
        (empty, "has 0 bytes"),
        (flip, "its bytes changed on the way"),
        (remove, "missing"),
        (link, "symlink"),
        (folder, "not a regular file"),
    ],
)
def test_a_file_that_is_not_what_was_sent_is_quarantined_alone(centre: Centre, damage, word: str) -> None:  # type: ignore[no-untyped-def]
    sender = centre.sender()
    damage(land_two(sender))
    result = centre.load()
    assert (result.landings, result.loaded, result.quarantined, result.exit_code) == (1, 1, 1, CorruptionError.kind)
    assert [(t.path, word in t.reason) for t in result.troubles] == [(BAD, True)]
    assert centre.rows() == [GOOD_ROW]
    [receipt] = centre.root.rglob("receipt.json")
    answers = {a.path: (a.outcome, a.resend) for a in decode_receipt(receipt.read_bytes()).answers}
    assert answers == {GOOD: ("loaded", False), BAD: ("quarantined", True)}
    # Sent again, it loads, and the quarantine lets go.
    sender.land({BAD: other()})
    assert centre.load().exit_code == 0
    assert centre.rows() == [GOOD_ROW, BAD_ROW]
    assert centre.sql("SELECT state FROM quarantine") == [("superseded",)]
    centre.load()
    assert centre.files("quarantine") == []


SOUND = good()[""]


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"TsFile\x04TsFile",
        b"no TsFile at all, but sent as it was",
        SOUND[:-20],
        SOUND[:-200] + b"\xff" * 30 + SOUND[-170:],
    ],
    ids=["zero-length", "head and tail alone", "something else", "truncated at the site", "overwritten at the site"],
)
def test_a_file_that_was_sent_damaged_is_quarantined_for_what_it_is(centre: Centre, content: bytes) -> None:
    """Its digest agrees, so sending it again would not help; dropping it from quarantine gives it up."""
    sender = centre.sender()
    sender.land({GOOD: good(), BAD: {**other(), "": content}})
    result = centre.load()
    assert (result.loaded, result.quarantined) == (1, 1)
    assert centre.rows() == [GOOD_ROW]
    [receipt] = centre.root.rglob("receipt.json")
    assert [a.resend for a in decode_receipt(receipt.read_bytes()).answers] == [False, False]
    [held] = quarantine_list(centre.app, centre.receiver).as_json()["quarantine"]
    assert held["path"] == BAD and held["reason"]
    assert (centre.root / held["location"]).read_bytes() == content
    with pytest.raises(CorruptionError, match="still cannot be loaded"):
        quarantine_release(centre.app, centre.receiver, str(held["id"]))
    quarantine_drop(centre.app, centre.receiver, str(held["id"]))
    assert quarantine_list(centre.app, centre.receiver).as_json()["quarantine"] == []
    assert centre.files("quarantine") == []
    quarantine_drop(centre.app, centre.receiver, str(held["id"]))  # said again: it is done
    assert centre.sql("SELECT action FROM audit") == [("quarantine drop",)]


def test_a_quarantined_file_that_is_whole_again_is_released(centre: Centre) -> None:
    """An operator put the right bytes in its place, with grown mods waiting beside it."""
    sender = centre.sender()
    place = land_two(sender)
    right = place.read_bytes()
    flip(place)
    centre.load()
    sender.land({BAD: {".mods": deletion("root.sg.d2.s", 0, 1).encode()}})
    assert "in quarantine itself" in centre.load().troubles[0].reason
    [held] = quarantine_list(centre.app, centre.receiver).as_json()["quarantine"]
    (centre.root / held["location"]).unlink()
    (centre.root / held["location"]).write_bytes(right)
    assert quarantine_release(centre.app, centre.receiver, str(held["id"])).as_json()["outcome"] == "loaded"
    assert centre.rows() == [GOOD_ROW, BAD_ROW]
    assert centre.sql(
        "SELECT generation, mods_location <> '' FROM catalog_file WHERE path = :p AND state = 'live'", p=BAD
    ) == [(2, 1)]
    assert centre.files("quarantine") == []


def test_a_file_the_manifest_does_not_name_stays_and_is_told(centre: Centre) -> None:
    stray = land_two(centre.sender()).parent / "stray.tsfile"
    stray.write_bytes(b"who sent me?")
    assert centre.load().exit_code == 0
    assert stray.read_bytes() == b"who sent me?"
    told = centre.sql("SELECT path FROM event WHERE kind = 'file.skipped'")
    assert told == [(str(Path(BAD).parent / "stray.tsfile"),)]
    assert centre.load().landings == 0


def test_a_landing_without_manifest_is_still_arriving(centre: Centre) -> None:
    place = land_two(centre.sender())
    manifest = next(centre.root.rglob("manifest.json"))
    manifest.rename(manifest.with_suffix(".later"))
    before = centre.files("landing")
    assert (centre.load().landings, centre.files("landing")) == (0, before)
    assert place.exists() and centre.sql("SELECT * FROM landing") == []


def spoil_json(folder: Path) -> None:
    (folder / "manifest.json").write_bytes((folder / "manifest.json").read_bytes()[:-9])


def spoil_format(folder: Path) -> None:
    raw = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**raw, "format": 99}))


def spoil_path(folder: Path) -> None:
    text = (folder / "manifest.json").read_text().replace("data/sequence/root.sg/0/0/", "data/../../../../../etc/")
    (folder / "manifest.json").write_text(text)


def spoil_link(folder: Path) -> None:
    (folder / "manifest.json").rename(folder.parents[2] / "m")
    (folder / "manifest.json").symlink_to(folder.parents[2] / "m")


def spoil_twice(folder: Path) -> None:
    raw = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**raw, "files": raw["files"] * 2}))


@pytest.mark.full_after(1)
@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (spoil_json, "not JSON"),
        (spoil_format, "format 99"),
        (spoil_path, "leaves its folder"),
        (spoil_link, "symlink"),
        (spoil_twice, "twice"),
    ],
)
def test_a_manifest_that_cannot_be_accepted_stops_its_site_alone(centre: Centre, spoil, word: str) -> None:  # type: ignore[no-untyped-def]
    sender = centre.sender()
    first = sender.land({GOOD: good()})
    whole = (first / "manifest.json").read_bytes()
    sender.land({BAD: other()})
    centre.sender(SITE_B, name="plant2").land({GOOD: sealed({"root.b.d": {"s": [(1, 1)]}})})
    spoil(first)
    result = centre.load()
    assert (result.landings, result.rejected, result.waiting) == (1, 1, 1)
    assert result.exit_code == CorruptionError.kind
    assert [word in t.reason for t in result.troubles] == [True, False]
    assert [row[0] for row in centre.rows()] == ["root.b.d"]
    # The manifest is put right: both load.
    (first / "manifest.json").unlink()
    (first / "manifest.json").write_bytes(whole)
    assert centre.load().landings == 2
    assert centre.rows()[-2:] == [GOOD_ROW, BAD_ROW]


def test_landings_wait_for_one_that_is_missing(centre: Centre, tmp_path: Path) -> None:
    sender = centre.sender()
    sender.land({GOOD: good()})
    second = sender.land({BAD: other()})
    sender.land({source(3): sealed({"root.sg.d3": {"s": [(3, 3)]}})})
    away = move_aside(second, tmp_path / "disk")
    result = centre.load()
    assert (result.landings, result.waiting) == (1, 1)
    assert result.exit_code == 5
    assert "2" in result.troubles[0].reason and "has not come" in result.troubles[0].reason
    assert centre.rows() == [GOOD_ROW]
    shutil.copytree(away, second)  # carried on a disk
    assert centre.load().landings == 2
    assert [row[0] for row in centre.rows()] == ["root.sg.d1", "root.sg.d2", "root.sg.d3"]
    assert centre.load().as_json() == {**centre.load().as_json(), "landings": 0, "troubles": []}


def test_a_landing_that_comes_twice_is_loaded_once(centre: Centre, tmp_path: Path) -> None:
    first = centre.sender().land({GOOD: good()})
    shutil.copytree(first, tmp_path / "disk")
    centre.load()
    shutil.rmtree(first)
    shutil.copytree(tmp_path / "disk", first)
    result = centre.load()
    assert (result.landings, result.troubles) == (0, ())
    assert centre.rows() == [GOOD_ROW]
    assert sorted(p.name for p in first.iterdir()) == ["manifest.json", "receipt.json"]
    assert centre.sql("SELECT count(*) FROM catalog_file") == [(1,)]


def test_a_copy_under_another_name_is_rejected(centre: Centre) -> None:
    sender = centre.sender()
    first = sender.land({GOOD: good()})
    shutil.copytree(first, first.with_name("20260101T000000-00000f-1"))
    result = centre.load()
    assert (result.landings, result.rejected) == (1, 1)
    assert "lies in the folder of" in result.troubles[0].reason
    sender.land({BAD: other()})
    assert centre.load().landings == 1


def test_another_landing_with_the_same_number_is_rejected(centre: Centre) -> None:
    """A sender whose ledger was set back: both cannot be number 2."""
    sender = centre.sender()
    sender.land({GOOD: good()})
    again = replace(sender)
    sender.land({BAD: other()})
    centre.load()
    again.previous, again.sequence = "20260101T000000-000001-1", 1
    again.land({source(9): sealed({"root.sg.d9": {"s": [(9, 9)]}})}, change={"landing": "20260102T000000-0000ff-1"})
    lying = next(p for p in centre.root.rglob("manifest.json") if b"0000ff-1" in p.read_bytes())
    lying.parent.rename(lying.parent.with_name("20260102T000000-0000ff-1"))
    result = centre.load()
    assert (result.landings, result.rejected) == (0, 1)
    assert "cannot have the same number" in result.troubles[0].reason
    assert centre.rows() == [GOOD_ROW, BAD_ROW]


def test_a_landing_of_another_history_is_rejected(centre: Centre) -> None:
    sender = centre.sender()
    sender.land({GOOD: good()})
    centre.load()
    sender.previous = "20251231T000000-00000a-1"
    sender.land({BAD: other()})
    result = centre.load()
    assert result.rejected == 1 and "different histories" in result.troubles[0].reason


def test_a_time_unit_may_not_change(centre: Centre) -> None:
    sender = centre.sender()
    sender.land({GOOD: good()})
    centre.load()
    sender.time_unit = "ns"
    sender.land({BAD: other()})
    result = centre.load()
    assert result.rejected == 1 and "time unit was ms and is ns" in result.troubles[0].reason


def test_mods_of_a_file_that_never_came_ask_for_all_of_it(centre: Centre) -> None:
    sender = centre.sender()
    sender.generations[BAD], sender.digests[BAD] = 4, "0" * 64
    sender.land({BAD: {".mods": deletion("root.sg.d2.s", 0, 1).encode()}})
    centre.load()
    [receipt] = centre.root.rglob("receipt.json")
    [answer] = decode_receipt(receipt.read_bytes()).answers
    assert (answer.outcome, answer.resend) == ("quarantined", True)
    assert "the whole file has to be sent again" in answer.reason


def test_two_loads_at_once_do_not_meet(centre: Centre) -> None:
    land_two(centre.sender())
    leases = Leases(centre.app.ledger, centre.app.identity)
    with leases.hold_lease("load:centre", "load-elsewhere"), pytest.raises(LeaseHeldError, match="load-elsewhere"):
        centre.load()
    assert centre.load().loaded == 2


def test_a_remote_receiver_is_loaded_where_it_is(centre: Centre) -> None:
    with pytest.raises(UsageError, match="only a Tidemark on that machine"):
        load(centre.app, ReceiverSettings("far", "sftp://t@far:22/srv"))


def test_an_unknown_site_is_named(centre: Centre) -> None:
    with pytest.raises(NotFoundError, match="no site named 'plant9'"):
        centre.load("plant9")
