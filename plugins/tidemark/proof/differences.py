"""What `verify` found: one line a difference, and whether it was repaired."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tidemark.errors import DIFFERENCES_FOUND, CorruptionError, PartialError, PermanentError, TidemarkError, UnreachableError
from tidemark.proof.as_of import iso, moment

DAMAGED = "damaged"  # bytes at the receiver are not what was recorded
MISSING = "missing"  # acknowledged, and not in the catalog
SOURCE = "source differs"  # the site's bytes changed under an unchanged size and time
POINTS = "points differ"  # the same files, other points
KEPT = "kept points"  # readers see what only a file has that is gone at the site
_NEEDS_SOMEBODY = (PermanentError, CorruptionError)
_AGAIN = "./tidemark doctor, then verify again"


@dataclass(frozen=True)
class Difference:
    """`path`: the source path, or the place at the receiver where there is none. `repaired`: '' while nothing was done."""

    what: str
    site: str
    path: str
    where: str  # source | landing | catalog
    detail: str
    repaired: str = ""
    next: str = ""


@dataclass(frozen=True)
class Unsent:
    """A file that is sealed at its site and was not sent. `bytes`: with its companions; `sealed_at`: since when it waits,
    seconds since 1970; `overdue`: its link should have sent it."""

    site: str
    path: str
    bytes: int
    sealed_at: float
    overdue: bool


UNSENT_SHOWN = 10_000
"""Unsent files listed one by one; `unsent_files` counts all."""


def told_of(errors: Sequence[tuple[str, TidemarkError]]) -> dict[str, Any]:
    """`unreachable` and `refused` of a report: what sites and nodes answered, first those that need somebody."""
    away = sorted(errors, key=lambda one: not isinstance(one[1], _NEEDS_SOMEBODY))
    needs = [error.hint or _AGAIN for _, error in away if isinstance(error, _NEEDS_SOMEBODY)]
    return {"unreachable": tuple((name, error.message) for name, error in away), "refused": needs[0] if needs else ""}


@dataclass(frozen=True)
class VerifyReport:
    """`checked`: digests compared (and series, when deep). `held`: files that a quarantine, an owner or the operator keeps
    out; `pending`: files that changed or came since the newest run; `adopted`: files that another tool brought, which are
    not compared; `unreachable`: sites that did not answer: not verified; `refused`: what to do where
    one of them, the first, answered and needs somebody (a host key, a login); `not_read`: files and series that could not be
    compared; `elsewhere`: sites whose source another Tidemark verifies; `proved`: files that were not verified at the source
    when they were sent and are now; `unverified`: files that still are not."""

    receiver: str
    checked: int = 0
    series: int = 0
    differences: tuple[Difference, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    pending: int = 0
    unreachable: tuple[tuple[str, str], ...] = ()
    not_read: tuple[tuple[str, str], ...] = ()
    adopted: int = 0
    elsewhere: tuple[tuple[str, str], ...] = ()
    proved: int = 0
    unverified: int = 0
    unsent: tuple[Unsent, ...] = ()  # sealed at a site and not sent
    refused: str = ""
    kept_files: int = 0  # files that are gone at their site and kept

    @property
    def exit_code(self) -> int:
        """20 while a difference stands; 5 where a site was not verified, 6 where that needs somebody; 23 where a file is
        held, was not read, or should have been sent; else 0."""
        if any(not d.repaired for d in self.differences):
            return DIFFERENCES_FOUND
        if self.unreachable:
            return PermanentError.kind if self.refused else UnreachableError.kind
        return PartialError.kind if self.held or self.not_read or self._overdue else 0

    @property
    def _overdue(self) -> list[Unsent]:
        return [one for one in self.unsent if one.overdue]

    @property
    def told(self) -> dict[str, str]:
        """`error` and `hint` of a report that is not clean."""
        standing = [d for d in self.differences if not d.repaired]
        if standing:
            more = f" (and {len(standing) - 1} more)" if len(standing) > 1 else ""
            return {"error": f"{standing[0].path}: {standing[0].what}: {standing[0].detail}{more}", "hint": standing[0].next}
        if self.unreachable:
            name, error = self.unreachable[0]
            who = name if name.startswith("node ") else f"site {name}"
            return {
                "error": f"{who} was not verified: {error}",
                "hint": self.refused or "./tidemark doctor, then verify again",
            }
        for found, what in ((self.held, "held back"), (self.not_read, "not compared")):
            if found:
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                subject = shlex.quote(found[0][0].partition(" ")[0])
                return {"error": f"{found[0][0]} is {what}: {found[0][1]}{more}", "hint": f"./tidemark why {subject}"}
        if late := self._overdue:
            more = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
            told = f"{late[0].site}: {late[0].path} is sealed since {moment(late[0].sealed_at)} and was not sent{more}"
            return {"error": told, "hint": f"./tidemark why {shlex.quote(late[0].site)}"}
        return {}

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.exit_code == 0,
            **self.told,
            "receiver": self.receiver,
            "checked": self.checked,
            "series": self.series,
            "differences": [asdict(d) for d in self.differences],
            "repaired": sum(bool(d.repaired) for d in self.differences),
            "held": [{"path": path, "reason": reason} for path, reason in self.held],
            "pending": self.pending,
            "kept_files": self.kept_files,
            "proved": self.proved,
            "not_verified_at_source": self.unverified,
            "adopted": self.adopted,
            "unreachable": [{"site": site, "error": error} for site, error in self.unreachable],
            "not_read": [{"what": what, "reason": reason} for what, reason in self.not_read],
            "unsent": [{**vars(one), "sealed_at": iso(one.sealed_at)} for one in self.unsent[:UNSENT_SHOWN]],
            "unsent_files": len(self.unsent),
            "unsent_bytes": sum(one.bytes for one in self.unsent),
            "elsewhere": [{"site": site, "reason": reason} for site, reason in self.elsewhere],
        }
