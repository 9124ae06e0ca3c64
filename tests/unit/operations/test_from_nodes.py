"""The ledger's database is away: the nodes' logs tell the catalog up to the last committed operation, or nothing."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.centre import d1, rows
from tests.clustered import SLOTS, Clustered, LoadedCentre
from tests.group_logs import records_at
from tests.landing_maker import SITE_B
from tests.small_files import deletion, sealed, source
from tidemark.cli.main import main
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.replicas import members
from tidemark.cluster.replicas.commit import append_change, hold_groups, record_slots
from tidemark.cluster.replicas.core.quorum import find_committed
from tidemark.cluster.replicas.core.roles import Role
from tidemark.cluster.replicas.log import Answer, GroupLog
from tidemark.cluster.replicas.members import folder_of
from tidemark.cluster.replicas.records.change import Change, read_entries
from tidemark.cluster.replicas.recover import recover_logs
from tidemark.cluster.slots.balance import even_slots
from tidemark.cluster.slots.hash_ring import Node, identifier_of
from tidemark.errors import CorruptionError, NoQuorumError, NotFoundError, PermanentError, RetryableError
from tidemark.ledger.backup import back_up
from tidemark.ledger.receiver.catalog import live_files
from tidemark.operations.decisions import owners_transfer
from tidemark.operations.rebuild.from_nodes import open_from_nodes
from tidemark.operations.rebuild.rebuild import rebuild_ledger
from tidemark.operations.replicas import verify_replicas
from tidemark.proof.cluster.replicas import show_replicas
from tidemark.receiver.read import Query, read
from tidemark.settings.model import NodeSettings
from tidemark.stores.local import LocalStore

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    """Files, a deletion and a merge; every log tells of its slots."""
    made = LoadedCentre(tmp_path)
    made.app.settings.nodes.update({name: NodeSettings(name, f"file://{made.node(name)}") for name in NODES})
    made.land(1, 2)
    made.site.land({source(3, unsequence=True): d1((2, 21), (7, 70))})
    made.site.land({source(1): {".mods": deletion("root.sg.d1.s", 1, 1).encode()}})
    made.load()
    made.merge()
    with made.cluster() as cluster:
        record_slots(cluster)
    return made


def rows_from_nodes(centre: Clustered) -> list[tuple[object, ...]]:
    out = centre.folder / "out.parquet"
    with open_from_nodes(centre.app.settings, centre.receiver, opener=centre.open_store) as app:
        read(app, centre.receiver, Query(tall=True), out)
    return [tuple(row.values()) for row in pq.read_table(out).to_pylist()]


def test_readers_see_the_same_without_ledger_and_without_the_receivers_own_copies(centre: LoadedCentre) -> None:
    expected = centre.rows()
    assert expected == rows((2, 21), (7, 70))
    centre.app.ledger.close()
    (centre.folder / "ledger.db").unlink(missing_ok=True)
    centre.empty_cache()
    assert rows_from_nodes(centre) == expected
    assert centre.files("data") == [] == centre.files("recall")
    centre.away = {"n2"}
    assert rows_from_nodes(centre) == expected


def test_the_commands_need_no_database(centre: LoadedCentre, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = "".join(f'[nodes.{name}]\nstore = "nodes/{name}"\n' for name in NODES)
    (centre.folder / "tidemark.toml").write_text(
        '[ledger]\nurl = "postgresql+psycopg://nobody@127.0.0.1:1/none"\n[receivers.centre]\nstore = "centre"\n'
        f"[cluster]\nreplicas = 3\nquorum = 2\nslots = {SLOTS}\n{nodes}"
    )
    words = ["--config", str(centre.folder / "tidemark.toml"), "--json"]
    out = str(centre.folder / "told.csv")
    assert main([*words, "read", "--from-nodes", "--tall", "--out", out]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    assert main([*words, "replica", "show", "--from-nodes"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert {member["role"] for group in groups for member in group["members"]} == {"master", "slave"}
    assert main([*words, "replica", "verify", "--from-nodes"]) == 0
    roots = [{member["root"] for member in g["members"]} for g in json.loads(capsys.readouterr().out)["groups"]]
    assert all(len(found) == 1 for found in roots)
    (centre.node("n2") / centre.at("n2")[0]).unlink()
    assert main([*words, "replica", "verify", "--from-nodes"]) == 20
    assert centre.at("n1")[0] in json.loads(capsys.readouterr().out)["error"]
    assert main([*words, "read", "--tall", "--out", out]) != 0


def test_what_a_quorum_has_counts_and_what_nobody_knows_is_not_read_as_something_older(centre: LoadedCentre) -> None:
    header = centre.header
    late, other = (name for name in NODES if name != master_of(centre, header))
    centre.away = {late}
    centre.land(4)
    centre.load()
    centre.away = set()
    assert rows_from_nodes(centre) == rows((2, 21), (4, 40), (7, 70))  # two have it, the third answers that it has not
    centre.away = {other}
    with pytest.raises(NoQuorumError, match=f"what group {header} .*committed last") as doubt:
        rows_from_nodes(centre)
    assert "replica show --from-nodes" in (doubt.value.hint or "")
    centre.away = {late, other}
    with pytest.raises(NoQuorumError, match="1 of the 3 nodes"):
        rows_from_nodes(centre)
    centre.away = set(NODES)
    with pytest.raises(NotFoundError, match="no node of centre"):
        rows_from_nodes(centre)


def test_a_member_whose_log_is_gone_proves_nothing(centre: LoadedCentre) -> None:
    emptied, other, _ = NODES
    shutil.rmtree(centre.node(emptied) / ".tidemark" / "log")
    assert rows_from_nodes(centre) == rows((2, 21), (7, 70))
    centre.away = {other}
    with pytest.raises(NoQuorumError, match=f"without a log: {emptied}"):
        rows_from_nodes(centre)


@pytest.mark.full
def test_a_log_that_is_filled_again_proves_nothing_before_it_has_all(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of its records end where a member ends that missed the last ones: the two would agree."""
    header = centre.header
    master = master_of(centre, header)
    late, emptied = (name for name in NODES if name != master)
    centre.away = {late}
    centre.land(4)
    centre.load()
    centre.away = set()
    behind = len(records_at(LocalStore(str(centre.node(late))), header))
    shutil.rmtree(centre.node(emptied) / folder_of(header))
    append = GroupLog.append

    def die_behind(*given: Any, **more: Any) -> Answer:
        answer = append(*given, **more)
        if answer.tail.end.position.version == behind:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(members, "_AT_ONCE", behind)
    monkeypatch.setattr(GroupLog, "append", die_behind)
    with centre.cluster() as cluster, pytest.raises(KeyboardInterrupt):
        recover_logs(cluster, nodes=[emptied], doubted={(header, emptied)})
    monkeypatch.undo()
    assert len(records_at(LocalStore(str(centre.node(emptied))), header)) == behind
    centre.away = {master}
    with pytest.raises(NoQuorumError, match=f"not yet filled again: {emptied}"):
        rows_from_nodes(centre)
    centre.away = set()
    with centre.cluster() as cluster:
        recover_logs(cluster)
    for centre.away in ({master}, {late}, {emptied}):
        assert rows_from_nodes(centre) == rows((2, 21), (4, 40), (7, 70))


@pytest.mark.full_after(1)
@pytest.mark.parametrize("lost", ["log", "folder"])
def test_a_member_that_is_away_beside_one_that_lost_its_disk_lets_nothing_older_be_read(
    centre: LoadedCentre, lost: str
) -> None:
    header = centre.header
    master = master_of(centre, header)
    late, emptied = (name for name in NODES if name != master)
    centre.away = {late}
    centre.land(4)
    centre.load()
    shutil.rmtree(centre.node(emptied) / ("" if lost == "folder" else folder_of(header)))
    centre.away = {master}
    with pytest.raises(NoQuorumError):
        rows_from_nodes(centre)
    centre.away = set()
    with pytest.raises(NoQuorumError, match="committed last"):  # who lost its disk may have had more than the master
        rows_from_nodes(centre)


@pytest.mark.full
def test_a_log_that_is_damaged_in_its_middle_is_not_read_and_another_is(centre: LoadedCentre) -> None:
    for name in NODES:
        (log,) = (centre.node(name) / folder_of(centre.header)).glob("*.log")
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        assert rows_from_nodes(centre) == rows((2, 21), (7, 70))
        log.write_bytes(data)
    with pytest.raises(CorruptionError):
        rows_from_nodes(centre)


def test_a_record_that_is_at_one_member_alone_is_left_out(centre: LoadedCentre) -> None:
    header = centre.header
    master = master_of(centre, header)
    with centre.app.ledger.read() as connection:
        entries = read_entries(connection, live_files(connection, centre.name))
    before = len(records_at(LocalStore(str(centre.node(master))), header))
    centre.away = {name for name in NODES if name != master}
    with centre.cluster() as cluster, hold_groups(cluster) as lease, pytest.raises(NoQuorumError):
        append_change(cluster, lease, Change(gone=tuple(entry.file for entry in entries)))
    assert len(records_at(LocalStore(str(centre.node(master))), header)) > before
    centre.away = set()
    assert rows_from_nodes(centre) == rows((2, 21), (7, 70))


def test_a_master_that_was_cut_off_may_have_more_records_than_its_successor(centre: LoadedCentre) -> None:
    """Nobody acknowledged them. Its log parted from that of the others, and has a higher version in an older epoch."""
    header = centre.header
    master = master_of(centre, header)
    with centre.app.ledger.read() as connection:
        entries = read_entries(connection, live_files(connection, centre.name))
    centre.away = {name for name in NODES if name != master}
    with centre.cluster() as cluster, hold_groups(cluster) as lease, pytest.raises(NoQuorumError):
        created = [name for n in range(999) if cluster.table.route_schema(name := f"root.db{n}").header == header][:3]
        append_change(cluster, lease, Change(gone=tuple(entry.file for entry in entries), created=tuple(created)))
    centre.away = {master}
    for _ in range(3):
        watched = watch_groups(centre.app, centre.receiver)
    assert watched.waits == {} and master_of(centre, header) != master
    centre.away = set()
    versions = {name: records_at(LocalStore(str(centre.node(name))), header)[-1].head.position.version for name in NODES}
    assert versions[master] > max(version for name, version in versions.items() if name != master)
    assert rows_from_nodes(centre) == rows((2, 21), (7, 70))
    wrong = verify_replicas(centre.app, centre.receiver).wrong
    assert wrong and all(f"node {master} of group {header}" in one for one in wrong)


@pytest.mark.full
def test_a_rebuilt_ledger_takes_back_a_commit_that_died_with_the_old_one(centre: LoadedCentre) -> None:
    """It lies at one member alone. If the log went on behind it, logs would tell it one day, and the ledger never."""
    master = master_of(centre, centre.header)
    with centre.app.ledger.read() as connection:
        entries = read_entries(connection, live_files(connection, centre.name))
    centre.away = {name for name in NODES if name != master}
    with centre.cluster() as cluster, hold_groups(cluster) as lease, pytest.raises(NoQuorumError):
        append_change(cluster, lease, Change(gone=tuple(entry.file for entry in entries)))
    centre.away = set()
    settings = centre.app.settings
    centre.app.ledger.close()
    (centre.folder / "var" / "ledger.db").unlink()
    assert rebuild_ledger(settings).findings.troubles == []
    centre.reopen()
    centre.app.settings.nodes.update(settings.nodes)
    assert centre.rows() == rows((2, 21), (7, 70))
    watch_groups(centre.app, centre.receiver)  # gives the group a master, whose log it is
    assert rows_from_nodes(centre) == rows((2, 21), (7, 70))
    centre.land(8)
    centre.load()
    assert centre.rows() == rows_from_nodes(centre) == rows((2, 21), (7, 70), (8, 80))


def rebuilt(centre: LoadedCentre) -> None:
    """The ledger is made anew, in the place of the one that is there."""
    settings = centre.app.settings
    centre.app.ledger.close()
    found = rebuild_ledger(settings, replace=True).findings
    assert (found.troubles, found.lost) == ([], [])
    centre.reopen()
    centre.app.settings.nodes.update(settings.nodes)


def test_a_device_that_is_given_back_right_after_a_rebuild_is_told_by_the_logs(centre: LoadedCentre) -> None:
    """Two sites have a point of it at one time, and the owner's wins. No file comes with the decision."""
    centre.sender(SITE_B, name="plant2").land({source(5): d1((2, 222), (5, 50))})
    centre.load()
    owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant2")
    assert rows_from_nodes(centre) == centre.rows() == rows((2, 222), (5, 50), (7, 70))
    rebuilt(centre)
    owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant1")
    assert rows_from_nodes(centre) == centre.rows() == rows((2, 21), (5, 50), (7, 70))


def test_a_receiver_whose_folder_and_ledger_are_older_has_owners_and_sites_by_the_logs(centre: LoadedCentre) -> None:
    """The machine of the centre was lost and put back from last night's backup. The nodes are as they were."""
    centre.sender(SITE_B, name="plant2").land({source(5): d1((2, 222), (5, 50))})
    centre.load()
    ledger, copy = centre.folder / "var" / "ledger.db", centre.folder / "backup"
    shutil.copytree(centre.root, copy / "centre")
    back_up(centre.app.ledger, copy / "ledger.db")
    owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant2")
    late = centre.sender("2b2c3d4e-7d1b-4a5e-9c1e-cccccccccccc", name="plant3", time_unit="us")
    late.land({source(9): sealed({"root.sg.d9": {"s": [(1, 9)]}})})
    centre.load()
    expected = centre.rows()
    facts = [
        "SELECT device, site_id, since FROM owner ORDER BY device",
        "SELECT site_id, name, time_unit FROM site ORDER BY 1",
    ]
    before = [centre.sql(query) for query in facts]
    settings = centre.app.settings
    centre.app.ledger.close()
    shutil.copy(copy / "ledger.db", ledger)
    shutil.rmtree(centre.root)
    shutil.copytree(copy / "centre", centre.root)
    centre.reopen()
    centre.app.settings.nodes.update(settings.nodes)
    with pytest.raises(PermanentError, match="ahead of this ledger"):
        owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant2")
    rebuilt(centre)
    assert centre.rows() == rows_from_nodes(centre) == expected
    assert [centre.sql(query) for query in facts] == before


def test_a_device_that_was_claimed_by_a_clock_days_ahead_is_given_to_another_site_for_good(tmp_path: Path) -> None:
    centre = LoadedCentre(tmp_path)
    centre.app.settings.nodes.update({name: NodeSettings(name, f"file://{centre.node(name)}") for name in NODES})
    centre.app.clock = lambda: time.time() + 3 * 86_400
    centre.land(1)
    centre.load()
    with centre.cluster() as cluster:
        record_slots(cluster)
    centre.app.clock = time.time
    centre.sender(SITE_B, name="plant2").land({source(5): d1((1, 111), (5, 50))})
    centre.load()
    for to, value in [("plant2", 111), ("plant1", 10), ("plant2", 111)]:
        owners_transfer(centre.app, centre.receiver, "root.sg.d1", to)
        assert rows_from_nodes(centre) == centre.rows() == rows((1, value), (5, 50))
    rebuilt(centre)
    assert rows_from_nodes(centre) == centre.rows() == rows((1, 111), (5, 50))


def test_slots_that_no_log_tells_of_yet_are_named(tmp_path: Path) -> None:
    centre = LoadedCentre(tmp_path)
    centre.app.settings.nodes.update({name: NodeSettings(name, f"file://{centre.node(name)}") for name in NODES})
    with centre.cluster() as cluster:
        record_slots(cluster)
    centre.land(1)
    centre.load()
    assert rows_from_nodes(centre) == rows((1, 10))
    with centre.cluster() as cluster:
        table = cluster.table
    centre.app.settings.nodes["n4"] = NodeSettings("n4", f"file://{centre.node('n4')}")
    centre.swap(table.with_node(Node(identifier_of("n4"), "n4"), even_slots))
    with pytest.raises(RetryableError, match="does not tell of slot"):
        rows_from_nodes(centre)
    with centre.cluster() as cluster:
        record_slots(cluster)
    assert rows_from_nodes(centre) == rows((1, 10))


def test_roles_are_told_by_the_nodes_alone(centre: LoadedCentre) -> None:
    late = next(name for name in NODES if name != master_of(centre, centre.header))
    with open_from_nodes(centre.app.settings, centre.receiver, whole=False) as app:
        before, now = show_replicas(centre.app, centre.receiver), show_replicas(app, centre.receiver)
    assert now == before
    centre.away = {late}
    with open_from_nodes(centre.app.settings, centre.receiver, whole=False, opener=centre.open_store) as app:
        seen = {member.node: member.role for group in show_replicas(app, centre.receiver).groups for member in group.members}
    assert seen[late] is Role.OFFLINE


@pytest.mark.parametrize(
    ("held", "unheard", "quorum", "expected"),
    [
        ([9, 9, 9], 0, 2, (9, True)),
        ([9, 9, 8], 0, 2, (9, True)),
        ([9, 8, 8], 0, 2, (8, True)),
        ([9, 9], 1, 2, (9, True)),
        ([9, 8], 1, 2, (8, False)),
        ([9], 2, 2, (0, False)),
        ([9], 1, 1, (9, False)),
        ([9, 7], 0, 1, (9, True)),
        ([9, 9, 9], 2, 3, (9, True)),
        ([9, 9, 8], 2, 3, (8, False)),
        ([], 3, 2, (0, False)),
    ],
)
def test_what_is_committed_for_sure(held: list[int], unheard: int, quorum: int, expected: tuple[int, bool]) -> None:
    assert find_committed(held, unheard, quorum) == expected


def master_of(centre: LoadedCentre, header: str) -> str:
    ((master,),) = centre.sql("SELECT master FROM group_log WHERE header = :h", h=header)
    return str(master)
