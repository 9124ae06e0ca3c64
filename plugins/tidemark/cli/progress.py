"""Show the progress of a command: a bar on a terminal, elsewhere a line now and then. On stderr, never with `--quiet`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

from tidemark.cli.screen import INFO, Screen
from tidemark.progress import Pace, Progress, Tick, format_figures
from tidemark.visible import escape_invisible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import ProgressColumn


CANNOT_DRAW = ("dumb", "unknown")  # values of TERM: these terminals cannot move the cursor
LINE_SECONDS = 10.0
DRAWS_A_SECOND = 8


@contextmanager
def show_progress(screen: Screen, link: str = "") -> Iterator[Progress]:
    """Yield a Progress that shows files, bytes, rate and time left of each phase, prefixed with the link's name if given."""
    with ExitStack() as bars:
        shown = bars.enter_context(_draw_bar(link)) if _can_draw(screen) else _Lines(screen.show_remark, link)
        logged = _Lines(partial(screen.record, INFO), link, phases=True)

        def show(tick: Tick) -> None:
            shown(tick)
            logged(tick)

        yield show


def _can_draw(screen: Screen) -> bool:
    return not screen.quiet and not screen.shows_log and sys.stderr.isatty() and os.environ.get("TERM") not in CANNOT_DRAW


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
    """Says at most one line in LINE_SECONDS, so that a log stays short. `phases`: also one for each new phase."""

    def __init__(self, say: Callable[[str], None], link: str, phases: bool = False) -> None:
        self._say = say
        self._phase = "" if phases else None
        self._before = f"{link} " if link else ""
        self._pace = Pace()
        self._last = time.monotonic()

    def __call__(self, tick: Tick) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS or self._phase not in (None, tick.phase):
            self._last = now
            self._phase = self._phase if self._phase is None else tick.phase
            self._say(self._before + format_figures(self._pace.figures_at(tick, now)))


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
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    phases: dict[str, TaskID] = {}
    with Bars(*_make_columns(link), console=_make_console(), refresh_per_second=DRAWS_A_SECOND, transient=True) as bars:

        def end_phase(phase: str) -> None:
            task = bars.tasks[bars.task_ids.index(phases[phase])]
            bars.update(task.id, total=task.completed, visible=task.completed > 0)

        def progress(tick: Tick) -> None:
            if tick.phase not in phases:
                for earlier in list(phases):  # several may be open: another thread ends the run
                    end_phase(earlier)
                phases[tick.phase] = bars.add_task(escape_invisible(tick.phase), total=None, **NO_FIGURES)
            bars.update(phases[tick.phase], visible=True, **_figures_of(tick))

        yield progress


@contextmanager
def show_progress_of_each(screen: Screen, links: int) -> Iterator[Callable[[str], AbstractContextManager[Progress]]]:
    """Yield `follow`: `with follow(link) as progress` shows one of so many links while it works beside others."""
    if not _can_draw(screen):
        yield partial(show_progress, screen)
        return
    from rich.progress import Progress as Bars

    with Bars(*_make_columns(""), console=_make_console(), refresh_per_second=DRAWS_A_SECOND, transient=True) as bars:
        whole = bars.add_task("links", total=links, files=f"0/{links:,} links", of_bytes=False)

        @contextmanager
        def follow(link: str) -> Iterator[Progress]:
            task = bars.add_task(escape_invisible(link), total=None, **NO_FIGURES)
            logged, phase = _Lines(partial(screen.record, INFO), link, phases=True), ""

            def show(tick: Tick) -> None:
                nonlocal phase
                if tick.phase != phase:
                    phase = tick.phase
                    bars.reset(task, description=escape_invisible(f"{link} {phase}"))  # and its rate
                bars.update(task, **_figures_of(tick))
                logged(tick)

            try:
                yield show
            finally:
                bars.remove_task(task)
                bars.advance(whole)
                done = round(bars.tasks[0].completed)
                bars.update(whole, files=f"{done:,}/{links:,} links")

        yield follow


NO_FIGURES: dict[str, Any] = {"files": "", "of_bytes": False}


def _figures_of(tick: Tick) -> dict[str, Any]:
    of_bytes = tick.bytes_total > 0
    done, total = (tick.bytes_done, tick.bytes_total) if of_bytes else (tick.done, tick.total)
    files = f"{tick.done:,}/{tick.total:,} {tick.things}" if tick.total else f"{tick.done:,} {tick.things}"
    return {"completed": done, "total": total or None, "files": files, "of_bytes": of_bytes}


def _make_console() -> Console:
    from rich.console import Console

    return Console(file=cast(TextIO, _Terminal(sys.stderr)))
