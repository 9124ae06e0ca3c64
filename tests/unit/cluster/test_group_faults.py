"""What may happen to nodes and ledgers of a group: it is refused or waited for, and nothing that was told is lost."""

from __future__ import annotations

import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.centre import d1, rows
from tests.clustered import Clustered, LoadedCentre, everything_is_held, logs_tell_the_catalog
from tests.landing_maker import SITE_A, SITE_B
from tests.small_files import sealed, source
from tidemark.app import App
from tidemark.cluster.health.check import check_cluster
from tidemark.cluster.health.operator import force_group, recover_members, resync_member, switch_over
from tidemark.cluster.health.repair import repair_cluster
from tidemark.cluster.health.watch import Watched, watch_groups
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster, roll_back
from tidemark.cluster.migration.migrate import migrate_slots
from tidemark.cluster.replicas.commit import record_slots
from tidemark.cluster.replicas.core.segment import MARK_BYTES
from tidemark.cluster.replicas.members import folder_of
from tidemark.errors import NoQuorumError, PermanentError, TidemarkError
from tidemark.ledger.backup import back_up
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.operations.decisions import owners_dismiss, owners_transfer
from tidemark.operations.housekeeping import housekeep
from tidemark.proof.cluster.page import render_page
from tidemark.proof.cluster.replicas import show_replicas
from tidemark.proof.cluster.show import show_cluster
from tidemark.proof.overview import status
from tidemark.proof.prove import why
from tidemark.proof.status import ClusterStatus
from tidemark.proof.verify.verify import verify
from tidemark.receiver.iotdb.load import load_iotdb
from tidemark.receiver.load.load import load
from tidemark.receiver.merge.merge import merge
from tidemark.settings.model import NodeSettings, ReceiverSettings
from tidemark.tsfiles.names import MARK_FILE

NODES = ("n1", "n2", "n3")
DAY = 86_400.0


@pytest.fixture
def centre(tmp_path: Path) -> LoadedCentre:
    made = LoadedCentre(tmp_path)
    made.land(1)
    made.load()
    return made


def group(centre: LoadedCentre) -> GroupLogRow:
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


def watch(centre: LoadedCentre) -> Watched:
    return watch_groups(centre.app, centre.receiver)


def why_of(centre: LoadedCentre, node: str) -> str:
    shown = next(one for one in show_replicas(centre.app, centre.receiver).groups if one.group == group(centre).header)
    return next(member.why for member in shown.members if member.node == node)


def bytes_at_nodes(centre: LoadedCentre) -> dict[str, bytes]:
    place = centre.folder / "nodes"
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("days", [-3, 3])
def test_a_process_whose_clock_is_three_days_off_changes_nothing(centre: LoadedCentre, days: int) -> None:
    """Who is away, and which lease is over, is told by the database's clock; who is ahead by epoch and version."""
    centre.app.clock = lambda: time.time() + days * DAY
    late = group(centre).master
    centre.away = {late}
    for _ in range(3):
        watched = watch(centre)
    assert watched.masters.keys() == {centre.header}
    centre.land(2)
    assert centre.load().exit_code == 0
    centre.app.clock = lambda: time.time() - days * DAY
    centre.away = set()
    watched = watch(centre)
    assert (watched.exit_code, watched.files) == (0, {late: 1})
    centre.land(3)
    assert centre.load().exit_code == 0
    assert group(centre).in_step == NODES
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


def test_two_node_folders_that_were_swapped_are_nobodys_until_they_are_back(centre: LoadedCentre) -> None:
    first, second = (centre.node(name) for name in NODES if name != group(centre).master)
    before = bytes_at_nodes(centre)

    def swap() -> None:
        first.rename(centre.folder / "swapped")
        second.rename(first)
        (centre.folder / "swapped").rename(second)

    swap()
    assert f"is the folder of node {second.name} of cluster" in why_of(centre, first.name)
    watch(centre)
    centre.land(2)
    with pytest.raises(NoQuorumError):
        centre.load()
    assert centre.rows() == rows((1, 10))
    swap()
    assert {path: bytes_at_nodes(centre).get(path) for path in before if not path.startswith(group(centre).master)} == {
        path: data for path, data in before.items() if not path.startswith(group(centre).master)
    }
    assert centre.load().exit_code == 0
    assert group(centre).in_step == NODES
    logs_tell_the_catalog(centre)


def test_a_log_of_a_newer_tidemark_is_left_as_it_is_and_its_member_waited_for(centre: LoadedCentre) -> None:
    newer = next(node for node in NODES if node != group(centre).master)
    log = max((centre.node(newer) / folder_of(centre.header)).iterdir())
    ours = log.read_bytes()
    mark = bytearray(ours[-MARK_BYTES:-4])
    mark[4] += 1
    theirs = ours[:-MARK_BYTES] + mark + zlib.crc32(mark).to_bytes(4, "little")
    log.write_bytes(theirs)
    centre.land(2)
    assert centre.load().exit_code == 0
    for _ in range(3):
        watched = watch(centre)
    assert watched.exit_code == 0 and newer not in group(centre).in_step
    assert "newer Tidemark" in why_of(centre, newer)
    assert log.read_bytes() == theirs
    log.write_bytes(ours)  # as if that one had been asked to go back
    watch(centre)
    assert group(centre).in_step == NODES
    logs_tell_the_catalog(centre)


class SecondCentre(Clustered):
    """Another installation, with a receiver and a ledger of its own. Its settings name the nodes of the first."""

    def node(self, name: str) -> Path:
        return self.folder.parent / "nodes" / name


def test_the_nodes_of_another_coordinator_are_not_written_to(centre: LoadedCentre) -> None:
    settled, before = group(centre).settled, bytes_at_nodes(centre)
    (centre.folder / "second").mkdir()
    second = SecondCentre(centre.folder / "second")
    second.app.settings.nodes.update({name: NodeSettings(name, f"file://{second.node(name)}") for name in NODES})
    for _ in range(2):
        with pytest.raises(PermanentError, match="is the folder of node n1") as refused:
            init_cluster(second.app, second.receiver)
        assert refused.value.hint
    assert bytes_at_nodes(centre) == before
    with pytest.raises(TidemarkError):
        watch_groups(second.app, second.receiver)
    with pytest.raises(PermanentError, match="of cluster"):  # its ledger has a table, as if nobody had looked
        second.begin(*NODES)
    second.sender().land({source(9): d1((9, 90))})
    with pytest.raises(TidemarkError):
        second.load()
    assert second.rows() == []
    second.app.ledger.close()
    centre.land(2)
    assert centre.load().exit_code == 0
    assert group(centre).epoch == 1 and group(centre).settled > settled
    logs_tell_the_catalog(centre)


def test_settings_without_the_cluster_write_nothing(centre: LoadedCentre) -> None:
    """As of a second machine that has older ones. A file would be at no node, and a ledger made from them would lack it."""
    settings = centre.app.settings
    before = bytes_at_nodes(centre)
    for other in (None, replace(settings.cluster, receiver="another") if settings.cluster else None):
        centre.app.settings = replace(settings, cluster=other)
        centre.land(2)
        for act in (centre.load, centre.merge, lambda: housekeep(centre.app, centre.receiver)):
            with pytest.raises(PermanentError, match=r"lie at data nodes, .* the settings have no \[cluster\]"):
                act()
        assert centre.rows() == rows((1, 10))
        centre.app.settings = settings
    assert bytes_at_nodes(centre) == before
    assert centre.load().exit_code == 0
    assert centre.rows() == rows((1, 10), (2, 20))
    everything_is_held(centre)
    logs_tell_the_catalog(centre)


def test_an_emptied_database_writes_nothing_and_no_cluster_begins_over_the_old_one(centre: LoadedCentre) -> None:
    before = bytes_at_nodes(centre)
    with centre.app.ledger.write() as connection:
        names = [name for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            if name not in ("tidemark_schema", "sqlite_sequence"):
                connection.exec_driver_sql(f"DELETE FROM {name}")
    with pytest.raises(PermanentError, match="empty, or another one"):
        centre.reopen()
    (centre.root / MARK_FILE).unlink()  # and the receiver's folder lost its mark
    with pytest.raises(PermanentError, match="empty, or another one"):
        centre.reopen()
    centre.app.settings.nodes.update({name: NodeSettings(name, f"file://{centre.node(name)}") for name in NODES})
    with pytest.raises(TidemarkError):
        init_cluster(centre.app, centre.receiver)
    assert bytes_at_nodes(centre) == before


def test_by_a_ledger_that_is_older_than_the_nodes_nothing_is_left_over(centre: LoadedCentre) -> None:
    """The receiver's mark is from that day too, and nobody loads: who asks what no record names asks the logs first."""
    copy, mark = centre.folder / "copy.db", (centre.root / MARK_FILE).read_bytes()
    back_up(centre.app.ledger, copy)
    centre.land(2)
    centre.load()
    newest = centre.folder / "newest.db"
    back_up(centre.app.ledger, newest)
    restore(centre, copy)
    (centre.root / MARK_FILE).write_bytes(mark)
    centre.reopen()
    for answered in ("landing", "answered"):  # and housekeeping has removed the landing since
        for path in (centre.root / answered).glob("*/*-000002-1*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    centre.sender(SITE_B).land({source(3, database="root.b"): sealed({"root.b.d1": {"s": [(3, 30)]}})})
    lost = next(node for node in NODES if node != group(centre).master)
    centre.node(lost).rename(centre.folder / "lost")
    before = bytes_at_nodes(centre)
    centre.app.clock = lambda: time.time() + 3 * DAY  # what no record names would be old enough to go
    stranger = next(name for name in NODES if name != centre.header)  # a group that is not ahead
    acts: list[Callable[[App, ReceiverSettings], object]] = [
        housekeep,
        check_cluster,
        repair_cluster,
        recover_members,
        roll_back,
        migrate_slots,
        merge,
        load,
        partial(repair_cluster, lost=lost),
        partial(change_nodes, wanted=Wanted("rebalance")),
        partial(verify, repair=True),
        partial(owners_transfer, pattern="root.sg.d1", to=SITE_A),
        partial(owners_dismiss, site=SITE_A),
        partial(switch_over, header=stranger, to=lost),
        partial(resync_member, node=lost, header=stranger),
        partial(resync_member, node=lost),
        partial(force_group, header=stranger),
        lambda app, receiver: load_iotdb(app, replace(receiver, iotdb="iotdb://root@127.0.0.1:1")),
    ]
    audited = centre.sql("SELECT COUNT(*) FROM audit")
    for act in acts:
        with pytest.raises(PermanentError, match=f"group {centre.header} .* is ahead of this ledger") as ahead:
            act(centre.app, centre.receiver)
        assert ahead.value.kind == 6 and "ledger rebuild --replace" in (ahead.value.hint or "")
    assert not watch(centre).masters and watch(centre).exit_code == 6
    assert bytes_at_nodes(centre) == before and centre.sql("SELECT COUNT(*) FROM audit") == audited
    assert centre.files("decided") == [], "nothing is decided that the ledger made from the nodes would find"
    assert (status(centre.app).exit_code, cluster_status(centre).ahead) == (6, (centre.header,))
    with pytest.raises(PermanentError, match="its catalog is an older one"):
        centre.rows()
    told = show_cluster(centre.app, centre.receiver)
    assert told.as_json()["ahead"] == [centre.header] and "ledger rebuild" in told.older and told.older in render_page(told)
    node = why(centre.app, f"node:{centre.header}")
    assert node.state == "refused" and "ledger rebuild" in node.next
    assert f"the last round of the watch found group {centre.header} ahead of the ledger" in node.evidence
    waits = {shown.group: shown.waits for shown in show_replicas(centre.app, centre.receiver).groups}
    assert waits[centre.header] == (
        f"the nodes are ahead of the ledger in group {centre.header}, so it is older than they are:"
        " ./tidemark ledger rebuild --replace"
    )
    (centre.folder / "lost").rename(centre.node(lost))
    restore(centre, newest)
    centre.reopen()
    housekeep(centre.app, centre.receiver)
    assert watch(centre).exit_code == 0 and not cluster_status(centre).ahead
    assert why(centre.app, f"node:{centre.header}").state != "refused"
    assert check_cluster(centre.app, centre.receiver).exit_code == 0
    assert centre.rows() == rows((1, 10), (2, 20))
    assert centre.load().exit_code == 0 and len(centre.rows()) == 3


def cluster_status(centre: LoadedCentre) -> ClusterStatus:
    told = status(centre.app).cluster
    assert told is not None
    return told


def restore(centre: LoadedCentre, copy: Path) -> None:
    place = Path(str(centre.app.ledger.engine.url.database))
    centre.app.ledger.close()
    for path in place.parent.glob(f"{place.name}-*"):
        path.unlink()
    shutil.copy(copy, place)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_group_whose_members_in_step_all_left_begins_its_log_anew_by_the_ledger(tmp_path: Path, ahead: bool) -> None:
    """With a quorum of 1 the one member that is in step leaves; who stays missed a record, and who comes has no log."""
    centre = LoadedCentre(tmp_path, replicas=2, quorum=1)
    centre.land(1)
    centre.load()
    header = centre.header
    with centre.cluster() as cluster:
        record_slots(cluster)
        stays, leaves = header, next(n for n in cluster.table.groups_by_header()[header] if n != header)
    centre.away = {stays}
    centre.land(2)
    centre.load()
    centre.away = set()
    assert group(centre).in_step == (leaves,)
    if ahead:
        with centre.app.ledger.write() as connection:  # an older copy of the ledger, from before the first load
            connection.exec_driver_sql("UPDATE group_log SET settled_epoch = 1, settled_version = 1")
        before = bytes_at_nodes(centre).keys()
        with pytest.raises(PermanentError, match="are ahead of this ledger"):
            change_nodes(centre.app, centre.receiver, Wanted("remove", leaves))
        assert before <= bytes_at_nodes(centre).keys(), "no log is set aside"
        return
    assert change_nodes(centre.app, centre.receiver, Wanted("remove", leaves), wait=False).state == "swapped"
    (shown,) = (one for one in show_replicas(centre.app, centre.receiver).groups if one.group == header)
    assert shown.waits.startswith(
        "it has no master: all who had its whole log left; it begins anew, by ./tidemark replica watch"
    )
    assert watch(centre).masters.keys() == {header}
    assert change_nodes(centre.app, centre.receiver, Wanted("remove", leaves)).state == "done"
    assert centre.header == header and group(centre).in_step == tuple(sorted({*NODES} - {leaves}))
    assert list((centre.node(stays) / folder_of(header)).parent.glob("of-*.parted-*")), "the older log is not deleted"
    centre.land(3)
    assert centre.load().exit_code == 0 and centre.rows() == rows((1, 10), (2, 20), (3, 30))
    logs_tell_the_catalog(centre)
