"""A server that writes, deletes, compacts, dies and restarts while Tidemark syncs, loads and merges, and is killed at it.

At each quiet moment (nothing writes, everything is sealed, no compaction is at work) what readers see is what the server
itself answers, series by series, whatever the policy: `apply` exactly; `keep` without what kept files add. Between two quiet
moments no point goes away that nobody touched. The seed stands in the test's id; TIDEMARK_TEST_SEED adds to it.

Every other quiet moment is under a time to live. It hides points at the server; those that its files still hold are seen at
the centre, and are what the server answers when it is lifted. Files that it took whole are dropped ones: `keep` keeps them.

What a seed is there for is noted as it happens, and asked for once all seeds of a version have run.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.living_workload import ALIGNED_GONE, HIDDEN, KILLED, STOPPED, TAKEN, Values, Workload
from tests.services.deployed import ENDS, Deployed
from tests.services.living_iotdb import VERSIONS, LivingServer, look, wait_until_still
from tidemark.tsfiles.points.column import format_values
from tidemark.tsfiles.reader import TsFile

BASE_SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
SEEDS, SOAKED_SEEDS = range(1, 4), range(100, 130)


@dataclass
class Centre:
    """A receiver of the living site under one policy."""

    deployed: Deployed
    policy: str
    workload: Workload
    chance: random.Random

    def work(self) -> None:
        """A run of some verb, killed or not, while the server lives."""
        verb = self.chance.choices((("sync", self.deployed.name), ("load",), ("merge",)), (6, 1, 2))[0]
        if self.chance.random() < 0.4:
            self.deployed.killed(self.chance.uniform(0.2, 3.0), *verb)
        else:
            self.deployed.run(*verb, expect=ENDS)
            self.check_no_hole()

    def check_no_hole(self) -> None:
        """What was there at the last quiet moment, nobody touched since and the server still has is there."""
        seen, workload = self.read(), self.workload
        proved = workload.proved.items()
        away = {point for point, value in proved if not workload.agrees(point, seen.get(point), value)} - workload.touched
        answers = workload.answers({(device, name) for device, name, _ in away}) if away and not workload.dying else {}
        away = {point for point in away if answers.get(point) == workload.proved[point]} - workload.touched
        lost = {point: (answers[point], seen.get(point)) for point in away}
        assert not lost, f"{self.policy}: {len(lost)} points: {sorted(lost.items())[:5]}"

    def check_quiet(self, answers: Values) -> None:
        ended: dict[str, Any] = {"state": ""}
        before: list[tuple[str, int]] = []
        for _ in range(8):
            wait_until_still(self.workload.server)  # one more compaction may have begun
            before = look(self.workload.server)
            ended = self.here.run("sync", self.deployed.name, expect=(0, 22) if self.policy == "apply" else (0,))
            if ended["kind"] == 22:  # its last late points were deleted, and unsequence has no file any more
                assert "no TsFile any more" in ended["guard"], ended
                self.here.run("approve", ended["run"], "--yes")
            elif ended["state"] == "nothing" and look(self.workload.server) == before:
                break
        assert (ended["state"], look(self.workload.server)) == ("nothing", before), ended
        readings = {words: self.read(*words, through=self.here) for words in ((), ("--live-only",))}
        for words, seen in readings.items():
            extra = {point: seen[point] for point in seen.keys() - answers.keys()}
            other = {point: (value, seen.get(point)) for point, value in answers.items() if seen.get(point) != value}
            wrong = {point: both for point, both in other.items() if not self.workload.agrees(point, both[1], both[0])}
            assert not wrong, f"{self.policy} {words}: {len(wrong)} of {len(answers)}: {sorted(wrong.items())[:5]}"
            print(f"{self.policy} {words}: {len(answers)} points, {len(extra)} more of kept files, {len(other)} others")
            if words or self.policy == "apply":
                assert not extra, f"{self.policy} {words}: {len(extra)} too many: {sorted(extra.items())[:5]}"
            else:
                expired = self.workload.expired.items()
                lost = [point for point, value in expired if not self.workload.agrees(point, seen.get(point), value)]
                assert not lost, f"of {len(expired)} points in files that a time to live took are gone: {lost[:5]}"
        self.check_kept(answers, readings[()])
        assert self.here.run("verify", "--deep", "--live-only")["differences"] == []
        told = self.here.run("verify", "--deep", expect=(0, 20))["differences"]
        assert {one["what"] for one in told} <= ({"kept points"} if self.policy == "keep" else set()), told

    def check_kept(self, answers: Values, seen: Values) -> None:
        """No point of a file that is taken for dropped is what the server answers: then it was compacted, and is to leave.
        All of them are seen, though a live file may have another value there.

        Two values that are written by chance are equal once in a hundred thousand times. Those of a BOOLEAN are every other
        time, so there an equal value does not tell a compacted file from a dropped one.
        """
        with closing(sqlite3.connect(self.deployed.folder / "var" / "ledger.db")) as ledger:
            kept = ledger.execute(
                "SELECT location, mods_location FROM catalog_file"
                " WHERE marked = 'dropped' AND state = 'live' AND role = 'source'"
            ).fetchall()
        for location, deletions in kept:
            with TsFile(self.deployed.receiver_root / location) as file:
                series = [key for key in self.workload.types if key[0] in file.list_devices()]
                for device, name in [(d, n) for d, n in series if n in file.list_measurements(d)]:
                    column = file.read_column(device, name)
                    texts = format_values(column.type, column.values)
                    values = {(device, name, at): text for at, text in zip(column.times.tolist(), texts, strict=True)}
                    met = [point for point, value in values.items() if answers.get(point) == value]
                    assert not met or self.workload.types[device, name] == "BOOLEAN", f"{location} lives on: {met[:5]}"
                    away = sorted(values.keys() - seen.keys())
                    assert not away or deletions, f"{location} is kept, and {away[:5]} are not seen"

    @property
    def here(self) -> Deployed:
        """For quiet moments: nothing else is at work in this process."""
        return replace(self.deployed, here=True)

    def read(self, *words: str, through: Deployed | None = None) -> Values:
        """What readers see of this workload: the server also has what others wrote before."""
        rows = (through or self.deployed).read("points.csv", *words)
        return {(device, name, at): value for device, name, at, _, value in rows if (device, name) in self.workload.types}


Living = Callable[[str], AbstractContextManager[LivingServer]]


@pytest.fixture(scope="module")
def living() -> Iterator[Living]:
    """One server of a version at a time; one that a test left broken is not used again."""
    running: dict[str, LivingServer] = {}

    @contextmanager
    def used(version: str) -> Iterator[LivingServer]:
        for other in [name for name in running if name != version]:
            running.pop(other).close()
        if version not in running:
            running[version] = VERSIONS[version]()
        server = running.pop(version)
        try:
            yield server
        except BaseException:
            server.close()
            raise
        running[version] = server

    yield used
    for one in running.values():
        one.close()


Happened = dict[str, dict[int, set[str]]]  # by version and seed


@pytest.fixture(scope="module")
def happened() -> Happened:
    return defaultdict(dict)


def run_until(ended: threading.Event, centres: Sequence[Centre], chance: random.Random) -> None:
    while not ended.is_set():
        chance.choice(centres).work()


def live(server: LivingServer, seed: int, folder: Path, phases: int = 2) -> set[str]:
    """What happened. What the server holds where something fails is kept beside the two centres, its log too."""
    try:
        return live_through(server, seed, folder, phases)
    except Exception:
        shutil.copytree(server.root, folder / "server_as_it_was", symlinks=True)
        raise


def live_through(server: LivingServer, seed: int, folder: Path, phases: int) -> set[str]:
    seed += BASE_SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    database = f"root.sg{seed}"
    workload = Workload(server, chance, database, apart=server.one_device and seed % 2 == 1)
    workload.begin()
    centres = []
    for policy in ("keep", "apply"):
        link = f'deletes = "{policy}"\ndelete_limit_files = 1000000\ndelete_limit_share = 1.0'
        deployed = Deployed(folder / policy, server.site, server.root, folder / f"{policy}_centre", link=link)
        deployed.more = f'snapshot = ".tidemark_{policy}"'
        centres.append(Centre(deployed.write(), policy, workload, random.Random(seed)))
    death = chance.randrange(phases)
    for phase in range(phases):
        hidden = phase % 2 == 1
        if hidden:
            workload.expire()  # the centres have all of it
        # The servers live as long as the thread that starts them: this one writes, and another runs Tidemark.
        with ThreadPoolExecutor(1) as pool:
            ended = threading.Event()
            running = pool.submit(run_until, ended, centres, random.Random(chance.random()))
            try:
                workload.live(60, kill=phase == death)
            finally:
                ended.set()
            running.result()
        compare(workload, centres, hidden)
    print(f"happened: {sorted(workload.happened)}")
    return workload.happened


def compare(workload: Workload, centres: Sequence[Centre], hidden: bool, tries: int = 3) -> None:
    """At a quiet moment. Once more where the server's look for files older than the time to live took one meanwhile."""
    workload.rest(hidden)
    before = look(workload.server)
    try:
        for centre in centres:
            centre.check_quiet(workload.proved)
    except AssertionError:
        if not hidden or tries == 1 or look(workload.server) == before:
            raise
        compare(workload, centres, hidden, tries - 1)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.soak) for seed in SEEDS[1:])])
@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[pytest.mark.soak] if name == "0.12.0" else []) for name in VERSIONS]
)
def test_a_living_server(version: str, seed: int, living: Living, happened: Happened, tmp_path: Path) -> None:
    with living(version) as server:
        happened[version][seed] = live(server, seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_over_the_seeds_all_of_it_happened(version: str, happened: Happened) -> None:
    check_happened(version, happened, SEEDS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SOAKED_SEEDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_lives_longer(version: str, seed: int, living: Living, happened: Happened, tmp_path: Path) -> None:
    with living(version) as server:
        happened[version][seed] = live(server, seed, tmp_path, phases=6)


@pytest.mark.soak
@pytest.mark.parametrize("version", VERSIONS)
def test_over_the_longer_seeds_all_of_it_happened(version: str, happened: Happened) -> None:
    check_happened(version, happened, SOAKED_SEEDS)


def check_happened(version: str, happened: Happened, seeds: Sequence[int]) -> None:
    """Where a seed was left out or failed there is nothing to tell."""
    if not happened[version].keys() >= set(seeds):
        pytest.skip(f"not every seed of {version} came to its end")
    server = VERSIONS[version]
    due = {KILLED, STOPPED, HIDDEN, TAKEN, *server.kinds} | ({ALIGNED_GONE} if server.aligned else set())
    missing = due - set().union(*(happened[version][seed] for seed in seeds))
    assert not missing, f"in no seed of {version}: {sorted(missing)}"
