"""One line per link: what it does, what waits and why. Pure: decided from the ledger, so it works while the site is away.

| state | means |
|---|---|
| `new` | never ran |
| `running` | a process works on the link now, or its run is between two tasks of a scheduler |
| `interrupted` | a run stopped without ending (killed, power); the next one continues |
| `retrying` | a task of the run failed; its scheduler tries it again |
| `window` | the link's window closed; the run continues in the next one |
| `failed` | the newest run, or its scheduler's last try, ended with an error; the next run continues |
| `guard` | drops wait for the operator; transfers go on |
| `gap` | the receiver misses a landing of the sequence, or cannot accept one |
| `landed` | landed, and the receiver has not answered yet |
| `partial` | files are refused or in quarantine; everything else is done |
| `pending` | all files arrived, and a settled file holds a change back until its other sources are resent |
| `stale` | the site's last whole listing is too old: what was sealed since is unknown |
| `idle` | nothing to do until the schedule starts a run |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.errors import PartialError, PermanentError, WindowOverError
from tidemark.ledger.receiver.settled import KeptFile
from tidemark.ledger.sender.links import FAILED, RETRYING, WORKING, Try
from tidemark.progress import Figures, format_count, format_figures
from tidemark.proof.as_of import NEVER, AsOf, format_iso
from tidemark.proof.explanation import SHOWN, join_names, kept_json, kept_note
from tidemark.sync.notes import not_verified

RED = ("failed", "stale")
"""States that `status` does not end well with."""
LOST_SECONDS = 60.0  # a worker on another host that has had no lease for so long is dead
OVERDUE_SECONDS = 900.0  # a try overdue for so long will not run: the scheduler is down


@dataclass(frozen=True)
class LinkFacts:
    """What the ledger says of a link; times in seconds since 1970. `holder` is '' without a live holder."""

    link: str
    site: str
    receiver: str
    run: str = ""
    run_state: str = ""
    step: str = ""
    started: float | None = None
    ended: float | None = None
    last_success: float | None = None
    error_kind: int | None = None
    error: str = ""
    hint: str = ""
    guard: str = ""
    guard_run: str = ""
    holder: str = ""
    parked: bool = False  # the holder is between two tasks of a scheduler: no process has it
    host: str = ""
    attempt: Try | None = None  # of a scheduler's newest task; None where a command ran the link since
    attempted: float = 0.0  # when that was recorded
    as_of: AsOf = NEVER  # the site's last whole listing by this link
    worker: bool | None = None  # whether the attempt's process lives, None if unknown
    backlog_files: int = 0
    backlog_bytes: int = 0
    oldest_unsent: float | None = None  # its mtime
    oldest_path: str = ""
    skipped: int = 0
    unanswered: int = 0
    unloaded: int = 0
    behind_gap: int = 0
    rejected: int = 0
    landing_reason: str = ""
    quarantined: int = 0
    refused: int = 0
    pending_drops: int = 0
    asking: str = ""  # why the receiver waits for the operator, and for which run's drops
    asking_run: str = ""
    progress: Figures | None = None  # of the run that holds the link
    distrusted: int = 0  # in the link's own quarantine
    unverified: int = 0  # files at the receiver whose digest was never computed at the source
    unlisted: tuple[tuple[str, str], ...] = ()  # (path, why) of folders at the site that could not be listed
    passed_over: tuple[str, ...] = ()  # what else the newest listing skipped, in words
    late: tuple[tuple[str, str], ...] = ()  # (path, why) of changes that a settled file holds back
    kept: tuple[KeptFile, ...] = ()  # files that vanished at the site and that the receiver keeps
    damaged: tuple[str, ...] = ()  # data files of the site whose last digest was not the recorded one


@dataclass(frozen=True)
class LinkStatus:
    """What `status` says of one link."""

    facts: LinkFacts
    state: str
    reason: str
    next: str
    lag: float  # seconds the oldest unsent file has waited, 0 with no backlog

    @property
    def knows_backlog(self) -> bool:
        """False until a run has listed the site: that no file is known then does not mean that none waits."""
        f = self.facts
        return f.as_of.at is not None or f.last_success is not None or f.backlog_files > 0

    def as_json(self) -> dict[str, Any]:
        f = self.facts
        return {
            "name": f.link,
            "site": f.site,
            "receiver": f.receiver,
            "state": self.state,
            "reason": self.reason,
            "next": self.next,
            "last_run": f.run or None,
            "last_run_state": f.run_state or None,
            "try": f.attempt.try_number if f.attempt else None,
            "tries": f.attempt.tries if f.attempt else None,
            "next_try": format_iso(f.attempt.next_try) if f.attempt and self.state == "retrying" else None,
            "as_of": format_iso(f.as_of.at),
            "stale": f.as_of.stale,
            "last_run_started": format_iso(f.started),
            "last_run_ended": format_iso(f.ended),
            "last_success": format_iso(f.last_success),
            "lag_seconds": round(self.lag, 3),
            "backlog_known": self.knows_backlog,
            "backlog_files": f.backlog_files,
            "backlog_bytes": f.backlog_bytes,
            "oldest_unsent": format_iso(f.oldest_unsent),
            "oldest_unsent_path": f.oldest_path or None,
            "guard": f.guard or f.asking or None,
            "receipt": {"unanswered": f.unanswered, "refused": f.refused, "quarantined": f.quarantined},
            "landings": {"unloaded": f.unloaded, "behind_gap": f.behind_gap, "rejected": f.rejected},
            "skipped": f.skipped,
            "damaged": list(f.damaged[:SHOWN]),
            "quarantined": f.distrusted,
            "not_verified_at_source": f.unverified,
            "notes": [
                *f.passed_over,
                *([not_verified(f.unverified, f.site)] if f.unverified else []),
                *kept_note(f.kept),
                *damage_note(f.damaged),
            ],
            "pending_drops": f.pending_drops,
            **kept_json(f.kept),
            "progress": _encode_progress(f.progress),
            "late": [{"path": path, "reason": why} for path, why in f.late],
        }


@dataclass(frozen=True)
class TargetStatus:
    """The state of a receiver's IoTDB. `waits`: files still to be sent to it. `held`: files it cannot receive. `differs`:
    why its counts differ from the catalog's, by database and partition."""

    receiver: str
    server: str
    given: int
    waits: int
    held: int
    differs: tuple[str, ...]

    @property
    def state(self) -> str:
        """equal | differs | held | behind."""
        return "differs" if self.differs else "held" if self.held else "behind" if self.waits else "equal"


@dataclass(frozen=True)
class ClusterStatus:
    """The state of a receiver's nodes. `nodes`: (name, state, bytes). `behind`: members that lack operations. `change`: the
    unfinished one, '' without. `done` of `bytes` have been copied for the slots that move."""

    receiver: str
    epoch: int
    nodes: tuple[tuple[str, str, int], ...]
    moving: int  # slots
    bytes: int
    done: int
    change: str
    change_state: str
    behind: tuple[str, ...]
    ahead: tuple[str, ...] = ()  # groups that the last round of the watch found ahead of the ledger

    @property
    def state(self) -> str:
        """older (the ledger, than the nodes) | changing (not in force yet) | moving | behind | settled."""
        if self.ahead:
            return "older"
        if self.change_state == "planned":
            return "changing"
        return "moving" if self.moving or self.change else "behind" if self.behind else "settled"

    @property
    def next(self) -> str:
        """The command that helps, '' where none is needed."""
        from tidemark.cluster.nodes.cluster import command_of_change

        if self.ahead:
            return "./tidemark ledger rebuild --replace"
        return command_of_change(self.change) if self.change else "./tidemark load" if self.behind else ""

    def as_json(self) -> dict[str, Any]:
        nodes = [{"name": name, "state": state, "bytes": count} for name, state, count in self.nodes]
        groups = {"behind": list(self.behind), "ahead": list(self.ahead)}
        return {**vars(self), "nodes": nodes, **groups, "state": self.state, "next": self.next}


@dataclass(frozen=True)
class LineStatus:
    """Who sends under a receiver's `bandwidth` now: (holder, its share in bytes per second)."""

    receiver: str
    bandwidth: float
    holders: tuple[tuple[str, float], ...]

    def as_json(self) -> dict[str, Any]:
        holders = [{"holder": holder, "bytes_per_second": round(rate)} for holder, rate in self.holders]
        return {"receiver": self.receiver, "bytes_per_second": round(self.bandwidth), "holders": holders}


def damage_note(damaged: Sequence[str]) -> tuple[str, ...]:
    """Return one line for a person; () without such files."""
    if not damaged:
        return ()
    files = format_count(len(damaged), "file is", "files are")
    return (f"{files} not what was loaded: {join_names(damaged)}",)


def _is_stale(link: LinkStatus) -> bool:
    return link.facts.as_of.stale and link.state != "running"


@dataclass(frozen=True)
class StatusReport:
    """The whole answer of `status`."""

    links: tuple[LinkStatus, ...]
    iotdb: tuple[TargetStatus, ...] = ()
    cluster: ClusterStatus | None = None
    lines: tuple[LineStatus, ...] = ()
    sources: tuple[Mapping[str, Any], ...] = ()  # of changes, as `changes.sources.show.note_source` tells them
    sinks: tuple[Mapping[str, Any], ...] = ()  # as `changes.sinks.show.note_sink` tells them

    @property
    def exit_code(self) -> int:
        """0, or that of PartialError while a link, a source or a sink needs attention; that of PermanentError if the nodes
        are ahead of the ledger."""
        if self._is_older:
            return PermanentError.kind
        return PartialError.kind if self._red_links or self._sources_with_gaps or self._failed_sinks else 0

    @property
    def _is_older(self) -> bool:
        return self.cluster is not None and bool(self.cluster.ahead)

    @property
    def _sources_with_gaps(self) -> list[Mapping[str, Any]]:
        return [source for source in self.sources if source["gaps"]]

    @property
    def _failed_sinks(self) -> list[Mapping[str, Any]]:
        return [sink for sink in self.sinks if sink["failed"]]

    @property
    def _red_links(self) -> list[LinkStatus]:
        return [link for link in self.links if link.state in RED or link.facts.damaged or _is_stale(link)]

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"links": [link.as_json() for link in self.links]}
        if self._is_older and self.cluster is not None:
            found["error"] = f"the ledger is older than the nodes: they are ahead in group {join_names(self.cluster.ahead)}"
            found["hint"] = self.cluster.next
        elif red := self._red_links:
            first, more = red[0], f" (and {len(red) - 1} more)" if len(red) > 1 else ""
            damage = damage_note(first.facts.damaged)
            why = first.reason if first.state in RED else damage[0] if damage else first.facts.as_of.text
            found["error"] = f"link {first.facts.link} ({first.state}): {why}{more}"
            found["hint"] = (
                f"./tidemark verify --repair --site {first.facts.site}" if damage and why in damage else first.next
            )
        elif gaps := self._sources_with_gaps:
            found["error"] = f"source {gaps[0]['name']} has a gap: its server purged what was not captured"
            found["hint"] = gaps[0]["next"]
        elif failed := self._failed_sinks:
            found["error"] = f"sink {failed[0]['name']} ({failed[0]['state']}): {failed[0]['why']}"
            found["hint"] = failed[0]["next"]
        if self.sources:
            found["sources"] = [dict(source) for source in self.sources]
        if self.sinks:
            found["sinks"] = [dict(sink) for sink in self.sinks]
        if self.iotdb:
            found["iotdb"] = [{"state": one.state, **vars(one), "differs": list(one.differs)} for one in self.iotdb]
        if self.cluster is not None:
            found["cluster"] = self.cluster.as_json()
        if self.lines:
            found["lines"] = [line.as_json() for line in self.lines]
        return found


def link_status(facts: LinkFacts, clock: float) -> LinkStatus:
    """Decide the state. `clock` is now, in seconds since 1970."""
    state, reason, following = _judge_active(facts, clock) or _judge_inactive(facts)
    lag = max(0.0, clock - facts.oldest_unsent) if facts.oldest_unsent is not None else 0.0
    return LinkStatus(facts, state, reason, following, lag)


def _encode_progress(figures: Figures | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    t = figures.tick
    return {
        "phase": t.phase,
        "files": t.done,
        "files_total": t.total or None,
        "bytes": t.bytes_done,
        "bytes_total": t.bytes_total or None,
        "bytes_per_second": round(figures.rate),
        "seconds_left": None if figures.left is None else round(figures.left, 1),
    }


def _judge_active(f: LinkFacts, clock: float) -> tuple[str, str, str] | None:
    """Return the state of a link that a process or scheduler works on, or whose run stopped; None for any other.

    A lease between two tasks shows only that the run may continue, so the newest try's end is checked first.
    """
    sync = f"./tidemark sync {f.link}"
    if f.holder and not f.parked:
        at = format_figures(f.progress) if f.progress else f.step or "its start"
        return "running", f"run {f.holder} on {f.host}, at {at}", f"./tidemark why {f.holder}"
    if f.attempt is not None and (found := _judge_attempt(f, f.attempt, clock)):
        return found
    if f.run_state == "running" and f.holder:
        return "running", f"run {f.holder}, between two tasks, after {f.step}", f"./tidemark why {f.holder}"
    if f.run_state == "running":
        return "interrupted", f"run {f.run} stopped at {f.step} without ending", sync
    return None


def _judge_attempt(f: LinkFacts, attempt: Try, clock: float) -> tuple[str, str, str] | None:
    """Return what the scheduler's newest try shows, while no process holds the link's lease."""
    sync, run = f"./tidemark sync {f.link}", f"run {f.run}, " if f.run_state in ("running", "failed") else ""
    named = f"{run}task {attempt.task}, try {attempt.try_number} of {attempt.tries}"
    if attempt.state == FAILED:
        return "failed", f"{named}: {attempt.error}", attempt.hint or sync
    if attempt.state == RETRYING and attempt.next_try is not None:
        if clock - attempt.next_try > OVERDUE_SECONDS:
            due = f"the next one was due at {format_iso(attempt.next_try)}: does the scheduler run?"
            return "interrupted", f"{named} failed: {attempt.error}; {due}", sync
        return (
            "retrying",
            f"{named} failed: {attempt.error}; next try at {format_iso(attempt.next_try)}",
            attempt.hint or sync,
        )
    if attempt.state == WORKING and (f.worker or (f.worker is None and clock - f.attempted < LOST_SECONDS)):
        return "running", named, f"./tidemark why {f.link}"
    if attempt.state == WORKING:
        return "interrupted", f"{named}: its process is gone; its scheduler tries it again", sync
    return None


def _judge_inactive(f: LinkFacts) -> tuple[str, str, str]:
    sync = f"./tidemark sync {f.link}"
    if not f.run:
        return "new", "it never ran", sync
    if f.run_state == "failed" and f.error_kind == WindowOverError.kind:
        return "window", f.error, f.hint or sync
    if f.run_state == "failed":
        return "failed", f.error, f.hint or sync
    if f.guard:
        approve = f"./tidemark approve {f.guard_run or f.run}"
        return "guard", f.guard, f"is the site's disk there? look at ./tidemark plan {f.link}; then {approve}"
    if f.asking:
        return "guard", f.asking, f"./tidemark approve {f.asking_run}"
    if f.behind_gap or f.rejected:
        return "gap", f.landing_reason, f"./tidemark why {f.link}"
    held = f.quarantined + f.distrusted
    if held or f.refused:
        lists = [f"./tidemark {verb} list" for verb, n in (("quarantine", held), ("owners", f.refused)) if n]
        counts = ((held, "in quarantine"), (f.refused, "refused"))
        return "partial", ", ".join(f"{number} {what}" for number, what in counts if number), ", ".join(lists)
    if f.unlisted:
        return "partial", f"{_format_first(f.unlisted)}: what is there is not sent", f"./tidemark why {f.unlisted[0][0]}"
    if f.unanswered or f.unloaded:
        landings = format_count(max(f.unanswered, f.unloaded), "landing is", "landings are")
        return "landed", f"{landings} not loaded yet", "./tidemark load"
    if f.late:
        return "pending", _format_first(f.late), sync
    if f.as_of.stale:
        return "stale", f"site {f.site}: {f.as_of.text}", sync
    return "idle", "", ""


def _format_first(found: Sequence[tuple[str, str]]) -> str:
    """Format the first of (path, why), and how many more there are."""
    path, why = found[0]
    return f"{path}: {why}" + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
