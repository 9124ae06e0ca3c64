"""Tasks of the receivers' DAGs: load, merge, announce, verify, housekeep. Each calls one flow and returns ids and counts.

A flow does all it can and reports the rest. With a rest the task is red, and its last line names the next command. A
repeated run finds only what is still open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.errors import (
    CorruptionError,
    GuardError,
    OwnershipError,
    PartialError,
    PermanentError,
    RetryableError,
    TidemarkError,
)
from tidemark.orchestration.tasks.perform import format_values, make_progress, perform_step, report_counts
from tidemark.progress import format_count
from tidemark.visible import escape_invisible
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App
    from tidemark.ledger.receiver.catalog import CatalogChange, Mark
    from tidemark.ledger.receiver.landings import SiteRow


log = VisibleLog(__name__)
_LEFT: tuple[type[TidemarkError], ...] = (RetryableError, CorruptionError, OwnershipError, GuardError, PartialError)
_CLASSES = {error.kind: error for error in _LEFT}
ENGINE = "spark"  # in DAGs; `[spark] engine` may say otherwise


def load(receiver: str, task_state_store: Any = None) -> dict[str, Any]:
    """Load every landing of the receiver that is not loaded yet."""
    from tidemark.receiver.load.load import load as run

    progress = make_progress(task_state_store)
    result = perform_step(lambda app: run(app, app.receiver_settings(receiver), engine=ENGINE, progress=progress))
    for trouble in result.troubles:
        log.warning("%s in landing %s: %s", trouble.what, trouble.landing, trouble.text)
    for path, reason in result.pending:
        log.info("pending %s: %s", path, reason)
    return report_outcome(f"Loaded into {receiver}", result.exit_code, result.as_json())


def load_iotdb(receiver: str, task_state_store: Any = None) -> dict[str, Any]:
    """Give the receiver's IoTDB the catalog's new files; does nothing without an IoTDB."""
    from tidemark.receiver.iotdb.load import load_if_any

    progress = make_progress(task_state_store)
    result = perform_step(lambda app: load_if_any(app, app.receiver_settings(receiver), progress))
    if result is None:
        return {}
    for trouble in result.troubles:
        log.warning("%s %s", trouble.what, trouble.text)
    return report_outcome(f"Gave the IoTDB of {receiver}", result.exit_code, result.as_json())


def merge(receiver: str, task_state_store: Any = None) -> dict[str, Any]:
    """Merge overlapping files at the receiver."""
    from tidemark.receiver.merge.merge import merge as run

    progress = make_progress(task_state_store)
    result = perform_step(lambda app: run(app, app.receiver_settings(receiver), engine=ENGINE, progress=progress))
    for subject, error, _ in result.failed:
        log.error("not merged: %s: %s", subject, error)
    told = {
        "error": f"not merged: {format_count(len(result.failed) + result.moved, 'group')}",
        "hint": f"./tidemark merge --receiver {receiver}",
    }
    return report_outcome(f"Merged at {receiver}", result.exit_code, result.as_json() | told)


def announce(receiver: str, inlet_events: Any = None, outlet_events: Any = None) -> dict[str, Any]:
    """Emit `catalog_asset` if readers see other points than when it was last emitted, also after a load or a merge failed.

    How far the news have got stands in the last event itself, so that none is lost and none is told twice.
    """
    from tidemark.ledger.receiver.catalog import Mark, find_changes
    from tidemark.ledger.receiver.landings import read_sites
    from tidemark.orchestration.schedules import catalog_alias, catalog_asset

    last = inlet_events[catalog_asset(receiver)].ascending(False).limit(1)
    since = Mark(*last[0].extra.get("mark", ())) if len(last) else Mark()

    def find_news(app: App) -> tuple[Mark, list[CatalogChange], dict[str, SiteRow]]:
        with app.ledger.read() as connection:
            return *find_changes(connection, receiver, since), read_sites(connection)

    mark, changes, sites = perform_step(find_news)
    if not changes:
        log.info("Readers of %s see what they saw before: nobody is told.", receiver)
        return {"files": 0, "removed": 0}
    news = describe_changes(changes, {site_id: row.time_unit for site_id, row in sites.items()})
    outlet_events[catalog_alias(receiver)].add(
        catalog_asset(receiver), extra={**news, "mark": [mark.file_id, mark.created, mark.retired]}
    )
    return report_counts(f"Told that the catalog of {receiver} changed", news)


def describe_changes(changes: Sequence[CatalogChange], units: Mapping[str, str]) -> dict[str, Any]:
    """Return an event's `extra`: databases, files that came and left, the times they have. Pure."""
    from tidemark.tsfiles.times import format_interval

    first, last = format_interval([(one.first, one.last, units.get(one.site_id, "ms")) for one in changes])
    databases = sorted({one.database for one in changes})
    files, removed = sum(one.added for one in changes), sum(one.removed for one in changes)
    return {"databases": databases, "from": first, "to": last, "files": files, "removed": removed}


def verify(receiver: str, params: Mapping[str, Any] | None = None, task_state_store: Any = None) -> dict[str, Any]:
    """Compare source, landing and catalog. Red when anything differs or was not verified: the log lists it."""
    from tidemark.proof.verify.verify import verify as run

    asked = params or {}
    site, deep, live = asked.get("site") or "", bool(asked.get("deep")), bool(asked.get("live_only"))
    progress = make_progress(task_state_store)
    result = perform_step(
        lambda app: run(app, app.receiver_settings(receiver), site=site, deep=deep, live_only=live, progress=progress)
    )
    raw = result.as_json()
    for difference in raw["differences"]:
        log.error("differs: %s", format_values(difference))
    for held in raw["held"]:
        log.warning("held back: %s", format_values(held))
    for unread in raw["not_read"]:
        log.warning("not read: %s", format_values(unread))
    for without in raw["not_compared"]:
        log.warning("nothing was compared: %s", format_values(without))
    for unsent in raw["unsent"]:
        log.warning("sealed and not sent: %s", format_values(unsent))
    return report_outcome(f"Verified {receiver}", result.exit_code, raw)


def housekeep(receiver: str) -> dict[str, Any]:
    """Settle, reclaim, clean answered landings, trim events."""
    from tidemark.operations.housekeeping import housekeep as run

    result = perform_step(lambda app: run(app, app.receiver_settings(receiver)))
    return report_counts(f"Kept house at {receiver}", result.as_json())


def report_outcome(done: str, exit_code: int, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Report what a flow did. Return XCom's values; raise the error of the exit code's class if something is left."""
    counts = report_counts(done, {key: value for key, value in raw.items() if key not in ("error", "hint")})
    if exit_code:
        raise _CLASSES.get(exit_code, PermanentError)(escape_invisible(raw.get("error", "")), hint=raw.get("hint", ""))
    return counts
