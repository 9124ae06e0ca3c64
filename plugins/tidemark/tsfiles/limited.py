"""A limit of CPU time for what this process does with bytes it does not trust: a kill timer that no library can ignore.

For processes that are somebody's to lose: a Spark worker, a child. What runs over is ended by the kernel (SIGXCPU), and
whoever started the process tells it as the failure of that task alone.
"""

from __future__ import annotations

import resource
from types import TracebackType


class CpuLimit:
    """While the block runs, at most `seconds` of CPU time more than the process has used; 0 is no limit.

    A lower limit that the process has already stays. Not nestable: the block's end takes the limit away that was there
    at its beginning.
    """

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_CPU)
        if self._seconds:
            usage = resource.getrusage(resource.RUSAGE_SELF)
            allowed = int(usage.ru_utime + usage.ru_stime) + self._seconds + 1
            soft, hard = self._before
            if soft == resource.RLIM_INFINITY or soft > allowed:
                resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, self._before)
