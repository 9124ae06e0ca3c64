"""Tasks of the receivers' DAGs: load, merge, verify, housekeep. Each calls one flow and returns ids and counts.

What a flow could not do for some files does not make its task red: those files wait in quarantine or as refused, with
their own commands. What stops a whole landing does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tidemark.orchestration.perform import counts, perform

log = logging.getLogger(__name__)
ENGINE = "spark"  # in DAGs; `[spark] engine` may say otherwise


def load(receiver: str) -> dict[str, Any]:
    """Load every landing of the receiver that is not loaded yet."""
    from tidemark.flows.load_landings import load as run

    result = perform(lambda app: run(app, app.receiver(receiver), engine=ENGINE))
    for trouble in result.troubles:
        log.warning("%s %s %s: %s", trouble.what, trouble.landing, trouble.path, trouble.reason)
    for path, reason in result.pending:
        log.info("pending %s: %s", path, reason)
    return counts(result.as_json())


def merge(receiver: str) -> dict[str, Any]:
    """Merge what overlaps at the receiver."""
    from tidemark.flows.merge_catalog import merge as run

    return counts(perform(lambda app: run(app, app.receiver(receiver), engine=ENGINE)).as_json())


def verify(receiver: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compare source, landing and catalog. Red when anything differs: the log lists it."""
    from airflow.sdk.exceptions import AirflowFailException

    from tidemark.flows.prove import verify as run

    asked = params or {}
    site, deep = asked.get("site") or "", bool(asked.get("deep"))
    result = perform(lambda app: run(app, app.receiver(receiver), site=site, deep=deep))
    raw = result.as_json()
    for difference in raw["differences"]:
        log.error("%s", difference)
    if raw["differences"]:
        raise AirflowFailException(f"{len(raw['differences'])} differences. Next: ./tidemark verify --repair")
    return counts(raw)


def housekeep(receiver: str) -> dict[str, Any]:
    """Settle, reclaim, remove what is answered, trim events."""
    from tidemark.flows.housekeep import housekeep as run

    return counts(perform(lambda app: run(app, app.receiver(receiver))).as_json())
