"""What a decision would do, in numbers: a line for the question before it. From the ledger alone, and it changes nothing."""

from __future__ import annotations

from collections import Counter

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.ledger.receiver import landings as landing_rows
from tidemark.ledger.receiver import refusals as refusal_rows
from tidemark.ledger.receiver.refusals import OwnerRow
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sql import run_report
from tidemark.progress import format_count, format_size
from tidemark.receiver.load.examine import site_of
from tidemark.settings.model import ReceiverSettings
from tidemark.tsfiles.devices import pattern_matches


def count_approval(app: App, run_id: str) -> str:
    """Say what waits for this run's approval: at its link, and at receivers of this machine."""
    told = []
    with app.ledger.read() as connection:
        run = run_rows.get_run(connection, run_id)
        link = link_rows.get_link(connection, run.link) if run else None
        if run is not None and link is not None and link.guard_run == run_id:
            settings = app.settings.links.get(run.link)
            applies = settings is not None and settings.deletes == "apply"
            told.append(f"{link.guard}; {'readers lose them' if applies else 'readers keep them'}")
        for receiver in app.settings.receivers:
            landings = [x for x in landing_rows.read_landings(connection, receiver).values() if x.run_id == run_id]
            ids = {landing.landing for landing in landings}
            sites = {landing.site_id for landing in landings}
            drops = [d for s in sites for d in landing_rows.read_drops(connection, receiver, s, states=("waiting",))]
            if waiting := sum(drop.landing in ids for drop in drops):
                told.append(f"{format_count(waiting, 'file leaves', 'files leave')} the catalog of {receiver}")
    return "; ".join(told)


def match_owners(connection: Connection, receiver: str, pattern: str) -> list[OwnerRow]:
    """Return the owned devices that a name or a pattern (`root.plant1.**`) means, by name.

    A device of exactly this name is meant alone: a tag may hold a star.
    """
    exact = refusal_rows.owners_of(connection, receiver, [pattern])
    if exact or "*" not in pattern:
        return list(exact.values())
    return [row for row in refusal_rows.all_owners(connection, receiver) if pattern_matches(pattern, row.device)]


def count_transfer(app: App, receiver: ReceiverSettings, pattern: str, to: str) -> str:
    """Say whose the devices are, and how many refused files of the new owner wait for them."""
    with app.ledger.read() as connection:
        owned = match_owners(connection, receiver.name, pattern)
        waiting = refusal_rows.read_refusals(connection, receiver.name, site_id=site_of(app, to))
        names = app.site_names(connection)
    if not owned:
        return ""
    devices = {row.device for row in owned}
    refused = sum(row.device in devices for row in waiting)
    if devices == {pattern}:
        owner = names.get(owned[0].site_id, owned[0].site_id)
        return f"{owner} owns it; {format_count(refused, 'refused file')} of {to} for it"
    sites = Counter(names.get(row.site_id, row.site_id) for row in owned)
    told = ", ".join(f"{count:,} of {site}" for site, count in sorted(sites.items()))
    return f"{format_count(len(devices), 'device')}: {told}; {format_count(refused, 'refused file')} of {to} for them"


def count_dismissed(app: App, receiver: ReceiverSettings, site: str) -> str:
    """Say how many refused files of a site wait."""
    with app.ledger.read() as connection:
        waiting = refusal_rows.read_refusals(connection, receiver.name, site_id=site_of(app, site))
    return f"{format_count(len(waiting), 'file')}; the bytes at {receiver.name} are removed"


def count_ledger(app: App) -> str:
    """Say what the ledger knows, which a new one may not."""
    with app.ledger.read() as connection:
        files = sum(len(run_report(connection, "visible_bytes", receiver=name)) for name in app.settings.receivers)
        links = {row["link"] for row in run_report(connection, "newest_runs", link="", most=1_000)}
    seen, runs = format_count(files, "file"), format_count(len(links), "link")
    return f"this one knows {seen} that readers see, and runs of {runs}; a copy of it is kept"


def count_held(app: App, held_id: str) -> str:
    """Say which file is held under this number."""
    if not held_id.isdecimal() or len(held_id) > 18:  # the range of a 64-bit key
        return ""
    with app.ledger.read() as connection:
        row = refusal_rows.quarantine_of(connection, int(held_id))
    return f"{row.path}: {row.reason}" if row is not None else ""


def count_leaving(app: App, receiver: ReceiverSettings, node: str) -> str:
    """Say how much moves away from a node of the cluster."""
    from tidemark.cluster.membership.change import Wanted, plan_change

    plan = plan_change(app, receiver, Wanted("remove", node)).as_json()
    return f"{plan['slots']:,} slots and {format_size(plan['bytes'])} move"
