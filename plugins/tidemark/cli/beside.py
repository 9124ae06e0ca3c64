"""Work beside each other, each in a thread, that Ctrl-C and signals end as they end work in the main thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidemark.progress import Progress, Tick

STOP_SECONDS = 10.0  # that threads have to end once they are asked; then the end of this process ends them
LOOK_SECONDS = 0.2  # how soon a signal is seen


class Asked(BaseException):
    """The command is to stop: raised in a thread where its work next tells how far it is."""


def run_beside(
    lanes: Iterable[tuple[Sequence[str], int]], act: Callable[[str, Callable[[Progress], Progress]], None]
) -> None:
    """Call `act(name, stoppable)` for the names of each lane, at most so many of a lane at once, in their order.

    `act` passes its Progress through `stoppable`. Raises what stops the main thread, or the first error that `act` raised;
    then nothing else is begun. A thread that does not end in time dies with this process. Its lease is that of a dead
    process, so the next run goes on at once.
    """
    stop = threading.Event()
    raised: list[BaseException] = []

    def stoppable(progress: Progress) -> Progress:
        def show(tick: Tick) -> None:
            if stop.is_set():
                raise Asked
            progress(tick)

        return show

    def work(left: deque[str]) -> None:
        while not stop.is_set():
            try:
                name = left.popleft()
            except IndexError:
                return
            threading.current_thread().name = name  # for the log
            try:
                act(name, stoppable)
            except BaseException as error:
                raised.append(error)
                stop.set()

    threads = [
        threading.Thread(target=work, args=(queue,), daemon=True)
        for names, at_once in lanes
        for queue in [deque(names)]
        for _ in range(min(at_once, len(names)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
    except BaseException:
        stop.set()
        give_up = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        raise
    if raised:
        raise raised[0]
