"""Shares of a cap: fair, never over it together, whoever comes, goes, dies or is late to look."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.ledger.sender.bandwidth import IDLE, fair_shares, next_rate, next_wish

CAP = 100.0
WISHES = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.floats(0, 2 * CAP), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("wishes", "shares"),
    [
        ((100.0,), (100.0,)),
        ((100.0, 100.0), (50.0, 50.0)),
        ((10.0, 100.0, 100.0), (10.0, 45.0, 45.0)),
        ((10.0, 20.0), (10.0, 20.0)),
        ((0.0, 300.0), (0.0, 100.0)),
        ((100.0,) * 5, (20.0,) * 5),
    ],
)
def test_what_one_does_not_want_the_others_share(wishes: tuple[float, ...], shares: tuple[float, ...]) -> None:
    found = fair_shares(CAP, {str(number): wish for number, wish in enumerate(wishes)})
    assert tuple(found.values()) == pytest.approx(sorted(shares))


@given(WISHES)
def test_shares_are_fair(wishes: dict[str, float]) -> None:
    """All of the cap is given as long as somebody wants it; who gets less than wished for has no less than anybody."""
    found = fair_shares(CAP, wishes)
    assert all(0.0 <= found[name] <= wish for name, wish in wishes.items())
    assert sum(found.values()) == pytest.approx(min(CAP, sum(wishes.values())))
    most = max(found.values())
    assert all(found[name] >= most * (1 - 1e-9) for name, wish in wishes.items() if found[name] < wish * (1 - 1e-9))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["looks", "looks", "looks", "dies", "wishes"]),
            st.sampled_from("abcde"),
            st.floats(0, 2 * CAP),
        ),
        max_size=60,
    )
)
def test_never_more_than_the_cap_and_all_of_it_once_everybody_looked_twice(steps: list[tuple[str, str, float]]) -> None:
    wishes: dict[str, float] = {}
    rates: dict[str, float] = {}

    def look(name: str) -> None:
        rates[name] = next_rate(CAP, name, wishes, rates)
        assert sum(rates.values()) <= CAP * (1 + 1e-9)

    for what, name, wish in steps:
        if what == "dies":
            wishes.pop(name, None)
            rates.pop(name, None)
        else:
            if what == "wishes" or name not in wishes:
                wishes[name] = wish
            look(name)
    for name in [*wishes, *wishes]:
        look(name)
    assert rates == pytest.approx(fair_shares(CAP, wishes) if wishes else {})


def test_who_needs_little_of_what_it_has_gives_up_the_rest_and_gets_it_back() -> None:
    wish = next_wish(CAP, CAP, CAP, rate=50.0, used=5.0)
    assert wish == 10.0
    assert next_wish(wish, CAP, CAP, rate=wish, used=5.0) == wish, "it stays where it is"
    assert next_wish(wish, CAP, CAP, rate=wish, used=9.0) == CAP
    assert next_wish(CAP, CAP, CAP, rate=50.0, used=0.0) == CAP * IDLE, "enough to begin with"
    assert next_wish(CAP, 30.0, CAP, rate=0.0, used=0.0) == 30.0, "who has nothing yet needs all it may have"


@given(st.floats(0, CAP), st.floats(1, CAP), st.floats(0, CAP), st.floats(0, 2 * CAP))
def test_nobody_wishes_for_more_than_it_may_have(wish: float, most: float, rate: float, used: float) -> None:
    assert 0.0 <= next_wish(min(wish, most), most, CAP, rate, used) <= most
