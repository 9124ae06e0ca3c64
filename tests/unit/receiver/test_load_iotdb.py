"""What an IoTDB has after loads: the points that readers of the catalog see, each file given once, whatever came between."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import Centre, d1, rows
from tests.landing_maker import SITE_B, Sender, move_aside
from tests.small_files import deletion, source
from tests.small_iotdb import SmallIoTDB
from tidemark import connections
from tidemark.errors import UsageError
from tidemark.formats.landing import InventoryEntry
from tidemark.operations.decisions import owners_transfer
from tidemark.operations.doctor.doctor import doctor
from tidemark.proof.overview import status
from tidemark.proof.prove import why
from tidemark.receiver.iotdb.load import load_iotdb, server_of
from tidemark.receiver.load.result import IotdbResult
from tidemark.settings.model import ReceiverSettings
from tidemark.tsfiles.points.codes import DataType


class Pair:
    """A receiver and the server that it also loads into."""

    def __init__(self, centre: Centre) -> None:
        self.centre = centre
        self.centre.receiver = replace(centre.receiver, iotdb="iotdb://root@127.0.0.1:6667")
        self.centre.reopen()
        self.server = SmallIoTDB()

    def load(self) -> IotdbResult:
        self.centre.load()
        return self.give()

    def give(self) -> IotdbResult:
        return load_iotdb(self.centre.app, self.centre.receiver, connect=self.server.connect)

    def states(self) -> set[str]:
        return {state for (state,) in self.centre.sql("SELECT DISTINCT state FROM iotdb_file")}

    def partitions(self) -> set[str]:
        return {state for (state,) in self.centre.sql("SELECT DISTINCT state FROM iotdb_partition")}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(Centre(tmp_path))


@pytest.fixture
def sender(pair: Pair) -> Sender:
    return pair.centre.sender()


def test_files_are_given_as_they_are_once_and_counted(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10), (2, 20)), source(2): d1((5, 50))})
    first = pair.load()
    assert (first.files, first.counted, first.exit_code) == (2, 3, 0)
    assert pair.server.rows() == pair.centre.rows() == rows((1, 10), (2, 20), (5, 50))
    again = pair.load()
    assert (again.files, again.points, again.found) == (0, 0, 0)
    assert len(pair.server.loads) == 1 and pair.partitions() == {"equal"}
    assert pair.centre.files("staging") == []


def test_a_server_gets_what_readers_see_of_a_site_with_a_prefix(pair: Pair, sender: Sender) -> None:
    """Its files hold other names, so its points are given: late, changed and deleted ones too."""
    sender.land({source(2): d1((1, 11), (2, 21), (3, 31))}, prefix="root.ship7")
    assert pair.load().files == 0
    sender.land({source(1): d1((0, 5), (1, 10))}, prefix="root.ship7")
    pair.load()
    sender.land({source(2): {".mods": deletion("root.sg.d1.s", 2, 2).encode()}}, added=(), prefix="root.ship7")
    result = pair.load()
    below = [("root.ship7.sg.d1", *row[1:]) for row in rows((0, 5), (1, 11), (3, 31))]
    assert pair.server.rows() == pair.centre.rows() == below
    assert (result.files, result.exit_code, pair.partitions()) == (0, 0, {"equal"})


def test_files_that_meet_are_given_in_their_order(pair: Pair, sender: Sender) -> None:
    """The newer value stays, though both came with one landing."""
    newer, older = source(2, unsequence=True), source(1)
    sender.land({newer: d1((1, 11), (2, 21)), older: d1((1, 10), (2, 20), (3, 30))})
    result = pair.load()
    assert [[name.split("-")[1] for name in load] for load in pair.server.loads] == [["1"], ["2"]]
    assert pair.server.rows() == rows((1, 11), (2, 21), (3, 30)) and result.exit_code == 0


def test_an_older_file_that_comes_late_overwrites_nothing(pair: Pair, sender: Sender) -> None:
    """Only the points that readers see of it are given; at no time is a newer value replaced."""
    sender.land({source(2): d1((1, 11), (2, 21))})
    pair.load()
    sender.land({source(1): d1((0, 5), (1, 10), (3, 30))})
    seen: list[object] = []
    pair.server.around = lambda _, act: (act(), seen.append(pair.server.series["root.sg.d1", "s"].get(1)))[0]
    result = pair.load()
    assert (result.files, result.points) == (0, 1)
    assert pair.server.rows() == pair.centre.rows() == rows((0, 5), (1, 11), (2, 21), (3, 30))
    assert seen == [11] and pair.partitions() == {"equal"}


def test_deletions_that_come_later_take_points_away_and_show_what_lay_below(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10), (2, 20)), source(2): d1((2, 21), (3, 31), (4, 41))})
    pair.load()
    sender.land({source(2): {".mods": deletion("root.sg.d1.s", 2, 3).encode()}}, added=())
    result = pair.load()
    assert pair.server.rows() == pair.centre.rows() == rows((1, 10), (2, 20), (4, 41))
    assert (result.gone, result.deleted, result.exit_code) == (1, 1, 0)


def test_what_the_site_compacted_is_not_given_again(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10)), source(2): d1((2, 20))})
    pair.load()
    whole = source(1, inner=1)
    covered = (sender.drop(source(1), whole), sender.drop(source(2), whole))
    sender.land({whole: d1((1, 10), (2, 20))}, superseded=covered, removed=(source(1), source(2)))
    result = pair.load()
    assert (result.files, result.points, result.found, result.gone) == (0, 0, 1, 2)
    assert pair.server.rows() == rows((1, 10), (2, 20)) and len(pair.server.loads) == 1


def test_what_the_site_dropped_leaves_the_server_where_it_leaves_the_catalog(pair: Pair, sender: Sender) -> None:
    sender.deletes = "apply"
    sender.land({source(1): d1((1, 10), (9, 90)), source(2): d1((1, 11), (2, 21))})
    pair.load()
    sender.land(dropped=(sender.drop(source(2)),), removed=(source(2),))
    pair.load()
    assert pair.server.rows() == pair.centre.rows() == rows((1, 10), (9, 90))


def test_a_file_that_is_gone_at_its_site_gives_way_to_what_the_site_has(pair: Pair, sender: Sender) -> None:
    late = source(2, unsequence=True)
    sender.land({source(1): d1((1, 10), (2, 20)), late: d1((1, 11), (5, 51))})
    pair.load()
    sender.land(held=(sender.drop(late),), removed=(late,))
    pair.load()
    assert pair.server.rows() == pair.centre.rows() == rows((1, 10), (2, 20), (5, 51))
    sender.land(added=(InventoryEntry(late, 1, 1, ()),))
    assert pair.load().exit_code == 0
    assert pair.server.rows() == pair.centre.rows() == rows((1, 11), (2, 20), (5, 51))


def test_a_wrong_answer_to_the_question_for_all_series_is_no_difference(pair: Pair, sender: Sender) -> None:
    """2.0.1-beta tells overwritten values of aligned devices in `select *`, and the right ones series by series."""
    pair.server.astray["root.sg.d1", "s"] = {1: 9}
    sender.land({source(1): d1((1, 10), (2, 20))})
    assert pair.load().troubles == ()
    sender.land({source(2): d1((2, 22))})
    pair.server.lose_answers = 1
    pair.load()
    result = pair.give()
    assert (result.points, result.found, result.troubles) == (0, 1, ())
    assert pair.server.rows() == rows((1, 10), (2, 22))


def test_points_that_others_wrote_into_the_server_are_never_deleted(pair: Pair, sender: Sender) -> None:
    sender.deletes = "apply"
    sender.land({source(1): d1((1, 10), (9, 90))})
    pair.load()
    pair.server.series["root.sg.d1", "s"][5] = 55
    sender.land(dropped=(sender.drop(source(1)),), removed=(source(1),))
    pair.load()
    assert pair.server.rows() == rows((5, 55))


def test_a_server_that_is_down_gets_everything_later(pair: Pair, sender: Sender) -> None:
    pair.server.down = True
    sender.land({source(1): d1((1, 10))})
    away = pair.load()
    assert (away.exit_code, away.troubles[0].what) == (5, "iotdb")
    assert pair.centre.rows() == rows((1, 10))  # the catalog does not wait for it
    pair.server.down = False
    assert pair.give().files == 1 and pair.server.rows() == rows((1, 10))


def test_a_lost_answer_is_asked_for_and_nothing_is_given_twice(pair: Pair, sender: Sender) -> None:
    pair.server.lose_answers = 1
    sender.land({source(1): d1((1, 10)), source(2): d1((5, 50))})
    assert pair.load().exit_code == 5 and pair.states() == {"giving"}
    after = pair.give()
    assert (after.files, after.found, after.exit_code) == (0, 2, 0) and len(pair.server.loads) == 1


def test_a_refused_file_is_named_and_the_others_go(pair: Pair, sender: Sender) -> None:
    pair.server.refuse = lambda path: "1100 the disk is full" if "-2-" in path.name else ""
    sender.land({source(1): d1((1, 10)), source(2): d1((5, 50)), source(3): d1((9, 90))})
    result = pair.load()
    assert [(t.path, t.kind) for t in result.troubles] == [(source(2), 6), ("root.sg.d1", 20)]
    assert "the disk is full" in result.troubles[0].reason and "2 points, the catalog 3" in result.troubles[1].reason
    assert pair.server.rows() == rows((1, 10), (9, 90))
    pair.server.refuse = lambda _: ""
    assert pair.give().exit_code == 0
    assert pair.server.rows() == rows((1, 10), (5, 50), (9, 90)) and pair.partitions() == {"equal"}


def test_a_file_that_rotted_in_the_catalog_is_not_handed_over(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10)), source(2): d1((5, 50))})
    pair.centre.load()
    (location,) = next(iter(pair.centre.sql("SELECT location FROM catalog_file WHERE path = :p", p=source(1))))
    place = pair.centre.root / location
    data = bytearray(place.read_bytes())
    data[0] ^= 1
    place.unlink()
    place.write_bytes(data)
    result = pair.give()
    assert [t.path for t in result.troubles if t.kind == 7] == [source(1)]
    assert pair.server.rows() == rows((5, 50))


def test_a_series_of_another_type_is_held(pair: Pair, sender: Sender) -> None:
    pair.server.types["root.sg.d1", "s"] = DataType.TEXT
    sender.land({source(1): d1((1, 10))})
    result = pair.load()
    assert result.exit_code != 0 and "another type" in result.troubles[0].reason


def test_a_ledger_that_lost_its_memory_does_not_give_again(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10)), source(2): d1((1, 11), (5, 50))})
    pair.load()
    with pair.centre.app.ledger.write() as connection:
        connection.exec_driver_sql("DELETE FROM iotdb_file")
        connection.exec_driver_sql("DELETE FROM iotdb_partition")
    result = pair.give()
    assert (result.files, result.found + result.points) == (0, 2)
    assert pair.server.rows() == rows((1, 11), (5, 50)) and len(pair.server.loads) == 2


def test_a_device_that_got_another_owner_shows_that_owners_points(pair: Pair, sender: Sender) -> None:
    sender.land({source(1): d1((1, 10), (2, 20))})
    other = pair.centre.sender(SITE_B, name="plant2")
    other.land({source(1): d1((2, 99), (3, 98))})
    pair.load()
    owners_transfer(pair.centre.app, pair.centre.receiver, "root.sg.d1", "plant2")
    pair.load()
    assert pair.server.rows() == pair.centre.rows() == rows((1, 10), (2, 99), (3, 98))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_arrival_ends_with_the_same_points(pair: Pair, sender: Sender, seed: int) -> None:
    chance = random.Random(seed)
    valued = {
        source(n, unsequence=chance.random() < 0.5): d1(*((t, 100 * n + t) for t in sorted(chance.sample(range(40), 12))))
        for n in range(1, 13)
    }
    paths = list(valued)
    chance.shuffle(paths)
    places = [sender.land({path: valued[path] for path in paths[at : at + 3]}) for at in range(0, 12, 3)]
    kept = [move_aside(place, pair.centre.folder / "away") for place in places]
    for place, aside in zip(places, kept, strict=True):
        shutil.move(aside, place)
        assert pair.load().exit_code == 0
        assert pair.server.rows() == pair.centre.rows()
    assert pair.states() == {"given"} and pair.partitions() == {"equal"}


def test_a_server_that_takes_nothing_is_not_asked_for_ever(pair: Pair, sender: Sender) -> None:
    """Its disk is full: ten files say so, the others wait for the next load without a trouble each."""
    tried: list[str] = []

    def full(path: Path) -> str:
        tried.append(path.name)
        return "600 the system is read-only"

    pair.server.refuse = full
    sender.land({source(n): d1((n, n)) for n in range(1, 31)})
    result = pair.load()
    assert result.exit_code == 6 and "the rest waits" in result.troubles[-1].reason
    assert len(tried) == 11  # together, then one by one
    pair.server.refuse = lambda _: ""
    assert pair.give().exit_code == 0 and pair.server.rows() == rows(*((n, n) for n in range(1, 31)))


def test_status_and_why_say_how_the_server_stands(pair: Pair, sender: Sender) -> None:
    pair.server.refuse = lambda path: "1100 no room" if "-2-" in path.name else ""
    sender.land({source(1): d1((1, 10)), source(2): d1((5, 50))})
    pair.centre.load()
    (behind,) = status(pair.centre.app).iotdb
    assert (behind.state, behind.waits, behind.server) == ("behind", 2, "127.0.0.1:6667")
    pair.give()
    (held,) = status(pair.centre.app).iotdb
    assert (held.given, held.waits, held.held, held.state) == (1, 0, 1, "held")
    told = why(pair.centre.app, source(2))
    assert any("127.0.0.1:6667 was not given it: 1100 no room" in line for line in told.evidence) and not told.final
    assert any("127.0.0.1:6667 has it" in line for line in why(pair.centre.app, source(1)).evidence)
    pair.server.refuse = lambda _: ""
    pair.give()
    assert status(pair.centre.app).as_json()["iotdb"][0]["state"] == "equal"


def test_the_password_is_read_from_its_file_and_told_nowhere(tmp_path: Path) -> None:
    place = tmp_path / "password"
    place.write_text("geheim\n")
    receiver = ReceiverSettings("centre", f"file://{tmp_path}", iotdb="iotdb://me@h", iotdb_password_file=str(place))
    server = server_of(receiver)
    assert (server.name, server.user, server.password) == ("h:6667", "me", "geheim") and "geheim" not in repr(server)
    with pytest.raises(UsageError, match="cannot be read"):
        server_of(replace(receiver, iotdb_password_file=str(tmp_path / "gone")))


def test_login_and_password_come_from_an_airflow_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_has_airflow", lambda: False)
    monkeypatch.setenv("AIRFLOW_CONN_TREE", "generic://me:geheim@/")
    receiver = ReceiverSettings("centre", f"file://{tmp_path}", iotdb="iotdb://h", iotdb_connection="tree")
    server = server_of(receiver)
    assert (server.name, server.user, server.password) == ("h:6667", "me", "geheim") and "geheim" not in repr(server)
    monkeypatch.setenv("AIRFLOW_CONN_TREE", "generic://me@/")
    with pytest.raises(UsageError, match="'tree' has no password"):
        server_of(receiver)


def test_doctor_names_a_server_that_is_not_there(tmp_path: Path) -> None:
    config = tmp_path / "tidemark.toml"
    config.write_text(f'[receivers.centre]\nstore = "{tmp_path / "store"}"\niotdb = "iotdb://root@127.0.0.1:1"\n')
    (check,) = [c for c in doctor(str(config), {}).checks if c.name == "receiver centre: iotdb"]
    assert not check.ok and "127.0.0.1:1 does not answer" in check.detail and check.kind == 5
