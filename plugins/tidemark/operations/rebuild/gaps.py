"""Find landings of a link that are lost: no manifest tells of them, and none of the receiver's answers does. Pure.

A receiver loads a link's landings in sequence, so it waits for a lost one for ever. A rebuilt ledger has a row for each,
without files: so `verify` finds it, as one that was lost from beside a whole ledger, and makes its manifest. The next run
sends what was in it, since no manifest acknowledges that. Of several lost in a row only the newest has a known name, told by
the manifest after it. The others have damaged manifests, or get a name made from that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidemark.ledger.sender.runs import SentLanding

_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}-[0-9]{1,9}(-lost-[0-9]{1,4})*")
_SECOND = len("20260101T000000Z")
_MOST = 1000  # lost in a row; a manifest that tells of more is not believed


class Told(NamedTuple):
    """A landing by its manifest or its receipt. `previous` is known from a manifest alone."""

    sequence: int
    landing: str
    previous: str | None
    answered: bool


def find_lost(link: str, told: Iterable[Told], damaged: Iterable[str], at: float) -> list[SentLanding]:
    """Return a row for each lost landing, in sequence. `damaged`: landings whose manifest is there and tells nothing; those
    after the newest in `told` take the next numbers. `at`: the time of the new manifests, seconds since 1970."""
    chain = sorted(told, key=lambda one: one.sequence)
    names = {one.landing for one in chain}
    broken = sorted((name for name in damaged if _NAME.fullmatch(name)), key=_by_part)
    answered = [one for one in chain if one.answered][-1:]
    sequence, before = (answered[0].sequence, answered[0].landing) if answered else (0, None)
    lost: list[SentLanding] = []
    for one in (*chain, None):
        if one is not None and one.sequence <= sequence:
            continue
        free = [name for name in broken if name not in names and _is_after(name, before)]
        gap = free if one is None else _name_gap(one, one.sequence - sequence - 1, free)
        for name in gap if names.isdisjoint(gap) else ():
            sequence += 1
            names.add(name)
            lost.append(_empty_landing(link, name, sequence, before, at))
            before = name
        if one is not None:
            sequence, before = one.sequence, one.landing
    return lost


def _name_gap(after: Told, missing: int, broken: Sequence[str]) -> Sequence[str]:
    """Return the names of the `missing` landings before `after`; none where they cannot be told."""
    newest = after.previous or ""
    if not 0 < missing <= _MOST or not _NAME.fullmatch(newest):
        return ()
    between = [name for name in broken if name != newest and _is_after(newest, name)]
    return [*(f"{newest}-lost-{number}" for number in range(1, missing)), *between, newest][-missing:]


def _is_after(name: str, before: str | None) -> bool:
    """Return whether the first landing may be later: of one run by its part, else by the second in its run id."""
    if before is None or not _NAME.fullmatch(before):
        return before is None
    (run_id, part), (other, earlier) = _by_part(name), _by_part(before)
    return part > earlier if run_id == other else run_id[:_SECOND] >= other[:_SECOND]


def _by_part(name: str) -> tuple[str, int]:
    run_id, _, part = name.rpartition("-")
    return run_id, int(part)


def _empty_landing(link: str, name: str, sequence: int, previous: str | None, at: float) -> SentLanding:
    run_id, part = _by_part(name)
    return SentLanding(
        landing=name,
        run_id=run_id,
        link=link,
        part=part,
        sequence=sequence,
        previous=previous,
        state="landed",
        last=True,
        created=at,
        manifest_sha256="",
        files=0,
        bytes=0,
    )
