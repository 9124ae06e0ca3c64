"""Limits of time for what this process does with bytes it does not trust: kill timers that no library can ignore.

For processes that are somebody's to lose: a Spark worker, a child. What runs over is ended by the kernel (SIGXCPU, SIGALRM),
and whoever started the process tells it as the failure of that task alone.
"""

from __future__ import annotations

import resource
import signal
from types import TracebackType

CPU_SECONDS, WALL_SECONDS = 900, 1800


class TimeLimit:
    """While the block runs: at most so many seconds of CPU time more than the process has used, and of wall time, in which a
    disk that does not answer is counted too. 0 is no limit.

    A lower limit of CPU time that the process has already stays, and so does an alarm. Not nestable: the block's end takes
    away what its beginning set.
    """

    def __init__(self, cpu_seconds: int = CPU_SECONDS, wall_seconds: int = WALL_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_CPU)
        if self._cpu_seconds:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            allowed = int(usage.ru_utime + usage.ru_stime) + self._cpu_seconds + 1
            soft, hard = self._before
            if soft == resource.RLIM_INFINITY or soft > allowed:
                resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))
        self._alarm = self._wall_seconds > 0 and not any(signal.getitimer(signal.ITIMER_REAL))
        if self._alarm:
            signal.setitimer(signal.ITIMER_REAL, self._wall_seconds)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_CPU, self._before)
