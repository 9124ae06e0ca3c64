"""Faults of groups on real parts: a byte of a sealed segment rots behind an SSH server, the ledger's PostgreSQL is away for
an hour, it stops in the middle of a commit, two schedulers act at the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.centre import rows
from tests.clustered import LoadedCentre, everything_is_held, logs_tell_the_catalog, one_of_two_schedulers_acts
from tests.crash.explorer import CrashingStore, Effects, identity
from tests.services.postgres import Postgres
from tests.services.sshd import Sshd
from tidemark.cluster.health.operator import force_group, recover_members, resync_member, switch_over
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.replicas.commit import record_slots, retain_logs
from tidemark.cluster.replicas.core.segment import MARK_BYTES
from tidemark.cluster.replicas.members import folder_of
from tidemark.errors import RetryableError
from tidemark.ledger.cluster.group_logs import GroupLogRow, read_group_logs
from tidemark.operations.housekeeping import housekeep
from tidemark.operations.rebuild.from_nodes import open_from_nodes
from tidemark.operations.replicas import verify_replicas
from tidemark.proof.cluster.replicas import show_replicas
from tidemark.receiver.read import Query, read
from tidemark.settings.model import NodeSettings
from tidemark.stores.open import open_store

NODES = ("n1", "n2", "n3")


def group(centre: LoadedCentre) -> GroupLogRow:
    with centre.app.ledger.read() as connection:
        return read_group_logs(connection, centre.name)[centre.header]


def rows_from_nodes(centre: LoadedCentre) -> list[tuple[object, ...]]:
    out = centre.folder / "out.parquet"
    with open_from_nodes(centre.app.settings, centre.receiver) as app:
        read(app, centre.receiver, Query(tall=True), out)
    return [tuple(row.values()) for row in pq.read_table(out).to_pylist()]


def loaded(folder: Path, **facts: str) -> LoadedCentre:
    """Two loads, and every log tells of its slots."""
    centre = LoadedCentre(folder, **facts)
    for name in NODES:
        centre.app.settings.nodes[name] = NodeSettings(name, f"file://{centre.node(name)}")
    centre.land(1)
    centre.load()
    centre.land(2)
    centre.load()
    with centre.cluster() as cluster:
        record_slots(cluster)
    return centre


@pytest.mark.parametrize("which", ["slave", pytest.param("master", marks=pytest.mark.full)])
def test_a_rotten_byte_of_a_sealed_segment_is_named_and_the_log_comes_from_another_member(
    tmp_path: Path, sshd: Sshd, which: str
) -> None:
    centre = loaded(tmp_path)
    master = group(centre).master
    node = master if which == "master" else next(name for name in NODES if name != master)
    behind = NodeSettings(node, sshd.url(centre.node(node)), host_key=sshd.host_key, key=str(sshd.key))
    centre.app.settings.nodes[node] = behind
    with centre.cluster() as cluster:
        retain_logs(cluster)
    centre.land(3)
    centre.load()
    sealed, *_ = sorted((centre.node(node) / folder_of(centre.header)).iterdir())
    whole = sealed.read_bytes()
    sealed.write_bytes(whole[: MARK_BYTES + 8] + bytes([whole[MARK_BYTES + 8] ^ 1]) + whole[MARK_BYTES + 9 :])

    centre.land(4)
    assert centre.load().exit_code == 0, "its end is sound: it takes records"
    seen = centre.rows()
    assert rows_from_nodes(centre) == seen == rows((1, 10), (2, 20), (3, 30), (4, 40))
    told = verify_replicas(centre.app, centre.receiver)
    assert told.exit_code == 20 and told.as_json()["hint"] == f"./tidemark replica recover {node}"
    (why,) = told.wrong
    assert why.startswith(f"node {node} of group {centre.header}: ")
    assert why.endswith(f"{folder_of(centre.header)}/{sealed.name} is damaged at byte {MARK_BYTES}")

    (done,) = recover_members(centre.app, centre.receiver, node).done
    assert (done.node, done.groups, done.files) == (node, (centre.header,), 0)
    assert group(centre).in_step == NODES and (group(centre).master != node)
    assert verify_replicas(centre.app, centre.receiver).wrong == ()
    assert recover_members(centre.app, centre.receiver, f"group:{centre.header}").done == ()
    logs_tell_the_catalog(centre)
    everything_is_held(centre)
    (aside,) = sealed.parent.parent.glob(f"{sealed.parent.name}.parted-*")
    assert (aside / sealed.name).exists(), "nothing is deleted"


class Stopping(Effects):
    """Stops a database behind the first record that a member takes."""

    def __init__(self, base: Postgres) -> None:
        super().__init__()
        self.base: Postgres | None = base

    def point(self, name: str) -> None:
        if self.base is not None and name.startswith("after") and "append_if" in name:
            base, self.base = self.base, None
            base.stop()


@pytest.fixture
def base(postgres: Postgres) -> Iterator[Postgres]:
    """The session's server; it runs again at the end."""
    yield postgres
    if postgres.process.poll() is not None:
        postgres.restart()


@pytest.mark.full
def test_a_ledger_that_is_away_for_an_hour_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, postgres_ledger_url: str, base: Postgres
) -> None:
    centre = loaded(tmp_path, ledger_url=postgres_ledger_url)
    app, receiver, header, before = centre.app, centre.receiver, centre.header, group(centre)
    slave = next(name for name in NODES if name != before.master)
    seen = centre.rows()
    centre.land(3)
    base.stop()
    verbs: list[Callable[[], object]] = [
        centre.load,
        centre.merge,
        centre.rows,
        lambda: watch_groups(app, receiver),
        lambda: show_replicas(app, receiver),
        lambda: verify_replicas(app, receiver),
        lambda: recover_members(app, receiver),
        lambda: switch_over(app, receiver, header, slave),
        lambda: resync_member(app, receiver, slave, header),
        lambda: force_group(app, receiver, header),
        lambda: housekeep(app, receiver),
    ]
    for minutes in (0, 61):
        app.clock = lambda minutes=minutes: time.time() + minutes * 60
        for verb in verbs:
            with pytest.raises(RetryableError, match="the ledger does not answer") as refused:
                verb()
            assert refused.value.kind == 5 and refused.value.hint
        assert rows_from_nodes(centre) == seen, "the nodes answer without it"
    base.restart()
    assert group(centre) == before, "nobody did anything"
    assert centre.load().exit_code == 0 and centre.rows() == rows((1, 10), (2, 20), (3, 30))
    assert watch_groups(app, receiver).exit_code == 0 and group(centre).master == before.master
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


@pytest.mark.full
def test_a_ledger_that_stops_behind_a_record_takes_it_back_and_the_files_come_once(
    tmp_path: Path, postgres_ledger_url: str, base: Postgres
) -> None:
    centre = loaded(tmp_path, ledger_url=postgres_ledger_url)
    before, seen = group(centre), centre.rows()
    centre.land(3)
    stopping = Stopping(base)
    centre.app.identity = identity()  # a process that dies of it
    centre.app.opener = lambda address: (
        CrashingStore(open_store(address), stopping, "node") if "/nodes/" in address.url else open_store(address)
    )
    with pytest.raises(RetryableError, match="the ledger does not answer"):
        centre.load()
    assert stopping.base is None
    base.restart()
    assert centre.rows() == seen and group(centre).operation, "it is in doubt"
    centre.reopen()
    assert centre.load().exit_code == 0 and centre.rows() == rows((1, 10), (2, 20), (3, 30))
    assert group(centre).epoch == before.epoch + 1 and group(centre).in_step == NODES
    logs_tell_the_catalog(centre)
    everything_is_held(centre)


@pytest.mark.full
def test_of_two_schedulers_on_one_postgresql_one_gives_a_master(tmp_path: Path, postgres_ledger_url: str) -> None:
    centre = loaded(tmp_path, ledger_url=postgres_ledger_url)
    one_of_two_schedulers_acts(centre)
