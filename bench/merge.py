"""`./tidemark bench merge`: how fast overlapping TsFiles are merged, beside DuckDB, polars and plans of Spark that shuffle.

16,000,000 old rows and 4,000,000 newer ones of 800 devices, half of them updates; every device overlaps. Ratios of median
times, ours to the peer's:

    to_duckdb_tsfile, to_polars_tsfile     the merge job in Spark, local[2], warm; the peers read and write the same TsFiles
    to_duckdb_parquet                      the peer merges Parquet into Parquet: no TsFile work at all
    to_spark_shuffle                       the best plan of Spark that shuffles, warm too
    children_…                             the same by the pool as a command starts it, its start included
    touched_10_percent_x, touched_1_…_x    how many times faster than writing all anew, where few devices have newer rows
    growth_seconds, growth_memory          64,000,000 + 16,000,000 rows to 16,000,000 + 4,000,000
    memory_to_duckdb                       largest memory of the process tree (Spark's JVM included) at 64,000,000 rows, to
                                           DuckDB from Parquet to Parquet

`cpu_…`: the same of CPU seconds, which hardly depend on what else the machine does. Every contender is a process that stays;
rounds alternate after one that does not count; what each left is compared point by point in that round. Only merges are
timed: from the plan to whole, synced outputs whose points are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import sets
from bench.alone import TICKS, Watch, below
from bench.measure import report
from bench.rows import REPOSITORY, SLOW, SURE, leave_nothing, say

PEERS = Path("var/bench/peers")  # packages of requirements-bench.txt; below the checkout
ROWS = 20_000  # old rows a device
PARTS = ("all", "shuffle", "touched", "growth")


@dataclass
class Contender:
    """A process of `bench.merge_run`, started when it is first asked."""

    kind: str
    folder: Path
    out: Path
    samples: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    process: subprocess.Popen[str] | None = None
    watch: Watch | None = None

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.merge_run", self.kind, str(self.folder), str(self.out)]

    def merge(self) -> float:
        """Merge once into an empty folder. RuntimeError when it fails."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        if self.process is None:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, text=True, env=_environment(), cwd=REPOSITORY
            )
            self._answer()
            self.watch = Watch(self.process.pid, itself=True)
            self.watch.start()
        assert self.process.stdin is not None
        before = cpu_seconds(self.process.pid)
        self.process.stdin.write("merge\n")
        self.process.stdin.flush()
        seconds: float = self._answer()["seconds"]
        self.samples.append(seconds)
        self.cpu.append(cpu_seconds(self.process.pid) - before)
        self.peak_mb = self.watch.peak_mb if self.watch else 0.0
        return seconds

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self.kind} ended with {self.process.wait()}")

    def seen(self) -> dict[str, Any]:
        """What it left, looked at by a process of its own."""
        words = [sys.executable, "-m", "bench.merge_seen", str(self.out)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=_environment(), cwd=REPOSITORY)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def end(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            assert self.watch is not None
            self.watch.done.set()
            self.watch.join()
            self.process = None
        shutil.rmtree(self.out, ignore_errors=True)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def median_cpu(self) -> float:
        return statistics.median(self.cpu)

    def as_json(self) -> dict[str, Any]:
        return {
            "command": " ".join(self.command),
            "median_seconds": round(self.median, 3),
            "spread_seconds": [round(min(self.samples), 3), round(max(self.samples), 3)],
            "median_cpu_seconds": round(self.median_cpu, 3),
            "peak_mb": round(self.peak_mb, 1),
            "samples": [round(sample, 3) for sample in self.samples],
            "cpu_samples": [round(sample, 3) for sample in self.cpu],
        }


def cpu_seconds(root: int) -> float:
    """CPU seconds that a process, all below it and all that ended below them have used so far."""
    ticks = 0
    for pid in (root, *below(root)):
        with contextlib.suppress(OSError):  # it has ended: its parent has its ticks
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS


@dataclass
class Paper:
    """All that was measured, written after each part: what was measured stays, whatever comes."""

    ours: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, Any] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)

    def note(self, part: str, ours: Sequence[Contender], peers: Sequence[Contender]) -> None:
        self.ours.update({f"{part} {one.kind}": one.as_json() for one in ours if one.samples})
        self.peers.update({f"{part} {one.kind}": one.as_json() for one in peers if one.samples})
        self.write()

    def compare(self, name: str, ours: Contender, peer: Contender) -> None:
        """Ours to the peer: wall and CPU."""
        self.ratios |= {name: ours.median / peer.median, f"cpu_{name}": ours.median_cpu / peer.median_cpu}

    def write(self) -> dict[str, Any]:
        return report("merge", self.ratios, self.ours, self.peers, absent=self.absent, rows=self.rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tidemark bench merge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two rounds instead of five")
    parser.add_argument("--rounds", type=int, default=0, help="as many rounds, after the one that does not count")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of devices, to try the benchmark itself")
    asked = parser.parse_args(arguments)
    wanted = set(filter(None, asked.only.split(","))) or set(PARTS)
    if unknown := wanted - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    leave_nothing()
    rounds, devices = asked.rounds or (2 if asked.quick else 5), max(100, int(800 * asked.scale) // 100 * 100)
    paper = Paper(absent=_absent())
    for reason in paper.absent.values():
        say(reason)
    with sets.folder() as place:
        if wanted & {"all", "shuffle", "growth"}:
            _all(place, devices, rounds, wanted, paper)
        if "touched" in wanted:
            for every in (10, 100):
                _touched(place, devices, every, rounds, paper)
    finished = paper.write()
    print(json.dumps(finished if asked.json else finished["ratios"], indent=None if asked.json else 1))
    return 0


def _all(place: Path, devices: int, rounds: int, wanted: set[str], paper: Paper) -> None:
    """All devices overlap: ours beside the peers, then beside the plans that shuffle, then four times as much."""
    folder = _made(place / "all", devices, 1, parquet=True, paper=paper)
    mine = ("spark", "children") if "all" in wanted else ("spark",)
    ours = [Contender(kind, folder, place / "out" / kind) for kind in mine]
    kinds = [kind for kind in ("duckdb-tsfile", "polars-tsfile", "duckdb-parquet") if _word(kind) not in paper.absent]
    peers = [Contender(kind, folder, place / "out" / kind) for kind in kinds if "all" in wanted]
    shuffles = [Contender(f"spark-{plan}", folder, place / "out" / plan) for plan in ("cogroup", "join")]
    try:
        _rounds([*ours, *peers], rounds)
        for peer in peers:
            name = peer.kind.replace("-", "_")
            paper.compare(f"to_{name}", ours[0], peer)
            paper.compare(f"children_to_{name}", ours[1], peer)
            peer.end()
        paper.note("all", ours, peers)
        if "shuffle" in wanted:
            beside = [Contender(one.kind, folder, one.out) for one in ours[:1]]
            ours[0].end()
            _rounds([*beside, *shuffles], min(rounds, SURE))
            paper.compare("to_spark_shuffle", beside[0], min(shuffles, key=lambda shuffle: shuffle.median))
            paper.note("shuffle", beside, shuffles)
            beside[0].end()
    finally:
        for one in (*ours, *peers, *shuffles):
            one.end()
    shutil.rmtree(folder)
    if "growth" in wanted:
        _growth(place, devices, min(rounds, 3), ours[0], paper)


def _growth(place: Path, devices: int, rounds: int, small: Contender, paper: Paper) -> None:
    """Four times the devices, in Spark; DuckDB once, for its memory."""
    folder = _made(place / "grown", 4 * devices, 1, parquet="duckdb" not in paper.absent, paper=paper)
    ours = Contender(small.kind, folder, place / "out" / small.kind)
    duckdb = Contender("duckdb-parquet", folder, place / "out" / "duckdb")
    try:
        _rounds([ours], rounds)
        paper.compare("growth_seconds", ours, small)
        paper.ratios["growth_memory"] = ours.peak_mb / small.peak_mb
        paper.note("growth", [ours], [])
        ours.end()  # the machine's memory is for one at a time
        if "duckdb" not in paper.absent:
            say(f"growth duckdb-parquet: {duckdb.merge():.2f} s, {duckdb.peak_mb:.0f} MB")
            paper.ratios["memory_to_duckdb"] = ours.peak_mb / duckdb.peak_mb
        paper.note("growth", [ours], [duckdb])
    finally:
        ours.end()
        duckdb.end()
        shutil.rmtree(folder)


def _touched(place: Path, devices: int, every: int, rounds: int, paper: Paper) -> None:
    """Newer rows of one device in `every`: what nothing overlaps is copied, or all is written anew."""
    folder = _made(place / f"touched-{every}", devices, every, parquet=False, paper=paper)
    copying, rewriting = (Contender(kind, folder, place / "out" / kind) for kind in ("pool", "pool-rewrite"))
    try:
        _rounds([copying, rewriting], rounds)
        paper.compare(f"touched_{100 // every}_percent_x", rewriting, copying)
        paper.note(f"touched-{100 // every}", [copying, rewriting], [])
    finally:
        copying.end()
        rewriting.end()
        shutil.rmtree(folder)


def _rounds(contenders: Sequence[Contender], rounds: int) -> None:
    """A warm round that does not count, then `rounds`, the order turned by one each time; slow ones run `SURE` times.

    RuntimeError where two have not left the same points.
    """
    found = {}
    for turn in range(rounds + 1):
        shift = turn % len(contenders)
        for one in (*contenders[shift:], *contenders[:shift]):
            fastest = min((other.median for other in contenders if other.samples), default=0.0)
            if turn > SURE and one.median > SLOW * fastest:
                continue
            seconds = one.merge()
            told = f"{one.folder.name} {one.kind}: {seconds:.2f} s, {one.cpu[-1]:.2f} CPU s, {one.peak_mb:.0f} MB"
            say(told if turn else f"{told} (warm-up)")
            if turn == 0:
                found[one.kind] = one.seen()
                one.samples.clear()
                one.cpu.clear()
            shutil.rmtree(one.out, ignore_errors=True)
    if len({answer["digest"] for answer in found.values()}) != 1:
        raise RuntimeError(f"different points were left: {found}")
    say(f"the same points were left by {', '.join(found)}: {next(iter(found.values()))}")


def _made(folder: Path, devices: int, every: int, parquet: bool, paper: Paper) -> Path:
    say(f"{folder.name}: writing {devices * ROWS:,} old rows, {devices // every * ROWS // 4:,} new ones")
    words = [str(folder), str(devices), str(ROWS), str(ROWS // 4), str(every), str(int(parquet))]
    subprocess.run(
        [sys.executable, "-m", "bench.merge_data", *words], check=True, env=_environment(), cwd=REPOSITORY, stdout=sys.stderr
    )
    sizes = {form: sum(file.stat().st_size for file in folder.glob(f"*.{form}")) for form in ("tsfile", "parquet")}
    paper.rows[folder.name] = {"old": devices * ROWS, "new": devices // every * ROWS // 4, "bytes": sizes}
    return folder


def _absent() -> dict[str, str]:
    """The peers that this machine lacks, each with the reason and what would bring it."""
    there = REPOSITORY / PEERS
    hint = "./tidemark bench merge --install"
    return {name: f"no {name} below {PEERS}: {hint}" for name in ("duckdb", "polars") if not (there / name).is_dir()}


def _word(kind: str) -> str:
    return kind.partition("-")[0]


def _environment() -> dict[str, str]:
    from tidemark.engines.java import ensure_java

    paths = os.pathsep.join(str(place) for place in (REPOSITORY / "plugins", REPOSITORY, REPOSITORY / PEERS))
    java = {"JAVA_HOME": str(ensure_java()), "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, "PYTHONPATH": paths, **java, "POLARS_MAX_THREADS": "2"}


if __name__ == "__main__":
    sys.exit(main())
