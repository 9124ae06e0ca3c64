"""Who gets which slots, by number: as even as can be, with no move too many, whatever joined and left before."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.cluster.slots.balance import (
    Balance,
    Owners,
    balance_of,
    changed_headers,
    even_slots,
    even_weights,
    original_balance,
)
from tidemark.errors import UsageError

NODES = [f"n{number}" for number in range(12)]
CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=20)


def sequence(slots: int, changes: list[tuple[bool, int]], balance: Balance) -> list[tuple[Owners, Owners, list[str]]]:
    """(before, after, nodes) of every change that can be made."""
    members = ["n0", "n1", "n2"]
    owners = balance(("nobody",) * slots, members)
    steps = [(("nobody",) * slots, owners, list(members))]
    for joins, number in changes:
        name = NODES[number]
        if joins != (name in members) and (joins or len(members) > 1):
            members = sorted([*members, name]) if joins else [other for other in members if other != name]
            after = balance(owners, members)
            steps.append((owners, after, list(members)))
            owners = after
    return steps


@given(CHANGES, st.integers(12, 500))
def test_even_slots_differ_by_one_and_move_no_more_than_they_must(changes: list[tuple[bool, int]], slots: int) -> None:
    for before, after, nodes in sequence(slots, changes, even_slots):
        counts = Counter(after)
        held = [counts[name] for name in nodes]
        assert set(after) <= set(nodes) and max(held) - min(held) <= 1
        had = Counter(before)
        least, over = divmod(slots, len(nodes))
        richest = sorted((had[name] for name in nodes), reverse=True)
        kept = sum(min(count, least + (rank < over)) for rank, count in enumerate(richest))
        assert len(changed_headers(before, after)) == slots - kept


@pytest.mark.parametrize("balance", [even_slots, even_weights({7: 10})])
def test_the_same_question_has_the_same_answer(balance: Balance) -> None:
    before = balance(("nobody",) * 50, ["a", "b", "c"])
    assert balance(before, ["a", "b", "c"]) == before
    assert balance(before, ["a", "c"]) == balance(before, ["a", "c"])


def test_the_settings_name_the_strategy() -> None:
    before, nodes = ("a",) * 10 + ("b",) * 10, ["a", "b", "c"]
    sizes = {0: 500, 19: 1_000}
    for name, balance in {
        "slots": even_slots,
        "bytes": even_weights(sizes),
        "writes": even_weights(sizes),
        "compat": original_balance,
    }.items():
        assert balance_of(name, sizes)(before, nodes) == balance(before, nodes)
    with pytest.raises(UsageError, match="evenly") as refused:
        balance_of("evenly", {})
    assert "slots, bytes, writes, compat" in refused.value.hint
