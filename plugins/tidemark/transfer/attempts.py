"""Run rounds until every file has its outcome. Retry what may work again, from the bytes that arrived.

A round without progress costs one try and a pause. A round with progress (a file, or more bytes kept) resets the tries. A
file whose bytes differ or which changed meanwhile has as many tries of its own, and each file has its time (`limits`).
An error that is not of the network may be caused by one file. Files with an invalid path fail first. If the round cannot
name the file, the rest is tried by halves until it is found. Source: DESIGN §9, one level retries one failure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from tidemark.errors import CorruptionError, DiskFullError, TidemarkError, UnreachableError
from tidemark.stores.protocol import check_path
from tidemark.stores.retrying import SOON, RetryBudget
from tidemark.transfer.items import Failed, SendItem, Sent, TryAgain, Wire
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
Outcome = Sent | Failed | tuple[SendItem, TryAgain]


class Attempt(Protocol):
    """One round. Call `iter_outcomes` once. `error` then says what ended the round early.

    `kept_bytes`: bytes of large files that the next round need not send, including those of earlier rounds. `halves`: an
    error that is not of the network may be caused by one file, and the round cannot say which.
    """

    halves: bool

    @property
    def error(self) -> TidemarkError | None: ...

    @property
    def kept_bytes(self) -> int: ...

    def iter_outcomes(self) -> Iterator[Outcome]: ...


def run_attempts(
    wire: Wire, items: Sequence[SendItem], make: Callable[[Sequence[SendItem]], Attempt]
) -> Iterator[Sent | Failed]:
    """Yield an outcome for each of `items`, fewer when asked to stop. `make` makes a round for items."""
    groups = deque([list(items)])
    while groups:
        group = _Group(wire, groups.popleft(), make)
        yield from group.try_files()
        if wire.is_stopped():
            return
        if isinstance(group.error, (*SOON, DiskFullError)):
            for left in groups:
                yield from _fail_items(wire, left, group.error)
            return
        if len(group.waiting) > 1:
            half = len(group.waiting) // 2
            left = list(group.waiting.values())
            groups.extendleft([left[half:], left[:half]])


class _Group:
    def __init__(self, wire: Wire, items: Sequence[SendItem], make: Callable[[Sequence[SendItem]], Attempt]) -> None:
        self.waiting = {item.target_path: item for item in items}
        self.error: TidemarkError | None = None
        self._wire = wire
        self._make = make
        self._tries = wire.options.retries + 1
        self._tried: Counter[str] = Counter()  # failed tries of the file itself, by target path
        self._patience = RetryBudget(self._tries)
        self._kept = 0  # the most that a round kept since the last outcome

    def try_files(self) -> Iterator[Sent | Failed]:
        """Run rounds. Leaves files in `waiting` if `error` may be caused by one of them."""
        while self.waiting and not self._wire.is_stopped():
            one = self._make(list(self.waiting.values()))
            before, tried = len(self.waiting), self._tried.total()
            yield from self._collect_outcomes(one)
            self.error = one.error
            if self.error is not None:
                log.debug("a round of %d files ended early: %s", before, self.error)
            if self.error is not None and not isinstance(self.error, SOON):
                if odd := {item: error for item in self.waiting.values() if (error := _path_error(item)) is not None}:
                    self.error = None  # the others are not affected
                    yield from self._fail_odd_paths(odd)
                    continue
                if one.halves and len(self.waiting) > 1 and not isinstance(self.error, DiskFullError):
                    return
                break
            told = len(self.waiting) < before
            if told or self._tried.total() > tried:
                self._kept = 0  # those bytes were of a file that has its outcome or starts again
            if told or (self.error is not None and one.kept_bytes > self._kept):
                self._kept = 0 if told else one.kept_bytes
                self._patience.reset_failures()
            elif self.waiting and not self._wire.is_stopped() and not self._patience.pause_before_retry():
                if self.error is None and self._tried.total() > tried:
                    continue  # its files have tries of their own
                self.error = self.error or _no_progress_error(self._wire)
                break
        if self.error is not None and not (
            isinstance(self.error, SOON) and self._wire.is_stopped()
        ):  # that error may come from our own cut
            yield from _fail_items(self._wire, self.waiting.values(), self.error)
            self.waiting.clear()

    def _fail_odd_paths(self, odd: dict[SendItem, TidemarkError]) -> Iterator[Failed]:
        for item, error in odd.items():
            del self.waiting[item.target_path]
            yield self._wire.make_failed(item, error)

    def _collect_outcomes(self, one: Attempt) -> Iterator[Sent | Failed]:
        for outcome in one.iter_outcomes():
            told = self._count_try(*outcome) if isinstance(outcome, tuple) else outcome
            if told is not None:
                del self.waiting[told.item.target_path]
                yield told

    def _count_try(self, item: SendItem, again: TryAgain) -> Failed | None:
        """Count a failed try of a file. Returns Failed once it has no tries left."""
        self._tried[item.target_path] += 1
        return self._wire.make_failed(item, again.error) if self._tried[item.target_path] >= self._tries else None


def _fail_items(wire: Wire, items: Iterable[SendItem], error: TidemarkError) -> Iterator[Failed]:
    for item in items:
        yield wire.make_failed(item, error)


def _path_error(item: SendItem) -> TidemarkError | None:
    """Return why one of its paths is invalid (`stores.protocol.check_path`), else None."""
    try:
        check_path(item.source_path)
        check_path(item.target_path)
    except CorruptionError as error:
        return error
    return None


def _no_progress_error(wire: Wire) -> UnreachableError:
    return UnreachableError(
        f"the transfer from {wire.source.url} to {wire.target.url} ended several times without a file and without an error",
        hint="run again; if it stays so, report it with the log of this run",
        subject=wire.source.url,
    )
