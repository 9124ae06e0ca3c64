"""Whatever an IoTDB compacts, deletes and drops while its site is synced: readers see what the server would answer.

A model of the server's compactions (`compaction_model`) writes real TsFiles into a folder that real syncs list, with a step
of the compaction in work between any two folders of a listing; loads and merges are real, too. At each quiet moment every
point that the server has is read with the server's value. With `deletes = "apply"` nothing else is read; with "keep" what
else is read comes from files of which nothing lives on, never from outputs that a killed server took back; so with drops
that the limits hold. At no moment a point is missing that the server never lost.
"""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.centre import InlineEngine
from tests.property.compaction_model import DATA, Point, Server, SiteFile, may_come_from
from tests.small_files import deletion, resource_bytes, tsfile
from tidemark.app import App, open_app
from tidemark.errors import RetryableError
from tidemark.ledger.sender import links as link_rows
from tidemark.operations.decisions import approve_run
from tidemark.receiver.load.load import load
from tidemark.receiver.merge.merge import merge
from tidemark.receiver.read import Query, read
from tidemark.settings.model import LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.sync.run import Options, run_sync

DEVICES = ("root.sg.d1", "root.sg.d2")
MEASUREMENTS = ("a", "b")
TIMES = range(16)
OTHER = SiteFile({("root.other.d", "a", 1): 1})
points = st.sets(st.tuples(st.sampled_from(DEVICES), st.sampled_from(MEASUREMENTS), st.sampled_from(TIMES)), min_size=1)
torn = st.lists(st.integers(0, 6), max_size=8)  # steps of the compaction between two folders of a listing


class World:
    """The server's folder, a link from it and the receiver, below `folder`."""

    def __init__(self, folder: Path, deletes: str, logs: bool, limit: int = 10_000) -> None:
        self.folder, self.server, self.plan = folder, Server(logs), []
        self.written: dict[str, tuple[SiteFile, bool]] = {}
        site = SiteSettings("plant1", "0f8e1c52-7d1b-4a5e-9c1e-aaaaaaaaaaaa", f"file://{folder}/site")
        link = LinkSettings("plant1", "plant1", "centre", deletes=deletes, delete_limit_files=limit, delete_limit_share=1.0)
        self.receiver = ReceiverSettings("centre", f"file://{folder}/centre", max_unloaded_landings=1_000)
        self.app: App = open_app(
            Settings(
                path=folder / "tidemark.toml",
                receivers={"centre": self.receiver},
                sites={"plant1": site},
                links={"plant1": link},
            )
        )
        self.app.opener = self._opened
        for data in DATA:
            (folder / "site" / data).mkdir(parents=True)
            self._write(f"{data}/root.other/0/0/1-1-0-0.tsfile", OTHER)  # a folder without any may be a disk that is away
        self.written.clear()

    def show(self) -> None:
        """The server's disk as files."""
        for path, file in self.server.disk.items():
            if self.written.get(path, (None,))[0] != file:
                self._write(path, file)
        for path in self.written.keys() - self.server.disk.keys():
            for end in ("", ".mods", ".resource"):
                self._place(path + end).unlink(missing_ok=True)
            del self.written[path]
        for log in (self.folder / "site").rglob("*-compaction.log"):
            log.unlink()
        if self.server.log:
            self._place(self.server.log).parent.mkdir(parents=True, exist_ok=True)
            self._place(self.server.log).write_text("")

    def tick(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.server.step()
        self.show()

    def sync(self, plan: list[int] | None = None) -> None:
        self.show()
        self.plan = list(plan or ())
        try:
            run_sync(self.app, "plant1", Options(no_load=True))
        except RetryableError as moving:
            assert "folders changed" in moving.message, moving
        finally:
            self.plan = []
        assert load(self.app, self.receiver, engine=InlineEngine()).troubles == ()

    def guard_run(self) -> str:
        """The run whose drops wait for a person."""
        with self.app.ledger.read() as connection:
            link = link_rows.get_link(connection, "plant1")
        return link.guard_run or "" if link else ""

    def rows(self) -> dict[Point, int]:
        out = self.folder / "read.csv"
        read(self.app, self.receiver, Query(tall=True), out)
        with out.open(newline="") as lines:
            rows = {(r["device"], r["measurement"], int(r["time"])): int(r["value"]) for r in csv.DictReader(lines)}
        return {point: value for point, value in rows.items() if point[0] in DEVICES}

    def _write(self, path: str, file: SiteFile) -> None:
        place, known = self._place(path), self.written.get(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if known is None or known[0].points != file.points:
            devices: dict[str, dict[str, list[tuple[int, int]]]] = {}
            for (device, measurement, time), value in sorted(file.points.items()):
                devices.setdefault(device, {}).setdefault(measurement, []).append((time, value))
            place.write_bytes(tsfile(devices))
            self._place(path + ".resource").write_bytes(resource_bytes(file.extent()))
        if file.gone:
            mods = "".join(deletion(f"{d}.{m}", first, last) for d, m, first, last in file.gone)
            self._place(path + ".mods").write_text(mods)
        self.written[path] = (file, True)

    def _place(self, path: str) -> Path:
        return self.folder / "site" / path

    def _opened(self, address: StoreAddress) -> Store:
        store = open_store(address)
        if isinstance(store, LocalStore) and address.url.endswith("/site"):
            store.disk.walk_folders = self._torn(store.disk.walk_folders)  # type: ignore[method-assign]
        return store

    def _torn(self, walk: Any) -> Any:
        def walked(*arguments: Any, **named: Any) -> Iterator[Any]:
            for folder in walk(*arguments, **named):
                yield folder
                if self.plan:
                    self.tick(self.plan.pop(0))

        return walked


@pytest.mark.full_after(1)
@pytest.mark.parametrize("before", range(5))
@pytest.mark.parametrize("deletes", ["keep", "apply"])
def test_a_file_that_changes_its_folder_between_two_listings_is_never_missing(
    tmp_path: Path, deletes: str, before: int
) -> None:
    """A cross compaction runs from end to end after `before` folders were listed: its output is in one listed already."""
    world = World(tmp_path, deletes, logs=False)
    world.server.write({(DEVICES[0], "a", time): time for time in (1, 5)}, {})
    world.server.write({(DEVICES[0], "a", time): time for time in (2, 3)}, {})
    world.sync()
    assert world.server.cross(1)
    world.sync([*([0] * before), 10])
    assert world.rows() == {(DEVICES[0], "a", time): time for time in (1, 2, 3, 5)}
    world.app.ledger.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("deletes", ["keep", "apply"])
def test_a_server_that_is_killed_in_a_compaction(tmp_path: Path, deletes: str, steps: int) -> None:
    """It is killed after so many steps: log, two outputs, three sources, log. Its site is synced while it is down. When it
    starts again it takes the outputs back or removes the sources that are left; then a user deletes a point."""
    world = World(tmp_path, deletes, logs=True)
    for times in ((1, 5), (7, 9), (2, 3, 8)):
        world.server.write({(DEVICES[0], "a", time): time + 10 * len(times) for time in times}, {})
    world.sync()
    assert world.server.cross(1)
    world.tick(steps)
    world.server.killed = True
    world.sync([3, 3])
    assert world.rows() == world.server.shown()
    world.server.restart()
    world.sync()
    world.server.delete((DEVICES[0], "a", 2, 2))
    world.sync()
    assert world.rows() == world.server.shown()
    world.app.ledger.close()


@pytest.mark.full_after(1)
@pytest.mark.parametrize("merged", [False, True])
def test_a_held_drop_never_wins_over_what_the_site_has(tmp_path: Path, merged: bool) -> None:
    """Somebody removes files that overwrote older ones: the site answers with those again, and the guard asks a person."""
    world = World(tmp_path, "apply", logs=True, limit=1)
    point = (DEVICES[0], "a", 5)
    for value in (100, 200, 300):  # late twice
        world.server.write({point: value, (DEVICES[0], "b", value // 100): value}, {})
    world.sync()
    before = world.rows()
    assert before[point] == 300
    if merged:
        assert merge(world.app, world.receiver, engine=InlineEngine()).exit_code == 0
    late = {path: world.server.files[path] for path in world.server.files if "unsequence" in path}
    places = [world.folder / "site" / f"{path}{end}" for path in late for end in ("", ".resource")]
    saved = {place: (place.read_bytes(), place.stat().st_mtime_ns) for place in places}
    for path in late:
        world.server.drop(path)
    world.sync()
    assert world.rows() == {**before, point: 100}, "what the site has, and what it has nothing of"
    for place, (data, mtime) in saved.items():
        place.write_bytes(data)
        os.utime(place, ns=(mtime, mtime))
    world.written |= {path: (file, True) for path, file in late.items()}
    world.server.files |= late
    world.server.disk |= late
    world.sync()
    assert world.rows() == before, "mounted again"
    for path in late:
        world.server.drop(path)
    world.sync()
    approve_run(world.app, world.guard_run())
    world.sync()
    assert world.rows() == world.server.shown()
    world.app.ledger.close()


class CompactionMachine(RuleBasedStateMachine):
    """Deeds of a server's users, of the server, and syncs that fall anywhere between."""

    @initialize(deletes=st.sampled_from(("keep", "apply")), logs=st.booleans(), limit=st.sampled_from((10_000, 1)))
    def begin(self, deletes: str, logs: bool, limit: int = 10_000) -> None:
        self.scratch = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.world = World(Path(self.scratch.name), deletes, logs, limit)
        self.server, self.deletes = self.world.server, deletes
        self.value = 0
        self.seen: dict[str, SiteFile] = {}  # every file that was ever there, as it was last
        self.whole: dict[Point, set[int]] = {}  # what readers saw at the last quiet moment

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.quiet()
            finally:
                self.world.app.ledger.close()
                self.scratch.cleanup()

    @precondition(lambda self: not self.server.killed)
    @rule(drawn=points, null=st.booleans())
    def write(self, drawn: set[Point], null: bool) -> None:
        self.value += 1
        self.server.write({p: self.value * 100 + p[2] for p in drawn}, dict.fromkeys(DEVICES if null else (), (0,)))

    @precondition(lambda self: not self.server.killed)
    @rule(
        device=st.sampled_from(DEVICES),
        measurement=st.sampled_from(MEASUREMENTS),
        first=st.sampled_from(TIMES),
        more=st.integers(0, 16),
    )
    def delete(self, device: str, measurement: str, first: int, more: int) -> None:
        self._note()
        self.server.delete((device, measurement, first, first + more))

    @precondition(lambda self: self.server.files and not self.server.steps)
    @rule(number=st.integers(0, 30))
    def drop(self, number: int) -> None:
        self._note()
        paths = sorted(self.server.files)
        self.server.drop(paths[number % len(paths)])

    @rule(unsequence=st.booleans(), first=st.integers(0, 3), count=st.integers(2, 4))
    def inner(self, unsequence: bool, first: int, count: int) -> None:
        self._note()
        self.server.inner(unsequence, first, count)

    @rule(count=st.integers(1, 3))
    def cross(self, count: int) -> None:
        self._note()
        self.server.cross(count)

    @rule()
    def insertion(self) -> None:
        self._note()
        self.server.insertion()

    @rule(steps=st.integers(1, 4))
    def work(self, steps: int) -> None:
        self.world.tick(steps)

    @rule()
    def kill(self) -> None:
        self.server.killed = True

    @rule()
    def restart(self) -> None:
        self.server.restart()

    @rule(plan=torn)
    def sync(self, plan: list[int]) -> None:
        self._note()
        self.world.sync(plan)
        self._note()
        rows = self.world.rows()
        lost = {p for p in self.server.shown() if p in self.whole and p not in rows}
        assert not lost, f"a hole between two syncs: {sorted(lost)}"

    @rule()
    def merge(self) -> None:
        assert merge(self.world.app, self.world.receiver, engine=InlineEngine()).exit_code == 0

    @rule()
    def quiet(self) -> None:
        self.server.restart()
        self._note()
        self.world.sync()
        self.world.sync()
        rows, shown = self.world.rows(), self.server.shown()
        wrong = {p: (v, rows.get(p)) for p, v in shown.items() if rows.get(p) != v}
        assert not wrong, (
            f"missing or stale (server, read): {dict(sorted(wrong.items()))}; files: {sorted(self.server.files)}"
        )
        extra = rows.keys() - shown.keys()
        allowed = self._kept() if self.deletes == "keep" else self._gone() if self.world.guard_run() else set()
        assert extra <= allowed, (
            f"read, and not at the server: {sorted(extra - allowed)}; files: {sorted(self.server.files)}"
        )
        self.whole = {p: {v} for p, v in rows.items()}

    def _note(self) -> None:
        self.seen |= self.server.disk | self.server.files

    @rule()
    def approve(self) -> None:
        if run := self.world.guard_run():
            approve_run(self.world.app, run)

    def _gone(self) -> set[Point]:
        """Points of all files that the guard may hold."""
        return {point for path, file in self.seen.items() if path not in self.server.files for point in file.points}

    def _kept(self) -> set[Point]:
        """Points of files that are gone and of which nothing lives on in files that a compaction made."""
        kept: set[Point] = set()
        for path, file in self.seen.items():
            if path in self.server.files or (path in self.server.taken_back and self.server.logs):
                continue
            made = [other for name, other in self.server.files.items() if may_come_from(name, path)]
            alive = file.alive()
            if not any(other.alive().get(point) == value for other in made for point, value in alive.items()):
                kept |= file.points.keys()  # its last deletions may never have come
        return kept


TestCompactions = CompactionMachine.TestCase
TestCompactions.settings = settings(max_examples=settings.default.max_examples // 2, stateful_step_count=25, deadline=None)
