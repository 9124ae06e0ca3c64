"""Whole runs of a link in trouble: files that fail, disks that fill, compactions, two at once, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.edge import path_of
from tests.crash.explorer import CrashingLedger, Effects
from tests.crash.sync_world import LINK, RECEIVER, SyncWorld
from tests.memory_store import EndlessStore, MemoryStore
from tests.unit.sync.link_runs import answer, opened, seal
from tidemark.errors import (
    CorruptionError,
    DiskFullError,
    LeaseHeldError,
    PermanentError,
    RetryableError,
    TidemarkError,
    UnreachableError,
    WindowOverError,
)
from tidemark.ledger.leases import this_process
from tidemark.ledger.sender import runs as run_rows
from tidemark.stores.protocol import Listing
from tidemark.sync import run as sync_link
from tidemark.sync.send import transfer_files as sending
from tidemark.sync.start import new_run_id


class Flaky(MemoryStore):
    """A receiver on which some files cannot be written, or that is full."""

    def __init__(self, *broken: str, error: type[TidemarkError] = PermanentError) -> None:
        super().__init__("centre")
        self.broken = broken
        self.error = error

    def write_part(self, path, offset, pieces, sync=False):  # type: ignore[no-untyped-def]
        if any(name in path for name in self.broken):
            raise self.error(f"cannot write {path}", subject=path)
        return super().write_part(path, offset, pieces, sync)


def test_a_file_that_fails_is_left_out_and_goes_next_time(world: SyncWorld) -> None:
    seal(world, 1, 2)
    name = path_of(1).rpartition("/")[2]
    world.centre = Flaky(name)
    result = world.sync()
    assert (result.exit_code, result.files, [p for p, _ in result.left_out]) == (23, 1, [path_of(1)])
    assert [p for p, _ in world.manifests()[0].left_out] == [path_of(1)]
    world.centre.broken = ()  # type: ignore[attr-defined]
    assert world.sync().files == 1
    world.check()


def test_a_full_disk_ends_the_run_and_the_next_goes_on(world: SyncWorld) -> None:
    seal(world, 1, 2)
    world.centre = Flaky(path_of(2).rpartition("/")[2], error=DiskFullError)
    with pytest.raises(DiskFullError):
        world.sync()
    world.centre.broken = ()  # type: ignore[attr-defined]
    assert world.sync().files == 2
    world.check()


def test_no_room_is_known_before_the_first_byte(world: SyncWorld) -> None:
    seal(world, 1)
    world.centre.free = 1_000  # type: ignore[attr-defined]
    with pytest.raises(DiskFullError, match="bytes free"):
        world.sync()
    assert not world.centre.list_files(["landing"]).entries
    world.centre.free = None  # type: ignore[attr-defined]
    world.live(Effects())
    world.check()


@pytest.mark.parametrize("paper", ["manifest.json", "receipt.json"])
def test_a_receiver_that_sends_without_an_end_is_told_by_the_limit(world: SyncWorld, paper: str) -> None:
    """Whatever size it told before."""
    seal(world, 1)
    world.centre = centre = EndlessStore("centre")
    if paper == "receipt.json":
        world.sync()
        seal(world, 2)
    centre.endless = paper
    with pytest.raises(CorruptionError, match=paper):
        world.sync()


class Small(MemoryStore):
    """A receiver of so much room, whose line is cut after so many bytes."""

    def __init__(self, room: int, cut_after: int) -> None:
        super().__init__("centre")
        self.free = room
        self.left = cut_after

    def write_part(self, path, offset, pieces, sync=False):  # type: ignore[no-untyped-def]
        data = b"".join(pieces)
        self.left -= len(data)
        if self.left < 0:
            raise UnreachableError("the line is cut")
        before = self.stat(path)
        self.free -= max(0, offset + len(data) - (before.size if before else 0))
        assert self.free >= 0
        return super().write_part(path, offset, [data], sync)

    def list_folder(self, folder: str) -> Sequence[str]:
        if self.left < 0:
            raise UnreachableError("the line is cut")
        return super().list_folder(folder)


def test_a_file_that_was_cut_needs_room_for_what_is_missing_alone(world: SyncWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 % of it are there, and the disk has room for the rest, not for all of it once more."""
    monkeypatch.setattr(sending, "HEADROOM_BYTES", 20_000)
    world.link = replace(LINK, block_bytes=65_536)
    world.centre = centre = Small(300_000, cut_after=150_000)
    path = world.edge.seal(path_of(1), "x" * 250_000)
    with pytest.raises(UnreachableError):
        world.sync()
    (part,) = [entry for entry in centre.list_files(["landing"]).entries if entry.path.endswith(".part")]
    assert part.size > 140_000 and centre.free < 250_000

    centre.left = 1 << 40
    assert world.sync().files == 1
    assert world.told()[path][0] == world.edge.contents[path]
    world.check()
    world.edge.seal(path_of(2), "y" * 250_000)
    with pytest.raises(DiskFullError, match="bytes free"):
        world.sync()


class Compacting(MemoryStore):
    """A site whose compaction runs between our looks: `moments` are called one after the other, a listing each."""

    moments: Sequence[Callable[[], None]] = ()

    def list_files(self, folders: Sequence[str]) -> Listing:
        found = super().list_files(folders)
        if self.moments:
            first, *self.moments = self.moments
            first()
        return found


def void(_done: object) -> None:
    """For lambdas that only act."""


def compacting(world: SyncWorld, *moments: Callable[[], None]) -> SyncWorld:
    world.site.__class__ = type("Site", (Compacting, world.site.__class__), {})
    world.site.moments = moments  # type: ignore[attr-defined]
    return world


def test_a_compaction_after_the_listing_makes_the_selection_start_over(world: SyncWorld) -> None:
    seal(world, 1, 2)
    target = path_of(1, inner=1)
    compacting(world, lambda: void(world.edge.compact([path_of(1), path_of(2)], target)))
    result = world.sync()
    assert (result.exit_code, set(world.told())) == (0, {target})
    world.check()


def test_a_compaction_during_the_listing_is_not_taken_for_a_drop(world: SyncWorld) -> None:
    """The listing passed the folder before the new file came, and after the old ones went."""
    seal(world, 1, 2)
    world.sync()
    extents = {p: world.edge.extents[p] for p in (path_of(1), path_of(2))}
    for path in extents:
        world.edge.drop(path)
    compacting(world, lambda: void(world.edge.seal(path_of(1, inner=1), extent={"root.sg.d1": (10, 29)})))
    result = world.sync()
    assert (result.superseded, result.dropped) == (2, 0)
    world.check()


def test_a_site_that_never_stands_still_sends_what_it_can(world: SyncWorld) -> None:
    seal(world, 9)
    numbers = iter(range(1, 9))

    def churn() -> None:
        number = next(numbers, None)
        if number:
            world.edge.seal(path_of(9), f"content {number}")

    compacting(world, *[churn] * 8)
    for _ in range(6):
        world.sync()
    world.check()


def test_two_runs_at_once(world: SyncWorld) -> None:
    seal(world, 1)
    with opened(world) as app:
        other = replace(app, identity=this_process())
        run = sync_link.open_run(other, "plant1", "dag/1")
        with other.ledger.write() as connection:  # the other process is inside a step
            connection.exec_driver_sql("UPDATE lease SET pid = ?, process_start = ?", _mine())
        with pytest.raises(LeaseHeldError, match=run):
            world.sync()


def _mine() -> tuple[int, str]:
    me = this_process()
    return me.pid, me.process_start


def snapshot_runs(world: SyncWorld) -> set[str]:
    return {entry.path.split("/")[3] for entry in world.site.list_files(["data/.tidemark/plant1"]).entries}


def test_two_tidemarks_over_one_site_leave_each_others_links_alone(world: SyncWorld, tmp_path: Path) -> None:
    """Same site, same name of the link, ledgers and receivers of their own; one is killed while its files are linked."""
    seal(world, 1, 2)
    second = replace(world, folder=tmp_path, centre=MemoryStore("centre"), results=[])
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1")
        sync_link.recover(app, run)
        sync_link.select_files(app, run)
    assert snapshot_runs(world) == {run}
    assert second.sync().files == 2
    assert snapshot_runs(world) == {run}
    assert world.sync().files == 2
    second.check()
    world.check()


@pytest.mark.parametrize(("days", "there"), [(29, True), (31, False)])
def test_links_that_nobody_knows_go_after_a_month(world: SyncWorld, days: int, there: bool) -> None:
    seal(world, 1)
    stray = new_run_id(world.edge.clock - days * 86_400)
    world.site.link([(path_of(1), f"data/.tidemark/plant1/{stray}/0/x.tsfile")])
    world.site.link([(path_of(1), "data/.tidemark/plant1/by-hand/0/x.tsfile")])
    world.sync()
    assert snapshot_runs(world) == {"by-hand", *([stray] if there else [])}


def test_a_stale_process_records_nothing(world: SyncWorld) -> None:
    """Suspended in the middle, replaced, woken up: its next record is refused."""
    seal(world, 1, 2)
    with opened(world) as app:
        run = sync_link.open_run(app, "plant1")
        sync_link.recover(app, run)
        with app.ledger.read() as connection:
            fence = connection.exec_driver_sql("SELECT fence FROM lease").scalar_one()
        stolen = Effects()

        class Replaced(CrashingLedger):
            """The lease goes to somebody else just before the step's second record."""

            def write(self, *, lasting: bool = True):  # type: ignore[no-untyped-def]
                if stolen.count == 2:
                    with CrashingLedger(self.url, Effects()).write() as connection:
                        connection.exec_driver_sql("UPDATE lease SET fence = fence + 1, holder = 'another'")
                stolen.point("write")
                return super().write(lasting=lasting)

        slow = replace(app, ledger=Replaced(app.ledger.url, Effects()))
        with pytest.raises(TidemarkError, match="another"):
            sync_link.select_files(slow, run)
        with app.ledger.read() as connection:
            assert list(run_rows.read_items(connection, run)) == [] and fence >= 1


def test_a_closed_window_stops_a_run_before_it_begins(world: SyncWorld) -> None:
    seal(world, 1)
    world.link = replace(LINK, window="00:00-00:01")
    with pytest.raises(WindowOverError):
        world.sync()
    assert not world.centre.list_files(["landing"]).entries


def test_a_receiver_that_does_not_load_is_not_buried(world: SyncWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.crash.sync_world.RECEIVER", replace(RECEIVER, max_unloaded_landings=1))
    for number in (1, 2):
        seal(world, number)
        world.sync()
    seal(world, 3)
    with pytest.raises(RetryableError, match="has not loaded 2 landings"):
        world.sync()
    answer(world, world.manifests()[0].landing)
    assert world.sync().files == 1  # the run goes on
