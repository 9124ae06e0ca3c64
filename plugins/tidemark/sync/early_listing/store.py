"""A store that was listed already: the same `list_names` call gets that listing, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from tidemark.errors import UnreachableError
from tidemark.stores.protocol import Listing, Store
from tidemark.stores.retrying import TRIES, RetryingStore, without_retries
from tidemark.sync.early_listing.arriving import is_under_way

T = TypeVar("T")


class PrefetchedStore(RetryingStore):
    """A store with a listing. `found` may still arrive over a session of its own. If the server allows no second session,
    the call is repeated when the first is free."""

    def __init__(self, store: Store, folders: Sequence[str], found: Listing) -> None:
        super().__init__(without_retries(store), TRIES if isinstance(store, RetryingStore) else 1)
        self._asked = tuple(folders)
        self._found: Listing | None = found
        self._under_way: Listing | None = found

    def list_names(self, folders: Sequence[str], by_name: str) -> Listing:
        found, self._found = self._found, None
        return found if found is not None and tuple(folders) == self._asked else super().list_names(folders, by_name)

    def _retry_call(self, act: Callable[[], T]) -> T:
        try:
            return super()._retry_call(act)
        except UnreachableError:
            waits_for, self._under_way = self._under_way, None
            if waits_for is None or not is_under_way(waits_for):
                raise
            with suppress(UnreachableError):
                len(waits_for.missing)  # known at its end
            return super()._retry_call(act)
