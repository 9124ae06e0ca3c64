"""Pauses between tries: longer each time, never all at once, of what may work again soon alone."""

from __future__ import annotations

import pytest

from tidemark.errors import HostKeyError, PermanentError, Retry, SourceVanishedError, UnreachableError
from tidemark.stores.retrying import FIRST_PAUSE, LONGEST_PAUSE, SOON, RetryBudget, pause_after, try_again


def test_a_pause_doubles_up_to_the_longest_and_differs_from_try_to_try() -> None:
    for failures in (1, 2, 3, 10):
        middle = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1))
        pauses = [pause_after(failures) for _ in range(200)]
        assert all(0.5 * middle <= pause <= 1.5 * middle for pause in pauses)
        assert max(pauses) - min(pauses) > 0.5 * middle  # of two hundred, chance keeps none so close together


def test_single_calls_and_rounds_of_a_transfer_pause_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.stores.retrying.pause_after", float)
    calls, rounds = [], []

    def fails() -> None:
        raise UnreachableError("away")

    with pytest.raises(UnreachableError):
        try_again(fails, 4, pause=calls.append)
    patience = RetryBudget(4, pause=rounds.append)
    while patience.pause_before_retry():
        continue
    assert calls == rounds == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("error", [HostKeyError("other"), PermanentError("no"), SourceVanishedError("gone"), ValueError()])
def test_what_will_not_work_again_soon_is_not_tried_again(error: Exception) -> None:
    tries = []

    def fails() -> None:
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        try_again(fails, 5, pause=lambda _seconds: None)
    assert len(tries) == 1


def test_all_that_is_tried_again_is_of_the_soon_class() -> None:
    assert all(kind.retry is Retry.SOON for kind in SOON)
