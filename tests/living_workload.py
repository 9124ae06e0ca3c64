"""What is said to a living server: statements drawn from a seed, its deaths, and the way to a quiet moment."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tests.expected import canonical
from tests.services.living_iotdb import LivingServer, Point, look, tell_compactions, wait_until_still

PARTITION = 604_800_000  # ms
SPARSE = 600_000  # ms between two times of the device with a time to live, which holds at the same point for a whole seed
KILLED, STOPPED, ALIGNED_GONE = "a kill", "an orderly stop", "an aligned series deleted"
HIDDEN, TAKEN = "points that a time to live hid and files held", "points that a time to live took"
Values = dict[Point, str]


@dataclass
class Workload:
    """Statements drawn from a seed.

    `proved`: what the server answered at the last quiet moment; `touched`: points that a statement since then may have
    changed, noted before it is said; `last`: the value that was written last; `dying`: the server cannot be asked;
    `hidden`: a time to live hides the points of a database up to `bound`; `expired`: what one took in whole files, but for
    points that a statement has concerned since; `happened`: what a seed is there for; `files`: name and size of each that
    was there at any time.
    """

    server: LivingServer
    chance: random.Random
    database: str
    apart: bool = False  # each device in a database of its own
    proved: Values = field(default_factory=dict)
    touched: set[Point] = field(default_factory=set)
    last: Values = field(default_factory=dict)
    deleted: set[Point] = field(default_factory=set)  # since they were written last
    dying: bool = False
    hidden: bool = False
    bound: int = 0
    expired: Values = field(default_factory=dict)
    happened: set[str] = field(default_factory=set)
    files: set[tuple[str, int]] = field(default_factory=set)
    cursor: int = 0

    def __post_init__(self) -> None:
        plain, old = f"{self.database}.plain", f"{self.database}old.d"
        wide = f"{self.database}wide.d" if self.apart else f"{self.database}.wide"
        self.plain, self.wide, self.old = plain, wide, old
        self.types = {(plain, "t"): "INT64", (plain, "b"): "BOOLEAN", (plain, "s"): "TEXT", (old, "v"): "INT64"}
        self.types |= {(wide, "x"): "INT32", (wide, "y"): "DOUBLE", (wide, "z"): "TEXT"}
        self.known: dict[tuple[str, str], set[int]] = {series: set() for series in self.types}
        for database in self.databases:
            self.server.run(self.server.create.format(database=database))
        for device, name in self.types:
            self._create(device, name)

    @property
    def databases(self) -> list[str]:
        return sorted({device.rpartition(".")[0] for device, _ in self.types})

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

    def live(self, statements: int, kill: bool) -> None:
        """So many statements, and a kill of the server among them or an orderly stop."""
        end = self.chance.randrange(1, statements)
        for number in range(statements):
            if number == end:
                self.dying = True
                self._die() if kill else self._stop()
                self.dying = False
            self._step()
            self._note_files()
            time.sleep(self.chance.uniform(0, 0.15))

    def _die(self) -> None:
        self._flush()
        time.sleep(self.chance.uniform(0, 0.6))  # compactions are at work
        self._kill_and_start()
        for device, name in self.types:  # its own log of them may have lost the last ones
            try:
                self._create(device, name)
            except RuntimeError as refused:
                if "exist" not in str(refused):
                    raise
        self.happened.add(KILLED)

    def _kill_and_start(self) -> None:
        self.server.kill()
        self.server.again()
        if self.hidden:  # its log may have lost that too
            self._say_time_to_live()

    def _stop(self) -> None:
        """What was written last is in its memory alone."""
        self._write()
        self.server.stop()
        self.server.again()
        self.happened.add(STOPPED)

    def rest(self, hidden: bool) -> None:
        """To a quiet moment, `hidden`: one under a time to live, which begins amid what lies in files."""
        if self.hidden:
            self._show()
        if hidden:
            self._write(self.old)
            self._write(self.old)
        self._flush()
        wait_until_still(self.server)
        if hidden:
            self._hide(self._older(0.5))
            wait_until_still(self.server)
        while self.server.stale:
            before = look(self.server)
            self._kill_and_start()
            wait_until_still(self.server)
            if look(self.server) == before:  # it went on compacting otherwise
                break
        self.proved = self.answers()
        self.touched.clear()
        if hidden:
            self._prove_hidden()
        self._note_files()
        self.happened |= tell_compactions(self.files) & self.server.kinds
        self.dying = False

    def _prove_hidden(self) -> None:
        """Files are as they were before: nothing but the time to live was lifted."""
        old = (self.old, "v")
        under = {point: value for point, value in self.proved.items() if point[:2] == old}
        assert all(at > self.bound for *_, at in under), f"up to {self.bound} points are hidden: {sorted(under)[:5]}"
        held = self._lifted()
        assert {point: value for point, value in held.items() if point[2] > self.bound} == under
        hidden = held.keys() - under.keys()
        self.proved |= held
        self.touched |= hidden  # it may take them from now on
        self.happened |= {HIDDEN} if hidden else set()
        print(f"under a time to live: {len(under)} points, {len(hidden)} hidden, {len(self.expired)} taken")

    def _lifted(self) -> Values:
        """What it answers of that device without the time to live, which then holds again."""
        self._show()
        answers = self.answers([(self.old, "v")])
        self._say_time_to_live()
        return answers

    def expire(self) -> None:
        """At a quiet moment: a time to live takes all that the device has, in whole files."""
        self._hide(max(self.known[self.old, "v"], default=0))  # deleted ones count: a file's end may be one of them
        wait_until_still(self.server)
        left = self._lifted()
        assert not left, f"{len(left)} of {len(self.known[self.old, 'v'])} points are still there"
        self.expired |= {point: value for point, value in self.proved.items() if point[0] == self.old}
        self.happened |= {TAKEN} if self.expired else set()

    def _note_files(self) -> None:
        folders = [f"/{database}/" for database in self.databases]
        self.files |= {file for file in look(self.server) if any(folder in file[0] for folder in folders)}

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
        if seen == answer or (self.server.answers_overwritten and seen is not None and seen == self.last.get(point)):
            return True
        if seen is None and self.server.forgets_deletions and point in self.deleted:
            return True
        type_name = self.types[point[:2]]
        return seen in {canonical(type_name, _parsed(type_name, value)) for value in self.server.twice.get(point, ())}

    def _step(self) -> None:
        roll = self.chance.random()
        if roll < 0.62:
            self._write()
        elif roll < 0.70:
            self._delete_range()
        elif roll < 0.73:
            self._delete_series()
        elif roll < 0.76:
            self._show() if self.hidden else self._hide(self._older(self.chance.random()))
        else:
            self._flush()

    def _times(self, device: str) -> list[int]:
        """In order, late, or such as were written before; now and then of the next partition. None that is hidden."""
        count, chance = self.chance.randint(1, 12), self.chance
        way = chance.random()
        if way < 0.5 or not self.cursor:
            times = [self.cursor + n for n in range(count)]
            self.cursor += count + chance.randrange(3)
        else:
            start = chance.randrange(self.cursor)
            times = [start + n for n in range(count)]
        later = PARTITION if chance.random() < 0.15 else 0
        written = [at * self._distance(device) + later for at in times]
        return [at for at in written if device != self.old or not self.hidden or at > self.bound]

    def _distance(self, device: str) -> int:
        return SPARSE if device == self.old else 1

    def _write(self, device: str = "") -> None:
        device = device or self.chance.choices((self.plain, self.wide, self.old), (4, 4, 2))[0]
        names = [name for of, name in self.types if of == device]
        mine = names if self.chance.random() < 0.6 else self.chance.sample(names, self.chance.randint(1, len(names)))
        rows = []
        for at in self._times(device):
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
                    self.deleted.discard((device, name, at))
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
        first = self.chance.randrange(self.cursor + 1) * self._distance(device)
        last = first + self.chance.choice((0, 5, 30, 200, PARTITION)) * self._distance(device)
        whole = self.chance.random() < 0.3
        names = [n for of, n in self.types if of == device] if whole else [name]
        self._delete((device, n, at) for n in names for at in self.known[device, n] if first <= at <= last)
        for n in names:
            self.server.run(f"delete from {device}.{n} where time >= {first} and time <= {last}")

    def _delete_series(self) -> None:
        device, name = self.chance.choice(sorted(self.types))
        self._delete((device, name, at) for at in self.known[device, name])
        self.server.run(f"delete timeseries {device}.{name}")
        self._create(device, name)
        if device == self.wide and self.server.aligned:
            self.happened.add(ALIGNED_GONE)

    def _older(self, share: float) -> int:
        """The time up to which the device has this share of its points."""
        there = sorted(self.answers([(self.old, "v")]))
        return there[int(share * (len(there) - 1))][2] if there else 0

    def _hide(self, bound: int) -> None:
        """The points of the device up to a time, by a time to live."""
        self.bound = bound
        self.touched |= {(self.old, "v", at) for at in self.known[self.old, "v"] if at <= self.bound}
        self._say_time_to_live()

    def _say_time_to_live(self) -> None:
        ms = time.time_ns() // 1_000_000 - self.bound - 1
        self.server.run(self.server.time_to_live.format(database=f"{self.database}old", ms=ms))
        self.hidden = True

    def _show(self) -> None:
        self.server.run(self.server.no_time_to_live.format(database=f"{self.database}old"))
        self.hidden = False

    def _flush(self) -> None:
        self.server.run("flush")

    def _delete(self, points: Iterable[Point]) -> None:
        deleted = list(points)
        self.deleted.update(deleted)
        self._touch(deleted)

    def _touch(self, points: Iterable[Point]) -> None:
        for device, name, at in points:
            self.known[device, name].add(at)
            self.touched.add((device, name, at))
            self.expired.pop((device, name, at), None)


def _parsed(type_name: str, value: str) -> object:
    if type_name == "BOOLEAN":
        return value.lower() == "true"
    return value if type_name == "TEXT" else float(value) if type_name == "DOUBLE" else int(value)
