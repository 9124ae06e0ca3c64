"""In which order a site's landings load, and which may not: pure decisions over what their manifests say.

A manifest carries its place in the site's sequence and the id of the landing before it (DESIGN §3 "Each end has its own
ledger"). Landings load in sequence without a gap, whatever order they arrived in: sent, or carried on a disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """A whole landing that is not loaded yet, as its manifest describes it."""

    landing: str
    sequence: int
    previous: str | None


@dataclass(frozen=True)
class Verdict:
    """`state`: next (may load), waiting (a landing before it is missing), rejected (never loads as it is)."""

    arrival: Arrival
    state: str
    reason: str = ""


def judge(arrivals: Iterable[Arrival], last_sequence: int, last_landing: str | None) -> list[Verdict]:
    """One verdict an arrival of one site, in the order to load; `last_…` name its newest loaded landing (0, None before).

    Of two different landings with one sequence number the one with the smaller id (made earlier) goes on, the other is
    rejected: nothing tells which of them the site means, and its bytes stay where they are.
    """
    verdicts: list[Verdict] = []
    sequence, landing, gap = last_sequence, last_landing, 0
    for arrival in sorted(arrivals, key=lambda a: (a.sequence, a.landing)):
        if arrival.sequence <= sequence:
            verdicts.append(Verdict(arrival, "rejected", _second(arrival, landing, sequence)))
        elif arrival.sequence > sequence + 1 or gap:
            gap = gap or sequence + 1
            verdicts.append(Verdict(arrival, "waiting", _waits(arrival, sequence)))
        elif sequence and arrival.previous != landing:
            verdicts.append(Verdict(arrival, "rejected", _broken(arrival, landing)))
        else:
            verdicts.append(Verdict(arrival, "next"))
            sequence, landing = arrival.sequence, arrival.landing
    return verdicts


def _second(arrival: Arrival, landing: str | None, sequence: int) -> str:
    taken = f"landing {landing}" if arrival.sequence == sequence else "an earlier landing"
    return (
        f"sequence {arrival.sequence} belongs to {taken} already: two different landings of one site cannot have the same "
        "number; if this folder is a stray copy, remove it"
    )


def _waits(arrival: Arrival, sequence: int) -> str:
    before = f" ({arrival.previous})" if arrival.previous and arrival.sequence == sequence + 2 else ""
    missing = f"{sequence + 1}" if arrival.sequence == sequence + 2 else f"{sequence + 1} to {arrival.sequence - 1}"
    return f"landing {missing}{before} of the site's sequence has not come; the newest loaded is {sequence}"


def _broken(arrival: Arrival, landing: str | None) -> str:
    return (
        f"it follows landing {arrival.previous or 'none'}, but number {arrival.sequence - 1} loaded here is {landing}: the "
        "site's ledger and this one tell different histories; rebuild the sender's ledger (./tidemark ledger rebuild)"
    )
