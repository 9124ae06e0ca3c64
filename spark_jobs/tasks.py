"""What every job does: its tasks spread over Spark, each in a child of its executor, outcomes back to the driver."""

from __future__ import annotations

import os
import sys
import traceback
from functools import partial

from pyspark import SparkContext

from spark_jobs.session import open_context
from tidemark.flows.spark_engine import read_tasks, run_numbered, write_results
from tidemark.flows.spark_session import DONE


def run_job(name: str, folder: str, master: str, replies: str = "") -> None:
    """Run the tasks that wait in `folder` and leave their outcomes there.

    With `replies`, a file descriptor: `folder` is the session's; run the tasks in each folder that stdin names, and answer
    a line for each, until stdin ends.
    """
    context = open_context(name, folder, master)
    try:
        if not replies:
            _run(context, folder)
            return
        with os.fdopen(int(replies), "w") as out:
            for line in sys.stdin:
                print(_answer(context, line.rstrip("\n")), file=out, flush=True)
    finally:
        context.stop()


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
