"""A receiver whose process may die before and after each of its effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.centre import Centre
from tests.crash.explorer import CrashingLedger, CrashingStore, Effects, identity
from tidemark.app import App
from tidemark.stores.open import open_store


@contextmanager
def dying(centre: Centre, effects: Effects) -> Iterator[None]:
    """One life of the receiver: its ledger and its store tell `effects` of all they do."""
    ledger = CrashingLedger(centre.app.ledger.url, effects)
    centre.app = App(
        settings=centre.app.settings,
        ledger=ledger,
        identity=identity(),
        opener=lambda address: CrashingStore(open_store(address), effects, "receiver"),
    )
    try:
        yield
    finally:
        ledger.close()
