"""Send files from one store to another: verified, once, resumable. The entry point of the engine.

A file is `Sent` only when its bytes are durable at the target under their final name and their digest there equals the
one made at the source. Temporary failures are retried with back-off (`retries` times), from the blocks that arrived.
Each path between two stores is imported when it is taken. Source: DESIGN §3 and §5, research/transfer.md §5 and §6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores.protocol import Store, Tier
from tidemark.stores.retrying import without_retries
from tidemark.transfer.attempts import Attempt, Outcome, run_attempts
from tidemark.transfer.items import DIRECT, RELAYED, Failed, SendItem, SendOptions, Sent, Wire

if TYPE_CHECKING:
    from tidemark.stores.python.store import PythonStore
    from tidemark.transfer.stream.direct import DirectPath
    from tidemark.transfer.stream.session import Session

__all__ = ["Failed", "SendItem", "SendOptions", "Sent", "send_files"]


def send_files(
    source: Store,
    target: Store,
    items: Sequence[SendItem],
    options: SendOptions | None = None,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> Iterator[Sent | Failed]:
    """Send `items`. Yields each item's outcome once it is known, in any order, fewer if `should_stop` returned True.

    `on_bytes` gets wire bytes as they cross, resent ones included. If an end stays unreachable through all retries, all
    remaining items fail with the same error. Target paths must be distinct.
    """
    options = options or SendOptions()
    if options.direct and without_retries(source).properties.tier is without_retries(target).properties.tier is Tier.PYTHON:
        between = Wire(without_retries(source), without_retries(target), replace(options, connections=1), on_bytes)
        yield from run_attempts(between, items, lambda left: attempt_between(between, left))
        return
    wire = Wire(without_retries(source), without_retries(target), options, on_bytes)
    if {wire.source.properties.tier, wire.target.properties.tier} == {Tier.PYTHON, Tier.LOCAL} and can_stream(wire):
        yield from run_attempts(wire, items, lambda left: open_stream(wire, left))
        return
    from tidemark.transfer.relay.relay import Relay

    yield from run_attempts(wire, items, lambda left: Relay(wire, left))


def can_stream(wire: Wire) -> bool:
    """Whether one end is a disk of this machine and the other has python3."""
    from tidemark.stores.local import LocalStore
    from tidemark.stores.python.store import PythonStore

    ends = (type(wire.source), type(wire.target))
    return ends in ((PythonStore, LocalStore), (LocalStore, PythonStore))


def open_stream(wire: Wire, items: Sequence[SendItem]) -> Session:
    """Make one round (`transfer.attempts`) between two ends that `can_stream`."""
    from tidemark.stores.python.store import PythonStore
    from tidemark.transfer.stream.session import Session

    if isinstance(wire.source, PythonStore):
        from tidemark.transfer.stream.pull import Pull  # one of the two is needed, and loading them takes time

        return Session(wire, items, Pull)
    from tidemark.transfer.stream.push import Push

    return Session(wire, items, Push)


def attempt_between(wire: Wire, items: Sequence[SendItem]) -> Attempt:
    """Make one round (`transfer.attempts`) between two far ends with python3: directly, or through this machine if the
    source cannot reach the target.
    """
    from tidemark.stores.python.store import PythonStore
    from tidemark.transfer.relay.relay import Relay
    from tidemark.transfer.stream.direct import open_direct

    source, target = wire.source, wire.target
    assert isinstance(source, PythonStore) and isinstance(target, PythonStore)
    try:
        path = open_direct_path(source, target)
    except UnreachableError as away:  # the server may allow one connection only: that is enough for the relay
        wire.path = f"{RELAYED}{away.message}"
        return Relay(wire, items)
    except TidemarkError as error:
        return NotBegun(error)
    if isinstance(path, str):
        wire.path = RELAYED + path
        return Relay(wire, items)
    wire.path = DIRECT
    return open_direct(wire, path, items)


def open_direct_path(source: PythonStore, target: PythonStore) -> DirectPath | str:
    """Return the open path from source to target, or why there is none. Raises as `DirectPath`, except NoDirectPath.

    Opening the connection is the test; the same connection then sends. The source store keeps the result while it is open. A
    lost connection is opened again. If that fails, the relay goes on from the blocks that arrived.
    """
    from tidemark.transfer.stream.direct import DirectPath, NoDirectPath

    found = source.direct_routes.get(target.url)
    if isinstance(found, str):
        return found
    try:
        if isinstance(found, DirectPath):
            found.ensure_session(target)
        else:
            found = source.direct_routes[target.url] = DirectPath(source, target)
    except NoDirectPath as why:
        if isinstance(found, DirectPath):
            found.close()
        source.direct_routes[target.url] = reason = f"{source.connection.login.name} does not reach it: {why}"
        return reason
    return found


class NotBegun:
    """A round that an error ended before its first file."""

    halves = False
    kept_bytes = 0

    def __init__(self, error: TidemarkError) -> None:
        self.error: TidemarkError | None = error

    def iter_outcomes(self) -> Iterator[Outcome]:
        return iter(())
