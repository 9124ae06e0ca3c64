"""Landings whose papers are not what they were: those that a link made, that its receiver has not answered, and that are not
there any more; and loaded ones in which somebody changed the manifest or the receipt.

All later ones of the site wait for such a one for ever. Where nobody brings its folder back, its manifest is made again from
the ledger. Its files are then missing in it like any that a disk lost: where the receiver is here, verify fetches them from
the site; else the load says in its receipt that they are missing, and the link's next run sends what the site still has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidemark.app import App
from tidemark.flows.repair import Repairs
from tidemark.formats.layout import MANIFEST, landing_folder
from tidemark.ledger import journal
from tidemark.ledger.sender import runs as run_rows
from tidemark.ledger.sender.runs import SentLanding
from tidemark.ledger.sql import Row
from tidemark.proof.differences import DAMAGED, MISSING, Difference
from tidemark.proof.landed_check import LOST, altered_papers
from tidemark.proof.site_coverage import Site
from tidemark.settings.model import LinkSettings, SiteSettings
from tidemark.stores.protocol import Store
from tidemark.sync.send.manifest import paper_of

MADE_AGAIN = "its manifest was made again: what is not fetched from the site is sent by link {link} after the next load"


def lost_landings(app: App, link: LinkSettings, repair: bool) -> Iterator[Difference]:
    """One for each landing of `link` whose manifest is gone, made again where `repair`.

    Raises UnreachableError and what else opening the receiver's store raises.
    """
    site = app.site(link.site)
    waiting = _waiting(app, link)
    if not waiting:
        return
    with app.receiver_store(app.receiver(link.receiver)) as store:
        found = store.stat_many([_manifest(site, landing) for landing in waiting])
        lost = {one.landing for one, entry in zip(waiting, found, strict=True) if entry is None}
        for landing in _waiting(app, link) if lost else ():  # one may have been answered meanwhile, and taken away
            if landing.landing in lost:
                again = _made_again(app, link, landing, store) if repair else ""
                yield Difference(MISSING, site.name, landing.landing, "landing", LOST, again)


def changed_papers(root: Path, site: Site, loaded: Sequence[Row], repairs: Repairs | None) -> Iterator[Difference]:
    """One for each paper in a loaded landing that is not what was loaded or answered; `repairs` puts it back from what the
    receiver kept of it."""
    for landing, what in list(altered_papers(root, site.site_id, loaded, trusting=False)):
        again = repairs.put_papers_back(root, site.site_id, landing) if repairs else ""
        yield Difference(DAMAGED, site.name, landing, "landing", what, again)


def _waiting(app: App, link: LinkSettings) -> Sequence[SentLanding]:
    with app.ledger.read() as connection:
        return run_rows.landings(connection, link.name, state="landed")


def _made_again(app: App, link: LinkSettings, landing: SentLanding, store: Store) -> str:
    """What was done; "" where the ledger does not know any more what the landing carried."""
    site = app.site(link.site)
    with app.ledger.read() as connection:
        contents, data = paper_of(connection, link, site, landing)
    if len(contents.files) != landing.files:  # a ledger that was rebuilt
        return ""
    digest = hashlib.sha256(data).hexdigest()
    with app.ledger.write() as connection:  # before anybody can answer it
        run_rows.set_landing(connection, landing.landing, manifest_sha256=digest)
        place = {"link": link.name, "run_id": landing.run_id, "landing": landing.landing}
        journal.record(connection, "landing.made_again", **place, sequence=landing.sequence, files=landing.files)
        journal.record_decision(connection, "verify repair", landing.landing, link=link.name)
    # CRASH WINDOW: recorded, and no manifest: it is still a lost landing, and this is done again.
    store.publish(_manifest(site, landing), data)
    return MADE_AGAIN.format(link=link.name)


def _manifest(site: SiteSettings, landing: SentLanding) -> str:
    return f"{landing_folder(site.id, landing.landing)}/{MANIFEST}"
