"""What is sealed at a site and was not sent, told by `verify`, which goes there in any case.

What is to be sent is decided by the door of every run and plan (`sync.select.select_files.look`). Since when a file waits is
told by this machine's clock where that can be: a site's clock may be off by days or years.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.app import App
from tidemark.errors import NotFoundError, PermanentError, RetryableError, TidemarkError, UnreachableError
from tidemark.ledger.sender import links as link_rows
from tidemark.ledger.sender.runs import MODS, SEND, item_bytes
from tidemark.proof.as_of import overdue
from tidemark.proof.differences import Unsent
from tidemark.proof.site_coverage import Site
from tidemark.settings.window import opens
from tidemark.stores.protocol import Store
from tidemark.sync import session
from tidemark.sync.select.choose import Selection
from tidemark.sync.select.select_files import look
from tidemark.sync.session import Options

MOUNTED = (
    "is the disk mounted there? ./tidemark doctor; if the files are gone for good, ./tidemark sync names what to approve"
)


def add_unsent(app: App, site: Site, store: Store, told: tuple[list[Unsent], list[tuple[str, TidemarkError]]]) -> None:
    """Add what is not sent, or why nobody can say that, to what was `told` so far: (unsent, not verified)."""
    unsent, unverified = told
    try:
        found, lost = unsent_files(app, site, store)
        unsent += found
        if lost:
            unverified.append((site.name, PermanentError(lost, hint=MOUNTED, subject=site.name)))
    except UnreachableError:
        raise
    except (NotFoundError, RetryableError) as error:
        unverified.append((site.name, error))


def unsent_files(app: App, site: Site, store: Store) -> tuple[list[Unsent], str]:
    """The files that the next run of the site's link would send, and those that wait for a compaction, by path; and why a
    folder or disk of the site seems to be away, "" where none does. A listing that shows nothing new is the site's newest
    whole one, and noted so. Raises what looking at a site raises."""
    link = app.link(site.link)
    began = app.clock()
    selection = look(session.Site(app.ledger, link, app.site(link.site), store), Options())
    sending = [*(item for item in selection.items if item.action in (SEND, MODS)), *selection.waiting]
    with app.ledger.read() as connection:
        known = link_rows.get_link(connection, link.name)
        since = link_rows.waiting_since(connection, link.name, [item.path for item in sending])
    selected = known.selected if known else None
    found = []
    for item in sending:
        mtime = float(item.mods_mtime if item.action == MODS else item.mtime)
        sealed = sealed_at(mtime, since.get(item.path), selected, began)
        late = overdue(link, opens(link.window, link.timezone, sealed), began)
        found.append(Unsent(site.name, item.path, item_bytes(item), sealed, late))
    if known is not None and _nothing_new(selection):
        with app.ledger.write() as connection:
            link_rows.note_listed(connection, link.name, began)
    return sorted(found, key=lambda one: one.path), selection.guard if selection.lost else ""


def sealed_at(mtime: float, waiting: float | None, selected: float | None, clock: float) -> float:
    """Since when a file waits to be sent, seconds since 1970. Pure.

    `waiting`: when a run met it and did not bring it; `selected`: when the newest run's whole listing began, which did not
    show it as it is: it was sealed after that, whatever time (`mtime`) the site's clock gave it. One that lies ahead says
    nothing.
    """
    if waiting is not None:
        return min(waiting, clock)
    floor = selected or 0.0
    return mtime if floor <= mtime <= clock else floor


def _nothing_new(selection: Selection) -> bool:
    """Whether the ledger knew of everything that the listing showed."""
    news: Sequence[object] = (*selection.items, *selection.seen, *selection.added, *selection.removed, *selection.forgotten)
    return selection.whole and not news
