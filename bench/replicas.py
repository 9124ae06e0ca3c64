"""`./tidemark bench replicas`: what it costs that each node of a group keeps a log of what it holds.

Three nodes, each behind an OpenSSH server of its own on this machine; the group is all three, its quorum two.

    commit_per_s     files that one process commits a second, 16 a commit, one commit after another: lease, rehearsal, a
                     record in the logs of the members, the ledger's transaction. Connections stay open, the nodes and the
                     ledger sync to this machine's disk. The files are there already
    commit_p50_ms    milliseconds of a commit, half of them and 99 of 100; `commit_p99_ms`
    single_per_s     the same with one file a commit; `single_p50_ms`, `single_p99_ms`
    etcd_ratio       `single_per_s`, to the values of as many bytes that an etcd of three members on this machine commits a
                     second, one after another; where `etcd` is in the PATH
    watch_1000_groups_s  one round of questions: 1,000 groups with three logs each on five nodes, all ends read
    load_overhead    `./tidemark load` of 200 files into the three nodes, to the same without lease, records and marks of
                     the logs, in one process that leaves them out
    verify_to_read   `replica verify` of 10 GB at three nodes that agree, to `sha256sum` over it. `verify_cached_to_read`:
                     again, with the digests that the first one noted
    recover_to_engine  a round of the watch that brings a node that lost its disk 2 GB and its logs, to the transfer engine
                     that sends the same files from one node to the other. `recover_1pct_bytes`: bytes that pass its server's
                     port when it lacks one file of a hundred, to the bytes of these files
    rebuild_100k_s   seconds for the catalog of 100,000 files from a group's log into a new ledger; `rebuild_100k_mb`
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

from bench import replicas_etcd, replicas_load, replicas_rebuild, replicas_recover, replicas_verify, replicas_watch
from bench.measure import report
from bench.replicas_data import DATABASE, add_file, cluster_settings_of, hold_everywhere
from bench.rows import leave_nothing, say
from tests.services import sshd
from tests.services.processes import PartMissing
from tests.services.sshd import Sshd
from tidemark.app import App, open_app
from tidemark.cluster.membership.change import init_cluster
from tidemark.cluster.nodes.cluster import Cluster, require_cluster
from tidemark.cluster.replicas.commit import append_change, dry_run_change, hold_groups, settle_commit
from tidemark.ledger.receiver import catalog as catalog_rows
from tidemark.ledger.receiver.catalog import CatalogFile, FileWithDevices
from tidemark.settings.load import load_settings

PARTS = ("commit", "watch", "load", "rebuild", "verify", "recover")
NODES = 3
BATCH = 16  # files of a commit
WARM = 20  # commits before the first that counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tidemark bench replicas", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="200 commits, two rounds, 600 MB to verify and recover")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help=f"parts, with commas: {', '.join(PARTS)}")
    asked = parser.parse_args(arguments)
    wanted = set(filter(None, asked.only.split(","))) or set(PARTS)
    if unknown := wanted - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    leave_nothing()
    ratios: dict[str, float] = {}
    ours: dict[str, Any] = {}
    peers: dict[str, Any] = {}
    try:
        with servers() as running, tempfile.TemporaryDirectory(prefix="tidemark-bench-") as place:
            if "commit" in wanted:
                count = 200 if asked.quick else 2_000
                measure_commits(running, Path(place) / "commit", count, ratios, ours)
                replicas_etcd.measure(Path(place) / "etcd", count, ours["single"]["record_bytes"], ratios, peers)
            if "watch" in wanted:
                replicas_watch.measure(Path(place) / "watch", 2 if asked.quick else 7, ratios, ours)
            if "load" in wanted:
                replicas_load.measure(running, Path(place) / "load", 2 if asked.quick else 5, ratios, ours, peers)
            if "rebuild" in wanted:
                replicas_rebuild.measure(Path(place) / "rebuild", ratios, ours)
            if "verify" in wanted:
                files = 20 if asked.quick else 340
                replicas_verify.measure(running, Path(place) / "verify", files, commit, (ratios, ours))
            if "recover" in wanted:
                size = (60, 2) if asked.quick else (205, 5)
                replicas_recover.measure(running, Path(place) / "recover", size, commit, (ratios, ours, peers))
    except PartMissing as missing:
        parser.exit(6, f"{missing}\n")
    paper = report("replicas", ratios, ours, peers)
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


@contextmanager
def servers() -> Iterator[list[Sshd]]:
    """An SSH server for each node."""
    running: list[Sshd] = []
    try:
        running.extend(sshd.start() for _ in range(NODES))
        yield running
    finally:
        for server in running:
            server.close()


def measure_commits(
    running: Sequence[Sshd], below: Path, count: int, ratios: dict[str, float], ours: dict[str, Any]
) -> None:
    """`commit_per_s` and `single_per_s` with their percentiles."""
    app = open_app(load_settings(cluster_settings_of(below, running), {}))
    try:
        receiver = app.receiver_settings("centre")
        init_cluster(app, receiver)
        with require_cluster(app, receiver) as cluster:
            files = _files_of_one_group(cluster)
            for row, size in (("commit", BATCH), ("single", 1)):
                before = _log_bytes(below)
                walls, cpu = _commit_all(app, cluster, files, count, size)
                ratios[f"{row}_per_s"] = size * len(walls) / sum(walls)
                ratios[f"{row}_p50_ms"] = 1e3 * statistics.median(walls)
                ratios[f"{row}_p99_ms"] = 1e3 * sorted(walls)[int(0.99 * len(walls))]
                ours[row] = {
                    "commits": len(walls),
                    "files_each": size,
                    "record_bytes": (_log_bytes(below) - before) // (NODES * (WARM + count)),
                    "cpu_seconds": round(cpu, 3),
                    "walls_ms": [round(1e3 * wall, 2) for wall in walls],
                }
                say(f"replicas: {row}: {ratios[f'{row}_per_s']:.0f} a second, p99 {ratios[f'{row}_p99_ms']:.1f} ms")
    finally:
        app.ledger.close()


def _log_bytes(below: Path) -> int:
    return sum(path.stat().st_size for path in below.glob("n*/.tidemark/log/of-*/*.log"))


def _commit_all(
    app: App, cluster: Cluster, files: Iterator[CatalogFile], count: int, size: int
) -> tuple[list[float], float]:
    """Commit so many times, `size` files each; return the seconds of each commit, and the CPU seconds of this process."""
    walls = []
    cpu = time.process_time()
    for number in range(WARM + count):
        if number == WARM:
            cpu = time.process_time()
        mine = [next(files) for _ in range(size)]
        hold_everywhere(app, cluster, mine)
        began = time.perf_counter()
        commit(app, cluster, mine)
        if number >= WARM:
            walls.append(time.perf_counter() - began)
    return walls, time.process_time() - cpu


def commit(app: App, cluster: Cluster, files: Sequence[CatalogFile]) -> None:
    """Commit files as `make_visible` does, once they are at a quorum."""

    def act(connection: Connection) -> None:
        catalog_rows.add_files(connection, [FileWithDevices(file, ()) for file in files])

    with hold_groups(cluster) as lease:
        appended = append_change(cluster, lease, dry_run_change(cluster, act)[1])
        with app.ledger.write() as connection:
            act(connection)
            settle_commit(connection, cluster, lease, appended)


def _files_of_one_group(cluster: Cluster) -> Iterator[CatalogFile]:
    """Rows of files without end, all of one group."""
    header = cluster.table.route_data(DATABASE, 0).header
    partitions = [number for number in range(10_000) if cluster.table.route_data(DATABASE, number).header == header]
    number = 0
    while True:
        yield add_file(number, partitions[number % len(partitions)])
        number += 1


if __name__ == "__main__":
    sys.exit(main())
