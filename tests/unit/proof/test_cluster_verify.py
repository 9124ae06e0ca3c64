"""`verify` reads every copy at every node; what is wrong is named by node and brought again from where it is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.centre import d1, rows
from tests.clustered import Clustered, everything_is_held
from tests.small_files import deletion, source
from tidemark.proof.verify.differences import DAMAGED, MISSING, VerifyReport
from tidemark.proof.verify.verify import verify

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> Clustered:
    centre = Clustered(tmp_path)
    centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 1)), source(2): d1((2, 2), (4, 4), mods=deletion("root.sg.d1.s", 4, 4))})
    centre.load()
    return centre


def checked(centre: Clustered, repair: bool = False) -> VerifyReport:
    return verify(centre.app, centre.receiver, repair=repair)


def break_one(centre: Clustered, node: str, suffix: str = ".tsfile") -> str:
    path = min((centre.node(node) / "data").rglob(f"*{suffix}"))
    path.write_bytes(b"x" * path.stat().st_size)
    return path.relative_to(centre.node(node)).as_posix()


def test_sound_copies_are_all_read(centre: Clustered) -> None:
    report = checked(centre)
    assert report.differences == ()
    assert report.checked >= 9  # three files at three nodes


def test_a_receiver_that_gave_everything_up_has_no_difference(centre: Clustered) -> None:
    centre.empty_cache()
    assert checked(centre).differences == ()


@pytest.mark.parametrize("cached", [True, False])
def test_a_damaged_copy_is_named_by_node_and_repaired(centre: Clustered, cached: bool) -> None:
    location = break_one(centre, "n2")
    if not cached:
        centre.empty_cache()
    (found,) = checked(centre).differences
    assert (found.what, found.where, found.path, found.repaired) == (DAMAGED, "node n2", location, "")
    assert found.next == "./tidemark verify --repair"
    (mended,) = checked(centre, repair=True).differences
    assert mended.repaired
    assert checked(centre).differences == ()
    everything_is_held(centre)


def test_a_copy_that_is_gone_comes_again(centre: Clustered) -> None:
    for path in (centre.node("n3") / "data").rglob("*.mods"):
        path.unlink()
    (found,) = checked(centre).differences
    assert (found.where, "gone" in found.detail) == ("node n3", True)
    assert [bool(d.repaired) for d in checked(centre, repair=True).differences] == [True]
    everything_is_held(centre)


def test_what_no_quorum_holds_is_named(centre: Clustered) -> None:
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql("DELETE FROM node_copy WHERE node <> 'n1'")
    found = checked(centre).differences
    assert {d.what for d in found} == {MISSING} and len(found) == 3
    assert all("1 of the group" in d.detail for d in found)
    assert all(d.repaired for d in checked(centre, repair=True).differences)
    everything_is_held(centre)


def test_the_receivers_own_damaged_copy_comes_again_from_a_node(centre: Clustered) -> None:
    path = min((centre.root / "data").rglob("*.tsfile"))
    path.write_bytes(b"x" * path.stat().st_size)
    (found,) = checked(centre).differences
    assert found.where == "catalog"
    (mended,) = checked(centre, repair=True).differences
    assert mended.repaired == "fetched again from a data node"
    assert centre.rows() == rows((1, 1), (2, 2))


def test_a_node_that_is_away_is_named_and_not_called_verified(centre: Clustered) -> None:
    centre.away = {"n1"}
    report = checked(centre)
    assert [name for name, _ in report.unreachable] == ["node n1"]
    assert report.error_fields["error"].startswith("node n1 was not verified: ")
    assert (report.exit_code, report.differences) == (5, ())
