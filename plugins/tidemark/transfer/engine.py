"""Send files from one store to another: verified, once, resumable. The entry point of the engine.

A file is `Sent` only when its bytes are durable at the target under their final name and their digest there equals the
one made at the source. Temporary failures are retried with back-off (`retries` times), from the blocks that arrived.
Source: DESIGN §3 and §5, research/transfer.md §5 and §6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tidemark.stores.protocol import Store, Tier
from tidemark.stores.retrying import without_retries
from tidemark.transfer.attempts import run_attempts
from tidemark.transfer.items import Failed, SendItem, SendOptions, Sent, Wire

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
        from tidemark.transfer.route import attempt_between

        between = Wire(without_retries(source), without_retries(target), replace(options, connections=1), on_bytes)
        yield from run_attempts(between, items, lambda left: attempt_between(between, left))
        return
    wire = Wire(without_retries(source), without_retries(target), options, on_bytes)
    if {wire.source.properties.tier, wire.target.properties.tier} == {Tier.PYTHON, Tier.LOCAL}:
        from tidemark.transfer.stream.ends import can_stream, open_stream

        if can_stream(wire):
            yield from run_attempts(wire, items, lambda left: open_stream(wire, left))
            return
    from tidemark.transfer.relay.relay import Relay

    yield from run_attempts(wire, items, lambda left: Relay(wire, left))
