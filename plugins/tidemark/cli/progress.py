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
def shown(screen: Screen) -> Iterator[Progress]:
    """A Progress for the block: files, bytes, rate and time left of each phase."""
    if screen.quiet:
        yield lambda _tick: None
    elif sys.stderr.isatty():
        with _bar() as progress:
            yield progress
    else:
        yield _Lines(screen)


class _Lines:
    """A line when LINE_SECONDS have passed since the last one: a log stays short, a long wait is not silent."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._pace = Pace()
        self._last = time.monotonic()

    def __call__(self, tick: Tick) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            self._screen.tell(said(self._pace.at(tick, now)))


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    phases: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True), refresh_per_second=DRAWS_A_SECOND, transient=True) as bars:

        def progress(tick: Tick) -> None:
            done, total = (tick.bytes_done, tick.bytes_total) if tick.bytes_total else (tick.done, tick.total)
            files = f"{tick.done:,}/{tick.total:,} files" if tick.total else f"{tick.done:,} files"
            if tick.phase not in phases:
                phases[tick.phase] = bars.add_task(tick.phase, total=total or None, files=files)
            bars.update(phases[tick.phase], completed=done, total=total or None, files=files)

        yield progress
