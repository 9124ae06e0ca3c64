"""A member that lost its disk, recovered by a round of the watch, to the transfer engine alone: for `bench replicas`.

Three nodes behind SSH servers have the same files; the third node's server stands behind a proxy that counts bytes. The
round finds the log gone and the files missing, brings both, and records them. The engine sends the same files from one node
into an empty folder of that server, by the same digests. One percent: the same with so many files missing, in bytes.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.replicas_data import cluster_settings_of
from bench.replicas_verify import BYTES, Commit, make_files
from bench.rows import say
from tests.e2e.chaos_proxy import ChaosProxy
from tests.services.sshd import Sshd
from tidemark.app import App, open_app
from tidemark.cluster.health.watch import watch_groups
from tidemark.cluster.membership.change import init_cluster
from tidemark.cluster.nodes.cluster import require_cluster
from tidemark.cluster.nodes.folder import LOGS
from tidemark.cluster.replicas.deliver import stop_counting
from tidemark.ledger.cluster.copies import copies_at
from tidemark.settings.load import load_settings
from tidemark.stores.open import open_store
from tidemark.stores.protocol import StoreAddress
from tidemark.transfer import engine
from tidemark.transfer.engine import SendItem, SendOptions, Sent

LOST = "n3"


def measure(
    running: Sequence[Sshd],
    below: Path,
    size: tuple[int, int],
    commit: Commit,
    told: tuple[dict[str, float], dict[str, Any], dict[str, Any]],
) -> None:
    """`recover_to_engine` and `recover_1pct_bytes`, into `told`: ratios, ours, peers. `size`: files, rounds."""
    ratios, ours, peers = told
    (files, rounds), walls, bare = size, list[float](), list[float]()
    proxy = ChaosProxy(running[-1].port)
    proxy.start()
    behind = replace(running[-1], port=proxy.port)
    with closing(proxy):
        app = open_app(load_settings(cluster_settings_of(below, [*running[:-1], behind]), {}))
        try:
            init_cluster(app, app.receiver_settings("centre"))
            make_files(app, below, files, commit)
            for turn in range(rounds + 1):  # the first warms the caches
                for act, into in ((_recover, walls), (_send, bare)) if turn % 2 else ((_send, bare), (_recover, walls)):
                    seconds = act(app, below, behind)
                    if turn:
                        into.append(seconds)
            ratios["recover_to_engine"] = statistics.median(walls) / statistics.median(bare)
            say(f"replicas: recover_to_engine: {ratios['recover_to_engine']:.3f} ({walls} s to {bare} s)")
            few = max(1, files // 100)
            before = proxy.passed
            _recover(app, below, behind, few)
            ratios["recover_1pct_bytes"] = (proxy.passed - before) / (few * BYTES)
            say(f"replicas: recover_1pct_bytes: {ratios['recover_1pct_bytes']:.3f} of {few * BYTES:,} bytes")
        finally:
            app.ledger.close()
    ours["recover"] = {"bytes": files * BYTES, "walls_s": walls}
    peers["engine alone"] = {"bytes": files * BYTES, "walls_s": bare}


def _recover(app: App, below: Path, _: Sshd, count: int = 0) -> float:
    """Lose so many files of the node, or all and its logs; return the seconds of the round that brings them."""
    receiver = app.receiver_settings("centre")
    with require_cluster(app, receiver) as cluster, app.ledger.write() as connection:
        places = sorted(row.location for row in copies_at(connection, "centre", LOST))
        gone = places[:count] if count else places
        stop_counting(connection, cluster, LOST, gone)
    for place in gone:
        (below / LOST / place).unlink()
    if not count:
        shutil.rmtree(below / LOST / LOGS)
    return _time(lambda: _require(watch_groups(app, receiver).files.get(LOST), len(gone)))


def _send(app: App, below: Path, server: Sshd) -> float:
    """Send all files of a node into an empty folder; return the seconds."""
    target = below / "plain"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    address = StoreAddress(server.url(target), host_key=server.host_key, key=str(server.key))
    with require_cluster(app, app.receiver_settings("centre")) as cluster, closing(open_store(address)) as store:
        with app.ledger.read() as connection:
            rows = copies_at(connection, "centre", "n1")
        items = [SendItem(row.location, row.location, row.size, row.sha256) for row in rows]
        options = SendOptions.of_cluster(None, retries=3)
        source = cluster.open_store("n1")

        def send() -> None:
            sent = [one for one in engine.send_files(source, store, items, options) if isinstance(one, Sent)]
            _require(len(sent), len(items))

        return _time(send)


def _time(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _require(found: int | None, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} files came, not {wanted}")
