"""What a link's receiver keeps out of the catalog, told by every `sync` for as long as it stands, not by the first alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemark.app import App
from tidemark.flows.sync_result import SyncResult
from tidemark.ledger.sql import report
from tidemark.receiver.load.result import Trouble
from tidemark.settings.model import LinkSettings


def with_standing(app: App, link: LinkSettings, result: SyncResult) -> SyncResult:
    """The result with every file of the site that is refused or in quarantine now, whichever run brought it.

    A receiver of another ledger is known by its answers.
    """
    found = kept_out(app, link)
    if not found:
        return result
    told = {(one.what, one.path) for one in result.troubles}
    older = [one for one in found if (one.what, one.path) not in told]
    kinds = [one.what for one in found]
    return replace(
        result,
        refused=max(result.refused, kinds.count("refused")),
        quarantined=max(result.quarantined, kinds.count("quarantined")),
        troubles=(*result.troubles, *older),
    )


def kept_out(app: App, link: LinkSettings) -> Sequence[Trouble]:
    """Every file of the link's site that its receiver refuses or holds in quarantine now."""
    receiver = app.receiver(link.receiver)
    with app.ledger.read() as connection:
        if app.receiver_root(receiver) is None:
            rows = report(connection, "standing_answers", link=link.name)
        else:
            rows = report(connection, "standing_troubles", receiver=receiver.name, site=app.site(link.site).id)
    return [Trouble(r["what"], r["landing"], r["path"], r["reason"], int(r["kind"])) for r in rows]
