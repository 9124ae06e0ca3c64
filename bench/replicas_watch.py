"""One round of questions to five nodes that have the logs of 1,000 groups, each group at three of them."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.rows import say
from tests.group_logs import fence_of, records_behind
from tests.services import sshd
from tidemark.cluster.replicas.log import GroupLog, Tail, read_all_tails
from tidemark.cluster.replicas.members import folder_of
from tidemark.stores.local import LocalStore
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress

NODES, GROUPS, COPIES = 5, 1_000, 3


def measure(below: Path, rounds: int, ratios: dict[str, float], ours: dict[str, Any]) -> None:
    """`watch_1000_groups_s`: median wall of a round, connections kept; one round more opens them."""
    folders = {node: [folder_of(f"g{n}") for n in range(GROUPS) if (node - n) % NODES < COPIES] for node in range(NODES)}
    for node, mine in folders.items():
        store = LocalStore(str(below / f"n{node}"))
        for folder in mine:
            log = GroupLog(store, folder)
            end = log.vote(fence_of(1)).tail.end
            log.append(records_behind(end, 1, 3, b"{}"), fence_of(1))
    with ExitStack() as held:
        servers = [held.enter_context(closing(sshd.start())) for _ in range(NODES)]
        stores: list[Store] = []
        for node, server in enumerate(servers):
            stores.append(open_store(StoreAddress(server.url(below / f"n{node}"), server.host_key, str(server.key))))
            held.callback(stores[-1].close)
        walls = []
        with ThreadPoolExecutor(NODES) as pool:
            for _ in range(rounds + 1):
                began = time.perf_counter()
                found = list(pool.map(read_all_tails, stores, folders.values()))
                walls.append(time.perf_counter() - began)
    heard = sum(isinstance(tail, Tail) and tail.end.position.version == 3 for tails in found for tail in tails.values())
    if heard != GROUPS * COPIES:
        raise RuntimeError(f"{heard} of {GROUPS * COPIES} logs told their ends")
    ratios["watch_1000_groups_s"] = statistics.median(walls[1:])
    ours["watch"] = {"walls_s": [round(wall, 3) for wall in walls]}
    say(f"replicas: watch: {ratios['watch_1000_groups_s']:.2f} s")
