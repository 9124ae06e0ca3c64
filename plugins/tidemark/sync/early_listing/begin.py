"""Begin to look at a site while the rest of the program is still being loaded.

A glance at a large site takes a second of the far end's time, loading our own modules and opening the ledger half of one of
ours: both at once, where a command will want the glance in any case. It is older than the run's lease, so it must decide
nothing by itself, and does not: it counts as partial, which makes whoever uses it look again, closer, at every folder in
which something differs. Importing this module costs nothing; what went wrong early is told when the store is opened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from tidemark.errors import TidemarkError
from tidemark.settings.model import Settings
from tidemark.settings.window import is_open
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Listing, Store, StoreAddress, local_root
from tidemark.tsfiles.names import RESOURCE

Opener = Callable[[StoreAddress], Store]


class EarlyListing(Protocol):
    def make_opener(self, later: Opener) -> Opener:
        """An opener that gives the store that was looked at, once; everything else, and all after it, is `later`'s."""
        ...


class RemoteListing:
    """A remote store being opened and glanced at in the background."""

    def __init__(self, address: StoreAddress, folders: Sequence[str]) -> None:
        self._address = address
        self._folders = folders
        self._store: Store | None = None
        self._found: Listing | None = None
        self._error: TidemarkError | None = None
        self._opened = threading.Event()
        threading.Thread(target=self._list_site, name="early look", daemon=True).start()

    def make_opener(self, later: Opener) -> Opener:
        def opened(address: StoreAddress) -> Store:
            store = self._take_store() if address == self._address else None
            return store or later(address)

        return opened

    def _list_site(self) -> None:
        from tidemark.stores.listing import list_names
        from tidemark.stores.python.store import PythonStore
        from tidemark.stores.retrying import without_retries
        from tidemark.sync.early_listing.arriving import ArrivingFrames

        try:
            self._store = store = open_store(self._address)
            inner = without_retries(store)
            if isinstance(inner, PythonStore):
                frames = ArrivingFrames()
                self._found = frames.make_listing()
                self._opened.set()
                frames.receive_frames(inner.stream_listing(self._folders, RESOURCE))
            else:
                self._found = replace(list_names(store, self._folders, RESOURCE), partial=True)
        except TidemarkError as error:
            self._error = error
        finally:
            self._opened.set()

    def _take_store(self) -> Store | None:
        from tidemark.sync.early_listing.store import PrefetchedStore

        self._opened.wait()
        store, found, error = self._store, self._found, self._error
        self._store = self._found = self._error = None
        if error and not store:
            raise error  # opening was tried as often as it would be now; a glance that failed is asked for again
        return PrefetchedStore(store, self._folders, found) if store and found else store


class LocalListing:
    """A local store being glanced at by a child."""

    def __init__(self, address: StoreAddress, folders: Sequence[str]) -> None:
        from tidemark.sync.early_listing.arriving import list_in_child

        self._address = address
        self._folders = folders
        self._found: Listing | None = list_in_child(local_root(address.url), folders, RESOURCE)

    def make_opener(self, later: Opener) -> Opener:
        from tidemark.sync.early_listing.store import PrefetchedStore

        def opened(address: StoreAddress) -> Store:
            store = later(address)
            found, self._found = (self._found, None) if address == self._address else (None, self._found)
            return PrefetchedStore(store, self._folders, found) if found is not None else store

        return opened


def begin_listing(settings: Settings, link: str, windows: bool = True) -> EarlyListing | None:
    """Start looking at the link's site, where the settings know it and, with `windows`, the link's window is open."""
    known = settings.links.get(link)
    site = settings.sites.get(known.site) if known else None
    if known is None or site is None or (windows and not is_open(known.window, known.timezone, time.time())):
        return None
    address = StoreAddress.of(site)
    if site.store.startswith("file://"):
        return LocalListing(address, site.data)
    if not site.store.startswith("sftp://") or site.connection:
        return None

    return RemoteListing(address, site.data)
