"""`./tidemark bench source`: how fast TsFiles are read, beside the official package and beside Spark on Parquet.

`tree_read_x`, `aligned_read_x`: how many times faster all points of a tree file (not aligned: in a server's default
encodings; aligned) come into arrays than by the row API of the official package. `spark_to_parquet`: time of a
three-column aggregate over `spark.read.format("tsfile")` to that over Spark's own Parquet, same rows, same warm session.
`catalog_to_tsfile`: the same aggregate over `format("tidemark")` of a merged catalog of 20 million points to that over
`format("tsfile")` of its files; both must give what `./tidemark read` gives.
Every contender is a process that stays; rounds alternate; only reads are timed; what was read is compared each round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import report
from bench.source_catalog import make_catalog
from bench.source_data import SERIES, write_aligned, write_parquet

REPOSITORY = Path(__file__).resolve().parents[1]
RATIOS = {  # by contest: what it is called, and whether it says how many times faster we are
    "tree": ("tree_read_x", True),
    "aligned": ("aligned_read_x", True),
    "spark": ("spark_to_parquet", False),
    "catalog": ("catalog_to_tsfile", False),
}


@dataclass
class Reader:
    """A contender: a process of `bench.source_reads`, and the word it is asked with."""

    name: str
    process: subprocess.Popen[str]
    ask: str = "go"
    samples: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{self.ask}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        self.samples.append(answer)
        return answer

    @property
    def median(self) -> float:
        return statistics.median(sample["seconds"] for sample in self.samples)

    def as_json(self) -> dict[str, Any]:
        seconds = sorted(sample["seconds"] for sample in self.samples)
        points = self.samples[-1]["points"]
        return {
            "command": " ".join(map(str, self.process.args)),  # type: ignore[arg-type]
            "median_seconds": round(self.median, 4),
            "spread_seconds": [round(seconds[0], 4), round(seconds[-1], 4)],
            "points": points,
            "million_points_per_second": round(points / self.median / 1e6, 2),
            "peak_mb": round(max(sample["peak_mb"] for sample in self.samples), 1),
            "samples": [round(sample["seconds"], 4) for sample in self.samples],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tidemark bench source", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the data, three rounds instead of five")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help=f"contests, with commas: {', '.join(RATIOS)}")
    asked = parser.parse_args(arguments)
    wanted = set(filter(None, asked.only.split(","))) or set(RATIOS)
    share, rounds = (5, 3) if asked.quick else (1, 5)
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as name:
        folder = Path(name)
        if wanted - {"catalog"}:
            _make(folder, 100 // share, 20_000, 80_000)
        contests = {
            "tree": lambda: _pair("tree", folder / "tree.tsfile", rounds),
            "aligned": lambda: _pair("aligned", folder / "aligned.tsfile", rounds),
            "spark": lambda: _spark(
                folder, ("tsfile", "parquet"), (folder / "rows.tsfile", folder / "rows.parquet"), rounds
            ),
            "catalog": lambda: _catalog(folder, 40 // share, 100_000, rounds),
        }
        pairs = {name: contest() for name, contest in contests.items() if name in wanted}
    ratios = {}
    for name, (ours, peer) in pairs.items():
        called, faster = RATIOS[name]
        ratios[called] = peer.median / ours.median if faster else ours.median / peer.median
    mine = {name: pair[0].as_json() for name, pair in pairs.items()}
    paper = report("source", ratios, mine, {name: pair[1].as_json() for name, pair in pairs.items()})
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def _make(folder: Path, devices: int, rows: int, rows_for_spark: int) -> None:
    points = devices * rows * len(SERIES)
    _say(f"writing {points:,} points twice, {devices * rows_for_spark:,} rows for Spark twice")
    words = [sys.executable, "-m", "bench.source_data", str(folder), str(devices), str(rows)]
    subprocess.run(words, check=True, env=_environment(), cwd=REPOSITORY, stdout=sys.stderr)
    write_aligned(folder / "aligned.tsfile", devices, rows)
    write_aligned(folder / "rows.tsfile", devices, rows_for_spark)
    write_parquet(folder / "rows.parquet", devices, rows_for_spark)


def _pair(what: str, place: Path, rounds: int) -> tuple[Reader, Reader]:
    """All points of a file, by us and by the official package."""
    ours = Reader(f"ours, {what}", _start("ours", str(place)))
    peer = Reader(f"official row API, {what}", _start("official", str(place)))
    try:
        _rounds((ours, peer), rounds)
    finally:
        _end(ours, peer)
    return ours, peer


def _catalog(folder: Path, number: int, rows: int, rounds: int) -> tuple[Reader, Reader]:
    """The aggregate over a catalog and over its files. RuntimeError where it is not what `./tidemark read` gives."""
    _say(f"making a catalog of {number * rows * len(SERIES):,} points")
    made = make_catalog(folder / "catalog", number, rows, _environment())
    ours, peer = _spark(folder, ("tidemark", "tsfile"), (made.settings, made.files), rounds)
    if (seen := ours.samples[-1]["seen"]) != made.answer:
        raise RuntimeError(f"Spark reads {seen} of the catalog, ./tidemark read {made.answer}")
    return ours, peer


def _spark(folder: Path, formats: tuple[str, str], places: tuple[Path, Path], rounds: int) -> tuple[Reader, Reader]:
    """The aggregate over two formats in one session."""
    process = _start("spark", str(folder), *(f"{kind}={place}" for kind, place in zip(formats, places, strict=True)))
    ours, peer = (Reader(f"spark.read {kind}", process, kind) for kind in formats)
    try:
        _rounds((ours, peer), rounds)
    finally:
        _end(ours)
    return ours, peer


def _rounds(contenders: tuple[Reader, Reader], rounds: int) -> None:
    """A warm round that does not count, then `rounds` in turn. RuntimeError where the two have not read the same."""
    for turn in range(rounds + 1):
        answers = [one.read() for one in (contenders if turn % 2 else contenders[::-1])]
        if len({answer["seen"] for answer in answers}) != 1:
            raise RuntimeError(f"{contenders[0].name} and {contenders[1].name} read different points: {answers}")
        told = ", ".join(f"{one.name} {one.samples[-1]['seconds']:.3f} s" for one in contenders)
        _say(told if turn else f"warm: {told}")
    for one in contenders:
        del one.samples[0]


def _start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.source_reads", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=_environment(), cwd=REPOSITORY)


def _end(*contenders: Reader) -> None:
    for one in contenders:
        assert one.process.stdin is not None
        one.process.stdin.close()
        one.process.wait()


def _environment() -> dict[str, str]:
    from tidemark.engines.java import ensure_java

    paths = os.pathsep.join([str(REPOSITORY / "plugins"), str(REPOSITORY)])
    return {**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(ensure_java())}


def _say(words: str) -> None:
    print(f"bench source: {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
