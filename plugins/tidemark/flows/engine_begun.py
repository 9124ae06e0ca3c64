"""Tasks that run before anybody asks for their answers: they are known to come, and who will ask is busy with other things.

A thread of this process gives them to children as `run_in_children` does. Only answers are kept. What came to no answer,
for whatever reason, is run again by whoever asks, as if it had not been begun; so a task that is begun must change nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tidemark.flows.engine_children import run_in_children
from tidemark.flows.engines import Limits, Outcome
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)

FRESH_SECONDS = 60.0  # so old an answer counts; the file that it is of lies where others can write


class _Begun:
    """Tasks under way. `came` gets (task, its answer, when by the monotonic clock), None when there are no more."""

    def __init__(self, where: str, tasks: Sequence[Hashable], workers: int, limits: Limits) -> None:
        self.tasks = frozenset(tasks)
        self.came: queue.SimpleQueue[tuple[Hashable, Any, float] | None] = queue.SimpleQueue()
        self._forgotten = False
        running = run_in_children(where, tasks, workers, limits)
        threading.Thread(target=self._drive, args=(tasks, running), name="begun tasks", daemon=True).start()

    def forget(self) -> None:
        """Nobody will ask."""
        self._forgotten = True

    def _drive(self, tasks: Sequence[Hashable], running: Iterator[Outcome]) -> None:
        try:
            for outcome in running:
                if self._forgotten:
                    return
                if outcome.error is None:
                    self.came.put((tasks[outcome.index], outcome.value, time.monotonic()))
        except Exception as error:
            log.debug("begun tasks ended: %r", error)
        finally:
            self.came.put(None)


_BEGUN: dict[str, _Begun] = {}
"""By the task function. Their children end with this process."""


def begin(where: str, tasks: Sequence[Hashable], workers: int, limits: Limits) -> None:
    """Run these tasks now, by `workers` children, for the next `run_begun` of this process that has any of them. What was
    begun before for the same function, and nobody asked for, is forgotten."""
    before = _BEGUN.pop(where, None)
    if before is not None:
        before.forget()
    if tasks:
        _BEGUN[where] = _Begun(where, tasks, workers, limits)


def run_begun(where: str, tasks: Sequence[Any], workers: int, limits: Limits) -> Iterator[Outcome]:
    """One outcome a task, as they come, as of `run_in_children`: of tasks that were begun, what they came to just now."""
    left = list(range(len(tasks)))
    begun = _BEGUN.get(where)
    if begun is not None and not begun.tasks.isdisjoint(tasks):
        del _BEGUN[where]
        waiting, known = {task: index for index, task in enumerate(tasks)}, set[int]()
        while (answer := begun.came.get()) is not None:
            task, value, at = answer
            index = waiting.pop(task, None)
            if index is not None and time.monotonic() - at <= FRESH_SECONDS:
                known.add(index)
                yield Outcome(index, value)
        left = [index for index in left if index not in known]
    for outcome in run_in_children(where, [tasks[index] for index in left], min(workers, len(left)), limits):
        yield replace(outcome, index=left[outcome.index])
