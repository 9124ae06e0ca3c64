"""Decide whether files can stream between two stores, and make the round of such a transfer."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.stores.local import LocalStore
from tidemark.stores.python.store import PythonStore
from tidemark.transfer.items import SendItem, Wire
from tidemark.transfer.stream.session import Session


def can_stream(wire: Wire) -> bool:
    """Whether one end is a disk of this machine and the other has python3."""
    ends = (type(wire.source), type(wire.target))
    return ends in ((PythonStore, LocalStore), (LocalStore, PythonStore))


def open_stream(wire: Wire, items: Sequence[SendItem]) -> Session:
    """Make one round (`transfer.attempts`) between two ends that `can_stream`."""
    if isinstance(wire.source, PythonStore):
        from tidemark.transfer.stream.pull import Pull  # one of the two is needed, and loading them takes time

        return Session(wire, items, Pull)
    from tidemark.transfer.stream.push import Push

    return Session(wire, items, Push)
