"""Transfers over a line of 50 ms and 200 Mbit/s: without loss, with 0.1 % of it under cubic and under bbr, and a resume."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench import sets
from bench.peers import Way, on_a_long_line
from bench.rows import Book, alternate, best, engine, run
from bench.wan import SITE, Conditions, Wan, lacks_congestion, missing, wan
from tests.services.sshd import Sshd

LINES = {
    "wan": Conditions(),
    "wan_loss": Conditions(loss_percent=0.1),
    "wan_bbr": Conditions("bbr", loss_percent=0.1),
}
PARTS = (*LINES, "resume")


def measure(server: Sshd, below: Path, wanted: set[str], rounds: int, scale: float, book: Book) -> None:
    """The wanted of `PARTS`; those that this machine cannot do are named in the book."""
    for part in PARTS:
        conditions = LINES.get(part, Conditions())
        if part in wanted:
            why_not = missing() or lacks_congestion(conditions.congestion)
            if why_not:
                book.absent[part] = why_not
                continue
            with wan(server, conditions) as line:
                book.lines[part] = {
                    "round_trip_ms": conditions.round_trip_ms,
                    "mbit": conditions.mbit,
                    "loss_percent": conditions.loss_percent,
                    "congestion": line.congestion,
                }
                if part == "resume":
                    _resume(server, below, line, rounds, book)
                    continue
                for files in sets.WAN:
                    with sets.made(below, files.scaled(scale)) as source:
                        _pull(part, files, _way(server, source, line), rounds, book)


def _pull(part: str, files: sets.FileSet, way: Way, rounds: int, book: Book) -> None:
    row = f"{part}_{files.name}"
    mine = engine(way)
    peers, left_out = on_a_long_line(way, many=files.name == "small")
    book.absent.update({f"{row} {name}": reason for name, reason in left_out.items()})
    alternate(row, [mine], peers, way, rounds, book)
    book.ratios[row] = mine.median_seconds / best(peers)


def _resume(server: Sshd, below: Path, line: Wan, rounds: int, book: Book) -> None:
    """A whole transfer of 100 MB, and one that finds 60 % of it there, left by a run that was cut."""
    with sets.made(below, sets.CUT) as source:
        way = _way(server, source, line)
        whole, rest = engine(way, "whole"), engine(way, "rest")
        cut = engine(way, "cut", "--stop-after", str(sets.CUT.size * 6 // 10))
        for _ in range(rounds):
            run("resume", whole, way, check=True)
            run("resume", cut, way, check=False)
            run("resume", rest, way, check=True, empty=_require_part)
    book.note("resume", [whole, cut, rest], [])
    book.ratios["resume_wan"] = rest.median_seconds / whole.median_seconds


def _require_part(target: Path) -> None:
    """RuntimeError unless the cut run left something to go on from, and no finished file."""
    left = [file for file in target.rglob("*") if file.is_file()]
    if not left or any(file.name.endswith(".tsfile") for file in left):
        raise RuntimeError(f"the cut run left {[str(file) for file in left]}")


def _way(server: Sshd, source: Path, line: Wan) -> Way:
    shutil.rmtree(source.with_name("target"), ignore_errors=True)
    return Way(server, source, source.with_name("target"), line.pid, SITE, line.known_hosts, line.prefix)
