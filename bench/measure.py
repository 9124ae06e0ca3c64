"""One measured command, and the paper a benchmark leaves: wall seconds, CPU seconds, peak memory, exact command lines."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One run of a command. `peak_mb` is the largest resident size of the process itself (its children's apart)."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    exit_code: int


@dataclass
class Contender:
    """Ours or a peer: its exact command line and the samples of all rounds."""

    name: str
    command: Sequence[str]
    samples: list[Sample] = field(default_factory=list)
    allow: tuple[int, ...] = (0,)

    def run(self, cwd: Path, environ: Mapping[str, str] | None = None) -> Sample:
        """Run once and keep the sample; RuntimeError when it ends with a code that is not allowed."""
        began = time.monotonic()
        child = subprocess.Popen(
            list(self.command),
            cwd=cwd,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert child.stderr is not None
        trouble = child.stderr.read()
        _pid, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in self.allow:
            raise RuntimeError(f"{self.name} ended with {child.returncode}: {trouble.decode(errors='replace')[-2000:]}")
        sample = Sample(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, child.returncode)
        self.samples.append(sample)
        return sample

    @property
    def median_seconds(self) -> float:
        return statistics.median(s.seconds for s in self.samples)

    @property
    def peak_mb(self) -> float:
        return max(s.peak_mb for s in self.samples)

    def as_json(self) -> dict[str, Any]:
        walls = sorted(s.seconds for s in self.samples)
        return {
            "command": " ".join(self.command),
            "median_seconds": round(self.median_seconds, 3),
            "spread_seconds": [round(walls[0], 3), round(walls[-1], 3)],
            "peak_mb": round(self.peak_mb, 1),
            "samples": [asdict(s) for s in self.samples],
        }


def alternate(contenders: Sequence[Contender], rounds: int, cwd: Path, environ: Mapping[str, str] | None = None) -> None:
    """Every contender once a round, the order turned by one each round, so that nobody always runs after the same other."""
    for turn in range(rounds):
        shift = turn % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            contender.run(cwd, environ)


def report(name: str, ratios: Mapping[str, float], ours: Mapping[str, Any], peers: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `./tidemark bench NAME`, also written to var/bench/NAME.json."""
    paper = {
        "name": name,
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
        "ours": dict(ours),
        "peers": dict(peers),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
    }
    folder = Path("var/bench")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(paper, indent=1))
    return paper
