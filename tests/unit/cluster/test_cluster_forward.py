"""What is loaded or merged lies at a quorum of its slots' groups before anybody sees it; a table swap delays it, no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import Centre, d1, rows
from tests.clustered import Clustered, everything_is_held, swapping_once
from tests.small_files import deletion, sealed, source
from tidemark.cluster.replicas.forward import make_visible
from tidemark.cluster.slots.balance import even_slots
from tidemark.cluster.slots.hash_ring import Node, identifier_of
from tidemark.errors import NoQuorumError, StaleEpochError
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.receiver import catalog as catalog_rows

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> Clustered:
    return Clustered(tmp_path)


def test_a_loaded_file_and_its_mods_lie_at_every_member_of_its_group(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10), (2, 20), mods=deletion("root.sg.d1.s", 2, 2))})
    assert centre.load().exit_code == 0
    assert centre.rows() == rows((1, 10))
    everything_is_held(centre, table)
    assert len(centre.copies()) == 2
    assert {row[0] for row in centre.sql("SELECT state FROM group_operation")} == {"committed"}
    states = centre.sql(
        "SELECT o.header, m.node, m.applied = MAX(o.version) FROM group_operation o JOIN group_member m"
        " ON m.header = o.header GROUP BY o.header, m.node, m.applied"
    )
    assert states and all(done for *_, done in states)


def test_only_members_of_the_group_get_it(centre: Clustered) -> None:
    centre.replicas, centre.quorum = 2, 1
    centre.reopen()
    table = centre.begin(*NODES, "n4")
    centre.sender().land({source(n): d1((n, n)) for n in range(1, 4)})
    centre.load()
    everything_is_held(centre, table)
    assert {len(nodes) for nodes in centre.copies().values()} == {2}


def test_the_first_file_of_a_database_creates_it_where_its_schema_belongs(centre: Clustered) -> None:
    table, sender = centre.begin(*NODES), centre.sender()
    sender.land({source(1): d1((1, 10))})
    centre.load()
    created = centre.sql("SELECT kind, subject, header FROM group_operation WHERE kind = 'create_database' ORDER BY version")
    assert set(created) == {("create_database", "root.sg", table.route_schema("root.sg").header)}
    with centre.cluster() as cluster:
        for node in table.route_schema("root.sg").members:
            paper = cluster.open_folder(node).read_schema("root.sg")
            assert paper is not None and b'"root.sg.d1.s"' in paper  # as it is after the load
    sender.land({source(2): sealed({"root.sg.d2": {"t": [(5, 10)]}})})
    centre.load()
    with centre.cluster() as cluster:
        papers = {cluster.open_folder(node).read_schema("root.sg") for node in table.route_schema("root.sg").members}
    assert len(papers) == 1 and b'"root.sg.d2.t"' in papers.pop()
    log = b"2,root.sg\n0,root.sg.d3.u,2,2,1,,,-1\n"
    sender.land(schema=[("schema/mlog.txt", 1, 0, log)])
    centre.load()
    with centre.cluster() as cluster:
        papers = {cluster.open_folder(node).read_schema("root.sg") for node in table.route_schema("root.sg").members}
    assert len(papers) == 1 and b'"root.sg.d3.u"' in papers.pop()
    behind = "SELECT 1 FROM group_member m JOIN group_operation o ON o.header = m.header WHERE m.applied < o.version"
    assert centre.sql(behind) == []


def test_a_member_that_is_away_does_not_hold_a_quorum_up(centre: Clustered) -> None:
    centre.begin(*NODES)
    centre.away = {"n2"}
    centre.sender().land({source(1): d1((1, 10))})
    assert centre.load().exit_code == 0
    assert centre.rows() == rows((1, 10))
    assert set(map(frozenset, centre.copies().values())) == {frozenset({"n1", "n3"})}


def test_without_a_quorum_nothing_is_visible_and_the_landing_stays(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    centre.away = {"n2", "n3"}
    centre.sender().land({source(1): d1((1, 10))})
    with pytest.raises(NoQuorumError) as few:
        centre.load()
    assert few.value.kind == 30
    for word in ("n2", "n3", "nobody answers", "2 are needed", "1 of the 3 members"):
        assert word in few.value.message
    assert centre.rows() == []
    assert centre.sql("SELECT state FROM landing") == [("loading",)]
    assert set(centre.sql("SELECT DISTINCT state FROM group_operation")) == {("withdrawn",)}
    centre.away = set()
    assert centre.load().exit_code == 0
    assert centre.rows() == rows((1, 10))
    everything_is_held(centre, table)


def test_another_sites_landing_is_loaded_though_one_has_no_quorum(centre: Clustered) -> None:
    """Groups stand for themselves: what belongs to others that have a quorum goes on."""
    centre.replicas, centre.quorum = 1, 1
    centre.reopen()
    table = centre.begin(*NODES)
    names = {f"root.sg{n}": table.route_data(f"root.sg{n}", 0).header for n in range(30)}
    schema = {name: table.route_schema(name).header for name in names}
    lost = next(name for name, header in names.items() if header == "n1" and schema[name] == "n1")
    kept = next(name for name, header in names.items() if "n1" not in (header, schema[name]))
    centre.away = {"n1"}
    one, two = centre.sender(), centre.sender("22222222-2222-4222-8222-222222222222", name="plant2")
    one.land({source(1).replace("root.sg", lost): sealed({f"{lost}.d1": {"s": [(1, 1)]}})})
    two.land({source(1).replace("root.sg", kept): sealed({f"{kept}.d1": {"s": [(1, 1)]}})})
    with pytest.raises(NoQuorumError):
        centre.load()
    assert centre.rows() == [(f"{kept}.d1", "s", 1, "INT64", "1")]


def test_a_table_that_is_swapped_meanwhile_delays_a_load_only(centre: Clustered) -> None:
    centre.replicas, centre.quorum = 1, 1
    centre.reopen()
    table = centre.begin(*NODES)
    centre.sender().land({source(n): d1((n, n)) for n in range(1, 6)})
    new = replace(table, epoch=2, owners=tuple("n3" if name != "n3" else "n1" for name in table.owners))
    centre.app.opener = swapping_once(centre, new)
    assert centre.load().exit_code == 0
    centre.app.opener = centre.open_store
    assert centre.rows() == rows(*((n, n) for n in range(1, 6)))
    committed = centre.sql("SELECT DISTINCT epoch FROM group_operation WHERE state = 'committed'")
    assert committed == [(2,)]
    owner = new.route_data("root.sg", 0).header
    assert all(owner in nodes for nodes in centre.copies().values())


def test_a_table_that_never_rests_gives_up_for_the_next_load(centre: Clustered, monkeypatch: pytest.MonkeyPatch) -> None:
    centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10))})

    def stale(*_: object) -> None:
        raise StaleEpochError("swapped")

    monkeypatch.setattr(cluster_rows, "require_epoch", stale)
    with pytest.raises(StaleEpochError):
        centre.load()
    monkeypatch.undo()
    assert centre.rows() == []
    centre.load()
    assert centre.rows() == rows((1, 10))


def test_a_member_without_schema_gets_it_before_the_files(centre: Clustered) -> None:
    from tidemark.ledger.cluster import moves as move_rows

    table, sender = centre.begin(*NODES), centre.sender()
    sender.land({source(1): d1((1, 10))})
    centre.load()
    new = centre.swap(replace(table.with_node(Node(identifier_of("n4"), "n4"), even_slots)))
    with centre.app.ledger.write() as connection:
        pulling = {("n4", s): "pulling" for s in range(new.slots) if "n4" in new.group_of(s)}
        move_rows.put_slot_states(connection, centre.name, pulling, new.epoch)
    name = next(
        path
        for n in range(200)
        if "n4" in new.group_of(new.route_data("root.sg", n).slot)
        and (path := f"data/sequence/root.sg/0/{n}/9-9-0-0.tsfile")
    )
    week = 604_800_000
    partition = int(name.split("/")[4])
    sender.land({name: d1((partition * week + 5, 7))})
    assert centre.load().exit_code == 0
    with centre.cluster() as cluster:
        assert cluster.open_folder("n4").read_schema("root.sg")
    assert centre.at("n4")


def test_a_merge_reads_one_member_and_writes_all(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10), (3, 30)), source(2, unsequence=True): d1((2, 20), (3, 31))})
    centre.load()
    before = centre.rows()
    centre.empty_cache()
    result = centre.merge()
    assert (result.groups, result.exit_code) == (1, 0), result.failed
    assert centre.rows() == before
    everything_is_held(centre, table)
    centre.empty_cache()
    assert centre.rows() == before


def test_a_merge_without_a_quorum_leaves_what_was_read(centre: Clustered) -> None:
    table = centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10), (3, 30)), source(2, unsequence=True): d1((2, 20), (3, 31))})
    centre.load()
    before = centre.rows()
    centre.away = {"n1", "n2"}
    result = centre.merge()
    assert result.exit_code == 30
    assert centre.rows() == before
    centre.away = set()
    assert centre.merge().exit_code == 0
    assert centre.rows() == before
    everything_is_held(centre, table)


def test_a_receiver_without_a_cluster_asks_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    centre = Centre(tmp_path)
    monkeypatch.setattr(cluster_rows, "current_table", None)
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    assert centre.rows() == rows((1, 10))
    assert centre.sql("SELECT count(*) FROM group_operation") == [(0,)]


def test_what_was_begun_before_the_first_table_is_not_shown_behind_it(centre: Clustered) -> None:
    """A merge holds no lease that `cluster init` asks for: what it made lies at no node."""
    centre.begin(*NODES)
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    with centre.app.ledger.read() as connection:
        files = catalog_rows.visible_files(connection, "centre")
    shown: list[bool] = []
    with centre.app.receiver_store(centre.receiver) as store, pytest.raises(StaleEpochError):
        make_visible(centre.app, centre.receiver, None, store, files, lambda _: shown.append(True))
    assert shown == []


def test_what_was_brought_by_a_table_that_passed_is_to_go_from_where_nobody_wants_it(centre: Clustered) -> None:
    centre.replicas, centre.quorum = 2, 1
    centre.reopen()
    table = centre.begin(*NODES, "n4")
    names = table.ring.names
    opposite = {name: names[(place + 2) % 4] for place, name in enumerate(names)}
    new = replace(table, epoch=2, owners=tuple(opposite[name] for name in table.owners))
    centre.sender().land({source(1): d1((1, 10))})
    centre.app.opener = swapping_once(centre, new)
    assert centre.load().exit_code == 0
    centre.app.opener = centre.open_store
    members = set(new.route_data("root.sg", 0).members)
    assert [nodes for nodes in centre.copies().values() if nodes != members] == []
    brought = {node for (node,) in centre.sql("SELECT node FROM node_copy WHERE state = 'going'")}
    assert brought == set(names) - members
