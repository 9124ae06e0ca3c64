"""In which order a receiver's papers came about: landings answered, decisions made, merged files settled. Pure.

A rebuilt ledger replays them in this order, so that owners, superseded files and merged files come out as they were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.formats.records import DecidedPaper, SettledPaper


@dataclass(frozen=True)
class Heard:
    """A landing as its manifest and its receipt name it. `loaded`: the receipt's time, None without a readable receipt;
    `answered`: the receiver answered it, as far as anybody can tell."""

    site_id: str
    landing: str
    sequence: int
    loaded: float | None
    answered: bool


@dataclass(frozen=True)
class Moment:
    """`what` happened at `at` (seconds since 1970). Merged files of the same sources settled together."""

    at: float
    what: Heard | DecidedPaper | tuple[SettledPaper, ...]


def chronicle(
    heard: Iterable[Heard], decided: Iterable[DecidedPaper], settled: Iterable[SettledPaper]
) -> tuple[list[Moment], list[str]]:
    """All moments in order, and the troubles: sequence numbers of which nothing is here.

    Landings that no receipt answers and that no later answered landing follows are left out: they are still to load.
    """
    moments: list[Moment] = []
    troubles: list[str] = []
    by_site: dict[str, list[Heard]] = defaultdict(list)
    for one in heard:
        by_site[one.site_id].append(one)
    for site_id, landings in sorted(by_site.items()):
        moments += _of_site(landings)
        troubles += _gaps(site_id, landings)
    moments += [Moment(paper.at, paper) for paper in decided]
    groups: dict[tuple[object, ...], list[SettledPaper]] = defaultdict(list)
    for paper in settled:
        groups[(paper.site_id, paper.batch, paper.sources)].append(paper)
    moments += [Moment(max(p.settled for p in group), tuple(group)) for group in groups.values()]
    return sorted(moments, key=_order), troubles


def _order(moment: Moment) -> tuple[float, int]:
    """Landings first where two have one time: a decision or a settling is about what is there."""
    return moment.at, 0 if isinstance(moment.what, Heard) else 1


def _of_site(landings: list[Heard]) -> list[Moment]:
    """The answered landings of a site in sequence, with times that never go back."""
    known = {one.sequence for one in landings if one.answered}
    last = max(known, default=0)
    told = sorted(
        (one for one in landings if one.answered or (one.sequence < last and one.sequence not in known)),
        key=lambda one: (one.sequence, one.landing),
    )
    moments: list[Moment] = []
    at = 0.0
    for number, one in enumerate(told):
        later = (other.loaded for other in told[number:] if other.loaded is not None)
        at = max(at, one.loaded if one.loaded is not None else next(later, at))
        moments.append(Moment(at, one))
    return moments


def _gaps(site_id: str, landings: list[Heard]) -> list[str]:
    last = max((one.sequence for one in landings if one.answered), default=0)
    missing = sorted(set(range(1, last + 1)) - {one.sequence for one in landings})
    return [f"landing {number} of site {site_id}: nothing of it is here; what it told is not known" for number in missing]
