"""A whole landing goes away at the receiver before it is loaded: it is told, and there is a way on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commanded import Commanded
from tests.crash.explorer import Died
from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing
from tests.services.sshd import Sshd
from tidemark.formats.layout import MANIFEST, RECEIPT
from tidemark.stores.local import LocalStore


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commanded:
    return Commanded(tmp_path, monkeypatch)


def lose_landings(edge: Commanded) -> None:
    for folder in (edge.root / "landing").glob("*/*"):
        shutil.rmtree(folder)


def differences(edge: Commanded, *words: str, code: int) -> list[tuple[str, str, bool]]:
    said = edge.run("verify", *words)
    assert said.code == code, said
    return [(one["what"], one["where"], bool(one["repaired"])) for one in said.json["differences"]]


def test_a_landing_that_is_lost_before_it_is_loaded_is_told_and_its_files_come_again(edge: Commanded) -> None:
    edge.seal(1)
    assert edge.sync("--no-load").code == 0
    assert "is not at the receiver any more" not in str(edge.run("coverage").json)
    lose_landings(edge)
    edge.run("coverage").refused(20, "1 file): it was whole, is not loaded, and is not at the receiver any more")
    edge.seal(2)
    edge.sync().refused(5, "has not come")

    assert differences(edge, code=20) == [("missing", "landing", False)]
    assert differences(edge, "--repair", code=0)[0] == ("missing", "landing", True)
    assert differences(edge, code=0) == []
    assert edge.run("load").code == 0

    assert edge.devices() == ["root.sg.d1", "root.sg.d2"]
    edge.assert_in_step()


def overwrite(manifest: Path) -> None:
    manifest.write_text("{")


def swell(manifest: Path) -> None:
    os.truncate(manifest, 1 << 40)


def make_fifo(manifest: Path) -> None:
    manifest.unlink()
    os.mkfifo(manifest)


def make_link(manifest: Path) -> None:
    manifest.unlink()
    manifest.symlink_to("/etc/hostname")


def make_folder(manifest: Path) -> None:
    manifest.unlink()
    manifest.mkdir()
    (manifest / "file").touch()


HARMS = [overwrite, swell, make_fifo, make_link, make_folder]


@pytest.mark.full_after(1)
@pytest.mark.parametrize("harm", HARMS)
def test_a_manifest_that_is_damaged_before_it_is_loaded_is_made_again(edge: Commanded, harm: Callable[[Path], None]) -> None:
    edge.seal(1)
    assert edge.sync("--no-load").code == 0
    (manifest,) = (edge.root / "landing").glob(f"*/*/{MANIFEST}")
    harm(manifest)
    edge.seal(2)
    assert edge.sync().code == 7
    for subject in ("plant1", manifest.parent.name, str(manifest.relative_to(edge.root))):
        assert "./tidemark verify" in edge.run("why", subject).json["next"]

    assert differences(edge, code=20) == [("damaged", "landing", False)]
    assert ("damaged", "landing", True) in differences(edge, "--repair", code=0)
    assert edge.run("load").code == 0

    assert edge.devices() == ["root.sg.d1", "root.sg.d2"]
    edge.assert_in_step()


@pytest.mark.full_after(2)
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("harm", HARMS)
def test_a_rebuild_names_and_keeps_a_landing_with_a_damaged_manifest(
    edge: Commanded, harm: Callable[[Path], None], later: bool
) -> None:
    edge.seal(1)
    assert edge.sync("--no-load").code == 0
    (manifest,) = (edge.root / "landing").glob(f"*/*/{MANIFEST}")
    if later:
        edge.seal(2)
        assert edge.sync("--no-load").code == 0
    harm(manifest)
    found = rebuild(edge)
    assert found["removed_landings"] == [] and f"landing {manifest.parent.name} of link plant1" in found["error"]

    assert differences(edge, code=20) == [("damaged", "landing", False)]
    assert ("damaged", "landing", True) in differences(edge, "--repair", code=0)
    edge.seal(3)
    assert edge.sync().code == 0

    assert edge.devices() == [f"root.sg.d{number}" for number in (1, 2, 3) if later or number != 2]
    edge.assert_in_step()


@pytest.mark.full_after(1)
@pytest.mark.parametrize(("loaded", "lost"), [(0, 1), (1, 3)])
def test_landings_that_were_lost_before_the_ledger_was_rebuilt_are_named_and_their_files_come_again(
    edge: Commanded, loaded: int, lost: int
) -> None:
    """Of several lost in a row only the newest has a name in what is left."""
    send_landings(edge, loaded, lost)
    for folder in set((edge.root / "landing").glob("*/*")) - {p.parent for p in (edge.root / "landing").rglob(RECEIPT)}:
        shutil.rmtree(folder)
    bring_back(edge, lost)
    edge.assert_in_step()


@pytest.mark.full
def test_a_loaded_landing_that_is_gone_with_later_ones_is_not_taken_for_lost(edge: Commanded) -> None:
    send_landings(edge, 2, 2)
    lose_landings(edge)
    bring_back(edge, 2)
    assert edge.sync().json["state"] == "nothing"


def send_landings(edge: Commanded, loaded: int, unloaded: int) -> None:
    for number in range(1, loaded + unloaded + 1):
        edge.seal(number)
        assert edge.sync(*([] if number <= loaded else ["--no-load"])).code == 0


def bring_back(edge: Commanded, lost: int) -> None:
    """A later landing comes, the ledger is rebuilt, and the lost landings' files come again."""
    edge.seal(8)
    assert edge.sync("--no-load").code == 0
    found = rebuild(edge)
    assert "./tidemark verify --repair" in found["error"]
    assert len([trouble for trouble in found["troubles"] if "is lost" in trouble]) == lost
    edge.seal(9)
    edge.sync().refused(5, "has not come")

    assert differences(edge, code=20) == [("missing", "landing", False)] * lost
    assert differences(edge, "--repair", code=0) == [("missing", "landing", True)] * lost
    assert edge.sync().code == 0
    assert len(edge.devices()) == len(edge.sealed)


def rebuild(edge: Commanded) -> dict[str, Any]:
    said = edge.run("ledger", "rebuild", "--replace", "--yes")
    said.refused(23)
    return said.json


def test_a_landing_that_nobody_may_look_at_is_not_taken_for_lost(edge: Commanded) -> None:
    try:
        with as_anybody():
            edge.seal(1)
            assert edge.sync("--no-load").code == 0
            (closed,) = (edge.root / "landing").iterdir()
            closed.chmod(0)
            for command in (["verify"], ["verify", "--repair"]):
                said = edge.run(*command)
                assert said.code == 6 and "Permission denied" in str(said.json) and not said.json["differences"]
            edge.run("coverage").refused(20, "Permission denied")
    except PartMissing as missing:
        pytest.skip(str(missing))
    finally:
        for folder in (edge.root / "landing").iterdir():
            folder.chmod(0o755)
    assert edge.run("load").code == 0
    edge.assert_in_step()


def test_a_repair_that_dies_before_its_manifest_is_done_again(edge: Commanded) -> None:
    """The ledger has the new manifest's digest by then, and the receiver has no manifest."""
    edge.seal(1)
    assert edge.sync("--no-load").code == 0
    lose_landings(edge)

    def die(store: LocalStore, path: str, data: bytes) -> None:
        raise Died(path)

    with edge.monkeypatch.context() as dying, pytest.raises(Died, match=MANIFEST):
        dying.setattr(LocalStore, "publish", die)
        edge.run("verify", "--repair")
    assert differences(edge, code=20) == [("missing", "landing", False)]
    assert differences(edge, "--repair", code=0)[0] == ("missing", "landing", True)
    assert edge.run("load").code == 0
    edge.assert_in_step()


@pytest.mark.full
@pytest.mark.real("sshd")
def test_of_a_far_receiver_the_manifest_is_made_again_and_its_answer_brings_the_files(edge: Commanded, sshd: Sshd) -> None:
    edge.centre, edge.receiver_keys = sshd.url(edge.root), {"host_key": sshd.host_key, "key": str(sshd.key)}
    edge.root.mkdir()
    edge.write_settings()
    edge.seal(1)
    assert edge.sync().code == 0
    lose_landings(edge)
    assert differences(edge, code=20) == [("missing", "landing", False)]
    assert differences(edge, "--repair", code=0) == [("missing", "landing", True)]

    edge.centre, edge.receiver_keys = "centre", {}  # the Tidemark there
    edge.write_settings()
    edge.run("load").refused(7, "missing")
    assert edge.sync().code == 0
    edge.assert_in_step()


def test_a_file_that_the_site_has_not_any_more_holds_up_nothing(edge: Commanded) -> None:
    gone = edge.seal(1)
    assert edge.sync("--no-load").code == 0
    lose_landings(edge)
    for end in edge.sealed.pop(gone):
        (edge.site / (gone + end)).unlink()
    edge.seal(2)
    edge.sync()
    assert differences(edge, "--repair", code=20)[0] == ("missing", "landing", True)
    edge.run("load").refused(7, "missing")
    edge.sync()
    assert edge.devices() == ["root.sg.d2"]


def test_a_loaded_landing_that_is_lost_before_its_receipt_was_read_is_answered_again(edge: Commanded) -> None:
    edge.seal(1)
    assert edge.sync("--no-load").code == 0
    assert edge.run("load").code == 0
    lose_landings(edge)
    assert differences(edge, "--repair", code=0) == [("missing", "landing", True)]
    assert edge.run("load").code == 0
    edge.seal(2)
    assert edge.sync().code == 0
    edge.assert_in_step()
