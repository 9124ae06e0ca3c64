"""Tasks of the receivers' DAGs: load, merge, verify, housekeep. Each calls one flow and returns ids and counts.

A flow does all it can and reports the rest. With a rest the task is red, and its last line names the next command. A
repeated run finds only what is still open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemark.errors import (
    CorruptionError,
    GuardError,
    OwnershipError,
    PartialError,
    PermanentError,
    RetryableError,
    TidemarkError,
)
from tidemark.orchestration.tasks.perform import counts_for_xcom, perform_step
from tidemark.visible import escape_invisible
from tidemark.visible_log import VisibleLog

log = VisibleLog(__name__)
_LEFT: tuple[type[TidemarkError], ...] = (RetryableError, CorruptionError, OwnershipError, GuardError, PartialError)
_CLASSES = {error.kind: error for error in _LEFT}
ENGINE = "spark"  # in DAGs; `[spark] engine` may say otherwise


def load(receiver: str) -> dict[str, Any]:
    """Load every landing of the receiver that is not loaded yet."""
    from tidemark.receiver.load.load import load as run

    result = perform_step(lambda app: run(app, app.receiver_settings(receiver), engine=ENGINE))
    for trouble in result.troubles:
        log.warning("%s %s %s: %s", trouble.what, trouble.landing, trouble.path, trouble.reason)
    for path, reason in result.pending:
        log.info("pending %s: %s", path, reason)
    return judged(result.exit_code, result.as_json())


def load_iotdb(receiver: str) -> dict[str, Any]:
    """Give the receiver's IoTDB the catalog's new files; does nothing without an IoTDB."""
    from tidemark.receiver.iotdb.load import load_if_any

    result = perform_step(lambda app: load_if_any(app, app.receiver_settings(receiver)))
    if result is None:
        return {}
    for trouble in result.troubles:
        log.warning("%s %s: %s", trouble.what, trouble.path, trouble.reason)
    return judged(result.exit_code, result.as_json())


def merge(receiver: str) -> dict[str, Any]:
    """Merge overlapping files at the receiver."""
    from tidemark.receiver.merge.merge import merge as run

    result = perform_step(lambda app: run(app, app.receiver_settings(receiver), engine=ENGINE))
    for subject, error, _ in result.failed:
        log.error("not merged: %s: %s", subject, error)
    told = {
        "error": f"{len(result.failed) + result.moved} groups were not merged",
        "hint": f"./tidemark merge --receiver {receiver}",
    }
    return judged(result.exit_code, result.as_json() | told)


def verify(receiver: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Compare source, landing and catalog. Red when anything differs or was not verified: the log lists it."""
    from tidemark.proof.verify.verify import verify as run

    asked = params or {}
    site, deep, live = asked.get("site") or "", bool(asked.get("deep")), bool(asked.get("live_only"))
    result = perform_step(lambda app: run(app, app.receiver_settings(receiver), site=site, deep=deep, live_only=live))
    raw = result.as_json()
    for difference in raw["differences"]:
        log.error("%s", difference)
    for held in raw["held"]:
        log.warning("held back: %s", held)
    for unread in raw["not_read"]:
        log.warning("not read: %s", unread)
    for without in raw["not_compared"]:
        log.warning("nothing was compared: %s", without)
    for unsent in raw["unsent"]:
        log.warning("sealed and not sent: %s", unsent)
    return judged(result.exit_code, raw)


def housekeep(receiver: str) -> dict[str, Any]:
    """Settle, reclaim, clean answered landings, trim events."""
    from tidemark.operations.housekeeping import housekeep as run

    return counts_for_xcom(perform_step(lambda app: run(app, app.receiver_settings(receiver))).as_json())


def judged(exit_code: int, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return XCom's values of a complete flow; raise the error of the exit code's class if something is left."""
    if exit_code:
        from tidemark.orchestration.retry_policy import format_advice

        error = _CLASSES.get(exit_code, PermanentError)(escape_invisible(raw.get("error", "")), hint=raw.get("hint", ""))
        log.error("%s", format_advice(error))
        raise error
    return counts_for_xcom(raw)
