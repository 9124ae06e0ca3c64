"""Explain why a file is where it is, by rules from the most pressing state to the final ones. Pure.

The first rule that fits answers; `_RULES` has their order. `FileFacts` is all that the ledger says of one file. Each rule
returns a `Finding` or None. Some rules are about what the file's links know, others about what its receivers know. For a
file that no run has listed yet, `explain_unlisted` says what the next run will do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tidemark.ledger.receiver.landings import GIVEN_UP
from tidemark.ledger.sql import Row
from tidemark.proof.explanation import MIXED, Explanation, format_time, join_names
from tidemark.proof.status import LinkStatus
from tidemark.settings.model import SiteSettings
from tidemark.stores.listing import classify_files
from tidemark.stores.protocol import UNLISTED, Store
from tidemark.sync.notes import LET_LIST
from tidemark.tsfiles.sealed import COMPACTING, UNTOLD, WAITS


def explain_pending_drop(file: FileFacts) -> Finding | None:
    for kind in ("superseded", "dropped"):
        if row := file.find_trouble(kind, ("waiting",)):
            run = row["landing"].rpartition("-")[0]
            return Finding(
                "waiting for approval",
                row["reason"] or f"the site's {kind} file waits for the operator",
                f"./tidemark approve {run}",
                "the file stays in the catalog as it is; everything else goes on",
            )
        if file.late:
            continue  # explain_held_back says more
        if row := file.find_trouble(kind, ("pending",)):
            by = json.loads(row["covered_by"])
            return Finding(
                "superseded, swap pending" if kind == "superseded" else "drop pending",
                row["reason"] or "not every file that covers it is loaded",
                f"./tidemark why {by[0]}" if by else "./tidemark load",
                "it leaves the catalog in the same transaction that brings the last file that covers it",
                evidence=(f"covered by {join_names(by)}",) if by else (),
            )
    return None


def explain_refused(file: FileFacts) -> Finding | None:
    row = file.find_trouble("refusal", ("refused",))
    if row is None:
        return None
    owner = file.name_of_site(row["owner_site"])
    return Finding(
        "refused",
        f"device {row['device']} belongs to site {owner} since {format_time(row['owner_since'])}; this file holds it too",
        f"./tidemark owners transfer {_quote_word(row['device'])} --to {file.site} --receiver {row['receiver']}",
        "this file alone stays out; its bytes are kept and are loaded when the device is transferred",
        evidence=(f"refused at {row['receiver']} on {format_time(row['at'])}, landing {row['landing']}",),
    )


def explain_quarantined(file: FileFacts) -> Finding | None:
    row = file.find_trouble("quarantine", ("held",))
    if row is None:
        return None
    following, wait = _advise_resend(file, row) or (
        f"./tidemark quarantine release {row['id']}   or   ./tidemark quarantine drop {row['id']}",
        "it stays out of the catalog; a newer generation of the file takes its place by itself",
    )
    return Finding(
        "in quarantine",
        row["reason"],
        following,
        wait,
        evidence=(f"quarantine {row['id']} at {row['receiver']} since {format_time(row['at'])}, landing {row['landing']}",),
    )


def _advise_resend(file: FileFacts, row: Row) -> tuple[str, str] | None:
    """Return (next, if you wait) for a held file that its link sends again by itself; None where it does not."""
    link = file.link
    if link is None or link["receiver"] != row["receiver"]:
        return None
    if link["state"] == "waiting":
        following = f"nothing: the next run sends it again (./tidemark sync {link['link']} does it now)"
        return following, "what the next run brings takes its place, and what is held goes"
    if int(link["generation"]) > int(row["generation"]):
        return "./tidemark load", "it was sent again; the load of that landing takes it, and what is held goes"
    if link["state"] == "acked" and link["landing_state"] == "landed":
        following = (
            f"./tidemark sync {link['link']}: it reads this answer, and sends the file again where its bytes did not come"
        )
        return following, "the next run does it by itself; decide only if the file is held after it"
    return None


def explain_dismissed(file: FileFacts) -> Finding | None:
    row = file.find_trouble("refusal", ("dismissed",))
    held = int(file.newest["generation"]) if file.newest else 0
    if row is None or max(file.landed_generation, held) > int(row["generation"]):
        return None
    return Finding(
        "given up",
        f"device {row['device']} belonged to site {file.name_of_site(row['owner_site'])}; the operator dismissed the file",
        "./tidemark verify shows whether the site still has it; a newer generation of it is sent as any other",
        "it stays out of the catalog, and red in its coverage for as long as the site has it",
        evidence=(f"refused at {row['receiver']} on {format_time(row['at'])}, landing {row['landing']}",),
    )


def explain_given_up(file: FileFacts) -> Finding | None:
    row = file.find_trouble("quarantine", ("dropped",))
    held = int(file.newest["generation"]) if file.newest else 0
    if row is None or max(file.landed_generation, held) > int(row["generation"]):
        return None
    return Finding(
        "given up",
        f"the operator dropped it from quarantine: {row['reason']}",
        "./tidemark verify shows whether the site still has it; a newer generation of it is sent as any other",
        "it stays out of the catalog, and red in its coverage for as long as the site has it",
        evidence=(f"quarantine {row['id']} at {row['receiver']}, landing {row['landing']}",),
    )


def explain_held_back(file: FileFacts) -> Finding | None:
    """Explain a file that arrived and that a settled file holds back."""
    if not file.late:
        return None
    link = file.link["link"] if file.link else ""
    asks = "approve" in file.late
    return Finding(
        "waiting for settled files",
        file.late,
        "./tidemark status" if asks else f"./tidemark sync {link}".rstrip(),
        "readers see the settled file until then" if asks else "the next run sends what is asked for, then it is read",
        evidence=tuple(f"{m['location']} stands for it" for m in file.above if m["settled"]),
    )


def explain_landed(file: FileFacts) -> Finding | None:
    """Explain a file of which a newer generation landed than the catalog holds."""
    held = int(file.newest["generation"]) if file.newest else 0
    link = file.link
    if link is None or not link["landing"] or link["state"] != "acked" or int(link["generation"]) <= held:
        return None
    if link["receiver"] in file.remote:
        if link["landing_state"] == "answered":
            return Finding("loaded", f"receiver {link['receiver']} answered: loaded", final=True)
        return Finding(
            "landed",
            f"landing {link['landing']} is whole at {link['receiver']}, which has not answered yet",
            "./tidemark load, on the machine of the receiver",
            "the load DAG there takes it; the next run reads the answer",
        )
    return Finding(
        "landed, not loaded",
        f"landing {link['landing']} (sequence {link['sequence']}) waits to be loaded at {link['receiver']}",
        "./tidemark load",
        "the load DAG takes it; landings load in sequence",
        evidence=tuple(f"{r['receiver']}: {r['landing_reason']}" for r in file.receivers if r["landing_reason"]),
    )


def explain_in_catalog(file: FileFacts) -> Finding | None:
    row = file.newest
    if row is None or row["state"] != "live" or int(row["generation"]) < file.landed_generation:
        return None
    if int(row["rank_unsequence"]) < 0:
        return _explain_kept(file)
    if row["undecodable"]:
        return Finding(
            "in the catalog, partly unreadable",
            f"no reader of Tidemark decodes: {join_names(json.loads(row['undecodable']))}; the file is kept as it came",
            "upgrade Tidemark when it learns the encoding",
            "all other series of it are read; these are named by every read",
        )
    if file.clashes:
        clash = file.clashes[0]
        return Finding(
            "in the catalog, a type clashes",
            f"series {clash['series']} is {clash['type']} here and {clash['clash']} in another source",
            "agree on one type at the sites; both are kept as they came",
            "both are read, each with its own type; wide output writes them as text",
        )
    if not row["visible"]:
        return _explain_merged(file)
    if file.kept_apart:
        kept = file.kept_apart[0]
        return Finding(
            "in the catalog, not merged", f"{kept['subject']}: {kept['reason']}", "", "readers see it; newest wins", True
        )
    return Finding("in the catalog", f"readers see it as {row['location']}", final=True)


def _explain_kept(file: FileFacts) -> Finding:
    """Explain a file that vanished at the site and ranks below all that the site has."""
    drop = file.find_trouble("dropped", ("done",))
    since = f" (told by landing {drop['landing']}, {format_time(drop['at'])})" if drop else ""
    return Finding(
        "kept after a drop",
        f'gone at the site since{since}; kept because its link has deletes = "keep". It never wins over a file that the site'
        " has: it only fills times at which those have nothing",
        'nothing, if that is wanted; what its site drops leaves the catalog with deletes = "apply" in its link',
        "it stays; where the site has it again, it is as any other file",
        final=True,
        evidence=("readers leave such files out with --live-only (read, verify --deep)",),
    )


def _explain_settled_kept(file: FileFacts, gone: str) -> Finding:
    """Explain a file that vanished at the site after it settled, or before. `gone`: what became of its own bytes."""
    above = [m for m in file.above if m["settled"]]
    mixed = [m for m in above if int(m["rank_unsequence"]) >= 0]
    if not mixed:
        found = _explain_kept(file)
        by = file.find_trouble("superseded", ("done",))
        cause = f"other files of the site cover it now: {join_names(json.loads(by['covered_by']))}" if by else found.cause
        return replace(found, cause=f"{cause}. Its points stay in {above[0]['location']}, which stands alone; {gone}")
    drop = file.find_trouble("dropped", ("done",))
    why = f"{drop['reason']}; " if drop and drop["reason"] else ""
    return Finding(
        "kept after a drop",
        f"{why}{mixed[0]['location']} holds its points, {MIXED}; {gone}",
        if_you_wait="it stays; once every other file of that merged file came again or is gone too, it only fills times at"
        " which the site has nothing",
        final=True,
        evidence=("--live-only does not leave its rows out (read, verify --deep)",),
    )


def _explain_merged(file: FileFacts) -> Finding:
    above = [m for m in file.above if m["visible"]]
    if not above:
        return Finding(
            "hidden", "no merged file that readers see stands for it", "./tidemark verify --repair", "it stays unread"
        )
    counts = [f"{m['location']}: {_format_account(m)}" for m in above]
    return Finding("merged", f"merged file {above[0]['location']} stands for it", final=True, evidence=tuple(counts))


def explain_retired(file: FileFacts) -> Finding | None:
    row = file.newest
    if row is None or row["state"] == "live" or int(row["generation"]) < file.landed_generation:
        return None
    gone = "its bytes go after the grace" if row["state"] == "retired" else "its bytes were removed after the grace"
    if any(m["settled"] for m in file.above):
        if not any(r["live"] for r in file.receivers if r["receiver"] == row["receiver"]):
            return _explain_settled_kept(file, gone)
        return Finding("settled", f"a merged file stands alone for it; {gone}", final=True)
    for kind, word in (("superseded", "superseded"), ("dropped", "removed")):
        if row_ := file.find_trouble(kind, ("done",)):
            by = json.loads(row_["covered_by"])
            why = (
                f"other files of the site cover it now: {join_names(by)}"
                if by
                else row_["reason"] or 'the site dropped it, and the drop took effect (deletes = "apply", or approved)'
            )
            proof = (f"it lives on: {row_['reason']}",) if by and row_["reason"] else ()
            given_up = (row_["reason"] or "").startswith(GIVEN_UP)
            return Finding("given up" if given_up else word, f"{why}; {gone}", final=True, evidence=proof)
    return Finding("replaced", f"a newer generation took its place; {gone}", final=True)


def explain_never_sent(file: FileFacts) -> Finding | None:
    for row in file.receivers:
        if row["live"]:
            return Finding(
                "never came",
                f"the site listed it in landing {row['landing']}, and no landing has carried it",
                "at the sender: ./tidemark why " + file.path,
                "the sender's next run sends it, unless something there holds it back",
            )
        return Finding("gone at the site", "the site had it and removed it before any landing carried it", final=True)
    return None


def _format_account(merged: Row) -> str:
    lost = f"{merged['overwritten']} overwritten + {merged['deleted']} deleted"
    return f"{merged['points_in']} in = {merged['points_out']} out + {lost}"


def _quote_word(text: str) -> str:
    return text if all(c.isalnum() or c in "._-/" for c in text) else "'" + text.replace("'", "'\\''") + "'"


def explain_guard_hold(file: FileFacts) -> Finding | None:
    link = file.link
    if link is None or link["item_state"] != "held":
        return None
    if link["state"] == "gone" or file.status is None or not file.status.facts.guard:
        return None  # already decided
    return Finding(
        "drop waits for approval",
        f"it vanished at the site, and the guard holds drops back: {link['item_reason'] or file.status.facts.guard}",
        f"./tidemark approve {link['run_id']}",
        "it stays in the catalog; transfers go on; if the file is there again in the next run the guard forgets it",
    )


def explain_receipt(file: FileFacts) -> Finding | None:
    """Explain a file that a receiver with another ledger refused or quarantined."""
    link = file.link
    reason = (link["reason"] or "") if link else ""
    if link is None or link["state"] != "acked" or not reason.startswith(("refused", "quarantined")):
        return None
    state = "refused" if reason.startswith("refused") else "in quarantine"
    return Finding(
        f"{state} at {link['receiver']}",
        reason,
        f"decide at the receiver: ./tidemark {'owners list' if state == 'refused' else 'quarantine list'}",
        "this file alone stays out of the catalog",
    )


def explain_skipped(file: FileFacts) -> Finding | None:
    link = file.link
    if link is None or not link["skipped"]:
        return None
    reason: str = link["skipped"]
    following, wait = _ADVICE_SKIPPED.get(reason.partition(" (")[0], _SKIPPED_ELSE)
    if reason.startswith(UNLISTED):
        following = f"{LET_LIST}; then ./tidemark sync {link['link']}"
        wait = "what is there is not sent, and nothing of it is dropped"
    if reason.startswith("in quarantine as "):  # sync.select.quarantine
        following = f"./tidemark quarantine release {reason.split()[3].rstrip(':')}"
        wait = "no run sends this content; another content of the file is sent as any is"
    return Finding(
        "in quarantine"
        if reason.startswith("in quarantine")
        else "waits for a compaction"
        if reason in _COMPACTION
        else "not sealed"
        if reason.startswith(("still open", "being", "its .resource is being"))
        else "skipped",
        reason,
        following,
        wait,
        evidence=(f"skipped by link {link['link']} since {format_time(link['skipped_since'])}",),
    )


_SKIPPED_ELSE = ("look at the file at the site", "it is passed over by every run; nothing else waits for it")
_COMPACTING = "wait; if it lasts, start IoTDB at the site: it ends the compaction or undoes it, and removes its log"
_COMPACTION = (COMPACTING, WAITS, UNTOLD)
_ADVICE_SKIPPED = {
    COMPACTING: (_COMPACTING, "the first run after it sends what the compaction made"),
    WAITS: (_COMPACTING, "the first run after it sends the file"),
    UNTOLD: (_COMPACTING, "it stays in the catalog as it is; the first run after it tells what became of it"),
    "still open": (
        "wait until IoTDB closes it, or run FLUSH at the site",
        "the first run after IoTDB wrote its .resource sends it",
    ),
    "its .resource is empty": (
        "wait; if it stays after a restart of IoTDB, look at the disk of the site",
        "the first run that finds a whole .resource sends it",
    ),
    "its data folder is not in the settings any more: neither sent again nor dropped": (
        "put its folder back into data of [sites.NAME] in tidemark.toml",
        "what the catalog has of it stays; no run looks at it",
    ),
    "zero length": ("look at the disk of the site", "it is passed over by every run until it has content"),
}


def explain_under_way(file: FileFacts) -> Finding | None:
    link = file.link
    if link is None or link["run_state"] in (None, "finished") or link["item_state"] in (None, "landed", "held"):
        return None
    status = file.status
    doing = f"run {link['run_id']} has it as {link['action']}, {link['item_state']}"
    if status is None or status.state == "running":
        return Finding("under way", doing, "", "the run that works now brings it to its end")
    return Finding(
        f"waiting: {status.state}", f"{doing}; {status.reason}", status.next, "the next run goes on where this one stopped"
    )


def explain_failed_send(file: FileFacts) -> Finding | None:
    link = file.link
    if link is None or link["item_state"] not in ("failed", "vanished") or link["state"] != "waiting":
        return None
    return Finding(
        "failed" if link["item_state"] == "failed" else "vanished while it was sent",
        link["item_reason"] or f"run {link['run_id']} could not send it",
        f"./tidemark sync {link['link']}",
        "the next run tries it again; everything else has landed",
    )


def explain_waiting(file: FileFacts) -> Finding | None:
    link = file.link
    if link is None or link["state"] != "waiting":
        return None
    reason: str = link["reason"] or ""
    if reason.startswith(file.left_out):
        return Finding(
            "left out",
            reason,
            f"change include or exclude of [links.{link['link']}] in tidemark.toml",
            "it is never sent under these patterns; that is what they are for",
        )
    status = file.status
    blocked = status is not None and status.state in ("window", "failed", "interrupted", "retrying", "running")
    return Finding(
        "waiting to be sent" if not reason else "waiting to be sent again",
        reason or (f"the link is {status.state}: {status.reason}" if status and blocked else "no run has sent it yet"),
        f"./tidemark sync {link['link']}",
        "the next run of the link sends it",
    )


def explain_adopted(file: FileFacts) -> Finding | None:
    """Explain a file known without being sent: only `adopt` acknowledges generation 0."""
    link = file.link
    if link is None or link["state"] != "acked" or int(link["generation"]) or file.newest is not None:
        return None
    return Finding(
        "adopted",
        link["reason"] or "brought to the receiving end before Tidemark, by another tool",
        "to have it in the catalog, adopt the folder at the receiver that holds it: ./tidemark adopt LINK DIR",
        "it is not sent and not in the catalog; a later change of it is sent whole",
        final=True,
    )


def explain_gone(file: FileFacts) -> Finding | None:
    link = file.link
    if link is None or link["state"] != "gone":
        return None
    if not int(link["generation"]):
        return Finding("gone before it was sent", "the site removed it before any run could send it", final=True)
    if file.newest is None and link["receiver"] in file.remote:
        return Finding("gone at the site", f"the receiver {link['receiver']} was told", final=True)
    return Finding(
        "gone at the site",
        "the site has it no more and the receiver was told; it is not in the catalog here",
        "./tidemark load",
        "the load of that landing decides whether it is kept, marked or leaves",
    )


def explain_file(file: FileFacts, events: tuple[str, ...] = ()) -> Explanation:
    """Explain by the first rule that fits, with everything that is known as evidence."""
    told = next(answer for rule in _RULES if (answer := rule(file)) is not None)
    return Explanation(
        subject=file.path,
        kind="file",
        state=told.state,
        cause=told.cause,
        evidence=(*told.evidence, *_list_evidence(file), *events),
        next=told.next,
        if_you_wait=told.if_you_wait,
        final=told.final,
    )


def _explain_otherwise(file: FileFacts) -> Finding:
    return Finding("known", "the ledger names it, and nothing is open for it", "./tidemark verify", "", True)


_RULES: Sequence[Callable[[FileFacts], Finding | None]] = (
    explain_pending_drop,
    explain_guard_hold,
    explain_refused,
    explain_quarantined,
    explain_held_back,
    explain_skipped,
    explain_under_way,
    explain_failed_send,
    explain_waiting,
    explain_given_up,
    explain_dismissed,
    explain_receipt,
    explain_adopted,
    explain_landed,
    explain_in_catalog,
    explain_retired,
    explain_gone,
    explain_never_sent,
    _explain_otherwise,
)


def _list_evidence(file: FileFacts) -> tuple[str, ...]:
    facts = []
    for link in file.links:
        if link["state"]:
            facts.append(
                f"link {link['link']}: {link['state']}, generation {link['generation']}, "
                f"changed {format_time(link['changed'])}"
            )
        if link["unverified_since"]:
            facts.append(
                f"not verified at the source since {format_time(link['unverified_since'])}: "
                f"its digest was made at the target only; ./tidemark verify --site {file.site} proves it"
            )
    for r in file.receivers:
        live = "has it" if r["live"] else "has it no more"
        facts.append(
            f"inventory at {r['receiver']}: the site {live}; generation {r['generation']} carried by {r['landing']}"
        )
    for s in file.sources[:3]:
        seen = ", read" if s["visible"] else ""
        facts.append(f"catalog of {s['receiver']}: generation {s['generation']} {s['state']}{seen} as {s['location']}")
    return tuple(facts)


@dataclass(frozen=True)
class FileFacts:
    """All that the ledger says of one path of one site. Rows are results of the reports that `subjects` runs.

    `above`: merged files that hold the points of the newest source row. `late`: why its newest content arrived and is not
    read yet. `names`: {site id: name}. `left_out`: how a reason begins that comes from the link's patterns. `remote`:
    receivers whose catalog another Tidemark keeps.
    """

    path: str
    site: str
    links: Sequence[Row] = ()
    receivers: Sequence[Row] = ()
    troubles: Sequence[Row] = ()
    sources: Sequence[Row] = ()
    above: Sequence[Row] = ()
    clashes: Sequence[Row] = ()
    kept_apart: Sequence[Row] = ()
    late: str = ""
    status: LinkStatus | None = None
    names: dict[str, str] = field(default_factory=dict)
    left_out: str = "excluded by"
    remote: frozenset[str] = frozenset()

    @property
    def link(self) -> Row | None:
        return self.links[0] if self.links else None

    @property
    def newest(self) -> Row | None:
        """The newest source row of the catalog."""
        return self.sources[0] if self.sources else None

    @property
    def landed_generation(self) -> int:
        """The newest generation that landed, as far as this ledger knows."""
        return max([0, *(int(r["generation"] or 0) for r in (*self.links, *self.receivers))])

    def find_trouble(self, what: str, states: Sequence[str]) -> Row | None:
        return next((t for t in self.troubles if t["what"] == what and t["state"] in states), None)

    def name_of_site(self, site_id: str) -> str:
        return self.names.get(site_id, site_id)


@dataclass(frozen=True)
class Finding:
    state: str
    cause: str
    next: str = ""
    if_you_wait: str = ""
    final: bool = False
    evidence: tuple[str, ...] = ()


def explain_unlisted(store: Store, site: SiteSettings, path: str) -> Explanation | None:
    """Explain a file that no run has listed; None where the site has no such file below its data folders."""
    if store.stat(path) is None:
        return None
    folder = path.rpartition("/")[0]
    result = classify_files(store, store.list_files([folder]).entries, site.data)
    evidence = (f"it lies at site {site.name}; no run has listed it yet",)
    sync = f"./tidemark sync {site.name}"
    if any(f.entry.path == path for f in result.sealed):
        cause = "it was sealed after the newest run listed the site"
        return Explanation(path, "file", "not seen yet", cause, evidence, sync, "the next run of its link sends it")
    reason = dict(result.skipped).get(path)
    if reason is None:
        return None
    return Explanation(path, "file", "not sealed", reason, evidence, "", "the first run after it is sealed sends it")
