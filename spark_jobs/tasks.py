"""What every job does: its tasks spread over Spark, each in a child of its executor, outcomes back to the driver."""

from __future__ import annotations

from functools import partial

from spark_jobs.session import open_context
from tidemark.flows.spark_engine import read_tasks, run_numbered, write_results


def run_job(name: str, folder: str, master: str) -> None:
    """Run the tasks that wait in `folder` and leave their outcomes there."""
    kind, numbered, limits = read_tasks(folder)
    context = open_context(name, folder, master)
    try:
        slices = min(len(numbered), 2 * context.defaultParallelism)
        outcomes = context.parallelize(numbered, slices).mapPartitions(partial(run_numbered, kind, limits)).collect()
        write_results(folder, outcomes)
    finally:
        context.stop()
