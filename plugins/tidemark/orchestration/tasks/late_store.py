"""A store that is opened at its first use.

On the command line one process opens a link's stores once for all steps. In Airflow each step is a process, and an SSH
connection with its far end's start costs more than most steps: `transfer_deletes` asks the ledger alone, `recover` and
`cleanup` seldom need the site. A module of its own: Airflow reads DAG files often, and needs no stores for that.
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
    """`open_store`, late where it has to connect. What opening raises is raised by the first use."""
    return LateStore(address) if address.url.startswith("sftp://") else open_store(address)


class LateStore(RetryingStore):
    """`inner` comes into being when it is first asked for, by whichever thread."""

    def __init__(self, address: StoreAddress) -> None:
        self._tries = TRIES
        self._address = address
        self._opening = threading.Lock()

    @property
    def url(self) -> str:
        return self._address.url

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there: `inner`, before the first use."""
        if name != "inner":
            raise AttributeError(name)
        with self._opening:
            if "inner" not in vars(self):
                self.inner = without_retries(open_store(self._address))
        return vars(self)["inner"]

    def _retry_call(self, act: Callable[[], T]) -> T:
        without_retries(self)  # opening has its own tries; one level retries one failure
        return super()._retry_call(act)

    def close(self) -> None:
        if "inner" in vars(self):
            self.inner.close()
