"""Phase 2: who is asked for what, what is not sent twice, who may say what at which epoch, and when old copies go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.moving_world import RECEIVER, MovingWorld
from tidemark.cluster.membership.change import Wanted, change_nodes, init_cluster
from tidemark.cluster.migration import cleanup as cluster_going
from tidemark.cluster.migration import pull as cluster_moves
from tidemark.cluster.migration.inventory import read_stock
from tidemark.cluster.migration.migrate import MigrateResult, migrate_slots, open_batches
from tidemark.cluster.migration.plan import Batch
from tidemark.cluster.migration.pull import SlotMigration, pull_batch
from tidemark.cluster.nodes.cluster import Cluster
from tidemark.cluster.nodes.folder import LOGS
from tidemark.cluster.replicas.catch_up import catch_up
from tidemark.errors import DiskFullError, LeaseLostError, RetryableError, StaleEpochError, UnreachableError
from tidemark.ledger.cluster import copies as copy_rows
from tidemark.ledger.cluster import moves as move_rows
from tidemark.ledger.cluster import operations as group_rows
from tidemark.ledger.cluster.copies import CopyRow
from tidemark.ledger.cluster.moves import MoveRow
from tidemark.ledger.cluster.operations import OperationRow
from tidemark.ledger.leases import Leases
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.progress import Tick, ignore_progress
from tidemark.proof.cluster.show import status_of
from tidemark.settings.model import ClusterSettings

ADD = Wanted("add", "n4")


@pytest.fixture
def swapped(tmp_path: Path) -> Iterator[MovingWorld]:
    """Three nodes with files, and a fourth one that is a member from now on and has nothing yet."""
    world = MovingWorld(tmp_path, cluster=ClusterSettings(replicas=2, quorum=1, slots=5, grace_hours=0, cache_bytes=0))
    with world.app(nodes=world.names) as app:
        init_cluster(app, world.receiver)
    for partition in range(6):
        world.put("root.sg", partition)
        world.put("root.other", partition, mods="deletion" if partition == 3 else "")
    with world.app() as app:
        assert change_nodes(app, world.receiver, ADD, wait=False).state == "swapped"
    yield world


def moved(world: MovingWorld, slots: list[int] | None = None) -> MigrateResult:
    with world.app() as app:
        return migrate_slots(app, world.receiver, slots=slots)


@pytest.mark.full
def test_everything_moves_and_the_progress_ends_at_its_end(swapped: MovingWorld) -> None:
    ticks: list[Tick] = []
    with swapped.app() as app:
        result = migrate_slots(app, swapped.receiver, ticks.append)
    swapped.settled()
    assert result.state == "done" and result.left == 0 and result.bytes > 0
    last = ticks[-1]
    assert (last.done, last.bytes_done) == (last.total, last.bytes_total) and last.total == result.slots
    assert [tick.bytes_done for tick in ticks] == sorted(tick.bytes_done for tick in ticks)
    assert moved(swapped) == MigrateResult(2, 0, 0, 0, ""), "nothing is left to do"


def test_slots_that_had_moved_come_back_whole_when_the_next_change_supersedes(swapped: MovingWorld) -> None:
    """Who gave a slot up has dropped its schema, and gets it again."""
    with swapped.app() as app, swapped.open(app) as cluster:
        ((first,),) = swapped.sql("SELECT change_id FROM cluster_change WHERE state = 'swapped'")
        *some, _ = sorted(cluster.table.moving)
    assert moved(swapped, some).left == 1
    swapped.away = {"n4"}
    with swapped.app() as app:
        back = Wanted("remove", "n4", supersedes=str(first))
        assert change_nodes(app, swapped.receiver, back).state == "done"
    swapped.away = set()
    moved(swapped)
    swapped.settled()
    swapped.proved()


def test_links_of_a_dead_move_at_a_node_that_was_away_go_with_the_next_call(swapped: MovingWorld) -> None:
    """The change has ended without dropping them. They would keep the bytes of files that were removed since."""
    assert moved(swapped).state == "done"
    place = swapped.stores["n1"].list_files(["data"]).entries[0].path
    with swapped.app() as app, swapped.open(app) as cluster:
        cluster.open_folder("n1").create_snapshot([place], "move-2-0-n4")
    assert swapped.stores["n1"].list_files([".tidemark/snapshot"]).entries
    assert moved(swapped) == MigrateResult(2, 0, 0, 0, "")
    swapped.settled()


@pytest.mark.full
def test_batches_may_be_moved_one_by_one_in_any_order(swapped: MovingWorld) -> None:
    with swapped.app() as app:
        batches = open_batches(app, swapped.receiver)
    assert len(batches) > 1
    left = sum(len(batch.slots) for batch in batches)
    for batch in reversed(batches):
        result = moved(swapped, list(batch.slots))
        left -= len(batch.slots)
        swapped.audit()
        assert (result.slots, result.left, result.state) == (len(batch.slots), left, "migrating" if left else "done")
    swapped.settled()


@pytest.mark.full
def test_what_lies_at_the_member_already_is_not_sent_again(swapped: MovingWorld) -> None:
    for name in ("n1", "n2", "n3"):
        for entry in swapped.stores[name].list_files(["data"]).entries:
            swapped.stores["n4"].put(entry.path, swapped.stores[name].read(entry.path))
    written: list[str] = []
    swapped.stores["n4"].on_effect = lambda effect, path: written.append(path) if effect == "write" else None
    moved(swapped)
    assert not [path for path in written if path.startswith("data/")]
    extra = swapped.stores["n4"].list_files(["data"]).entries  # what this test put there too much
    known = {row[0] for row in swapped.sql("SELECT location FROM node_copy WHERE node = 'n4'")}
    swapped.stores["n4"].remove([entry.path for entry in extra if entry.path not in known])
    swapped.settled()


def of_n4(world: MovingWorld) -> Batch:
    """A batch that n4 gains, with a file in it; the receiver has no file any more, so that nodes are asked."""
    store = world.stores[RECEIVER]
    store.remove([entry.path for entry in store.list_files(["data"]).entries])
    with world.app() as app:
        found = [batch for batch in open_batches(app, world.receiver) if "n4" in batch.gaining and in_slots(world, batch)]
    return max(found, key=lambda batch: len(in_slots(world, batch)))


def in_slots(world: MovingWorld, batch: Batch) -> list[str]:
    places = world.sql("SELECT DISTINCT location, slot FROM node_copy ORDER BY location")
    return [str(location) for location, slot in places if slot in batch.slots]


def events(world: MovingWorld) -> list[str]:
    return [str(row[0]) for row in world.sql("SELECT detail FROM event WHERE kind = 'cluster.source_failed'")]


def open_moves(world: MovingWorld) -> list[MoveRow]:
    with world.app() as app, app.ledger.read() as connection:
        return move_rows.moves_of_epoch(connection, RECEIVER, 2, open_only=True)


def acknowledged(world: MovingWorld) -> set[tuple[str, int]]:
    """(node, slot)"""
    with world.app() as app, app.ledger.read() as connection:
        told = move_rows.acknowledged_nodes(connection, RECEIVER, 2)
    return {(node, slot) for slot, nodes in told.items() for node in nodes}


@pytest.mark.full
def test_the_member_of_the_same_place_is_asked_first(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    source = batch.old[batch.new.index("n4")]
    linked: list[str] = []

    def note_link(effect: str, path: str) -> None:
        if effect == "link" and not path.startswith(LOGS):
            linked.append(path)

    swapped.stores[source].on_effect = note_link
    moved(swapped, list(batch.slots))
    assert len(linked) >= len(in_slots(swapped, batch))
    assert all(path.startswith(".tidemark/snapshot/move-2-") for path in linked)


@pytest.mark.full
def test_a_rotten_copy_is_not_taken_and_another_member_is_asked(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    first, location = batch.sources_for("n4")[0], in_slots(swapped, batch)[0]
    whole = swapped.stores[first].read(location)
    swapped.stores[first].put(location, b"X" + whole[1:])
    moved(swapped, list(batch.slots))
    assert swapped.stores["n4"].read(location) == whole
    assert any(first in told for told in events(swapped))


@pytest.mark.full
def test_a_source_that_is_away_is_passed_over(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    first = batch.sources_for("n4")[0]
    swapped.away = {first}
    moved(swapped, list(batch.slots))  # who is of both groups has all and need not be asked
    for location in in_slots(swapped, batch):
        assert swapped.digest("n4", location)
    assert any(f"node {first} cannot be reached" in told for told in events(swapped))
    swapped.away = set()
    moved(swapped)
    swapped.settled()


@pytest.mark.full
def test_a_member_that_goes_away_in_the_middle_is_not_waited_for_with_every_source(swapped: MovingWorld) -> None:
    n4, asked = swapped.stores["n4"], []

    def gone(*path: object) -> None:
        asked.append(path)
        raise UnreachableError("memory://n4 does not answer")

    def goes_away(effect: str, path: str) -> None:
        if effect == "write" and path.startswith("data/"):
            n4.read_many = n4.stat_many = n4.on_effect = gone  # type: ignore[method-assign, assignment]
            gone(path)

    n4.on_effect = goes_away
    with pytest.raises(RetryableError, match="still move: node n4 cannot be reached"):
        moved(swapped)
    assert len(asked) < 6 and events(swapped) == [], "once found away it is left alone, and no source is blamed for it"
    swapped.audit()
    del n4.read_many, n4.stat_many
    n4.on_effect = lambda _effect, _path: None
    moved(swapped)
    swapped.settled()


@pytest.mark.full
def test_a_full_member_does_not_keep_the_others_from_theirs(swapped: MovingWorld) -> None:
    def full(effect: str, path: str) -> None:
        if effect == "write" and path.startswith("data/"):
            raise DiskFullError(f"no space at memory://n4/{path}", hint="free space there, then run again")

    swapped.stores["n4"].on_effect = full
    with pytest.raises(DiskFullError, match="slots still move: no space at memory://n4"):
        moved(swapped)
    swapped.audit()
    wanted = {(name, move.slot) for move in open_moves(swapped) for name in move.new if name != "n4"}
    assert wanted and acknowledged(swapped) >= wanted
    swapped.stores["n4"].on_effect = lambda _effect, _path: None
    moved(swapped)
    swapped.settled()


@pytest.mark.full
def test_what_has_come_is_seen_before_a_batch_is_whole(swapped: MovingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_moves, "_RECORDED_BYTES", 1)
    batch = of_n4(swapped)
    seen: set[object] = set()
    with swapped.app() as app:
        migrate_slots(
            app, swapped.receiver, lambda _: seen.add(swapped.sql("SELECT count(*) FROM node_copy")[0][0]), batch.slots
        )
    assert len(in_slots(swapped, batch)) > 1
    assert len(seen) > len(in_slots(swapped, batch)), "each file was written down when it had come"


@pytest.mark.full
def test_who_lacks_something_is_asked_after_who_lacks_nothing(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    first, location = batch.sources_for("n4")[0], in_slots(swapped, batch)[0]
    swapped.stores[first].remove([location])
    with swapped.app() as app, app.ledger.write() as connection:
        copy_rows.forget_copies(connection, RECEIVER, first, [location])
    moved(swapped)
    assert swapped.digest("n4", location) and events(swapped) == []
    swapped.settled()


@pytest.mark.full
def test_nothing_is_acknowledged_that_nobody_can_give(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    swapped.away = set(batch.old)
    for _ in range(2):
        with pytest.raises(RetryableError, match="still move"):
            moved(swapped)
        swapped.audit()
    with swapped.app() as app, app.ledger.read() as connection:
        told = move_rows.acknowledged_nodes(connection, RECEIVER, 2)
    assert all("n4" not in told.get(slot, ()) for slot in batch.slots)
    swapped.away = set()
    moved(swapped)
    swapped.settled()


@pytest.mark.full
def test_a_source_that_compacts_while_it_is_linked_is_listed_anew(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    location = in_slots(swapped, batch)[-1]  # linked last: it goes away while the first one is linked
    assert location != in_slots(swapped, batch)[0]

    def compact(effect: str, path: str) -> None:
        if effect != "link" or not swapped.stores[source].stat(location):
            return
        for name in ("n1", "n2", "n3"):
            swapped.stores[name].remove([location])
        with swapped.app() as app, app.ledger.write() as connection:
            row = next(file for file in catalog_rows.live_files(connection, RECEIVER) if file.location == location)
            catalog_rows.retire_files(connection, [row.file_id], 1.0)
            for name in ("n1", "n2", "n3"):
                copy_rows.forget_copies(connection, RECEIVER, name, [location])

    source = batch.sources_for("n4")[0]
    swapped.stores[source].on_effect = compact
    moved(swapped)
    assert swapped.digest("n4", location) is None
    swapped.settled()


def test_one_acknowledgement_that_comes_twice_deletes_nothing(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    swapped.away = {"n4"}
    for _ in range(3):
        with pytest.raises(UnreachableError, match="n4"):
            moved(swapped, list(batch.slots))
        swapped.audit()
    assert swapped.sql("SELECT count(*) FROM node_copy WHERE state = 'going'") == [(0,)]
    swapped.away = set()
    moved(swapped)
    swapped.settled()


@pytest.mark.full
def test_a_task_of_an_earlier_epoch_that_wakes_up_records_nothing(swapped: MovingWorld) -> None:
    batch = of_n4(swapped)
    with swapped.app() as app, Cluster.open(app, swapped.receiver) as cluster:  # type: ignore[union-attr]
        lease = Leases(app.ledger, app.identity).acquire_lease(f"cluster:{RECEIVER}", "sleeper")
        cluster.open_store("n4")
        with app.ledger.read() as connection:
            stock = read_stock(connection, RECEIVER, cluster.table)
        asleep = SlotMigration(app, RECEIVER, lease, cluster, stock, swapped.stores[RECEIVER], ignore_progress)
        Leases(app.ledger, app.identity).release(lease)
        moved(swapped)
        with swapped.app() as other:
            change_nodes(other, swapped.receiver, Wanted("remove", "n4"))
        before = swapped.sql("SELECT * FROM node_copy ORDER BY node, location")
        with pytest.raises(LeaseLostError):
            pull_batch(asleep, batch, "n4")
        awake = Leases(app.ledger, app.identity).acquire_lease(f"cluster:{RECEIVER}", "sleeper")
        with pytest.raises(StaleEpochError):
            pull_batch(replace(asleep, lease=awake), batch, "n4")
    assert swapped.sql("SELECT * FROM node_copy ORDER BY node, location") == before


@pytest.mark.full
def test_old_copies_stay_for_the_grace_and_a_change_need_not_wait_for_it(swapped: MovingWorld) -> None:
    swapped.cluster = replace(swapped.cluster, grace_hours=1)
    assert moved(swapped).state == "done"
    going = swapped.sql("SELECT node, location FROM node_copy WHERE state = 'going'")
    assert going and all(swapped.digest(str(node), str(location)) for node, location in going)
    with swapped.app() as app:
        app.clock = lambda: 4e12  # a host's clock decides nothing
        assert change_nodes(app, swapped.receiver, Wanted("remove", "n4")).state == "done"
    swapped.audit()
    with swapped.app() as app, app.ledger.write() as connection:
        connection.execute(sa.text("UPDATE node_copy SET at = at - 3601 WHERE state = 'going'"))
    moved(swapped)
    swapped.settled()


@pytest.mark.full
def test_a_clock_that_was_years_ahead_keeps_no_old_copy_for_years(swapped: MovingWorld) -> None:
    swapped.cluster = replace(swapped.cluster, grace_hours=1)
    moved(swapped)

    def set_the_clock(seconds: float) -> None:
        with swapped.app() as app, app.ledger.write() as connection:
            connection.execute(sa.text(f"UPDATE node_copy SET at = at + {seconds} WHERE state = 'going'"))

    set_the_clock(10 * 365 * 86_400.0)
    moved(swapped)
    going = swapped.sql("SELECT node, location FROM node_copy WHERE state = 'going'")
    assert going and all(swapped.digest(str(node), str(location)) for node, location in going), "the grace begins anew"
    set_the_clock(-3601)
    moved(swapped)
    swapped.settled()


@pytest.mark.full
def test_what_is_wanted_again_does_not_go(swapped: MovingWorld) -> None:
    swapped.cluster = replace(swapped.cluster, grace_hours=1)
    moved(swapped)
    with swapped.app() as app:
        change_nodes(app, swapped.receiver, Wanted("remove", "n4"))  # the slots come back to where their files go
    swapped.cluster = replace(swapped.cluster, grace_hours=0)
    moved(swapped)
    swapped.settled()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("by", ["brought", "on its way"])
def test_a_copy_that_is_wanted_again_while_others_go_stays(
    swapped: MovingWorld, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    swapped.cluster = replace(swapped.cluster, grace_hours=1)
    moved(swapped)
    going = swapped.sql("SELECT node, location, slot, sha256 FROM node_copy WHERE state = 'going' ORDER BY node, location")
    node, location, slot, sha256 = next(row for row in reversed(going) if [one[0] for one in going].count(row[0]) > 1)
    monkeypatch.setattr(cluster_going, "_AT_ONCE", 1)
    store, remove = swapped.stores[str(node)], swapped.stores[str(node)].remove

    def brought_again(paths: Iterable[str]) -> None:
        """A load, while the first file of the node goes."""
        remove(paths)
        monkeypatch.setattr(store, "remove", remove)
        with swapped.app() as app, app.ledger.write() as connection:
            if by == "brought":
                held = CopyRow(RECEIVER, str(node), str(location), int(str(slot)), str(sha256), 1, "held", 1.0)
                copy_rows.put_copies(connection, [held])
            else:
                row = OperationRow(RECEIVER, "n1", 2, int(str(slot)), "put", str(location), str(sha256), 1, at=1.0)
                group_rows.propose_operations(connection, [row])

    swapped.cluster = replace(swapped.cluster, grace_hours=0)
    monkeypatch.setattr(store, "remove", brought_again)
    moved(swapped)
    assert swapped.digest(str(node), str(location)) == sha256


@pytest.mark.full
def test_a_copy_does_not_go_while_a_member_lacks_it(swapped: MovingWorld) -> None:
    swapped.cluster = replace(swapped.cluster, grace_hours=1)
    moved(swapped)
    node, location = swapped.sql("SELECT node, location FROM node_copy WHERE state = 'going'")[0]
    with swapped.app() as app, app.ledger.write() as connection:
        copy_rows.forget_copies(connection, RECEIVER, "n4", [str(location)])
    swapped.cluster = replace(swapped.cluster, grace_hours=0)
    moved(swapped)
    assert swapped.digest(str(node), str(location)) is not None


def test_a_file_of_several_slots_stays_where_one_of_them_is(tmp_path: Path) -> None:
    world = MovingWorld(tmp_path, cluster=ClusterSettings(replicas=1, quorum=1, slots=16, grace_hours=0, cache_bytes=0))
    with world.app(nodes=world.names) as app:
        init_cluster(app, world.receiver)
    for partition in range(6):
        world.put("root.sg", partition, partition + 3)
    with world.app() as app:
        change_nodes(app, world.receiver, ADD, wait=False)
        for batch in open_batches(app, world.receiver):
            migrate_slots(app, world.receiver, slots=batch.slots[:1])
            world.audit()
    moved(world)
    world.settled()


@pytest.mark.full
def test_the_schema_of_a_slot_comes_to_its_members_and_goes_with_it(swapped: MovingWorld) -> None:
    moved(swapped)
    with swapped.app() as app, Cluster.open(app, swapped.receiver) as cluster:  # type: ignore[union-attr]
        for database in ("root.sg", "root.other"):
            members = cluster.table.route_schema(database).members
            for name in ("n1", "n2", "n3", "n4"):
                paper = cluster.open_folder(name).read_schema(database)
                assert (paper is not None) == (name in members), (database, name)


@pytest.mark.full
def test_databases_that_were_told_in_another_order_than_their_slots_moved_leave_nobody_behind(tmp_path: Path) -> None:
    """What the member was told with the first slots counts once the others are there: by number those came before."""
    world = MovingWorld(tmp_path, cluster=ClusterSettings(replicas=1, quorum=1, slots=40, grace_hours=0, cache_bytes=0))
    with world.app(nodes=world.names) as app:
        init_cluster(app, world.receiver)
    for number in range(12):
        world.put(f"root.d{number}", 0)
    with world.app() as app:
        change_nodes(app, world.receiver, ADD, wait=False)
    for number in range(12):  # more series: each database is told again, in the order of their names
        world.put(f"root.d{number}", 1)
    with world.app() as app, Cluster.open(app, world.receiver) as cluster:  # type: ignore[union-attr]
        catch_up(cluster, world.stores[RECEIVER], most=0)  # as a load ends
        slots = [cluster.table.route_schema(f"root.d{number}").slot for number in range(12)]
        mine = [slot for slot in slots if cluster.table.owners[slot] == "n4"]
    assert len(set(mine)) > 1
    for slot in reversed(mine):
        moved(world, [slot])
    moved(world)
    with world.app() as app, app.ledger.read() as connection:
        status = status_of(connection, RECEIVER)
        assert status is not None and status.behind == ()
        applied, newest = (
            group_rows.applied_versions(connection, RECEIVER),
            group_rows.committed_versions(connection, RECEIVER),
        )
    assert applied["n4", "n4"] == newest["n4"]
