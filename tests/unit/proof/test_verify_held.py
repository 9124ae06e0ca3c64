"""verify: what is kept out of the catalog, or cannot be compared, is not verified, and not called so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.proof.conftest import SITE_ID, Deployment
from tidemark.ledger.receiver.refusals import QuarantineRow, add_quarantine
from tidemark.operations.decisions import quarantine_drop
from tidemark.proof.coverage.gather import catalog_view
from tidemark.proof.prove import coverage, why
from tidemark.proof.verify.differences import MISSING, Difference, VerifyReport
from tidemark.proof.verify.verify import verify
from tidemark.sync.adopt import adopt


@pytest.fixture
def held(deploy) -> Deployment:
    """Of three files that were sent one rotted before it was loaded, and is in quarantine."""
    d: Deployment = deploy(3)
    d.sync(no_load=True)
    victim = sorted(d.centre.glob("landing/**/*.tsfile"))[0]
    data = bytearray(victim.read_bytes())
    data[40] ^= 1
    victim.write_bytes(data)
    d.load()
    return d


def _path(d: Deployment) -> str:
    return d.path(d.files()[0])


def test_a_file_in_quarantine_is_partial(held: Deployment) -> None:
    report = verify(held.app, held.receiver)
    told = report.as_json()
    assert (report.exit_code, told["ok"]) == (23, False)
    assert told["error"].startswith(f"{_path(held)} is held back: ")
    assert told["hint"] == f"./tidemark why {_path(held)}"


def test_a_reason_names_the_file_and_not_the_landing_that_it_left(deploy) -> None:
    d = deploy(3)
    torn = d.files()[0]
    torn.write_bytes(torn.read_bytes()[:-30])
    d.sync()
    ((path, reason),) = verify(d.app, d.receiver).held
    assert reason.startswith(f"in quarantine: {path}: the last 6 bytes are not")


def test_a_uuid_becomes_the_name_of_its_site_where_it_is_no_folder_of_a_path(deploy) -> None:
    d = deploy(0)
    reason = f"quarantine/{SITE_ID}/l/a of site {SITE_ID}: torn"
    row = QuarantineRow("centre", SITE_ID, "a", 1, "l", reason, 7, "", "{}", 0.0)
    with d.app.ledger.write() as connection:
        add_quarantine(connection, row)
        told = catalog_view(connection, "centre", SITE_ID, {}, {SITE_ID: "plant1"}).trouble
    assert told["a"].startswith(f"in quarantine: quarantine/{SITE_ID}/l/a of site plant1: torn")


def test_a_file_that_the_operator_gave_up_is_partial_too(held: Deployment) -> None:
    quarantine_drop(held.app, held.receiver, "1")
    report = verify(held.app, held.receiver)
    assert [path for path, _ in report.held] == [_path(held)]
    assert report.exit_code == 23


def test_at_the_receiver_alone_what_is_held_is_named_and_the_rest_is_no_failure(held: Deployment) -> None:
    held.app = replace(held.app, settings=replace(held.app.settings, sites={}, links={}))
    report = verify(held.app, held.receiver)
    assert [path for path, _ in report.held] == [_path(held)]
    assert report.exit_code == 23
    assert [site for site, _ in report.elsewhere] == ["plant1"]


def test_at_the_receiver_alone_a_clean_catalog_is_clean(deploy) -> None:
    d = deploy(3)
    d.sync()
    d.app = replace(d.app, settings=replace(d.app.settings, sites={}, links={}))
    report = verify(d.app, d.receiver)
    assert (report.exit_code, report.held, len(report.elsewhere)) == (0, (), 1)


def test_a_difference_and_a_site_that_does_not_answer_go_first() -> None:
    both = VerifyReport("centre", held=(("a", "refused"),), not_read=(("b", "TEXT in an encoding nobody knows"),))
    assert both.exit_code == 23 and both.error_fields["error"] == "a is held back: refused"
    unread = replace(both, held=())
    assert unread.exit_code == 23 and unread.error_fields == {
        "error": "b is not compared: TEXT in an encoding nobody knows",
        "hint": "./tidemark why b",
    }
    away = replace(both, unreachable=(("plant1", "no route"),))
    assert away.exit_code == 5
    assert replace(away, differences=(Difference(MISSING, "plant1", "c", "catalog", "gone"),)).exit_code == 20


def test_adopted_files_are_a_state_of_their_own(deploy, tmp_path: Path) -> None:
    d = deploy(3)
    first, *rest = d.files()
    sender = tmp_path / "sync-sender" / "192.0.2.16_5555"
    sender.mkdir(parents=True)
    (sender / "last_local_files.txt").write_text(f"/opt/iotdb/{d.path(first)}\n")
    assert adopt(d.app, "plant1", tmp_path / "sync-sender").listed == 1
    d.sync()
    report = verify(d.app, d.receiver)
    assert (report.exit_code, report.differences, report.adopted) == (0, (), 1)
    covered = coverage(d.app, d.receiver).as_json()
    assert covered["complete"]
    assert covered["notes"] == ["plant1: 1 file was adopted: brought by another tool, not in the catalog"]
    told = why(d.app, d.path(first))
    assert (told.state, told.final) == ("adopted", True)
    assert "by another tool" in told.cause and "./tidemark adopt" in told.next
    assert why(d.app, d.path(rest[0])).state == "in the catalog"
