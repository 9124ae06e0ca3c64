"""Whose is how much of a cap that several share. Pure; rates and wishes in bytes a second.

What all of them take is written down, and nobody takes more than the others leave: so they are never over the cap together,
whoever comes, goes or is late to look. One that has too much gives it up at its next look, and another takes it at its own.
"""

from __future__ import annotations

from collections.abc import Mapping

IDLE = 1 / 50  # of the cap: what one keeps that sends nothing at the moment
BUSY = 0.8  # of what one has: who uses so much could do with more
EASY = 0.33  # who uses less than that gives up some


def fair_shares(cap: float, wishes: Mapping[str, float]) -> dict[str, float]:
    """Equal shares; what somebody does not wish for is shared by the others. Never more than `cap` together."""
    found: dict[str, float] = {}
    left = cap
    for number, (name, wish) in enumerate(sorted(wishes.items(), key=lambda one: (one[1], one[0]))):
        found[name] = max(0.0, min(wish, left / (len(wishes) - number)))
        left -= found[name]
    return found


def next_rate(cap: float, name: str, wishes: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """What `name` takes from now on: its fair share, as far as the others, who take `rates`, leave it."""
    free = cap - sum(rate for other, rate in rates.items() if other != name)
    return max(0.0, min(fair_shares(cap, wishes)[name], free))


def next_wish(wish: float, most: float, cap: float, rate: float, used: float) -> float:
    """Who needs what it has wishes for `most`, who needs little of it for twice what it needs; else the wish stays."""
    if used >= BUSY * rate:
        return most
    return min(most, max(2 * used, cap * IDLE)) if used < EASY * rate else wish
