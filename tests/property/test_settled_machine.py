"""Whatever a site does to files that have settled: readers see it, or it is named and comes by the next syncs alone.

Random sequences of landing, changing, deleting from, compacting and dropping files, with merges, settling and reclaiming
in between, against a plain model: the site's files laid over each other by rank, and with `deletes = "keep"` those it
dropped. The sender answers what receipts ask for, as the sync does; the operator approves what asks for approval.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import example, given, settings

from tests.centre import Centre
from tests.landing_maker import SITE_A, Sender
from tests.small_files import deletion, sealed, source
from tidemark.formats.landing import InventoryEntry, decode_receipt
from tidemark.ledger.receiver.settled import kept_files
from tidemark.operations.decisions import approve_run
from tidemark.operations.housekeeping import DAY, housekeep
from tidemark.receiver.read import Query
from tidemark.tsfiles.names import parse_source_path, rank_of_source

DEVICES = ("root.sg.d1", "root.sg.d2")
DATA = ("data/sequence", "data/unsequence")
Point = tuple[str, int]  # device, time


@dataclass
class SiteFile:
    """`points`: as written; `gone`: those that its mods delete."""

    points: dict[Point, int]
    gone: set[Point] = field(default_factory=set)
    mods: str = ""

    def shown(self) -> dict[Point, int]:
        return {point: value for point, value in self.points.items() if point not in self.gone}


@dataclass
class World:
    centre: Centre
    sender: Sender
    files: dict[str, SiteFile] = field(default_factory=dict)  # what the site has
    kept: dict[str, SiteFile] = field(default_factory=dict)  # what it dropped and the centre keeps
    dropped: dict[str, SiteFile] = field(default_factory=dict)  # what it dropped and the operator has to decide on
    held: dict[str, SiteFile] = field(default_factory=dict)  # what is gone and its limits hold back
    asked: set[str] = field(default_factory=set)  # by receipts, to be sent again
    lazy: bool = False  # what is asked for does not go with the next landing: it was left out, the link is slow
    value: int = 0
    days: float = 0.0
    ever: dict[Point, set[int]] = field(default_factory=dict)  # what a point ever was

    # what the site does

    def write(self, version: int, unsequence: bool, points: set[Point]) -> None:
        path = source(version, unsequence=unsequence)
        if path in self.files:
            return self.change(path, points)
        self._put(path, points)
        self.land({path})

    def change(self, path: str, points: set[Point]) -> None:
        self._put(path, points)
        self.land({path})

    def delete(self, path: str, device: str, start: int, end: int) -> None:
        """Its mods grow and travel alone."""
        file = self.files[path]
        file.gone |= {(d, t) for d, t in file.points if d == device and start <= t <= end}
        file.mods += deletion(f"{device}.s", start, end)
        if path in self.asked:  # the whole file goes anyway
            return self.land(set())
        self.land(set(), {path})

    def compact(self, paths: list[str], inner: int) -> None:
        versions = [name.version for p in paths if (name := parse_source_path(p, DATA)) and (name := name.name)]
        target = source(min(versions), inner=inner, unsequence="unsequence" in paths[0])
        if target in self.files or any(("unsequence" in p) != ("unsequence" in target) for p in paths):
            return
        merged = _laid_over({path: self.files[path] for path in paths})
        if not merged:
            return
        for path in paths:
            del self.files[path]
        self.asked -= set(paths)
        self.files[target] = SiteFile(merged)
        self.land({target}, superseded=tuple(self.sender.drop(p, target) for p in paths), removed=tuple(paths))

    def drop(self, path: str) -> None:
        gone = self.kept if self.sender.deletes == "keep" else self.dropped
        gone[path] = self.files.pop(path)
        self.asked.discard(path)
        self.land(set(), dropped=(self.sender.drop(path),), removed=(path,))

    def hold(self, path: str) -> None:
        """It is gone, and the link's limits hold the drop back: those of one that keeps what its site drops hold none."""
        if self.sender.deletes == "keep":
            return self.drop(path)
        self.held[path] = self.files.pop(path)
        self.asked.discard(path)
        self.land(set(), held=(self.sender.drop(path),), removed=(path,))

    def restore(self) -> None:
        """What the limits held is there again, as it was."""
        back, self.held = self.held, {}
        self.files |= back
        self.land(set(), added=tuple(InventoryEntry(path, 1, 1, ()) for path in sorted(back)))

    def _put(self, path: str, points: set[Point]) -> None:
        self.value += 1
        self.files[path] = SiteFile(dict.fromkeys(points, self.value))
        for point in points:
            self.ever.setdefault(point, set()).add(self.value)
        for gone in (self.kept, self.dropped, self.held):
            gone.pop(path, None)  # the site has it again: what it was before matters no more

    # what Tidemark does

    def land(self, paths: set[str], mods: set[str] = frozenset(), **papers: object) -> None:  # type: ignore[assignment]
        """A sync with its load: what is asked for goes with it, and what the receipt asks for is remembered."""
        asked = set() if self.lazy else self.asked
        paths = paths | asked
        whole = {p: sealed(_series(self.files[p].points), self.files[p].mods) for p in sorted(paths)}
        alone = {p: {".mods": self.files[p].mods.encode()} for p in sorted(mods - paths)}
        folder = self.sender.land({**whole, **alone}, **papers)
        self.asked -= paths
        result = self.centre.load()
        assert result.exit_code == 0, result.troubles
        receipt = decode_receipt((folder / "receipt.json").read_bytes())
        self.asked |= {r.path for r in receipt.resend if self.sender.generations.get(r.path) == r.generation}
        self.asked &= self.files.keys()
        self.pending = dict(receipt.pending)
        undecided = {path for (path,) in self.centre.sql("SELECT path FROM pending_drop WHERE state = 'waiting'")}
        self.dropped = {path: file for path, file in self.dropped.items() if path in undecided}

    pending: dict[str, str] = field(default_factory=dict)

    def merge(self) -> None:
        before = self.centre.rows()
        self.centre.merge()
        assert self.centre.rows() == before

    def settle(self) -> None:
        before = self.centre.rows()
        for days in (15, 2, 2):
            self.days += days
            housekeep(self.centre.app, self.centre.receiver)
        assert self.centre.rows() == before

    def quiet(self) -> None:
        """Syncs until nothing is asked for, the operator agreeing to whatever waits for him."""
        self.lazy = False
        for _ in range(8):
            self.land(set())
            runs = self.centre.sql("SELECT DISTINCT landing FROM pending_drop WHERE state = 'waiting'")
            for path, kind in self.centre.sql("SELECT path, kind FROM pending_drop WHERE state = 'waiting'"):
                assert kind == "dropped"
                self.kept.pop(path, None)
                self.dropped.pop(path, None)
            for (landing,) in runs:
                approve_run(self.centre.app, landing.rpartition("-")[0])
            if not self.asked and not runs and not self.pending:
                return
        raise AssertionError(f"it never ends: {self.asked} {self.pending}")

    # what readers must see

    def is_told(self) -> bool:
        """Files that the site has no more are named while readers see points of them, and no others are. Without those
        whose rows cannot be told apart, a reading without kept files shows what the site has, or what is told to wait."""
        with self.centre.app.ledger.read() as connection:
            gone = kept_files(connection, self.centre.receiver.name).get(SITE_A, ())
        live = _laid_over(self.files)
        shown = {(device, time) for device, _, time, _, _ in self.centre.rows(Query(tall=True, live_only=True))}
        more = {(device, time) for device, _, time, _, _ in self.centre.rows()} - live.keys()
        names = {one.path for one in gone}
        told = not names & self.files.keys() and (bool(names) or not more or bool(self.pending))
        return told and (any(one.mixed for one in gone) or bool(self.pending) or shown == live.keys())

    def is_seen(self) -> bool:
        """Newest-wins points of what the site has, exactly; beside them what only files have that it has no more.

        A settled file holds such points together with others that the site deleted since: nobody can tell these apart.
        """
        seen = {(device, time): int(value) for device, time, value in self.seen()}
        live, gone = _laid_over(self.files), _laid_over({**self.kept, **self.dropped, **self.held})
        more = {point: value for point, value in seen.items() if point not in live}
        return (
            all(seen.get(point) == value for point, value in live.items())
            and gone.keys() <= seen.keys()
            and (not more or bool(gone))
            and all(value in self.ever[point] for point, value in more.items())
        )

    def seen(self) -> list[tuple[str, int, str]]:
        return sorted((device, time, value) for device, _, time, _, value in self.centre.rows())


def _laid_over(files: dict[str, SiteFile]) -> dict[Point, int]:
    seen: dict[Point, int] = {}
    for path in sorted(files, key=_rank):
        seen |= files[path].shown()
    return seen


def _rank(path: str) -> tuple[int, ...]:
    name = parse_source_path(path, DATA)
    assert name is not None
    return rank_of_source(name)


def _series(points: dict[Point, int]) -> dict[str, dict[str, list[tuple[int, int]]]]:
    return {
        device: {"s": sorted((t, v) for (d, t), v in points.items() if d == device)}
        for device in DEVICES
        if any(d == device for d, _ in points)
    }


@contextmanager
def world(deletes: str) -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        centre = Centre(Path(folder))
        made = World(centre, centre.sender(deletes=deletes))
        before = centre.app.clock
        centre.app.clock = lambda: before() + made.days * DAY
        try:
            yield made
        finally:
            centre.app.ledger.close()


POINTS = st.sets(st.tuples(st.sampled_from(DEVICES), st.integers(0, 5)), min_size=1, max_size=6)
STEPS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4), st.booleans(), POINTS),
    st.tuples(st.just("change"), st.integers(0, 9), POINTS),
    st.tuples(st.just("delete"), st.integers(0, 9), st.sampled_from(DEVICES), st.integers(0, 5), st.integers(0, 3)),
    st.tuples(st.just("compact"), st.sets(st.integers(0, 9), min_size=1, max_size=3)),
    st.tuples(st.sampled_from(("drop", "hold")), st.integers(0, 9)),
    st.just(("restore",)),
    st.just(("merge",)),
    st.just(("settle",)),
    st.just(("sync",)),
    st.just(("lazy",)),
)


def act(site: World, step: tuple, number: int) -> None:  # type: ignore[type-arg]
    what, *more = step
    paths = sorted(site.files)
    if what in ("merge", "settle", "restore"):
        return getattr(site, what)()  # type: ignore[no-any-return]
    if what == "sync":
        return site.land(set())
    if what == "lazy":
        site.lazy = not site.lazy
        return None
    if what == "write":
        return site.write(*more)
    if not paths:
        return None
    if what == "compact":
        return site.compact(sorted({paths[n % len(paths)] for n in more[0]}), number + 1)
    path = paths[more[0] % len(paths)]
    if what == "change":
        return site.change(path, more[1])
    if what == "delete":
        return site.delete(path, more[1], more[2], more[2] + more[3])
    return site.hold(path) if what == "hold" else site.drop(path)


D1 = {("root.sg.d1", t) for t in range(4)}
SETTLED = [("write", 1, False, D1), ("write", 2, False, {("root.sg.d1", 2), ("root.sg.d1", 3)}), ("merge",), ("settle",)]
TWICE = [*SETTLED, ("write", 1, True, {("root.sg.d1", 1)}), ("merge",), ("settle",)]


@given(st.sampled_from(["keep", "apply"]), st.lists(STEPS, min_size=3, max_size=9))
@example("keep", [*SETTLED, ("delete", 0, "root.sg.d1", 0, 0)])
@example("apply", [*TWICE, ("delete", 0, "root.sg.d1", 0, 0), ("merge",), ("settle",)])
@example("apply", [*SETTLED, ("compact", {0})])
@example("apply", [*TWICE, ("drop", 1)])
@example("keep", [*TWICE, ("drop", 1), ("change", 0, D1)])
@example("keep", [*SETTLED[:2], ("drop", 0), *SETTLED[2:], ("compact", {0})])
@example("keep", [*SETTLED, ("drop", 0), ("drop", 0)])
@example("keep", [*SETTLED[:2], ("drop", 0), ("drop", 0), *SETTLED[2:]])
@example("apply", [*SETTLED, ("hold", 1)])
@example("apply", [*SETTLED, ("hold", 0), ("hold", 0), ("restore",)])
@example("apply", [*SETTLED, ("hold", 1), ("sync",), ("restore",)])
@example("keep", [*SETTLED, ("write", 4, False, D1), ("merge",), ("settle",), ("write", 3, False, D1)])
@settings(max_examples=max(4, settings().max_examples // 12), deadline=None)  # each is a dozen loads
def test_what_a_site_does_to_settled_files_is_seen_or_named(deletes: str, steps: list) -> None:  # type: ignore[type-arg]
    with world(deletes) as site:
        for number, step in enumerate(steps):
            act(site, step, number)
            assert site.is_seen() or site.pending, "readers see something else, and nothing says so"
            assert site.is_told()
        site.quiet()
        assert site.is_seen() and site.is_told()
        site.merge()
        site.settle()
