"""Progress of a flow: a bar on a terminal, elsewhere a line now and then. Always on stderr, never with `--quiet`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.cli.screen import Screen
from tidemark.progress import Pace, Progress, Tick, said

LINE_SECONDS = 10.0
DRAWS_A_SECOND = 8


@contextmanager
def shown(screen: Screen, link: str = "") -> Iterator[Progress]:
    """A Progress for the block: files, bytes, rate and time left of each phase, under the link's name where it is one's."""
    if screen.quiet:
        yield lambda _tick: None
    elif sys.stderr.isatty():
        with _bar(link) as progress:
            yield progress
    else:
        yield _Lines(screen, link)


class _Lines:
    """A line when LINE_SECONDS have passed since the last one: a log stays short, a long wait is not silent."""

    def __init__(self, screen: Screen, link: str) -> None:
        self._screen = screen
        self._before = f"{link} " if link else ""
        self._pace = Pace()
        self._last = time.monotonic()

    def __call__(self, tick: Tick) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            self._screen.tell(self._before + said(self._pace.at(tick, now)))


@contextmanager
def _bar(link: str) -> Iterator[Progress]:
    """A line for the phase at work, and one for each that counted something before it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn(f"{link} {{task.description:<16}}" if link else "{task.description:<16}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    phases: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True), refresh_per_second=DRAWS_A_SECOND, transient=True) as bars:

        def over(phase: str) -> None:
            task = bars.tasks[bars.task_ids.index(phases[phase])]
            bars.update(task.id, total=task.completed, visible=task.completed > 0)

        def progress(tick: Tick) -> None:
            done, total = (tick.bytes_done, tick.bytes_total) if tick.bytes_total else (tick.done, tick.total)
            files = f"{tick.done:,}/{tick.total:,} files" if tick.total else f"{tick.done:,} files"
            if tick.phase not in phases:
                for earlier in list(phases):  # a run is ended in a thread of its own
                    over(earlier)
                phases[tick.phase] = bars.add_task(tick.phase, total=total or None, files=files)
            bars.update(phases[tick.phase], completed=done, total=total or None, files=files, visible=True)

        yield progress
