"""A node that was away gets what it missed, and loses what went, the next time somebody looks; others are not touched."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import d1, rows
from tests.clustered import Clustered, everything_is_held
from tests.small_files import deletion, source
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.replicas.catch_up import catch_up
from tidemark.ledger.cluster import operations as group_rows
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.cluster.tables import ChangeRow
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.receiver.load import load as load_landings

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> Clustered:
    return Clustered(tmp_path)


def two_loads_with_n2_away(centre: Clustered) -> None:
    sender = centre.sender()
    sender.land({source(1): d1((1, 10))})
    centre.load()
    centre.away = {"n2"}
    sender.land({source(2): d1((5, 50), mods=deletion("root.sg.d1.s", 9, 9))})
    sender.land({source(3): d1((7, 70))})
    centre.load()
    assert len(centre.at("n2")) == 1
    centre.away = set()


def test_the_next_load_brings_a_late_member_up_to_date(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    two_loads_with_n2_away(centre)
    centre.load()
    everything_is_held(centre, table)
    applied = dict(centre.sql("SELECT node, applied FROM group_member WHERE header = 'n2'"))
    assert len(set(applied.values())) == 1


def test_it_comes_from_another_node_where_the_receiver_gave_it_up(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    two_loads_with_n2_away(centre)
    centre.empty_cache()
    centre.load()
    everything_is_held(centre, table)
    assert not (centre.root / "data").exists()


def test_a_load_brings_so_much_and_housekeeping_the_rest(centre: Clustered, monkeypatch: pytest.MonkeyPatch) -> None:
    table = centre.begin(*NODES)
    two_loads_with_n2_away(centre)
    monkeypatch.setattr(load_landings, "_CATCH_UP", 1)
    centre.load()
    assert len(centre.at("n2")) == 2  # one more, however big it is
    housekeep(centre.app, centre.receiver)
    everything_is_held(centre, table)


def test_what_was_missed_under_another_header_is_brought_all_the_same(centre: Clustered) -> None:
    """Of three nodes with three copies nothing moves when headers change, so nobody else brings it."""
    table = centre.begin(*NODES)
    two_loads_with_n2_away(centre)
    turn = {"n1": "n2", "n2": "n3", "n3": "n1"}
    new = centre.swap(replace(table, epoch=2, owners=tuple(turn[name] for name in table.owners)))
    centre.load()
    everything_is_held(centre, new)


def test_a_member_that_stays_away_is_named_and_the_rest_goes_on(centre: Clustered) -> None:
    centre.begin(*NODES)
    two_loads_with_n2_away(centre)
    centre.away = {"n2"}
    with centre.cluster() as cluster, centre.app.receiver_store(centre.receiver) as store:
        found = catch_up(cluster, store)
    assert (found.files, list(found.away)) == (0, ["n2"])
    assert "nobody answers" in found.away["n2"]


def test_nobody_late_asks_no_node(centre: Clustered) -> None:
    centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    centre.away = set(NODES)
    with centre.cluster() as cluster, centre.app.receiver_store(centre.receiver) as store:
        assert catch_up(cluster, store).away == {}


def later(centre: Clustered, days: float) -> None:
    centre.app.clock = lambda: time.time() + days * DAY


def test_reclaimed_files_go_from_every_node_and_from_a_late_one_later(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10), (3, 30)), source(2, unsequence=True): d1((2, 20), (3, 31))})
    centre.load()
    before = centre.rows()
    centre.merge()
    later(centre, 15)
    housekeep(centre.app, centre.receiver)
    later(centre, 17)
    centre.away = {"n3"}
    done = housekeep(centre.app, centre.receiver)
    assert done.reclaimed == 2
    assert "n3" in done.nodes_late or len(centre.at("n3")) == 3
    assert len(centre.at("n1")) == 1
    assert len(centre.at("n3")) == 3
    centre.away = set()
    assert housekeep(centre.app, centre.receiver).nodes_late == {}
    assert centre.rows() == before
    everything_is_held(centre, table)
    kinds = {kind for (kind,) in centre.sql("SELECT kind FROM group_operation")}
    assert "remove" in kinds or "put" not in kinds


def test_what_a_forward_that_died_left_at_nodes_is_swept(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    location, sha256, size = centre.sql("SELECT location, sha256, size FROM catalog_file")[0]
    stray = location.replace("tsfile", "other.tsfile")
    with centre.app.ledger.write() as connection:
        from tidemark.ledger.cluster.copies import CopyRow, put_copies

        put_copies(connection, [CopyRow("centre", "n1", stray, 1, sha256, size)])  # written down, never committed
    for node, name in (("n1", stray), ("n2", location + ".part")):
        (centre.node(node) / name).write_bytes(b"left")
    later(centre, 2)
    housekeep(centre.app, centre.receiver)
    everything_is_held(centre, table)
    assert centre.rows() == rows((1, 10))


def test_operations_that_all_members_have_are_forgotten_and_versions_go_on(centre: Clustered) -> None:
    centre.begin(*NODES)
    sender = centre.sender()
    for number in range(1, 5):
        sender.land({source(number): d1((number, number))})
    centre.load()
    housekeep(centre.app, centre.receiver)
    left = centre.sql("SELECT header, max(version), count(*) FROM group_operation GROUP BY header")
    assert all(count <= 3 for *_, count in left)
    sender.land({source(9): d1((9, 9))})
    centre.load()
    now = dict(row[:2] for row in centre.sql("SELECT header, max(version) FROM group_operation GROUP BY header"))
    assert any(now[header] > version for header, version, _ in left)


def test_a_database_whose_last_file_went_is_dropped_at_its_nodes(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    sender = centre.sender(deletes="apply")
    sender.land({source(1): d1((1, 10))})
    centre.load()
    with centre.cluster() as cluster:
        assert all(cluster.open_folder(node).read_schema("root.sg") for node in table.route_schema("root.sg").members)
    with centre.app.ledger.write() as connection:
        from tidemark.ledger.receiver.catalog import retire_files

        retire_files(connection, [1], time.time())
    later(centre, 2)
    housekeep(centre.app, centre.receiver)
    with centre.cluster() as cluster:
        assert not any(cluster.open_folder(node).read_schema("root.sg") for node in table.route_schema("root.sg").members)
    assert centre.copies() == {}
    assert [centre.at(node) for node in NODES] == [[], [], []]


def test_a_merge_that_died_leaves_nothing_that_check_calls_unknown(centre: Clustered) -> None:
    """Its outputs were on their way, and have names that no other merge gives: what lies at a node is removed at once."""
    centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    output = f"data/root.sg/0/0f8e3c1a-merged-{'0' * 12}-0.tsfile"
    with centre.app.ledger.write() as connection:
        row = OperationRow("centre", "n1", 1, 0, "put", output, "0" * 64, 4, at=centre.app.clock())
        proposed = group_rows.propose_operations(connection, [row])
    for name in (output, f"{output}.part"):
        (centre.node("n2") / name).write_bytes(b"left")
    assert unknown(centre) == []
    with centre.app.ledger.write() as connection:
        group_rows.set_operation_state(connection, proposed, "withdrawn", centre.app.clock())
    assert unknown(centre) == []
    housekeep(centre.app, centre.receiver)
    assert not [name for name in centre.at("n2") if "merged" in name]


def test_what_a_dead_merge_left_goes_also_if_the_ledger_knows_nothing_of_it(centre: Clustered) -> None:
    """A ledger that was made anew from its nodes has no operation of it. An output that is on its way stays."""
    centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    dead, coming = (f"data/root.sg/0/0f8e3c1a-merged-{'0' * 12}-{number}.tsfile.part" for number in range(2))
    for name in (dead, coming):
        (centre.node("n2") / name).write_bytes(b"left")
    with centre.app.ledger.write() as connection:
        row = OperationRow("centre", "n1", 1, 0, "put", coming.removesuffix(".part"), "0" * 64, 4, at=centre.app.clock())
        group_rows.propose_operations(connection, [row])
    assert unknown(centre) == [dead]
    housekeep(centre.app, centre.receiver)
    assert [name for name in centre.at("n2") if "merged" in name] == [coming]
    assert unknown(centre) == []


def test_what_a_move_brought_is_not_left_over_while_the_change_is_open_whatever_the_clock_says(centre: Clustered) -> None:
    """It is proved at its node before it is written down; until then no row names it."""
    centre.begin(*NODES)
    brought = centre.node("n2") / "data/root.sg/0/0f8e3c1a-proved.tsfile"
    brought.parent.mkdir(parents=True)
    brought.write_bytes(b"proved")
    moving = ChangeRow("add-1", "centre", "add", "n4", 1, "somebody", centre.app.clock(), "migrating")
    with centre.app.ledger.write() as connection:
        cluster_rows.put_change(connection, moving)
    later(centre, 400)
    housekeep(centre.app, centre.receiver)
    assert brought.exists()
    with centre.app.ledger.write() as connection:
        cluster_rows.set_change_state(connection, "add-1", "done")
    housekeep(centre.app, centre.receiver)
    assert not brought.exists(), "nobody brings it any more"


def test_temp_files_of_documents_that_a_killed_writer_left_at_a_node_go_after_a_day(centre: Clustered) -> None:
    centre.begin(*NODES)
    own = centre.node("n2") / ".tidemark"
    left = [own / f"{name}.0a1b2c3d.tmp" for name in ("node.json", "table/1", "schema/root.sg.schema")]
    others = [own / "table" / "mine.tmp", own / "other.json"]
    for place in (*left, *others):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"{")
    housekeep(centre.app, centre.receiver)
    assert all(place.exists() for place in (*left, *others)), "somebody may be writing them"
    later(centre, 2)
    housekeep(centre.app, centre.receiver)
    assert [place for place in left if place.exists()] == []
    assert all(place.exists() for place in (*others, own / "node.json", own / "table" / "1"))


def unknown(centre: Clustered) -> list[str]:
    return [one.location for one in check_cluster(centre.app, centre.receiver).problems if one.kind == "left_over"]
