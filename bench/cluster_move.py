"""How fast a node's files come to another node: `./tidemark cluster remove n1` beside `cp -r` and beside the engine alone.

Ours is the whole command: start-up, both phases of the change, 200 slots, every file proved by its digest and recorded, made
durable. The peer on one machine copies with `cp -r` and then sums both sides with `sha256sum`; the peer over SSH is the
transfer engine on the same folder, from one server to the other, with digests at both ends. Both ends of all are in memory
where the machine has the room, so that no disk is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import cluster_data, sets
from bench.cluster_data import Stage
from bench.measure import Contender
from bench.rows import REPOSITORY, say
from tests.services import sshd
from tests.services.sshd import Sshd


def measure(rounds: int, scale: float, ratios: dict[str, float], ours: dict[str, Any], peers: dict[str, Any]) -> None:
    """`migrate_to_cp` and `migrate_to_engine`, wall to wall; lower is better."""
    os.environ["PYTHONPATH"] = f"{REPOSITORY / 'plugins'}{os.pathsep}{REPOSITORY}"  # of `bench.engine`
    with sets.folder() as below:
        ratios["migrate_to_cp"] = _between(below / "local", None, rounds, scale, (ours, peers))
        servers = sshd.start(), sshd.start()
        try:
            ratios["migrate_to_engine"] = _between(below / "ssh", servers, rounds, scale, (ours, peers))
        finally:
            for server in servers:
                server.close()


def _between(
    below: Path,
    servers: tuple[Sshd, Sshd] | None,
    rounds: int,
    scale: float,
    told: tuple[dict[str, Any], dict[str, Any]],
) -> float:
    where = "over SSH" if servers else "on one machine"
    say(f"cluster: a node's files {where}")
    stage = cluster_data.stage(below, scale, servers)
    words = [str(REPOSITORY / "tidemark"), "--config", str(stage.settings), "cluster", "remove", "n1", "--json", "--yes"]
    far = servers[1].pid if servers else 0
    mine, peer = Contender(f"tidemark cluster remove, {where}", words, far), _peer(stage, servers)
    for turn in range(rounds + 1):  # the first one warms the caches and is not counted
        for contender in (mine, peer) if turn % 2 else (peer, mine):
            stage.fresh()
            if contender is peer:
                sets.fresh(stage.target)
            contender.run(REPOSITORY)
            if turn == 0:
                _same(stage)
                contender.samples.clear()
    told[0][mine.name], told[1][peer.name] = mine.as_json(), peer.as_json()
    say(f"cluster: {mine.median_seconds:.2f} s, {peer.name} {peer.median_seconds:.2f} s")
    return mine.median_seconds / peer.median_seconds


def _peer(stage: Stage, servers: tuple[Sshd, Sshd] | None) -> Contender:
    if servers is None:
        summed = "find . -type f -print0 | xargs -0 sha256sum > /dev/null"
        copy = f"cp -r {stage.source}/. {stage.target}/ && cd {stage.source} && {summed} && cd {stage.target} && {summed}"
        return Contender("cp -r, sha256sum at both ends", ["sh", "-c", copy])
    here, there = servers
    words = [sys.executable, "-m", "bench.engine", here.url(stage.source), there.url(stage.target)]
    login = ["--host-key", here.host_key, "--key", str(here.key)]
    return Contender("engine over SSH", [*words, *login, *_second_login(there)], there.pid)


def _second_login(server: Sshd) -> Sequence[str]:
    return ["--target-host-key", server.host_key, "--target-key", str(server.key)]


def _same(stage: Stage) -> None:
    """RuntimeError unless the target has what the template's n1 has."""
    done = subprocess.run(
        ["diff", "-rq", stage.template / "n1" / "data", stage.target], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the target differs: {(done.stdout or done.stderr)[:500]}")
