"""`cluster show`, `cluster route`, `cluster check` from the outside: a receiver whose nodes are local folders."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_world import Asked, ClusterWorld, last_json
from tidemark.cluster.nodes.formats import schema_bytes_of
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import operations as group_rows
from tidemark.ledger.cluster import tables as cluster_rows
from tidemark.progress import format_size


def problems(answer: dict[str, Any]) -> set[tuple[str, str]]:
    """(node, what) of each, without what differs from run to run."""
    return {(one["node"], one["problem"]) for one in answer["problems"]}


def test_show_has_the_table_and_what_every_node_holds(world: ClusterWorld, ask: Asked) -> None:
    files = [world.put("root.sg", partition, b"x" * 100) for partition in range(6)]
    code, answer = ask("cluster", "show")
    assert code == 0 and answer["epoch"] == 1 and answer["slots"] == 12
    assert sum(node["slots"] for node in answer["nodes"]) == 12
    assert {node["state"] for node in answer["nodes"]} == {"serving"}
    held = {node["name"]: node["bytes"] for node in answer["nodes"]}
    assert held == {name: 100 * sum(name in world.members(f) for f in files) for name in world.names}
    assert [group["header"] for group in answer["groups"]] == list(world.table.ring.names)
    assert all(group["members"] == list(world.table.groups_by_header()[group["header"]]) for group in answer["groups"])
    covered = [slot for g in answer["groups"] for first, last in g["ranges"] for slot in range(first, last + 1)]
    assert sorted(covered) == list(range(12))
    assert answer["moving"] == []


def test_replica_show_names_each_member_of_each_group(
    world: ClusterWorld, ask: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = ask("replica", "show")
    assert code == 0 and [group["group"] for group in answer["groups"]] == list(world.names)
    for group in answer["groups"]:
        assert [member["node"] for member in group["members"]] == list(world.table.groups_by_header()[group["group"]])
        assert {member["role"] for member in group["members"]} == {"unsynced"} and group["waits"] == "it has no record yet"
    assert world.run("replica", "show") == 0
    told = capsys.readouterr().out
    assert "its folder has no log" in told and "group n1: it has no record yet" in told


def test_show_tells_what_moves_and_how_far_it_is(
    world: ClusterWorld, ask: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    for partition in range(8):
        world.put("root.sg", partition, b"x" * 100)
    world.join("n4")
    code, answer = ask("cluster", "show")
    assert code == 0 and answer["epoch"] == 2
    assert sum(move["slots"] for move in answer["moving"]) == len(world.table.moving)
    assert answer["change"]["kind"] == "add" and answer["change"]["node"] == "n4"
    assert all(move["state"] == "moving" and move["done"] == 0 for move in answer["moving"])
    assert world.run("cluster", "show") == 0
    told = capsys.readouterr().out
    assert "slots move" in told and "▒" in told and "add n4 is migrating" in told


def test_a_plan_tells_slots_bytes_and_time_of_each_node(
    world: ClusterWorld, ask: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    for partition in range(8):
        world.put("root.sg", partition, b"x" * 100_000)
    (world.folder / "n4").mkdir()
    words = ("cluster", "plan", "add", f"n4=file://{world.folder / 'n4'}")
    gains = {one["node"]: one for one in ask(*words)[1]["nodes"]}
    assert gains["n4"]["slots"] > 0 and gains["n4"]["bytes"] > 0
    assert world.run(*words) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("n4"))
    *told, time = line.split()
    assert told == ["n4", str(gains["n4"]["slots"]), *format_size(gains["n4"]["bytes"]).split()]
    assert re.fullmatch(r"0:\d\d", time), "of a rate that the disk just showed"


@pytest.mark.full
def test_who_reads_only_the_first_lines_sees_no_trace_of_python(world: ClusterWorld) -> None:
    words = [sys.executable, "-P", "-m", "tidemark.cli", "--config", str(world.folder / "tidemark.toml"), "cluster", "show"]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_the_picture_is_one_file_that_names_every_node(world: ClusterWorld, tmp_path: Path) -> None:
    world.join("n4")
    page = tmp_path / "cluster.html"
    assert world.run("cluster", "show", "--html", str(page)) == 0
    text = page.read_text()
    assert all(f">{name}</text>" in text for name in ("n1", "n2", "n3", "n4"))
    assert "class='some'" in text and "on their way to it" in text
    assert text.count("<div class='unsynced'>") == 2 * 4 and text.count("its folder has no log") == 2 * 4
    assert text.count("it has no record yet") == 4, "of each group"
    assert "http" not in text.replace("http-equiv", "")


def test_route_says_where_the_table_says_it_lies(world: ClusterWorld, ask: Asked) -> None:
    file = world.put("root.sg", 2)
    week = 604_800_000
    code, answer = ask("cluster", "route", "root.sg", str(2 * week + 5))
    route = world.table.route_data("root.sg", 2)
    assert code == 0 and answer["slot"] == route.slot and answer["members"] == list(world.members(file))
    assert answer["header"] == route.header and answer["epoch"] == 1 and answer["known"]
    assert ask("cluster", "route", "root.sg", "1970-01-15T00:00:00Z")[1]["slot"] == route.slot
    assert ask("cluster", "route", "root.sg.d1.s1", str(2 * week))[1]["database"] == "root.sg"
    assert ask("cluster", "route", "root.sg", "-1")[1]["slot"] == world.table.route_data("root.sg", -1).slot
    schema = ask("cluster", "route", "root.sg")[1]
    assert schema["partition"] is None and schema["slot"] == world.table.route_schema("root.sg").slot
    assert not ask("cluster", "route", "root.other", "0")[1]["known"]
    for time in ("yesterday", str(1 << 63), "9" * 400):
        code, wrong = ask("cluster", "route", "root.sg", time)
        assert code == 2 and time in wrong["error"]


def test_before_init_there_is_nothing_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = ClusterWorld(tmp_path)
    for words in (("show",), ("route", "root.sg"), ("check",)):
        assert world.run("cluster", *words, "--json") == 3
        assert "cluster init" in str(last_json(capsys.readouterr().out)["hint"])


def test_a_sound_cluster_has_no_problem(world: ClusterWorld, ask: Asked) -> None:
    for partition in range(5):
        world.put("root.sg", partition, b"%d" % partition)
    code, answer = ask("cluster", "check")
    assert (code, answer["problems"], answer["ok"]) == (0, [], True)
    assert (answer["nodes"], answer["files"], answer["copies"]) == (3, 5, 10)


def test_a_copy_that_rots_or_goes_is_named_with_its_node(world: ClusterWorld, ask: Asked) -> None:
    rotten, gone = world.put("root.sg", 0, b"first"), world.put("root.sg", 1, b"second")
    (world.folder / world.members(rotten)[0] / rotten.location).write_bytes(b"fIrst")
    (world.folder / world.members(gone)[1] / gone.location).unlink()
    code, answer = ask("cluster", "check")
    assert code == 20 and len(answer["problems"]) == 2
    by_place = {one["location"]: one for one in answer["problems"]}
    assert by_place[rotten.location]["node"] == world.members(rotten)[0]
    assert "digest" in by_place[rotten.location]["problem"]
    assert by_place[gone.location]["problem"] == "its copy is gone" and by_place[gone.location]["next"]


def test_a_copy_that_was_never_made_is_a_problem_of_its_node(world: ClusterWorld, ask: Asked) -> None:
    file = world.put("root.sg", 0)
    lacking = world.members(file)[1]
    world.sql("DELETE FROM node_copy WHERE node = :n", n=lacking)
    (world.folder / lacking / file.location).unlink()
    code, answer = ask("cluster", "check")
    assert code == 20 and problems(answer) == {(lacking, "it has no copy")}


def test_what_is_left_over_is_named(world: ClusterWorld, ask: Asked) -> None:
    file = world.put("root.sg", 0)
    stray = world.folder / "n1" / "data/root.sg/0/stray.tsfile"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"whose?")
    world.sql("UPDATE catalog_file SET state = 'reclaimed' WHERE location = :l", l=file.location)
    code, answer = ask("cluster", "check")
    assert code == 20
    assert ("n1", "left over: the ledger does not know it") in problems(answer)
    unknown = {(name, "it holds a file the catalog does not know") for name in world.members(file)}
    assert unknown <= problems(answer)


def test_what_is_on_its_way_is_not_left_over(world: ClusterWorld, ask: Asked) -> None:
    coming = world.folder / "n1" / "data/root.sg/0/new.tsfile.part"
    coming.parent.mkdir(parents=True)
    coming.write_bytes(b"half")
    operation = group_rows.OperationRow("centre", "n1", 1, 0, "put", "data/root.sg/0/new.tsfile", "00", 8)
    with world.app.ledger.write() as connection:
        group_rows.propose_operations(connection, [group_rows.OperationRow(**{**vars(operation), "at": world.app.clock()})])
    assert ask("cluster", "check")[0] == 0
    world.sql("UPDATE group_operation SET at = at - 7200")
    code, answer = ask("cluster", "check")
    assert code == 20 and "is proposed since" in answer["problems"][0]["problem"]


def test_nodes_that_do_not_agree_are_named(world: ClusterWorld, ask: Asked) -> None:
    table = world.folder / "n1" / ".tidemark/table/1"
    table.write_bytes(table.read_bytes()[:-1])
    (world.folder / "n2" / ".tidemark/node.json").unlink()
    (world.folder / "n3" / ".tidemark/table/1").unlink()
    code, answer = ask("cluster", "check")
    assert code == 20
    said = {one["node"]: one["problem"] for one in answer["problems"]}
    assert "damaged" in said["n1"] and "is not the folder of node n2" in said["n2"]
    assert said["n3"] == "no partition table lies in its folder"


def test_while_slots_move_it_says_so_and_that_is_no_problem(world: ClusterWorld, ask: Asked) -> None:
    for partition in range(6):
        world.put("root.sg", partition, b"%d" % partition)
    world.join("n4")
    code, answer = ask("cluster", "check")
    assert (code, answer["problems"]) == (0, []) and answer["moving"] == len(world.table.moving) > 0


def test_a_member_that_acknowledged_and_lacks_a_file_is_a_problem(world: ClusterWorld, ask: Asked) -> None:
    from tidemark.ledger.cluster import moves as move_rows

    files = [world.put("root.sg", partition, b"%d" % partition) for partition in range(12)]
    world.join("n4")
    slot, file = next(
        (slot, f)
        for f in files
        for slot in [world.table.route_data(f.database, f.partition_from).slot]
        if slot in world.table.moving and "n4" in world.table.group_of(slot)
    )
    with world.app.ledger.write() as connection:
        move_rows.acknowledge_slots(connection, "centre", 2, [slot], "n4", 1.0)
    code, answer = ask("cluster", "check")
    assert code == 20 and ("n4", "it has no copy") in problems(answer)
    assert file.location in {one["location"] for one in answer["problems"]}


def test_states_and_members_that_lead_nowhere_are_named(world: ClusterWorld, ask: Asked) -> None:
    world.sql("INSERT INTO cluster_slot (receiver, node, slot, state, epoch) VALUES ('centre', 'n1', 3, 'pulling', 1)")
    with world.app.ledger.write() as connection:
        told = group_rows.OperationRow("centre", world.table.owners[0], 1, 0, "create_database", "root.sg")
        group_rows.set_operation_state(connection, group_rows.propose_operations(connection, [told]), "committed", 1.0)
        paper = schema_bytes_of(connection, "centre", "root.sg")
    first, *others = world.table.group_of(0)
    world.node(first).put_schema("root.sg", paper)  # it has it, and nobody noted how far it has come
    code, answer = ask("cluster", "check")
    assert code == 20
    assert ("n1", "the slot is pulling by epoch 1, and does not move") in problems(answer)
    lacking = {name for name, problem in problems(answer) if problem == "it lacks the schema of root.sg"}
    assert lacking == set(others)


def test_a_schema_that_a_load_tells_just_now_is_no_problem(world: ClusterWorld, ask: Asked) -> None:
    with world.app.ledger.write() as connection:
        told = group_rows.OperationRow("centre", world.table.owners[0], 1, 0, "create_database", "root.sg")
        group_rows.set_operation_state(
            connection, group_rows.propose_operations(connection, [told]), "committed", world.app.clock()
        )
    assert ask("cluster", "check")[1]["problems"] == []
    world.sql("UPDATE group_operation SET at = at - 7200")
    assert {problem for _, problem in problems(ask("cluster", "check")[1])} == {"it lacks the schema of root.sg"}


def test_a_table_that_rots_in_the_ledger_exits_7_and_names_who_has_it_whole(world: ClusterWorld, ask: Asked) -> None:
    world.sql("UPDATE cluster_table SET paper = 'AAAA'")
    (world.folder / "n2" / ".tidemark/table/1").unlink()
    code, answer = ask("cluster", "check")
    assert code == 7 and "n1, n3" in answer["error"] and "--repair" in answer["hint"]
    assert ask("cluster", "show")[0] == 7


def test_a_node_that_left_is_not_asked(world: ClusterWorld, ask: Asked) -> None:
    gone = cluster_rows.NodeRow("centre", "old", 7, f"file://{world.folder / 'nowhere'}", state="left")
    with world.app.ledger.write() as connection:
        cluster_rows.put_node(connection, gone)
    code, answer = ask("cluster", "check")
    assert (code, answer["nodes"]) == (0, 3)


def test_bytes_to_be_removed_long_ago_are_a_problem(world: ClusterWorld, ask: Asked) -> None:
    file = world.put("root.sg", 0)
    other = next(name for name in world.names if name not in world.members(file))
    row = copy_rows.CopyRow("centre", other, file.location, 0, file.sha256, file.size, "going", world.app.clock())
    with world.app.ledger.write() as connection:
        copy_rows.put_copies(connection, [row])
    assert ask("cluster", "check")[0] == 0
    world.sql("UPDATE node_copy SET at = at - 604800 WHERE state = 'going'")
    assert problems(ask("cluster", "check")[1]) == {(other, "its copy was to be removed long ago")}
