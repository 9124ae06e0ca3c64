"""What a round of transfers is made of: contenders in turn, each into an empty target, and the book that keeps them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import sets
from bench.measure import Contender, report
from bench.peers import Way

REPOSITORY = Path(__file__).resolve().parents[1]
SLOW = 3  # times the best peer: cannot decide a ratio, and runs in the first `SURE` rounds alone
SURE = 2


@dataclass
class Book:
    """All that was measured: contenders by "row name", ratios, and what is not there, with the reason."""

    name: str
    ours: dict[str, Contender] = field(default_factory=dict)
    peers: dict[str, Contender] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    lines: dict[str, Any] = field(default_factory=dict)

    def note(self, row: str, ours: Iterable[Contender], peers: Iterable[Contender]) -> None:
        self.ours.update({f"{row} {one.name}": one for one in ours if one.samples})
        self.peers.update({f"{row} {one.name}": one for one in peers if one.samples})

    def paper(self) -> dict[str, Any]:
        """The paper as it stands, also written to var/bench/NAME.json."""
        if self.ours:
            self.ratios["peak_mb"] = max(contender.peak_mb for contender in self.ours.values())
        papers = [{name: one.as_json() for name, one in side.items()} for side in (self.ours, self.peers)]
        return report(self.name, self.ratios, *papers, absent=self.absent, lines=self.lines)


def engine(way: Way, name: str = "engine", *more: str) -> Contender:
    """Our engine as a process of its own."""
    url = f"sftp://{way.server.user}@{way.host}:{way.server.port}{{}}"
    ends = [end if end.startswith("sftp:") else f"file://{end}" for end in way.ends(url)]
    login = ["--host-key", way.server.host_key, "--key", str(way.server.key)]
    return way.contender(name, [sys.executable, "-m", "bench.engine", *ends, *login, *more])


def alternate(row: str, ours: Sequence[Contender], peers: list[Contender], way: Way, rounds: int, book: Book) -> None:
    """Every contender once a round, in an order that turns; what each brought is compared with the source in the first.

    A peer that fails leaves the row, and the book says why; RuntimeError where ours fails.
    """
    for turn in range(rounds):
        everyone = [*ours, *peers]
        shift = turn % len(everyone)
        for contender in (*everyone[shift:], *everyone[:shift]):
            if turn >= SURE and contender.median_seconds > SLOW * best(peers):
                continue
            try:
                run(row, contender, way, check=turn == 0)
            except RuntimeError as failed:
                if contender not in peers:
                    raise
                peers.remove(contender)
                book.absent[f"{row} {contender.name}"] = str(failed)
                say(f"{row} {contender.name} left out: {failed}")
    book.note(row, ours, peers)


def run(row: str, contender: Contender, way: Way, check: bool, empty: Callable[[Path], None] = sets.fresh) -> None:
    """Once, into what `empty` leaves of the target. RuntimeError when it fails or, with `check`, brought something else."""
    empty(way.target)
    contender.run(REPOSITORY)
    taken = contender.samples[-1]
    say(f"{row} {contender.name}: {taken.seconds:.2f} s, {taken.cpu_seconds:.1f} CPU s, {taken.peak_mb:.0f} MB")
    if check:
        sets.require_same(way.source, way.target)


def best(contenders: Iterable[Contender]) -> float:
    """The smallest median, in seconds."""
    return min(contender.median_seconds for contender in contenders)


def leave_nothing() -> None:
    """A benchmark that is ended still removes its folders, which may fill gigabytes of memory, and its namespaces."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def say(words: str) -> None:
    print(f"bench: {words}", file=sys.stderr, flush=True)
