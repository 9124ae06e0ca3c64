"""The application context that every command works with: settings, ledger, stores, process identity, clock.

Commands receive an `App` and read nothing else from their environment. So tests can pass their own stores, identity
and clock. `open_app` opens the ledger and checks for each receiver on this machine that the ledger belongs to it
(`require_current`).

The receiver's root holds `ledger_mark.json`: the UUID of the ledger it belongs to, and that ledger's number of
changes. Each transaction that changes the receiver increments the ledger's own count. The file is written after the
commit. So a ledger that is behind the file was restored from a backup. A ledger that knows nothing of the receiver
replaced a lost one. Both raise PermanentError with the command that rebuilds it. A folder with data but without the
file is accepted if the ledger has rows of the receiver. docs/formats/ledger-mark.md describes the fields.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sqlalchemy.engine import Connection

from tidemark.errors import CorruptionError, DiskAwayError, NotFoundError, PermanentError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity
from tidemark.ledger.receiver import rebuild as rebuild_rows
from tidemark.ledger.receiver.landings import read_sites
from tidemark.ledger.receiver.rebuild import Mark
from tidemark.settings.model import LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.tsfiles.names import MARK_FILE
from tidemark.untrusted_files import MOST_SMALL, UntrustedFile

T = TypeVar("T")


@dataclass
class App:
    """The context of one command or task: settings, ledger, identity, clock, and how stores are opened."""

    settings: Settings
    ledger: Ledger
    identity: Identity
    clock: Callable[[], float] = time.time
    opener: Callable[[StoreAddress], Store] = open_store
    loading: threading.Lock = field(default_factory=threading.Lock)  # threads of one process load one after another

    def link_settings(self, name: str) -> LinkSettings:
        return find_named(self.settings.links, name, "link")

    def links_beside(self, link: LinkSettings) -> frozenset[str]:
        """The names of the other links to the same receiver."""
        others = (one for one in self.settings.links.values() if one.name != link.name)
        return frozenset(one.name for one in others if one.receiver == link.receiver)

    def site_settings(self, name: str) -> SiteSettings:
        return find_named(self.settings.sites, name, "site")

    def receiver_settings(self, name: str = "") -> ReceiverSettings:
        """The settings of the named receiver, or of the only receiver when `name` is empty."""
        return find_receiver(self.settings, name)

    def site_names(self, connection: Connection) -> dict[str, str]:
        """Return {site id: name}; a name in the settings wins over one from a manifest."""
        told = {site_id: row.name for site_id, row in read_sites(connection).items()}
        return told | {site.id: site.name for site in self.settings.sites.values()}

    @contextmanager
    def site_store(self, site: SiteSettings) -> Iterator[Store]:
        with self._open_store(StoreAddress.of(site)) as store:
            yield store

    @contextmanager
    def receiver_store(self, receiver: ReceiverSettings) -> Iterator[Store]:
        with self._open_store(StoreAddress.of(receiver)) as store:
            yield store

    def receiver_root(self, receiver: ReceiverSettings) -> Path | None:
        """The receiver's folder on this machine, or None if it is remote. Only a local receiver is loaded here."""
        return Path(receiver.store.removeprefix("file://")) if receiver.store.startswith("file://") else None

    @contextmanager
    def _open_store(self, address: StoreAddress) -> Iterator[Store]:
        store = self.opener(address)
        try:
            yield store
        finally:
            store.close()


def open_app(settings: Settings, whose_ever: bool = False) -> App:
    """Open the ledger and identify this process. A new ledger is migrated; a newer one is refused.

    Raises PermanentError if the ledger does not belong to a receiver here, or is older than the receiver's mark.
    `whose_ever` skips this check.
    """
    from tidemark.ledger.leases import this_process
    from tidemark.ledger.migrations import migrate_ledger

    ledger = Ledger(settings.ledger.url, settings.root)
    migrate_ledger(ledger)
    if not whose_ever:
        require_current(ledger, settings.receivers.values())
    return App(settings=settings, ledger=ledger, identity=this_process())


def find_receiver(settings: Settings, name: str = "") -> ReceiverSettings:
    """Return the settings of the named receiver, or of the only receiver when `name` is empty. NotFoundError."""
    if not name and len(settings.receivers) == 1:
        return next(iter(settings.receivers.values()))
    return find_named(settings.receivers, name, "receiver")


_WHERE = "./tidemark status lists the links; sites and receivers stand in the settings"


def find_named(known: Mapping[str, T], name: str, what: str, hint: str = _WHERE) -> T:
    """Return what the settings have under a name. NotFoundError names those that there are."""
    try:
        return known[name]
    except KeyError:
        names = ", ".join(sorted(known)) or "none"
        raise NotFoundError(f"no {what} named {name!r}; the settings have: {names}", hint=hint, subject=name) from None


_FORMAT = 1
_EMPTY = "the ledger is empty, or another one: it knows nothing of what lies at"
_HINT = "./tidemark ledger rebuild --replace (docs/runbooks/ledger-lost.md)"


def require_current(ledger: Ledger, receivers: Iterable[ReceiverSettings]) -> None:
    """Raise PermanentError if the ledger does not belong to a receiver on this machine, or is older than its mark."""
    for receiver in receivers:
        if _is_here(receiver):
            told = read_mark(_root_of(receiver))  # read first: a running load commits to the ledger, then writes the file
            with ledger.read() as connection:
                ours = rebuild_rows.mark_of(connection, receiver.name)
                known = ours is not None or rebuild_rows.knows_receiver(connection, receiver.name)
            _require_mark(receiver, told, ours, known)


def require_unused(receivers: Iterable[ReceiverSettings]) -> None:
    """Raise PermanentError if a receiver on this machine holds data. For a machine without a ledger."""
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
    """Compare the ledger's mark (`ours`) with the folder's (`told`). Returns what is wrong, '' if nothing is.

    `known`: the ledger has rows of the receiver. `used`: something was loaded into the folder.
    """
    if told is None:
        return _EMPTY if used and not known else ""
    if ours is None:  # known: a backup from a version without marks
        return "the ledger is older than" if known else _EMPTY
    if ours.mark != told.mark:
        return "the ledger is not the one of"
    return "the ledger is older than" if ours.changes < told.changes else ""


def read_mark(root: Path) -> Mark | None:
    """The mark in a receiver's folder, None if it has none. Raises CorruptionError if the file is not a mark."""
    place = UntrustedFile(str(root), MARK_FILE)
    try:
        raw = json.loads(place.read(MOST_SMALL))
        return Mark(str(uuid.UUID(raw["mark"])), int(raw["changes"]))
    except (FileNotFoundError, NotADirectoryError):  # not a directory: opening the receiver's store reports that
        return None
    except (CorruptionError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as broken:
        raise CorruptionError(
            f"{place} cannot be read: {broken}: nobody can tell whether the ledger is the receiver's",
            hint=_HINT,
            subject=str(place),
        ) from broken


def write_mark(ledger: Ledger, receiver: str, store: Store) -> None:
    """Write the ledger's mark into the receiver's folder. `store` is the receiver's store."""
    with ledger.read() as connection:
        mark = rebuild_rows.mark_of(connection, receiver)
    if mark is not None:
        record = {"format": _FORMAT, "receiver": receiver, "mark": mark.mark, "changes": mark.changes}
        store.publish(MARK_FILE, json.dumps(record, ensure_ascii=False).encode())


def catch_up_mark(app: App, receiver: ReceiverSettings, store: Store) -> None:
    """Write the mark that an interrupted change left unwritten, or the first mark of a receiver without one."""
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
    """Open a write transaction for a change of the receiver's contents or decisions, and write the mark after it."""
    with app.ledger.write() as connection:
        yield connection
        rebuild_rows.count_change(connection, receiver)
    # CRASH WINDOW: committed, the folder's mark is one change behind. The check accepts that; the next load writes it.
    write_mark(app.ledger, receiver, store)


def adopt_mark(connection: Connection, receiver: str, root: Path) -> None:
    """Record the folder's mark, one change later, in a rebuilt ledger. From then on only this ledger is accepted."""
    try:
        told = read_mark(root)
    except CorruptionError:
        told = None  # a new mark replaces it
    rebuild_rows.put_mark(connection, receiver, Mark(told.mark, told.changes + 1) if told else Mark(str(uuid.uuid4()), 1))


def require_disk(app: App, receiver: ReceiverSettings) -> None:
    """Raise DiskAwayError if a receiver's folder here is empty, and the ledger knows what was loaded into it.

    Who writes asks first. `verify --repair` writes the mark, and so says that the disk is lost."""
    root = app.receiver_root(receiver)
    if root is None or os.path.lexists(root / MARK_FILE) or _has_loaded_files(root):
        return
    with app.ledger.read() as connection:
        is_used = bool(rebuild_rows.mark_of(connection, receiver.name)) and rebuild_rows.knows_receiver(
            connection, receiver.name
        )
    if is_used:
        raise DiskAwayError(
            f"receiver {receiver.name} ({root}) has none of what was loaded into it: is its disk mounted?",
            hint="mount it; if the disk is lost, ./tidemark verify --repair has what sites still have sent again",
            subject=receiver.name,
        )


def _has_loaded_files(root: Path) -> bool:
    """Whether the receiver's folder holds a data file or an answered landing."""
    return any(next(root.glob(pattern), None) is not None for pattern in ("data/*/*/*", "answered/*/*"))
