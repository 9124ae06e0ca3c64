"""A recovery is noted phase by phase: what it waits for is told, a killed one goes on, and what it may read stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tidemark.cluster.health.operator import find_unsynced, recover_members
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas import recover
from tidemark.cluster.replicas.catch_up import catch_up, remove_everywhere
from tidemark.cluster.replicas.core.recovery_plan import MOST_AT_ONCE, Phase
from tidemark.cluster.replicas.deliver import Delivered, bring_to_node
from tidemark.cluster.replicas.recover import Look, hold_node, look_again, recover_node
from tidemark.errors import RetryableError, UnreachableError
from tidemark.ledger.cluster.group_logs import GroupLogRow
from tidemark.ledger.cluster.recoveries import NOT_READ, RecoveryRow, put_recoveries, read_recoveries
from tidemark.ledger.sender.bandwidth import read_places
from tidemark.proof.cluster.replicas import ReplicaView, describe_recovery, show_replicas
from tidemark.stores.protocol import Store
from tidemark.transfer import engine
from tidemark.transfer.engine import Failed, SendItem, SendOptions, Sent

GROUP = GroupLogRow("centre", "n1", 4, "n1", True, (4, 9), "", ("n1", "n3"))
BACK = replace(GROUP, in_step=("n1", "n2", "n3"))
ROW = RecoveryRow("centre", "n1", "n2", 4, Phase.INIT.value)
LACKING, WHOLE = Look(2, 2, "table 1", 1000.0), Look(0, 0, "table 1", 1000.0)


def after(row: RecoveryRow, *looks: tuple[GroupLogRow, Look]) -> RecoveryRow | None:
    for group, look in looks:
        assert row is not None
        row = look_again(row, group, look)  # type: ignore[assignment]
    return row


def test_each_look_goes_one_phase_further_and_the_last_ends_it() -> None:
    looks = [(GROUP, LACKING), (GROUP, LACKING), (GROUP, LACKING), (GROUP, WHOLE), (BACK, WHOLE), (BACK, WHOLE)]
    rows = [after(ROW, *looks[: count + 1]) for count in range(len(looks))]
    assert [row.phase for row in rows if row] == ["start", "file", "file", "wal", "cache", "cache"]
    assert [row.target for row in rows if row] == [NOT_READ] * 5 + [(4, 9)]
    assert [row.files for row in rows if row] == [0, 2, 2, 2, 2, 2]
    assert after(ROW, *looks, (BACK, WHOLE)) is None


FILE = replace(ROW, phase=Phase.FILE.value, source_index="table 1", files=2)
CACHE = replace(FILE, phase=Phase.CACHE.value, target=(4, 9))


@pytest.mark.parametrize(
    ("row", "group", "look", "why"),
    [
        (FILE, GROUP, replace(LACKING, asked=1, lacking=5), "a file is to come"),
        (replace(FILE, phase=Phase.WAL.value), GROUP, WHOLE, "its log is not in step"),
        (CACHE, BACK, replace(WHOLE, lacking=1), "a file was committed meanwhile"),
        (CACHE, replace(BACK, operation="a commit"), WHOLE, "a commit has no outcome"),
        (replace(CACHE, target=(4, 10)), BACK, WHOLE, "the target is not reached"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_phase_is_left_before_its_work_is_done(row: RecoveryRow, group: GroupLogRow, look: Look, why: str) -> None:
    assert look_again(row, group, look) == replace(row, at=1000.0), why


def test_files_that_come_while_others_are_brought_belong_to_the_last_phase() -> None:
    found = look_again(FILE, GROUP, replace(WHOLE, lacking=3))
    assert found is not None and found.phase == Phase.WAL


@pytest.mark.parametrize("phase", [Phase.START, Phase.FILE, Phase.WAL, Phase.CACHE])
def test_another_master_begins_it_anew_and_by_itself_only_later(phase: Phase) -> None:
    row = replace(FILE, phase=phase.value, restarts=1, target=(4, 9))
    newer = replace(GROUP, epoch=5, master="n3")
    found = look_again(row, newer, LACKING)
    assert found == replace(ROW, epoch=5, restarts=2, files=2, again=1120.0, at=1000.0)


def test_another_table_begins_the_copying_anew() -> None:
    assert look_again(FILE, GROUP, replace(LACKING, index="table 2")) == replace(
        ROW, restarts=1, files=2, again=1060.0, at=1000.0
    )


def test_before_it_began_it_waits_for_a_master_and_takes_its_epoch() -> None:
    waiting = look_again(ROW, replace(GROUP, epoch=5, active=False), LACKING)
    assert waiting == replace(ROW, why="its group has no master")
    assert waiting is not None
    begun = look_again(waiting, replace(GROUP, epoch=6), LACKING)
    assert begun is not None and (begun.phase, begun.epoch, begun.restarts, begun.why) == (Phase.START, 6, 0, "")


@pytest.mark.parametrize(
    ("row", "at_work", "expected"),
    [
        (FILE, True, "its recovery is in phase file: 1 of 2 files came"),
        (
            replace(ROW, why="its group has no master"),
            True,
            "its recovery is in phase init; it waits: its group has no master",
        ),
        (
            FILE,
            False,
            "its recovery stopped in phase file: 1 of 2 files came; its process died; it goes on with the next round,"
            " or by ./tidemark replica recover n2",
        ),
        (
            replace(ROW, restarts=2, again=1120.0, why="the nodes changed"),
            False,
            "its recovery stopped in phase init; its source changed 2 times; the nodes changed; it goes on in 120 s,"
            " or by ./tidemark replica recover n2",
        ),
    ],
)
def test_how_far_it_is_in_words(row: RecoveryRow, at_work: bool, expected: str) -> None:
    assert describe_recovery(row, 1, at_work=at_work, now=1000.0) == expected


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    """`n2` lacks two files of three, and the receiver has none in its cache."""
    centre = LoadedCentre(tmp_path)
    centre.land(1)
    centre.load()
    centre.away = {late_of(centre)}
    centre.land(2, 3)
    centre.load()
    centre.away = set()
    centre.empty_cache()
    return centre


def late_of(centre: LoadedCentre) -> str:
    return next(node for node in ("n1", "n2", "n3") if node != centre.header)


def rows(centre: LoadedCentre) -> dict[tuple[str, str], RecoveryRow]:
    with centre.app.ledger.read() as connection:
        return read_recoveries(connection, centre.name)


def shown(centre: LoadedCentre) -> ReplicaView:
    groups = {group.group: group for group in show_replicas(centre.app, centre.receiver).groups}
    return next(member for member in groups[centre.header].members if member.node == late_of(centre))


def test_one_that_stops_says_in_which_phase_and_why_and_the_next_goes_on(centre: LoadedCentre) -> None:
    late = late_of(centre)
    centre.away = {"n1", "n2", "n3"} - {late}
    (left,) = recover_members(centre.app, centre.receiver, late).left
    assert isinstance(left[1], UnreachableError)
    row = rows(centre)[centre.header, late]
    assert (row.phase, row.files, row.why) == (Phase.FILE, 2, left[1].message)
    centre.away = set()
    told = shown(centre)
    assert told.phase == "file"
    assert told.recovery.startswith("its recovery stopped in phase file: 0 of 2 files came; ")
    assert recover_members(centre.app, centre.receiver, late).exit_code == 0
    assert rows(centre) == {} and shown(centre).recovery == ""
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


def test_a_row_whose_process_died_behind_its_last_record_goes_with_the_next_round(centre: LoadedCentre) -> None:
    late = late_of(centre)
    assert recover_members(centre.app, centre.receiver, late).exit_code == 0
    with centre.app.ledger.write() as connection:
        put_recoveries(connection, [replace(CACHE, receiver=centre.name, header=centre.header, node=late)])
    assert shown(centre).recovery == "", "it is in step"
    assert find_unsynced(centre.app, centre.receiver) == [late]
    watch_groups(centre.app, centre.receiver)
    watched = watch_groups(centre.app, centre.receiver)
    assert (rows(centre), watched.files, watched.waiting) == ({}, {}, {})


@contextmanager
def recovering(cluster: Cluster, node: str) -> Iterator[None]:
    """A process is at the recovery of a node."""
    name = cluster.receiver.name
    with hold_node(cluster, node) as lease:
        with cluster.app.ledger.write() as connection:
            row = replace(FILE, receiver=name, header="n1", node=node, fence=lease.fence)
            put_recoveries(connection, [row])
        yield


def test_what_a_recovery_may_read_is_not_removed_before_it_ends_or_its_process_dies(centre: LoadedCentre) -> None:
    with centre.cluster() as cluster, centre.app.receiver_store(centre.receiver) as store:
        recover_node(cluster, store, late_of(centre))
        location = next(iter(centre.copies()))
        with centre.app.ledger.write() as connection:  # as if a merge had given it up
            connection.exec_driver_sql(f"DELETE FROM catalog_file WHERE location = '{location}'")
        with recovering(cluster, "n3"):
            remove_everywhere(cluster, [location])
            catch_up(cluster, store)
            assert location in centre.at("n1"), "its copy is given up, its bytes are there"
        catch_up(cluster, store)
        assert location not in centre.at("n1")
        assert rows(centre), "a row alone keeps nothing"


def test_no_more_than_two_nodes_are_recovered_at_a_time(centre: LoadedCentre) -> None:
    late = late_of(centre)
    others = sorted({"n1", "n2", "n3"} - {late})
    assert len(others) == MOST_AT_ONCE
    with centre.cluster() as cluster, recovering(cluster, others[0]):
        with recovering(cluster, others[1]):
            (left,) = recover_members(centre.app, centre.receiver, late).left
            assert isinstance(left[1], RetryableError)
            assert left[1].message == f"{others[0]} and {others[1]} are recovered already, and at most 2 nodes at a time"
        assert recover_members(centre.app, centre.receiver, late).exit_code == 0


def test_if_the_nodes_change_meanwhile_it_begins_anew_after_a_while_or_by_hand(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = late_of(centre)
    with centre.cluster() as cluster:
        table = cluster.table
    newer = replace(table, epoch=table.epoch + 1)

    def swap_and_bring(*parcel: Any, **options: Any) -> Delivered:
        monkeypatch.undo()
        centre.swap(newer)
        return bring_to_node(*parcel, **options)

    monkeypatch.setattr(recover, "bring_to_node", swap_and_bring)
    (left,) = recover_members(centre.app, centre.receiver).left
    assert left[1].message == f"the nodes changed while {late} recovered: what belongs there is another now"
    row = rows(centre)[centre.header, late]
    assert (row.phase, row.restarts) == (Phase.INIT, 1)
    assert find_unsynced(centre.app, centre.receiver) == []
    assert "its source changed, it begins again in" in watch_groups(centre.app, centre.receiver).waiting[late]
    assert recover_members(centre.app, centre.receiver, late).exit_code == 0
    everything_is_held(centre)


def test_what_comes_stays_within_the_bandwidth_of_the_cluster_and_the_receiver(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = replace(centre.receiver, bandwidth=50e6)
    settings = centre.app.settings
    assert settings.cluster is not None
    centre.app.settings = replace(
        settings, receivers={receiver.name: receiver}, cluster=replace(settings.cluster, bandwidth=20e6)
    )
    late, sent, send_files = late_of(centre), [], engine.send_files

    def spy(source: Store, target: Store, items: Sequence[SendItem], options: SendOptions) -> Iterator[Sent | Failed]:
        sent.append((options.bandwidth, options.line is not None))
        return send_files(source, target, items, options)

    monkeypatch.setattr(engine, "send_files", spy)
    assert recover_members(centre.app, receiver, late).exit_code == 0
    assert set(sent) == {(20e6, True)}
    with centre.app.ledger.read() as connection:
        assert read_places(connection, receiver.name) == [], "its place is free again"
