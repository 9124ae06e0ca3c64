"""A store that is opened at its first use.

On the command line one process opens a link's stores once for all steps. In Airflow each step is a process, and an SSH
connection costs more than most steps: `transfer_deletes` uses only the ledger, `recover` and `cleanup` seldom need the site.
This is a module of its own because Airflow reads DAG files often, and needs no stores for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.stores.retrying import TRIES, RetryingStore, without_retries

T = TypeVar("T")


def open_late(address: StoreAddress) -> Store:
    """Open a store, a remote one at its first use, which then raises the errors of opening."""
    return LateStore(address) if address.url.startswith("sftp://") else open_store(address)


class LateStore(RetryingStore):
    """A store whose `inner` is opened at its first use, by any thread."""

    def __init__(self, address: StoreAddress) -> None:
        self._tries = TRIES
        self._address = address
        self._opening = threading.Lock()

    @property
    def url(self) -> str:
        return self._address.url

    def __getattr__(self, name: str) -> Any:
        """Open `inner` before the first use: Python calls this for missing attributes."""
        if name != "inner":
            raise AttributeError(name)
        with self._opening:
            if "inner" not in vars(self):
                self.inner = without_retries(open_store(self._address))
        return vars(self)["inner"]

    def _retry_call(self, act: Callable[[], T]) -> T:
        without_retries(self)  # opening has its own tries; only one level retries a failure
        return super()._retry_call(act)

    def close(self) -> None:
        if "inner" in vars(self):
            self.inner.close()
