"""Rounds until every file has its outcome: what may work again is tried again, from what is there.

A round that brought nothing costs one of the tries, and a pause; one that brought something gives them back: a file, or
more of the files than there was before. A file whose
bytes differ or which changed meanwhile has as many tries of its own, and each file has its time (`limits`). An error
that is not of the network may be one file's alone: files whose path is none fail first, and of a round that cannot tell
the rest are tried by halves, until it is known whose. Source: DESIGN §9, one level retries one failure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from tidemark.errors import CorruptionError, DiskFullError, TidemarkError, UnreachableError
from tidemark.stores.protocol import check_path
from tidemark.stores.retrying import SOON, RetryBudget
from tidemark.transfer.items import Failed, SendItem, Sent, TryAgain, Wire

Outcome = Sent | Failed | tuple[SendItem, TryAgain]


class Attempt(Protocol):
    """`iter_outcomes` once; `error` then says what ended it early, `kept_bytes` how much of large files a next one need not
    send, with what was there before it.

    `halves`: an error that is not of the network may be one file's, of which the round cannot tell.
    """

    error: TidemarkError | None
    halves: bool

    @property
    def kept_bytes(self) -> int: ...

    def iter_outcomes(self) -> Iterator[Outcome]: ...


def run_attempts(
    wire: Wire, items: Sequence[SendItem], make: Callable[[Sequence[SendItem]], Attempt]
) -> Iterator[Sent | Failed]:
    """An outcome for each of `items`, fewer when asked to stop."""
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
        """Leaves those `waiting` whose `error` may be one file's alone."""
        while self.waiting and not self._wire.is_stopped():
            one = self._make(list(self.waiting.values()))
            before, tried = len(self.waiting), self._tried.total()
            yield from self._collect_outcomes(one)
            self.error = one.error
            if self.error is not None and not isinstance(self.error, SOON):
                if odd := {item: error for item in self.waiting.values() if (error := _path_error(item)) is not None}:
                    self.error = None  # the others are none the worse for them
                    yield from self._fail_odd_paths(odd)
                    continue
                if one.halves and len(self.waiting) > 1 and not isinstance(self.error, DiskFullError):
                    return
                break
            told = len(self.waiting) < before
            if told or self._tried.total() > tried:
                self._kept = 0  # it was of a file that has its outcome, or begins anew
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
        ):  # it may be our own cut
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
        """Failed, once it was tried often enough."""
        self._tried[item.target_path] += 1
        return self._wire.make_failed(item, again.error) if self._tried[item.target_path] >= self._tries else None


def _fail_items(wire: Wire, items: Iterable[SendItem], error: TidemarkError) -> Iterator[Failed]:
    for item in items:
        yield wire.make_failed(item, error)


def _path_error(item: SendItem) -> TidemarkError | None:
    """Why one of its paths is none (`stores.protocol.check_path`)."""
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
