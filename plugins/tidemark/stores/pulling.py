"""Rounds of a pull until every file has its outcome: what may work again is tried again, from the blocks that are there.

A round that brought nothing costs one of the tries, and a pause; one that brought bytes gives them back. A file whose bytes
differ or which changed meanwhile has as many tries of its own. Source: DESIGN §9, one level retries one failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tidemark.errors import TidemarkError
from tidemark.stores.local import LocalStore
from tidemark.stores.pull import Pull
from tidemark.stores.python_store import PythonStore
from tidemark.stores.retrying import SOON, Patience
from tidemark.stores.transfer_items import Failed, SendItem, Sent, Wire

_OUTCOMES = (Sent, Failed)


def can_pull(wire: Wire) -> bool:
    return isinstance(wire.source, PythonStore) and isinstance(wire.target, LocalStore)


def pull_all(wire: Wire, items: Sequence[SendItem]) -> Iterator[Sent | Failed]:
    """`transfer.send` from a far end with python3 to a local disk."""
    assert isinstance(wire.source, PythonStore) and isinstance(wire.target, LocalStore)
    tries = wire.options.retries + 1
    waiting = {item.target_path: item for item in items}
    tried: Counter[str] = Counter()  # failed tries of the file itself, by target path
    patience = Patience(tries)
    while waiting and not wire.stopped():
        pull = Pull(wire, wire.source, wire.target, list(waiting.values()))
        done = 0
        for outcome in pull.outcomes():
            if isinstance(outcome, _OUTCOMES):
                del waiting[outcome.item.target_path]
                done += 1
                yield outcome
                continue
            item, again = outcome
            tried[item.target_path] += 1
            if tried[item.target_path] >= tries:
                del waiting[item.target_path]
                yield wire.failed(item, again.error)
        if pull.error is not None and not isinstance(pull.error, SOON):
            yield from _all_failed(wire, waiting.values(), pull.error)
            return
        if done or (pull.error is not None and pull.arrived_bytes):
            patience.progress()
        elif waiting and not wire.stopped() and not patience.failed() and pull.error is not None:
            yield from _all_failed(wire, waiting.values(), pull.error)
            return


def _all_failed(wire: Wire, items: Iterable[SendItem], error: TidemarkError) -> Iterator[Failed]:
    for item in items:
        yield wire.failed(item, error)
