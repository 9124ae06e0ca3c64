"""Turn ledger rows into the values that proof decides on."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.ledger.leases import Identity, has_expired, this_process
from tidemark.ledger.receiver.settled import KeptFile, kept_files
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender.links import AttemptRow, newest_attempts
from tidemark.ledger.sender.runs import progress_of
from tidemark.ledger.sql import Row, run_report
from tidemark.proof.coverage.cells import CatalogView, Expected, Held, ReplicaProof, account_trouble
from tidemark.proof.status import LinkFacts
from tidemark.sync.notes import passed_over
from tidemark.tsfiles.devices import put_below


def expected_files(connection: Connection, receiver: str, site_id: str) -> list[Expected]:
    """Return the files that the site has, by its loaded manifests."""
    rows = run_report(connection, "site_inventory", receiver=receiver, site=site_id)
    return [Expected(r["path"], int(r["size"]), int(r["generation"]), extent_of(r["extent"]), r["landing"]) for r in rows]


def extent_of(text: str) -> tuple[tuple[str, int, int], ...]:
    """Parse the (device, first, last) triples of an `extent` column."""
    return tuple((device, int(start), int(end)) for device, start, end in json.loads(text))


def catalog_view(
    connection: Connection, receiver: str, site_id: str, wrong: Mapping[str, str], names: Mapping[str, str]
) -> CatalogView:
    """Return all of the site in the catalog. `wrong`: location → what is wrong with its bytes. `names`: {site id: name}."""
    place = {"receiver": receiver, "site": site_id}
    rows = run_report(connection, "catalog_held", **place)
    held = {int(r["file_id"]): _parse_held(r) for r in rows}
    broken = {int(r["file_id"]): wrong.get(r["location"]) or wrong.get(r["mods_location"]) or "" for r in rows}
    late = late_paths(connection, site_id, receiver)
    shadowed = {file_id: late[row.path] for file_id, row in held.items() if row.state == "live" and row.path in late}
    broken |= {file_id: why for file_id, why in shadowed.items() if not broken[file_id]}
    by_path: dict[str, list[Held]] = defaultdict(list)
    for row in held.values():
        if row.path:
            by_path[row.path].append(row)
    merged_over: dict[int, list[int]] = defaultdict(list)
    for r in run_report(connection, "catalog_lineage", **place):
        merged_over[int(r["source_id"])].append(int(r["merged_id"]))
    account = {
        int(r["merged_id"]): account_trouble(
            int(r["merged_id"]), int(r["points_in"]), int(r["points_out"]), int(r["overwritten"]), int(r["deleted"])
        )
        for r in run_report(connection, "merge_accounts", **place)
    }
    trouble = late | {r["path"]: _format_trouble(r, names) for r in run_report(connection, "site_troubles", **place)}
    return CatalogView(held, dict(by_path), dict(merged_over), account, broken, trouble, late)


def read_replica_proof(connection: Connection, receiver: str) -> ReplicaProof | None:
    """Return what `replica verify` found of the copies at data nodes; None where there are none. A copy that came later than
    its last proof counts as not proved."""
    (row,) = run_report(connection, "replica_proofs", receiver=receiver)
    return ReplicaProof(**row) if row["copies"] else None


def late_paths(connection: Connection, site_id: str, receiver: str = "") -> dict[str, str]:
    """Return path → why settled files hold back its newest content. At one receiver, or at any."""
    found: dict[str, str] = {}
    for r in run_report(connection, "settled_waits", site=site_id):
        if receiver in ("", r["receiver"]):
            found |= json.loads(r["waits"])
    return found


def waiting_files(connection: Connection, link: str, expected: Mapping[str, Expected]) -> list[tuple[Expected, str]]:
    """Return files that this ledger's link has seen and no landing has carried, with why; without those in manifests."""
    found = []
    for r in run_report(connection, "waiting_extents", link=link):
        if r["path"] in expected and expected[r["path"]].size == int(r["size"]):
            continue
        why = r["reason"] or f"link {link} has not sent it yet"
        extent = tuple((put_below(r["prefix"], device), first, last) for device, first, last in extent_of(r["extent"]))
        found.append((Expected(r["path"], int(r["size"]), 0, extent, ""), why))
    return found


def link_facts(
    connection: Connection, alive: Callable[[Identity], bool], clock: float, names: Mapping[str, str], without: str
) -> list[LinkFacts]:
    """Return one value per link that ever ran. `clock` is the lease clock. `names`: {site id: name}. Files whose reason
    begins with `without` (excluded by the link's patterns) are no backlog."""
    counts = {(r["receiver"], r["site_id"]): r for r in run_report(connection, "site_counts")}
    facts = []
    tried = newest_attempts(connection)
    noted, unverified = progress_of(connection), hold_rows.count_unverified(connection)
    distrusted = Counter(one.link for one in hold_rows.held_files(connection))
    kept: dict[str, Mapping[str, tuple[KeptFile, ...]]] = {}
    damaged: dict[str, Sequence[Row]] = {}
    for r in run_report(connection, "link_status"):
        unsent = [u for u in run_report(connection, "unsent_files", link=r["link"]) if not u["reason"].startswith(without)]
        at_receiver = counts.get((r["receiver"], r["site_id"]), {})
        found = _link_facts(r, unsent, at_receiver, _find_live_holder(r, alive, clock), names)
        skipped = passed_over(connection, found.link)
        if found.receiver not in kept:
            kept[found.receiver] = kept_files(connection, found.receiver)
            damaged[found.receiver] = run_report(connection, "damaged_files", receiver=found.receiver)
        facts.append(
            replace(
                found,
                distrusted=distrusted[found.link],
                unverified=unverified.get(found.link, 0),
                unlisted=skipped.unlisted,
                passed_over=skipped.notes,
                kept=kept[found.receiver].get(r["site_id"], ()),
                damaged=tuple(x["location"] for x in damaged[found.receiver] if x["site_id"] == r["site_id"]),
                progress=noted.get(found.holder),
                **_read_attempt(tried.get(found.link), alive),
            )
        )
    return facts


def _link_facts(
    r: Row, unsent: Sequence[Row], at_receiver: Mapping[str, Any], holder: str, names: Mapping[str, str]
) -> LinkFacts:
    receipt = json.loads(r["receipt"]) if r["receipt"] else {}
    outcomes = [a.get("outcome") for a in receipt.get("answers", ())]
    return LinkFacts(
        link=r["link"],
        site=names.get(r["site_id"], r["site_id"]),
        receiver=r["receiver"],
        run=r["run_id"] or "",
        run_state=r["run_state"] or "",
        step=r["step"] or "",
        started=r["started"],
        ended=r["ended"],
        last_success=r["last_success"],
        error_kind=r["error_kind"],
        error=r["error"] or "",
        hint=r["hint"] or "",
        guard=r["guard"] or "",
        guard_run=r["guard_run"] or "",
        holder=holder,
        parked=not int(r["pid"] or 0),
        host=r["host"] or "",
        backlog_files=len(unsent),
        backlog_bytes=sum(int(u["size"]) for u in unsent),
        oldest_unsent=float(unsent[0]["mtime"]) if unsent else None,
        oldest_path=unsent[0]["path"] if unsent else "",
        skipped=int(r["skipped"]),
        unanswered=int(r["unanswered"]),
        unloaded=int(at_receiver.get("unloaded", 0)),
        behind_gap=int(at_receiver.get("behind_gap", 0)),
        rejected=int(at_receiver.get("rejected", 0)),
        landing_reason=at_receiver.get("reason") or "",
        quarantined=int(at_receiver.get("quarantined", outcomes.count("quarantined"))),
        refused=int(at_receiver.get("refused", outcomes.count("refused"))),
        pending_drops=int(at_receiver.get("pending_drops", len(receipt.get("pending", ())))),
        asking=at_receiver.get("asking_reason") or "",
        asking_run=(at_receiver.get("asking_landing") or "").rpartition("-")[0],
        late=tuple(sorted(json.loads(at_receiver["waits"]).items())) if at_receiver.get("waits") else (),
    )


def _read_attempt(row: AttemptRow | None, alive: Callable[[Identity], bool]) -> dict[str, Any]:
    """Return a scheduler's newest try as fields of `LinkFacts`."""
    if row is None:
        return {}
    lives = alive(row.worker)
    known = not lives or row.worker.host == this_process().host
    return {"attempt": row.attempt, "attempted": row.noted, "worker": lives if known else None}


def _find_live_holder(r: Row, alive: Callable[[Identity], bool], clock: float) -> str:
    if not r["holder"] or has_expired(r["expires"], clock):
        return ""
    identity = Identity(r["host"], r["boot_id"], int(r["pid"]), r["process_start"])
    return r["holder"] if identity.pid == 0 or alive(identity) else ""


def _parse_held(r: Row) -> Held:
    return Held(
        int(r["file_id"]), r["path"], int(r["generation"]), int(r["size"]), r["state"], bool(r["visible"]), r["location"]
    )


def _format_trouble(r: Row, names: Mapping[str, str]) -> str:
    why: str = r["why"]
    for site_id, name in names.items():
        word = rf"(?<![\w/-]){re.escape(site_id)}(?![\w/-])"  # not within a path, where it is a folder's name
        why = re.sub(word, name.replace("\\", r"\\"), why)
    return f"{why} (since {datetime.fromtimestamp(r['at'], UTC):%Y-%m-%d %H:%M} UTC)"
