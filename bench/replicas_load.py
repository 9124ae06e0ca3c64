"""A load of 200 files into three nodes, with the logs of their groups and without.

    python -m bench.replicas_load SETTINGS [--without-log]

Both contenders are this file, so that their start costs the same. Without the log a process leaves out what `make_visible`
does for it: lease, rehearsal, records and marks in the ledger.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.measure import Contender
from bench.replicas_data import FILES, cluster_settings_of, land_files
from bench.rows import REPOSITORY, say
from tests.services.sshd import Sshd
from tidemark.cli.main import main as run_command
from tidemark.cluster.replicas import forward

WITHOUT = "--without-log"


def measure(
    running: Sequence[Sshd],
    below: Path,
    rounds: int,
    ratios: dict[str, float],
    ours: dict[str, Any],
    peers: dict[str, Any],
) -> None:
    """`load_overhead`, wall to wall. One round more warms the caches."""
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'plugins'}{os.pathsep}{REPOSITORY}"
    template, world = below / "template", below / "world"
    settings = cluster_settings_of(world, running)
    words = [str(REPOSITORY / "tidemark"), "--config", settings, "cluster", "init", "--json"]
    subprocess.run(words, check=True, capture_output=True)
    land_files(world / "centre")
    world.rename(template)
    words = [sys.executable, "-m", "bench.replicas_load", settings]
    mine, bare = Contender("load with the log", words), Contender("load without the log", [*words, WITHOUT])
    for turn in range(rounds + 1):
        for contender in (mine, bare) if turn % 2 else (bare, mine):
            shutil.rmtree(world, ignore_errors=True)
            shutil.copytree(template, world)
            told = json.loads(contender.run(REPOSITORY).splitlines()[-1])
            if told["loaded"] != FILES:
                raise RuntimeError(f"{contender.name} loaded {told['loaded']} of {FILES} files")
            if (_log_bytes(world) > _log_bytes(template)) is (contender is bare):
                raise RuntimeError(f"{contender.name} left logs of {_log_bytes(world):,} bytes")
            say(f"replicas: {contender.name}: {contender.samples[-1].seconds:.2f} s")
        if turn == 0:
            mine.samples.clear()
            bare.samples.clear()
    ours[mine.name], peers[bare.name] = mine.as_json(), bare.as_json()
    ratios["load_overhead"] = mine.median_seconds / bare.median_seconds


def _log_bytes(world: Path) -> int:
    return sum(path.stat().st_size for path in world.glob("n*/.tidemark/log/of-*/*.log"))


def run(arguments: Sequence[str]) -> int:
    """Load, as the verb does. The exit code is the verb's."""
    words = ["--config", arguments[0], "load", "--json"]
    if WITHOUT not in arguments:
        return run_command(words)
    with (
        patch.object(forward, "hold_groups", _hold_nothing),
        patch.object(forward, "dry_run_change", lambda *_: (True, None)),
        patch.object(forward, "_act_as_recorded", lambda connection, _cluster, act, _change: act(connection)),
        patch.object(forward, "settle_commit", lambda *_: None),
    ):
        return run_command(words)


@contextmanager
def _hold_nothing(_cluster: object) -> Iterator[None]:
    yield None


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
