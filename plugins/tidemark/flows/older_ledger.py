"""Notice, by the papers of settled merges, a ledger that is older than the receiver: a backup that was put in its place.

Landings tell the same, and sync and load look at them; but merging and settling go on while no landing comes. Such a ledger
would read sources whose bytes are gone.
"""

from __future__ import annotations

from tidemark.errors import CorruptionError, PermanentError
from tidemark.flows.app import App
from tidemark.ledger import rebuild_rows
from tidemark.settings import ReceiverSettings
from tidemark.stores.protocol import Store
from tidemark.stores.settled import FOLDER, SettledPaper, decode_settled, paper_place


def require_current(app: App, receiver: ReceiverSettings, store: Store) -> None:
    """Raises PermanentError where a settled paper speaks of a merge that the ledger does not know, or of a settling that it
    does not know although bytes of the sources are gone. A paper without a record alone means nothing."""
    names = set(store.list_folder(FOLDER))
    if not names:
        return
    with app.ledger.read() as connection:
        merges = rebuild_rows.merges(connection, receiver.name)
    settled = {paper_place(location) for location, is_settled in merges.items() if is_settled}
    doubtful = sorted({f"{FOLDER}/{name}" for name in names if name.endswith(".json")} - settled)
    for path, data in store.read_many(doubtful):
        paper = _readable(data)
        if paper is not None and (paper.location not in merges or _gone(store, paper)):
            raise PermanentError(
                f"{path} tells of a merge that the ledger does not know: the ledger is older than receiver {receiver.name}",
                hint="./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)",
                subject=path,
            )


def _gone(store: Store, paper: SettledPaper) -> bool:
    return None in store.stat_many([source.location for source in paper.sources])


def _readable(data: bytes | None) -> SettledPaper | None:
    try:
        return None if data is None else decode_settled(data)
    except CorruptionError:
        return None  # it tells nothing; a rebuild names it
