"""Choose the path between two far ends: directly, or through this machine if the source cannot reach the target.

Opening the direct connection is the test; the same connection then sends. The source store keeps the result while it is
open. A lost connection is opened again. If that fails, the relay goes on from the blocks that arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores.python.store import PythonStore
from tidemark.transfer.attempts import Attempt, Outcome
from tidemark.transfer.items import DIRECT, RELAYED, SendItem, Wire
from tidemark.transfer.relay.relay import Relay
from tidemark.transfer.stream.direct import DirectPath, NoDirectPath, open_direct


def attempt_between(wire: Wire, items: Sequence[SendItem]) -> Attempt:
    """Make one round (`attempts`) between two far ends with python3."""
    source, target = wire.source, wire.target
    assert isinstance(source, PythonStore) and isinstance(target, PythonStore)
    try:
        road = open_direct_path(source, target)
    except UnreachableError as away:  # the server may allow one connection only: that is enough for the relay
        wire.path = f"{RELAYED}{away.message}"
        return Relay(wire, items)
    except TidemarkError as error:
        return NotBegun(error)
    if isinstance(road, str):
        wire.path = RELAYED + road
        return Relay(wire, items)
    wire.path = DIRECT
    return open_direct(wire, road, items)


def open_direct_path(source: PythonStore, target: PythonStore) -> DirectPath | str:
    """Return the open path from source to target, or why there is none. Raises as `DirectPath`, except NoDirectPath."""
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
