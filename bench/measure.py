"""One measured command, and the paper a benchmark leaves: wall seconds, CPU seconds, peak memory, exact command lines."""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ALONE = Path(__file__).with_name("alone.py")


@dataclass(frozen=True)
class Sample:
    """One run of a command.

    `peak_mb`: the largest sum of resident megabytes (10**6 bytes) of its whole process tree, looked at every 20 ms, and at
    least the peak that the kernel noted for its largest process. `cpu_seconds`: of it and its children.
    `far_peak_mb`, `far_cpu_seconds`: the same of what the SSH server started for it.
    """

    seconds: float
    cpu_seconds: float
    peak_mb: float
    far_peak_mb: float
    far_cpu_seconds: float
    exit_code: int


@dataclass
class Contender:
    """Ours or a peer: its exact command line and the samples of all rounds. `far`: process id of the SSH server it uses."""

    name: str
    command: Sequence[str]
    far: int = 0
    samples: list[Sample] = field(default_factory=list)

    def run(self, cwd: Path) -> str:
        """Run once and keep the sample; what it printed. RuntimeError when it fails."""
        with tempfile.NamedTemporaryFile(prefix="tidemark-bench-") as out:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(ALONE), out.name, str(self.far), *self.command],
                cwd=cwd,
                capture_output=True,
                check=True,
            )
            told = json.loads(done.stdout)
            sample = Sample(**told["taken"])
            if sample.exit_code:
                raise RuntimeError(f"{self.name} ended with {sample.exit_code}: {told['trouble']}")
            self.samples.append(sample)
            return Path(out.name).read_text(errors="replace")

    @property
    def median_seconds(self) -> float:
        return statistics.median(s.seconds for s in self.samples)

    @property
    def peak_mb(self) -> float:
        return max(s.peak_mb for s in self.samples)

    def as_json(self) -> dict[str, Any]:
        walls = sorted(s.seconds for s in self.samples)
        return {
            "command": shlex.join(self.command),
            "median_seconds": round(self.median_seconds, 3),
            "spread_seconds": [round(walls[0], 3), round(walls[-1], 3)],
            "median_cpu_seconds": round(statistics.median(s.cpu_seconds for s in self.samples), 3),
            "median_far_cpu_seconds": round(statistics.median(s.far_cpu_seconds for s in self.samples), 3),
            "peak_mb": round(self.peak_mb, 1),
            "samples": [{key: round(value, 3) for key, value in asdict(s).items()} for s in self.samples],
        }


def warm(contenders: Sequence[Contender], cwd: Path) -> None:
    """One round for the caches, not counted."""
    for contender in contenders:
        contender.run(cwd)
        contender.samples.clear()


def alternate(contenders: Sequence[Contender], rounds: int, cwd: Path) -> None:
    """Every contender once a round, the order turned by one each round, so that nobody always runs after the same other."""
    for turn in range(rounds):
        shift = turn % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            contender.run(cwd)


def report(
    name: str, ratios: Mapping[str, float], ours: Mapping[str, Any], peers: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """The result of `./tidemark bench NAME`, also written to var/bench/NAME.json. `more`: what else the paper holds."""
    paper = {
        "ok": True,
        "name": name,
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "ours": dict(ours),
        "peers": dict(peers),
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "load": [round(load, 2) for load in os.getloadavg()],
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        **more,
    }
    folder = Path("var/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(paper, indent=1) + "\n")
    return paper
