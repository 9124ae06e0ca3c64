"""The kinds of tasks, the limits of one task, and its outcome. All engines import this module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.errors import TidemarkError

KINDS: Mapping[str, str] = {
    "load_check": "tidemark.receiver.load.check:examine_file",
    "describe_kept": "tidemark.receiver.load.check:describe_kept",  # for a rebuilt ledger: in the pool only
    "surviving_points": "tidemark.receiver.load.removal.surviving_points:find_surviving_points",  # in the pool only
    "merge": "tidemark.receiver.merge.task:run_merge_task",
    "sink": "tidemark.changes.sinks.tasks:run_sink_task",
    "slot_migrate": "tidemark.cluster.migration.send_task:run_move",
    "far": "tidemark.receiver.remote_tasks:run_remote_task",  # any of them, for an executor that reaches the files over SFTP
}
"""The function behind each kind, as `module:name`; `spark_jobs/<kind>.py` is its Spark job."""

PLACE_FAR = "tidemark.receiver.remote_tasks:place_remote_tasks"
"""What makes tasks for executors that do not see this machine's folders: a word, as the kinds are."""


@dataclass(frozen=True)
class Limits:
    """What one task may use before its child is ended."""

    cpu_seconds: int = 900
    wall_seconds: int = 1800
    memory_bytes: int = 6 << 30  # of address space, which libraries reserve generously


LIMITS: Mapping[str, Limits] = {
    "slot_migrate": Limits(cpu_seconds=86_400, wall_seconds=14 * 86_400),
    "sink": Limits(cpu_seconds=7200, wall_seconds=14_400, memory_bytes=24 << 30),
}
"""Kinds with limits of their own. A move reads no TsFile, and what hangs on its lines the transfer ends by itself. A
transaction of a sink may be larger than its batches are."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of the task at `index` of those given: its `value`, or the `error` that explains why there is none.

    CorruptionError: the task crashed its child. TaskLimitError: it exceeded a limit. RetryableError: something else ended
    the child. Other errors are the task's own.
    """

    index: int
    value: Any = None
    error: TidemarkError | None = None
