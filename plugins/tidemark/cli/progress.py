"""Progress of a flow: a bar on a terminal, elsewhere a line now and then. Always on stderr, never with `--quiet`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.cli.screen import Screen, size

if TYPE_CHECKING:
    from tidemark.flows.app import Progress, Tick

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
        self._last = time.monotonic()

    def __call__(self, tick: Tick) -> None:
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            self._screen.tell(describe(tick))


def describe(tick: Tick) -> str:
    """`transfer_files: 12 of 40 files, 1.2 GB of 3.0 GB`."""
    files = f"{tick.done:,} of {tick.total:,} files" if tick.total else f"{tick.done:,} files"
    if not tick.bytes_total and not tick.bytes_done:
        return f"{tick.phase}: {files}"
    total = f" of {size(tick.bytes_total)}" if tick.bytes_total else ""
    return f"{tick.phase}: {files}, {size(tick.bytes_done)}{total}"


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
