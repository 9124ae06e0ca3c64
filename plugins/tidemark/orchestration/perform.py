"""What every task does around its flow: open an App, try again what heals in seconds, say errors in Airflow's words.

A closed window is a skip, not a failure. Everything else keeps its class, so that the retry policy can read it, and is
logged with the next command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.errors import TidemarkError, WindowOverError
from tidemark.orchestration.standing_settings import standing
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
    from tidemark.orchestration.attempts import noted
    from tidemark.orchestration.retry_policy import advice, soon

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
    from tidemark.orchestration.late_store import open_late

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
