"""What every task does around its verb: an open App, tries in seconds, errors in Airflow's words.

Also a store that is opened late, and progress. A closed window is a skip, not a failure. Everything else keeps its
class, so that the retry policy can read it, and is logged with the next command.

`open_late` gives a store that is opened at its first use. On the command line one process opens a link's stores once
for all steps. In Airflow each step is a process, and an SSH connection with its far end's start costs more than most
steps: `transfer_deletes` asks the ledger alone, `recover` and `cleanup` seldom need the site.

`shown` puts progress on Airflow's pages: a line in the log, and the task's state store for who opens its page. It is
for display only (DESIGN §4): whether the store survives a clear depends on the version and on a box in the dialog.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.errors import TidemarkError, WindowOverError
from tidemark.orchestration.settings import standing
from tidemark.progress import Pace, Progress, Tick, said
from tidemark.stores.open import open_store
from tidemark.stores.protocol import Store, StoreAddress
from tidemark.stores.retrying import TRIES, RetryingStore, plain
from tidemark.visible import visible
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App


log = VisibleLog(__name__)
T = TypeVar("T")


def perform(act: Callable[[App], T]) -> T:
    """Run one step of a flow as an Airflow task. Raises AirflowSkipException when the link's window is over."""
    from airflow.sdk.exceptions import AirflowSkipException

    from tidemark.ledger.soundness import surprises_judged
    from tidemark.orchestration.retry_policy import advice, soon
    from tidemark.orchestration.tasks.attempts import noted

    try:
        with opened() as app, noted(app), surprises_judged(app.ledger):
            return soon(lambda: act(app))
    except WindowOverError as over:
        raise AirflowSkipException(advice(over)) from over
    except TidemarkError as error:
        log.error("%s: %s", type(error).__name__, advice(error))
        error.args = (visible(error.message),)  # Airflow logs it with the traceback
        raise


@contextmanager
def opened() -> Iterator[App]:
    """An App of the standing settings, its remote stores opened at their first use; its ledger is closed at the end."""
    from tidemark.app import open_app
    from tidemark.ledger.database import Ledger
    from tidemark.ledger.soundness import surprises_judged

    settings = standing(os.environ)
    with surprises_judged(Ledger(settings.ledger.url, settings.root)):
        app = replace(open_app(settings), opener=open_late)
    try:
        yield app
    finally:
        app.ledger.close()


def counts(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What XCom may carry: ids and numbers; lists only as their length."""
    short: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, (list, tuple, dict)):
            short[key] = len(value)
        elif value is None or isinstance(value, (str, int, float, bool)):
            short[key] = value
    return short


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
                self.inner = plain(open_store(self._address))
        return vars(self)["inner"]

    def _again(self, act: Callable[[], T]) -> T:
        plain(self)  # opening has its own tries; one level retries one failure
        return super()._again(act)

    def close(self) -> None:
        if "inner" in vars(self):
            self.inner.close()


EVERY_SECONDS = 5.0  # each showing is a request to the API server


def shown(store: Any, clock: Callable[[], float] = time.monotonic) -> Progress:
    """A Progress that shows a tick at most every EVERY_SECONDS. `store`: Airflow's task_state_store, or None."""
    last = clock()
    pace = Pace()

    def show(tick: Tick) -> None:
        nonlocal last
        now = clock()
        if now - last < EVERY_SECONDS:
            return
        last = now
        line = said(pace.at(tick, now))
        log.info("%s", line)
        if store is not None:
            try:
                store.set("progress", line)
            except Exception as trouble:
                log.debug("progress is not shown: %s", trouble)

    return show
