"""Python's collector of cycles, kept from going through rows and facts that hold no cycles again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def look_seldom() -> None:
    """For a process that makes many rows: looking for cycles among them was a tenth of a sync, of a check, of a transfer."""
    gc.set_threshold(100_000, 50, 50)


@contextmanager
def without_collector() -> Iterator[None]:
    """For a million new tuples at once."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
