"""Report what a sync did, read from the ledger: the same for the command line, a DAG and a later question.

`with_kept_out` adds the files that the link's receiver keeps out of the catalog now: every file of the site that is refused
or in quarantine, whichever run sent it. Every sync reports them as long as they are kept out. A sync whose load refuses a
file ends with 21; a later one, which only finds it still refused, with 23. For a receiver with another ledger, its answers
are used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemark.app import App
from tidemark.errors import GuardError, NotFoundError, PartialError, RetryableError, worst_exit_code
from tidemark.ledger.database import Ledger
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import DROP, FAILED, HELD, SUPERSEDE, VANISHED, RunRow
from tidemark.ledger.sql import run_report
from tidemark.progress import format_count
from tidemark.receiver.load.result import Trouble, summarize_troubles
from tidemark.settings.model import LinkSettings
from tidemark.stores.protocol import UNLISTED
from tidemark.sync.notes import LET_LIST, not_verified, passed_over
from tidemark.sync.select.quarantine import QUARANTINED


@dataclass(frozen=True)
class SyncResult:
    """What a run did. `state`: nothing (no landing) | landed | loaded. `bytes`: size of the files; `sent_bytes`: bytes sent.

    `pending`: drops that wait for approval, superseded files that wait for their covering files, files left to the next run.
    `left_out`: (path, reason) of the latter, and of folders that could not be listed. `schema`: bytes of schema logs.
    `troubles`: errors of the load. `clashes`: series to which two sources give different types. `waits`: (path, reason) of
    files that landed and are not read yet. `guard_run`: the run whose drops wait at the receiver. `notes`: sentences on
    `--only` that matched nothing, skipped files, files not verified at the source. `distrusted`: files of this run that
    went into the link's quarantine; they are in `left_out`, and `as_json` adds them to `quarantined`. `unverified`: files
    of the link whose digest was never made at the source. `duration_seconds` and `bytes_per_second`: of the process that did
    all of it; None if several did.
    """

    run: str
    link: str
    state: str
    files: int = 0
    bytes: int = 0
    sent_bytes: int = 0
    dropped: int = 0
    superseded: int = 0
    pending: int = 0
    schema: int = 0
    landings: int = 0
    loaded: int = 0
    refused: int = 0
    quarantined: int = 0
    left_out: tuple[tuple[str, str], ...] = ()
    guard: str = ""
    troubles: tuple[Trouble, ...] = ()
    clashes: tuple[str, ...] = ()
    waiting_for_load: bool = False
    waits: tuple[tuple[str, str], ...] = ()
    guard_run: str = ""
    notes: tuple[str, ...] = ()
    distrusted: int = 0
    unverified: int = 0
    duration_seconds: float | None = None
    bytes_per_second: int | None = None

    @property
    def exit_code(self) -> int:
        kinds = {trouble.kind for trouble in self.troubles}
        kinds |= {GuardError.kind} if self.guard else set()
        kinds |= {PartialError.kind} if self.left_out else set()
        kinds |= {RetryableError.kind} if self.waiting_for_load else set()
        return worst_exit_code(kinds)

    @property
    def hint(self) -> str:
        """The next command if a person has to act, else ""."""
        if self.guard and self.guard_run:
            return f"./tidemark approve {self.guard_run}"
        if self.guard:
            return f"is the site's disk there? look at ./tidemark plan {self.link}; then ./tidemark approve {self.run}"
        if self.distrusted:
            return "look at the disks at both ends; ./tidemark quarantine list, then quarantine release ID"
        if self.left_out and all(why.startswith(UNLISTED) for _, why in self.left_out):
            return LET_LIST
        if self.left_out:
            return f"./tidemark sync {self.link} sends them; ./tidemark why FILE tells more"
        if self.waiting_for_load:
            return "./tidemark load"
        if self.troubles:
            return self.troubles[0].hint
        return ""

    @property
    def error(self) -> str:
        if self.guard:
            return f"drops wait for approval: {self.guard}"
        if self.left_out:
            path, reason = self.left_out[0]
            more = f" (and {len(self.left_out) - 1} more)" if len(self.left_out) > 1 else ""
            return f"{path} was left out: {reason}{more}"
        if self.waiting_for_load:
            return "the receiver is being loaded by another process"
        return summarize_troubles(self.troubles)

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"ok": self.exit_code == 0, "kind": self.exit_code}
        if self.exit_code:
            out |= {"error": self.error, "hint": self.hint}
        names = (
            "run",
            "link",
            "state",
            "files",
            "bytes",
            "sent_bytes",
            "dropped",
            "superseded",
            "pending",
            "schema",
            "landings",
            "loaded",
            "refused",
            "quarantined",
            "guard",
        )
        out |= {name: getattr(self, name) for name in names}
        out["quarantined"] += self.distrusted
        out["not_verified_at_source"] = self.unverified
        out["left_out"] = [{"path": path, "reason": reason} for path, reason in self.left_out]
        out["duration_seconds"], out["bytes_per_second"] = self.duration_seconds, self.bytes_per_second
        out["notes"] = list(self.notes)
        out["waits"] = [{"path": path, "reason": reason} for path, reason in self.waits]
        return out | {"troubles": [vars(trouble) for trouble in self.troubles], "clashes": list(self.clashes)}


def result_of(ledger: Ledger, run_id: str) -> SyncResult:
    """Return what a run has done so far. Raises NotFoundError."""
    with ledger.read() as connection:
        run = run_rows.get_run(connection, run_id)
        if run is None:
            raise NotFoundError(f"no run {run_id} in this ledger", hint="./tidemark status", subject=run_id)
        landings = run_rows.sent_landings(connection, run.link, run_id=run_id)
        counted = run_rows.count_items(connection, run_id)
        left = [(i.path, i.reason or "") for i in run_rows.read_items(connection, run_id, FAILED, VANISHED)]
        link = link_rows.get_link(connection, run.link)
        skipped = passed_over(connection, run.link)
        unverified = hold_rows.count_unverified(connection).get(run.link, 0)
        held = sum(one.link == run.link for one in hold_rows.held_files(connection))
        site = next((s.name for s in landing_rows.read_sites(connection).values() if link and s.site_id == link.site_id), "")
    return SyncResult(
        run=run_id,
        link=run.link,
        state="landed" if landings else "nothing",
        files=run.files,
        bytes=run.bytes,
        sent_bytes=run.sent_bytes,
        dropped=run.dropped,
        superseded=counted.get((SUPERSEDE, "landed"), 0),
        pending=sum(n for (_, state), n in counted.items() if state in (HELD, FAILED, VANISHED)),
        schema=run.schema_bytes,
        landings=len(landings),
        left_out=(*left, *skipped.unlisted),
        guard=(link.guard or "") if link and counted.get((DROP, HELD)) else "",
        distrusted=sum(reason.startswith(QUARANTINED) for _, reason in left),
        unverified=unverified,
        notes=(
            *_note_unmatched_only(run, bool(counted)),
            *skipped.notes,
            *_note_link_state(run.link, held, unverified, site),
        ),
    )


def _note_unmatched_only(run: RunRow, selected: bool) -> Iterator[str]:
    """Yield a note if `--only` matched nothing. `selected`: whether the run had anything to send or report."""
    only = json.loads(run.options).get("only_paths") or []
    if only and run.inventory is not None and not selected:
        lists = f"./tidemark plan {run.link} lists those that are"
        yield f"--only {' '.join(only)}: no such file is to be sent; {lists}"


def _note_link_state(link: str, held: int, unverified: int, site: str) -> Iterator[str]:
    """Yield notes on the link's quarantine and unverified files, whatever this run did."""
    if held:
        files = format_count(held, "file is", "files are")
        yield f"{files} in quarantine at link {link}, and no run sends what is there: ./tidemark quarantine list"
    if unverified:
        yield not_verified(unverified, site)


def sum_results(results: Sequence[SyncResult]) -> SyncResult:
    """Sum the results of a continued run and the new run after it. What waits is of the last result."""
    last = results[-1]
    amounts = ("files", "bytes", "sent_bytes", "dropped", "superseded", "schema", "landings")
    summed = {name: sum(getattr(r, name) for r in results) for name in amounts}
    state = "landed" if any(r.state == "landed" for r in results) else last.state
    return replace(last, state=state, **summed)


def with_receiver(app: App, link: LinkSettings, result: SyncResult) -> SyncResult:
    """Return the result with what waits at a receiver of this ledger: for an approval, or for files to be sent again."""
    site_id = app.site_settings(link.site).id
    with app.ledger.read() as connection:
        rows = run_report(connection, "site_counts")
    counts = next((r for r in rows if (r["receiver"], r["site_id"]) == (link.receiver, site_id)), None)
    if counts is None:
        return result
    waits = tuple(sorted(json.loads(counts["waits"]).items())) if counts["waits"] else ()
    result = replace(result, pending=result.pending + max(int(counts["pending_drops"]), len(waits)), waits=waits)
    if not counts["asking"] or result.guard:
        return result
    return replace(result, guard=counts["asking_reason"] or "", guard_run=counts["asking_landing"].rpartition("-")[0])


def with_kept_out(app: App, link: LinkSettings, result: SyncResult) -> SyncResult:
    """Return the result with every file of the site that is refused or in quarantine now, whichever run sent it."""
    found = kept_out(app, link)
    if not found:
        return result
    told = {(one.what, one.path) for one in result.troubles}
    older = [one for one in found if (one.what, one.path) not in told]
    kinds = [one.what for one in found]
    return replace(
        result,
        refused=max(result.refused, kinds.count("refused")),
        quarantined=max(result.quarantined, kinds.count("quarantined")),
        troubles=(*result.troubles, *older),
    )


def kept_out(app: App, link: LinkSettings) -> Sequence[Trouble]:
    """Return every file of the link's site that its receiver refuses or holds in quarantine now."""
    receiver = app.receiver_settings(link.receiver)
    with app.ledger.read() as connection:
        if app.receiver_root(receiver) is None:
            rows = run_report(connection, "standing_answers", link=link.name)
        else:
            rows = run_report(connection, "standing_troubles", receiver=receiver.name, site=app.site_settings(link.site).id)
    return [Trouble(r["what"], r["landing"], r["path"], r["reason"], int(r["kind"])) for r in rows]
