"""`why node:…`, `why slot:…`, and what `status` and `doctor` say of data nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster_world import Asked, ClusterWorld, last_json
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import operations as group_rows
from tidemark.ledger.cluster import tables as cluster_rows


def test_a_node_that_serves_is_final(ask: Asked) -> None:
    code, answer = ask("why", "node:n1")
    assert code == 0 and answer["state"] == "serving" and answer["final"] and not answer["next"]


def test_a_node_whose_disk_is_not_mounted(world: ClusterWorld, ask: Asked) -> None:
    (world.folder / "n2" / ".tidemark/node.json").unlink()
    answer = ask("why", "node:n2")[1]
    assert answer["state"] == "away" and "not the folder of node n2" in answer["cause"]
    assert "doctor" in answer["next"] and "quorum" in answer["if_you_wait"]


def test_a_node_that_lacks_operations(world: ClusterWorld, ask: Asked) -> None:
    with world.app.ledger.write() as connection:
        told = group_rows.OperationRow("centre", world.table.owners[0], 1, 0, "create_database", "root.sg", "ab")
        group_rows.set_operation_state(connection, group_rows.propose_operations(connection, [told]), "committed", 1.0)
    answer = ask("why", f"node:{world.table.owners[0]}")[1]
    assert "it lacks: create database root.sg" in answer["evidence"]
    assert answer["state"] == "behind" and answer["next"] == "./tidemark load" and not answer["final"]
    cluster = ask("status")[1]["cluster"]
    assert cluster["state"] == "behind" and cluster["behind"] == sorted(world.table.group_of(0))


def test_a_node_that_has_the_schema_is_not_behind_whatever_is_noted(world: ClusterWorld, ask: Asked) -> None:
    """A delivery that died before it could write down that it came."""
    route = world.table.route_schema("root.sg")
    with world.app.ledger.write() as connection:
        told = group_rows.OperationRow("centre", route.header, 1, route.slot, "create_database", "root.sg")
        group_rows.set_operation_state(connection, group_rows.propose_operations(connection, [told]), "committed", 1.0)
        paper = schema_bytes_of(connection, "centre", "root.sg")
    has, lacks, *_ = route.members
    world.node(has).put_schema("root.sg", paper)
    assert ask("why", f"node:{has}")[1]["state"] == "serving"
    assert ask("why", f"node:{lacks}")[1]["state"] == "behind"
    told_of = {problem["node"] for problem in ask("cluster", "check")[1]["problems"] if "schema" in problem["problem"]}
    assert told_of == set(route.members) - {has}


def test_a_slot_says_what_its_move_waits_for(world: ClusterWorld, ask: Asked) -> None:
    assert ask("why", "slot:0")[1]["state"] == "settled"
    world.join("n4")
    slot = min(world.table.moving)
    members = world.table.group_of(slot)
    answer = ask("why", f"slot:{slot}")[1]
    assert answer["state"] == "moving" and answer["next"] == "./tidemark cluster add n4"
    assert all(name in answer["cause"] for name in members)
    with world.app.ledger.write() as connection:
        for name in members:
            move_rows.acknowledge_slots(connection, "centre", 2, [slot], name, 1.0)
        move_rows.set_move_state(connection, "centre", 2, [slot], "acknowledged", 1.0)
    assert ask("why", f"slot:{slot}")[1]["state"] == "acknowledged"
    filling = ask("why", "node:n4")[1]
    assert filling["state"] == "filling" and filling["next"] == "./tidemark cluster add n4"


def test_what_is_no_node_and_no_slot(ask: Asked) -> None:
    for subject, known in (("node:n9", "n1, n2, n3"), ("slot:12", "0 to 11"), ("slot:x", "0 to 11")):
        code, answer = ask("why", subject)
        assert code == 3 and known in answer["error"]


def test_status_has_a_line_for_the_nodes(world: ClusterWorld, ask: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("status")[1]["cluster"]["state"] == "settled"
    world.join("n4")
    cluster = ask("status")[1]["cluster"]
    assert cluster["state"] == "moving" and cluster["next"] == "./tidemark cluster add n4"
    assert world.run("status") == 0
    assert "slots move" in capsys.readouterr().out


def test_status_without_a_cluster_is_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "alone"
    folder.mkdir()
    world = ClusterWorld(folder)
    assert world.run("status", "--json") == 0
    assert "cluster" not in last_json(capsys.readouterr().out)


def test_a_node_that_left_long_ago_has_nothing_of_ours(world: ClusterWorld, ask: Asked) -> None:
    with world.app.ledger.write() as connection:
        row = next(row for row in cluster_rows.nodes_of_receiver(connection, "centre") if row.node == "n3")
        cluster_rows.put_node(connection, replace(row, state="left", epoch=0))
    answer = ask("why", "node:n3")[1]
    assert answer["state"] == "left" and "its folder was let go: nothing of ours lies there" in answer["evidence"]


def test_doctor_looks_at_every_node(world: ClusterWorld, ask: Asked) -> None:
    (world.folder / "n2" / ".tidemark/table/1").unlink()
    (world.folder / "n3" / ".tidemark/node.json").write_bytes((world.folder / "n1" / ".tidemark/node.json").read_bytes())
    _, answer = ask("doctor")
    checks = {one["name"]: one for one in answer["checks"]}
    assert checks["cluster"]["ok"] and "2 copies, 12 slots" in checks["cluster"]["detail"]
    assert checks["node n1: folder"]["ok"] and checks["node n1: table"]["ok"] and checks["node n1: space"]["ok"]
    assert not checks["node n2: table"]["ok"] and "epoch 0" in checks["node n2: table"]["detail"]
    assert not checks["node n3: folder"]["ok"] and "node n1" in checks["node n3: folder"]["detail"]


def test_doctor_is_content_with_a_node_that_left(world: ClusterWorld, ask: Asked) -> None:
    """Its folder is ours until the grace is over, with the table of that time."""
    with world.app.ledger.write() as connection:
        cluster_rows.set_node_state(connection, "centre", "n3", "left", 1.0)
    (world.folder / "n3" / ".tidemark/table/1").unlink()
    _, answer = ask("doctor")
    checks = {one["name"]: one for one in answer["checks"]}
    assert checks["node n3: folder"]["ok"] and "has left" in checks["node n3: folder"]["detail"]
    assert "node n3: table" not in checks and not [name for name, one in checks.items() if "node" in name and not one["ok"]]


def test_doctor_names_settings_that_the_table_has_otherwise(world: ClusterWorld, ask: Asked) -> None:
    config = world.folder / "tidemark.toml"
    config.write_text(config.read_text().replace("replicas = 2", "replicas = 3").replace("slots = 12", "slots = 24"))
    checks = {one["name"]: one for one in ask("doctor")[1]["checks"]}
    assert not checks["cluster"]["ok"]
    assert "replicas = 3, the table has 2; slots = 24, the table has 12" in checks["cluster"]["detail"]


def test_doctor_before_init(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    world = ClusterWorld(folder)
    world.run("doctor", "--json", "--quiet")
    checks = {str(one["name"]): one for one in last_json(capsys.readouterr().out)["checks"]}  # type: ignore[attr-defined]
    assert "nobody's yet" in checks["node n1: folder"]["detail"]
