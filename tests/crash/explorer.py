"""The crash explorer: stop a flow before and after every effect, start it again, look at what is left.

An *effect* is a call that changes a store (publish, write, seal, link, remove, rename …) or a commit of the ledger. A
*scenario* builds a fresh world; the world lives (the flow runs to rest in one process life) and is checked. The explorer
lets a world live once to count its effects, then builds a new one for each of them, lets its first life die there, and
the next one, with another process identity and the dead one known as dead, run to rest. Double crashes do that once
more, so that recovery itself is stopped too.

    class World:
        def live(self, effects: Effects) -> None     # open an app with these effects, run the flow to rest
        def check(self) -> None                      # the invariants, by assertions
        def lose_power(self) -> None                 # optional: called after each death
        def close(self) -> None

    explore(lambda: World(tmp))                      # every single crash
    explore_double(lambda: World(tmp), pairs=300)    # crash, crash again while recovering

After its death a process has no effects: whatever `finally` blocks still try raises Died again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy.engine import Connection

from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity, this_process
from tidemark.stores.listing import list_names
from tidemark.stores.protocol import Entry, FileEnd, Listing, Range, Store, StoreProperties

LIVES = 4  # a world must come to rest within so many lives after its last death
DEATHS = 12  # points at which a sweep dies, evenly spread: 100 with --all, each with --soak (`tests/conftest.py` sets this)

T = TypeVar("T")
_pids = itertools.count(5_000_000)  # beyond any real pid: `is_alive` says dead


class Died(BaseException):
    """The process was killed here. A BaseException: no handler of the code under test may survive it."""


@dataclass
class Effects:
    """Counts the points at which a process may die and dies at one of them (from 1; 0: never)."""

    die_at: int = 0
    count: int = 0
    dead: bool = False
    names: list[str] = field(default_factory=list)

    def point(self, name: str) -> None:
        if self.dead:
            raise Died(name)
        self.count += 1
        self.names.append(name)
        if self.count == self.die_at:
            self.dead = True
            raise Died(name)

    def around(self, name: str, act: Callable[[], T]) -> T:
        self.point(f"before {name}")
        result = act()
        self.point(f"after {name}")
        return result


class World(Protocol):
    def live(self, effects: Effects) -> None: ...

    def check(self) -> None: ...

    def lose_power(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Explored:
    points: int  # where a process may die, in a life without a crash: those of `when`
    names: tuple[str, ...]
    crashes: int  # worlds that died
    tried: int = 0  # points of a sweep at which a world was to die

    @property
    def all_died(self) -> bool:
        return self.crashes == self.tried


def explore(build: Callable[[], World], points: Iterable[int] | None = None, when: str = "") -> Explored:
    """Die at every point (at about DEATHS of them without --soak), or at `points`; restart, check. AssertionError names the
    point.

    `when`: only before effects, or only after them. What a death after an effect leaves is mostly what one before the next
    effect leaves."""
    calm = _survey(build)
    crashes = 0
    wanted = set(points or range(1, calm.count + 1))
    todo = [number for number, name in enumerate(calm.names, 1) if number in wanted and name.startswith(when)]
    stride = -(-len(todo) // DEATHS) | 1  # odd: points before and after an effect alternate
    chosen = todo[::stride]
    for point in chosen:
        with _world(build, f"death at {point} of {calm.count}: {_name(calm, point)}") as world:
            crashes += _dies(world, point)
            _rest(world)
    return Explored(len(todo), tuple(calm.names), crashes, len(chosen))


def explore_double(build: Callable[[], World], pairs: int | None = None, seed: int = 0) -> Explored:
    """Die at one point, and again at every point of the life after it; a random sample of `pairs` where given."""
    calm = _survey(build)
    choice = random.Random(seed)
    todo: Iterator[tuple[int, int]] = (
        (choice.randint(1, calm.count), choice.randint(1, calm.count)) for _ in range(pairs or 0)
    )
    if pairs is None:
        todo = itertools.product(range(1, calm.count + 1), range(1, calm.count + 1))
    crashes = 0
    for first, second in todo:
        with _world(build, f"deaths at {first} ({_name(calm, first)}) and then {second}") as world:
            crashes += _dies(world, first)
            crashes += _dies(world, second)
            _rest(world)
    return Explored(calm.count, tuple(calm.names), crashes)


def identity() -> Identity:
    """A process of this host that is never found alive by another."""
    here = this_process()
    return Identity(here.host, here.boot_id, next(_pids), "explored")


def _survey(build: Callable[[], World]) -> Effects:
    calm = Effects()
    with _world(build, "no death") as world:
        world.live(calm)
        world.check()
    assert calm.count, "the scenario has no effects: nothing was explored"
    return calm


def _dies(world: World, point: int) -> bool:
    """One life that ends at `point`, or by itself when there is less to do."""
    try:
        world.live(Effects(die_at=point))
    except Died:
        world.lose_power()
        return True
    return False


def _rest(world: World) -> None:
    world.live(Effects())
    world.check()


def _name(calm: Effects, point: int) -> str:
    return calm.names[point - 1] if point <= len(calm.names) else "?"


@contextmanager
def _world(build: Callable[[], World], where: str) -> Iterator[World]:
    world = build()
    try:
        yield world
    except Exception as failed:
        failed.add_note(where)
        raise
    finally:
        world.close()


class CrashingLedger(Ledger):
    """A ledger whose every commit is an effect. Dying before it rolls the transaction back."""

    def __init__(self, url: str, effects: Effects, root: Path | None = None) -> None:
        super().__init__(url, root)
        self.effects = effects

    @contextmanager
    def write(self, *, lasting: bool = True) -> Iterator[Connection]:
        if self.effects.dead:
            raise Died("begin")
        with super().write(lasting=lasting) as connection:
            yield connection
            self.effects.point("before commit")
        self.effects.point("after commit")


class CrashingStore:
    """Any store, every change of which is an effect. A call on several files may also end after the first of them."""

    def __init__(self, inner: Store, effects: Effects, name: str) -> None:
        self.inner = inner
        self.effects = effects
        self.name = name

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def properties(self) -> StoreProperties:
        return self.inner.properties

    def list_files(self, folders: Sequence[str]) -> Listing:
        return self.inner.list_files(folders)

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        return list_names(self.inner, folders, by_name)

    def list_folder(self, folder: str) -> Sequence[str]:
        return self.inner.list_folder(folder)

    def stat(self, path: str) -> Entry | None:
        return self.inner.stat(path)

    def stat_many(self, paths: Sequence[str]) -> Sequence[Entry | None]:
        return self.inner.stat_many(paths)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.inner.read(path, offset, length)

    def read_many(self, paths: Sequence[str], lengths: Sequence[int] | None = None) -> Iterator[tuple[str, bytes | None]]:
        return self.inner.read_many(paths, lengths)

    def read_chunks(self, path: str, offset: int, length: int, size: int) -> Iterator[bytes]:
        return self.inner.read_chunks(path, offset, length, size)

    def sha256(self, path: str, length: int | None = None) -> str:
        return self.inner.sha256(path, length)

    def digest_ranges(self, ranges: Sequence[Range]) -> Sequence[str | None]:
        return self.inner.digest_ranges(ranges)

    def publish(self, path: str, data: bytes) -> None:
        self._effect("publish", path, lambda: self.inner.publish(path, data))

    def append_if(self, path: str, data: bytes, end: FileEnd | None) -> bool:
        return self._effect("append_if", path, lambda: self.inner.append_if(path, data, end))

    def write_part(self, path: str, offset: int, pieces: Iterable[bytes], sync: bool = False) -> int:
        return self._effect("write_part", path, lambda: self.inner.write_part(path, offset, pieces, sync))

    def write_parts(self, files: Sequence[tuple[str, bytes]]) -> None:
        self._each("write_parts", files, self.inner.write_parts)

    def seal_parts(self, renames: Sequence[tuple[str, str]]) -> None:
        self._each("seal_parts", renames, self.inner.seal_parts)

    def link(self, pairs: Sequence[tuple[str, str]]) -> Sequence[str]:
        return [gone for found in self._each("link", pairs, self.inner.link) for gone in found]

    def make_folders(self, folders: Sequence[str]) -> None:
        self._effect("make_folders", str(folders), lambda: self.inner.make_folders(folders))

    def remove(self, paths: Sequence[str]) -> None:
        self._each("remove", paths, self.inner.remove)

    def remove_tree(self, folder: str) -> None:
        self._effect("remove_tree", folder, lambda: self.inner.remove_tree(folder))

    def rename(self, source: str, target: str) -> None:
        self._effect("rename", target, lambda: self.inner.rename(source, target))

    def free_bytes(self, folder: str = "") -> int | None:
        return self.inner.free_bytes(folder)

    def close(self) -> None:
        self.inner.close()

    def _effect(self, call: str, what: str, act: Callable[[], T]) -> T:
        return self.effects.around(f"{self.name}.{call} {what}", act)

    def _each(self, call: str, things: Sequence[Any], act: Callable[[Sequence[Any]], T]) -> list[T]:
        """The first of `things`, then the rest: a bulk call may have done a part of its work when the process dies."""
        cut = [part for part in (things[:1], things[1:]) if part]
        return [self._effect(call, f"{part[0]} ({len(part)})", lambda part=part: act(part)) for part in cut]
