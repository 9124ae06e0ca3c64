"""The differences that `verify` found, one line each; and the check of the site's own bytes.

`check_source` compares the site's files with what was acknowledged, by digests computed at the site. Files that are sealed
and unsent are a state of their own (`Unsent`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemark.errors import DIFFERENCES_FOUND, CorruptionError, PartialError, PermanentError, TidemarkError, UnreachableError
from tidemark.ledger.receiver.settled import KeptFile
from tidemark.ledger.sql import Row
from tidemark.proof.as_of import format_iso, format_moment
from tidemark.proof.explanation import kept_json_of_sites
from tidemark.stores.listing import classify_files, odd_paths_to_report
from tidemark.stores.protocol import UNLISTED, Range, Store
from tidemark.sync.notes import LET_LIST
from tidemark.tsfiles.names import SourceName
from tidemark.tsfiles.sealed import SealedFile

DAMAGED = "damaged"  # bytes at the receiver are not what was recorded
MISSING = "missing"  # acknowledged, and not in the catalog
SOURCE = "source differs"  # the site's bytes changed under an unchanged size and time
POINTS = "points differ"  # the same files, other points
KEPT = "kept points"  # readers see points that only a vanished file has
_NEEDS_SOMEBODY = (PermanentError, CorruptionError)
_AGAIN = "./tidemark doctor, then verify again"


@dataclass(frozen=True)
class Difference:
    """`path`: the source path, or the location at the receiver where there is none. `repaired`: what was done, or ''."""

    what: str
    site: str
    path: str
    where: str  # source | landing | catalog
    detail: str
    repaired: str = ""
    next: str = ""


@dataclass(frozen=True)
class Unsent:
    """A file that is sealed at its site and was not sent. `bytes`: with its companions. `sealed_at`: since when it waits,
    seconds since 1970. `overdue`: its link should have sent it."""

    site: str
    path: str
    bytes: int
    sealed_at: float
    overdue: bool


@dataclass(frozen=True)
class NotCompared:
    """What was not compared at all. `what`: the points of a site, or the bytes at a receiver. `next`: what can be done."""

    what: str
    reason: str
    next: str


UNSENT_SHOWN = 10_000
"""Unsent files listed one by one; `unsent_files` counts all."""


def encode_unreachable(errors: Sequence[tuple[str, TidemarkError]]) -> dict[str, Any]:
    """Return `unreachable` and `refused` of a report: the errors of sites and nodes, those that need a person first."""
    away = sorted(errors, key=lambda one: not isinstance(one[1], _NEEDS_SOMEBODY))
    needs = [error.hint or _AGAIN for _, error in away if isinstance(error, _NEEDS_SOMEBODY)]
    return {"unreachable": tuple((name, error.message) for name, error in away), "refused": needs[0] if needs else ""}


@dataclass(frozen=True)
class VerifyReport:
    """`checked`: digests compared. `series`: series compared with `deep`. `held`: files that a quarantine, an owner or the
    operator keeps out. `pending`: files that changed or arrived since the newest run. `adopted`: files that another tool
    brought, which are not compared. `unreachable`: sites and nodes that were not verified. `refused`: what to do about the
    first of them that answered and needs a person (a host key, a login). `not_read`: files and series that could not be
    compared. `elsewhere`: sites whose source another Tidemark verifies. `proved`: files sent without a digest of the source
    and verified there now. `unverified`: files still without one. `deep`: points were to be compared. `not_compared`: with
    `deep` the points of sites of which none was compared, without it the bytes of a remote receiver."""

    receiver: str
    deep: bool = False
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
    kept: Mapping[str, Sequence[KeptFile]] = field(default_factory=dict)  # site → files that vanished there and are kept
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def exit_code(self) -> int:
        """20 for an unrepaired difference; 5 if a site was not verified, 6 if that needs a person; 23 if a file is held, was
        not read, or should have been sent, or no point of a site was compared with `deep`; else 0."""
        if any(not d.repaired for d in self.differences):
            return DIFFERENCES_FOUND
        if self.unreachable:
            return PermanentError.kind if self.refused else UnreachableError.kind
        partial = self.held or self.not_read or self._without_points or self._overdue_files
        return PartialError.kind if partial else 0

    @property
    def _without_points(self) -> tuple[NotCompared, ...]:
        return self.not_compared if self.deep else ()

    @property
    def _overdue_files(self) -> list[Unsent]:
        return [one for one in self.unsent if one.overdue]

    @property
    def error_fields(self) -> dict[str, str]:
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
        if without := self._without_points:
            more = f" (and {len(without) - 1} more)" if len(without) > 1 else ""
            told = f"nothing was compared of {without[0].what}: {without[0].reason}{more}"
            return {"error": told, "hint": without[0].next}
        if late := self._overdue_files:
            more = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
            told = (
                f"{late[0].site}: {late[0].path} is sealed since {format_moment(late[0].sealed_at)} and was not sent{more}"
            )
            return {"error": told, "hint": f"./tidemark why {shlex.quote(late[0].site)}"}
        return {}

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.exit_code == 0,
            **self.error_fields,
            "receiver": self.receiver,
            "checked": self.checked,
            "deep": self.deep,
            "series": self.series,
            "differences": [asdict(d) for d in self.differences],
            "repaired": sum(bool(d.repaired) for d in self.differences),
            "held": [{"path": path, "reason": reason} for path, reason in self.held],
            "pending": self.pending,
            **kept_json_of_sites(self.kept.items()),
            "proved": self.proved,
            "not_verified_at_source": self.unverified,
            "adopted": self.adopted,
            "unreachable": [{"site": site, "error": error} for site, error in self.unreachable],
            "not_read": [{"what": what, "reason": reason} for what, reason in self.not_read],
            "unsent": [{**vars(one), "sealed_at": format_iso(one.sealed_at)} for one in self.unsent[:UNSENT_SHOWN]],
            "unsent_files": len(self.unsent),
            "unsent_bytes": sum(one.bytes for one in self.unsent),
            "elsewhere": [{"site": site, "reason": reason} for site, reason in self.elsewhere],
            "not_compared": [asdict(one) for one in self.not_compared],
        }


_ROTTEN = "restore it at the site, or touch it there so that the next sync sends it as it is"
_AS_IT_IS = "restore it at the site, or send it as it is: ./tidemark verify --repair"


@dataclass(frozen=True)
class SourceFile:
    """A sealed file of the site that is what was acknowledged. `mods_size`: the acknowledged prefix of its mods."""

    path: str
    size: int
    name: SourceName
    mods_path: str
    mods_size: int
    sha256: str
    mods_sha256: str


@dataclass(frozen=True)
class SourceChecked:
    """`same`: path → verified file. `pending`: files that changed, arrived or vanished since the newest run. `other_mods`:
    different files whose TsFile is the acknowledged one: only their deletions were rewritten. `adopted`: files known without
    being sent, which have no digest. `sealed`: paths of all sealed files there."""

    same: Mapping[str, SourceFile]
    differences: tuple[Difference, ...]
    checked: int
    pending: int
    other_mods: frozenset[str] = frozenset()
    adopted: int = 0
    sealed: frozenset[str] = frozenset()


def check_source(store: Store, site: str, data: Sequence[str], acked: Sequence[Row]) -> SourceChecked:
    """Compare every acknowledged file that looks unchanged (size, mtime). Reads every byte at the site."""
    listing = store.list_files(data)
    sealed = {f.entry.path: f for f in classify_files(store, listing.entries, data).sealed}
    known = {r["path"]: r for r in acked}
    unchanged = [path for path, r in known.items() if path in sealed and _is_unchanged(sealed[path], r)]
    sent = [path for path in unchanged if int(known[path]["generation"])]
    asked = [_source_file(sealed[path], known[path]) for path in sent]
    ranges = [Range(f.path, 0, f.size) for f in asked]
    ranges += [Range(f.mods_path, 0, f.mods_size) for f in asked if f.mods_size]
    found = dict(zip(ranges, store.digest_ranges(ranges), strict=True))
    same: dict[str, SourceFile] = {}
    differences = [
        Difference(SOURCE, site, path, "source", f"{path} {why}: nothing there can be compared", next=LET_LIST)
        for path, why in odd_paths_to_report(listing.odd, data)
        if why.startswith(UNLISTED)
    ]
    other_mods = set()
    for file in asked:
        wrong = _describe_mismatch(file.path, file.sha256, found[Range(file.path, 0, file.size)])
        if file.mods_size and not wrong:
            wrong = _describe_mismatch(file.mods_path, file.mods_sha256, found[Range(file.mods_path, 0, file.mods_size)])
            other_mods |= {file.path} if wrong else set()
        if wrong:
            advice = _AS_IT_IS if file.path in other_mods else _ROTTEN
            differences.append(Difference(SOURCE, site, file.path, "source", wrong, next=advice))
        else:
            same[file.path] = file
    pending = len(sealed.keys() - set(unchanged)) + len(known.keys() - sealed.keys())
    adopted = len(unchanged) - len(sent)
    return SourceChecked(same, tuple(differences), len(ranges), pending, frozenset(other_mods), adopted, frozenset(sealed))


def _is_unchanged(file: SealedFile, row: Row) -> bool:
    size, mtime = (file.mods.size, file.mods.mtime) if file.mods else (0, 0)
    if size < int(row["mods_size"]) or (size == int(row["mods_size"]) and int(row["mods_mtime"]) not in (0, mtime)):
        return False
    return (file.entry.size, file.entry.mtime) == (int(row["size"]), int(row["mtime"]))


def _source_file(file: SealedFile, row: Row) -> SourceFile:
    return SourceFile(
        path=file.entry.path,
        size=int(row["size"]),
        name=file.name,
        mods_path=file.mods.path if file.mods else "",
        mods_size=int(row["mods_size"]) if file.mods else 0,
        sha256=row["sha256"],
        mods_sha256=row["mods_sha256"],
    )


def _describe_mismatch(path: str, recorded: str, found: str | None) -> str:
    if found == recorded:
        return ""
    if found is None:
        return f"{path} went away while it was read"
    return f"{path} has digest {found[:12]}… under the same size and time, {recorded[:12]}… was acknowledged"
