"""Why is this file in the catalog or not? Rules over what its receivers know. Pure; each answers or says None."""

from __future__ import annotations

import json

from tidemark.ledger.receiver.landings import GIVEN_UP
from tidemark.ledger.sql import Row
from tidemark.proof.explanation import listed, when
from tidemark.proof.file_story import FileStory, Told


def drop_waits(story: FileStory) -> Told | None:
    for kind in ("superseded", "dropped"):
        if row := story.trouble(kind, ("waiting",)):
            run = row["landing"].rpartition("-")[0]
            return Told(
                "waiting for approval",
                row["reason"] or f"the site's {kind} file waits for the operator",
                f"./tidemark approve {run}",
                "the file stays in the catalog as it is; everything else goes on",
            )
        if story.late:
            continue  # what it waits for is known better there
        if row := story.trouble(kind, ("pending",)):
            by = json.loads(row["covered_by"])
            return Told(
                "superseded, swap pending" if kind == "superseded" else "drop pending",
                row["reason"] or "not every file that covers it is loaded",
                f"./tidemark why {by[0]}" if by else "./tidemark load",
                "it leaves the catalog in the same transaction that brings the last file that covers it",
                evidence=(f"covered by {listed(by)}",) if by else (),
            )
    return None


def refused(story: FileStory) -> Told | None:
    row = story.trouble("refusal", ("refused",))
    if row is None:
        return None
    owner = story.named(row["owner_site"])
    return Told(
        "refused",
        f"device {row['device']} belongs to site {owner} since {when(row['owner_since'])}; this file holds it too",
        f"./tidemark owners transfer {_word(row['device'])} --to {story.site} --receiver {row['receiver']}",
        "this file alone stays out; its bytes are kept and are loaded when the device is transferred",
        evidence=(f"refused at {row['receiver']} on {when(row['at'])}, landing {row['landing']}",),
    )


def quarantined(story: FileStory) -> Told | None:
    row = story.trouble("quarantine", ("held",))
    if row is None:
        return None
    following, wait = _healing(story, row) or (
        f"./tidemark quarantine release {row['id']}   or   ./tidemark quarantine drop {row['id']}",
        "it stays out of the catalog; a newer generation of the file takes its place by itself",
    )
    return Told(
        "in quarantine",
        row["reason"],
        following,
        wait,
        evidence=(f"quarantine {row['id']} at {row['receiver']} since {when(row['at'])}, landing {row['landing']}",),
    )


def _healing(story: FileStory, row: Row) -> tuple[str, str] | None:
    """(next, if you wait) of a held file that its link brings again by itself, None where nobody does."""
    link = story.link
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


def given_up(story: FileStory) -> Told | None:
    row = story.trouble("quarantine", ("dropped",))
    held = int(story.newest["generation"]) if story.newest else 0
    if row is None or max(story.carried, held) > int(row["generation"]):
        return None
    return Told(
        "given up",
        f"the operator dropped it from quarantine: {row['reason']}",
        "./tidemark verify shows whether the site still has it; a newer generation of it is sent as any other",
        "it stays out of the catalog, and red in its coverage for as long as the site has it",
        evidence=(f"quarantine {row['id']} at {row['receiver']}, landing {row['landing']}",),
    )


def held_back(story: FileStory) -> Told | None:
    """It came, and a settled file stands before it."""
    if not story.late:
        return None
    link = story.link["link"] if story.link else ""
    asks = "approve" in story.late
    return Told(
        "waiting for settled files",
        story.late,
        "./tidemark status" if asks else f"./tidemark sync {link}".rstrip(),
        "readers see the settled file until then" if asks else "the next run sends what is asked for, then it is read",
        evidence=tuple(f"{m['location']} stands for it" for m in story.above if m["settled"]),
    )


def landed(story: FileStory) -> Told | None:
    """A newer generation landed than the catalog holds."""
    held = int(story.newest["generation"]) if story.newest else 0
    link = story.link
    if link is None or not link["landing"] or link["state"] != "acked" or int(link["generation"]) <= held:
        return None
    if link["receiver"] in story.remote:
        if link["landing_state"] == "answered":
            return Told("loaded", f"receiver {link['receiver']} answered: loaded", final=True)
        return Told(
            "landed",
            f"landing {link['landing']} is whole at {link['receiver']}, which has not answered yet",
            "./tidemark load, on the machine of the receiver",
            "the load DAG there takes it; the next run reads the answer",
        )
    return Told(
        "landed, not loaded",
        f"landing {link['landing']} (sequence {link['sequence']}) waits to be loaded at {link['receiver']}",
        "./tidemark load",
        "the load DAG takes it; landings load in sequence",
        evidence=tuple(f"{r['receiver']}: {r['landing_reason']}" for r in story.receivers if r["landing_reason"]),
    )


def in_catalog(story: FileStory) -> Told | None:
    row = story.newest
    if row is None or row["state"] != "live" or int(row["generation"]) < story.carried:
        return None
    if int(row["rank_unsequence"]) < 0:
        return _kept(story)
    if row["undecodable"]:
        return Told(
            "in the catalog, partly unreadable",
            f"no reader of Tidemark decodes: {listed(json.loads(row['undecodable']))}; the file is kept as it came",
            "upgrade Tidemark when it learns the encoding",
            "all other series of it are read; these are named by every read",
        )
    if story.clashes:
        clash = story.clashes[0]
        return Told(
            "in the catalog, a type clashes",
            f"series {clash['series']} is {clash['type']} here and {clash['clash']} in another source",
            "agree on one type at the sites; both are kept as they came",
            "both are read, each with its own type; wide output writes them as text",
        )
    if not row["visible"]:
        return _merged(story)
    if story.kept_apart:
        kept = story.kept_apart[0]
        return Told(
            "in the catalog, not merged", f"{kept['subject']}: {kept['reason']}", "", "readers see it; newest wins", True
        )
    return Told("in the catalog", f"readers see it as {row['location']}", final=True)


def _kept(story: FileStory) -> Told:
    """It is gone at the site, and ranks below all that the site has."""
    drop = story.trouble("dropped", ("done",))
    since = f" (told by landing {drop['landing']}, {when(drop['at'])})" if drop else ""
    return Told(
        "kept after a drop",
        f'gone at the site since{since}; kept because its link has deletes = "keep". It never wins over a file that the site'
        " has: it only fills times at which those have nothing",
        'nothing, if that is wanted; what its site drops leaves the catalog with deletes = "apply" in its link',
        "it stays; where the site has it again, it is as any other file",
        final=True,
        evidence=("readers leave such files out with --live-only (read, verify --deep)",),
    )


def _merged(story: FileStory) -> Told:
    above = [m for m in story.above if m["visible"]]
    if not above:
        return Told(
            "hidden", "no merged file that readers see stands for it", "./tidemark verify --repair", "it stays unread"
        )
    counts = [f"{m['location']}: {_account(m)}" for m in above]
    return Told("merged", f"merged file {above[0]['location']} stands for it", final=True, evidence=tuple(counts))


def retired(story: FileStory) -> Told | None:
    row = story.newest
    if row is None or row["state"] == "live" or int(row["generation"]) < story.carried:
        return None
    gone = "its bytes go after the grace" if row["state"] == "retired" else "its bytes were removed after the grace"
    if any(m["settled"] for m in story.above):
        if drop := story.trouble("dropped", ("done",)):
            kept = drop["reason"] or "the link keeps what its site drops; its points stay in a merged file"
            return Told("kept after a drop", f"{kept}; {gone}", final=True)
        return Told("settled", f"a merged file stands alone for it; {gone}", final=True)
    for kind, word in (("superseded", "superseded"), ("dropped", "removed")):
        if row_ := story.trouble(kind, ("done",)):
            by = json.loads(row_["covered_by"])
            why = (
                f"other files of the site cover it now: {listed(by)}"
                if by
                else row_["reason"] or 'the site dropped it, and the drop took effect (deletes = "apply", or approved)'
            )
            proof = (f"it lives on: {row_['reason']}",) if by and row_["reason"] else ()
            given_up = (row_["reason"] or "").startswith(GIVEN_UP)
            return Told("given up" if given_up else word, f"{why}; {gone}", final=True, evidence=proof)
    return Told("replaced", f"a newer generation took its place; {gone}", final=True)


def never_came(story: FileStory) -> Told | None:
    for row in story.receivers:
        if row["live"]:
            return Told(
                "never came",
                f"the site listed it in landing {row['landing']}, and no landing has carried it",
                "at the sender: ./tidemark why " + story.path,
                "the sender's next run sends it, unless something there holds it back",
            )
        return Told("gone at the site", "the site had it and removed it before any landing carried it", final=True)
    return None


def _account(merged: Row) -> str:
    lost = f"{merged['overwritten']} overwritten + {merged['deleted']} deleted"
    return f"{merged['points_in']} in = {merged['points_out']} out + {lost}"


def _word(text: str) -> str:
    return text if all(c.isalnum() or c in "._-/" for c in text) else "'" + text.replace("'", "'\\''") + "'"
