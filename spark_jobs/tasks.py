"""Run the tasks of a job on Spark, each in a child process of its executor, and write the outcomes on the driver."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import IO

from pyspark import SparkContext

from spark_jobs.session import open_context
from tidemark.engines.spark import BEAT_SECONDS, DONE, WORKS, read_tasks, run_numbered, write_results


def run_job(name: str, folder: str, master: str, replies: str = "") -> None:
    """Run the tasks in `folder` and write their outcomes there.

    With `replies`, a file descriptor, `folder` is the session's: run the tasks in each folder that stdin names, and write
    a line to `replies` for each, until stdin ends.
    """
    context = open_context(name, folder, master)
    try:
        if not replies:
            _run(context, folder)
            return
        with os.fdopen(int(replies), "w") as out:
            for line in sys.stdin:
                with _watched(context, out):
                    answer = _answer(context, line.rstrip("\n"))
                print(answer, file=out, flush=True)
    finally:
        context.stop()


@contextmanager
def _watched(context: SparkContext, out: IO[str]) -> Iterator[None]:
    over = Event()
    watching = Thread(target=_watch, args=(context, out, over), daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(context: SparkContext, out: IO[str], over: Event) -> None:
    """Write WORKS every BEAT_SECONDS if an executor has a task of the job, or finished one since the last check."""
    tracker, before = context.statusTracker(), 0
    while not over.wait(BEAT_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        done = sum(stage.numCompletedTasks for stage in stages if stage)
        if done != before or any(stage.numActiveTasks for stage in stages if stage):
            print(WORKS, file=out, flush=True)
        before = done


def _answer(context: SparkContext, folder: str) -> str:
    try:
        _run(context, folder)
    except Exception:
        traceback.print_exc()
        return "failed"
    return DONE


def _run(context: SparkContext, folder: str) -> None:
    kind, numbered, limits = read_tasks(folder)
    slices = min(len(numbered), 2 * context.defaultParallelism)
    outcomes = context.parallelize(numbered, slices).mapPartitions(partial(run_numbered, kind, limits)).collect()
    write_results(folder, outcomes)
