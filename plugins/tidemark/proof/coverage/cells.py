"""Coverage cells, device × day: what the site has compared with what readers see. Pure; see CONTRACT §1 "coverage".

Days are kept as stretches, not one by one: a file from 1970 to 2262 costs as much as any other.

*Present* (CONTRACT §1): readers read a generation, or they read a merged file whose lineage reaches it and whose account
agrees (in = out + overwritten + deleted), and the file that readers read is what the ledger recorded.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

from tidemark.errors import DIFFERENCES_FOUND, PartialError
from tidemark.ledger.receiver.settled import KeptFile
from tidemark.proof.as_of import NEVER, AsOf, day_of, day_text, format_iso
from tidemark.proof.explanation import kept_json_of_sites
from tidemark.tsfiles.companions.resource import ANY_DEVICE

RED_SHOWN = 10_000
"""Red cells listed one by one; `red_cells` counts all."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A file that should be readable for a device from day `first` to day `last`. `why` is '' when it is."""

    device: str
    first: int
    last: int
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive days of a device with the same files: `expected` many, `present` of them readable. `unknown`: days after
    the site's last whole listing, when other files may exist."""

    device: str
    first: int
    last: int
    expected: int
    present: int
    whys: tuple[str, ...]  # one per missing file, with its path
    unknown: bool = False

    @property
    def days(self) -> int:
        return self.last - self.first + 1

    @property
    def is_red(self) -> bool:
        return self.present < self.expected


@dataclass(frozen=True)
class SiteCoverage:
    """`gaps`: missing data without a known device and day: landings that never arrived, unreadable manifests.

    `notes`: what no cell shows: files that are not expected (excluded by the link's patterns, or adopted), a link that never
    ran. `kept`: files that vanished at the site, so neither expected nor missing.
    """

    site: str
    stretches: tuple[Stretch, ...]
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    as_of: AsOf = NEVER
    kept: tuple[KeptFile, ...] = ()

    @property
    def cells(self) -> int:
        return sum(s.days for s in self.stretches if s.expected)

    @property
    def unknown_cells(self) -> int:
        return sum(s.days for s in self.stretches if s.unknown and not s.is_red)

    @property
    def known_cells(self) -> int:
        return sum(s.days for s in self.stretches if s.is_red or not s.unknown)

    @property
    def red_cells(self) -> int:
        return sum(s.days for s in self.stretches if s.is_red)


@dataclass(frozen=True)
class ReplicaProof:
    """Row 30 of the promise: replica = master, proved. Of `copies` at data nodes `proved` had their digest when
    `replica verify` read them last, and `differ` had not. `oldest`: when the first of these was read; None before."""

    copies: int
    proved: int = 0
    differ: int = 0
    oldest: float | None = None

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "oldest": format_iso(self.oldest)}


@dataclass(frozen=True)
class Coverage:
    """The report. `made`: its time, seconds since 1970. `replicas`: None without data nodes."""

    sites: tuple[SiteCoverage, ...] = ()
    receiver: str = ""
    made: float = 0.0
    replicas: ReplicaProof | None = None

    @property
    def cells(self) -> int:
        return sum(s.cells for s in self.sites)

    @property
    def red_cells(self) -> int:
        return sum(s.red_cells for s in self.sites)

    @property
    def unknown_cells(self) -> int:
        return sum(s.unknown_cells for s in self.sites)

    @property
    def stale_sites(self) -> tuple[SiteCoverage, ...]:
        """Sites whose last whole listing is too old to prove anything of today."""
        return tuple(s for s in self.sites if s.as_of.stale)

    @property
    def is_lacking(self) -> bool:
        """Whether something that is known to be at a site is missing here, or a copy at a node is not what it should be."""
        return bool(self.red_cells or any(s.gaps for s in self.sites) or (self.replicas and self.replicas.differ))

    @property
    def is_complete(self) -> bool:
        return not self.is_lacking and not self.stale_sites

    @property
    def exit_code(self) -> int:
        """20 if something is missing; 23 if nothing known is missing and a site's listing is stale; else 0."""
        return DIFFERENCES_FOUND if self.is_lacking else PartialError.kind if self.stale_sites else 0

    @property
    def share(self) -> float:
        """Green cells among the known ones, 0 to 1. A missing landing also makes it less than 1."""
        known = sum(s.known_cells for s in self.sites)
        total = known + sum(len(s.gaps) for s in self.sites)
        return float(not self.unknown_cells) if total == 0 else (known - self.red_cells) / total

    def as_json(self) -> dict[str, Any]:
        red = [r for site in self.sites for r in list_red_cells(site)]
        return {
            **(self._encode_red_error(red) or self._encode_replica_error() or self._encode_stale_error()),
            "receiver": self.receiver,
            "cells": self.cells,
            "complete": self.is_complete,
            "share": math.floor(self.share * 1e6) / 1e6,  # never rounded up to 1
            "red_cells": self.red_cells,
            "unknown_cells": self.unknown_cells,
            "stale": [s.site for s in self.stale_sites],
            "sites": [
                {
                    "site": s.site,
                    "as_of": format_iso(s.as_of.at),
                    "stale": s.as_of.stale,
                    "cells": s.cells,
                    "red_cells": s.red_cells,
                    "unknown_cells": s.unknown_cells,
                    "kept_files": len(s.kept),
                }
                for s in self.sites
            ],
            **kept_json_of_sites((s.site, s.kept) for s in self.sites),
            "red": red[:RED_SHOWN],
            "notes": [f"{s.site}: {note}" for s in self.sites for note in s.notes],
            **({"replicas": self.replicas.as_json()} if self.replicas else {}),
        }

    def _encode_replica_error(self) -> dict[str, str]:
        if not self.replicas or not self.replicas.differ:
            return {}
        error = f"{self.replicas.differ} of {self.replicas.copies} copies at data nodes were not those of the catalog"
        return {"error": error, "hint": "./tidemark replica verify names them; ./tidemark cluster check --repair"}

    def _encode_stale_error(self) -> dict[str, str]:
        if not self.stale_sites:
            return {}
        more = f" (and {len(self.stale_sites) - 1} more)" if len(self.stale_sites) > 1 else ""
        first = self.stale_sites[0]
        return {"error": f"{first.site}: {first.as_of.text}{more}", "hint": f"./tidemark why {shlex.quote(first.site)}"}

    @staticmethod
    def _encode_red_error(red: Sequence[dict[str, Any]]) -> dict[str, str]:
        """Return `error` and `hint` of an incomplete report."""
        if not red:
            return {}
        first = red[0]
        more = f" (and {len(red) - 1} more)" if len(red) > 1 else ""
        error = f"{first['site']}, {first['device']}, {first['day']}: {first['why']}{more}"
        subject = first["site"] if first["device"] == "*" else first["device"]
        return {"error": error, "hint": f"./tidemark why {shlex.quote(subject)}"}


def claim_days(expected: Iterable[Expected], view: CatalogView, unit: str) -> Iterator[Claim]:
    """Yield one claim per device of each file. A .resource without devices claims `**`: every device of the file."""
    for file in expected:
        why = why_absent(file, view)
        for device, start, end in file.extent:
            name = "(all devices)" if device == ANY_DEVICE else device
            yield Claim(name, day_of(start, unit), day_of(end, unit), file.path, why)


def list_unplaced(expected: Iterable[Expected], view: CatalogView) -> Iterator[str]:
    """Yield missing files whose .resource gives no device and day. They are gaps, since no cell can show them."""
    for file in expected:
        if not file.extent and (why := why_absent(file, view)):
            yield f"{file.path}: {why}"


def build_stretches(found: Iterable[Claim], first: int | None = None, last: int | None = None) -> tuple[Stretch, ...]:
    """Turn the claims of a site into stretches of days, by device and day, within [`first`, `last`] where given."""
    cut = (_clip_claim(c, first, last) for c in found)
    by_device = sorted((c for c in cut if c is not None), key=lambda c: (c.device, c.first, c.last, c.path))
    return tuple(
        s for device, group in groupby(by_device, key=lambda c: c.device) for s in _sweep_claims(device, list(group))
    )


def mark_unknown_days(found: Sequence[Stretch], known: int | None, until: int) -> tuple[Stretch, ...]:
    """Mark the days after `known`, the last day of which anything is known (None: no day), as unknown. Every device gets
    unknown days up to `until`, even where no file has such days."""
    if known is None:
        return tuple(replace(one, unknown=True) for one in found)
    first = known + 1
    out: list[Stretch] = []
    for device, group in groupby(found, key=lambda s: s.device):
        tail = first
        for one in group:
            if one.first < first <= one.last:
                out.append(replace(one, last=first - 1))
            if one.last < first:
                out.append(one)
                continue
            late = replace(one, first=max(one.first, first), unknown=True)
            if tail < late.first and tail <= until:
                out.append(Stretch(device, tail, min(late.first - 1, until), 0, 0, (), True))
            out.append(late)
            tail = late.last + 1
        if tail <= until:
            out.append(Stretch(device, tail, until, 0, 0, (), True))
    return tuple(out)


def list_red_cells(site: SiteCoverage) -> Iterator[dict[str, Any]]:
    """Yield the red cells as CONTRACT §1 lists them, at most RED_SHOWN; a gap has no device and no day."""
    for gap in site.gaps:
        yield {"site": site.site, "device": "*", "day": "*", "expected": 1, "present": 0, "why": gap}
    left = RED_SHOWN
    for stretch in site.stretches:
        if not stretch.is_red:
            continue
        why = "; ".join(stretch.whys[:3]) + (f"; and {len(stretch.whys) - 3} more" if len(stretch.whys) > 3 else "")
        for day in range(stretch.first, min(stretch.last, stretch.first + left - 1) + 1):
            left -= 1
            yield {
                "site": site.site,
                "device": stretch.device,
                "day": day_text(day),
                "expected": stretch.expected,
                "present": stretch.present,
                "why": why,
            }


def _clip_claim(claim: Claim, first: int | None, last: int | None) -> Claim | None:
    start = claim.first if first is None else max(claim.first, first)
    end = claim.last if last is None else min(claim.last, last)
    return None if start > end else Claim(claim.device, start, end, claim.path, claim.why)


def _sweep_claims(device: str, found: list[Claim]) -> Iterator[Stretch]:
    borders = sorted({c.first for c in found} | {c.last + 1 for c in found})
    waiting = iter(found)
    upcoming = next(waiting, None)
    active: list[Claim] = []
    for start, after in pairwise(borders):
        active = [c for c in active if c.last >= start]
        while upcoming is not None and upcoming.first <= start:
            active.append(upcoming)
            upcoming = next(waiting, None)
        if active:
            whys = tuple(f"{c.path}: {c.why}" for c in active if c.why)
            yield Stretch(device, start, after - 1, len(active), len(active) - len(whys), whys)


@dataclass(frozen=True, slots=True)
class Held:
    """A catalog row with the columns that proof needs."""

    file_id: int
    path: str  # '' for merged
    generation: int
    size: int
    state: str  # live | retired | reclaimed
    visible: bool
    location: str


@dataclass(frozen=True, slots=True)
class Expected:
    """A file that the site has, by its inventory. `extent`: (device, first, last) from its .resource, in the site's unit."""

    path: str
    size: int
    generation: int  # newest that a manifest carried, 0 while none did
    extent: tuple[tuple[str, int, int], ...]
    landing: str  # last manifest that names it


@dataclass(frozen=True)
class CatalogView:
    """What one receiver's catalog holds of one site, and what is known to be wrong.

    `merged_over`: file_id → merged files made from it. `account`: merged file_id → what is wrong with its account, '' where
    it agrees. `broken`: file_id → what is wrong with its bytes. `trouble`: path → why it is not in the catalog. `late`: path
    → why a settled file hides its newest content; its older content is read.
    """

    held: Mapping[int, Held] = field(default_factory=dict)
    by_path: Mapping[str, Sequence[Held]] = field(default_factory=dict)
    merged_over: Mapping[int, Sequence[int]] = field(default_factory=dict)
    account: Mapping[int, str] = field(default_factory=dict)
    broken: Mapping[int, str] = field(default_factory=dict)
    trouble: Mapping[str, str] = field(default_factory=dict)
    late: Mapping[str, str] = field(default_factory=dict)

    def with_troubles(self, trouble: Mapping[str, str]) -> CatalogView:
        """Return the same view with other troubles."""
        return replace(self, trouble=trouble)


def why_absent(expected: Expected, view: CatalogView) -> str:
    """Return '' when the live generation is present, else the reason."""
    if expected.generation == 0:
        return view.trouble.get(expected.path, "the site lists it, but no landing has carried it yet")
    rows = [h for h in view.by_path.get(expected.path, ()) if h.generation == expected.generation]
    if not rows:
        fallback = f"generation {expected.generation} landed with {expected.landing} and is not in the catalog"
        return view.trouble.get(expected.path, fallback)
    row = max(rows, key=lambda h: h.file_id)
    if row.size != expected.size:
        return view.trouble.get(expected.path, f"it changed at the site ({row.size} → {expected.size} bytes), not sent yet")
    return why_unread(row, view)


def why_unread(row: Held, view: CatalogView, seen: frozenset[int] = frozenset()) -> str:
    """Return '' when readers read the content of `row`, directly or through every merged file made from it.

    A merge divides its sources' points among its outputs, so all of them must exist and agree.
    """
    if row.state == "live" and row.visible:
        return view.broken.get(row.file_id, "")
    above = [view.held[m] for m in view.merged_over.get(row.file_id, ()) if m in view.held and m not in seen]
    standing = [m for m in above if m.state == "live"]
    if not standing:
        return f"no file that readers see stands for it (it is {row.state})"
    for merged in standing:
        fallback = f"merged file {merged.file_id} has no account"
        why = view.account.get(merged.file_id, fallback) or why_unread(merged, view, seen | {row.file_id})
        if why:
            return why
    return ""


def account_trouble(merged_id: int, points_in: int, points_out: int, overwritten: int, deleted: int) -> str:
    """Return '' when a merge's account agrees, else the reason."""
    if points_in == points_out + overwritten + deleted:
        return ""
    return (
        f"the account of merged file {merged_id} does not agree: {points_in} in, but {points_out} out + {overwritten} "
        f"overwritten + {deleted} deleted"
    )
