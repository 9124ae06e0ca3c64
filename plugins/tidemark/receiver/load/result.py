"""What a load did: counts, and every trouble."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.errors import CorruptionError, OwnershipError, PartialError, TaskLimitError, worst_exit_code
from tidemark.formats.landing import Receipt


@dataclass(frozen=True)
class Trouble:
    """Something that did not load. `what`: landing | receipt | site | refused | quarantined | schema | iotdb; `kind`: exit
    code."""

    what: str
    landing: str
    path: str
    reason: str
    kind: int

    @property
    def text(self) -> str:
        """The file or landing and the reason, which may name the file itself."""
        place = self.path or self.landing
        return self.reason if self.reason.startswith((f"{place}: ", f"{place} ")) else f"{place}: {self.reason}"

    @property
    def hint(self) -> str:
        """The next command."""
        if self.what == "quarantined":
            return f"./tidemark quarantine list, ./tidemark why {shlex.quote(self.path)}"
        if self.what == "refused":
            return f"./tidemark owners list, ./tidemark why {shlex.quote(self.path)}"
        if self.what == "iotdb":
            return "./tidemark doctor, then ./tidemark load: it goes on where it stopped (docs/iotdb.md)"
        return f"./tidemark why {shlex.quote(self.landing)}"


def summarize_troubles(troubles: Sequence[Trouble]) -> str:
    """Return the first trouble with path and reason, and how many more there are; '' where there is none."""
    if not troubles:
        return ""
    more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
    return f"{troubles[0].text}{more}"


@dataclass(frozen=True)
class IotdbResult:
    """What a receiver's IoTDB received. `files`: LOADed unchanged. `points`: inserted because they were missing. `found`:
    points that it had already. `gone`: files that left it, by `deleted` deletions. `counted`: points that it returned
    afterwards."""

    server: str
    files: int = 0
    points: int = 0
    found: int = 0
    gone: int = 0
    deleted: int = 0
    counted: int = 0
    troubles: tuple[Trouble, ...] = ()

    @property
    def exit_code(self) -> int:
        return worst_exit_code({trouble.kind for trouble in self.troubles})

    def as_json(self) -> dict[str, Any]:
        told = {"error": summarize_troubles(self.troubles), "hint": self.troubles[0].hint} if self.troubles else {}
        held = [vars(trouble) for trouble in self.troubles]
        return {"ok": self.exit_code == 0, **told, **vars(self), "troubles": held}


@dataclass(frozen=True)
class LoadResult:
    """`landings`: answered by this load. `loaded`, `quarantined`, `refused`: their files. `waiting`: landings behind a gap.

    `pending`: (path, reason) of vanished files that wait. `clashes`: series that two sources give different types.
    """

    receiver: str
    landings: int = 0
    loaded: int = 0
    quarantined: int = 0
    refused: int = 0
    waiting: int = 0
    rejected: int = 0
    troubles: tuple[Trouble, ...] = ()
    pending: tuple[tuple[str, str], ...] = ()
    clashes: tuple[str, ...] = ()
    iotdb: IotdbResult | None = None  # where the receiver has one

    @property
    def has_given(self) -> bool:
        """Whether the receiver's IoTDB received or removed anything."""
        return self.iotdb is not None and bool(self.iotdb.files or self.iotdb.points or self.iotdb.gone)

    @property
    def exit_code(self) -> int:
        return worst_exit_code({trouble.kind for trouble in self.troubles})

    def as_json(self) -> dict[str, Any]:
        told = {"error": summarize_troubles(self.troubles), "hint": self.troubles[0].hint} if self.troubles else {}
        return {
            "ok": self.exit_code == 0,
            **told,
            **({"iotdb": self.iotdb.as_json()} if self.iotdb else {}),
            "receiver": self.receiver,
            "landings": self.landings,
            "loaded": self.loaded,
            "quarantined": self.quarantined,
            "refused": self.refused,
            "waiting": self.waiting,
            "rejected": self.rejected,
            "troubles": [vars(trouble) for trouble in self.troubles],
            "pending": [{"path": path, "reason": reason} for path, reason in self.pending],
            "clashes": list(self.clashes),
        }


@dataclass
class Tally:
    """What a load has done so far."""

    landings: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    rejected: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    pending: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # by site
    clashes: list[str] = field(default_factory=list)

    def count_rejected(self, trouble: Trouble) -> None:
        self.rejected += 1
        self.troubles.append(trouble)

    def count_waiting(self, trouble: Trouble) -> None:
        self.waiting += 1
        self.troubles.append(trouble)

    def count_landing(self, site_id: str, receipt: Receipt, clashes: Iterable[str], too_much: Collection[str] = ()) -> None:
        """Count one landing's answers. `too_much`: paths in quarantine because a limit ended their check."""
        kinds = {"refused": OwnershipError.kind, "quarantined": CorruptionError.kind, "schema": PartialError.kind}
        self.landings += 1
        for answer in receipt.answers:
            self.outcomes[answer.outcome] = self.outcomes.get(answer.outcome, 0) + 1
            if answer.outcome in kinds:
                kind = TaskLimitError.kind if answer.path in too_much else kinds[answer.outcome]
                self.troubles.append(Trouble(answer.outcome, receipt.landing, answer.path, answer.reason, kind))
        self.pending[site_id] = receipt.pending
        self.clashes.extend(clashes)

    def make_result(self, receiver: str) -> LoadResult:
        return LoadResult(
            receiver=receiver,
            landings=self.landings,
            loaded=self.outcomes.get("loaded", 0),
            quarantined=self.outcomes.get("quarantined", 0),
            refused=self.outcomes.get("refused", 0),
            waiting=self.waiting,
            rejected=self.rejected,
            troubles=tuple(self.troubles),
            pending=tuple(p for found in self.pending.values() for p in found),
            clashes=tuple(self.clashes),
        )
