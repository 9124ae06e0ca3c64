"""Read events ahead in a thread, so that a moment without events is seen: what came until then can be made durable."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

from tidemark.changes.connection.model import Block, RawEvent

MOST_AHEAD = 16
QUIET_SECONDS = 0.05


def read_ahead(events: Iterable[RawEvent | Block], on_quiet: Callable[[], object]) -> Iterator[RawEvent | Block]:
    """The events of a dump. `on_quiet` is called in the caller's thread, once for each quiet moment. Closing the dump ends
    the thread."""
    waiting: queue.Queue[RawEvent | Block | BaseException | None] = queue.Queue(MOST_AHEAD)
    given_up = threading.Event()

    def put(found: RawEvent | Block | BaseException | None) -> bool:
        while not given_up.is_set():
            try:
                waiting.put(found, timeout=1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for event in events:
                if not put(event):
                    return
            put(None)
        except BaseException as error:
            put(error)

    threading.Thread(target=read, name="read ahead", daemon=True).start()
    try:
        while True:
            try:
                found = waiting.get(timeout=QUIET_SECONDS)
            except queue.Empty:
                on_quiet()
                found = waiting.get()
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        given_up.set()
