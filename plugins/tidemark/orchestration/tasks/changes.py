"""Tasks of a source's DAG: check, capture, bootstrap, retain, verify; of a sink's: deliver. XCom carries counts alone.

Where a capture goes on is what the store says. So each task may run any number of times, anywhere the store's folder is, and
may die at any moment: nothing is lost and nothing stands twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.errors import BinlogGapError, LeaseHeldError, PartialError, PermanentError, TidemarkError, UnreachableError
from tidemark.orchestration.tasks.perform import make_progress, perform_step, report_counts
from tidemark.visible import escape_invisible
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App
    from tidemark.changes.sources.doctor import Examined

log = VisibleLog(__name__)
_CLASSES: dict[int, type[TidemarkError]] = {each.kind: each for each in (UnreachableError, PermanentError, BinlogGapError)}


def check(source: str) -> dict[str, Any]:
    """Ask whether the server may be trusted. Red if it may not, or if too little headroom is left: the log says why."""
    from tidemark.changes.sources.doctor import examine
    from tidemark.changes.sources.show import is_captured
    from tidemark.changes.sources.source import settings_of

    def look(app: App) -> Examined | None:
        return None if is_captured(app, source) else examine(settings_of(app.settings, source), app.clock)

    found = perform_step(look)
    if found is None:
        _skip(f"a capture of {source} is at work: this run has nothing to do")
        return {}
    for one in found.findings:
        (log.info if one.ok else log.error)("%s: %s%s", one.subject, one.detail, f". Next: {one.hint}" if one.hint else "")
    bad = [one for one in found.findings if not one.ok]
    if bad:
        told = "; ".join(f"{one.subject}: {one.detail}" for one in bad)
        raise _CLASSES.get(bad[0].kind, PermanentError)(escape_invisible(told), hint=bad[0].hint, subject=source)
    return report_counts(f"Checked {source}", {"headroom_hours": found.headroom.hours})


def capture(
    source: str, task_state_store: Any = None, inlet_events: Any = None, outlet_events: Any = None
) -> dict[str, Any]:
    """Capture everything up to now. Emit the asset of the source's changes if there are some that nobody was told of."""
    from tidemark.changes.sources.source import Reading, Request, capture_source, find_source
    from tidemark.changes.store.read import Reader

    progress = make_progress(task_state_store)

    def bring(app: App) -> tuple[dict[str, Any], int]:
        found = find_source(app, source)
        done = capture_source(found, Request(reading=Reading.LATER), progress).captured
        counts = {"transactions": done.transactions, "rows": done.rows, "bytes": done.bytes}
        return counts, Reader(found.disk).view.end.seq

    counts = _perform_and_tell(source, bring, inlet_events, outlet_events)
    return {} if counts is None else report_counts(f"Captured {source}", counts)


def bootstrap(
    source: str, task_state_store: Any = None, inlet_events: Any = None, outlet_events: Any = None
) -> dict[str, Any]:
    """Read the rows of the tables that are asked for and not read yet. Red if a table cannot be read; the others are."""
    from tidemark.changes.sources.source import bootstrap_source, find_source
    from tidemark.changes.store.read import Reader

    progress = make_progress(task_state_store)

    def read(app: App) -> tuple[dict[str, Any], int]:
        found = find_source(app, source)
        tables = bootstrap_source(found, progress)
        return {"rows": sum(table.rows for table in tables.values())}, Reader(found.disk).view.end.seq

    counts = _perform_and_tell(source, read, inlet_events, outlet_events)
    return {} if counts is None else report_counts(f"Read the tables of {source}", counts)


def _perform_and_tell(
    source: str, step: Callable[[App], tuple[dict[str, Any], int]], inlet_events: Any, outlet_events: Any
) -> dict[str, Any] | None:
    """Perform a step that gives counts and the store's newest transaction, and emit the asset of the source's changes if it
    has some that nobody was told of. Skips the task, or returns None, where another process has the source."""
    from tidemark.orchestration.schedules import changes_alias, changes_asset

    try:
        counts, newest = perform_step(step)
    except LeaseHeldError as held:
        _skip(held.message)
        return None
    last = inlet_events[changes_asset(source)].ascending(False).limit(1)
    told = int(last[0].extra.get("to", 0)) if len(last) else 0
    if newest > told:  # how far the news have got stands in the last event: a task that died before it told is made good
        outlet_events[changes_alias(source)].add(changes_asset(source), extra={"from": told + 1, "to": newest})
    return counts


def retain(source: str) -> dict[str, Any]:
    """Take what is older than the source keeps out of readers' sight, and off the disk after a grace."""
    from tidemark.changes.sources.source import find_source, retain_source

    done = perform_step(lambda app: retain_source(find_source(app, source)))
    counts = {"retired": done.retired, "removed": done.removed, "compressed": done.compressed}
    return report_counts(f"Cleaned the store of {source}", counts)


def verify(source: str) -> dict[str, Any]:
    """Once a day, compare the whole store with its checksums and with the server's logs. Red if anything differs: the log
    lists it."""
    from tidemark.changes.sources.source import find_source
    from tidemark.changes.sources.verify import is_verify_due, verify_source

    def prove(app: App) -> Any:
        found = find_source(app, source)
        return verify_source(found) if is_verify_due(found) else None

    proof = perform_step(prove)
    if proof is None:
        _skip(f"the store of {source} was verified less than a day ago")
        return {}
    problems = [f"{one['what']}: {one['problem']}" for one in proof.problems]
    for problem in problems:
        log.error("differs: %s", problem)
    if problems:
        raise PermanentError(escape_invisible(problems[0]), hint=f"./tidemark changes verify {source}", subject=source)
    return report_counts(f"Verified {source}", {"transactions": proof.store.transactions, "rows": proof.store.rows})


def deliver(sink: str, task_state_store: Any = None) -> dict[str, Any]:
    """Bring the tables of a sink up to its source's store. Red if a table is stopped: the others go on."""
    from tidemark.changes.sinks.deliver import Request, deliver_sink, find_sink

    progress = make_progress(task_state_store)
    try:
        done = perform_step(lambda app: deliver_sink(find_sink(app, sink), Request(progress=progress)))
    except LeaseHeldError as held:
        _skip(held.message)
        return {}
    for table in done.stopped:
        log.error("stopped: %s", escape_invisible(table.why))
    if done.stopped:
        raise PartialError(escape_invisible(done.stopped[0].why), hint=f"./tidemark changes deliver {sink}", subject=sink)
    return report_counts(f"Delivered {sink}", {"batches": done.batches, "rows": sum(done.rows.values())})


def _skip(why: str) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    raise AirflowSkipException(escape_invisible(why))
