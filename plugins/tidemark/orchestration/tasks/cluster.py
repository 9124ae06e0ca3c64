"""Tasks of `tidemark_cluster_scale`: plan, phase one, slots by batches, the end. XCom carries counts and ranges of slots.

Each may run any number of times, at any time. The DAG run's id identifies the change, the flow does what is still missing of
it, and a late task of an earlier epoch finds nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.orchestration.tasks.perform import counts_for_xcom, format_values, make_progress, perform_step, report_counts
from tidemark.orchestration.tasks.receivers import ENGINE, report_outcome
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App
    from tidemark.cluster.membership.change import Wanted
    from tidemark.cluster.migration.plan import Batch
    from tidemark.ledger.cluster.tables import ChangeRow


log = VisibleLog(__name__)
MOST_TASKS = 100  # mapped ones; more make Airflow's pages slow
PLAN_LINES = 200


def plan(receiver: str, params: Mapping[str, Any] | None = None, dag_run: Any = None) -> dict[str, Any]:
    """Log what the change would move, for its approval; for a change that has begun, its state."""
    return perform_step(lambda app: _plan_change(app, receiver, _parse_wanted(params or {}, dag_run)))


def _plan_change(app: App, receiver: str, wanted: Wanted) -> dict[str, Any]:
    from tidemark.cluster.membership.change import plan_change
    from tidemark.progress import format_duration, format_size

    known = _find_change(app, receiver, wanted)
    if known is not None:
        log.info("%s %s is known already: %s", known.kind, known.node, known.state)
        return {"said": f"It goes on: it is {known.state}.", "state": known.state}
    found = plan_change(app, app.receiver_settings(receiver), wanted).as_json()
    for move in found["moves"][:PLAN_LINES]:
        log.info("%s", format_values(move) if isinstance(move, dict) else move)
    if len(found["moves"]) > PLAN_LINES:
        log.info("… and %d more", len(found["moves"]) - PLAN_LINES)
    takes = f", about {format_duration(found['seconds'])}" if found["seconds"] else ""
    said = f"{found['slots']:,} slots move, {format_size(found['bytes'])}{takes}. Loading and reading go on meanwhile."
    log.info("%s %s: %s", wanted.kind, wanted.node, said)
    return {**counts_for_xcom(found), "said": said}


def phase_one(
    receiver: str, params: Mapping[str, Any] | None = None, dag_run: Any = None, task_state_store: Any = None
) -> list[dict[str, Any]]:
    """Put the new table at every node and in force. Return the batches of `migrate` that are left."""
    progress = make_progress(task_state_store)
    wanted = _parse_wanted(params or {}, dag_run)

    def begin_change(app: App) -> list[dict[str, Any]]:
        from tidemark.cluster.membership.change import change_nodes
        from tidemark.cluster.migration.migrate import open_batches

        result = change_nodes(app, app.receiver_settings(receiver), wanted, progress, wait=False)
        report_counts(f"{wanted.kind} {wanted.node}".strip(), result.as_json())
        return batches_of([one for one in open_batches(app, app.receiver_settings(receiver)) if one.epoch == result.epoch])

    return perform_step(begin_change)


def batches_of(found: Sequence[Batch], most: int = MOST_TASKS) -> list[dict[str, Any]]:
    """Return one entry for each task, at most `most`: epoch, ranges of slots (both ends inclusive), a label. Pure."""
    from tidemark.proof.cluster.view import spans_of, spans_text

    share = -(-len(found) // most) if found else 1
    told = []
    for start in range(0, len(found), share):
        some = found[start : start + share]
        spans = spans_of(slot for batch in some for slot in batch.slots)
        label = f"{', '.join(some[0].new)}: slots {spans_text(spans, 2)}"
        told.append({"epoch": some[0].epoch, "ranges": [list(one) for one in spans], "label": label})
    return told


def migrate(receiver: str, batch: Mapping[str, Any], task_state_store: Any = None) -> dict[str, Any]:
    """Move what is left of these slots; nothing if their epoch has passed."""
    progress = make_progress(task_state_store)
    slots = _expand_slots(batch["ranges"])

    def move_slots(app: App) -> dict[str, Any]:
        from tidemark.cluster.migration.migrate import migrate_slots as run
        from tidemark.ledger.cluster.tables import current_epoch

        with app.ledger.read() as connection:
            now = current_epoch(connection, receiver)
        if now != batch["epoch"]:
            log.info("epoch %s has passed, %s is in force: these slots moved long ago", batch["epoch"], now)
            return {"epoch": now, "slots": 0, "bytes": 0, "left": 0, "state": ""}
        return report_counts(batch["label"], run(app, app.receiver_settings(receiver), progress, slots, ENGINE).as_json())

    return perform_step(move_slots)


def _expand_slots(ranges: Iterable[Sequence[int]]) -> list[int]:
    return [slot for first, last in ranges for slot in range(first, last + 1)]


def finish(
    receiver: str, params: Mapping[str, Any] | None = None, dag_run: Any = None, task_state_store: Any = None
) -> dict[str, Any]:
    """Move what the batches left, then end the change: its node has joined, or left. Return counts of the whole change."""
    progress = make_progress(task_state_store)
    wanted = _parse_wanted(params or {}, dag_run)

    def end_change(app: App) -> dict[str, Any]:
        from tidemark.cluster.membership.change import change_nodes

        known = _find_change(app, receiver, wanted)
        if known is None or known.state in ("rolled_back", "superseded"):
            return {"state": _find_end_state(app, receiver, wanted) if known is None else known.state}
        # A task cleared long after must not move the slots of a later change: that one has its own tasks.
        open_still = known.state != "done"
        result = change_nodes(app, app.receiver_settings(receiver), wanted, progress, wait=open_still, engine=ENGINE)
        return report_counts(f"{wanted.kind} {wanted.node}".strip(), result.as_json())

    return perform_step(end_change)


def check(receiver: str, task_state_store: Any = None) -> dict[str, Any]:
    """Check every node and every copy. Red if anything differs from the table: the log lists it."""
    from tidemark.cluster.health.check import check_cluster as run

    report = perform_step(lambda app: run(app, app.receiver_settings(receiver), make_progress(task_state_store)))
    for problem in report.problems:
        log.error("%s", format_values(problem.as_json()))
    return report_outcome(
        f"Checked the cluster of {receiver}",
        report.exit_code,
        {"error": f"{len(report.problems)} problems", **report.as_json()},
    )


def _parse_wanted(params: Mapping[str, Any], dag_run: Any) -> Wanted:
    from tidemark.cluster.membership.change import Wanted

    kind, node = params.get("kind") or "rebalance", (params.get("node") or "").strip()
    joins = kind == "add"
    return Wanted(
        kind=kind,
        node="" if kind == "rebalance" else node,
        url=(params.get("url") or "").strip() if joins else "",
        host_key=(params.get("host_key") or "").strip() if joins else "",
        key=(params.get("key") or "").strip() if joins else "",
        request=f"{dag_run.dag_id}/{dag_run.run_id}",
    )


def _find_end_state(app: App, receiver: str, wanted: Wanted) -> str:
    """Return the end state of the newest equal change: the batches may have ended one that somebody else began."""
    from tidemark.ledger.cluster import tables as table_rows

    with app.ledger.read() as connection:
        rows = table_rows.newest_changes(connection, receiver)
    return next((row.state for row in rows if (row.kind, row.node) == (wanted.kind, wanted.node)), "")


def _find_change(app: App, receiver: str, wanted: Wanted) -> ChangeRow | None:
    """Return the change of this DAG run, or an open one with the same request, from anybody."""
    from tidemark.ledger.cluster import tables as table_rows

    with app.ledger.read() as connection:
        rows = table_rows.newest_changes(connection, receiver)
        now = table_rows.open_change(connection, receiver)
    if now is not None and (now.kind, now.node) == (wanted.kind, wanted.node):
        return now
    return next((row for row in rows if row.change_id == wanted.request), None)
