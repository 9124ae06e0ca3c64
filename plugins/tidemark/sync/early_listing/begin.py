"""Start listing a site in the background while the rest of the program still loads.

The listing counts as partial (see the package). Importing this module loads little: it imports the rest when it is needed.
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
        """Return an opener that returns the listed store once, and calls `later` for all other stores and later calls."""
        ...


class RemoteListing:
    """A remote store that is opened and listed in the background."""

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
            raise error  # opening was retried already; a listing that failed is asked for again
        return PrefetchedStore(store, self._folders, found) if store and found else store


class LocalListing:
    """A local store that a child process lists."""

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
    """Start listing the link's site; None if the settings lack it or, with `windows`, the link's window is closed. None also
    for sites that are neither `file://` nor plain `sftp://`."""
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
