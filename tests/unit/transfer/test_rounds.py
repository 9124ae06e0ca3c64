"""What gives the tries back: a file, or more of one than any round before brought; nothing else, so there is an end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.memory_store import MemoryStore
from tidemark.errors import TidemarkError, UnreachableError
from tidemark.stores import retrying
from tidemark.transfer.attempts import Outcome, run_attempts
from tidemark.transfer.items import Failed, SendItem, SendOptions, Sent, Wire

ITEMS = [SendItem(f"{n}", f"l/{n}", 1000) for n in range(3)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_PAUSE", 0.0)


class Cut:
    """A round that the network ends."""

    halves = False

    def __init__(self, kept: int, sends: Sequence[SendItem] = ()) -> None:
        self.error: TidemarkError | None = UnreachableError("cut", hint="run again")
        self.kept_bytes = kept
        self._sends = sends

    def iter_outcomes(self) -> Iterator[Outcome]:
        for item in self._sends:
            yield Sent(item, "", item.size, "target")


def count(kept: Iterator[Cut], limit: int = 100) -> tuple[int, list[Sent | Failed]]:
    made: list[Sequence[SendItem]] = []

    def make(items: Sequence[SendItem]) -> Cut:
        made.append(items)
        assert len(made) < limit, "it would go on for ever"
        return next(kept)

    wire = Wire(MemoryStore(), MemoryStore(), SendOptions(retries=3), lambda _count: None)
    outcomes = list(run_attempts(wire, ITEMS, make))
    return len(made), outcomes


def test_bytes_that_no_later_round_goes_on_from_give_no_tries_back_for_ever() -> None:
    made, outcomes = count(Cut(800 + number % 7) for number in range(1000))
    assert made <= 12 and len(outcomes) == len(ITEMS) and all(isinstance(one, Failed) for one in outcomes)


def test_a_line_that_gets_on_by_little_between_two_cuts_is_never_given_up() -> None:
    made, outcomes = count(Cut(10 * number, ITEMS if number == 90 else ()) for number in range(1, 100))
    assert made == 90 and all(isinstance(one, Sent) for one in outcomes)


def test_after_a_files_outcome_the_bytes_of_the_others_count_from_their_own() -> None:
    def cuts() -> Iterator[Cut]:
        for left, item in enumerate(ITEMS):
            yield from (Cut(kept) for kept in range(900 - 300 * left, 1000 - 300 * left, 10))
            yield Cut(0, [item])

    made, outcomes = count(cuts())
    assert made == 33 and all(isinstance(one, Sent) for one in outcomes)
