"""An edge that writes what it likes below its own `landing/` folder: papers of its making give it nothing.

Two sites at one receiver, by the command. The edge is `plant2`; it wants the device of `plant1`, root.sg.d1. Before
receipts were kept by the receiver a rebuild believed whatever lay in a landing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.centre import run_inline
from tests.commanded import SITE_ID, Commanded
from tests.landing_maker import SITE_A, SITE_B, Sender
from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing
from tests.small_files import sealed, source
from tidemark.cli.main import main
from tidemark.formats.landing import (
    Answer,
    InventoryEntry,
    LandedFile,
    Manifest,
    Part,
    Receipt,
    decode_manifest,
    decode_receipt,
    encode_document,
)
from tidemark.stores.agent.disk import Disk

DEVICE = "root.sg.d1"
LATER = 4e9  # a receipt's time, in seconds since 1970: the year 2096


@dataclass
class Place:
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def __post_init__(self) -> None:
        self.plant1, self.plant2 = Sender(self.root, SITE_A, "plant1"), Sender(self.root, SITE_B, "plant2")
        store = f'[receivers.centre]\nstore = "file://{self.root}"\n'
        (self.folder / "tidemark.toml").write_text(f'[ledger]\nurl = "sqlite:///ledger.db"\n{store}')

    @property
    def root(self) -> Path:
        return self.folder / "centre"

    def run(self, *words: str, expect: int | tuple[int, ...] = 0) -> dict[str, Any]:
        self.capsys.readouterr()
        code = main(["--config", str(self.folder / "tidemark.toml"), *words, "--json", "--yes"])
        out = self.capsys.readouterr().out
        assert code in (expect if isinstance(expect, tuple) else (expect,)), out
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        return answer

    def owners(self) -> dict[str, str]:
        return {row["device"]: row["site_id"] for row in self.run("owners", "list", expect=(0, 21))["owners"]}

    def begin(self) -> tuple[Path, Path]:
        """Each site sends a file of a device of its own, and it is loaded; the two landings."""
        mine = self.plant1.land({source(1): sealed({DEVICE: {"s": [(1, 10)]}})})
        theirs = self.plant2.land({source(1): sealed({"root.sg.d2": {"s": [(1, 20)]}})})
        self.run("load")
        return mine, theirs

    def send_more(self, version: int) -> dict[str, Any]:
        """What the victim sends next has to load."""
        self.plant1.land({source(version): sealed({DEVICE: {"s": [(version, version)]}})})
        return self.run("load", expect=(0, 7, 23))

    def lose_ledger(self) -> None:
        for path in self.folder.glob("ledger.db*"):
            path.unlink()

    def check_owners(self) -> None:
        assert self.owners() == {DEVICE: SITE_A, "root.sg.d2": SITE_B}

    def check_whole(self, version: int = 7) -> None:
        """Nobody has what is another's, and the victim goes on."""
        self.check_owners()
        before = self.run("read", "--tall", "--out", str(self.folder / "read.csv"))["rows"]
        assert self.send_more(version)["refused"] == 0
        assert self.run("read", "--tall", "--out", str(self.folder / "read.csv"))["rows"] == before + 1


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    run_inline(monkeypatch)
    return Place(tmp_path, capsys)


def planted(place: Place, loaded: float = LATER, **papers: Any) -> Path:
    """A landing of the edge's own making: a file that never was, whose extent is the victim's device, with an answer."""
    path = source(9)
    file = LandedFile(path, 1, 1767225600, Part(path, 400, "ab" * 32), None, None, "ab" * 32, "source")
    extent = (InventoryEntry(path, 400, 1767225600, ((DEVICE, 0, 1 << 40),)),)
    folder = place.plant2.land({}, change={"files": (file,), "added": extent, **papers})
    answer(folder, loaded)
    return folder


def answer(folder: Path, loaded: float) -> None:
    """A receipt in the landing that says that all of it was loaded."""
    data = (folder / "manifest.json").read_bytes()
    manifest = decode_manifest(data)
    answers = tuple(Answer(file.path, file.generation, "loaded") for file in manifest.files)
    sha256 = hashlib.sha256(data).hexdigest()
    told = json.loads(encode_document(Receipt(manifest.landing, manifest.sequence, sha256, loaded, answers)))
    (folder / "receipt.json").write_text(json.dumps({**told, "claimed": [DEVICE]}))


def rewrite(folder: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Change a manifest in place, in the same inode, and its receipt with it."""
    data = encode_document(change(decode_manifest((folder / "manifest.json").read_bytes())))
    with (folder / "manifest.json").open("r+b") as opened:
        opened.write(data)
        opened.truncate()
    answer(folder, 1.0)


def with_the_victims_extent(manifest: Manifest) -> Manifest:
    path = source(5)
    gone = LandedFile(path, 1, 1767225600, Part(path, 400, "cd" * 32), None, None, "cd" * 32, "source")
    extent = InventoryEntry(path, 400, 1767225600, ((DEVICE, 0, 1 << 40),))
    return replace(manifest, files=(*manifest.files, gone), added=(*manifest.added, extent))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("loaded", [1.0, LATER])
def test_a_planted_answer_is_nobodys(place: Place, loaded: float) -> None:
    """The load names it, takes the landing for a new one, and does what it finds: nothing of the file came."""
    place.begin()
    folder = planted(place, loaded)
    told = place.run("load", expect=7)
    assert [(t["what"], t["landing"]) for t in told["troubles"]] == [
        ("receipt", folder.name),
        ("quarantined", folder.name),
    ]
    assert "did not write" in told["troubles"][0]["reason"] and "rebuild" not in json.dumps(told)
    assert decode_receipt((folder / "receipt.json").read_bytes()).answers[0].outcome == "quarantined"
    place.check_whole()
    place.lose_ledger()
    place.run("ledger", "rebuild")
    place.check_whole(8)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("loaded", [1.0, LATER])
def test_a_rebuild_does_not_believe_it(place: Place, loaded: float) -> None:
    place.begin()
    folder = planted(place, loaded)
    place.lose_ledger()
    told = place.run("ledger", "rebuild", expect=23)
    assert [folder.name in trouble and "not of this receiver" in trouble for trouble in told["troubles"]] == [True]
    assert told["lost"] == []
    assert place.owners() == {DEVICE: SITE_A, "root.sg.d2": SITE_B}
    assert place.run("load", expect=7)["loaded"] == 0
    place.check_whole()


def test_rewriting_ones_own_loaded_papers(place: Place) -> None:
    """Named by whoever looks, whatever the folder's time says; a rebuild goes by what the receiver kept."""
    _, folder = place.begin()
    seen = folder.stat()
    rewrite(folder, with_the_victims_extent)
    os.utime(folder, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    told = place.run("load", expect=7)
    assert "loaded with another manifest" in told["troubles"][0]["reason"]
    assert place.run("load", expect=7)["troubles"] == told["troubles"]
    red = place.run("coverage", expect=20)["red"]
    assert any("manifest.json is not the manifest that was loaded" in cell["why"] for cell in red)
    found = place.run("verify", expect=20)["differences"]
    assert [("manifest.json" in d["detail"] or "receipt.json" in d["detail"], d["path"]) for d in found] == [
        (True, folder.name),
        (True, folder.name),
    ]
    place.lose_ledger()
    told = place.run("ledger", "rebuild", expect=23)
    assert len(told["troubles"]) == 2 and told["lost"] == []
    place.check_whole()
    repaired = place.run("verify", "--repair", expect=(0, 20))["differences"]
    assert all(d["repaired"] for d in repaired) and repaired
    place.run("load")
    assert place.run("coverage")["complete"] is True
    assert place.run("verify")["differences"] == []


def test_papers_that_are_taken_away_or_replaced_by_other_things(place: Place) -> None:
    """The receiver has its own: a rebuild needs nothing of the landing."""
    mine, theirs = place.begin()
    shutil.rmtree(theirs)
    (mine / "receipt.json").unlink()
    (mine / "receipt.json").symlink_to("/dev/zero")
    place.lose_ledger()
    assert place.run("ledger", "rebuild")["catalog"] == 2
    place.check_whole()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("whose", ["one's own", "the victim's"])
def test_a_genuine_receipt_copied_to_another_landing(place: Place, whose: str) -> None:
    mine, theirs = place.begin()
    folder = place.plant2.land({source(2): sealed({"root.sg.d2": {"s": [(2, 21)]}})})
    shutil.copy((mine if whose == "the victim's" else theirs) / "receipt.json", folder / "receipt.json")
    shutil.copytree(folder, place.folder / "aside")
    told = place.run("load", expect=23)
    assert ([t["what"] for t in told["troubles"]], told["loaded"]) == (["receipt"], 1)
    shutil.copy((mine if whose == "the victim's" else theirs) / "receipt.json", folder / "receipt.json")
    told = place.run("load", expect=23)
    assert "was written again" in told["troubles"][0]["reason"]
    assert place.run("load")["troubles"] == []
    place.lose_ledger()
    place.run("ledger", "rebuild")
    place.check_whole()


def test_a_receipt_for_another_sites_landing(place: Place) -> None:
    """Who may write into the victim's own folder can only keep it waiting for itself to be answered anew."""
    place.begin()
    folder = place.plant1.land({source(2): sealed({DEVICE: {"s": [(2, 11)]}})})
    answer(folder, LATER)
    told = place.run("load", expect=23)
    assert (told["loaded"], [t["what"] for t in told["troubles"]]) == (1, ["receipt"])
    place.check_whole()


def test_settled_and_decided_papers_in_a_landing_are_none(place: Place) -> None:
    """Only what lies at the receiver's own root is the receiver's."""
    _, theirs = place.begin()
    paper = {"format": 1, "at": 1.0, "who": "root", "action": "owners transfer", "subject": DEVICE, "detail": {"to": SITE_B}}
    for folder in (theirs / "decided", theirs.parent / "decided", place.root / "landing" / "decided"):
        folder.mkdir()
        (folder / "000000001000000-00000000.json").write_text(json.dumps(paper))
        (folder / "settled").mkdir()
        (folder / "settled" / "x.json").write_text("{}")
    place.run("load", expect=(0, 23))
    place.lose_ledger()
    place.run("ledger", "rebuild", expect=(0, 23))
    place.check_whole()


def test_extents_that_an_honest_landing_lies_about_give_no_device(place: Place) -> None:
    """A landing that loads and is answered, whose manifest says of a file of its own that it holds the victim's device.
    Once its bytes are gone a rebuild has nothing but that word."""
    path = source(1)
    lying = (InventoryEntry(path, 10, 1767225600, ((DEVICE, 0, 1 << 40), ("root.sg.d2", 1, 1))),)
    place.plant2.land({path: sealed({"root.sg.d2": {"s": [(1, 20)]}})}, added=lying)
    place.run("load")
    place.plant1.land({path: sealed({DEVICE: {"s": [(1, 10)]}})})
    place.run("load")
    for data in (place.root / "data").rglob(f"{SITE_B[:8]}-*"):
        data.unlink()
    place.lose_ledger()
    place.run("ledger", "rebuild", expect=23)
    place.check_owners()


def of_before(place: Place) -> None:
    """The receiver as an older Tidemark left it: nothing kept, receipts in the landings alone, without the devices."""
    shutil.rmtree(place.root / "answered")
    for paper in (place.root / "landing").rglob("receipt.json"):
        told = json.loads(paper.read_bytes())
        del told["claimed"]
        paper.write_text(json.dumps(told))


def test_a_receiver_of_before_goes_on(place: Place) -> None:
    """Its first load keeps what its ledger knows, devices too; then a rebuild goes by that."""
    place.begin()
    of_before(place)
    with closing(sqlite3.connect(place.folder / "ledger.db")) as rows, rows:
        rows.execute("UPDATE landing SET receipt = replace(receipt, ',\"claimed\"', ',\"of_newer\"'), folder_mtime = 1")
    assert place.run("load")["troubles"] == []
    kept = sorted((place.root / "answered").rglob("*.receipt.json"))
    assert [decode_receipt(paper.read_bytes()).claimed for paper in kept] == [(DEVICE,), ("root.sg.d2",)]
    assert len(list((place.root / "answered").rglob("*.manifest.json"))) == 2
    planted(place)
    place.lose_ledger()
    place.run("ledger", "rebuild", expect=23)
    place.check_owners()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("loaded", [1.0, LATER])
def test_a_receiver_of_before_whose_ledger_is_lost(place: Place, loaded: float) -> None:
    """Nothing says whose word the receipts are: they are believed as far as data files bear them out."""
    _, theirs = place.begin()
    of_before(place)
    planted(place, loaded)
    rewrite(theirs, with_the_victims_extent)
    place.lose_ledger()
    told = place.run("ledger", "rebuild", expect=23)
    assert {lost["path"] for lost in told["lost"]} == {source(9), source(5)}  # the edge's own; nobody else's
    assert place.owners() == {DEVICE: SITE_A, "root.sg.d2": SITE_B}
    place.run("load", expect=(0, 7, 23))
    place.check_whole()


def test_a_lost_ledger_of_a_receiver_of_before_is_noticed(place: Place) -> None:
    """By data files, which no edge can write; a planted receipt is no sign of it."""
    place.begin()
    of_before(place)
    place.lose_ledger()
    told = place.run("load", expect=6)
    assert "older than receiver" in told["error"] or "empty" in told["error"]
    place.run("ledger", "rebuild")
    place.check_whole()


@pytest.mark.parametrize("name", ["plant1", SITE_A])
def test_a_name_that_is_anothers_gives_no_device(place: Place, name: str) -> None:
    """A manifest tells its site's name; an operator's decision by that name may not go to whoever tells it, too."""
    place.begin()
    place.plant2.name = name
    place.plant2.land({source(2): sealed({"root.sg.d3": {"s": [(1, 1)]}})})
    place.run("load")
    if name == "plant1":
        told = place.run("owners", "transfer", "root.sg.d2", "--to", name, expect=2)
        assert SITE_A in told["error"] and SITE_B in told["error"]
    place.run("owners", "transfer", "root.sg.d2", "--to", SITE_A)
    assert place.owners()["root.sg.d2"] == SITE_A


def test_a_name_in_a_command_to_type_is_quoted(place: Place) -> None:
    place.begin()
    place.plant2.name = "plant2; touch /tmp/x"
    place.plant2.land({source(2): sealed({DEVICE: {"s": [(3, 3)]}})})
    told = place.run("load", expect=21)
    assert "--to 'plant2; touch /tmp/x' " in told["troubles"][0]["reason"]


def test_folders_swapped_for_links_while_a_landing_is_cleaned(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in a landing are the edge's choice: where they lead after the last look at them, nothing is removed."""
    place.begin()
    [victim] = (place.root / "data").rglob(f"{SITE_A[:8]}-*.tsfile")
    path = f"data/sequence/root.sg/0/0/{victim.name}"
    folder = place.plant2.land({path: sealed({"root.sg.d2": {"s": [(2, 2)]}})})
    looked = Disk.locate_all

    def meanwhile(disk: Disk, paths: list[str]) -> list[bytes]:
        found = looked(disk, paths)
        inner = (folder / path).parent
        if any(one.endswith(victim.name) and one.startswith("landing/") for one in paths) and not inner.is_symlink():
            inner.rename(folder / "aside")
            inner.symlink_to(victim.parent)
        return found

    monkeypatch.setattr(Disk, "locate_all", meanwhile)
    (folder / "data/sequence/root.sg/0/0/stray").write_bytes(b"so that the folder is not removed as a whole")
    place.run("load", expect=(0, 7, 23))
    assert (folder / path).parent.is_symlink() and victim.exists()
    place.check_whole()


def test_a_push_writes_below_its_own_landings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So an edge's login needs no other right at the receiver. Two runs: the second reads the first one's answer."""
    deployed = Commanded(tmp_path, monkeypatch)
    own = deployed.root / "landing" / SITE_ID
    own.mkdir(parents=True)
    try:
        with as_anybody():
            for sealed_file in (1, 2):
                deployed.seal(sealed_file)
                for closed in (deployed.root, own.parent):
                    closed.chmod(0o555)
                assert deployed.run("sync", "plant1", "--no-load").code == 0
                deployed.root.chmod(0o755)
                assert deployed.run("load").json["loaded"] == 1
    except PartMissing as missing:
        pytest.skip(str(missing))
    finally:
        for closed in (deployed.root, own.parent):
            closed.chmod(0o755)
    assert deployed.run("sync", "plant1").json["state"] == "nothing"
