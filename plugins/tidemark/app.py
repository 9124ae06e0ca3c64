"""What every verb needs, opened once: settings, ledger, stores, this process's identity, the clock.

Verbs take an `App` and nothing else from their surroundings, so tests give them their own stores, identity and
clock. `open_app` opens the ledger and asks, for each receiver on this machine, whether the ledger belongs to it
(`require_current`).

The receiver's root keeps `ledger_mark.json`: the UUID of the ledger it belongs to, and how many changes that ledger
held. Each transaction that changes the receiver raises the ledger's own count. The file is written after the commit.
So a ledger that is behind the file was restored from a backup, and one that knows nothing of the file was lost.
Either raises PermanentError with the way to rebuild it. A folder without the file is fresh, or of a Tidemark that
wrote none: then the ledger must know of what lies there. The fields stand in docs/formats/ledger-mark.md.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, NotFoundError, PermanentError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver.rebuild import Mark
from tidemark.settings.model import LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.tsfiles.names import MARK_FILE
from tidemark.untrusted_files import MOST_SMALL, UntrustedFile

T = TypeVar("T")


@dataclass
class App:
    """What a flow works with: settings, ledger, clock, and how stores are opened."""

    settings: Settings
    ledger: Ledger
    identity: Identity
    clock: Callable[[], float] = time.time
    opener: Callable[[StoreAddress], Store] = open_store
    connections: Callable[[str], str] | None = field(default=None)  # an Airflow connection id → its private key file

    def link_settings(self, name: str) -> LinkSettings:
        return _find_named(self.settings.links, name, "link")

    def site_settings(self, name: str) -> SiteSettings:
        return _find_named(self.settings.sites, name, "site")

    def receiver_settings(self, name: str = "") -> ReceiverSettings:
        """The named receiver; without a name the only one."""
        if not name and len(self.settings.receivers) == 1:
            return next(iter(self.settings.receivers.values()))
        return _find_named(self.settings.receivers, name, "receiver")

    @contextmanager
    def site_store(self, site: SiteSettings) -> Iterator[Store]:
        with self._open_store(StoreAddress.of(site)) as store:
            yield store

    @contextmanager
    def receiver_store(self, receiver: ReceiverSettings) -> Iterator[Store]:
        with self._open_store(StoreAddress.of(receiver)) as store:
            yield store

    def receiver_root(self, receiver: ReceiverSettings) -> Path | None:
        """The receiver's folder on this machine, or None where it is remote: only a local receiver is loaded here."""
        return Path(receiver.store.removeprefix("file://")) if receiver.store.startswith("file://") else None

    @contextmanager
    def _open_store(self, address: StoreAddress) -> Iterator[Store]:
        store = self.opener(address)
        try:
            yield store
        finally:
            store.close()


def open_app(settings: Settings, whose_ever: bool = False) -> App:
    """Open the ledger (migrated when it is new; a newer one is refused) and find out who we are.

    Raises PermanentError where the ledger is not the one of a receiver here, or older than it; `whose_ever`: nobody asks.
    """
    from tidemark.ledger.leases import this_process
    from tidemark.ledger.migrations import migrate_ledger

    ledger = Ledger(settings.ledger.url, settings.root)
    migrate_ledger(ledger)
    if not whose_ever:
        require_current(ledger, settings.receivers.values())
    return App(settings=settings, ledger=ledger, identity=this_process())


def _find_named(known: Mapping[str, T], name: str, what: str) -> T:
    try:
        return known[name]
    except KeyError:
        names = ", ".join(sorted(known)) or "none"
        raise NotFoundError(
            f"no {what} named {name!r}; the settings have: {names}",
            hint="./tidemark status lists the links; sites and receivers stand in the settings",
            subject=name,
        ) from None


_FORMAT = 1
_EMPTY = "the ledger is empty, or another one: it knows nothing of what lies at"
_HINT = "./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)"


def require_current(ledger: Ledger, receivers: Iterable[ReceiverSettings]) -> None:
    """Raises PermanentError for a ledger that is not the one of a receiver on this machine, or older than it.

    A folder without a mark is fresh, or of a Tidemark that wrote none: then the ledger must know of what lies there.
    """
    for receiver in receivers:
        if _is_here(receiver):
            told = read_mark(_root_of(receiver))  # first: a load may be at work, and the ledger is never behind the file
            with ledger.read() as connection:
                ours = rebuild_rows.mark_of(connection, receiver.name)
                known = ours is not None or rebuild_rows.knows_receiver(connection, receiver.name)
            _require_mark(receiver, told, ours, known)


def require_unused(receivers: Iterable[ReceiverSettings]) -> None:
    """The same where there is no ledger at all: nothing may lie at any receiver here."""
    for receiver in receivers:
        if _is_here(receiver):
            _require_mark(receiver, read_mark(_root_of(receiver)), None, False)


def _is_here(receiver: ReceiverSettings) -> bool:
    return receiver.store.startswith("file://")


def _root_of(receiver: ReceiverSettings) -> Path:
    return Path(receiver.store.removeprefix("file://"))


def _require_mark(receiver: ReceiverSettings, told: Mark | None, ours: Mark | None, known: bool) -> None:
    root = _root_of(receiver)
    trouble = compare_marks(ours, told, known=known, used=told is not None or known or _has_loaded_files(root))
    if trouble:
        raise PermanentError(f"{trouble} receiver {receiver.name} ({root})", hint=_HINT, subject=receiver.name)


def compare_marks(ours: Mark | None, told: Mark | None, *, known: bool, used: bool) -> str:
    """What is wrong between the ledger's mark and the folder's; '' where nothing is. `known`: the ledger has rows of the
    receiver; `used`: something was loaded into the folder."""
    if told is None:
        return _EMPTY if used and not known else ""
    if ours is None:  # known: a backup of before there were marks
        return "the ledger is older than" if known else _EMPTY
    if ours.mark != told.mark:
        return "the ledger is not the one of"
    return "the ledger is older than" if ours.changes < told.changes else ""


def read_mark(root: Path) -> Mark | None:
    """The mark of a receiver's folder; None where there is none. Raises CorruptionError for a file that is no mark."""
    place = UntrustedFile(str(root), MARK_FILE)
    try:
        raw = json.loads(place.read(MOST_SMALL))
        return Mark(str(uuid.UUID(raw["mark"])), int(raw["changes"]))
    except (FileNotFoundError, NotADirectoryError):  # the latter: the receiver's folder is a file, as who opens it tells
        return None
    except (CorruptionError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as broken:
        raise CorruptionError(
            f"{place} cannot be read: {broken}: nobody can tell whether the ledger is the receiver's",
            hint=_HINT,
            subject=str(place),
        ) from broken


def write_mark(ledger: Ledger, receiver: str, store: Store) -> None:
    """Tell the receiver's folder how far the ledger is. `store`: the receiver's."""
    with ledger.read() as connection:
        mark = rebuild_rows.mark_of(connection, receiver)
    if mark is not None:
        paper = {"format": _FORMAT, "receiver": receiver, "mark": mark.mark, "changes": mark.changes}
        store.publish(MARK_FILE, json.dumps(paper, ensure_ascii=False).encode())


def catch_up_mark(app: App, receiver: ReceiverSettings, store: Store) -> None:
    """What a change that died before its end did not tell; and the mark of a receiver that has none yet."""
    root = app.receiver_root(receiver)
    told = None if root is None else read_mark(root)
    with app.ledger.read() as connection:
        ours, known = rebuild_rows.mark_of(connection, receiver.name), rebuild_rows.knows_receiver(connection, receiver.name)
    if ours is None and known:
        with change_receiver(app, receiver.name, store):
            pass
    elif ours is not None and (told is None or told.changes < ours.changes):
        write_mark(app.ledger, receiver.name, store)


@contextmanager
def change_receiver(app: App, receiver: str, store: Store) -> Iterator[Connection]:
    """A write transaction that changes what the receiver holds or what was decided there. `store`: the receiver's."""
    with app.ledger.write() as connection:
        yield connection
        rebuild_rows.count_change(connection, receiver)
    # CRASH WINDOW: recorded, the folder's mark is one behind: that is no trouble, and the next load writes it.
    write_mark(app.ledger, receiver, store)


def adopt_mark(connection: Connection, receiver: str, root: Path) -> None:
    """Of a rebuilt ledger: it takes over the folder's mark, one change on, so that only it is the receiver's from now on."""
    try:
        told = read_mark(root)
    except CorruptionError:
        told = None  # it is written anew
    rebuild_rows.put_mark(connection, receiver, Mark(told.mark, told.changes + 1) if told else Mark(str(uuid.uuid4()), 1))


def _has_loaded_files(root: Path) -> bool:
    """Whether anything was loaded there: a data file, or an answered landing."""
    return any(next(root.glob(pattern), None) is not None for pattern in ("data/*/*/*", "answered/*/*"))
