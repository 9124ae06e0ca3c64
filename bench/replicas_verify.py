"""`replica verify` of nodes that agree, to reading their files once: for `bench replicas`.

Three nodes behind SSH servers have the same files. Reading once is `sha256sum` over all of them, each of the three copies.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.replicas_data import add_file, cluster_settings_of, hold_everywhere
from bench.rows import say
from tests.services.sshd import Sshd
from tidemark.app import App, open_app
from tidemark.cluster.membership.change import init_cluster
from tidemark.cluster.nodes.cluster import Cluster, require_cluster
from tidemark.cluster.replicas.commit import record_slots
from tidemark.ledger.receiver.catalog import CatalogFile
from tidemark.operations.replicas import verify_replicas
from tidemark.settings.load import load_settings

BYTES = 10 << 20
OLD = 1_600_000_000

Commit = Callable[[App, Cluster, Sequence[CatalogFile]], None]


def measure(
    running: Sequence[Sshd], below: Path, files: int, commit: Commit, told: tuple[dict[str, float], dict[str, Any]]
) -> None:
    """`verify_to_read` and `verify_cached_to_read`, into `told`: ratios, ours."""
    ratios, ours = told
    app = open_app(load_settings(cluster_settings_of(below, running), {}))
    try:
        receiver = app.receiver_settings("centre")
        init_cluster(app, receiver)
        paths = make_files(app, below, files, commit)
        began = time.perf_counter()
        subprocess.run(["sha256sum", *map(str, paths)], check=True, stdout=subprocess.DEVNULL)
        read = time.perf_counter() - began
        walls = {}
        for row, cached in (("verify_to_read", False), ("verify_cached_to_read", True)):
            began = time.perf_counter()
            found = verify_replicas(app, receiver, cached=cached)
            walls[row] = time.perf_counter() - began
            if found.wrong or sum(member.files for group in found.groups for member in group.members) != len(paths):
                raise SystemExit(f"the nodes differ: {found.wrong[:3]}")
            ratios[row] = walls[row] / read
            say(f"replicas: {row}: {ratios[row]:.3f} ({walls[row]:.2f} s to {read:.2f} s)")
        ours["verify"] = {"bytes": len(paths) * BYTES, "read_s": read, **walls}
    finally:
        app.ledger.close()


def make_files(app: App, below: Path, count: int, commit: Commit) -> list[Path]:
    """Put files of `BYTES` into all nodes and the catalog; return their paths at the nodes."""
    chance, paths = random.Random(30), []
    with require_cluster(app, app.receiver_settings("centre")) as cluster:
        for number in range(count):
            content = chance.randbytes(BYTES)
            digest = hashlib.sha256(content).hexdigest()
            file = replace(add_file(number, 0), sha256=digest, size=BYTES)
            for node in sorted(cluster.nodes):
                path = below / node / file.location
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                os.utime(path, (OLD, OLD))
                paths.append(path)
            hold_everywhere(app, cluster, [file])
            commit(app, cluster, [file])
        record_slots(cluster)
    return paths
