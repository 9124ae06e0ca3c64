"""`./tidemark bench cluster`: who holds which slot while a cluster grows from 3 to 1,000 nodes, and what moving costs.

10,000 slots whose bytes are spread by Zipf's law (exponent 1); nodes join and leave in random order (seeded). Side by side:
Tidemark's strategies (`slots`, `bytes`; `compat` is the original's arithmetic) and stores without a table: a ring with
virtual nodes, rendezvous hashing, jump hashing. The worst of all changes of all lives:

    balance_even        `slots`: difference of the numbers of slots
    balance_bytes       `bytes`: largest group to the larger of mean and largest slot
    moves_to_minimum    what moved to what must, in slots (`slots`) and in bytes (`bytes`), the worse of both
    plan_ms             1,000 nodes, 10,000 slots, 3 copies: CPU of planning a change, the slowest kind and strategy, median
    table_kb            the table of it, all that moves included, 1,000 bytes
    migrate_to_cp       2 GB of one node to another on this machine, to `cp -r` and `sha256sum` at both ends: seconds to
                        seconds, so that 1.25 is 0.8 of its throughput
    migrate_to_engine   the same between two SSH servers, to the transfer engine alone
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench import cluster_costs, cluster_move, cluster_play
from bench.cluster_play import Seen
from bench.measure import report
from bench.rows import say

PARTS = ("life", "plan", "costs", "migrate")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tidemark bench cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one life instead of three, fewer rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--nodes", type=int, default=cluster_play.MOST, help="fewer, to try the benchmark itself")
    parser.add_argument("--scale", type=float, default=1.0, help="of the bytes that migrate, to try the benchmark itself")
    asked = parser.parse_args(arguments)
    wanted = set(filter(None, asked.only.split(","))) or set(PARTS)
    if unknown := wanted - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    began = time.monotonic()
    ratios: dict[str, float] = {}
    ours: dict[str, Any] = {}
    peers: dict[str, Any] = {}
    if "plan" in wanted:
        say("cluster: plans of one change")
        ours["plan"] = cluster_costs.plans(asked.nodes, 21)
        ratios["plan_ms"] = max(plan["median_ms"] for plan in ours["plan"])
        ratios["table_kb"] = max(plan["table_kb"] for plan in ours["plan"])
    if "costs" in wanted:
        ours |= {"copies": cluster_costs.copies(asked.nodes), "ten": cluster_costs.ten_nodes()}
        ours["slot_numbers"] = cluster_costs.slot_numbers()
    if "life" in wanted:
        lives = [cluster_play.play(seed, asked.nodes) for seed in range(1 if asked.quick else 3)]
        ratios |= _ratios(lives)
        for name in lives[0]:
            side = ours if name in ("slots", "bytes", "compat") else peers
            side[name] = _summary([seen[name] for seen in lives])
    if "migrate" in wanted:
        report("cluster", ratios, ours, peers)  # what was found so far stays, whatever comes
        cluster_move.measure(2 if asked.quick else 5, asked.scale, ratios, ours, peers)
    paper = report("cluster", ratios, ours, peers, seconds=round(time.monotonic() - began, 1))
    print(json.dumps(paper if asked.json else paper["ratios"], indent=None if asked.json else 1))
    return 0


def _ratios(lives: Sequence[dict[str, Seen]]) -> dict[str, float]:
    even, weighed = [[seen[name] for seen in lives] for name in ("slots", "bytes")]
    counted = [_to_least(one.moved_slots, one.least_slots) for one in even]
    carried = [_to_least(one.moved, one.least) for one in weighed]
    return {
        "balance_even": max(max(one.counts) for one in even),
        "balance_bytes": max(max(one.largest) for one in weighed),
        "moves_to_minimum": max(max(ratios) for ratios in (*counted, *carried)),
        "moves_to_minimum_in_sum": sum(sum(one.moved) for one in weighed) / sum(sum(one.least) for one in weighed),
    }


def _to_least(moved: Sequence[float], least: Sequence[float]) -> list[float]:
    """Of each change; where nothing must move, 1 if nothing does."""
    return [a / b if b else 1.0 if not a else float("inf") for a, b in zip(moved, least, strict=True)]


def _summary(lives: Sequence[Seen]) -> dict[str, Any]:
    """Worst and usual of all changes, and both by size of the cluster: a row each doubling of it."""
    rows = [
        row for one in lives for row in zip(one.nodes, one.largest, one.above, one.counts, one.moved, one.share, strict=True)
    ]
    sizes = sorted({1 << (row[0].bit_length() - 1) for row in rows})
    return {
        "changes": len(rows),
        "largest": _of([row[1] for row in rows]),
        "above_level": _of([row[2] for row in rows]),
        "counts_differ": max(row[3] for row in rows),
        "moved_to_share": round(sum(row[4] for row in rows) / sum(row[5] for row in rows), 4),
        "by_size": [_row(size, [row for row in rows if size <= row[0] < 2 * size]) for size in sizes],
    }


def _row(size: int, rows: Sequence[tuple[int, float, float, int, float, float]]) -> dict[str, Any]:
    return {
        "from_nodes": size,
        "changes": len(rows),
        "largest": _of([row[1] for row in rows]),
        "above_level": _of([row[2] for row in rows]),
        "moved_to_share": round(sum(row[4] for row in rows) / sum(row[5] for row in rows), 4),
    }


def _of(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 4), "worst": round(max(values), 4)}


if __name__ == "__main__":
    sys.exit(main())
