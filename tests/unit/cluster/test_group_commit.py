"""What a load makes visible stands first in its group's log at a quorum. What never became visible is taken back."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.centre import rows
from tests.clustered import LoadedCentre, logs_tell_the_catalog
from tests.group_logs import files_of, records_at, records_behind
from tidemark.app import open_app
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.replicas import forward
from tidemark.cluster.replicas.commit import Appended, append_change, hold_groups, settle_commit
from tidemark.cluster.replicas.core.epochs import Fence, Verdict
from tidemark.cluster.replicas.core.record import RecordKind
from tidemark.cluster.replicas.log import GroupLog
from tidemark.cluster.replicas.members import folder_of
from tidemark.cluster.replicas.records.change import Change, read_entries
from tidemark.errors import LeaseLostError, NoQuorumError, PermanentError
from tidemark.ledger.backup import back_up
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.ledger.leases import Lease
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.operations.housekeeping import housekeep
from tidemark.proof.cluster.replicas import show_replicas
from tidemark.settings.model import LedgerSettings
from tidemark.stores.local import LocalStore
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.tsfiles.names import MARK_FILE

NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    return LoadedCentre(tmp_path)


def group(centre: LoadedCentre) -> GroupLogRow:
    """The one group that has files."""
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


def log_at(centre: LoadedCentre, node: str) -> list[str]:
    with centre.cluster() as cluster:
        return files_of(records_at(LocalStore(str(centre.node(node))), group(centre).header), cluster.table)


def test_after_a_load_the_folder_of_each_member_says_what_was_added(centre: LoadedCentre) -> None:
    centre.land(1, 2)
    assert centre.load().exit_code == 0
    logs_tell_the_catalog(centre)
    row = group(centre)
    assert (row.epoch, row.active, row.in_step) == (1, True, NODES)
    assert [log_at(centre, node) for node in NODES] == [log_at(centre, "n1")] * 3
    kinds = [stored.kind for stored in records_at(LocalStore(str(centre.node("n1"))), row.header)]
    assert kinds == [RecordKind.BARRIER, RecordKind.GAIN_SLOT, RecordKind.ADD_FILES, RecordKind.ADD_FILES]


def test_a_member_that_missed_a_record_is_not_in_step_until_it_has_it(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    late = next(node for node in NODES if node != group(centre).master)
    centre.away = {late}
    centre.land(2)
    centre.load()
    assert late not in group(centre).in_step and len(log_at(centre, late)) == 1
    centre.away = set()
    centre.land(3)
    centre.load()
    assert group(centre).in_step == NODES and len(log_at(centre, late)) == 3
    logs_tell_the_catalog(centre)


def test_another_member_becomes_master_if_the_master_is_away(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    first = group(centre).master
    centre.away = {first}
    centre.land(2)
    centre.load()
    row = group(centre)
    assert row.epoch == 2 and row.master != first and first not in row.in_step
    centre.away = set()
    centre.land(3)
    centre.load()
    assert group(centre).epoch == 2 and group(centre).in_step == NODES
    logs_tell_the_catalog(centre)


def test_a_member_whose_disk_was_emptied_gets_the_log_and_proves_nothing_meanwhile(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    row = group(centre)
    emptied, other = (node for node in NODES if node != row.master)
    shutil.rmtree(centre.node(emptied) / folder_of(row.header))
    centre.away = {row.master}
    centre.land(2)
    with pytest.raises(NoQuorumError, match="makes one of them master"):  # `other` alone cannot know what the master has
        centre.load()
    assert centre.rows() == rows((1, 10))
    centre.away = {other}
    assert centre.load().exit_code == 0
    assert len(log_at(centre, emptied)) == 2
    centre.away = set()
    centre.land(3)
    centre.load()
    logs_tell_the_catalog(centre)


def test_what_never_became_visible_is_taken_back_and_its_late_worker_commits_nothing(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    with centre.app.ledger.read() as connection:
        (entry,) = read_entries(connection, catalog_rows.live_files(connection, centre.name))
    never = replace(entry, file=replace(entry.file, location=f"{entry.file.location}.never"))
    with centre.app.ledger.write() as connection:
        for row in copy_rows.copies_of(connection, centre.name, [entry.file.location])[entry.file.location]:
            copy_rows.put_copies(connection, [replace(row, location=never.file.location)])
    with centre.cluster() as cluster:
        with hold_groups(cluster) as lease:
            late = append_change(cluster, lease, Change((never,)))  # and falls asleep
        assert len(log_at(centre, "n1")) == 2
        centre.land(2)
        centre.load()
        with pytest.raises(LeaseLostError), centre.app.ledger.write() as connection:
            settle_commit(connection, cluster, lease, late)
    assert group(centre).epoch == 2
    logs_tell_the_catalog(centre)


def test_a_ledger_that_is_older_than_the_nodes_writes_nothing(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    header, before = group(centre).header, group(centre).settled[1]
    centre.land(2)
    centre.load()
    with centre.app.ledger.write() as connection:  # as in a copy from before the second load
        connection.exec_driver_sql(f"UPDATE group_log SET settled_version = {before} WHERE header = '{header}'")
    centre.land(3)
    with pytest.raises(PermanentError, match="ahead of this ledger") as ahead:
        centre.load()
    assert ahead.value.kind == 6 and "ledger rebuild" in (ahead.value.hint or "")
    assert centre.rows() == rows((1, 10), (2, 20))


@pytest.mark.parametrize("how", ["file", "backup"])
def test_a_ledger_from_the_middle_of_a_commit_does_not_take_it_back(
    centre: LoadedCentre, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It was acknowledged after the copy was made. By a plain copy it is still at work, and to be taken back: the receiver's
    mark tells that the copy is older. A backup says of nothing that it is at work, so its nodes are ahead of it."""
    centre.land(1)
    centre.load()
    copy = centre.folder / "copy.db"

    def copy_behind(cluster: Cluster, lease: Lease, change: Change) -> Appended:
        appended = append_change(cluster, lease, change)
        if how == "backup":
            back_up(cluster.app.ledger, copy)
        else:
            with closing(sqlite3.connect(str(cluster.app.ledger.engine.url.database))) as ledger:
                ledger.execute("VACUUM INTO ?", [str(copy)])
        return appended

    monkeypatch.setattr(forward, "append_change", copy_behind)
    centre.land(2)
    assert centre.load().exit_code == 0
    monkeypatch.undo()
    header, settings = centre.header, centre.app.settings
    before = [records_at(LocalStore(str(centre.node(node))), header) for node in NODES]
    centre.app.ledger.close()
    with pytest.raises(PermanentError, match="older than receiver"):
        open_app(replace(settings, ledger=LedgerSettings(f"sqlite:///{copy}")))
    with closing(sqlite3.connect(copy)) as kept, kept:
        kept.execute("DELETE FROM lease")  # of this process, which lives
        at_work = [header for (header,) in kept.execute("SELECT header FROM group_log WHERE operation != ''")]
    assert at_work == ([header] if how == "file" else [])
    if how == "backup":
        (centre.root / MARK_FILE).unlink()  # restored too, say
        centre.ledger_url = f"sqlite:///{copy}"
        centre.reopen()
        assert watch_groups(centre.app, centre.receiver).exit_code == 6
    assert [records_at(LocalStore(str(centre.node(node))), header) for node in NODES] == before


def test_a_process_of_a_ledger_that_was_replaced_by_its_copy_appends_nothing(centre: LoadedCentre) -> None:
    """Both have given the same epoch. The restored one gives a newer one before its first record."""
    centre.land(1)
    centre.load()
    before, copy = group(centre), centre.folder / "copy.db"
    back_up(centre.app.ledger, copy)
    centre.app.ledger.close()
    centre.ledger_url = f"sqlite:///{copy}"
    centre.reopen()
    centre.land(2)
    assert centre.load().exit_code == 0
    assert group(centre).epoch > before.epoch + 1, "nor does it give the same one"
    with centre.cluster() as cluster:
        late = Fence(cluster.identity, before.epoch, before.master)
    for node in NODES:
        log = GroupLog(LocalStore(str(centre.node(node))), folder_of(before.header))
        end = log.read_tail().end
        assert log.append(records_behind(end, before.epoch), late).verdict is Verdict.STALE
    logs_tell_the_catalog(centre)


def test_a_ledger_that_never_gave_an_epoch_is_refused_by_nodes_that_have_one(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql("DELETE FROM group_log")
    centre.land(2)
    with pytest.raises(PermanentError, match="ahead of this ledger"):
        centre.load()


def test_who_lacks_a_file_is_no_master_and_unsynced_until_it_has_it(centre: LoadedCentre) -> None:
    with centre.cluster() as cluster:
        full = cluster.table.route_data("root.sg", 0).header  # which would be the first master
    in_the_way = centre.node(full) / "data"
    in_the_way.write_text("no room for files, some for a log")
    centre.land(1)
    assert centre.load().exit_code == 0
    assert group(centre).master != full

    def seen() -> tuple[str, str]:
        groups = {view.group: view for view in show_replicas(centre.app, centre.receiver).groups}
        return next((member.role, member.why) for member in groups[full].members if member.node == full)

    assert seen() == ("unsynced", "it lacks 1 file of the group; the next catch-up brings them")
    in_the_way.unlink()
    housekeep(centre.app, centre.receiver)
    assert seen() == ("slave", "")
    logs_tell_the_catalog(centre)


@pytest.mark.full_after(1)
@pytest.mark.parametrize("how", ["parted", "ahead", "damaged", "emptied"])
def test_a_member_that_fell_out_of_step_is_recovered_by_housekeeping(centre: LoadedCentre, how: str) -> None:
    centre.land(1)
    centre.load()
    row = group(centre)
    fallen = next(node for node in NODES if node != row.master)
    place = centre.node(fallen) / folder_of(row.header)
    log = GroupLog(LocalStore(str(centre.node(fallen))), folder_of(row.header))
    if how == "ahead":  # a record that nobody else has
        with centre.cluster() as cluster:
            fence = Fence(cluster.identity, row.epoch, row.master)
        assert log.append(records_behind(log.read_tail().end, row.epoch), fence).is_yes
    centre.away = {fallen}
    centre.land(2)
    centre.load()
    if how == "parted":
        with centre.cluster() as cluster:
            fence = Fence(cluster.identity, row.epoch, row.master)
        assert log.append(records_behind(log.read_tail().end, row.epoch), fence).is_yes
    elif how == "damaged":
        newest = max(place.iterdir())
        newest.write_bytes(newest.read_bytes()[:300] + bytes(200) + newest.read_bytes()[500:-256])
    elif how == "emptied":
        shutil.rmtree(place)
    before = {path.read_bytes() for path in place.iterdir()} if place.exists() else set()
    centre.away = set()
    assert fallen not in group(centre).in_step
    housekeep(centre.app, centre.receiver)
    assert group(centre).in_step == NODES and len(log_at(centre, fallen)) == 2
    aside = {path.read_bytes() for path in place.parent.glob(f"{place.name}.parted-*/*")}
    assert aside == (before if how != "emptied" else set()) or (how == "parted" and len(aside) == len(before))
    logs_tell_the_catalog(centre)


def test_a_member_that_lost_a_file_is_not_elected(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    row = group(centre)
    lost, other = (node for node in NODES if node != row.master)
    with centre.app.ledger.write() as connection:  # as a check notes it
        connection.exec_driver_sql(f"DELETE FROM node_copy WHERE node = '{lost}'")
        connection.exec_driver_sql(f"UPDATE group_member SET applied = 0 WHERE node = '{lost}'")
    centre.away = {row.master}
    with centre.cluster() as cluster:
        mine = next(f"root.{n}" for n in range(100) if cluster.table.route_schema(f"root.{n}").header == row.header)
        drop_nothing(cluster, mine)
    assert group(centre).master == other
    logs_tell_the_catalog(centre)


def test_without_a_quorum_that_has_the_files_no_record_is_written(centre: LoadedCentre) -> None:
    centre.land(1)
    centre.load()
    before = group(centre)
    with centre.app.ledger.read() as connection:
        (entry,) = read_entries(connection, catalog_rows.live_files(connection, centre.name))
    nowhere = replace(entry, file=replace(entry.file, location=f"{entry.file.location}.nowhere"))
    with (
        centre.cluster() as cluster,
        hold_groups(cluster) as lease,
        pytest.raises(NoQuorumError, match=r"0 of the 3 members .* have the files of this operation"),
    ):
        append_change(cluster, lease, Change((nowhere,)))
    assert group(centre) == before and len(log_at(centre, "n1")) == 1


def drop_nothing(cluster: Cluster, database: str = "root.never") -> None:
    """A commit without files."""
    with hold_groups(cluster) as lease:
        appended = append_change(cluster, lease, Change(dropped=(database,)))
        with cluster.app.ledger.write() as connection:
            settle_commit(connection, cluster, lease, appended)


class AskedStore:
    """A store that notes what it is asked."""

    def __init__(self, inner: Store, asked: Counter[str]) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if callable(found):
            self._asked[name] += 1
        return found


def test_a_commit_behind_another_asks_each_member_once(centre: LoadedCentre) -> None:
    asked: Counter[str] = Counter()

    def open_asked(address: StoreAddress) -> Any:
        return AskedStore(centre.open_store(address), asked)

    centre.app.opener = open_asked
    with centre.cluster() as cluster:
        drop_nothing(cluster)
        asked.clear()
        drop_nothing(cluster)
        assert asked == {"append_if": 3}
        with centre.cluster() as other:  # another process, which knows nothing of this one
            drop_nothing(other)
        drop_nothing(cluster)
    header = cluster.table.route_schema("root.never").header
    logs = [records_at(LocalStore(str(centre.node(node))), header) for node in NODES]
    assert logs == [logs[0]] * 3
    assert [stored.kind for stored in logs[0]][-4:] == [RecordKind.DROP_DATABASE] * 4


def test_another_coordinator_of_the_same_epoch_is_noticed_also_between_two_commits(centre: LoadedCentre) -> None:
    with centre.cluster() as cluster:
        drop_nothing(cluster)
        copy = centre.folder / "copy.db"
        with closing(sqlite3.connect(str(centre.app.ledger.engine.url.database))) as connection:
            connection.execute("VACUUM INTO ?", [str(copy)])
        ours, centre.ledger_url = centre.app, f"sqlite:///{copy}"
        centre.reopen()
        with centre.cluster() as second:
            drop_nothing(second)
        with pytest.raises(PermanentError, match="ahead of this ledger"):
            drop_nothing(cluster)
        ours.ledger.close()
