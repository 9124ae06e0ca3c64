"""Send files from one store to another: verified, once, resumed. The door of the engine; nothing else calls its modules.

A file is `Sent` only when its bytes are durable at the target under their final name and their digest there equals the
one made at the source. What fails soon is tried again with back-off (`retries` times), from the blocks that are there.
Source: DESIGN §3 and §5, research/transfer.md §5 and §6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from tidemark.errors import TidemarkError
from tidemark.stores.protocol import Store
from tidemark.stores.retrying import SOON, plain, try_again
from tidemark.stores.transfer_items import SMALL, Failed, SendItem, SendOptions, Sent, TryAgain, Wire
from tidemark.stores.transfer_large import LargeFile
from tidemark.stores.transfer_small import Outcome, bundles, send_bundle

__all__ = ["Failed", "SendItem", "SendOptions", "Sent", "send"]


def send(
    source: Store,
    target: Store,
    items: Sequence[SendItem],
    options: SendOptions | None = None,
    on_bytes: Callable[[int], None] = lambda _count: None,
) -> Iterator[Sent | Failed]:
    """Send `items`, in order but for retries; yields an outcome an item as it is known, fewer when `should_stop` said so.

    `on_bytes` gets wire bytes as they cross, resent ones included. Once an end stays unreachable through all retries, the
    rest of the items fail with the same error, at once. Target paths must differ from one another.
    """
    options = options or SendOptions()
    wire = Wire(plain(source), plain(target), options, on_bytes)
    sending = _Sending(wire)
    limit = min(SMALL, options.block_bytes)
    for small, group in groupby(items, key=lambda item: item.size <= limit):
        for batch in bundles(list(group)) if small else ([item] for item in group):
            if wire.stopped():
                return
            yield from sending.bundle(batch) if small else sending.large(batch[0])


class _Sending:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.down: TidemarkError | None = None  # an end that stayed unreachable through all retries

    def large(self, item: SendItem) -> Iterator[Sent | Failed]:
        if self.down:
            yield self.wire.failed(item, self.down)
            return
        try:
            sent = self._tries(lambda: LargeFile(self.wire, item).send())
        except TryAgain as given_up:
            yield self.wire.failed(item, given_up.error)
        except TidemarkError as error:
            self._note(error)
            yield self.wire.failed(item, error)
        else:
            if sent is not None:  # None: asked to stop between two blocks
                yield sent

    def bundle(self, items: Sequence[SendItem]) -> Iterator[Sent | Failed]:
        waiting = list(items)
        outcomes: dict[SendItem, Outcome] = {}

        def once() -> None:
            outcomes.update(send_bundle(self.wire, waiting))
            waiting[:] = [item for item in waiting if isinstance(outcomes[item], TryAgain)]
            if waiting:
                first = outcomes[waiting[0]]
                assert isinstance(first, TryAgain)
                raise first

        if self.down:
            yield from (self.wire.failed(item, self.down) for item in items)
            return
        try:
            self._tries(once)
        except TryAgain:
            outcomes.update({item: self._given_up(item, outcomes[item]) for item in waiting})
        except TidemarkError as error:
            self._note(error)
            if self.down or len(waiting) == 1:
                outcomes.update({item: self.wire.failed(item, error) for item in waiting})
            else:  # one of them is the trouble: each alone
                for item in waiting:
                    outcomes.update({one.item: one for one in self.bundle([item])})
        yield from (outcome for outcome in outcomes.values() if not isinstance(outcome, TryAgain))

    def _tries(self, act: Callable[[], Sent | None]) -> Sent | None:
        return try_again(act, self.wire.options.retries + 1, also=(TryAgain,))

    def _given_up(self, item: SendItem, outcome: Outcome) -> Outcome:
        return self.wire.failed(item, outcome.error) if isinstance(outcome, TryAgain) else outcome

    def _note(self, error: TidemarkError) -> None:
        if isinstance(error, SOON):
            self.down = error
