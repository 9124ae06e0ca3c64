"""Which sites a receiver knows, by the settings and by what manifests told; shared by the flows that report."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import Connection

from tidemark.app import App
from tidemark.errors import NotFoundError, UsageError
from tidemark.ledger.receiver.landings import sites as known_sites
from tidemark.ledger.sql import report
from tidemark.proof.site_coverage import Site
from tidemark.receiver.proved_files import site_names
from tidemark.settings.model import ReceiverSettings


def root_here(app: App, receiver: ReceiverSettings) -> Path:
    """The receiver's folder here. Raises UsageError where it is remote."""
    root = app.receiver_root(receiver)
    if root is None:
        raise UsageError(
            f"receiver {receiver.name} is remote: only the Tidemark beside its files can tell",
            hint=f"run it where {receiver.store} is a file:// store; here: ./tidemark status",
        )
    return root


def sites_of(app: App, connection: Connection, receiver: ReceiverSettings, wanted: str = "") -> list[Site]:
    """The sites a receiver heard of and those whose links lead to it, by name; only `wanted` (name or UUID) where given.

    Raises NotFoundError where nobody knows `wanted`.
    """
    names = site_names(app, connection)
    units = {s.id: s.time_unit for s in app.settings.sites.values()}
    units |= {site_id: row.time_unit for site_id, row in known_sites(connection).items()}
    links = {app.site(x.site).id: x.name for x in app.settings.links.values() if x.receiver == receiver.name}
    told = {r["site_id"] for r in report(connection, "sites_at_receiver", receiver=receiver.name)}
    every = [Site(s, names.get(s, s), units.get(s, "ms"), links.get(s, "")) for s in told | set(links)]
    found = sorted((s for s in every if wanted in ("", s.name, s.site_id)), key=lambda s: s.name)
    if wanted and not found:
        known = ", ".join(sorted(s.name for s in every)) or "none"
        raise NotFoundError(f"receiver {receiver.name} knows no site {wanted!r}; it knows: {known}", subject=wanted)
    return found
