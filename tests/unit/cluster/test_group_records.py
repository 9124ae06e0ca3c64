"""Whatever changes a cluster's catalog, the logs of its groups tell the same catalog afterwards."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.centre import d1
from tests.clustered import Clustered, logs_tell_the_catalog
from tests.group_logs import fence_of, records_at
from tests.landing_maker import SITE_B
from tests.small_files import deletion, sealed, source
from tidemark.cluster.replicas.commit import record_slots
from tidemark.cluster.replicas.core.record import RecordKind, StoredRecord
from tidemark.cluster.replicas.core.roles import ORIGIN
from tidemark.cluster.replicas.records.fold import GroupTold, fold_group, join_groups
from tidemark.cluster.replicas.records.operation import FileEntry, Operation, read_part, records_of, taking_back
from tidemark.cluster.slots.balance import even_slots
from tidemark.cluster.slots.hash_ring import Node, identifier_of
from tidemark.ledger.cluster.group_logs import read_group_logs
from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.operations.decisions import owners_transfer
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.stores.local import LocalStore

SECOND = source(2, unsequence=True)


@pytest.fixture
def centre(tmp_path: Path) -> Clustered:
    made = Clustered(tmp_path)
    made.begin("n1", "n2", "n3")
    return made


def kinds(centre: Clustered) -> set[RecordKind]:
    """Of the records in all logs, without barriers."""
    with centre.app.ledger.read() as connection:
        rows = read_group_logs(connection, centre.name).values()
    records = [stored for row in rows for stored in records_at(LocalStore(str(centre.node(row.master))), row.header)]
    return {stored.kind for stored in records} - {RecordKind.BARRIER}


def test_files_with_deletions_that_come_later(centre: Clustered) -> None:
    sender = centre.sender()
    sender.land({source(1): d1((1, 10), (2, 20))})
    centre.load()
    logs_tell_the_catalog(centre)
    sender.land({source(1): {".mods": deletion("root.sg.d1.s", 2, 2).encode()}})
    centre.load()
    logs_tell_the_catalog(centre)
    assert kinds(centre) == {
        RecordKind.GAIN_SLOT,
        RecordKind.CREATE_DATABASE,
        RecordKind.WRITE_SCHEMA,
        RecordKind.ADD_FILES,
        RecordKind.DELETE_POINTS,
    }


def test_the_prefix_of_a_site_and_of_its_files(centre: Clustered) -> None:
    sender = centre.sender()
    sender.land({source(1): d1((1, 10), (3, 30)), SECOND: d1((2, 20), (3, 31))}, prefix="root.ship7")
    centre.load()
    assert {row[0] for row in centre.rows()} == {"root.ship7.sg.d1"}
    logs_tell_the_catalog(centre)
    centre.merge()
    assert {row[0] for row in centre.rows()} == {"root.ship7.sg.d1"}
    logs_tell_the_catalog(centre)


def test_a_merge_that_is_published_undone_made_again_and_settled(centre: Clustered) -> None:
    sender = centre.sender()
    sender.land({source(1): d1((1, 10), (3, 30)), SECOND: d1((2, 20), (3, 31))})
    centre.load()
    centre.merge()
    logs_tell_the_catalog(centre)
    assert RecordKind.PUBLISH_MERGE in kinds(centre)
    sender.land({source(3, unsequence=True): d1((3, 33))})
    centre.load()
    centre.merge()
    logs_tell_the_catalog(centre)
    centre.app.clock = lambda: time.time() + 40 * DAY
    assert housekeep(centre.app, centre.receiver).settled == 1
    logs_tell_the_catalog(centre)
    assert RecordKind.SETTLE_MERGE in kinds(centre)


@pytest.mark.parametrize("deletes", ["keep", "apply"])
def test_files_that_vanish_at_their_site(centre: Clustered, deletes: str) -> None:
    sender = centre.sender(deletes=deletes)
    sender.land({source(1): d1((1, 10)), source(2): d1((4, 40))})
    centre.load()
    sender.land(dropped=(sender.drop(source(1)),), removed=(source(1),))
    centre.load()
    logs_tell_the_catalog(centre)
    assert (RecordKind.REMOVE_FILES in kinds(centre)) is (deletes == "apply")


def test_a_database_whose_last_file_went(centre: Clustered) -> None:
    sender = centre.sender(deletes="apply")
    sender.land({source(1): d1((1, 10)), source(2).replace("root.sg", "root.sg2"): sealed({"root.sg2.d2": {"s": [(3, 3)]}})})
    centre.load()
    sender.land(dropped=(sender.drop(source(1)),), removed=(source(1),))
    centre.load()
    housekeep(centre.app, centre.receiver)
    logs_tell_the_catalog(centre)
    assert RecordKind.DROP_DATABASE in kinds(centre)


def test_a_device_that_another_site_gets(centre: Clustered) -> None:
    centre.sender().land({source(1): d1((1, 10))})
    centre.load()
    centre.sender(SITE_B, name="plant2").land({source(2): d1((2, 20))})
    centre.load()
    owners_transfer(centre.app, centre.receiver, "root.sg.d1", "plant2")
    assert centre.sql("SELECT site_id FROM owner") == [(SITE_B,)]
    logs_tell_the_catalog(centre)


def test_slots_that_another_group_gets_come_with_their_files(centre: Clustered) -> None:
    sender = centre.sender()
    places = [source(n).replace("root.sg", f"root.sg{n}") for n in range(1, 9)]
    sender.land({place: sealed({f"root.sg{n}.d1": {"s": [(n, n)]}}) for n, place in enumerate(places, 1)})
    centre.load()
    with centre.cluster() as cluster:
        table = cluster.table
    centre.swap(table.with_node(Node(identifier_of("n4"), "n4"), even_slots))
    with centre.cluster() as cluster:
        record_slots(cluster)
        logs_tell_the_catalog(centre)
        before = centre.sql("SELECT header, settled_version FROM group_log ORDER BY header")
        record_slots(cluster)
        assert centre.sql("SELECT header, settled_version FROM group_log ORDER BY header") == before
    assert RecordKind.LOSE_SLOT in kinds(centre)
    sender.land({source(9).replace("root.sg", "root.sg1"): sealed({"root.sg1.d1": {"s": [(9, 9)]}})})
    centre.load()
    logs_tell_the_catalog(centre)


def test_a_log_of_a_catalog_that_was_there_before_begins_with_its_files(centre: Clustered) -> None:
    sender = centre.sender()
    sender.land({source(1): d1((1, 10))})
    centre.load()
    with centre.app.ledger.write() as connection:  # as before there were logs
        for name in ("group_log", "group_cover"):
            connection.exec_driver_sql(f"DELETE FROM {name}")
    for node in ("n1", "n2", "n3"):
        for file in (centre.node(node) / ".tidemark/log").rglob("*.log"):
            file.unlink()
    sender.land({source(2): d1((2, 20))})
    centre.load()
    housekeep(centre.app, centre.receiver)  # the group of the schema too
    logs_tell_the_catalog(centre)


@pytest.mark.full
def test_an_operation_is_cut_into_records_that_are_not_too_long() -> None:
    devices = tuple(CatalogDevice(f"root.sg.d{n}", n, n + 1, 2) for n in range(12_000))
    file = CatalogFile(
        *("", "site", "source", "path", 1, "root.sg", "tree", 4, 0, 0, "data/a", "aa", 9, "", "", 24_000),
        rank=(0, 1, 0, 0, 1),
        created=1.0,
    )
    small = [FileEntry(replace(file, path=f"p{n}", location=f"data/{n}")) for n in range(5000)]
    whole = Operation(RecordKind.ADD_FILES, (FileEntry(file, devices), *small), gone=(small[0].key,))
    commit = "0f8e1c52-0000-4000-8000-000000000000"
    records = records_of(commit, [whole], ["n1"], ORIGIN, epoch=fence_of(1).epoch)
    parts = [part for stored in records if (part := read_part(stored)) is not None]
    assert [(part.number, part.of) for part in parts] == [(n, len(parts)) for n in range(len(parts))]
    assert len(parts) > 4 and max(len(stored.body) for stored in records) < 2 << 20
    assert [device for part in parts for entry in part.operation.files for device in entry.devices] == list(devices)
    assert [part.operation.gone for part in parts] == [(small[0].key,)] + [()] * (len(parts) - 1)
    assert all(json.loads(stored.body)["commit"] == commit for stored in records)
    assert records_of(commit, [whole], ["n1"], ORIGIN, epoch=1) == records


A_FILE = CatalogFile(
    *("", "site", "source", "path", 1, "root.sg", "tree", 4, 0, 0, "data/a", "aa", 9, "", "", 2),
    rank=(0, 1, 0, 0, 1),
    created=1.0,
)
FIRST, SECOND_COMMIT = "0f8e1c52-0000-4000-8000-000000000001", "0f8e1c52-0000-4000-8000-000000000002"


def both_slots(_: CatalogFile) -> tuple[int, ...]:
    """Each file lies in a slot of either group."""
    return (0, 1)


def log_of(*commits: list[StoredRecord]) -> GroupTold:
    return fold_group([stored for commit in commits for stored in commit], both_slots)


def gained(slot: int) -> list[StoredRecord]:
    return records_of(FIRST, [Operation(RecordKind.GAIN_SLOT, slots=(slot,), table=1)], ["n1", "n2"], ORIGIN, epoch=1)


def added(behind: list[StoredRecord], commit: str = SECOND_COMMIT) -> list[StoredRecord]:
    operations = [
        Operation(RecordKind.CREATE_DATABASE, database="root.sg"),
        Operation(RecordKind.ADD_FILES, (FileEntry(A_FILE),)),
    ]
    return records_of(commit, operations, ["n1", "n2"], behind[-1].head.end, epoch=1)


def test_a_commit_counts_if_it_is_whole_in_all_of_its_groups() -> None:
    one, two = gained(0), gained(1)

    def files(*logs: GroupTold) -> int:
        return len(join_groups(dict(zip(("n1", "n2"), logs, strict=True)), both_slots).files)

    assert files(log_of(one, added(one)), log_of(two, added(two))) == 1
    assert files(log_of(one, added(one)), log_of(two)) == 0  # it died before the second group
    assert files(log_of(one, added(one)), log_of(two, added(two)[:1])) == 0  # or within it
    back = taking_back(SECOND_COMMIT, added(two)[-1].head.end, 1)
    assert files(log_of(one, added(one)), log_of(two, added(two), back)) == 0  # taken back in one of them so far
    other = [Operation(RecordKind.CREATE_DATABASE, database="root.other")]
    later = records_of("0f8e1c52-0000-4000-8000-000000000003", other, ["n2"], added(two)[-1].head.end, epoch=1)
    assert later
    assert files(log_of(one, added(one)), log_of(two, added(two), later)) == 1


def test_a_log_that_is_read_twice_tells_the_same() -> None:
    one = gained(0)
    once, twice = log_of(one, added(one)), log_of(one, added(one), one, added(one))
    assert join_groups({"n1": once}, both_slots).files == join_groups({"n1": twice}, both_slots).files


def test_a_file_of_a_record_made_before_sites_had_a_prefix_has_none() -> None:
    (stored,) = (one for one in added(gained(0)) if one.kind is RecordKind.ADD_FILES)
    words = json.loads(stored.body)
    del words["files"][0]["prefix"]
    part = read_part(replace(stored, body=json.dumps(words).encode()))
    assert part is not None and part.operation.files == (FileEntry(A_FILE),)


def test_slots_that_went_take_their_files_along() -> None:
    one, two = gained(0), gained(1)
    lost = records_of(
        "0f8e1c52-0000-4000-8000-000000000004",
        [Operation(RecordKind.LOSE_SLOT, slots=(0,), table=2)],
        ["n1"],
        added(one)[-1].head.end,
        epoch=1,
    )
    told = {"n1": log_of(one, added(one), lost), "n2": log_of(two, added(two))}
    assert len(join_groups(told, both_slots).files) == 1  # the other slot has it still
    assert told["n1"].files == {} and told["n1"].slots == {}
