"""A server that writes, deletes, compacts, dies and restarts while Tidemark syncs, loads and merges, and is killed at it.

At each quiet moment (nothing writes, everything is sealed, no compaction is at work) what readers see is what the server
itself answers, series by series, whatever the policy: `apply` exactly; `keep` without what kept files add. Between two quiet
moments no point goes away that nobody touched. The seed stands in the test's id; TIDEMARK_TEST_SEED adds to it.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.expected import canonical
from tests.services.deployed import ENDS, Deployed
from tests.services.living_iotdb import VERSIONS, LivingServer, look, wait_until_still
from tidemark.tsfiles.points.column import format_values
from tidemark.tsfiles.reader import TsFile

BASE_SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
PARTITION = 604_800_000  # ms
LONG_AGO = 3_600_000  # ms; all times of this workload are older than that
Point = tuple[str, str, int]  # device, measurement, time
Values = dict[Point, str]


@dataclass
class Workload:
    """Statements drawn from a seed.

    `proved`: what the server answered at the last quiet moment; `touched`: points that a statement since then may have
    changed, noted before it is said; `last`: the value that was written last; `dying`: the server cannot be asked;
    `hidden`: a time to live hides all of a database.
    """

    server: LivingServer
    chance: random.Random
    database: str
    proved: Values = field(default_factory=dict)
    touched: set[Point] = field(default_factory=set)
    last: Values = field(default_factory=dict)
    dying: bool = False
    hidden: bool = False
    cursor: int = 0

    def __post_init__(self) -> None:
        plain, wide, old = f"{self.database}.plain", f"{self.database}.wide", f"{self.database}old.d"
        self.plain, self.wide, self.old = plain, wide, old
        self.types = {(plain, "t"): "INT64", (plain, "b"): "BOOLEAN", (plain, "s"): "TEXT", (old, "v"): "INT64"}
        self.types |= {(wide, "x"): "INT32", (wide, "y"): "DOUBLE", (wide, "z"): "TEXT"}
        self.known: dict[tuple[str, str], set[int]] = {series: set() for series in self.types}
        for database in self.databases:
            self.server.run(self.server.create.format(database=database))
        for device, name in self.types:
            self._create(device, name)

    @property
    def databases(self) -> tuple[str, str]:
        return self.database, f"{self.database}old"

    def _create(self, device: str, name: str) -> None:
        type_name = self.types[device, name]
        if device == self.wide and self.server.aligned:
            self.server.run(f"create aligned timeseries {device}({name} {type_name})")
        else:
            self.server.run(f"create timeseries {device}.{name} with datatype={type_name}, encoding=PLAIN")

    def begin(self) -> None:
        """Until the server has made its folders: a site without any is a mistake."""
        while not look(self.server):
            self._write()
            self._flush()

    def live(self, statements: int, kills: int = 0) -> None:
        """So many statements, and as many kills of the server among them."""
        deaths = set(self.chance.sample(range(1, statements), kills))
        for number in range(statements):
            if number in deaths:
                self._die()
            self._step()
            time.sleep(self.chance.uniform(0, 0.15))

    def _die(self) -> None:
        self._flush()
        time.sleep(self.chance.uniform(0, 0.6))  # compactions are at work
        self.dying = True
        self.server.kill()
        self.server.again()
        for device, name in self.types:  # its own log of them may have lost the last ones
            try:
                self._create(device, name)
            except RuntimeError as refused:
                if "exist" not in str(refused):
                    raise
        self.dying = False

    def rest(self) -> None:
        """To a quiet moment."""
        if self.hidden:
            self._show()
        self._flush()
        wait_until_still(self.server)
        while self.server.stale:
            before = look(self.server)
            self.server.kill()
            self.server.again()
            wait_until_still(self.server)
            if look(self.server) == before:  # it went on compacting otherwise
                break
        self.proved = self.answers()
        self.touched.clear()
        self.dying = False

    def answers(self, series: Collection[tuple[str, str]] = ()) -> Values:
        """All that the server answers, or of some series, as canonical text."""
        return {
            (device, name, at): canonical(type_name, _parsed(type_name, value))
            for (device, name), type_name in self.types.items()
            if not series or (device, name) in series
            for at, value in self.server.series(device, name).items()
        }

    def agrees(self, point: Point, seen: str | None, answer: str | None) -> bool:
        """Whether a reader may see this where the server answers that."""
        return seen == answer or (self.server.answers_overwritten and seen is not None and seen == self.last.get(point))

    def _step(self) -> None:
        roll = self.chance.random()
        if roll < 0.62:
            self._write()
        elif roll < 0.70:
            self._delete_range()
        elif roll < 0.73:
            self._delete_series()
        elif roll < 0.76:
            self._show() if self.hidden else self._hide()
        else:
            self._flush()

    def _times(self) -> list[int]:
        """In order, late, or such as were written before; now and then of the next partition."""
        count, chance = self.chance.randint(1, 12), self.chance
        way = chance.random()
        if way < 0.5 or not self.cursor:
            times = [self.cursor + n for n in range(count)]
            self.cursor += count + chance.randrange(3)
        else:
            start = chance.randrange(self.cursor)
            times = [start + n for n in range(count)]
        return [at + PARTITION for at in times] if chance.random() < 0.15 else times

    def _write(self) -> None:
        device = self.chance.choices((self.plain, self.wide, self.old), (4, 4, 0 if self.hidden else 1))[0]
        names = [name for of, name in self.types if of == device]
        mine = names if self.chance.random() < 0.6 else self.chance.sample(names, self.chance.randint(1, len(names)))
        rows = []
        for at in self._times():
            nothing = device == self.wide and self.chance.random() < 0.1
            values = [None if nothing or self.chance.random() < 0.15 else self._value(device, name) for name in mine]
            if device != self.wide and all(value is None for value in values):
                continue
            if not self.server.aligned and None in values:  # its language has no null
                values = [self._value(device, name) for name in mine]
            self._touch((device, name, at) for name in mine)
            rows.append(f"({at}, {', '.join('null' if value is None else value for value in values)})")
            for name, value in zip(mine, values, strict=True):
                if value is not None:
                    type_name = self.types[device, name]
                    self.last[device, name, at] = canonical(type_name, _parsed(type_name, value.strip("'")))
        aligned = " aligned" if device == self.wide and self.server.aligned else ""
        if rows:
            self.server.insert(f"{device}(time, {', '.join(mine)}){aligned}", rows)

    def _value(self, device: str, name: str) -> str:
        number = self.chance.randrange(100_000)
        match self.types[device, name]:
            case "BOOLEAN":
                return "true" if number % 2 else "false"
            case "DOUBLE":
                return str(number / 8)
            case "TEXT":
                return f"'v{number}'"
            case _:
                return str(number)

    def _delete_range(self) -> None:
        device, name = self.chance.choice(sorted(self.types))
        first = self.chance.randrange(self.cursor + 1)
        last = first + self.chance.choice((0, 5, 30, 200, PARTITION))
        whole = self.chance.random() < 0.3
        names = [n for of, n in self.types if of == device] if whole else [name]
        self._touch((device, n, at) for n in names for at in self.known[device, n] if first <= at <= last)
        for n in names:
            self.server.run(f"delete from {device}.{n} where time >= {first} and time <= {last}")

    def _delete_series(self) -> None:
        device, name = self.chance.choice(sorted(key for key in self.types if key[0] != self.wide))
        self._touch((device, name, at) for at in self.known[device, name])
        self.server.run(f"delete timeseries {device}.{name}")
        self._create(device, name)

    def _hide(self) -> None:
        self._touch((self.old, "v", at) for at in self.known[self.old, "v"])
        self.server.run(self.server.time_to_live.format(database=f"{self.database}old", ms=LONG_AGO))
        self.hidden = True

    def _show(self) -> None:
        self.server.run(self.server.no_time_to_live.format(database=f"{self.database}old"))
        self.hidden = False

    def _flush(self) -> None:
        self.server.run("flush")

    def _touch(self, points: Iterator[Point]) -> None:
        for device, name, at in points:
            self.known[device, name].add(at)
            self.touched.add((device, name, at))


def _parsed(type_name: str, value: str) -> object:
    if type_name == "BOOLEAN":
        return value.lower() == "true"
    return value if type_name == "TEXT" else float(value) if type_name == "DOUBLE" else int(value)


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
            ended = self.deployed.run("sync", self.deployed.name, expect=(0, 22) if self.policy == "apply" else (0,))
            if ended["kind"] == 22:  # its last late points were deleted, and unsequence has no file any more
                assert "no TsFile any more" in ended["guard"], ended
                self.deployed.run("approve", ended["run"], "--yes")
            elif ended["state"] == "nothing" and look(self.workload.server) == before:
                break
        assert (ended["state"], look(self.workload.server)) == ("nothing", before), ended
        for words in ((), ("--live-only",)):
            seen = self.read(*words)
            extra = {point: seen[point] for point in seen.keys() - answers.keys()}
            other = {point: (value, seen.get(point)) for point, value in answers.items() if seen.get(point) != value}
            wrong = {point: both for point, both in other.items() if not self.workload.agrees(point, both[1], both[0])}
            assert not wrong, f"{self.policy} {words}: {len(wrong)} of {len(answers)}: {sorted(wrong.items())[:5]}"
            print(f"{self.policy} {words}: {len(answers)} points, {len(extra)} more of kept files, {len(other)} others")
            if words or self.policy == "apply":
                assert not extra, f"{self.policy} {words}: {len(extra)} too many: {sorted(extra.items())[:5]}"
        self.check_kept(answers)
        assert self.deployed.run("verify", "--deep", "--live-only")["differences"] == []
        told = self.deployed.run("verify", "--deep", expect=(0, 20))["differences"]
        assert {one["what"] for one in told} <= ({"kept points"} if self.policy == "keep" else set()), told

    def check_kept(self, answers: Values) -> None:
        """No point of a file that is taken for dropped is what the server answers: then it was compacted, and is to leave.

        Values are of a hundred thousand, so that none is met by chance; but for truth.
        """
        with closing(sqlite3.connect(self.deployed.folder / "var" / "ledger.db")) as ledger:
            query = "SELECT location FROM catalog_file WHERE marked = 'dropped' AND state = 'live' AND role = 'source'"
            kept = [location for (location,) in ledger.execute(query)]
        for location in kept:
            with TsFile(self.deployed.receiver_root / location) as file:
                series = [
                    key
                    for key in self.workload.types
                    if key[0] in file.list_devices() and self.workload.types[key] != "BOOLEAN"
                ]
                for device, name in [(d, n) for d, n in series if n in file.list_measurements(d)]:
                    column = file.read_column(device, name)
                    values = zip(column.times.tolist(), format_values(column.type, column.values), strict=True)
                    met = [(device, name, at) for at, value in values if answers.get((device, name, at)) == value]
                    assert not met, f"{location} lives on: {met[:5]}"

    def read(self, *words: str) -> Values:
        """What readers see of this workload: the server also has what others wrote before."""
        rows = self.deployed.read("points.csv", *words)
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


def run_until(ended: threading.Event, centres: Sequence[Centre], chance: random.Random) -> None:
    while not ended.is_set():
        chance.choice(centres).work()


def live(server: LivingServer, seed: int, folder: Path, phases: int = 2) -> None:
    """What the server holds where something fails is kept beside the two centres, its log too."""
    try:
        live_through(server, seed, folder, phases)
    except Exception:
        shutil.copytree(server.root, folder / "server_as_it_was", symlinks=True)
        raise


def live_through(server: LivingServer, seed: int, folder: Path, phases: int) -> None:
    seed += BASE_SEED
    print(f"seed {seed}")
    chance = random.Random(seed)
    database = f"root.sg{seed}"
    workload = Workload(server, chance, database)
    workload.begin()
    centres = []
    for policy in ("keep", "apply"):
        link = f'deletes = "{policy}"\ndelete_limit_files = 1000000\ndelete_limit_share = 1.0'
        deployed = Deployed(folder / policy, server.site, server.root, folder / f"{policy}_centre", link=link)
        deployed.more = f'snapshot = ".tidemark_{policy}"'
        centres.append(Centre(deployed.write(), policy, workload, random.Random(seed)))
    death = chance.randrange(phases)
    for phase in range(phases):
        # The servers live as long as the thread that starts them: this one writes, and another runs Tidemark.
        with ThreadPoolExecutor(1) as pool:
            ended = threading.Event()
            running = pool.submit(run_until, ended, centres, random.Random(chance.random()))
            try:
                workload.live(60, kills=int(phase == death))
            finally:
                ended.set()
            running.result()
        workload.rest()
        for centre in centres:
            centre.check_quiet(workload.proved)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_living_server(version: str, seed: int, living: Living, tmp_path: Path) -> None:
    with living(version) as server:
        live(server, seed, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_server_that_lives_longer(version: str, seed: int, living: Living, tmp_path: Path) -> None:
    with living(version) as server:
        live(server, seed, tmp_path, phases=6)
