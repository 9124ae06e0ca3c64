"""The one place where what may work again in seconds is tried again: exponential back-off with jitter, then the error.

A remote store's single calls are wrapped by `RetryingStore`; a transfer takes the store beneath it (`plain`) and wraps its
own tries, which go on from the blocks that are there. So no failure is retried on two levels (DESIGN §9).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tidemark.errors import OutcomeUnknownError, UnreachableError
from tidemark.stores.protocol import Store

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds; doubled from one to the next, plus up to as much jitter as the first

SOON = (UnreachableError, OutcomeUnknownError)


def try_again(
    act: Callable[[], T], tries: int, also: tuple[type[Exception], ...] = (), pause: Callable[[float], None] = time.sleep
) -> T:
    """`act()`, at most `tries` times while it raises SOON errors or `also`; the last error is raised as it is."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

    retrying = Retrying(
        stop=stop_after_attempt(max(1, tries)),
        wait=wait_exponential_jitter(initial=FIRST_PAUSE, max=LONGEST_PAUSE, jitter=FIRST_PAUSE),
        retry=retry_if_exception_type(SOON + also),
        sleep=pause,
        reraise=True,
    )
    return retrying(act)


def plain(store: Store) -> Store:
    """The store without its retries."""
    return store
