"""Progress of a long operation: its ticks, its rate, and one text format for terminal, `status` and Airflow's pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

PACE_SECONDS = 15.0  # the window of the rate


@dataclass(frozen=True)
class Tick:
    """One progress report. `done`/`total` count `things`, `bytes_done`/`bytes_total` bytes; totals are 0 when unknown."""

    phase: str
    done: int = 0
    total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    things: str = "files"


Progress = Callable[[Tick], None]


def ignore_progress(_tick: Tick) -> None:
    """A Progress that shows nothing."""


@dataclass(frozen=True)
class Figures:
    """A tick with its rate in bytes a second, and `left`: the seconds to the end at that rate, None when unknown."""

    tick: Tick
    rate: float = 0.0
    left: float | None = None


class Pace:
    """The transfer rate over the last PACE_SECONDS. A new phase starts over."""

    def __init__(self) -> None:
        self._beats: deque[tuple[float, int]] = deque()
        self._phase = ""

    def figures_at(self, tick: Tick, now: float) -> Figures:
        """Add a tick and compute its figures. `now` is in seconds of a monotonic clock."""
        if tick.phase != self._phase:
            self._phase = tick.phase
            self._beats.clear()
        self._beats.append((now, tick.bytes_done))
        while now - self._beats[0][0] > PACE_SECONDS and len(self._beats) > 2:
            self._beats.popleft()
        since, before = self._beats[0]
        rate = max(0.0, (tick.bytes_done - before) / (now - since)) if now > since else 0.0
        known = rate > 0 and tick.bytes_total > 0
        return Figures(tick, rate, max(0, tick.bytes_total - tick.bytes_done) / rate if known else None)


def format_figures(figures: Figures) -> str:
    """Format figures as `transfer_files: 12 of 40 files, 1.2 GB of 3.0 GB, 20.0 MB/s, 1:30 left`."""
    tick = figures.tick
    words = [f"{tick.done:,} of {tick.total:,} {tick.things}" if tick.total else f"{tick.done:,} {tick.things}"]
    if tick.bytes_done or tick.bytes_total:
        words.append(format_size(tick.bytes_done) + (f" of {format_size(tick.bytes_total)}" if tick.bytes_total else ""))
    if figures.rate:
        words.append(f"{format_size(figures.rate)}/s")
    if figures.left is not None:
        words.append(f"{format_duration(figures.left)} left")
    return f"{tick.phase}: {', '.join(words)}"


def format_count(count: int, one: str, many: str = "") -> str:
    """Format a number of things: `1 file`, `2,000 files`. `many`: the words behind other numbers, if not `one` and an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_size(count: int | float | None) -> str:
    """Format a number of bytes in powers of 1000: 20.5 MB."""
    number = float(count or 0)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def format_elapsed(seconds: float | None) -> str:
    """Format how long something took: 2.3 s, from a minute on as m:ss; "" if it is unknown."""
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def format_duration(seconds: float) -> str:
    """Format seconds as m:ss or h:mm:ss: 1:30, 2:03:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
