"""One contender of `bench merge` in a process of its own: merges when asked, says what it took.

    python -m bench.merge_run KIND FOLDER OUT     a line on stdin is one merge; a JSON line on stdout answers

KIND is one of `OURS` or of `bench.merge_peers`. What is in FOLDER is merged into the empty folder OUT. Only the merge is
timed; what stays from one to the next (a Spark session, a pool of processes, imports) is warm after the first.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tidemark.ledger.receiver.catalog import CatalogDevice, CatalogFile
from tidemark.receiver.merge import device as merge_device
from tidemark.receiver.merge.plan import Unit, plan_merge, tasks_of
from tidemark.receiver.merge.task import MergeOutcome, MergeTask, run_merge_task
from tidemark.tsfiles.reader import TsFile
from tidemark.tsfiles.statistics import describe_file

WEEK_MS = 604_800_000
Merge = Callable[[Path], object]


def units(folder: Path) -> list[Unit]:
    """The files as the catalog has them once they are loaded, older ones first."""
    found = []
    for number, place in enumerate([*sorted(folder.glob("old-*.tsfile")), *sorted(folder.glob("new-*.tsfile"))]):
        facts = describe_file(place)
        file = CatalogFile(
            receiver="bench",
            site_id="00000000-0000-4000-8000-00000000be7e",
            role="source",
            path=place.name,
            generation=1,
            database="root.bench",
            model="tree",
            format=4,
            partition_from=0,
            partition_to=0,
            location=place.name,
            sha256=hashlib.sha256(place.read_bytes()).hexdigest(),
            size=place.stat().st_size,
            mods_location="",
            mods_sha256="",
            points=facts.points,
            rank=(0, number, 0, 0, 0),
            created=0.0,
            file_id=number + 1,
        )
        found.append(Unit(file, tuple(CatalogDevice(d.device, d.start, d.end, d.points) for d in facts.devices)))
    return found


def planned(known: Sequence[Unit], folder: Path, out: Path) -> list[MergeTask]:
    """The tasks of a merge of all that overlaps; their outputs go to `out`."""
    staging = str(out)  # absolute: joined to the root it stays what it is
    groups = plan_merge(known).groups
    return [task for n, group in enumerate(groups) for task in tasks_of(group, n, str(folder), staging, WEEK_MS)]


def merges_ours(kind: str, folder: Path, scratch: Path) -> Merge:
    """`spark`: the merge job in a warm session of two threads. `children`: the pool as a command starts it. `pool`: two
    warm processes; `pool-rewrite`: the same, and nothing is copied. All of them plan first."""
    known = units(folder)
    if kind == "spark":
        run = _in_spark(scratch)
    elif kind == "children":
        run = _in_children
    else:
        run = _in_pool(copies=kind == "pool")
    return lambda out: _require_whole(run(planned(known, folder, out)))


def _require_whole(outcomes: Sequence[MergeOutcome]) -> None:
    refused = [outcome.refused for outcome in outcomes if outcome.refused]
    if refused or not outcomes:
        raise RuntimeError(f"not merged: {refused}")


def _in_spark(scratch: Path) -> Callable[[Sequence[MergeTask]], list[MergeOutcome]]:
    from spark_jobs.session import open_context
    from tidemark.engines.spark import PACKAGE, run_numbered, zip_package
    from tidemark.engines.task import Limits

    zip_package(scratch / PACKAGE)
    context = open_context("bench merge", str(scratch), "local[2]")

    def run(tasks: Sequence[MergeTask]) -> list[MergeOutcome]:
        slices = min(len(tasks), 2 * context.defaultParallelism)
        job = context.parallelize(list(enumerate(tasks)), slices).mapPartitions(partial(run_numbered, "merge", Limits()))
        return _values(job.collect())

    return run


def _in_children(tasks: Sequence[MergeTask]) -> list[MergeOutcome]:
    from tidemark.engines.choose import PoolEngine

    return _values(PoolEngine(workers=2).run("merge", tasks))


def _values(outcomes: Any) -> list[MergeOutcome]:
    found = []
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        found.append(outcome.value)
    return found


def _in_pool(copies: bool) -> Callable[[Sequence[MergeTask]], list[MergeOutcome]]:
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(2, mp_context=spawn, initializer=None if copies else _copy_nothing)
    return lambda tasks: list(pool.map(run_merge_task, tasks))


def _copy_nothing() -> None:
    """Every chunk is decoded and written anew."""
    merge_device.stored_chunks = lambda file, stretch: None
    TsFile.find_whole_device = lambda file, device, terms: None


OURS = ("spark", "children", "pool", "pool-rewrite")


def main(kind: str, folder: Path, out: Path) -> None:
    scratch = out.with_name(f"{out.name}-scratch")
    scratch.mkdir(parents=True, exist_ok=True)
    if kind in OURS:
        merge = merges_ours(kind, folder, scratch)
    else:
        from bench import merge_peers

        merge = merge_peers.merges(kind, folder, scratch)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        merge(out)
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
        _give_back()


def _give_back() -> None:
    """What a library kept for later goes back to the machine, which the next contender needs."""
    gc.collect()
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
