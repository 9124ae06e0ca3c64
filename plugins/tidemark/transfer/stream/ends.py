"""Decide whether files can stream between two stores, and make the round of such a transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemark.stores.local import LocalStore
from tidemark.stores.python.store import PythonStore
from tidemark.transfer.items import SendItem, Wire

if TYPE_CHECKING:
    from tidemark.transfer.stream.pull import Pull
    from tidemark.transfer.stream.push import Push


def can_stream(wire: Wire) -> bool:
    """Whether one end is a disk of this machine and the other has python3."""
    ends = (type(wire.source), type(wire.target))
    return ends in ((PythonStore, LocalStore), (LocalStore, PythonStore))


def open_stream(wire: Wire, items: Sequence[SendItem]) -> Pull | Push:
    """Make one round (`transfer.attempts`) between two ends that `can_stream`."""
    source, target = wire.source, wire.target
    if isinstance(source, PythonStore) and isinstance(target, LocalStore):
        from tidemark.transfer.stream.pull import Pull  # one of the two is needed, and loading them takes time

        return Pull(wire, source, target, items)
    assert isinstance(source, LocalStore) and isinstance(target, PythonStore)
    from tidemark.transfer.stream.push import Push

    return Push(wire, source, target, items)
