"""Show the progress of a command: a bar on a terminal, elsewhere a line now and then. On stderr, never with `--quiet`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from tidemark.cli.screen import Screen
from tidemark.progress import Pace, Progress, Tick, format_figures
from tidemark.visible import escape_invisible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import ProgressColumn


CANNOT_DRAW = ("dumb", "unknown")  # values of TERM: these terminals cannot move the cursor
LINE_SECONDS = 10.0
DRAWS_A_SECOND = 8


@contextmanager
def show_progress(screen: Screen, link: str = "") -> Iterator[Progress]:
    """Yield a Progress that shows files, bytes, rate and time left of each phase, prefixed with the link's name if given."""
    if screen.quiet:
        yield lambda _tick: None
    elif sys.stderr.isatty() and os.environ.get("TERM") not in CANNOT_DRAW:
        with _draw_bar(link) as progress:
            yield progress
    else:
        yield _Lines(screen, link)


class _Terminal:
    """stderr without its write errors: a closed terminal must not end a run by a failed bar. SIGHUP ends it properly."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Lines:
    """Prints at most one line in LINE_SECONDS, so that a log stays short."""

    def __init__(self, screen: Screen, link: str) -> None:
        self._screen = screen
        self._before = f"{link} " if link else ""
        self._pace = Pace()
        self._last = time.monotonic()

    def __call__(self, tick: Tick) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            self._screen.print_remark(self._before + format_figures(self._pace.figures_at(tick, now)))


def _make_columns(link: str) -> list[ProgressColumn]:
    from rich.progress import BarColumn, DownloadColumn, Task, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import ProgressColumn as Column

    class OfBytes(Column):
        """A column that is shown only in a phase that counts bytes."""

        def __init__(self, column: Column) -> None:
            super().__init__()
            self._column = column

        def render(self, task: Task) -> RenderableType:
            return self._column(task) if task.fields["of_bytes"] else ""

    return [
        TextColumn(f"{link} {{task.description:<16}}" if link else "{task.description:<16}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[files]}"),
        OfBytes(DownloadColumn()),
        OfBytes(TransferSpeedColumn()),
        TimeRemainingColumn(compact=True),
    ]


@contextmanager
def _draw_bar(link: str) -> Iterator[Progress]:
    """Yield a Progress that draws a bar for the current phase, and one for each earlier phase that counted something."""
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    phases: dict[str, TaskID] = {}
    console = Console(file=cast(TextIO, _Terminal(sys.stderr)))
    with Bars(*_make_columns(link), console=console, refresh_per_second=DRAWS_A_SECOND, transient=True) as bars:

        def end_phase(phase: str) -> None:
            task = bars.tasks[bars.task_ids.index(phases[phase])]
            bars.update(task.id, total=task.completed, visible=task.completed > 0)

        def progress(tick: Tick) -> None:
            of_bytes = tick.bytes_total > 0
            done, total = (tick.bytes_done, tick.bytes_total) if of_bytes else (tick.done, tick.total)
            files = f"{tick.done:,}/{tick.total:,} files" if tick.total else f"{tick.done:,} files"
            if tick.phase not in phases:
                for earlier in list(phases):  # several may be open: another thread ends the run
                    end_phase(earlier)
                phases[tick.phase] = bars.add_task(escape_invisible(tick.phase), total=None, files=files, of_bytes=of_bytes)
            task, whole = phases[tick.phase], total or None
            bars.update(task, completed=done, total=whole, files=files, of_bytes=of_bytes, visible=True)

        yield progress
