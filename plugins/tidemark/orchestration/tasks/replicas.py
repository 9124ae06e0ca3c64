"""Tasks of `tidemark_replica_watch` and `tidemark_replica_recover`, and one of `tidemark_verify`. XCom carries counts and
names of nodes.

Each may run any number of times, at any time, beside another scheduler's: leases let one at a time do something, and what is
done already is not done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.errors import LeaseHeldError
from tidemark.orchestration.tasks.perform import make_progress, perform_step, report_counts
from tidemark.orchestration.tasks.receivers import report_outcome
from tidemark.visible_log import VisibleLog

if TYPE_CHECKING:
    from tidemark.app import App


log = VisibleLog(__name__)


def watch(receiver: str, task_state_store: Any = None) -> dict[str, Any]:
    """Run a round of the watch. Members that lack files are left to `recover`. Red while a group has no master."""
    progress = make_progress(task_state_store)

    def look(app: App) -> dict[str, Any]:
        from tidemark.cluster.health.watch import watch_groups

        try:
            watched = watch_groups(app, app.receiver_settings(receiver), progress, files=False)
        except LeaseHeldError as busy:
            log.info("%s: another round is at work, this one is not needed", busy.message)
            return {}
        for group, why in watched.waits.items():
            log.warning("group %s waits: %s", group, why)
        counts = {key: value for key, value in watched.as_json().items() if key not in ("ok", "error", "hint")}
        told = report_counts(f"Watched the groups of {receiver}", counts)
        for error in watched.errors:
            if error.kind == watched.exit_code:
                raise error
        return told

    return perform_step(look)


def verify(receiver: str, task_state_store: Any = None) -> dict[str, Any]:
    """Compare the members of every group by their disks. Red if they differ, or one cannot be asked: the log lists it."""
    from tidemark.operations.replicas import verify_replicas

    progress = make_progress(task_state_store)
    verified = perform_step(lambda app: verify_replicas(app, app.receiver_settings(receiver), progress))
    for sentence in verified.wrong:
        log.error("%s", sentence)
    return report_outcome(f"Compared the members of the groups of {receiver}", verified.exit_code, verified.as_json())


def find(receiver: str) -> list[str]:
    """Return the nodes that are not in step and answered the last round of the watch."""

    def look(app: App) -> list[str]:
        from tidemark.cluster.health.operator import find_unsynced
        from tidemark.ledger.cluster.node_watch import read_watch

        found = find_unsynced(app, app.receiver_settings(receiver))
        with app.ledger.read() as connection:
            away = {node for node, row in read_watch(connection, receiver).items() if row.misses}
        for node in sorted(away.intersection(found)):
            log.info("node %s is not in step, and does not answer", node)
        return [node for node in found if node not in away]

    return perform_step(look)


def recover(receiver: str, node: str, task_state_store: Any = None) -> dict[str, Any]:
    """Bring one node back into step. Red, and tried again, while something of it is left."""
    progress = make_progress(task_state_store)

    def bring_back(app: App) -> dict[str, Any]:
        from tidemark.cluster.health.operator import recover_members

        decided = recover_members(app, app.receiver_settings(receiver), node, progress)
        files, size = sum(one.files for one in decided.done), sum(one.bytes for one in decided.done)
        told = report_counts(f"Recovered {node}", {"files": files, "bytes": size})
        for _, error in decided.left:
            raise error
        return told

    return perform_step(bring_back)


def replace(receiver: str, task_state_store: Any = None) -> dict[str, Any]:
    """Make, or go on with, the change that replaces a node that stays away. Red if it cannot be made: the next run tries."""
    progress = make_progress(task_state_store)

    def make_change(app: App) -> dict[str, Any]:
        from tidemark.cluster.membership.replace import replace_away

        try:
            replaced = replace_away(app, app.receiver_settings(receiver), progress)
        except LeaseHeldError as busy:
            log.info("%s: the nodes are being changed already", busy.message)
            return {}
        if replaced.why:
            log.warning("node %s stays away and is not replaced: %s", replaced.node, replaced.why)
        return report_counts(f"Replaced what stays away of {receiver}", vars(replaced)) if replaced.node else {}

    return perform_step(make_change)
