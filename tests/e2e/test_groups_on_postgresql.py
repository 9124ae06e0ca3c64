"""What keeps groups in step on a ledger in PostgreSQL: the same rows, the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog
from tidemark.cluster.health.operator import force_group, resync_member, switch_over
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.replicas import commit
from tidemark.cluster.replicas.commit import retain_logs
from tidemark.ledger.backup import back_up
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs

pytestmark = pytest.mark.full
NODES = ("n1", "n2", "n3")


@pytest.fixture
def centre(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> LoadedCentre:
    for name in ("LONG_LOG", "_SHRINKS", "SNAPSHOT_SECONDS"):
        monkeypatch.setattr(commit, name, 0)
    made = LoadedCentre(tmp_path, ledger_url=postgres_url)
    made.land(1)
    made.load()
    return made


def group(centre: LoadedCentre) -> GroupLogRow:
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


def test_a_group_loses_its_master_is_recovered_switched_over_snapshot_and_forced(centre: LoadedCentre) -> None:
    first = group(centre).master
    centre.away = {first}
    watched = [watch_groups(centre.app, centre.receiver) for _ in range(3)]
    assert watched[-1].masters.keys() == {centre.header} and group(centre).master != first
    centre.land(2)
    assert centre.load().exit_code == 0
    centre.away = set()
    assert watch_groups(centre.app, centre.receiver).files == {first: 1}
    to = next(node for node in NODES if node != group(centre).master)
    assert len(switch_over(centre.app, centre.receiver, centre.header, to).done) == 1
    assert group(centre).master == to
    assert resync_member(centre.app, centre.receiver, first, centre.header).exit_code == 0
    for _ in range(3):
        with centre.cluster() as cluster:
            retain_logs(cluster)
    ((snapshot,),) = centre.sql("SELECT snapshot FROM group_cover WHERE header = :h", h=centre.header)
    assert snapshot > 0
    logs_tell_the_catalog(centre)
    centre.away = {node for node in NODES if node != first}
    assert len(force_group(centre.app, centre.receiver, centre.header, first).done) == 1
    centre.away = set()
    for _ in range(3):
        watch_groups(centre.app, centre.receiver)
    assert group(centre).in_step == NODES
    centre.land(3)
    assert centre.load().exit_code == 0 and len(centre.rows()) == 3
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


def test_a_copy_of_it_says_of_nothing_that_it_is_at_work(centre: LoadedCentre, tmp_path: Path) -> None:
    before = group(centre)
    with centre.app.ledger.write() as connection:
        connection.exec_driver_sql("UPDATE group_log SET operation = 'a commit'")
    back_up(centre.app.ledger, tmp_path / "copy.db")
    assert group(centre).operation == "a commit"
    centre.app.ledger.close()
    centre.ledger_url = f"sqlite:///{tmp_path / 'copy.db'}"
    centre.reopen()
    copied = group(centre)
    assert copied == replace(before, epoch=copied.epoch, active=False) and copied.epoch > before.epoch + 100_000
    centre.land(2)
    assert centre.load().exit_code == 0  # nothing happened since
