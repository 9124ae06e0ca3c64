"""`cluster check --repair`: what is wrong is made again from what is right, and nothing that may be the last copy goes."""

from __future__ import annotations

from tests.cluster_world import Asked, ClusterWorld
from tidemark.ledger.cluster import copies as copy_rows


def test_copies_come_again_from_a_node_where_the_receiver_has_none(world: ClusterWorld, ask: Asked) -> None:
    files = [world.put("root.sg", partition, b"points %d" % partition) for partition in range(4)]
    for file, harm in zip(files, ("gone", "rotten", "no row", "rotten here too"), strict=True):
        node = world.members(file)[0]
        place, here = world.folder / node / file.location, world.folder / "centre" / file.location
        if harm == "no row":
            world.sql("DELETE FROM node_copy WHERE node = :n AND location = :l", n=node, l=file.location)
        if harm in ("gone", "no row"):
            place.unlink()
        else:
            place.write_bytes(b"rotten" * 2)
        here.write_bytes(b"rotten too") if harm == "rotten here too" else here.unlink()
    code, answer = ask("cluster", "check", "--repair")
    assert (code, answer["problems"], answer["repaired"]) == (0, [], 4)
    for file in files:
        for node in world.members(file):
            assert (world.folder / node / file.location).read_bytes() == b"points %d" % file.partition_from
    assert ask("cluster", "check")[0] == 0


def test_what_nobody_has_any_more_stays_a_problem(world: ClusterWorld, ask: Asked) -> None:
    lost, other = world.put("root.sg", 0, b"lost"), world.put("root.sg", 1, b"other")
    for name in ("centre", *world.members(lost)):
        (world.folder / name / lost.location).unlink()
    (world.folder / world.members(other)[0] / other.location).unlink()
    code, answer = ask("cluster", "check", "--repair")
    assert code == 20 and {one["location"] for one in answer["problems"]} == {lost.location}
    assert len(answer["problems"]) == 2 and answer["repaired"] == 1


def test_schemas_are_written_again(world: ClusterWorld, ask: Asked) -> None:
    """One that is gone and one that is torn."""
    world.put("root.sg", 0)
    gone, torn, *_ = world.table.route_schema("root.sg").members
    (world.folder / gone / ".tidemark/schema/root.sg.schema").unlink()
    (world.folder / torn / ".tidemark/schema/root.sg.schema").write_bytes(b"torn")
    code, answer = ask("cluster", "check")
    assert code == 20 and {one["node"] for one in answer["problems"]} == {gone, torn}
    assert {one["problem"] for one in answer["problems"]} == {"the schema of root.sg is gone or torn"}
    code, answer = ask("cluster", "check", "--repair")
    assert (code, answer["problems"], answer["repaired"]) == (0, [], 2)
    assert world.node(gone).read_schema("root.sg") == world.node(torn).read_schema("root.sg") is not None


def test_tables_are_written_again(world: ClusterWorld, ask: Asked) -> None:
    (world.folder / "n1/.tidemark/table/1").write_bytes(b"torn")
    (world.folder / "n2/.tidemark/table/1").unlink()
    world.node("n3").put_table(2, b"never in force")
    assert ask("cluster", "check")[0] == 20
    assert ask("cluster", "check", "--repair")[1]["problems"] == []
    papers = {world.node(name).read_table() for name in world.names}
    assert len(papers) == 1


def test_a_table_that_rotted_in_the_ledger_comes_back_from_a_node(world: ClusterWorld, ask: Asked) -> None:
    before = ask("cluster", "show")[1]
    world.sql("UPDATE cluster_table SET paper = 'AAAA'")
    assert ask("cluster", "show")[0] == 7
    assert ask("cluster", "check", "--repair")[0] == 0
    assert ask("cluster", "show")[1]["groups"] == before["groups"]
    world.sql("UPDATE cluster_table SET paper = 'AAAA', sha256 = 'rotten'")
    assert ask("cluster", "check", "--repair")[0] == 0, "most nodes agree on it"


def test_a_table_that_nobody_has_whole_is_said(world: ClusterWorld, ask: Asked) -> None:
    world.sql("UPDATE cluster_table SET paper = 'AAAA'")
    for name in world.names:
        (world.folder / name / ".tidemark/table/1").write_bytes(b"torn")
    code, answer = ask("cluster", "check", "--repair")
    assert code == 7 and "ledger backup" in answer["hint"]


def test_only_what_is_known_to_be_over_is_removed(world: ClusterWorld, ask: Asked) -> None:
    file = world.put("root.sg", 0, b"points")
    over = world.put("root.sg", 1, b"over")
    world.sql("UPDATE catalog_file SET state = 'reclaimed' WHERE location = :l", l=over.location)
    world.sql("DELETE FROM node_copy WHERE location = :l", l=over.location)
    unknown = world.folder / "n1" / "data/root.sg/7/whose.tsfile"
    part = world.folder / "n1" / "data/root.sg/0/old.tsfile.part"
    for place in (unknown, part):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"?")
    code, answer = ask("cluster", "check", "--repair")
    assert code == 20 and [one["location"] for one in answer["problems"]] == ["data/root.sg/7/whose.tsfile"]
    assert unknown.exists() and not part.exists()
    assert not any((world.folder / name / over.location).exists() for name in world.members(over))
    assert all((world.folder / name / file.location).exists() for name in world.members(file))


def test_a_copy_at_a_node_that_is_not_to_have_it_is_given_up_and_stays_for_the_grace(
    world: ClusterWorld, ask: Asked
) -> None:
    file = world.put("root.sg", 0, b"points")
    stranger = next(name for name in world.names if name not in world.members(file))
    place = world.folder / stranger / file.location
    place.parent.mkdir(parents=True)
    place.write_bytes(b"points")
    with world.app.ledger.write() as connection:
        rows = [copy_rows.CopyRow("centre", stranger, file.location, 0, file.sha256, file.size)]
        copy_rows.put_copies(connection, rows)
    assert ask("cluster", "check")[0] == 20
    assert ask("cluster", "check", "--repair")[0] == 0 and place.exists()
