"""A long log is given up below a snapshot of what it tells. It tells the same then, and whoever lacks it gets the rest."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.clustered import Clustered, LoadedCentre, logs_tell_the_catalog
from tests.crash.test_forward_crash import build_landings
from tests.group_logs import records_at
from tests.small_files import deletion, source
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.replicas import commit
from tidemark.cluster.replicas.commit import append_change, hold_groups, record_slots, retain_logs
from tidemark.cluster.replicas.core.record import RecordKind
from tidemark.cluster.replicas.core.recovery_plan import Phase
from tidemark.cluster.replicas.members import folder_of
from tidemark.cluster.replicas.records.change import Change
from tidemark.cluster.replicas.records.operation import Operation, commit_of, read_part
from tidemark.cluster.replicas.recover import hold_node, recover_logs
from tidemark.errors import NoQuorumError
from tidemark.ledger.cluster.group_logs import read_covers, read_group_logs, swap_group_log
from tidemark.ledger.cluster.recoveries import RecoveryRow, put_recoveries
from tidemark.operations.rebuild.from_nodes import open_from_nodes
from tidemark.operations.replicas import verify_replicas
from tidemark.receiver.read import Query, read
from tidemark.settings.model import NodeSettings
from tidemark.stores.local import LocalStore

NODES = ("n1", "n2", "n3")
UNBORN = Operation(RecordKind.CREATE_DATABASE, database="root.unborn")


@pytest.fixture
def centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedCentre:
    """Every log is long, and what is before a snapshot goes with the next round."""
    for name in ("LONG_LOG", "_SHRINKS", "SNAPSHOT_SECONDS"):
        monkeypatch.setattr(commit, name, 0)
    made = LoadedCentre(tmp_path)
    with_nodes(made)
    for number in range(1, 4):
        made.land(number)
        made.load()
    return made


def with_nodes(centre: Clustered) -> None:
    centre.app.settings.nodes.update({name: NodeSettings(name, f"file://{centre.node(name)}") for name in NODES})


def retain(centre: Clustered, rounds: int = 3) -> None:
    for _ in range(rounds):
        with centre.cluster() as cluster:
            retain_logs(cluster)


def first_kept(centre: Clustered, node: str, header: str) -> int:
    return records_at(LocalStore(str(centre.node(node))), header)[0].head.position.version


def rows_from_nodes(centre: Clustered) -> list[tuple[object, ...]]:
    out = centre.folder / "out.parquet"
    with open_from_nodes(centre.app.settings, centre.receiver, opener=centre.open_store) as app:
        read(app, centre.receiver, Query(tall=True), out)
    return [tuple(row.values()) for row in pq.read_table(out).to_pylist()]


def test_a_log_that_was_given_up_below_a_snapshot_tells_the_same(centre: LoadedCentre) -> None:
    with centre.cluster() as cluster:
        record_slots(cluster)
    centre.site.land({source(1): {".mods": deletion("root.sg.d1.s", 1, 1).encode()}})
    centre.load()
    centre.merge()
    expected = centre.rows()
    retain(centre)
    assert all(first_kept(centre, node, centre.header) > 6 for node in NODES)
    logs_tell_the_catalog(centre)
    assert centre.rows() == expected == rows_from_nodes(centre)
    assert verify_replicas(centre.app, centre.receiver).wrong == ()
    centre.land(4)
    centre.load()
    logs_tell_the_catalog(centre)
    assert rows_from_nodes(centre) == centre.rows() != expected


@pytest.mark.full
@pytest.mark.parametrize("how", ["emptied", "older"])
def test_a_member_whose_log_ends_before_what_is_kept_begins_there(centre: LoadedCentre, how: str) -> None:
    with centre.app.ledger.read() as connection:
        master = read_group_logs(connection, centre.name)[centre.header].master
    node = next(name for name in NODES if name != master)
    place, old = centre.node(node) / folder_of(centre.header), centre.folder / "old"
    shutil.copytree(place, old)
    centre.land(4)
    centre.load()
    retain(centre)
    shutil.rmtree(place)
    if how == "older":  # its disk was restored from a copy
        shutil.copytree(old, place)
    with centre.cluster() as cluster:
        recover_logs(cluster, doubted={(centre.header, node)})
    assert first_kept(centre, node, centre.header) == first_kept(centre, master, centre.header) > 1
    logs_tell_the_catalog(centre)
    centre.away = {master}
    centre.land(5)
    assert centre.load().exit_code == 0
    centre.away = set()
    centre.land(6)
    centre.load()
    logs_tell_the_catalog(centre)
    if how == "older":
        aside = {path.read_bytes() for path in place.parent.glob(f"{place.name}.parted-*/*")}
        assert {path.read_bytes() for path in old.iterdir()} <= aside


@pytest.mark.full
def test_what_is_before_a_snapshot_stays_while_a_member_is_not_in_step(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch
) -> None:
    retain(centre, rounds=1)
    with centre.app.ledger.read() as connection:
        snapshot = read_covers(connection, centre.name)[centre.header].snapshot
        master = read_group_logs(connection, centre.name)[centre.header].master
    assert snapshot > 0 and first_kept(centre, master, centre.header) == 1
    centre.away = {next(name for name in NODES if name != master)}
    centre.land(4)
    centre.load()
    retain(centre)
    assert first_kept(centre, master, centre.header) == 1
    centre.away = set()
    with centre.cluster() as cluster:
        recover_logs(cluster)
    monkeypatch.setattr(commit, "SNAPSHOT_SECONDS", 3600)
    retain(centre)
    assert first_kept(centre, master, centre.header) == 1, "not before an hour is over"


@pytest.mark.full
def test_what_is_before_a_snapshot_stays_while_a_recovery_is_at_work(centre: LoadedCentre) -> None:
    retain(centre, rounds=1)
    with centre.cluster() as cluster, hold_node(cluster, "n2") as lease:
        with centre.app.ledger.write() as connection:
            row = RecoveryRow(centre.name, centre.header, "n2", 1, Phase.WAL.value, fence=lease.fence)
            put_recoveries(connection, [row])
        retain(centre)
        assert first_kept(centre, "n1", centre.header) == 1
    retain(centre)
    assert first_kept(centre, "n1", centre.header) > 1


@pytest.mark.full
def test_a_short_log_and_one_that_tells_what_it_has_get_no_snapshot(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = records_at(LocalStore(str(centre.node("n1"))), centre.header)
    monkeypatch.setattr(commit, "_SHRINKS", 4)
    retain(centre)
    monkeypatch.setattr(commit, "LONG_LOG", 1 << 20)
    monkeypatch.setattr(commit, "_SHRINKS", 0)
    retain(centre)
    assert records_at(LocalStore(str(centre.node("n1"))), centre.header) == before


@pytest.fixture
def two_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Clustered, str, str, str]:
    """A centre whose last commit of one group is also of another one. Its headers: of the group where that commit is the
    last one, and gets no snapshot, and of the other one; the commit."""
    for name in ("LONG_LOG", "_SHRINKS", "SNAPSHOT_SECONDS"):
        monkeypatch.setattr(commit, name, 0)
    centre = Clustered(tmp_path)
    centre.begin(*NODES)
    with_nodes(centre)
    build_landings(centre)
    centre.load()
    logs = {node: records_at(LocalStore(str(centre.node(node))), node) for node in NODES}
    (idle,) = (h for h, log in logs.items() if log and (last := read_part(log[-1])) and len(last.groups) > 1)
    (other,) = (h for h, log in logs.items() if log and h != idle)
    told = commit._write_snapshot

    def all_but_idle(cluster: object, header: str) -> None:
        if header != idle:
            told(cluster, header)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "_write_snapshot", all_but_idle)
    with centre.cluster() as cluster:
        record_slots(cluster)
    return centre, idle, other, commit_of(logs[idle][-1])


def commits_named(centre: Clustered, header: str) -> set[str]:
    """What the newest snapshot of a group says of other groups' logs."""
    parts = [read_part(stored) for stored in records_at(LocalStore(str(centre.node(header))), header)]
    return set([part.operation.commits for part in parts if part and part.operation.slots][-1])


@pytest.mark.full
def test_the_last_commit_of_another_group_counts_though_this_log_gave_its_records_up(
    two_logs: tuple[Clustered, str, str, str],
) -> None:
    centre, idle, other, last = two_logs
    expected = centre.rows()
    before = len(records_at(LocalStore(str(centre.node(other))), other))
    retain(centre)
    assert first_kept(centre, other, other) > before and first_kept(centre, idle, idle) == 1
    assert last in commits_named(centre, other)
    logs_tell_the_catalog(centre)
    assert rows_from_nodes(centre) == expected


@pytest.mark.full
@pytest.mark.parametrize("death", ["before its record", "behind its record"])
def test_the_last_settled_commit_of_a_group_counts_where_a_later_one_died(
    two_logs: tuple[Clustered, str, str, str], death: str
) -> None:
    centre, idle, other, last = two_logs
    before = len(records_at(LocalStore(str(centre.node(other))), other))
    if death == "before its record":
        died = str(uuid.uuid4())
        with centre.app.ledger.write() as connection:
            row = read_group_logs(connection, centre.name)[idle]
            swap_group_log(connection, row, replace(row, operation=died), centre.app.clock())
    else:
        with centre.cluster() as cluster, hold_groups(cluster) as lease:
            died = append_change(cluster, lease, Change(), also={idle: [UNBORN]}).rows[0][0].operation
    retain(centre)
    assert first_kept(centre, other, other) > before
    assert commits_named(centre, other) >= {last} and died not in commits_named(centre, other)
    assert rows_from_nodes(centre) == centre.rows()
    assert watch_groups(centre.app, centre.receiver).exit_code == 0
    logs_tell_the_catalog(centre)
    retain(centre)
    assert died not in commits_named(centre, other)
    logs_tell_the_catalog(centre)


@pytest.mark.full
def test_without_a_quorum_nothing_is_given_up(centre: LoadedCentre) -> None:
    centre.away = set(NODES[1:])
    retain(centre)
    centre.land(4)
    with pytest.raises(NoQuorumError):
        centre.load()
    centre.away = set()
    assert centre.load().exit_code == 0
    logs_tell_the_catalog(centre)
