"""What every flow needs, opened once: settings, ledger, stores, this process's identity, the clock.

Flows take an `App` and nothing else from their surroundings, so tests hand them their own stores, identity and clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tidemark.errors import NotFoundError
from tidemark.ledger.database import Ledger
from tidemark.ledger.leases import Identity
from tidemark.settings import LinkSettings, ReceiverSettings, Settings, SiteSettings
from tidemark.stores.opening import StoreAddress, open_store
from tidemark.stores.protocol import Store

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

    def link(self, name: str) -> LinkSettings:
        return _named(self.settings.links, name, "link")

    def site(self, name: str) -> SiteSettings:
        return _named(self.settings.sites, name, "site")

    def receiver(self, name: str = "") -> ReceiverSettings:
        """The named receiver; without a name the only one."""
        if not name and len(self.settings.receivers) == 1:
            return next(iter(self.settings.receivers.values()))
        return _named(self.settings.receivers, name, "receiver")

    @contextmanager
    def site_store(self, site: SiteSettings) -> Iterator[Store]:
        with self._opened(StoreAddress.of(site)) as store:
            yield store

    @contextmanager
    def receiver_store(self, receiver: ReceiverSettings) -> Iterator[Store]:
        with self._opened(StoreAddress.of(receiver)) as store:
            yield store

    def receiver_root(self, receiver: ReceiverSettings) -> Path | None:
        """The receiver's folder on this machine, or None where it is remote: only a local receiver is loaded here."""
        return Path(receiver.store.removeprefix("file://")) if receiver.store.startswith("file://") else None

    @contextmanager
    def _opened(self, address: StoreAddress) -> Iterator[Store]:
        store = self.opener(address)
        try:
            yield store
        finally:
            store.close()


def open_app(settings: Settings, whose_ever: bool = False) -> App:
    """Open the ledger (migrated when it is new; a newer one is refused) and find out who we are.

    Raises PermanentError where the ledger is not the one of a receiver here, or older than it; `whose_ever`: nobody asks.
    """
    from tidemark.flows.ledger_marks import require_current
    from tidemark.ledger.leases import this_process
    from tidemark.ledger.migrations import migrate

    ledger = Ledger(settings.ledger.url, settings.root)
    migrate(ledger)
    if not whose_ever:
        require_current(ledger, settings.receivers.values())
    return App(settings=settings, ledger=ledger, identity=this_process())


def _named(known: Mapping[str, T], name: str, what: str) -> T:
    try:
        return known[name]
    except KeyError:
        names = ", ".join(sorted(known)) or "none"
        raise NotFoundError(
            f"no {what} named {name!r}; the settings have: {names}",
            hint="./tidemark status lists the links; sites and receivers stand in the settings",
            subject=name,
        ) from None
