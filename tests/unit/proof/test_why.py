"""why: every state that is not final has a cause, a next command, and what happens if you wait."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.centre import Centre
from tests.landing_maker import SITE_B
from tests.small_files import sealed, source
from tidemark.errors import NotFoundError
from tidemark.operations.decisions import owners_dismiss, quarantine_drop, quarantine_list
from tidemark.proof.explanation import Explanation
from tidemark.proof.prove import coverage, why
from tidemark.proof.verify.verify import verify
from tidemark.sync.run import Options, run_sync
from tidemark.tsfiles.points.codes import DataType


@pytest.fixture
def centre(tmp_path: Path) -> Centre:
    return Centre(tmp_path)


def open_state(found: Explanation, state: str, *, next_: str) -> None:
    assert found.state == state, found
    assert not found.final
    assert next_ in found.next
    assert found.cause and found.evidence and found.if_you_wait


class TestAtTheReceiver:
    def one_file(self, centre: Centre, data_type: DataType = DataType.INT64, number: int = 1) -> dict[str, dict[str, bytes]]:
        return {source(number): sealed({"root.sg.d1": {"s": [(number, 1)]}}, data_type=data_type)}

    def quarantined(self, centre: Centre) -> str:
        place = centre.sender().land(self.one_file(centre)) / source(1)
        place.write_bytes(place.read_bytes()[:-1])
        centre.load()
        [held] = quarantine_list(centre.app, centre.receiver).as_json()["quarantine"]
        return str(held["id"])

    def test_a_loaded_landing_and_its_files_are_final(self, centre: Centre) -> None:
        sender = centre.sender()
        sender.land(self.one_file(centre))
        sender.land(self.one_file(centre, number=2))
        landing = sorted(p.name for p in (centre.root / "landing" / sender.site_id).iterdir())[0]
        centre.load()
        assert why(centre.app, landing).final
        assert why(centre.app, source(1)).state == "in the catalog"

    def test_a_quarantined_file_and_what_becomes_of_it_when_it_is_given_up(self, centre: Centre) -> None:
        held = self.quarantined(centre)
        open_state(why(centre.app, source(1)), "in quarantine", next_=f"./tidemark quarantine release {held}")
        quarantine_drop(centre.app, centre.receiver, held)
        open_state(why(centre.app, source(1)), "given up", next_="./tidemark verify")
        [cell] = coverage(centre.app, centre.receiver).as_json()["red"]
        assert "given up by the operator" in cell["why"]

    def test_a_newer_generation_ends_the_giving_up(self, centre: Centre) -> None:
        sender = centre.sender()
        place = sender.land(self.one_file(centre)) / source(1)
        place.write_bytes(place.read_bytes()[:-1])
        centre.load()
        [held] = quarantine_list(centre.app, centre.receiver).as_json()["quarantine"]
        quarantine_drop(centre.app, centre.receiver, str(held["id"]))
        sender.land(self.one_file(centre))
        centre.load()
        assert why(centre.app, source(1)).final

    def test_a_refused_file_names_owner_and_transfer(self, centre: Centre) -> None:
        centre.sender().land(self.one_file(centre))
        centre.sender(SITE_B, name="plant2").land(self.one_file(centre, number=2))
        centre.load()
        open_state(why(centre.app, source(2)), "refused", next_="./tidemark owners transfer root.sg.d1 --to plant2")
        device = why(centre.app, "root.sg.d1")
        assert any("from 1970-01-01T00:00:00" in fact for fact in device.evidence), "times are shown as times"
        open_state(device, "claimed by two sites", next_="./tidemark owners transfer root.sg.d1 --to plant2")

    def test_a_refused_file_that_the_operator_dismissed(self, centre: Centre) -> None:
        centre.sender().land(self.one_file(centre))
        centre.sender(SITE_B, name="plant2").land(self.one_file(centre, number=2))
        centre.load()
        owners_dismiss(centre.app, centre.receiver, "plant2")
        found = why(centre.app, source(2))
        open_state(found, "given up", next_="./tidemark verify shows")
        assert "belonged to site plant1; the operator dismissed the file" in found.cause
        assert why(centre.app, "root.sg.d1").final

    def test_a_type_clash_is_told_by_file_device_and_series(self, centre: Centre) -> None:
        centre.sender().land(self.one_file(centre, DataType.INT32) | self.one_file(centre, number=2))
        centre.load()
        for subject in (source(2), "root.sg.d1", "root.sg.d1.s"):
            found = why(centre.app, subject)
            open_state(found, "in the catalog, a type clashes", next_="agree on one type")
            assert "root.sg.d1.s" in found.cause

    def test_a_series_without_trouble_is_its_device(self, centre: Centre) -> None:
        centre.sender().land(self.one_file(centre))
        centre.load()
        assert why(centre.app, "root.sg.d1.s").subject == "root.sg.d1"
        with pytest.raises(NotFoundError, match=r"root\.sg\.d1\.x"):
            why(centre.app, "root.sg.d1.x")

    def test_a_gap_in_the_sequence_is_told_by_landing_and_site(self, centre: Centre) -> None:
        sender = centre.sender(sequence=2, previous="20260101T000000-000001-1")
        sender.land(self.one_file(centre))
        centre.load()
        [landing] = [p.name for p in (centre.root / "landing" / sender.site_id).iterdir()]
        open_state(why(centre.app, landing), "waiting", next_="./tidemark load")


class TestAtTheSite:
    def test_a_file_that_is_open_or_skipped_says_so(self, deploy) -> None:
        d = deploy(3)
        first, second, third = d.files()
        first.with_name(first.name + ".resource").unlink()
        second.write_bytes(b"")
        d.sync()
        open_state(why(d.app, d.path(first)), "not sealed", next_="FLUSH")
        open_state(why(d.app, d.path(second)), "skipped", next_="look at the disk")
        assert why(d.app, d.path(third)).final

    def test_what_waits_for_a_compaction_says_so(self, deploy) -> None:
        """The server was killed between the removals of its sources: its output is whole, one source is gone."""
        d = deploy(3)
        first, second, _ = d.files()
        d.sync()
        made = second.with_name("-".join((*second.name.split("-")[:2], "9-0.tsfile")))
        for end in ("", ".resource"):
            shutil.copy2(f"{second}{end}", f"{made}{end}")
        for one in first.parent.glob(first.name + "*"):
            one.unlink()
        log = made.with_name(made.name.replace(".tsfile", ".inner.inner-compaction.log"))
        log.touch()
        d.sync()
        for path in (log, made, first):
            open_state(why(d.app, d.path(path)), "waits for a compaction", next_="start IoTDB at the site")
        report = verify(d.app, d.receiver)
        assert (report.exit_code, [one.path for one in report.unsent]) == (0, [d.path(made)])
        log.unlink()
        d.sync()
        assert "compaction" not in why(d.app, d.path(first)).state and why(d.app, d.path(made)).final
        assert not verify(d.app, d.receiver).unsent

    def test_a_file_that_no_run_sent_yet_names_the_sync(self, deploy) -> None:
        d = deploy(3)
        first, second, _ = d.files()
        run_sync(d.app, "plant1", Options(only_paths=(d.path(first),)))
        open_state(why(d.app, d.path(second)), "waiting to be sent", next_="./tidemark sync plant1")
        open_state(why(d.app, second.name), "waiting to be sent", next_="./tidemark sync plant1")

    def test_a_landing_nobody_loaded_names_the_load(self, deploy) -> None:
        d = deploy(3)
        d.sync(no_load=True)
        open_state(why(d.app, d.path(d.files()[0])), "landed, not loaded", next_="./tidemark load")
        open_state(why(d.app, "plant1"), "landed", next_="./tidemark load")
