"""The verbs status and runs: what the ledger alone tells of links, nodes, lines and IoTDBs.

A monitor asks every minute, so what they import is little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.ledger.database import database_time
from tidemark.ledger.leases import is_alive, lease_clock
from tidemark.ledger.receiver import iotdb as iotdb_rows
from tidemark.ledger.receiver.iotdb import Target
from tidemark.ledger.sender.bandwidth import SharedLine
from tidemark.ledger.sql import run_report
from tidemark.proof.as_of import judge_listings
from tidemark.proof.coverage.gather import link_facts
from tidemark.proof.runs import Run, list_runs
from tidemark.proof.status import ClusterStatus, LineStatus, LinkFacts, LinkStatus, StatusReport, TargetStatus, link_status
from tidemark.settings.model import ReceiverSettings

LEFT_OUT = "excluded by"
"""How the reason of a file begins that the link's own patterns leave behind."""


def status(app: App) -> StatusReport:
    """Return one line per link, from the ledger alone. Links of the settings that never ran are `new`. And one per source of
    changes, from its store alone."""
    sources = _read_sources(app) if app.settings.sources else ()
    with app.ledger.read() as connection:
        targets = tuple(read_target_status(connection, r) for r in app.settings.receivers.values() if r.iotdb)
        return StatusReport(
            read_links(app, connection), targets, _read_cluster(app, connection), _read_lines(app, connection), sources
        )


def _read_sources(app: App) -> tuple[Mapping[str, Any], ...]:
    from tidemark.changes.sources.show import note_source
    from tidemark.changes.sources.source import find_source

    return tuple(note_source(find_source(app, name)) for name in sorted(app.settings.sources))


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
    found = link_facts(connection, is_alive, lease_clock(connection), app.site_names(connection), LEFT_OUT)
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
