"""Rounds of a pull or a push until every file has its outcome: what may work again is tried again, from the blocks there.

A round that brought nothing that stays costs one of the tries, and a pause; one that brought an outcome, or bytes of large
files (the next goes on behind them), gives the tries back. A file whose bytes differ or which changed meanwhile has as many
tries of its own, and each file has its time (`file_deadline`). Source: DESIGN §9, one level retries one failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tidemark.errors import CorruptionError, TidemarkError, UnreachableError
from tidemark.stores.landing import check_path
from tidemark.stores.local import LocalStore
from tidemark.stores.pull import Pull
from tidemark.stores.push import Push
from tidemark.stores.python_store import PythonStore
from tidemark.stores.retrying import SOON, Patience
from tidemark.stores.transfer_items import Failed, SendItem, Sent, Wire
from tidemark.stores.transfer_round import Round

_OUTCOMES = (Sent, Failed)


def can_stream(wire: Wire) -> bool:
    """One end is a disk of this machine, the other has python3."""
    ends = (type(wire.source), type(wire.target))
    return ends in ((PythonStore, LocalStore), (LocalStore, PythonStore))


def stream_all(wire: Wire, items: Sequence[SendItem]) -> Iterator[Sent | Failed]:
    """`transfer.send` between two ends that `can_stream`."""
    tries = wire.options.retries + 1
    waiting = {item.target_path: item for item in items}
    tried: Counter[str] = Counter()  # failed tries of the file itself, by target path
    patience = Patience(tries)
    while waiting and not wire.stopped():
        one = _round(wire, list(waiting.values()))
        one.line.deadlines = wire.deadlines
        done = retold = 0
        for outcome in one.outcomes():
            if isinstance(outcome, _OUTCOMES):
                del waiting[outcome.item.target_path]
                done += 1
                yield outcome
                continue
            item, again = outcome
            retold += 1
            tried[item.target_path] += 1
            if tried[item.target_path] >= tries:
                del waiting[item.target_path]
                yield wire.failed(item, again.error)
        if one.error is not None and not isinstance(one.error, SOON):
            odd = {item: error for item in waiting.values() if (error := _no_path(item)) is not None}
            for item, error in odd.items():
                del waiting[item.target_path]
                yield wire.failed(item, error)
            if odd:  # the others are none the worse for them
                continue
            yield from _all_failed(wire, waiting.values(), one.error)
            return
        if done or (one.error is not None and one.arrived_bytes):
            patience.progress()
        elif waiting and not wire.stopped() and not patience.failed() and (one.error is not None or not retold):
            yield from _all_failed(wire, waiting.values(), one.error or _nowhere(wire))
            return


def _nowhere(wire: Wire) -> UnreachableError:
    far = wire.source if isinstance(wire.source, PythonStore) else wire.target
    return UnreachableError(
        f"the transfer with {far.url} ended several times without a file and without an error",
        hint="run again; if it stays so, report it with the log of this run",
        subject=far.url,
    )


def _round(wire: Wire, items: Sequence[SendItem]) -> Round:
    if isinstance(wire.source, PythonStore):
        assert isinstance(wire.target, LocalStore)
        return Pull(wire, wire.source, wire.target, items)
    assert isinstance(wire.source, LocalStore) and isinstance(wire.target, PythonStore)
    return Push(wire, wire.source, wire.target, items)


def _no_path(item: SendItem) -> TidemarkError | None:
    """Why one of its paths is none (`landing.check_path`)."""
    try:
        check_path(item.source_path)
        check_path(item.target_path)
    except CorruptionError as error:
        return error
    return None


def _all_failed(wire: Wire, items: Iterable[SendItem], error: TidemarkError) -> Iterator[Failed]:
    for item in items:
        yield wire.failed(item, error)
