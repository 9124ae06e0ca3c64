"""A load or an approval that replaces settled files dies before or after any of its effects: readers never see a point
twice, too few or too many, and the next one ends it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.centre import Centre, Row
from tests.crash.dying_centre import dying
from tests.crash.explorer import Effects, explore, explore_double
from tests.small_files import deletion, sealed, source
from tidemark.errors import NotFoundError
from tidemark.formats.landing import decode_receipt
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.operations.decisions import approve_run

BEFORE = {1: 10, 2: 21, 3: 30}
DELETED = deletion("root.sg.d1.s", 1, 1)


def rows(points: dict[int, int]) -> list[Row]:
    return [("root.sg.d1", "s", time, "INT64", str(value)) for time, value in points.items()]


def build(centre: Centre, drop: bool) -> None:
    """Two files, settled; then what the site does to one of them, and what it sends when it is asked."""
    sender = centre.sender(deletes="apply" if drop else "keep")
    one = sealed({"root.sg.d1": {"s": [(1, 10), (2, 20)]}})
    two = sealed({"root.sg.d1": {"s": [(2, 21), (3, 30)]}})
    sender.land({source(1): one, source(2): two})
    centre.load()
    centre.merge()
    with centre.app.ledger.write() as connection:
        due = merge_rows.settle_due(connection, centre.receiver.name, 1e12)
        assert due and merge_rows.mark_settled(connection, due, 1.0)
    assert centre.rows() == rows(BEFORE)
    sender.land({source(1): {".mods": DELETED.encode()}})
    whole = sealed({"root.sg.d1": {"s": [(1, 10), (2, 20)]}}, DELETED)
    if drop:
        sender.land({}, dropped=(sender.drop(source(2)),), removed=(source(2),))
        sender.land({source(1): whole})
    else:
        sender.land({source(1): whole, source(2): two})


class SettledWorld:
    """A life is a load, and the approval of the drop where there is one."""

    def __init__(self, folder: Path, template: Path, drop: bool) -> None:
        shutil.copytree(template, folder)
        self.centre = Centre(folder)
        self.drop = drop

    @property
    def after(self) -> dict[int, int]:
        return {2: 20} if self.drop else {2: 21, 3: 30}

    def live(self, effects: Effects) -> None:
        centre = self.centre
        with dying(centre, effects):
            centre.load()
            if self.drop:
                with contextlib.suppress(NotFoundError):  # it was approved before the crash
                    approve_run(centre.app, "20260101T000000-000003")
            centre.reopen()
            assert centre.rows() in (rows(BEFORE), rows(self.after)), "a reader after the crash"

    def check(self) -> None:
        centre = self.centre
        assert centre.rows() == rows(self.after)
        centre.load()  # sweeps the deletions that need not wait any more
        assert centre.sql("SELECT DISTINCT state FROM landing") == [("loaded",)]
        live = [(source(1),)] if self.drop else [(source(1),), (source(2),)]
        assert centre.sql("SELECT path FROM catalog_file WHERE state = 'live' ORDER BY path") == live
        assert centre.sql("SELECT 1 FROM merge_account WHERE waits IS NOT NULL") == []
        assert centre.sql("SELECT 1 FROM pending_drop WHERE state <> 'done'") == []
        assert centre.sql("SELECT state FROM quarantine") == [("superseded",)] and centre.files("quarantine") == []
        named = centre.sql("SELECT location, mods_location FROM catalog_file")
        assert set(centre.files("data")) == {n.removeprefix("data/") for row in named for n in row if n}
        [receipt] = (centre.root / "landing").glob("*/20260101T000000-000002-1/receipt.json")
        assert {r.path for r in decode_receipt(receipt.read_bytes()).resend} == {source(1), source(2)}

    def close(self) -> None:
        self.centre.app.ledger.close()
        shutil.rmtree(self.centre.folder)

    def lose_power(self) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["a deletion", "a drop"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SettledWorld]:
    template = tmp_path / "template"
    template.mkdir()
    made = Centre(template)
    build(made, request.param)
    made.app.ledger.close()
    counter = iter(range(1_000_000))
    return lambda: SettledWorld(tmp_path / str(next(counter)), template, request.param)


@pytest.mark.full_after(1)
def test_replacing_a_settled_file_may_die_at_any_effect(worlds: Callable[[], SettledWorld], when: str) -> None:
    explored = explore(worlds, when=when)
    assert explored.all_died and explored.points > 15


@pytest.mark.soak
def test_and_so_may_its_recovery(worlds: Callable[[], SettledWorld]) -> None:
    assert explore_double(worlds, pairs=300).crashes > 100
