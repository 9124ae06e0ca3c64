"""A whole landing goes away at the receiver before it is loaded: it is told, and there is a way on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commanded import Commanded
from tests.crash.explorer import Died
from tests.services.privileges import as_anybody
from tests.services.processes import PartMissing
from tests.services.sshd import Sshd
from tidemark.formats.layout import MANIFEST
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
    edge.run("coverage").refused(20, "1 files): it was whole, is not loaded, and is not at the receiver any more")
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


@pytest.mark.parametrize("harm", [overwrite, swell])
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
