"""Explain a run, landing, link, site or device. Pure: from rows to words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from tidemark.ledger.sender.links import Skipped
from tidemark.ledger.sql import Row
from tidemark.progress import format_count, format_size
from tidemark.proof.explanation import Explanation, format_time, join_names, kept_note
from tidemark.proof.status import LinkStatus, damage_note
from tidemark.tsfiles.times import format_interval


def explain_link(status: LinkStatus, skipped: Mapping[str, Skipped], events: tuple[str, ...]) -> Explanation:
    """Explain a link by its status. `skipped`: files that no run sends in their present state."""
    f = status.facts
    reasons = Counter(one.reason for one in skipped.values())
    evidence = [f"{format_count(n, 'file')} skipped: {reason}" for reason, n in reasons.most_common(5)]
    if f.backlog_files:
        files = format_count(f.backlog_files, "file waits", "files wait")
        evidence.append(f"{files} ({format_size(f.backlog_bytes)}), the oldest is {f.oldest_path}")
    if f.pending_drops:
        evidence.append(f"{format_count(f.pending_drops, 'drop is', 'drops are')} pending at {f.receiver}")
    evidence += [*kept_note(f.kept), *damage_note(f.damaged)]
    if f.run:
        evidence.append(f"the site is known {f.as_of.text}" if f.as_of.at else f.as_of.text)
    evidence.append(
        f"newest run {f.run or 'none'} ({f.run_state or 'never ran'}), last success {format_time(f.last_success)}"
    )
    return Explanation(
        subject=f.link,
        kind="link",
        state=status.state,
        cause=status.reason or "nothing is open",
        evidence=(*evidence, *events),
        next=_LINK_NEXT.get(status.state, status.next),
        if_you_wait=_LINK_WAIT[status.state],
        final=status.state == "idle",
    )


_LINK_NEXT = {  # where `status` names this explanation
    "gap": "./tidemark verify names what of it is lost or damaged (docs/runbooks/sequence-gap.md)",
    "running": "",
}

_LINK_WAIT = {
    "new": "its schedule starts the first run",
    "running": "the run ends by itself",
    "retrying": "its scheduler tries it again by itself",
    "interrupted": "the next scheduled run continues it, nothing is sent twice",
    "window": "it goes on when the window opens",
    "failed": "the next scheduled run continues it",
    "guard": "transfers go on; the drops wait for as long as the guard's reason stays",
    "gap": "later landings wait; nothing is lost",
    "partial": "everything else goes on",
    "landed": "the load takes it by its own clock",
    "stale": "its schedule starts the next run; until one has listed the site, nothing is proved of it since",
    "pending": "the next runs send what is asked for; then it is read",
    "idle": "its schedule starts the next run",
}


def explain_receiver(name: str, links: Sequence[LinkStatus]) -> Explanation:
    """Explain a receiver by its links."""
    waiting = [status for status in links if status.state != "idle"]
    first = waiting[0] if waiting else None
    return Explanation(
        subject=name,
        kind="receiver",
        state=first.state if first else "idle",
        cause=f"link {first.facts.link}: {first.reason or first.state}" if first else "nothing is open at its links",
        evidence=tuple(f"link {s.facts.link}: {s.state}" + (f": {s.reason}" if s.reason else "") for s in links),
        next=f"./tidemark why {first.facts.link}" if first else f"./tidemark verify --receiver {name}",
        if_you_wait=_LINK_WAIT[first.state] if first else "schedules of its links start the next runs",
        final=first is None,
    )


def explain_run(run: Row, items: Sequence[Row], status: LinkStatus | None, events: tuple[str, ...]) -> Explanation:
    """Explain one run. `status` is that of its link, whose newest run may be another."""
    facts = [f"{i['files']} × {i['action']}: {i['state']}" + (f" ({i['reason']})" if i["reason"] else "") for i in items]
    facts.append(f"link {run['link']}, started {format_time(run['started'])}, step {run['step']}")
    facts += [f"Airflow's run {run['external']}"] if run["external"] else []
    held = sum(int(i["files"]) for i in items if i["state"] == "held")
    sync = f"./tidemark sync {run['link']}"
    state, cause, following, wait, final = "finished", "it did all it had to do", "", "", True
    if run["state"] in ("running", "failed") and status is not None and status.facts.run == run["run_id"]:
        state, cause = status.state, status.reason  # as of now
        following, wait, final = status.next if state != "running" else "", _LINK_WAIT[state], False
    elif run["state"] != "finished":
        state, cause = "failed", run["error"] or "it ended with an error"
        following, wait, final = run["hint"] or sync, "the next run of the link continues it", False
    elif held and run["guard"] and run["guard_run"] == run["run_id"]:
        state, cause = "finished, drops wait for approval", run["guard"]
        following, wait, final = f"./tidemark approve {run['run_id']}", "transfers go on; the drops wait", False
    elif int(run["pending"]):
        items_left = format_count(int(run["pending"]), "item is", "items are")
        state, cause = "finished, some of it left over", f"{items_left} left to the next run"
        following, wait = sync, "the next run of the link takes them"
    return Explanation(run["run_id"], "run", state, cause, (*facts, *events), following, wait, final)


def explain_landing(landing: str, rows: Sequence[Row], names: Mapping[str, str], taken_away: str = "") -> Explanation:
    """Explain one landing from the rows of its receivers and its sender in this ledger; at least one row. `taken_away`: its
    folder, where that is missing at the receiver before the landing was loaded."""
    facts = [
        f"{r['side']} {r['place']}: {r['state']}, sequence {r['sequence']} after {r['previous'] or 'nothing'}, "
        f"{format_count(r['files'], 'file')}, {format_size(r['bytes'])}, since {format_time(r['at'])}"
        for r in rows
    ]
    row = rows[0]  # the receiver's, where this ledger has one
    site = names.get(row["site_id"], row["site_id"])
    receipt = json.loads(row["receipt"]) if row["receipt"] else {}
    outcomes = Counter(a.get("outcome") for a in receipt.get("answers", ()))
    facts += [f"{format_count(n, 'file')} {outcome}" for outcome, n in sorted(outcomes.items())]
    state, cause, following, wait = _LANDING.get("gone" if taken_away else row["state"], (row["state"], "", "", ""))
    following = following.format(site=site, link=row["place"])
    final = row["state"] in ("loaded", "answered")
    cause = cause.format(folder=taken_away) if taken_away else row["reason"] or cause
    return Explanation(landing, "landing", state, cause, tuple(facts), following, wait, final)


_LOST_NEXT = "./tidemark verify, with --repair where it says so, then ./tidemark load --site {site}"
# state: (in words, cause, next, if you wait)
_LANDING = {
    "loaded": ("loaded", "every file has its answer and the receipt is written", "", ""),
    "answered": ("answered", "the receiver loaded it and the sender read its receipt", "", ""),
    "waiting": ("waiting", "a landing before it is missing", _LOST_NEXT, "it loads once that is there"),
    "rejected": (
        "rejected",
        "its manifest cannot be accepted",
        f"see the cause; is it damaged: {_LOST_NEXT}",
        "it stays where it is",
    ),
    "found": ("not loaded", "it has not been loaded yet", "./tidemark load --site {site}", "the load DAG takes it"),
    "loading": ("loading", "a load has it, or died in it", "./tidemark load --site {site}", "the next load continues it"),
    "landed": ("landed", "the receiver has not answered yet", "./tidemark load", "the load there takes it"),
    "gone": (
        "gone",
        "it was whole and not loaded, and its folder {folder} is not at the receiver any more",
        "put the folder back from a backup or from where it was moved, then ./tidemark load --site {site}; where it is lost:"
        " ./tidemark verify --repair",
        "landings load in sequence: the later ones of the site wait for it",
    ),
    "closing": ("closing", "a run stopped while it closed it", "./tidemark sync {link}", "the next run finishes it"),
}


def explain_site(site: str, links: Sequence[LinkStatus], counts: Sequence[Row], gaps: Sequence[str]) -> Explanation:
    """Explain a site by its most pressing link, or by what its receivers hold back."""
    facts = [f"link {s.facts.link} to {s.facts.receiver}: {s.state}" + (f" ({s.reason})" if s.reason else "") for s in links]
    for c in counts:
        parts = [f"{c[column]} {word}" for column, word in _OPEN.items() if c[column]]
        facts.append(f"at {c['receiver']}: {', '.join(parts) or 'nothing open'}")
    facts += [note for s in links for note in kept_note(s.facts.kept)]
    evidence = (*facts, *gaps)
    worst = min(links, key=lambda s: _PRESSING.index(s.state)) if links else None
    if worst is not None and worst.state != "idle":
        return Explanation(site, "site", worst.state, worst.reason, evidence, worst.next, _LINK_WAIT[worst.state])
    for c in counts:
        if told := _describe_held_back(c):
            state, cause, following, wait = told
            return Explanation(site, "site", state, cause, evidence, following, wait)
    return Explanation(site, "site", "idle", "nothing is open", evidence, final=True)


_OPEN = {
    "quarantined": "in quarantine",
    "refused": "refused",
    "pending_drops": "drops pending",
    "unloaded": "landings not loaded",
    "behind_gap": "landings behind a gap",
    "rejected": "landings rejected",
}


def _describe_held_back(c: Row) -> tuple[str, str, str, str] | None:
    """Return (state, cause, next, if you wait) of what a receiver holds back of a site; None: nothing."""
    if c["behind_gap"] or c["rejected"]:
        return "gap", c["reason"] or "a landing is missing", "./tidemark load", _LINK_WAIT["gap"]
    if c["unloaded"]:
        landings = format_count(c["unloaded"], "landing is", "landings are")
        return "landed", f"{landings} not loaded yet", "./tidemark load", _LINK_WAIT["landed"]
    if c["quarantined"] or c["refused"]:
        cause = f"{format_count(c['quarantined'], 'file')} in quarantine, {c['refused']} refused"
        following = "./tidemark quarantine list" if c["quarantined"] else "./tidemark owners list"
        return "partial", cause, following, _LINK_WAIT["partial"]
    if c["pending_drops"]:
        files = format_count(c["pending_drops"], "vanished file waits", "vanished files wait")
        cause = f"{files} for what covers them, or for the operator"
        return "drops pending", cause, "./tidemark load", "they leave with the load that can"
    return None


_PRESSING = (
    *("failed", "guard", "gap", "interrupted", "retrying", "partial"),
    *("stale", "window", "landed", "pending", "new", "running", "idle"),
)


def explain_device(
    device: str,
    held: Sequence[Row],
    claims: Sequence[Row],
    waiting: Sequence[Row],
    names: Mapping[str, str],
    clashes: Sequence[Row] = (),
) -> Explanation:
    """Explain a device: its owner, what readers see of it, what is refused, not sent yet, or has two types."""
    facts = [
        f"owner at {c['receiver']}: site {names.get(c['site_id'], c['site_id'])} since {format_time(c['at'])} "
        f"({c['landing']})"
        for c in claims
        if c["what"] == "owner"
    ]
    facts += [
        f"catalog of {h['receiver']}: {format_count(h['points'], 'point')} in {format_count(h['files'], 'file')} of site "
        f"{names.get(h['site_id'], h['site_id'])}, from {first} to {last}"
        for h in held
        for first, last in [format_interval([(int(h["start_time"]), int(h["end_time"]), h["time_unit"])])]
    ]
    refused = [c for c in claims if c["what"] == "refusal"]
    if refused:
        first = refused[0]
        by, of = names.get(first["site_id"], first["site_id"]), names.get(first["owner_site"], first["owner_site"])
        facts += [f"refused: {r['path']} of site {names.get(r['site_id'], r['site_id'])}" for r in refused[:5]]
        return Explanation(
            device,
            "device",
            "claimed by two sites",
            f"it belongs to site {of}; refused for it: {format_count(len(refused), 'file')} of site {by}",
            tuple(facts),
            f"./tidemark owners transfer {device} --to {by}",
            "those files stay out, their bytes are kept",
        )
    if waiting:
        paths = [w["path"] for w in waiting]
        facts += [f"not sent yet: {w['path']}" + (f" ({w['reason']})" if w["reason"] else "") for w in waiting[:5]]
        return Explanation(
            device,
            "device",
            "not all of it arrived",
            f"not acknowledged: {format_count(len(paths), 'file that holds', 'files that hold')} it: {join_names(paths)}",
            tuple(facts),
            f"./tidemark why {paths[0]}",
            "the next run sends what it can",
        )
    if not held:
        return Explanation(
            device, "device", "no points", "no file that readers see holds it", tuple(facts), "./tidemark coverage"
        )
    if clashes:
        facts += [f"series {c['series']} is {c['type']}, but {c['clash']}" for c in clashes[:5]]
        return Explanation(
            device,
            "device",
            "in the catalog, a type clashes",
            f"{format_count(len(clashes), 'of its series has', 'of its series have')} two types:"
            f" {join_names([c['series'] for c in clashes])}",
            tuple(facts),
            "agree on one type at the sites; both are kept as they came",
            "both are read, each with its own type; wide output writes them as text",
        )
    return Explanation(device, "device", "in the catalog", "readers see it", tuple(facts), final=True)
