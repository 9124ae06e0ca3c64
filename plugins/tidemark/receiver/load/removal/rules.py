"""Decide whether a vanished file was compacted or dropped, and whether it may leave the catalog. Pure.

A *superseded* file leaves in the transaction that brings the last of the files that cover it, so readers never miss a
point. A *dropped* file stays, marked, or leaves, as the link's `deletes` says. A file whose bytes were reclaimed after
settling has its points in a merged file. It leaves with that merged file, or waits for the operator.
Source: DESIGN §3 "Vanished files", "Sources and merges".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SETTLED = "its points stand in a merged file together with those of files that the site still has"
"""Why a superseded file waits that every other condition lets go."""
KEPT = "the link keeps what its site drops; its points stay in a merged file that stands alone"
"""Of a drop that was done by keeping points that cannot be told apart any more."""

APPROVED = "approved"
"""How the reason of a drop begins that the operator approved and that a settled file still holds back."""


class Survival(enum.StrEnum):
    """What a comparison of a vanished file's points with newer files found (`surviving_points`)."""

    EMPTY = "empty"  # no point of it is alive
    LIVES = "lives"  # it was compacted
    GONE = "gone"  # none of its points is in the newer files


class Presence(enum.StrEnum):
    """What the receiver has of a source path at its newest generation."""

    LOADED = "loaded"  # live in the catalog
    SETTLED = "settled"  # it is not live, and a merged file holds its points
    ABSENT = "absent"  # not in the catalog


@dataclass(frozen=True)
class PathState:
    """What is known of a source path. `covered_by` is set where the path was superseded, `dropped` where the site dropped
    it. `trouble` says why it is absent (in quarantine, refused, not arrived)."""

    presence: Presence
    covered_by: tuple[str, ...] | None = None
    dropped: bool = False
    trouble: str = ""


@dataclass(frozen=True)
class Vanished:
    """A path that its site no longer has, as reported by a manifest."""

    path: str
    generation: int
    kind: str  # superseded | dropped
    covered_by: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """`action`: leave (out of the catalog), mark (kept and marked), wait (`reason`), ask (the operator decides; `reason`),
    leave_settled (its merged file may leave once this holds for all sources of that file)."""

    vanished: Vanished
    action: str
    reason: str = ""


def judge_by_points(vanished: Vanished, survival: Survival | None, missing: str, deletes: str, why: str = "") -> Verdict:
    """Judge a vanished file whose bytes the receiver has, whether its site called it superseded or dropped.

    `survival`: the result of comparing its points, None where they could not be compared. `why`: what decided, or prevented
    the comparison. `missing`: a file of its group that has not arrived. `deletes`: the link's keep | apply, "" where
    unknown. A compaction loses only deleted points. A file with surviving points was therefore compacted. Nothing leaves
    before its group is complete.
    """
    if missing:
        return Verdict(vanished, "wait", f"it waits for {missing}, which its site has beside it and which is not loaded")
    if survival in (Survival.LIVES, Survival.EMPTY):
        return Verdict(vanished, "leave", why)
    if survival is None:
        return Verdict(vanished, "wait", f"its points could not be compared with those of newer files: {why}")
    if deletes not in ("keep", "apply"):
        return Verdict(
            vanished, "wait", "nothing of it lives on in the files that came; the next landing says whether it is kept"
        )
    return Verdict(vanished, "leave" if deletes == "apply" else "mark")


def judge_dropped(vanished: Vanished, state: PathState, deletes: str) -> Verdict:
    """Judge a file that no other file of the site covers. `deletes` is the link's: keep | apply."""
    if deletes != "apply":
        return Verdict(vanished, "mark", KEPT if state.presence is Presence.SETTLED else "")
    if state.presence is Presence.SETTLED:
        return Verdict(
            vanished,
            "ask",
            f"{vanished.path} was dropped at the site after its points had settled into a merged file; approve decides",
        )
    return Verdict(vanished, "leave")


def judge_superseded(vanished: Vanished, states: Mapping[str, PathState]) -> Verdict:
    """Judge a file that others cover. `states` has it, its covering paths and, where those are superseded, theirs."""
    blocking = _find_blocking(vanished.covered_by, states, frozenset({vanished.path}))
    if blocking is None:
        settled = states[vanished.path].presence is Presence.SETTLED
        return Verdict(vanished, "leave_settled" if settled else "leave")
    path, state = blocking
    if state.dropped:
        return Verdict(
            vanished,
            "ask",
            f"it was superseded by {path}, which the site dropped before it ever came; approve decides",
        )
    return Verdict(vanished, "wait", f"it waits for {path}, which covers it: {state.trouble or 'not loaded yet'}")


def covering_closure(vanished: Iterable[Vanished], covered_by: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return every path that `judge_superseded` may need, following covering files that were superseded themselves."""
    closed: set[str] = set()
    todo = [path for v in vanished for path in (v.path, *v.covered_by)]
    while todo:
        path = todo.pop()
        if path not in closed:
            closed.add(path)
            todo.extend(covered_by.get(path, ()))
    return closed


def _find_blocking(
    paths: Iterable[str], states: Mapping[str, PathState], seen: frozenset[str]
) -> tuple[str, PathState] | None:
    """Return the first absent path that no other file covers, following the files that cover absent ones; None: all here."""
    for path in sorted(paths):
        state = states.get(path, PathState(Presence.ABSENT))
        if state.presence is not Presence.ABSENT or path in seen:
            continue
        if state.covered_by is None:
            return path, state
        deeper = _find_blocking(state.covered_by, states, seen | {path})
        if deeper is not None:
            return deeper
    return None
