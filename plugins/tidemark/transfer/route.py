"""Which way files go between two far ends: from the one to the other, or where it cannot reach it, through this machine.

Reaching it is the probe: what was opened for it is what sends. The answer is kept with the source for as long as that is
open; a line that is lost is opened again, and where that fails the files go on by the relay, from the blocks that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores.python.store import PythonStore
from tidemark.transfer.attempts import Attempt, Outcome
from tidemark.transfer.items import DIRECT, RELAYED, SendItem, Wire
from tidemark.transfer.relay.relay import Relay
from tidemark.transfer.stream.direct import Direct, DirectPath, NoDirectPath


def attempt_between(wire: Wire, items: Sequence[SendItem]) -> Attempt:
    """One round (`attempts`) between two ends with python3."""
    source, target = wire.source, wire.target
    assert isinstance(source, PythonStore) and isinstance(target, PythonStore)
    try:
        road = open_direct_path(source, target)
    except UnreachableError as away:  # it may be that it lets nobody in twice: the relay needs one connection alone
        wire.path = f"{RELAYED}{away.message}"
        return Relay(wire, items)
    except TidemarkError as error:
        return NotBegun(error)
    if isinstance(road, str):
        wire.path = RELAYED + road
        return Relay(wire, items)
    wire.path = DIRECT
    return Direct(wire, road, items)


def open_direct_path(source: PythonStore, target: PythonStore) -> DirectPath | str:
    """The way from one to the other, open; or why there is none. Raises as `DirectPath` does, but NoRoad."""
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
