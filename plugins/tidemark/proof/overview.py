"""The verbs status and runs: what the ledger alone tells of links, nodes, lines and IoTDBs.

A monitor asks every minute, so what they import is little.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import Identity, has_expired, is_alive, lease_clock, this_process
from tidemark.ledger.receiver import iotdb as iotdb_rows
from tidemark.ledger.receiver.iotdb import Target
from tidemark.ledger.receiver.settled import KeptFile, kept_files
from tidemark.ledger.sender import holds as hold_rows
from tidemark.ledger.sender.bandwidth import SharedLine
from tidemark.ledger.sender.links import AttemptRow, newest_attempts
from tidemark.ledger.sender.runs import progress_of
from tidemark.ledger.sql import Row, run_report
from tidemark.proof.as_of import judge_listings
from tidemark.proof.runs import Run, list_runs
from tidemark.proof.status import ClusterStatus, LineStatus, LinkFacts, LinkStatus, StatusReport, TargetStatus, link_status
from tidemark.settings.model import ReceiverSettings
from tidemark.sync.notes import passed_over

LEFT_OUT = "excluded by"
"""How the reason of a file begins that the link's own patterns leave behind."""


def status(app: App) -> StatusReport:
    """Return one line per link, from the ledger alone. Links of the settings that never ran are `new`. And one per source of
    changes, and one per sink, from the store and the ledger alone."""
    sources = _read_sources(app) if app.settings.sources else ()
    sinks = _read_sinks(app) if app.settings.sinks else ()
    with app.ledger.read() as connection:
        targets = tuple(read_target_status(connection, r) for r in app.settings.receivers.values() if r.iotdb)
        return StatusReport(
            read_links(app, connection),
            targets,
            _read_cluster(app, connection),
            _read_lines(app, connection),
            sources,
            sinks,
        )


def _read_sources(app: App) -> tuple[Mapping[str, Any], ...]:
    from tidemark.changes.sources.show import note_source
    from tidemark.changes.sources.source import find_source

    return tuple(note_source(find_source(app, name)) for name in sorted(app.settings.sources))


def _read_sinks(app: App) -> tuple[Mapping[str, Any], ...]:
    from tidemark.changes.sinks.show import note_sink

    return tuple(note_sink(app, name) for name in sorted(app.settings.sinks))


def runs(app: App, link: str, most: int) -> list[Run]:
    """Return the `most` newest runs of a link, or (link "") of all, newest first, from the ledger alone.

    Raises NotFoundError for a link without runs that is not in the settings either."""
    with app.ledger.read() as connection:
        rows = run_report(connection, "newest_runs", link=link, most=most)
        if link and not rows:
            app.link_settings(link)
        return list_runs(rows, read_links(app, connection), database_time(connection))


def _read_lines(app: App, connection: Connection) -> tuple[LineStatus, ...]:
    """Return the lines of receivers with a bandwidth cap."""
    found = []
    for receiver in app.settings.receivers.values():
        if receiver.bandwidth:
            line = SharedLine(app.ledger, receiver.name, receiver.bandwidth)
            there, _ = line.working_places(connection, app.identity.host)
            found.append(LineStatus(receiver.name, receiver.bandwidth, tuple((row.holder, row.rate) for row in there)))
    return tuple(found)


def _read_cluster(app: App, connection: Connection) -> ClusterStatus | None:
    """Return the cluster's state; None where the settings have no nodes, or no node holds anything yet."""
    if app.settings.cluster is None:
        return None
    from tidemark.proof.cluster.show import status_of

    return status_of(connection, app.receiver_settings(app.settings.cluster.receiver).name)


def read_links(app: App, connection: Connection) -> tuple[LinkStatus, ...]:
    found = _read_facts(connection, is_alive, lease_clock(connection), app.site_names(connection), LEFT_OUT)
    known = {facts.link for facts in found}
    found += [LinkFacts(x.name, x.site, x.receiver) for x in app.settings.links.values() if x.name not in known]
    return tuple(
        link_status(_add_listing_date(app, connection, facts), app.clock()) for facts in sorted(found, key=lambda f: f.link)
    )


def _add_listing_date(app: App, connection: Connection, facts: LinkFacts) -> LinkFacts:
    """Add the date of the link's last whole listing; a link that never ran, or is not in the settings, has none."""
    link = app.settings.links.get(facts.link)
    if link is None or not facts.run:
        return facts
    rows = run_report(connection, "site_listings", receiver="", site="", link=link.name)
    return replace(facts, as_of=judge_listings(rows, link, app.clock()))


def read_target_status(connection: Connection, receiver: ReceiverSettings) -> TargetStatus:
    """Return the status of the IoTDB server that a receiver names."""
    from tidemark.receiver.iotdb.thrift import Server

    target = Target(receiver.name, Server.from_url(receiver.iotdb, "").name)
    states = iotdb_rows.count_states(connection, target)
    held = states.get("held", 0)
    openly = (iotdb_rows.open_files, iotdb_rows.open_merged, iotdb_rows.left_files)
    waits = sum(len(find(connection, target)) for find in openly) - held
    differing = iotdb_rows.partitions_in(connection, target, ("differs",))
    told = tuple(f"{row.database}, partition {row.partition}: {row.reason}" for row in differing)
    return TargetStatus(receiver.name, target.server, states.get("given", 0), max(0, waits), held, told)


def _read_facts(
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
        found = _facts_of_row(r, unsent, at_receiver, _find_live_holder(r, alive, clock), names)
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


def _facts_of_row(
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
