"""What single changes of a cluster cost: time to plan them, bytes with all copies, ten nodes one by one or at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

from bench.cluster_play import SLOTS, zipf
from tidemark.cluster.membership.plan import ChangePlan, plan_change
from tidemark.cluster.slots.balance import Balance, Owners, balance_of, changed_headers, level_of
from tidemark.cluster.slots.hash_ring import Node, data_slot, identifier_of
from tidemark.cluster.slots.table import PartitionTable, begin_table, encode_table

COPIES = 3
STRATEGIES = ("slots", "bytes", "compat")


def settled(nodes: int, balance: Balance, copies: int = COPIES) -> PartitionTable:
    """A table with so many nodes, n0 … , that has been brought into balance."""
    names = [f"n{number}" for number in range(nodes)]
    ring = sorted(Node(identifier_of(name), name) for name in names)
    owners = balance(("",) * SLOTS, [node.name for node in ring])
    return begin_table(ring, min(copies, nodes), owners)


def plans(nodes: int, rounds: int) -> list[dict[str, Any]]:
    """Of adding, removing and balancing anew, by each strategy: milliseconds to the plan; size of its paper."""
    sizes = dict(enumerate(zipf(0).tolist()))
    found = []
    for strategy in ("slots", "bytes"):
        balance = balance_of(strategy, sizes)
        table = settled(nodes, balance)
        for kind, node in (("add", "newcomer"), ("remove", "n7"), ("rebalance", "")):
            took, walls = [], []
            for _ in range(rounds):
                began, wall = time.process_time(), time.perf_counter()
                plan = plan_change(table, kind, node, sizes, balance)
                took.append((time.process_time() - began) * 1e3)
                walls.append((time.perf_counter() - wall) * 1e3)
            found.append(
                {
                    "strategy": strategy,
                    "kind": kind,
                    "median_ms": round(statistics.median(took), 2),
                    "samples_ms": [round(one, 2) for one in took],
                    "walls_ms": [round(one, 2) for one in walls],
                    "moving_slots": len(plan.new.moving),
                    "table_kb": round(len(encode_table(plan.new)) / 1000, 2),
                }
            )
    return found


def copies(most: int) -> list[dict[str, Any]]:
    """One node joins, one leaves: bytes that go over a line, all copies counted, to the copies that it has to hold.

    1 would be a newcomer's own copies alone, coming once; the rest is that the members of groups follow from the ring.
    """
    sizes = dict(enumerate(zipf(0).tolist()))
    found = []
    for nodes in (size for size in (5, 10, 30, 100, 300, 1_000) if size <= most):
        for strategy in ("slots", "bytes"):
            balance = balance_of(strategy, sizes)
            for replicas in (1, COPIES):
                table = settled(nodes, balance, replicas)
                joined = plan_change(table, "add", "newcomer", sizes, balance)
                left = plan_change(table, "remove", "n1", sizes, balance)
                row = {"nodes": nodes, "strategy": strategy, "copies": replicas}
                found.append(row | {"add": _to_held(joined, "newcomer", sizes), "remove": _to_held(left, "n1", sizes)})
    return found


def _to_held(plan: ChangePlan, node: str, sizes: Mapping[int, int]) -> float:
    """Bytes moved to those which the node holds, after joining or before leaving."""
    with_it = plan.new if node in plan.new.ring else plan.old
    assert with_it is not None
    mine = {header for header, group in with_it.groups_by_header().items() if node in group}
    held = sum(sizes[slot] for slot, header in enumerate(with_it.owners) if header in mine)
    return round(plan.bytes / held, 3) if held else 0.0


def ten_nodes() -> list[dict[str, Any]]:
    """Ten nodes join: bytes that move (one copy), one by one, to those that move when all come at once."""
    sizes = dict(enumerate(zipf(0).tolist()))
    found = []
    for nodes in (5, 10, 20, 50, 100):
        for strategy in STRATEGIES:
            balance = balance_of(strategy, sizes)
            old = [f"n{number:03}" for number in range(nodes)]
            new = [f"n{nodes + number:03}" for number in range(10)]
            start = balance_of("slots" if strategy == "compat" else strategy, sizes)(("",) * SLOTS, old)
            together, stepwise, owners = _bytes(start, balance(start, old + new), sizes), 0, start
            for joined in range(1, 11):
                after = balance(owners, old + new[:joined])
                stepwise, owners = stepwise + _bytes(owners, after, sizes), after
            found.append({"nodes": nodes, "strategy": strategy, "one_by_one_to_at_once": round(stepwise / together, 3)})
    return found


def _bytes(before: Owners, after: Owners, sizes: Mapping[int, int]) -> int:
    return sum(sizes[slot] for slot in changed_headers(before, after))


def slot_numbers() -> list[dict[str, Any]]:
    """How many slots are enough: 10,000 partitions of Zipf's sizes, hashed to so many slots, on so many nodes.

    The fullest group, to what it would hold if every partition could go where it likes (or its largest partition, if that is
    more), by bytes and by numbers.
    """
    keys = zipf(0).tolist()
    found = []
    for slots in (100, 300, 1_000, 3_000, 10_000, 30_000):
        sizes: dict[int, int] = {}
        largest: dict[int, int] = {}
        for partition, size in enumerate(keys):
            slot = data_slot("root.plant", partition, slots)
            sizes[slot] = sizes.get(slot, 0) + size
            largest[slot] = max(largest.get(slot, 0), size)
        for nodes in (size for size in (5, 10, 30, 100) if size <= slots):
            row: dict[str, Any] = {"slots": slots, "nodes": nodes}
            names = [str(number) for number in range(nodes)]
            for strategy in ("bytes", "slots"):
                owners = balance_of(strategy, sizes)(("",) * slots, names)
                loads, tops = dict.fromkeys(names, 0), dict.fromkeys(names, level_of(keys, nodes))
                for slot, name in enumerate(owners):
                    loads[name] += sizes.get(slot, 0)
                    tops[name] = max(tops[name], largest.get(slot, 0))
                row[f"by_{strategy}"] = round(max(loads[name] / tops[name] for name in names), 3)
            found.append(row)
    return found
