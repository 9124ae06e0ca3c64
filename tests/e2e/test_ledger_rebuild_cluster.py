"""The ledger of a receiver with data nodes is lost: their folders say what it said, and give what the receiver gave up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import run_inline
from tests.rebuild_world import PLANT1, World
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster
from tidemark.cluster.migration.migrate import migrate_slots
from tidemark.cluster.nodes import formats as schema_paper
from tidemark.cluster.nodes.cluster import Cluster, open_cluster
from tidemark.cluster.nodes.folder import LOGS, NodeFolder
from tidemark.cluster.replicas.commit import record_slots
from tidemark.errors import PermanentError, UnreachableError
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.ledger.receiver import schemas as schema_rows
from tidemark.ledger.receiver.schemas import SeriesRow
from tidemark.operations.rebuild.cluster import named_digest
from tidemark.operations.rebuild.result import RebuildResult
from tidemark.receiver.merge.merge import merge
from tidemark.settings.model import ClusterSettings, NodeSettings
from tidemark.stores.local import LocalStore

NAMES = ("n1", "n2", "n3")


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are checked in this process."""
    run_inline(monkeypatch)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.real("postgresql"), pytest.mark.full])])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Files of a real server, loaded and spread over three nodes; the ledger on either database."""
    facts = {"url": request.getfixturevalue("postgres_ledger_url")} if request.param == "postgresql" else {}
    made = World(tmp_path, **facts)
    nodes = {name: NodeSettings(name, f"file://{tmp_path}/nodes/{name}") for name in (*NAMES, "n4")}
    cluster = ClusterSettings(replicas=2, quorum=1, slots=16, grace_hours=0)
    made.settings = replace(made.settings, cluster=cluster, nodes={name: nodes[name] for name in NAMES})
    made.app.ledger.close()
    made.reopen()
    made.sync("plant1")
    made.load()
    init_cluster(made.app, made.receiver)
    made.settings = replace(made.settings, nodes=nodes)
    made.app.ledger.close()
    made.reopen()
    yield made
    made.app.ledger.close()


def node(world: World, name: str) -> NodeFolder:
    return NodeFolder(LocalStore(str(world.folder / "nodes" / name)), name)


def now(world: World) -> Cluster:
    with open_cluster(world.app, world.receiver) as cluster:
        assert cluster is not None
        return cluster


def copies(world: World) -> list[tuple[object, ...]]:
    return sorted(world.sql("SELECT node, location, slot, sha256, size, state FROM node_copy"), key=repr)


def sound(result: RebuildResult) -> None:
    found = result.findings
    assert (found.troubles, found.lost, found.unknown) == ([], [], [])


@pytest.mark.full
def test_table_nodes_and_copies_are_those_of_before(world: World) -> None:
    rows, facts, held, before = world.rows(), world.facts(), copies(world), now(world)
    assert rows and held

    world.lose_ledger()
    sound(world.rebuild())

    after = now(world)
    assert (after.table, after.table_bytes, after.identity) == (before.table, before.table_bytes, before.identity)
    assert {name: (row.identifier, row.store, row.state, row.epoch) for name, row in after.nodes.items()} == {
        name: (row.identifier, row.store, row.state, row.epoch) for name, row in before.nodes.items()
    }
    assert copies(world) == held
    assert world.facts() == facts
    assert world.rows() == rows
    assert check_cluster(world.app, world.receiver).problems == ()


MERGED = (
    "SELECT m.location, m.sha256, m.visible, m.points, s.path, s.generation, s.visible, a.points_in, a.overwritten, a.at"
    " FROM lineage l JOIN catalog_file m ON m.file_id = l.merged_id JOIN catalog_file s ON s.file_id = l.source_id"
    " JOIN merge_account a ON a.merged_id = m.file_id WHERE m.state = 'live' ORDER BY m.location, s.path, s.generation"
)


@pytest.mark.full
def test_merges_that_did_not_settle_come_back_from_the_logs(world: World) -> None:
    assert merge(world.app, world.receiver).files_out
    before, rows, facts = world.sql(MERGED), world.rows(), world.facts()
    assert before

    world.lose_ledger()
    result = world.rebuild()

    sound(result)
    assert result.findings.derived == 0
    assert world.sql(MERGED) == before
    assert world.rows() == rows
    assert world.facts() == facts
    assert merge(world.app, world.receiver).files_out == 0
    assert check_cluster(world.app, world.receiver).problems == ()


@pytest.mark.full
def test_copies_of_a_merged_file_are_no_damage_without_logs_that_tell_of_it(world: World) -> None:
    """The rebuilt ledger does not read it, and has no digest of it but that of its copies."""
    assert merge(world.app, world.receiver).files_out
    for name in NAMES:
        shutil.rmtree(world.folder / "nodes" / name / ".tidemark" / "log")
    merged = {location for (location,) in world.sql("SELECT location FROM catalog_file WHERE role = 'merged'")}

    world.lose_ledger()
    world.rebuild()

    assert {at for _, at, *_ in copies(world)} >= merged
    assert [one for one in check_cluster(world.app, world.receiver).problems if one.location in merged] == []


@pytest.mark.full
def test_the_logs_of_the_groups_go_on_where_they_were(world: World) -> None:
    """The new ledger knows epoch and end of each, so it is not older than its nodes."""
    assert merge(world.app, world.receiver).files_out
    logs = "SELECT header, epoch, settled_epoch, settled_version, in_step FROM group_log ORDER BY header"
    before = world.sql(logs)
    assert any(version for *_, version, _ in before)

    world.lose_ledger()
    sound(world.rebuild())

    assert [(header, epoch - 1, *rest) for header, epoch, *rest in world.sql(logs) if epoch] == before
    with open_cluster(world.app, world.receiver) as cluster:
        assert cluster is not None
        record_slots(cluster)
    assert {header: epoch for header, epoch, *_ in world.sql(logs)} == {header: epoch + 2 for header, epoch, *_ in before}


@pytest.mark.full
def test_files_that_the_receiver_gave_up_come_back_from_the_nodes(world: World) -> None:
    rows, facts = world.rows(), world.facts()
    shutil.rmtree(world.centre / "data")

    world.lose_ledger()
    sound(world.rebuild())

    assert world.facts() == facts
    assert world.rows() == rows
    assert check_cluster(world.app, world.receiver).problems == ()


@pytest.mark.full
def test_a_copy_that_rotted_is_not_taken_and_another_is(world: World) -> None:
    rows = world.rows()
    shutil.rmtree(world.centre / "data")
    location = next(location for name, location, *_ in copies(world) if name == "n1")
    place = world.folder / "nodes" / "n1" / str(location)
    place.write_bytes(place.read_bytes()[:-1] + b"x")

    world.lose_ledger()
    result = world.rebuild()

    assert world.rows() == rows
    told = [trouble for trouble in result.findings.troubles if str(location) in trouble]
    assert len(told) == 1 and "node n1" in told[0]
    assert not any(name == "n1" and at == location for name, at, *_ in copies(world))


@pytest.mark.full
def test_a_migration_that_was_cut_short_is_gone_on_with(world: World) -> None:
    rows = world.rows()
    change_nodes(world.app, world.receiver, Wanted("add", "n4"), wait=False)
    table = now(world).table
    assert table.moving and node(world, "n4").list_sizes() == {}

    world.lose_ledger()
    sound(world.rebuild())

    assert now(world).table == table
    assert world.rows() == rows
    assert change_nodes(world.app, world.receiver, Wanted("rebalance")).state == "done"
    migrate_slots(world.app, world.receiver)
    assert node(world, "n4").list_sizes() and world.rows() == rows
    assert check_cluster(world.app, world.receiver).problems == ()


@pytest.mark.full
def test_a_change_that_was_through_stays_through(world: World) -> None:
    rows = world.rows()
    change_nodes(world.app, world.receiver, Wanted("add", "n4"))
    migrate_slots(world.app, world.receiver)  # the grace of what went is over
    held = copies(world)

    world.lose_ledger()
    sound(world.rebuild())

    with world.app.ledger.read() as connection:
        assert cluster_rows.open_change(connection, "centre") is None
    assert copies(world) == held
    assert not now(world).table.moving
    assert change_nodes(world.app, world.receiver, Wanted("remove", "n1")).state == "done"
    assert world.rows() == rows


@pytest.mark.full
def test_logs_that_are_not_used_are_named_also_after_a_change(world: World) -> None:
    change_nodes(world.app, world.receiver, Wanted("add", "n4"))
    for name in ("n1", "n2", "n3"):
        shutil.rmtree(world.folder / "nodes" / name / LOGS)
    world.lose_ledger()
    result = world.rebuild()
    assert any("the logs of the nodes are not used" in trouble for trouble in result.findings.troubles)


@pytest.mark.full
def test_a_node_that_was_leaving_gives_what_only_it_has(world: World) -> None:
    rows = world.rows()
    change_nodes(world.app, world.receiver, Wanted("add", "n4"))
    change_nodes(world.app, world.receiver, Wanted("remove", "n1"), wait=False)

    world.lose_ledger()
    sound(world.rebuild())

    assert now(world).nodes["n1"].state == "leaving"
    assert change_nodes(world.app, world.receiver, Wanted("remove", "n1")).state == "done"
    migrate_slots(world.app, world.receiver)
    assert node(world, "n1").list_sizes() == {}
    assert world.rows() == rows
    assert check_cluster(world.app, world.receiver).problems == ()


@pytest.mark.full
def test_a_change_that_superseded_another_one_is_gone_on_with(world: World) -> None:
    """A node replaced another one, and was lost before it had all. The newest table says who has what still moves."""
    rows = world.rows()
    change_nodes(world.app, world.receiver, Wanted("replace", "n4", gone="n2", request="first"), wait=False)
    migrate_slots(world.app, world.receiver, slots=range(8))
    change_nodes(world.app, world.receiver, Wanted("remove", "n4", supersedes="first"), wait=False)
    table = now(world).table
    assert table.moving and set(table.ring.names) == {"n1", "n3"}

    world.lose_ledger()
    sound(world.rebuild())

    assert {name: row.state for name, row in now(world).nodes.items() if name in ("n2", "n4")} == dict.fromkeys(
        ("n2", "n4"), "leaving"
    )
    assert world.rows() == rows
    assert change_nodes(world.app, world.receiver, Wanted("remove", "n2")).state == "done"
    migrate_slots(world.app, world.receiver)
    assert node(world, "n2").list_sizes() == node(world, "n4").list_sizes() == {}
    assert world.rows() == rows
    assert check_cluster(world.app, world.receiver).problems == ()


def series(world: World) -> list[tuple[object, ...]]:
    return sorted(world.sql("SELECT series, site_id, database_name, type, encoding, aligned, state FROM schema_series"))


def with_a_series_on_no_paper(world: World) -> SeriesRow:
    """Its nodes have it; of what declared it, a log or a file, the receiver has nothing any more."""
    row = SeriesRow("centre", PLANT1, "root.plant1.gone.s", "root.plant1", "INT32", "PLAIN", "LZ4", False, "a log")
    with world.app.ledger.write() as connection:
        schema_rows.put_series(connection, [row])
    with world.app.ledger.read() as connection:
        paper = schema_paper.schema_bytes_of(connection, "centre", row.database_name)
    for name in now(world).table.route_schema(row.database_name).members:
        node(world, name).put_schema(row.database_name, paper)
    return row


def test_series_that_the_receiver_has_on_no_paper_come_from_the_nodes(world: World) -> None:
    row, before = with_a_series_on_no_paper(world), series(world)
    late, *_ = now(world).table.route_schema(row.database_name).members
    node(world, late).put_schema(
        row.database_name, schema_paper.encode_schema(row.database_name, [replace(row, series="root.x")])
    )
    world.lose_ledger()
    sound(world.rebuild())
    assert series(world) == before, "the paper of a node that was away when the last series came is passed over"


@pytest.mark.full
def test_a_torn_schema_paper_is_told_and_another_node_has_it(world: World) -> None:
    row, before = with_a_series_on_no_paper(world), series(world)
    torn, *_ = now(world).table.route_schema(row.database_name).members
    paper = next((world.folder / "nodes" / torn / ".tidemark" / "schema").glob(f"{row.database_name}.schema"))
    paper.write_bytes(paper.read_bytes()[:-1])
    world.lose_ledger()
    (told,) = world.rebuild().findings.troubles
    assert f"node {torn}" in told and paper.name in told
    assert series(world) == before


@pytest.mark.full
def test_nodes_of_two_clusters_are_not_mixed(world: World) -> None:
    node(world, "n4").claim_folder("another")
    world.lose_ledger()
    with pytest.raises(PermanentError, match=r"of 2 clusters: n1 of .*, n4 of another"):
        world.rebuild()


@pytest.mark.full
def test_a_node_that_does_not_answer_is_waited_for_or_taken_out(world: World) -> None:
    """It may have what nobody else does: a rebuild without it is the operator's decision."""
    away = NodeSettings("n2", "sftp://nobody@127.0.0.1:1/srv/n2", host_key="SHA256:" + "a" * 43, key="/no/key")
    world.settings = replace(world.settings, nodes={**world.settings.nodes, "n2": away})
    world.lose_ledger()
    with pytest.raises(UnreachableError, match="node n2 cannot be reached") as caught:
        world.rebuild()
    assert "take [nodes.n2] out of the settings" in caught.value.hint


@pytest.mark.full
def test_a_node_that_is_not_in_the_settings_any_more_is_named(world: World) -> None:
    world.settings = replace(world.settings, nodes={n: s for n, s in world.settings.nodes.items() if n != "n2"})
    rows = world.rows()
    world.lose_ledger()
    result = world.rebuild()
    assert any("node n2 of the partition table is not among" in trouble for trouble in result.findings.troubles)
    assert world.rows() == rows


@pytest.mark.full
def test_without_a_whole_table_files_still_come_back(world: World) -> None:
    rows = world.rows()
    shutil.rmtree(world.centre / "data")
    for name in NAMES:
        for table in (world.folder / "nodes" / name / ".tidemark" / "table").iterdir():
            table.write_bytes(b"torn")
    world.lose_ledger()
    result = world.rebuild()
    assert sum("is damaged" in trouble for trouble in result.findings.troubles) == 3
    assert any("no node has a whole partition table" in trouble for trouble in result.findings.troubles)
    assert world.rows() == rows


@pytest.mark.parametrize(
    ("location", "digest"),
    [
        ("data/root.sg/0/0f8e1c52-452ab32ec4a5-1600000000002-2-0-0.tsfile", "452ab32ec4a5"),
        ("data/root.sg/0/0f8e1c52-452ab32ec4a5-1600000000002-2-0-0.tsfile.96c6cba350fe.mods", "96c6cba350fe"),
        ("data/root.sg/0/0f8e1c52-452ab32ec4a5-1600000000002-2-0-0.tsfile.96c6cba350fe.mods2", "96c6cba350fe"),
        ("data/root.sg/0/0f8e1c52-eb547922ce3a-merged-464b6d9a5acc-0-0-0.tsfile", "eb547922ce3a"),
        ("data/odd", ""),
    ],
)
def test_the_digest_in_a_name(location: str, digest: str) -> None:
    assert named_digest(location) == digest
