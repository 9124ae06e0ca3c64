"""Files that settled or were reclaimed while the server was away, or before it was named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import Centre, d1, rows
from tests.landing_maker import Sender
from tests.small_files import source
from tests.unit.receiver.test_load_iotdb import Pair
from tidemark.ledger.receiver import merges as merge_rows
from tidemark.operations.housekeeping import housekeep

DAY = 86_400


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(Centre(tmp_path))


@pytest.fixture
def sender(pair: Pair) -> Sender:
    return pair.centre.sender()


def settle(pair: Pair) -> None:
    """Merge, let the merged files stand alone, give up the sources."""
    centre = pair.centre
    centre.merge()
    with centre.app.ledger.write() as connection:
        due = merge_rows.settle_due(connection, centre.receiver.name, 1e12)
        assert due and merge_rows.mark_settled(connection, due, 1.0)


def test_a_server_that_is_named_later_gets_what_has_settled(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10), (2, 20)), source(2): d1((2, 21), (3, 30))})
    pair.centre.load()
    settle(pair)
    result = pair.give()
    assert (result.files, result.exit_code) == (1, 0)
    assert pair.server.rows() == pair.centre.rows() == rows((1, 10), (2, 21), (3, 30))
    assert pair.give().files == 0


def test_what_has_settled_is_not_given_again_and_wins_over_late_files(pair: Pair, sender: Sender) -> None:
    sender.land({source(3): d1((1, 10), (2, 20)), source(4): d1((2, 21), (3, 30))})
    pair.load()
    settle(pair)
    assert pair.load().files == 0
    sender.land({source(1): d1((0, 5), (2, 99))})
    result = pair.load()
    assert (result.files, result.points) == (0, 1)
    assert pair.server.rows() == pair.centre.rows() == rows((0, 5), (1, 10), (2, 21), (3, 30))


def test_a_settled_file_whose_sources_are_gone_gives_way_to_what_the_site_has(pair: Pair, sender: Sender) -> None:
    paths = (source(3), source(4))
    sender.land({paths[0]: d1((1, 10), (2, 20)), paths[1]: d1((2, 21), (3, 30))})
    pair.load()
    settle(pair)
    sender.land({source(1): d1((0, 5), (2, 99))})
    pair.load()
    sender.land(dropped=tuple(sender.drop(path) for path in paths), removed=paths)
    assert pair.load().exit_code == 0
    assert pair.server.rows() == pair.centre.rows() == rows((0, 5), (1, 10), (2, 99), (3, 30))


def test_a_settled_file_of_which_the_server_had_one_source_is_completed(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10), (2, 20))})
    pair.load()
    pair.server.down = True
    sender.land({source(2): d1((2, 21), (3, 30))})
    pair.load()
    settle(pair)
    pair.server.down = False
    assert pair.give().exit_code == 0
    assert pair.server.rows() == pair.centre.rows() == rows((1, 10), (2, 21), (3, 30))


@pytest.mark.parametrize(("days", "points"), [(3, rows((2, 20))), (9, rows((1, 10), (2, 20)))])
def test_the_bytes_of_what_a_server_has_to_forget_are_kept_for_a_week(
    pair: Pair, sender: Sender, days: int, points: list[object]
) -> None:
    """They say which points that file brought; without them nothing is deleted, and the count says so."""
    sender.deletes = "apply"
    sender.land({source(1): d1((1, 10)), source(2): d1((2, 20))})
    pair.load()
    pair.server.down = True
    sender.land(dropped=(sender.drop(source(1)),), removed=(source(1),))
    pair.load()
    now = pair.centre.app.clock()
    pair.centre.app = replace(pair.centre.app, clock=lambda: now + days * DAY)
    housekeep(pair.centre.app, pair.centre.receiver)
    pair.server.down = False
    pair.give()
    assert pair.server.rows() == points
