"""Why is this file not sent? Rules over what its links know. Pure; each answers or says None."""

from __future__ import annotations

from tidemark.proof.explanation import when
from tidemark.proof.file_story import FileStory, Told
from tidemark.stores.agent.disk import UNLISTED
from tidemark.sync.notes import LET_LIST
from tidemark.tsfiles.sealed import COMPACTING, UNTOLD, WAITS


def held_by_guard(story: FileStory) -> Told | None:
    link = story.link
    if link is None or link["item_state"] != "held":
        return None
    if link["state"] == "gone" or story.status is None or not story.status.facts.guard:
        return None  # decided since
    return Told(
        "drop waits for approval",
        f"it vanished at the site, and the guard holds drops back: {link['item_reason'] or story.status.facts.guard}",
        f"./tidemark approve {link['run_id']}",
        "it stays in the catalog; transfers go on; if the file is there again in the next run the guard forgets it",
    )


def told_by_receipt(story: FileStory) -> Told | None:
    """Refused or quarantined by a receiver whose ledger is not this one."""
    link = story.link
    reason = (link["reason"] or "") if link else ""
    if link is None or link["state"] != "acked" or not reason.startswith(("refused", "quarantined")):
        return None
    state = "refused" if reason.startswith("refused") else "in quarantine"
    return Told(
        f"{state} at {link['receiver']}",
        reason,
        f"decide at the receiver: ./tidemark {'owners list' if state == 'refused' else 'quarantine list'}",
        "this file alone stays out of the catalog",
    )


def skipped(story: FileStory) -> Told | None:
    link = story.link
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
    return Told(
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
        evidence=(f"skipped by link {link['link']} since {when(link['skipped_since'])}",),
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


def under_way(story: FileStory) -> Told | None:
    link = story.link
    if link is None or link["run_state"] in (None, "finished") or link["item_state"] in (None, "landed", "held"):
        return None
    status = story.status
    doing = f"run {link['run_id']} has it as {link['action']}, {link['item_state']}"
    if status is None or status.state == "running":
        return Told("under way", doing, "", "the run that works now brings it to its end")
    return Told(
        f"waiting: {status.state}", f"{doing}; {status.reason}", status.next, "the next run goes on where this one stopped"
    )


def left_to_next(story: FileStory) -> Told | None:
    link = story.link
    if link is None or link["item_state"] not in ("failed", "vanished") or link["state"] != "waiting":
        return None
    return Told(
        "failed" if link["item_state"] == "failed" else "vanished while it was sent",
        link["item_reason"] or f"run {link['run_id']} could not send it",
        f"./tidemark sync {link['link']}",
        "the next run tries it again; everything else has landed",
    )


def waiting(story: FileStory) -> Told | None:
    link = story.link
    if link is None or link["state"] != "waiting":
        return None
    reason: str = link["reason"] or ""
    if reason.startswith(story.left_out):
        return Told(
            "left out",
            reason,
            f"change include or exclude of [links.{link['link']}] in tidemark.toml",
            "it is never sent under these patterns; that is what they are for",
        )
    status = story.status
    blocked = status is not None and status.state in ("window", "failed", "interrupted", "retrying", "running")
    return Told(
        "waiting to be sent" if not reason else "waiting to be sent again",
        reason or (f"the link is {status.state}: {status.reason}" if status and blocked else "no run has sent it yet"),
        f"./tidemark sync {link['link']}",
        "the next run of the link sends it",
    )


def adopted(story: FileStory) -> Told | None:
    """Known without ever being sent: generation 0 is acknowledged by `adopt` alone."""
    link = story.link
    if link is None or link["state"] != "acked" or int(link["generation"]) or story.newest is not None:
        return None
    return Told(
        "adopted",
        link["reason"] or "brought to the receiving end before Tidemark, by another tool",
        "to have it in the catalog, adopt the folder at the receiver that holds it: ./tidemark adopt LINK DIR",
        "it is not sent and not in the catalog; a later change of it is sent whole",
        final=True,
    )


def gone(story: FileStory) -> Told | None:
    link = story.link
    if link is None or link["state"] != "gone":
        return None
    if not int(link["generation"]):
        return Told("gone before it was sent", "the site removed it before any run could send it", final=True)
    if story.newest is None and link["receiver"] in story.remote:
        return Told("gone at the site", f"the receiver {link['receiver']} was told", final=True)
    return Told(
        "gone at the site",
        "the site has it no more and the receiver was told; it is not in the catalog here",
        "./tidemark load",
        "the load of that landing decides whether it is kept, marked or leaves",
    )
